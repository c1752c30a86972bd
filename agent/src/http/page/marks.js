// Marks above a chart: slow events, captures, reloads. Each is a link.

import { h } from "./dom.js";
import { clock } from "./format.js";
import { to } from "./place.js";

/** Pixels within which marks of a kind are one. */
const NEAR = 12;

/** Where a mark leads: the API's link as a view. */
function target(mark) {
  const event = /events\?(?:.*&)?id=([0-9a-f]+)/.exec(mark.link ?? "");
  if (event) return to("events", "", { id: event[1] });
  const capture = /captures\/([^/?]+)/.exec(mark.link ?? "");
  return capture ? to("captures", capture[1]) : null;
}

/** The lane of a chart's marks. Events of other probes than the chart's are hollow: they say what else was slow then. */
export function marksOf(chart, probe) {
  const kindOf = ({ kind, text }) => (kind === "event" && !text.startsWith(`${probe}:`) ? "event other" : kind);
  const lane = h("div", { role: "list", "aria-label": "Marks" });
  let last = [];
  chart.element.append(lane);
  const draw = () => {
    if (!chart.cells) return;
    const near = new Map();
    for (const mark of last) {
      const x = chart.x(mark.time);
      if (x < chart.left || x > chart.left + chart.width) continue;
      const key = `${kindOf(mark)} ${Math.floor(x / NEAR)}`;
      near.set(key, [...(near.get(key) ?? []), mark]);
    }
    lane.replaceChildren(...[...near.values()].map((marks) => {
      const { kind, time, text } = marks[0];
      const all = marks.length > 1 ? `${marks.length} ${kind}s from ${clock(time)}, the first: ${text}` : `${clock(time)} ${kind}: ${text}`;
      const href = marks.length > 1 && kind === "event" ? to("events", "", { at: `${Math.floor(time)}..${Math.ceil(marks.at(-1).time + 0.001)}` }) : target(marks[0]);
      const about = { className: `mark ${kindOf(marks[0])}`, title: all, "aria-label": all };
      const dot = href ? h("a", { ...about, href }) : h("span", { ...about, role: "img" });
      const item = h("div", { role: "listitem" }, dot);
      dot.style.left = `${chart.x(time)}px`;
      return item;
    }));
  };
  new ResizeObserver(draw).observe(chart.element);
  return {
    show(marks) {
      last = marks;
      draw();
    },
  };
}
