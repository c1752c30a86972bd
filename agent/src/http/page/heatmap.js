// A heat map on a canvas: time to the right, values upwards by their logarithm, one rectangle for each exact bucket.

import { events } from "./cells.js";
import { h, table } from "./dom.js";
import { clock, count, timeTicks, value } from "./format.js";
import { LANE, TABLE_ROWS, TimeChart } from "./timechart.js";

const SIZES = {
  small: { left: 46, bottom: 0, top: 2, height: 96, ticks: 3, font: 10 },
  large: { left: 56, bottom: 20, top: LANE, height: 320, ticks: 8, font: 11 },
};
/** Least span of the vertical axis, in decades: a narrow distribution should not look like a wide one. */
const LEAST_DECADES = 2;

let palette = null;
const dark = matchMedia("(prefers-color-scheme: dark)");
/** Maps that are in the page. */
const shown = new Set();
dark.addEventListener("change", () => {
  palette = null;
  for (const map of shown) map.draw();
});

/** Colours of the style sheet, so that they stand in one place. */
function colours() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const stops = [0, 1, 2, 3, 4].map((i) => colour(`--heat${i}`).match(/\w\w/g).map((two) => parseInt(two, 16)));
  const ramp = Array.from({ length: 64 }, (_, i) => {
    const at = (i / 63) * (stops.length - 1);
    const [a, b] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    return `rgb(${a.map((x, k) => Math.round(x + (b[k] - x) * (at % 1))).join(" ")})`;
  });
  palette = { ramp, p50: colour("--p50"), p99: colour("--p99"), max: colour("--fg"), dim: colour("--dim"), line: colour("--line"), ground: colour("--card") };
  return palette;
}

export class HeatMap extends TimeChart {
  /** `size` is `small` or `large`; `label` says what it shows. */
  constructor(size, label, unit) {
    super();
    Object.assign(this, { ...SIZES[size], size, label, unit, cells: null, span: null });
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.canvas.style.height = `${this.height}px`;
    this.table = h("div", { className: "hidden" });
    this.element = h("div", { className: `heat ${size}` }, this.canvas, this.table);
    new ResizeObserver(() => this.resized()).observe(this.canvas);
  }

  /** Shows these cells; quantiles and maxima of columns come from the agent where there are some. */
  show(cells, quantiles = null) {
    this.cells = cells;
    this.quantiles = quantiles;
    this.draw();
    this.describe();
  }

  /** The observer reports a size of 0 for an element that leaves the page, too. */
  resized() {
    if (this.canvas.isConnected) shown.add(this);
    else shown.delete(this);
    this.draw();
  }

  /** Width of the part with cells, in pixels of the page. */
  get width() {
    return this.canvas.clientWidth - this.left;
  }

  y(v) {
    const [low, high] = this.span;
    // A quantile within a bucket that begins at 0 may be below all bounds.
    return this.height - this.bottom - ((Math.max(Math.log10(v), low) - low) / (high - low)) * (this.height - this.bottom - this.top);
  }

  /** Logarithms of the lowest and highest value. It never shrinks while more is added, so that a live picture stands still. */
  fit() {
    let [low, high] = this.span ?? [Infinity, -Infinity];
    for (const lower of this.cells.bounds.keys()) {
      const [bottom, top] = this.cells.edges(lower);
      low = Math.min(low, Math.log10(bottom));
      high = Math.max(high, Math.log10(top));
    }
    if (low > high) [low, high] = [-6, -1];
    const lacking = LEAST_DECADES - (high - low);
    if (lacking > 0) [low, high] = [low - lacking / 2, high + lacking / 2];
    this.span = [low, high];
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    if (!this.cells || width === 0) return;
    this.fit();
    const [w, hh] = [Math.round(width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== hh) Object.assign(this.canvas, { width: w, height: hh });
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.height);
    this.grid(context);
    this.rectangles(context);
    this.lines(context);
  }

