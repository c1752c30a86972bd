// Sums by call stack as an icicle: callers above, what they call below.

import { agentNow, get, text, withQuery } from "./api.js";
import { download } from "./captures.js";
import { h, scroller, svg, table } from "./dom.js";
import { clock, count, percent, value } from "./format.js";
import { failure, notice } from "./notice.js";
import { changed, go, here, to } from "./place.js";

const ROW = 18;
/** A box narrower than this share of the picture is not drawn. */
const LEAST = 0.0015;
const TOP = 25;
/** Seconds of what is compared with the sums since the start. */
const COMPARED = "10";
const WINDOWS = ["5", "10", "30"];
/** Formats of files, with the ends of their names. */
const FILES = [["folded", "folded", "Folded"], ["pprof", "pb.gz", "pprof"], ["svg", "svg", "SVG"]];

export function stacks(root, name, parameters, signal) {
  root.append(h("h1", { className: "hidden" }, "Stacks"));
  const body = h("div");
  root.append(body);
  const profile = name && new Profile(body, name, signal);
  const work = profile ? profile.start() : list(body, signal);
  work.catch((error) => !signal.aborted && body.replaceChildren(failure(error)));
  return (parameters) => profile && profile.update(parameters);
}

async function list(body, signal) {
  const { stacks: all } = await get("api/v1/stacks", signal);
  if (!all.length) {
    body.append(notice("No probe that runs sums by call stack.", "Start the agent with one, for instance samples of what runs on the CPUs:", "kstrobe run --enable profile_cpu"));
    return;
  }
  body.append(h("div", { className: "grid" }, all.map((one) => h("article", { className: "card link" },
    h("div", { className: "head" }, h("h2", {}, h("a", { href: to("stacks", one.name) }, one.name)), h("span", { className: `pill ${one.attached ? "ok" : "bad"}` }, one.attached ? one.unit : "not attached")),
    h("p", { className: "help" }, one.help), one.reason && h("p", {}, one.reason)))));
}

/** Folded text as a tree of frames, each with the sum of what is below. */
function tree(folded) {
  const root = { name: "all", value: 0, children: new Map() };
  for (const line of folded.split("\n")) {
    const cut = line.lastIndexOf(" ");
    const n = Number(line.slice(cut + 1));
    if (cut < 0 || !(n > 0)) continue;
    let at = root;
    at.value += n;
    for (const name of line.slice(0, cut).split(";")) {
      if (!at.children.has(name)) at.children.set(name, { name, value: 0, children: new Map(), parent: at });
      at = at.children.get(name);
      at.value += n;
    }
  }
  return root;
}

/** What a node calls, the widest first. */
const widest = (node) => [...node.children.values()].sort((a, b) => b.value - a.value);

/** Names of the frames down to a node, as the address has them. */
function pathOf(node) {
  const names = [];
  for (let at = node; at.parent; at = at.parent) names.unshift(at.name);
  return names.join(";");
}

/** The node that a path leads to; the root when there is none. */
function nodeAt(root, path) {
  let at = root;
  for (const name of path ? path.split(";") : []) {
    at = at.children.get(name);
    if (!at) return root;
  }
  return at;
}

/** Sums of each function: its own, and with what it calls, each stack once; and the widest place of it. */
function functionsOf(root) {
  const sums = new Map();
  const walk = (node, above) => {
    if (node !== root) {
      const sum = sums.get(node.name) ?? { own: 0, all: 0, widest: node };
      let below = 0;
      for (const child of node.children.values()) below += child.value;
      sum.own += node.value - below;
      if (!above.has(node.name)) sum.all += node.value;
      if (node.value > sum.widest.value) sum.widest = node;
      sums.set(node.name, sum);
    }
    const next = new Set(above).add(node.name);
    for (const child of node.children.values()) walk(child, next);
  };
  walk(root, new Set());
  return sums;
}

