// Which view stands in `main`, and the line at the top.

import { captures } from "./captures.js";
import { h } from "./dom.js";
import { events } from "./events.js";
import { percent } from "./format.js";
import { metric } from "./metric.js";
import { notice } from "./notice.js";
import { overview } from "./overview.js";
import { here } from "./place.js";
import { probes } from "./probes.js";
import { stacks } from "./stacks.js";
import { watch } from "./status.js";

/** A view fills an element until its signal; what it returns is called when but parameters of the address have changed. */
const VIEWS = { "": overview, metric, events, stacks, captures, probes };
const main = document.getElementById("main");
let shown = null;

function route() {
  const { view, name, parameters } = here();
  if (shown?.view === view && shown.name === name) {
    shown.update?.(parameters);
    return;
  }
  shown?.end.abort();
  const first = !shown;
  const end = new AbortController();
  shown = { view, name, end };
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.hash.replace(/^#\//, "");
    const current = target === view || (target === "" && view === "metric");
    link.toggleAttribute("aria-current", current);
    if (current) link.setAttribute("aria-current", target === view ? "page" : "true");
  }
  if (!VIEWS[view]) {
    main.append(notice(`There is no view "${view}".`, "The links at the top lead to all of them."));
    return;
  }
  document.title = [name || view, "kstrobe"].filter(Boolean).join(" · ");
  shown.update = VIEWS[view](main, name, parameters, end.signal);
  // Who navigates by keyboard goes on from the top of the new view.
  if (!first) main.focus({ preventScroll: true });
}

addEventListener("hashchange", route);
document.querySelector(".skip").onclick = (event) => {
  // The address after `#` is the view's.
  event.preventDefault();
  main.focus();
};

watch(null, ({ node, share, budget }) => {
  if (!node) return;
  const cost = share === null ? "being measured" : percent(share);
  document.getElementById("machine").replaceChildren(h("b", {}, node.name), h("span", {}, `${node.kernel} · ${node.cpus} CPUs`),
    h("span", { title: "CPU time in the probes' programs, as a share of the machine" }, "cost ", h("b", { className: "num" }, cost), budget ? ` of ${percent(budget)}` : ""));
});
route();
