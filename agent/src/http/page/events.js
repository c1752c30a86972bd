// Slow events: the last ones, and those to come.

import { follow, get, withQuery } from "./api.js";
import { h, scroller, table } from "./dom.js";
import { range, value } from "./format.js";
import { failure, notice } from "./notice.js";
import { changed, go, to } from "./place.js";

const LIMIT = 200;
/** Rows kept while more come, and most of a range. */
const MOST_ROWS = 500;
/** What to do when events are gone. */
const KEEP_MORE = ["The agent keeps the last events of each probe. To keep more, in kstrobe.yaml:", "limits: { kept_events: 4096 }"];
const EXAMPLE = ["slow:", "  when: elapsed > 100ms", "  fields: { comm: comm, took: elapsed, stack: kstack }"].join("\n");

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
      this.body.replaceChildren(back, notice(`The event ${id} is not kept any more.`, ...KEEP_MORE));
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
    const rows = h("tbody");
    const none = notice("No slow event yet.", "Events come from probes with a `slow` block, while its condition holds. In a probe's file:", EXAMPLE);
    const problem = h("div");
    const said = h("span", { className: "dim num", role: "status" });
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
      none.hidden = true;
      rows.prepend(rowOf(event));
      while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
    };
    const made = table("Slow events, the newest first", ["time", "probe", "pid", "fields"], [], { className: "text" });
    made.querySelector("tbody").replaceWith(rows);
    this.body.replaceChildren(
      h("div", { className: "tools" }, h("label", {}, "Probe", choose),
        until ? h("a", { className: "button", href: to("events", "", { probe }) }, "All times") : pauseButton, said),
      problem, none, h("div", { className: "card" }, scroller("Events", made)));
    if (until) {
      // All that are kept: the last ones may all be later.
      const { events: kept } = await get(withQuery("api/v1/events", { probe }), this.turn.signal);
      const within = kept.filter(({ time }) => Date.parse(time) >= from * 1000 && Date.parse(time) <= until * 1000);
      if (!within.length) none.replaceWith(notice(`No event of this time is kept${probe ? ` of ${probe}` : ""}.`, ...KEEP_MORE));
      within.slice(-MOST_ROWS).forEach(add);
      said.textContent = `${range(from, until)}${within.length > MOST_ROWS ? `, the last ${MOST_ROWS} of ${within.length} events` : ""}`;
      return;
    }
    // After a lost connection those that came meanwhile, too; the others are there.
    let there = new Set();
    const path = () => {
      there = new Set([...[...rows.children].map((row) => row.dataset.event), ...held.map(({ id }) => id)]);
      return withQuery("api/v1/events", { probe, follow: "true", limit: LIMIT });
    };
    await follow(path, this.turn.signal, (event) => {
      if (event.id && there.has(event.id)) return;
      if (paused) held.push(event);
      else add(event);
    }, (error) => problem.replaceChildren(...(error ? [failure(error)] : [])));
  }
}

function rowOf(event) {
  const fields = Object.entries(event.fields).map(([name, field]) => `${name}=${shortly(field)}`);
  const time = h("a", { href: to("events", "", { id: event.id }) }, event.time.slice(11, 23));
  return h("tr", { "data-event": event.id }, [time, event.probe, String(event.pid), fields.join("  ")].map((cell) => h("td", {}, cell)));
}

function shortly(field) {
  if (Array.isArray(field)) return `[${field.slice(0, 3).join(" < ")}${field.length > 3 ? " < …" : ""}]`;
  return typeof field === "number" && !Number.isInteger(field) ? value(field, "seconds") : String(field);
}

function term(name, field) {
  const text = Array.isArray(field) ? (field.length ? h("pre", { tabIndex: 0 }, field.join("\n")) : "(empty)") : typeof field === "number" && !Number.isInteger(field) ? value(field, "seconds") : String(field);
  return [h("dt", {}, name), h("dd", {}, text)];
}
