// Choosing a part of a chart's time by pointer or keyboard.

import { h } from "./dom.js";
import { clock } from "./format.js";

const KEYS = "Left and right move the cursor, with Shift they select, Enter zooms in, minus zooms out, Page Up and Page Down go to older and newer times, Escape clears.";
/** Pixels that a pointer moves before it is a drag and no click. */
const DRAG = 4;

/**
 * Lays itself over a chart, which has `element`, `left`, `top`, `bottom`, `width`, `x(time)`, `time(x)`, `cells` and `describeAt(x, y)`.
 * `on` has `select(from, to)`, `clear()`, `zoomIn()`, `zoomOut()`, `older()`, `newer()`.
 */
export class Brush {
  constructor(chart, label, on) {
    Object.assign(this, { chart, on, from: null, to: null, at: null });
    this.box = h("div", { className: "selection", hidden: true });
    this.cursor = h("div", { className: "cursor", hidden: true });
    this.tip = h("div", { className: "tip num", hidden: true });
    this.said = h("div", { className: "hidden", role: "status" });
    this.touch = h("div", { className: "touch", tabIndex: 0, role: "application", "aria-label": `${label}. ${KEYS}`, "aria-roledescription": "time range" });
    chart.element.append(this.touch, this.cursor, this.box, this.tip, this.said);
    new ResizeObserver(() => this.place()).observe(chart.element);
    this.touch.onpointerdown = (event) => this.press(event);
    this.touch.onpointermove = (event) => this.move(event);
    this.touch.onpointerup = (event) => this.release(event);
    this.touch.onpointercancel = () => (this.start = null);
    this.touch.onpointerleave = () => this.leave();
    this.touch.ondblclick = () => this.on.zoomIn();
    this.touch.onkeydown = (event) => this.key(event);
    this.touch.onblur = () => this.leave();
  }

  /** Shows a selection that comes from the address; `null` is none. */
  show(from, to) {
    Object.assign(this, { from, to });
    this.place();
  }

  place() {
    const { cells, top, height, bottom, left, width } = this.chart;
    const visible = this.from !== null && cells && this.to > cells.from && this.from < cells.to;
    this.box.hidden = !visible;
    if (!visible) return;
    const clamp = (x) => Math.min(Math.max(x, left), left + width);
    const [x0, x1] = [clamp(this.chart.x(this.from)), clamp(this.chart.x(this.to))];
    Object.assign(this.box.style, { left: `${x0}px`, width: `${Math.max(2, x1 - x0)}px`, top: `${top}px`, height: `${height - top - bottom}px` });
  }

  /** The start of the column at a place. */
  column(x) {
    const { from, step, columns } = this.chart.cells;
    const i = Math.floor((this.chart.time(x) - from) / step);
    return from + Math.min(Math.max(i, 0), columns.length - 1) * step;
  }

  x(event) {
    return event.clientX - this.touch.getBoundingClientRect().left;
  }

  press(event) {
    if (event.button !== 0 || !this.chart.cells) return;
    this.start = { x: this.x(event), column: this.column(this.x(event)) };
    this.touch.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (!this.chart.cells) return;
    const x = this.x(event);
    if (this.start && Math.abs(x - this.start.x) > DRAG) {
      this.span(this.start.column, this.column(x));
      this.tip.hidden = true;
    } else if (!this.start) this.point(x, event.clientY - this.touch.getBoundingClientRect().top);
  }

  release(event) {
    const x = this.x(event);
    const { start } = this;
    this.start = null;
    if (!start) return;
    if (Math.abs(x - start.x) > DRAG) this.on.select(this.from, this.to);
    else if (this.from !== null) this.on.clear();
  }

  /** Selects from one column to another, both included. */
  span(one, other) {
    this.from = Math.min(one, other);
    this.to = Math.max(one, other) + this.chart.cells.step;
    this.place();
  }

  /** Shows what is at a place. */
  point(x, y) {
    const { cells, top, height, bottom, left, width } = this.chart;
    const text = x >= left && cells && this.chart.describeAt(x, y);
    this.tip.hidden = this.cursor.hidden = !text;
    if (!text) return;
    Object.assign(this.cursor.style, { left: `${this.chart.x(this.column(x) + cells.step / 2)}px`, top: `${top}px`, height: `${height - top - bottom}px` });
    this.tip.textContent = text;
    const room = left + width - this.tip.offsetWidth;
    Object.assign(this.tip.style, { left: `${Math.max(0, Math.min(x + 12, room))}px`, top: `${Math.max(0, y - 34)}px` });
  }

  leave() {
    this.tip.hidden = this.cursor.hidden = true;
  }

  key(event) {
    const { cells } = this.chart;
    if (!cells || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      Enter: () => this.on.zoomIn(), "+": () => this.on.zoomIn(), "-": () => this.on.zoomOut(),
      PageUp: () => this.on.older(), PageDown: () => this.on.newer(), Escape: () => this.on.clear(),
      ArrowLeft: () => this.step(-1, event.shiftKey), ArrowRight: () => this.step(1, event.shiftKey),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Moves the cursor by a column; with Shift the selection grows to it. */
  step(by, select) {
    const { cells, height } = this.chart;
    const last = cells.to - cells.step;
    const before = this.at === null || this.at < cells.from || this.at > last ? last : this.at;
    this.at = Math.min(Math.max(before + by * cells.step, cells.from), last);
    if (select) {
      this.anchor ??= before;
      this.span(this.anchor, this.at);
      this.on.select(this.from, this.to);
      this.said.textContent = `selected ${clock(this.from)} to ${clock(this.to)}`;
      return;
    }
    this.anchor = null;
    const x = this.chart.x(this.at + cells.step / 2);
    this.point(x, height / 2);
    this.said.textContent = this.tip.textContent;
  }
}
