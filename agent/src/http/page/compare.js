// Two ranges of a metric side by side: how the distribution of each group has changed, bucket by bucket.

import { Cells, events } from "./cells.js";
import { h, scroller, svg, table } from "./dom.js";
import { matcher, range, rate, value } from "./format.js";
import { changed, go } from "./place.js";

const ROW = 18;
const LEFT = 120;
const WIDTH = 960;
const TOP = 12;

/** What stands below the picture while a range is kept for comparison. */
export async function compare(info, query, chosen, part, ask) {
  if (!chosen.base) return [];
  const end = h("button", { type: "button", onclick: () => go(changed({ base: null })) }, "End the comparison");
  const head = h("div", { className: "head" }, h("h2", {}, `Compared with ${range(chosen.base.from, chosen.base.to)}`), end);
  if (!chosen.selection) return [h("div", { className: "card" }, head, h("p", { className: "dim" }, "Select another range to see what is different there."))];
  const by = chosen.by ? { by: chosen.by, top: TOP, sort: chosen.sort } : {};
  const now = await ask(by);
  const same = now.groups.map((group) => group.labels[chosen.by]);
  const before = await ask({ ...by, ...chosen.base, top: 100 });
  const find = (name) => before.groups.find((group) => group.labels[chosen.by] === name);
  const rows = now.groups.map((group, i) => ({ name: same[i] ?? "all", now: summary(now, [group]), before: summary(before, [find(same[i])].filter(Boolean)) }));
  const all = [{ name: "all", now: summary(now, now.groups), before: summary(before, before.groups) }, ...(chosen.by ? rows : [])];
  const pairs = (text) => (row) => h("td", {}, `${text(row.before)} → ${text(row.now)}`);
  const figures = [(one) => rate(one.rate), (one) => value(one.p50, info.unit), (one) => value(one.p99, info.unit)].map(pairs);
  const name = (row) => (row.name === "all" || !chosen.by ? row.name : h("a", { href: changed({ match: [...chosen.match, matcher(chosen.by, row.name)], by: null }) }, row.name));
  const body = all.map((row) => h("tr", {}, h("td", {}, name(row)), figures.map((figure) => figure(row))));
  const picture = info.type === "histogram" ? [scroller("Difference by bucket", difference(all, info.unit)), h("p", { className: "dim" }, "Orange: more events a second than before, blue: fewer; the stronger, the more. Values grow to the right.")] : [];
  const columns = info.type === "histogram" ? figures.length : 1;
  body.forEach((row) => [...row.children].slice(columns + 1).forEach((cell) => cell.remove()));
  return [h("div", { className: "card" }, head, ...picture, scroller("Before and after", table("Before and after", [chosen.by ?? "", "rate", "p50", "p99"].slice(0, columns + 1), body, { className: "num" })))];
}

/** A part of an answer as one distribution. */
function summary(answer, groups) {
  const cells = Cells.of(answer, groups);
  const column = cells.sum();
  const seconds = answer.to - answer.from;
  const counted = groups.reduce((sum, group) => sum + (group.total.count ?? 0), 0);
  return { cells, column, seconds, rate: (events(column) || counted) / seconds, p50: cells.quantile(column, 0.5), p99: cells.quantile(column, 0.99) };
}

/** A row for each group, a cell for each bucket, coloured by the change of its rate. */
function difference(rows, unit) {
  const bounds = new Map(rows.flatMap((row) => [...row.now.cells.bounds, ...row.before.cells.bounds]));
  const lowers = [...bounds.keys()].sort((a, b) => a - b);
  const height = (rows.length + 1) * ROW;
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Change of the rate of each bucket" });
  const wide = (WIDTH - LEFT) / Math.max(1, lowers.length);
  rows.forEach((row, y) => {
    picture.append(svg("text", { x: LEFT - 6, y: y * ROW + 13, "text-anchor": "end", class: "tick" }, row.name.slice(0, 18)));
    const change = lowers.map((lower) => (row.now.column.get(lower) ?? 0) / row.now.seconds - (row.before.column.get(lower) ?? 0) / row.before.seconds);
    const most = Math.max(...change.map(Math.abs)) || 1;
    change.forEach((by, i) => {
      if (by === 0) return;
      const [lower, upper] = bounds.get(lowers[i]);
      const cell = svg("rect", { x: LEFT + i * wide, y: y * ROW + 1, width: wide, height: ROW - 2, class: by > 0 ? "more" : "fewer", "fill-opacity": (0.12 + 0.88 * Math.sqrt(Math.abs(by) / most)).toFixed(2) });
      cell.append(svg("title", {}, `${row.name}, ${value(lower, unit)} to ${value(upper, unit)}: ${by > 0 ? "+" : "−"}${rate(Math.abs(by))}`));
      picture.append(cell);
    });
  });
  const every = Math.max(1, Math.ceil(lowers.length / 10));
  lowers.forEach((lower, i) => i % every === 0 && picture.append(svg("text", { x: LEFT + i * wide, y: height - 4, class: "tick" }, value(lower, unit))));
  return picture;
}
