// Counters and gauges over time: one line, with what `Brush` asks of a chart.

import { h, svg, table } from "./dom.js";
import { clock, rate, timeTicks, value } from "./format.js";
import { LANE, TABLE_ROWS, TimeChart } from "./timechart.js";

export class LineChart extends TimeChart {
  constructor(label, unit, isRate) {
    super();
    Object.assign(this, { label, left: 64, top: LANE, bottom: 20, height: 240, cells: null });
    this.text = isRate ? rate : (v) => value(v, unit);
    this.picture = svg("svg", { class: "chart", height: this.height, role: "img", "aria-label": label });
    this.table = h("div", { className: "hidden" });
    this.element = h("div", { className: "heat large" }, this.picture, this.table);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  get width() {
    return this.element.clientWidth - this.left;
  }

  show(answer) {
    this.values = answer.groups[0]?.rate ?? answer.groups[0]?.value ?? [];
    this.cells = { from: answer.from, step: answer.step, to: answer.from + answer.columns * answer.step, columns: Array.from({ length: answer.columns }) };
    this.draw();
    const wide = Math.max(1, Math.ceil(this.values.length / TABLE_ROWS));
    const rows = this.values.map((v, i) => [clock(this.cells.from + i * this.cells.step), this.text(v)]).filter((_, i) => i % wide === 0);
    this.table.replaceChildren(table(this.label, ["time", "value"], rows));
  }

  draw() {
    if (!this.cells || this.width <= 0) return;
    const known = this.values.filter((v) => v !== null && v !== undefined);
    const top = niceAbove(Math.max(...known, 0)) || 1;
    const y = (v) => this.height - this.bottom - (v / top) * (this.height - this.bottom - this.top);
    const parts = [];
    for (const v of [0, top / 2, top]) {
      parts.push(svg("line", { x1: this.left, x2: this.left + this.width, y1: y(v), y2: y(v), class: "grid-line" }));
      parts.push(svg("text", { x: this.left - 6, y: y(v) + 4, "text-anchor": "end", class: "tick" }, this.text(v)));
    }
    const { ticks, seconds } = timeTicks(this.cells.from, this.cells.to, Math.max(2, Math.floor(this.width / 76)));
    for (const tick of ticks) {
      const x = Math.min(this.x(tick), this.left + this.width - 28);
      parts.push(svg("text", { x, y: this.height - 5, "text-anchor": "middle", class: "tick" }, clock(tick, seconds)));
    }
    let path = "";
    let pen = "M";
    this.values.forEach((v, i) => {
      if (v === null || v === undefined) return (pen = "M");
      path += `${pen}${this.x(this.cells.from + (i + 0.5) * this.cells.step).toFixed(1)},${y(v).toFixed(1)}`;
      pen = "L";
    });
    if (path) parts.push(svg("path", { d: path, class: "line" }));
    this.picture.replaceChildren(...parts);
  }

  describeAt(x) {
    const i = Math.floor((this.time(x) - this.cells.from) / this.cells.step);
    if (!(i in this.cells.columns)) return null;
    return `${clock(this.cells.from + i * this.cells.step)}  ${this.text(this.values[i])}`;
  }
}

/** The next number with one digit that matters, an even one where halves are shown. */
function niceAbove(v) {
  if (v <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(v));
  return power * [1, 2, 4, 6, 8, 10].find((digit) => v <= digit * power);
}
