// Two distributions of a metric side by side, of two ranges or of two values of a label: what has changed, bucket by bucket.

import { h, scroller, svg, table } from "./dom.js";
import { matcher, meanRate, range, rate, value } from "./format.js";
import { changed, go } from "./place.js";

const ROW = 18;
const LEFT = 120;
const WIDTH = 960;
const TOP = 12;
/** Figures of the table. */
const FIGURES = { histogram: ["rate", "p50", "p99"], counter: ["rate"], gauge: ["min", "max", "last"] };

/** Compares what is selected with the range that is kept. `whole` is the answer for the selection. */
export async function compareRanges(info, chosen, whole, ask) {
  if (!chosen.base) return [];
  const head = headOf(`Compared with ${range(chosen.base.from, chosen.base.to)}`, { base: null });
  if (!chosen.selection) return [h("div", { className: "card" }, head, h("p", { className: "dim" }, "Select another range to see what is different there."))];
  const { by, sort } = chosen;
  // Groups that are not among the largest are in "all", too: it has queries of its own.
  const rows = [row("all", await ask(chosen.base), whole)];
  if (by) {
    const now = await ask({ by, top: TOP, sort });
    const before = await ask({ ...chosen.base, by, top: 100, sort });
    const same = (group) => before.groups.find((other) => other.labels[by] === group.labels[by]);
    rows.push(...now.groups.map((group) => row(group.labels[by], before, now, same(group), group)));
  }
  const link = ({ name }, i) => (i ? h("a", { href: changed({ match: [...chosen.match, matcher(by, name)], by: null, one: null, other: null }) }, name) : name);
  return [card(info, head, rows, by ?? "", link)];
}

/** Compares two values of the label in what is shown. */
export async function compareValues(info, { by, one, other, match }, ask) {
  if (!one || !other) return [];
  const [before, now] = await Promise.all([one, other].map((text) => ask({ match: [...match, matcher(by, text)] })));
  return [card(info, headOf(`${by}: ${one} → ${other}`, { one: null, other: null }), [row("all", before, now)], "", ({ name }) => name)];
}

/** Two selects for values of the label. */
export function valuesChoice({ by, one, other }, names) {
  const select = (label, values, chosen) => h("select", { "aria-label": label, onchange: choose },
    values.map((text) => h("option", { value: text, selected: text === chosen }, text || "–")));
  const choose = () => go(changed(second.value ? { one: first.value, other: second.value } : { one: null, other: null }), true);
  const first = select(`${by} to compare`, names, one);
  const second = select(`${by} to compare it with`, ["", ...names], other);
  return [`Compare ${by}`, first, "with", second];
}

function headOf(text, ended) {
  return h("div", { className: "head" }, h("h2", {}, text), h("button", { type: "button", onclick: () => go(changed(ended)) }, "End the comparison"));
}

/** One line of a comparison, from groups of two answers. */
function row(name, before, now, group = before.groups[0], other = now.groups[0]) {
  return { name, before: side(before, group), now: side(now, other) };
}

/** A group's figures, and the rate of each of its buckets by its lower bound. */
function side(answer, group) {
  const bounds = new Map();
  const rates = new Map();
  const mean = meanRate(group) ?? 0;
  for (const column of group?.heat ?? []) {
    for (let i = 0; i < column.length; i += 2) {
      const [lower, upper] = answer.bounds[column[i]];
      bounds.set(lower, upper);
      rates.set(lower, (rates.get(lower) ?? 0) + (column[i + 1] / group.total.count) * mean);
    }
  }
  return { ...group?.total, rate: mean, bounds, rates };
}

function card(info, head, rows, label, link) {
  const keys = FIGURES[info.type];
  const text = (key, one) => (key === "rate" ? rate(one.rate) : value(one[key], info.unit));
  const body = rows.map((one, i) => [link(one, i), ...keys.map((key) => `${text(key, one.before)} → ${text(key, one.now)}`)]);
  const note = "Orange: more events a second than before the arrow, blue: fewer; the stronger, the more. Values grow to the right.";
  return h("div", { className: "card" }, head,
    info.type === "histogram" && [scroller("Difference by bucket", difference(rows, info.unit)), h("p", { className: "dim" }, note)],
    scroller("Before and after", table("Before and after", [label, ...keys], body, { className: "num" })));
}

/** A row for each group, a cell for each bucket, coloured by the change of its rate. */
function difference(rows, unit) {
  const bounds = new Map(rows.flatMap((row) => [...row.now.bounds, ...row.before.bounds]));
  const lowers = [...bounds.keys()].sort((a, b) => a - b);
  const height = (rows.length + 1) * ROW;
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Change of the rate of each bucket" });
  const wide = (WIDTH - LEFT) / Math.max(1, lowers.length);
  rows.forEach((row, y) => {
    picture.append(svg("text", { x: LEFT - 6, y: y * ROW + 13, "text-anchor": "end", class: "tick" }, row.name.slice(0, 18)));
    const change = lowers.map((lower) => (row.now.rates.get(lower) ?? 0) - (row.before.rates.get(lower) ?? 0));
    const most = Math.max(...change.map(Math.abs)) || 1;
    change.forEach((by, i) => {
      if (by === 0) return;
      const [from, to] = [lowers[i], bounds.get(lowers[i]) ?? Infinity].map((bound) => value(bound, unit));
      const opacity = (0.12 + 0.88 * Math.sqrt(Math.abs(by) / most)).toFixed(2);
      const place = { x: LEFT + i * wide, y: y * ROW + 1, width: wide, height: ROW - 2 };
      const cell = svg("rect", { ...place, class: by > 0 ? "more" : "fewer", "fill-opacity": opacity });
      cell.append(svg("title", {}, `${row.name}, ${from} to ${to}: ${by > 0 ? "+" : "−"}${rate(Math.abs(by))}`));
      picture.append(cell);
    });
  });
  const every = Math.max(1, Math.ceil(lowers.length / 10));
  lowers.forEach((lower, i) => i % every === 0 && picture.append(svg("text", { x: LEFT + i * wide, y: height - 4, class: "tick" }, value(lower, unit))));
  return picture;
}