/** Sum of the stacks that have a function of such a name. */
function matched(node, wanted) {
  if (node.parent && node.name.toLowerCase().includes(wanted)) return node.value;
  let sum = 0;
  for (const child of node.children.values()) sum += matched(child, wanted);
  return sum;
}

/** Gives each node the change of its share of the whole since another profile; the largest change. */
function compareWith(root, base) {
  let most = 0;
  const walk = (node, before) => {
    node.before = (before?.value ?? 0) / base.value;
    node.change = node.value / root.value - node.before;
    most = Math.max(most, Math.abs(node.change));
    for (const child of node.children.values()) walk(child, before?.children.get(child.name));
  };
  walk(root, base);
  return most;
}

const signed = (share) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;

class Profile {
  constructor(body, name, signal) {
    Object.assign(this, { body, name, signal });
  }

  async start() {
    const { stacks: all } = await get("api/v1/stacks", this.signal);
    this.about = all.find((one) => one.name === this.name);
    if (!this.about) {
      this.body.replaceChildren(notice(`No probe that runs has "${this.name}".`), h("p", {}, h("a", { href: to("stacks") }, "All stacks")));
      return;
    }
    this.choose = h("select", { onchange: () => go(changed({ seconds: this.choose.value === "0" ? null : this.choose.value })) });
    this.find = h("input", { type: "search", placeholder: "function" });
    this.find.oninput = () => go(changed({ find: this.find.value }), true);
    const button = (label, action) => h("button", { type: "button", onclick: action }, label);
    this.whole = button("Show all", () => this.enlarge(this.root));
    this.compare = button("Compare", () => this.keep());
    this.end = button("End the comparison", () => this.forget());
    this.files = h("span", { className: "end" });
    this.problem = h("div");
    this.found = h("span", { className: "dim num", role: "status" });
    this.legend = h("p", { className: "legend" });
    this.picture = h("div");
    this.body.replaceChildren(h("div", { className: "tools" }, h("a", { className: "button", href: to("stacks") }, "All stacks"),
      h("label", {}, "Of", this.choose), button("Ask again", () => this.load()), this.whole, this.compare, this.end,
      h("label", {}, "Find", this.find), this.found, this.files), this.problem,
    h("div", { className: "card" }, h("h2", {}, this.name), h("p", { className: "help" }, this.about.help), this.legend, this.picture));
    this.body.onkeydown = (event) => {
      if (event.key === "Escape" && this.root && event.target !== this.find) this.enlarge(this.root);
    };
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.signal.addEventListener("abort", () => this.turn?.abort(), { once: true });
    this.update(here().parameters);
  }

  /** Shows what the address says; asks only when that is another range of time. */
  update(parameters) {
    // Before the agent has said what there is, nothing is shown yet.
    if (!this.choose) return;
    const seconds = parameters.get("seconds") ?? "0";
    this.search = parameters.get("find") ?? "";
    this.path = parameters.get("box") ?? "";
    if (this.find.value !== this.search) this.find.value = this.search;
    if (seconds === this.seconds) {
      this.draw();
      return;
    }
    this.seconds = seconds;
    const windows = new Set(["0", ...WINDOWS, seconds]);
    const option = (v) => h("option", { value: v, selected: v === seconds }, v === "0" ? "all since the start" : `the next ${v} s`);
    this.choose.replaceChildren(...[...windows].map(option));
    const source = (format) => withQuery(`api/v1/stacks/${encodeURIComponent(this.name)}`, { format, seconds });
    const file = ([format, end, label]) => download(source(format), `${this.name}.${end}`, label, this.problem);
    this.files.replaceChildren(...FILES.map(file));
    this.load();
  }

