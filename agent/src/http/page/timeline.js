// Threads of a capture over time: states, system calls and wakeups, on a canvas with zoom.

import { get, withQuery } from "./api.js";
import { fill, h, scroller, table } from "./dom.js";
import { count, value } from "./format.js";
import { failure, notice } from "./notice.js";
import { changed, go } from "./place.js";

const LABEL = 150;
const TOP = 24;
const ROW = 30;
/** Height and place in a row of each state's bar: states differ by more than their colour. */
const BARS = { running: [2, 12], runnable: [6, 8], sleeping: [11, 2], blocked: [4, 10] };
const CALLS_AT = 17;
const CALL_HEIGHT = 9;
/** Rows at first. */
const FEW = 14;
/** Rest of the view after which a part that was reduced is asked for again. */
const REST_MS = 250;
/** Wakeups on the screen above which they have no lines. */
const MOST_ARROWS = 60;
const MIN_SPAN_NS = 1000;
const KEYS = "Left and right move in time, up and down choose a thread, plus and minus zoom, Home shows all. Drag to move; after a click into it the wheel zooms.";

const time = (ns) => value(ns / 1e9, "seconds");
/** A moment, with the digits that tell it from one that is a step away. */
function moment(ns, step) {
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([size]) => ns + step >= size) ?? [1, "ns"];
  return `${(ns / size).toFixed(Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))))} ${unit}`;
}
const dark = matchMedia("(prefers-color-scheme: dark)");

