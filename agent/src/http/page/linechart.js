// Lines over time: of a counter or gauge, or one for each group of a label, with what `Brush` asks of a chart.

import { h, svg, table } from "./dom.js";
import { clock, rate, timeTicks, value } from "./format.js";
import { LANE, TABLE_ROWS, TimeChart } from "./timechart.js";

/** Most lines of a picture: so many colours there are. */
export const LINES = 8;
/** What of a group its line shows. */
const KEYS = { histogram: "p99", counter: "rate", gauge: "value" };

const known = (v) => v !== null && v !== undefined;

export class LineChart extends TimeChart {
  constructor(label, unit, type, height = 240) {
    super();
    // Quantiles of groups lie decades apart, as in a heat map.
    Object.assign(this, { label, left: 64, top: LANE, bottom: 20, height, cells: null, decades: type === "histogram", colours: new Map() });
    this.key = KEYS[type];
    this.text = type === "counter" ? rate : (v) => value(v, unit);
    this.picture = svg("svg", { class: "chart", height: this.height, role: "img", "aria-label": label });
    this.table = h("div", { className: "hidden" });
    this.element = h("div", { className: "heat large" }, this.picture, this.table);
    this.legend = h("div", { className: "legend dim" });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  get width() {
    return this.element.clientWidth - this.left;
  }

  /** Shows the largest groups of an answer by a label, or its only one. */
  show(answer, by = null) {
    const groups = answer.groups.slice(0, by ? LINES : 1);
    this.lines = groups.map((group) => ({ name: by ? group.labels[by] || "(empty)" : "value", values: group[this.key] ?? [] }));
    const columns = Array.from({ length: answer.columns });
    this.cells = { from: answer.from, step: answer.step, to: answer.from + answer.columns * answer.step, columns };
    if (by) this.colour();
    this.draw();
    const wide = Math.max(1, Math.ceil(answer.columns / TABLE_ROWS));
    const row = (i) => [clock(answer.from + i * answer.step), ...this.lines.map(({ values }) => this.text(values[i]))];
    const rows = [...columns.keys()].filter((i) => i % wide === 0).map(row);
    this.table.replaceChildren(table(this.label, ["time", ...this.lines.map(({ name }) => name)], rows));
  }

  /** Gives each line a colour, which it keeps while the order of groups changes. */
  colour() {
    const names = new Set(this.lines.map(({ name }) => name));
    for (const name of this.colours.keys()) if (!names.has(name)) this.colours.delete(name);
    const free = Array.from({ length: LINES }, (_, i) => `l${i}`).filter((one) => ![...this.colours.values()].includes(one));
    for (const name of names) if (!this.colours.has(name)) this.colours.set(name, free.shift());
    this.legend.replaceChildren(...[...this.colours].map(([name, colour]) => legendEntry(colour, name)));
  }

  /** Where values stand, and the values that have a tick. */
  scale() {
    const values = this.lines.flatMap((line) => line.values).filter((v) => known(v) && (!this.decades || v > 0));
    const place = (share) => this.height - this.bottom - share * (this.height - this.bottom - this.top);
    if (!this.decades) {
      const top = niceAbove(Math.max(...values, 0)) || 1;
      return { y: (v) => place(v / top), marked: [0, top / 2, top] };
    }
    const low = values.length ? Math.floor(Math.log10(Math.min(...values))) : -6;
    const high = values.length ? Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values)))) : -1;
    const marked = Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i));
    return { y: (v) => place(v > 0 ? (Math.log10(v) - low) / (high - low) : 0), marked };
  }

  draw() {
    if (!this.cells || this.width <= 0) return;
    const { y, marked } = this.scale();
    const parts = [];
    for (const v of marked) {
      parts.push(svg("line", { x1: this.left, x2: this.left + this.width, y1: y(v), y2: y(v), class: "grid-line" }));
      parts.push(svg("text", { x: this.left - 6, y: y(v) + 4, "text-anchor": "end", class: "tick" }, this.text(v)));
    }
    const { ticks, seconds } = timeTicks(this.cells.from, this.cells.to, Math.max(2, Math.floor(this.width / 76)));
    for (const tick of ticks) {
      const x = Math.min(this.x(tick), this.left + this.width - 28);
      parts.push(svg("text", { x, y: this.height - 5, "text-anchor": "middle", class: "tick" }, clock(tick, seconds)));
    }
    for (const { name, values } of this.lines) {
      const d = this.path(values, y);
      if (d) parts.push(svg("path", { d, class: `line ${this.colours.get(name) ?? ""}` }));
    }
    this.picture.replaceChildren(...parts);
  }

  path(values, y) {
    let path = "";
    let pen = "M";
    values.forEach((v, i) => {
      if (!known(v)) return (pen = "M");
      const x = this.x(this.cells.from + (i + 0.5) * this.cells.step);
      // A column alone is a dash.
      path += `${pen}${x.toFixed(1)},${y(v).toFixed(1)}${pen === "M" && !known(values[i + 1]) ? "h2" : ""}`;
      pen = "L";
    });
    return path;
  }

  describeAt(x) {
    const i = Math.floor((this.time(x) - this.cells.from) / this.cells.step);
    if (!(i in this.cells.columns)) return null;
    const at = clock(this.cells.from + i * this.cells.step);
    const there = this.lines.filter(({ values }) => known(values[i]));
    if (this.colours.size) return `${at}  ${there.map(({ name, values }) => `${name} ${this.text(values[i])}`).join(", ") || "no event"}`;
    return `${at}  ${this.text(this.lines[0]?.values[i])}`;
  }
}

/** What a line of this class is. */
const legendEntry = (kind, name) => h("span", {}, h("i", { className: `swatch stroke ${kind}` }), name);

/** The next number with one digit that matters, an even one where halves are shown. */
function niceAbove(v) {
  if (v <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(v));
  return power * [1, 2, 4, 6, 8, 10].find((digit) => v <= digit * power);
}