  async load() {
    // An answer that comes late must not replace a later one; the agent stops collecting for it.
    this.turn?.abort();
    this.turn = new AbortController();
    const { signal } = this.turn;
    const { seconds } = this;
    this.root = null;
    this.buttons();
    this.picture.replaceChildren(h("p", { className: "dim", role: "status" }, seconds === "0" ? "Asking." : `Collecting for ${seconds} s.`));
    try {
      const root = tree(await text(withQuery(`api/v1/stacks/${encodeURIComponent(this.name)}`, { format: "folded", seconds }), signal));
      if (signal.aborted) return;
      const what = seconds === "0" ? "all since the start" : `${seconds} s`;
      Object.assign(this, { root, taken: `${what}, taken at ${clock(agentNow())}` });
      this.draw();
    } catch (error) {
      if (!signal.aborted) this.picture.replaceChildren(failure(error));
    }
  }

  /** Keeps what is shown, and asks for what it is compared with. */
  keep() {
    this.base = { root: this.root, seconds: this.seconds, taken: this.taken };
    if (this.seconds === "0") go(changed({ seconds: COMPARED }));
    else this.load();
  }

  forget() {
    this.base = null;
    this.buttons();
    this.draw();
    this.compare.focus();
  }

  /** What can be done now. */
  buttons() {
    this.compare.hidden = Boolean(this.base);
    this.compare.disabled = !this.root?.value;
    this.end.hidden = !this.base;
    this.whole.disabled = !this.root || this.focus === this.root;
    this.legend.hidden = !this.base;
  }

  /** Makes a box as wide as the picture. */
  enlarge(node) {
    this.cursor = node;
    go(changed({ box: pathOf(node) }));
  }

  text(n) {
    return this.about.unit === "count" ? `${count(n)} samples` : value(this.about.unit === "nanoseconds" ? n / 1e9 : n, this.about.unit === "nanoseconds" ? "seconds" : "bytes");
  }

  draw() {
    if (!this.root) return;
    this.focus = nodeAt(this.root, this.path);
    this.buttons();
    if (!this.root.value) {
      this.picture.replaceChildren(notice("No stack yet.", "Sums appear once something was counted; a busy machine has some at once."));
      return;
    }
    const width = this.picture.clientWidth || 900;
    const wanted = this.search.toLowerCase();
    this.most = this.base ? compareWith(this.root, this.base.root) : 0;
    this.boxes = new Map();
    let depth = 0;
    const place = (node, x, w, y) => {
      if (w < LEAST * width) return;
      depth = Math.max(depth, y);
      this.boxes.set(node, this.box(node, x, w, y, wanted));
      let at = x;
      for (const child of widest(node)) {
        const wide = (child.value / node.value) * w;
        place(child, at, wide, y + 1);
        at += wide;
      }
    };
    const above = [];
    for (let node = this.focus; node; node = node.parent) above.unshift(node);
    above.slice(0, -1).forEach((node, y) => this.boxes.set(node, this.box(node, 0, width, y, wanted)));
    place(this.focus, 0, width, above.length - 1);
    const label = `Flame graph of ${this.name}: arrow keys move, Enter enlarges, Escape shows all; the table below has the same functions`;
    const kind = this.base ? "chart diff" : "chart";
    const height = (depth + 1) * ROW;
    const picture = svg("svg", { class: kind, width, height, role: "group", "aria-label": label }, ...this.boxes.values());
    picture.onkeydown = (event) => this.key(event);
    if (this.base) this.drawLegend();
    // Made anew, the picture or the table keeps the focus: it goes to the box that was chosen.
    const focused = this.picture.contains(document.activeElement);
    this.picture.replaceChildren(picture, this.functions(wanted));
    if (!this.boxes.has(this.cursor)) this.cursor = this.focus;
    const box = this.boxes.get(this.cursor);
    box.setAttribute("tabindex", 0);
    if (focused) box.focus({ preventScroll: true });
  }

  drawLegend() {
    const swatch = (name, label) => h("span", {}, h("i", { className: `swatch ${name}` }), label);
    this.legend.replaceChildren(h("span", {}, `Compared with ${this.base.taken}:`), swatch("more", "a larger share of the whole now"),
      swatch("fewer", "a smaller one"), h("span", {}, `the stronger, the more, up to ${percent(this.most)}`),
      this.base.seconds === "0" ? "Sums since the start may have small stacks as one: to see those, compare two ranges." : "");
  }

