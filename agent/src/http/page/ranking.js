// The groups of a metric by one of its labels, in a table that can be sorted.

import { figure, h, scroller, sparkline, table } from "./dom.js";
import { count, matcher, meanRate, rate, value } from "./format.js";
import { changed, go } from "./place.js";

/** Columns by type: key of the API's `total` or `rate`, head, text of a value, and whether the API sorts by it. */
function columnsOf(type, unit) {
  const plain = (v) => value(v, unit);
  if (type === "gauge") return [["last", "last", plain], ["min", "min", plain], ["max", "max", plain, true]];
  const counts = [["count", "events", count, true], ["rate", "rate", rate, true]];
  if (type === "counter") return counts;
  return [["sum", unit === "seconds" ? "time" : "sum", plain, true], counts[1], ["p50", "p50", plain, true], ["p99", "p99", plain, true], ["max", "max", plain, true]];
}

/** By what the table is sorted when the address says nothing. */
export const defaultSort = (type) => ({ histogram: "sum", counter: "rate", gauge: "max" })[type];

/** The table of an answer with groups by a label. */
export function ranking(answer, by, match, sort) {
  const columns = columnsOf(answer.type, answer.unit);
  const heads = [by, ...columns.map(([key, name, , sorts]) => (sorts ? sortButton(key, name) : name)), "trend"];
  const rows = answer.groups.map((group) => {
    const name = group.labels[by] ?? "";
    const cell = ([key, , text]) => {
      const v = key === "rate" ? meanRate(group) : group.total[key];
      return figure(text(v), v);
    };
    // The next choice is among what is left: the label itself has one value then.
    const drill = h("a", { href: changed({ match: [...match, matcher(by, name)], by: null, one: null, other: null }), title: `only ${by} ${name}` }, name || "(empty)");
    const trend = answer.type === "gauge" ? group.value : group.rate;
    return h("tr", { "data-group": name }, [drill, ...columns.map(cell), sparkline(trend ?? [], 56)].map((one) => h("td", {}, one)));
  });
  const made = table(`By ${by}, sorted by ${sort}`, heads, rows, { className: "num" });
  made.querySelectorAll("th").forEach((head) => {
    if (head.firstElementChild?.dataset.sort === sort) head.setAttribute("aria-sort", "descending");
  });
  return [scroller(`By ${by}`, made), answer.left_out > 0 && h("p", { className: "dim" }, `${answer.left_out} more are not shown.`)];
}

function sortButton(key, name) {
  return h("button", { type: "button", "data-sort": key, onclick: () => go(changed({ sort: key }), true) }, name);
}