  grid(context) {
    const { dim, line } = colours();
    context.font = `${this.font}px system-ui, sans-serif`;
    context.fillStyle = dim;
    context.strokeStyle = line;
    context.lineWidth = 1;
    const [low, high] = this.span;
    const every = Math.max(1, Math.ceil((high - low) / this.ticks));
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let decade = Math.ceil(low); decade <= Math.floor(high); decade++) {
      if (((decade % every) + every) % every !== 0) continue;
      const y = Math.round(this.y(10 ** decade)) + 0.5;
      stroke(context, [[this.left, y], [this.canvas.clientWidth, y]]);
      const inside = Math.min(Math.max(y, this.font / 2 + 1), this.height - this.font / 2 - 1);
      context.fillText(value(10 ** decade, this.unit), this.left - 6, inside);
    }
    if (!this.bottom) return;
    const { ticks, seconds } = timeTicks(this.cells.from, this.cells.to, Math.max(2, Math.floor(this.width / 76)));
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (const tick of ticks) {
      const x = Math.round(this.x(tick)) + 0.5;
      stroke(context, [[x, this.top], [x, this.height - this.bottom + 4]]);
      const half = context.measureText(clock(tick, seconds)).width / 2;
      context.fillText(clock(tick, seconds), Math.min(x, this.canvas.clientWidth - half), this.height - 5);
    }
  }

  rectangles(context) {
    const { ramp } = colours();
    const scale = 1 / Math.log1p(this.cells.most || 1);
    this.cells.columns.forEach((column, i) => {
      const x = this.x(this.cells.from + i * this.cells.step);
      const next = this.x(this.cells.from + (i + 1) * this.cells.step);
      // A gap between wide columns, none between narrow ones: they would be stripes.
      const width = Math.max(1, next - x > 6 ? next - x - 1 : next - x + 0.3);
      for (const [lower, n] of column) {
        const [bottom, top] = this.cells.edges(lower);
        const [y0, y1] = [this.y(top), this.y(bottom)];
        const share = 0.15 + 0.85 * Math.log1p(n) * scale;
        context.fillStyle = ramp[Math.min(63, Math.floor(share * 63))];
        context.fillRect(x, y0, width, Math.max(1.2, y1 - y0 + 0.3));
      }
    });
  }

  lines(context) {
    const { p50, p99, max, ground } = colours();
    const given = this.quantiles ?? {};
    const kinds = [[0.5, p50, given.p50, 1.6], [0.99, p99, given.p99, 1.6]];
    if (given.max) kinds.unshift([1, max, given.max, 1]);
    for (const [q, colour, values, wide] of kinds) {
      const at = (column, i) => (values ? values[i] : this.cells.quantile(column, q));
      const pieces = [[]];
      this.cells.columns.forEach((column, i) => {
        const v = at(column, i);
        if (v > 0) pieces.at(-1).push([this.x(this.cells.from + (i + 0.5) * this.cells.step), this.y(v)]);
        else if (pieces.at(-1).length) pieces.push([]);
      });
      for (const points of pieces.filter((points) => points.length)) {
        if (points.length === 1) points.push([points[0][0] + 2, points[0][1]]);
        // A rim of the ground's colour keeps the line apart from cells of any colour.
        [context.lineWidth, context.strokeStyle] = [wide * 2, ground];
        stroke(context, points);
        [context.lineWidth, context.strokeStyle] = [wide, colour];
        context.setLineDash(q === 1 ? [3, 3] : []);
        stroke(context, points);
        context.setLineDash([]);
      }
    }
  }

  /** What is at a place, in a line. */
  describeAt(x, y) {
    const { cells } = this;
    const i = Math.floor((this.time(x) - cells.from) / cells.step);
    const column = cells.columns[i];
    if (!column) return null;
    const at = clock(cells.from + i * cells.step);
    const here = [...column].find(([lower]) => {
      const [bottom, top] = cells.edges(lower);
      return this.y(top) <= y && y <= this.y(bottom);
    });
    const [p50, p99, max] = [cells.quantile(column, 0.5), cells.quantile(column, 0.99), cells.highest(column)].map((x) => value(x, this.unit));
    const all = column.size ? `${count(events(column))} events, p50 ${p50}, p99 ${p99}, max ${max}` : "no event";
    if (!here) return `${at}  ${all}`;
    const [bottom, top] = cells.edges(here[0]);
    return `${at}  ${value(bottom, this.unit)} to ${value(top, this.unit)}: ${count(here[1])} of ${all}`;
  }

  /** The same for screen readers: a table of some rows, and a sentence. */
  describe() {
    const { columns, from, step } = this.cells;
    const wide = Math.max(1, Math.ceil(columns.length / TABLE_ROWS));
    const rows = [];
    for (let first = 0; first < columns.length; first += wide) {
      const column = this.cells.sum(first, first + wide);
      const figures = [this.cells.quantile(column, 0.5), this.cells.quantile(column, 0.99), this.cells.highest(column)];
      rows.push([clock(from + first * step), count(events(column)), ...figures.map((x) => value(x, this.unit))]);
    }
    this.table.replaceChildren(table(this.label, ["time", "events", "p50", "p99", "max"], rows));
  }
}

function stroke(context, points) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}