export class Timeline {
  constructor(path, parameters, signal) {
    Object.assign(this, { path, signal, find: parameters.get("find") ?? "", rows: FEW, chosen: 0 });
    const [from, to] = (parameters.get("view") ?? "").split("..").map(Number);
    this.view = to > from ? { from, to } : null;
    this.canvas = h("canvas", { role: "img", "aria-label": "Threads over time; the table below has the same sums" });
    this.touch = h("div", { className: "touch", tabIndex: 0, role: "application", "aria-label": `Timeline. ${KEYS}`, "aria-roledescription": "timeline" });
    this.tip = h("div", { className: "tip num", hidden: true });
    this.said = h("div", { className: "hidden", role: "status" });
    this.about = h("p", { className: "dim num", role: "status" });
    this.below = h("div");
    const find = h("input", { type: "search", value: this.find, placeholder: "name or id" });
    find.oninput = () => ((this.find = find.value), this.later());
    const button = (text, label, action) => h("button", { type: "button", onclick: action, "aria-label": label }, text);
    const key = (state) => h("span", {}, h("i", { className: `swatch ${state}` }), state);
    this.body = h("div", {}, h("div", { className: "tools" }, h("label", {}, "Thread", find),
      button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)), button("All", "Show all of the capture", () => this.all()),
      h("span", { className: "legend dim" }, Object.keys(BARS).map(key))),
    h("div", { className: "heat timeline" }, this.canvas, this.touch, this.tip), this.about, this.below, this.said);
    this.element = h("section", { className: "card", id: "timeline" }, h("h2", {}, "Timeline"), this.body);
    this.listen();
  }

  listen() {
    const { touch } = this;
    new ResizeObserver(() => {
      // It stands at a place of the old width.
      this.tip.hidden = true;
      this.draw();
    }).observe(this.canvas);
    dark.addEventListener("change", () => this.draw(), { signal: this.signal });
    touch.addEventListener("wheel", (event) => {
      // Without the focus the wheel moves the page, as everywhere else.
      if (document.activeElement !== touch && !event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.time(event.offsetX));
    }, { passive: false });
    touch.onpointerdown = (event) => {
      if (event.button !== 0 || !this.view) return;
      this.drag = { x: event.offsetX, ...this.view };
      this.choose(Math.floor((event.offsetY - TOP) / ROW));
      touch.setPointerCapture(event.pointerId);
    };
    touch.onpointermove = (event) => (this.drag ? this.pan(event.offsetX) : this.point(event.offsetX, event.offsetY));
    touch.onpointerup = touch.onpointercancel = () => (this.drag = null);
    touch.onpointerleave = () => (this.tip.hidden = true);
    touch.ondblclick = (event) => this.zoom(0.5, this.time(event.offsetX));
    touch.onkeydown = (event) => this.key(event);
  }

  async load() {
    // Answers may overtake one another.
    const asked = (this.asked = {});
    try {
      const view = this.view ?? {};
      const data = await get(withQuery(`${this.path}/timeline`, { from: view.from && Math.floor(view.from), to: view.to && Math.ceil(view.to), find: this.find }), this.signal);
      if (this.asked !== asked) return;
      this.data = data;
      this.view ??= { from: 0, to: Math.max(data.duration_ns, MIN_SPAN_NS) };
      this.chosen = Math.min(this.chosen, Math.max(0, data.threads.length - 1));
      this.show();
    } catch (error) {
      if (!this.signal.aborted && this.asked === asked) this.below.replaceChildren(failure(error));
    }
  }

  show() {
    const { threads, states, left_out: left, not_recorded: missing } = this.data;
    const parts = [[left.threads, "threads", ""], [left.states, "times in a state", `, none longer than ${time(left.longest_state_ns)}`], [left.calls, "system calls", `, none longer than ${time(left.longest_call_ns)}`], [left.wakeups, "wakeups", ""]];
    const without = parts.filter(([n]) => n).map(([n, what, longest]) => `${count(n)} ${what}${longest}`);
    const lost = this.data.gaps.length ? ` Records were lost at ${count(this.data.gaps.length)} places: what threads did there is not known.` : "";
    this.about.textContent = `${threads.length} ${threads.length === 1 ? "thread" : "threads"}.${without.length ? ` Left out: ${without.join("; ")}. A closer look has more.` : ""}${lost}`;
    const rows = threads.map((one) => [`${one.comm} ${one.pid}`, ...one.times_ns.map(time), count(one.calls.length)]);
    const more = threads.length > this.rows && h("button", { type: "button", onclick: () => ((this.rows *= 4), this.show()) }, `Show ${threads.length - this.rows} more threads`);
    fill(this.below, [more && h("div", { className: "tools" }, more),
      missing.length > 0 && h("p", { className: "dim" }, `Not recorded: ${missing.join("; ")}. A capture with these events shows it.`),
      threads.length > 0 ? h("details", {}, h("summary", {}, "Time of each thread in what is shown"), scroller("Threads", table("Threads, the most time on CPUs first", ["thread", ...states, "system calls"], rows))) : notice(this.find ? `No thread is named like "${this.find}".` : "No thread did anything that was recorded.")]);
    this.draw();
  }

  get width() {
    return this.canvas.clientWidth - this.label;
  }

  get label() {
    return this.canvas.clientWidth < 500 ? 92 : LABEL;
  }

  x(ns) {
    return this.label + ((ns - this.view.from) / (this.view.to - this.view.from)) * this.width;
  }

  time(x) {
    return this.view.from + ((x - this.label) / this.width) * (this.view.to - this.view.from);
  }

  draw() {
    const wide = this.canvas.clientWidth;
    if (!this.data || !this.view || wide === 0) return;
    const shown = this.data.threads.slice(0, this.rows);
    const high = TOP + Math.max(1, shown.length) * ROW;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${high}px`;
    Object.assign(this.canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(["fg", "dim", "line", "select", "running", "runnable", "sleeping", "blocked", "call", "on-call", "gap"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.axis(context, colours, wide, high);
    shown.forEach((thread, i) => {
      const y = TOP + i * ROW;
      context.fillStyle = i === this.chosen ? colours.fg : colours.dim;
      context.font = `${i === this.chosen ? "600 " : ""}11px system-ui, sans-serif`;
      context.fillText(fitted(context, `${thread.comm} ${thread.pid}`, this.label - 8), 0, y + 10);
    });
    context.font = "10px system-ui, sans-serif";
    context.save();
    context.beginPath();
    context.rect(this.label, 0, this.width, high);
    context.clip();
    shown.forEach((thread, i) => this.row(context, colours, thread, TOP + i * ROW));
    this.arrows(context, colours, shown);
    context.restore();
  }

  axis(context, colours, wide, high) {
    const span = this.view.to - this.view.from;
    const step = niceStep(span / Math.max(2, Math.floor(this.width / 90)));
    context.strokeStyle = colours.line;
    context.fillStyle = colours.dim;
    for (let at = Math.ceil(this.view.from / step) * step; at <= this.view.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      line(context, x, 16, x, high);
      const text = moment(at, step);
      context.fillText(text, Math.min(Math.max(x - context.measureText(text).width / 2, this.label), wide - context.measureText(text).width), 8);
    }
    context.fillStyle = colours.gap;
    for (const [from, to] of this.data.gaps) {
      const [x0, x1] = [Math.max(this.x(from), this.label), Math.min(this.x(to), wide)];
      if (x1 > this.label && x0 < wide) context.fillRect(x0, 16, Math.max(1, x1 - x0), high);
    }
  }

  row(context, colours, thread, y) {
    const { states, calls } = this.data;
    for (const [start, length, state] of thread.states) {
      const name = states[state];
      const [top, tall] = BARS[name];
      context.fillStyle = colours[name];
      this.box(context, start, length, y + top, tall);
    }
    for (const [start, length, name] of thread.calls) {
      context.fillStyle = colours.call;
      const room = this.box(context, start, length, y + CALLS_AT, CALL_HEIGHT);
      if (!room || room.width < 24) continue;
      context.fillStyle = colours["on-call"];
      context.fillText(fitted(context, calls[name], room.width - 4), room.x + 3, y + CALLS_AT + CALL_HEIGHT / 2 + 0.5);
    }
  }

  /** Fills a box of a time, and says where it is seen. */
  box(context, start, length, y, tall) {
    const [x0, x1] = [this.x(start), this.x(start + length)];
    if (x1 < this.label || x0 > this.label + this.width) return null;
    const x = Math.max(x0, this.label);
    const width = Math.max(Math.min(x1, this.label + this.width) - x - (x1 - x0 > 4 ? 0.5 : 0), 0.7);
    context.fillRect(x, y, width, tall);
    return { x, width };
  }

  /** A tick for each wakeup; a line from the thread that did it, when they are few. */
  arrows(context, colours, shown) {
    const within = ([at]) => at >= this.view.from && at <= this.view.to;
    const rows = new Map(shown.map((thread, i) => [thread.pid, i]));
    const all = shown.flatMap((thread, i) => thread.wakeups.filter(within).map((wakeup) => [i, wakeup]));
    const lines = all.length <= MOST_ARROWS ? all : all.filter(([i]) => i === this.chosen).slice(0, MOST_ARROWS);
    context.strokeStyle = context.fillStyle = colours.select;
    context.globalAlpha = 0.7;
    for (const [i, [at]] of all) context.fillRect(this.x(at) - 0.5, TOP + i * ROW, 1, 5);
    context.globalAlpha = 0.55;
    for (const [i, [at, by]] of lines) {
      const from = rows.get(by);
      if (from === undefined || from === i) continue;
      const x = this.x(at);
      const [y0, y1] = [TOP + from * ROW + 8, TOP + i * ROW + 2];
      line(context, x, y0, x, y1);
      const back = y1 > y0 ? -4 : 4;
      context.beginPath();
      context.moveTo(x, y1);
      context.lineTo(x - 3, y1 + back);
      context.lineTo(x + 3, y1 + back);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** What is at a place, in a line. */
  describe(x, y) {
    const thread = this.data.threads.slice(0, this.rows)[Math.floor((y - TOP) / ROW)];
    if (!thread || x < this.label) return null;
    const at = this.time(x);
    const near = (1.5 / this.width) * (this.view.to - this.view.from);
    const found = (list) => list.find(([start, length]) => at >= start && at <= start + length) ?? list.find(([start, length]) => at >= start - near && at <= start + length + near);
    const inCalls = (y - TOP) % ROW >= CALLS_AT - 1;
    const call = inCalls && found(thread.calls);
    const head = `${thread.comm} ${thread.pid} at ${moment(at, (this.view.to - this.view.from) / 1000)}: `;
    if (call) return `${head}${this.data.calls[call[2]]} ${time(call[1])}${call[3] === null ? ", not over" : ` = ${call[3]}`}`;
    const state = found(thread.states);
    const woken = state && thread.wakeups.find(([start]) => start === state[0]);
    const by = woken && woken[1] !== null ? `, woken by ${this.named(woken[1])}` : "";
    return state ? `${head}${this.data.states[state[2]]}${state[3] === null ? "" : ` on CPU ${state[3]}`} ${time(state[1])}${by}` : `${head}not known`;
  }

  named(pid) {
    const comm = pid === 0 ? "an idle CPU" : this.data.threads.find((one) => one.pid === pid)?.comm;
    return comm ? (pid === 0 ? comm : `${comm} ${pid}`) : String(pid);
  }

  point(x, y) {
    const text = this.data && this.view && this.describe(x, y);
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    Object.assign(this.tip.style, { left: `${Math.max(0, Math.min(x + 12, this.canvas.clientWidth - this.tip.offsetWidth))}px`, top: `${y + 16}px` });
  }

  choose(i) {
    const all = Math.min(this.rows, this.data.threads.length);
    if (i < 0 || i >= all) return;
    this.chosen = i;
    const one = this.data.threads[i];
    this.said.textContent = `${one.comm} ${one.pid}: ${this.data.states.map((state, k) => `${state} ${time(one.times_ns[k])}`).join(", ")}`;
    this.draw();
  }

  pan(x) {
    const span = this.drag.to - this.drag.from;
    const by = ((x - this.drag.x) / this.width) * span;
    this.move(this.drag.from - by, this.drag.to - by);
  }

  /** Shows so many times the range around a time. */
  zoom(times, around = this.view && (this.view.from + this.view.to) / 2) {
    if (!this.view) return;
    const span = Math.max(MIN_SPAN_NS, (this.view.to - this.view.from) * times);
    const share = (around - this.view.from) / (this.view.to - this.view.from);
    this.move(around - span * share, around + span * (1 - share));
  }

  all() {
    if (this.data) this.move(0, Math.max(this.data.duration_ns, MIN_SPAN_NS));
  }

  move(from, to) {
    const most = Math.max(this.data.duration_ns, MIN_SPAN_NS);
    const span = Math.min(to - from, most);
    const start = Math.min(Math.max(from, 0), most - span);
    this.view = { from: start, to: start + span };
    this.tip.hidden = true;
    this.draw();
    this.later();
  }

  /** Once the view rests: the address says it, and a part that was reduced is asked for again. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.signal.aborted) return;
      const { from, to } = this.view ?? {};
      go(changed({ view: this.view && `${Math.floor(from)}..${Math.ceil(to)}`, find: this.find || null }), true);
      const { data } = this;
      const covered = data && data.from_ns <= Math.ceil(from) && data.to_ns >= Math.floor(to) && this.found === this.find;
      const whole = data && !Object.values(data.left_out).some(Boolean);
      this.found = this.find;
      if (!(covered && whole)) this.load();
    }, REST_MS);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.view || !this.data) return;
    const tenth = (this.view.to - this.view.from) / 10;
    const actions = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), Home: () => this.all(),
      ArrowLeft: () => this.move(this.view.from - tenth, this.view.to - tenth), ArrowRight: () => this.move(this.view.from + tenth, this.view.to + tenth),
      ArrowUp: () => this.choose(this.chosen - 1), ArrowDown: () => this.choose(this.chosen + 1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

/** 1, 2 or 5 times a power of ten, at least so much. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return power * [1, 2, 5, 10].find((digit) => digit * power >= least);
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** A text cut to a width. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  while (cut && context.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return cut ? `${cut}…` : "";
}
