// Sums by call stack as an icicle: callers above, what they call below.

import { get, text, withQuery } from "./api.js";
import { h, scroller, svg, table } from "./dom.js";
import { count, percent, value } from "./format.js";
import { failure, notice } from "./notice.js";
import { changed, go, here, to } from "./place.js";

const ROW = 18;
/** A box narrower than this share of the picture is not drawn. */
const LEAST = 0.0015;
const TOP = 25;

export function stacks(root, name, parameters, signal) {
  root.append(h("h1", { className: "hidden" }, "Stacks"));
  const body = h("div");
  root.append(body);
  const work = name ? new Profile(body, name, signal).start() : list(body, signal);
  work.catch((error) => !signal.aborted && body.replaceChildren(failure(error)));
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

class Profile {
  constructor(body, name, signal) {
    Object.assign(this, { body, name, signal, search: here().parameters.get("find") ?? "" });
  }

  async start() {
    const { stacks: all } = await get("api/v1/stacks", this.signal);
    this.about = all.find((one) => one.name === this.name);
    if (!this.about) {
      this.body.replaceChildren(notice(`No probe that runs has "${this.name}".`), h("p", {}, h("a", { href: to("stacks") }, "All stacks")));
      return;
    }
    const seconds = here().parameters.get("seconds") ?? "0";
    const choose = h("select", { onchange: () => (go(changed({ seconds: choose.value })), this.load(choose.value)) },
      [["0", "all since the start"], ["5", "the next 5 s"], ["30", "the next 30 s"]].map(([v, t]) => h("option", { value: v, selected: v === seconds }, t)));
    const find = h("input", { type: "search", value: this.search, placeholder: "function" });
    find.oninput = () => {
      this.search = find.value;
      go(changed({ find: find.value }), true);
      this.draw();
    };
    const file = (format, label) => h("a", { className: "button", href: withQuery(`api/v1/stacks/${encodeURIComponent(this.name)}`, { format }), download: `${this.name}.${format}` }, label);
    this.found = h("span", { className: "dim num", role: "status" });
    this.picture = h("div");
    this.body.replaceChildren(h("div", { className: "tools" }, h("a", { className: "button", href: to("stacks") }, "All stacks"),
      h("label", {}, "Of", choose), h("label", {}, "Find", find), this.found, h("span", { className: "end" }, file("folded", "Folded"), file("pprof", "pprof"), file("svg", "SVG"))),
    h("div", { className: "card" }, h("h2", {}, this.name), h("p", { className: "help" }, this.about.help), this.picture));
    new ResizeObserver(() => this.root && this.draw()).observe(this.picture);
    await this.load(seconds);
  }

  async load(seconds) {
    this.picture.replaceChildren(h("p", { className: "dim", role: "status" }, seconds === "0" ? "Asking." : `Collecting for ${seconds} s.`));
    try {
      this.root = tree(await text(withQuery(`api/v1/stacks/${encodeURIComponent(this.name)}`, { format: "folded", seconds }), this.signal));
      this.focus = this.root;
      this.draw();
    } catch (error) {
      this.picture.replaceChildren(failure(error));
    }
  }

  text(n) {
    return this.about.unit === "count" ? `${count(n)} samples` : value(this.about.unit === "nanoseconds" ? n / 1e9 : n, this.about.unit === "nanoseconds" ? "seconds" : "bytes");
  }

  draw() {
    if (!this.root.value) {
      this.picture.replaceChildren(notice("No stack yet.", "Sums appear once something was counted; a busy machine has some at once."));
      return;
    }
    const width = this.picture.clientWidth || 900;
    const wanted = this.search.toLowerCase();
    const boxes = [];
    let depth = 0;
    const place = (node, x, w, y) => {
      if (w < LEAST * width) return;
      depth = Math.max(depth, y);
      boxes.push(this.box(node, x, w, y, wanted));
      let at = x;
      for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
        const wide = (child.value / node.value) * w;
        place(child, at, wide, y + 1);
        at += wide;
      }
    };
    const above = [];
    for (let node = this.focus; node; node = node.parent) above.unshift(node);
    above.slice(0, -1).forEach((node, y) => boxes.push(this.box(node, 0, width, y, wanted)));
    place(this.focus, 0, width, above.length - 1);
    const picture = svg("svg", { class: "chart", width, height: (depth + 1) * ROW, role: "img", "aria-label": `Flame graph of ${this.name}; the table below has the same functions` }, ...boxes);
    this.picture.replaceChildren(picture, this.functions(wanted));
  }

  box(node, x, w, y, wanted) {
    const hit = wanted && node.name.toLowerCase().includes(wanted);
    const group = svg("g", { class: hit ? "frame hit" : "frame" }, svg("rect", { x, y: y * ROW, width: Math.max(w - 0.5, 0.5), height: ROW - 1, rx: 2, class: hit ? "hit" : `tone${hue(node.name)}` }));
    group.append(svg("title", {}, `${node.name}: ${this.text(node.value)}, ${percent(node.value / this.root.value)}`));
    const letters = Math.floor((w - 8) / 6.4);
    if (letters > 2) group.append(svg("text", { x: x + 4, y: y * ROW + 13 }, node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name));
    group.onclick = () => {
      this.focus = node;
      this.draw();
    };
    return group;
  }

  /** The functions that were met most, each stack once; a button each goes to the widest place of one. */
  functions(wanted) {
    const sums = new Map();
    let matched = 0;
    const walk = (node, above, isMatched) => {
      const hit = isMatched || (wanted && node.name.toLowerCase().includes(wanted));
      if (hit && !isMatched) matched += node.value;
      if (node !== this.root) {
        const sum = sums.get(node.name) ?? { own: 0, all: 0, widest: node };
        let below = 0;
        for (const child of node.children.values()) below += child.value;
        sum.own += node.value - below;
        if (!above.has(node.name)) sum.all += node.value;
        if (node.value > sum.widest.value) sum.widest = node;
        sums.set(node.name, sum);
      }
      const next = new Set(above).add(node.name);
      for (const child of node.children.values()) walk(child, next, hit);
    };
    walk(this.root, new Set(), false);
    this.found.textContent = wanted ? `${percent(matched / this.root.value)} in stacks with it` : "";
    const rows = [...sums].filter(([name]) => !wanted || name.toLowerCase().includes(wanted)).sort((a, b) => b[1].own - a[1].own || b[1].all - a[1].all).slice(0, TOP);
    const button = (name, { widest }) => h("button", { type: "button", onclick: () => ((this.focus = widest), this.draw()) }, name);
    return scroller("Functions", table("Functions by their own share", ["function", "own", "with what it calls"], rows.map(([name, sum]) => [button(name, sum), percent(sum.own / this.root.value), percent(sum.all / this.root.value)])));
  }
}

/** One of six tones, always the same for a name. */
function hue(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.charCodeAt(0)) >>> 0;
  return sum % 6;
}
