// What a view shows when there is nothing or something failed: what it is, and what to do.

import { token } from "./api.js";
import { h } from "./dom.js";

export function notice(title, text, command) {
  return h("div", { className: "notice" }, h("p", {}, h("b", {}, title)), text && h("p", {}, text),
    command && h("pre", { tabIndex: 0 }, command));
}

/** An error of the API. Where the token is what lacks, a field for it. */
export function failure(error) {
  if (error.name === "AbortError") return "";
  return h("div", { className: "notice bad", role: "alert" }, h("p", {}, h("b", {}, error.message)),
    error.hint && h("p", {}, error.hint), error.status === 401 && tokenForm());
}

function tokenForm() {
  const field = h("input", { type: "password", autocomplete: "off", required: true });
  const form = h("form", { className: "tools" }, h("label", {}, "Token of captures.token_file", field),
    h("button", { type: "submit", className: "main" }, "Use it"));
  form.onsubmit = (event) => {
    event.preventDefault();
    token.set(field.value);
    location.reload();
  };
  return form;
}
