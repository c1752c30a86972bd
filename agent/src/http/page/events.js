// Slow events: the last ones, and those to come.

import { follow, get, withQuery } from "./api.js";
import { h, scroller, table } from "./dom.js";
import { value } from "./format.js";
import { failure, notice } from "./notice.js";
import { changed, go, to } from "./place.js";

const LIMIT = 200;
/** Rows kept while more come. */
const MOST_ROWS = 500;
const EXAMPLE = `slow:
  when: elapsed > 100ms
  fields: { comm: comm, took: elapsed, stack: kstack }`;

export function events(root, _name, parameters, signal) {
  root.append(h("h1", { className: "hidden" }, "Events"));
  const view = new Events(root, signal);
  view.start(parameters);
  return (changedTo) => view.start(changedTo);
}

class Events {
  constructor(root, signal) {
    Object.assign(this, { root, signal });
    this.body = h("div");
    root.append(this.body);
  }

  start(parameters) {
    this.turn?.abort();
    this.turn = new AbortController();
    this.signal.addEventListener("abort", () => this.turn.abort(), { once: true });
    const id = parameters.get("id");
    const work = id ? this.one(id) : this.many(parameters);
    work.catch((error) => !this.turn.signal.aborted && this.body.replaceChildren(failure(error)));
  }

  /** One event with all that it says. */
  async one(id) {
    const { events: [event] } = await get(withQuery("api/v1/events", { id }), this.turn.signal);
    const back = h("p", {}, h("a", { href: to("events") }, "All events"));
    if (!event) {
      this.body.replaceChildren(back, notice(`The event ${id} is not kept any more.`, "The agent keeps the last events of each probe. To keep more, in kstrobe.yaml:", "limits: { kept_events: 4096 }"));
      return;
    }
    this.body.replaceChildren(back, h("article", { className: "card", id: "event" },
      h("div", { className: "head" }, h("h2", {}, h("a", { href: to("probes", event.probe) }, event.probe)), h("span", { className: "dim num" }, event.time)),
      h("dl", {}, term("id", event.id), term("pid", event.pid), term("tid", event.tid), Object.entries(event.fields).map(([name, field]) => term(name, field))),
      h("p", {}, h("a", { className: "button main", href: to("captures", "", { probe: event.probe, comm: event.fields.comm, duration: "5s" }) }, "Capture this probe's events"))));
  }

  async many(parameters) {
    const { probes } = await get("api/v1/probes", this.turn.signal);
    const probe = parameters.get("probe");
    const [from, until] = (parameters.get("at") ?? "").split("..").map(Number);
    const within = (event) => !until || (Date.parse(event.time) >= from * 1000 && Date.parse(event.time) <= until * 1000);
    const rows = h("tbody");
    const none = notice("No slow event yet.", "Events come from probes with a `slow` block, while its condition holds. In a probe's file:", EXAMPLE);
    const problem = h("div");
    let paused = false;
    const pauseButton = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
    pauseButton.onclick = () => {
      paused = !paused;
      pauseButton.setAttribute("aria-pressed", String(paused));
      if (!paused) held.splice(0).forEach(add);
    };
    const choose = h("select", { onchange: () => go(changed({ probe: choose.value }), true) }, h("option", { value: "" }, "all probes"),
      probes.map(({ name }) => h("option", { value: name, selected: name === probe }, name)));
    const held = [];
    const add = (event) => {
      if (event.gone) {
        rows.prepend(h("tr", {}, h("td", { colSpan: 4, className: "dim" }, `${event.gone} events are not kept any more, or came faster than they could be shown.`)));
        return;
      }
      if (!within(event)) return;
      none.hidden = true;
      rows.prepend(rowOf(event));
      while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
    };
    const made = table("Slow events, the newest first", ["time", "probe", "pid", "fields"], [], { className: "text" });
    made.querySelector("tbody").replaceWith(rows);
    this.body.replaceChildren(
      h("div", { className: "tools" }, h("label", {}, "Probe", choose), pauseButton,
        until && h("a", { className: "button", href: to("events", "", { probe }) }, "All times")),
      problem, none, h("div", { className: "card" }, scroller("Events", made)));
    let first = true;
    // After a lost connection only what is new: the rows are there.
    const path = () => withQuery("api/v1/events", { probe, follow: "true", limit: first ? LIMIT : 0 });
    await follow(path, this.turn.signal, (event) => {
      first = false;
      if (paused) held.push(event);
      else add(event);
    }, (error) => problem.replaceChildren(...(error && error.status ? [failure(error)] : [])));
  }
}

function rowOf(event) {
  const fields = Object.entries(event.fields).map(([name, field]) => `${name}=${shortly(field)}`);
  return h("tr", {}, [h("a", { href: to("events", "", { id: event.id }) }, event.time.slice(11, 23)), event.probe, String(event.pid), fields.join("  ")].map((cell) => h("td", {}, cell)));
}

function shortly(field) {
  if (Array.isArray(field)) return `[${field.slice(0, 3).join(" < ")}${field.length > 3 ? " < …" : ""}]`;
  return typeof field === "number" && !Number.isInteger(field) ? value(field, "seconds") : String(field);
}

function term(name, field) {
  const text = Array.isArray(field) ? (field.length ? h("pre", { tabIndex: 0 }, field.join("\n")) : "(empty)") : typeof field === "number" && !Number.isInteger(field) ? value(field, "seconds") : String(field);
  return [h("dt", {}, name), h("dd", {}, text)];
}