  box(node, x, w, y, wanted) {
    const hit = wanted && node.parent && node.name.toLowerCase().includes(wanted);
    const group = svg("g", { class: hit ? "frame hit" : "frame", role: "button", tabindex: -1 });
    const rect = svg("rect", { x, y: y * ROW, width: Math.max(w - 0.5, 0.5), height: ROW - 1, rx: 2 });
    rect.setAttribute("class", hit ? "hit" : `tone${hue(node.name)}`);
    let change = "";
    if (this.base) {
      rect.setAttribute("class", `${node.change > 0 ? "more" : "fewer"}${hit ? " found" : ""}`);
      // Text on it must be legible: the strongest is not opaque.
      rect.setAttribute("fill-opacity", node.change ? (0.05 + 0.4 * Math.sqrt(Math.abs(node.change) / this.most)).toFixed(2) : 0.05);
      change = `, before ${percent(node.before)}: ${signed(node.change)}`;
    }
    group.append(rect, svg("title", {}, `${node.name}: ${this.text(node.value)}, ${percent(node.value / this.root.value)}${change}`));
    const letters = Math.floor((w - 8) / 6.4);
    if (letters > 2) group.append(svg("text", { x: x + 4, y: y * ROW + 13 }, node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name));
    group.onclick = () => this.enlarge(node);
    return group;
  }

  /** Arrow keys go to the box above, below or beside. */
  key(event) {
    const node = this.cursor;
    const beside = node.parent ? widest(node.parent) : [node];
    const i = beside.indexOf(node);
    const next = { ArrowUp: node.parent, ArrowDown: widest(node)[0], ArrowLeft: beside[i - 1], ArrowRight: beside[i + 1] }[event.key];
    if (event.key === "Enter" || event.key === " ") this.enlarge(node);
    else if (this.boxes.has(next)) {
      this.boxes.get(node).setAttribute("tabindex", -1);
      this.cursor = next;
      this.boxes.get(next).setAttribute("tabindex", 0);
      this.boxes.get(next).focus();
    } else return;
    event.preventDefault();
  }

  /** The functions that were met most, or changed most; a button each goes to the widest place of one. */
  functions(wanted) {
    const sums = functionsOf(this.root);
    const before = this.base ? functionsOf(this.base.root) : new Map();
    this.found.textContent = wanted ? `${percent(matched(this.root, wanted) / this.root.value)} in stacks with it` : "";
    const names = [...new Set([...sums.keys(), ...before.keys()])].filter((name) => !wanted || name.toLowerCase().includes(wanted));
    const all = names.map((name) => {
      const now = sums.get(name);
      const old = before.get(name);
      const share = (key) => (now?.[key] ?? 0) / this.root.value;
      const change = (key) => share(key) - (this.base ? (old?.[key] ?? 0) / this.base.root.value : 0);
      return { name, widest: now?.widest, own: share("own"), all: share("all"), ownChange: change("own"), allChange: change("all") };
    });
    // Without a comparison the change is the share itself.
    const order = (a, b) => Math.abs(b.ownChange) - Math.abs(a.ownChange) || Math.abs(b.allChange) - Math.abs(a.allChange);
    const button = (row) => (row.widest ? h("button", { type: "button", onclick: () => this.enlarge(row.widest) }, row.name) : row.name);
    const heads = this.base ? ["function", "own", "change", "with what it calls", "change"] : ["function", "own", "with what it calls"];
    const pair = (share, change) => (this.base ? [percent(share), signed(change)] : [percent(share)]);
    const cells = (row) => [...pair(row.own, row.ownChange), ...pair(row.all, row.allChange)];
    const caption = this.base ? "Functions by the change of their own share" : "Functions by their own share";
    return scroller("Functions", table(caption, heads, all.sort(order).slice(0, TOP).map((row) => [button(row), ...cells(row)])));
  }
}

/** One of six tones, always the same for a name. */
function hue(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
  return sum % 6;
}
