// One metric: a large picture of its values over time, a choice of it, and who they came from.

import { get, pause, withQuery } from "./api.js";
import { Brush } from "./brush.js";
import { Cells, events } from "./cells.js";
import { compareRanges, compareValues, valuesChoice } from "./compare.js";
import { copyButton, figure, fill, h } from "./dom.js";
import { count, duration, meanRate, promql, range, rate, short, textHistogram, value } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { LineChart, LINES } from "./linechart.js";
import { marksOf } from "./marks.js";
import { failure, notice } from "./notice.js";
import { changed, go, here, to as linkTo } from "./place.js";
import { defaultSort, ranking } from "./ranking.js";

const RANGES = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [3600, "1 h"]];
const DEFAULT_RANGE = 300;
/** Groups in the table. */
const TOP = 20;
/** Least time between two looks at a range that moves. */
const LIVE_MS = 2000;
/** Most columns of a query that has many groups. */
const MOST_COLUMNS = 3000;

/** What the address says. */
function choice(parameters, info) {
  const span = (key) => {
    const found = /^(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)$/.exec(parameters.get(key) ?? "");
    return found && Number(found[2]) > Number(found[1]) ? { from: Number(found[1]), to: Number(found[2]) } : null;
  };
  const match = parameters.getAll("match");
  const free = info.labels.filter((label) => !match.some((one) => one.startsWith(`${label}=`)));
  const by = info.labels.includes(parameters.get("by")) ? parameters.get("by") : (free.find((label) => label === "comm") ?? free[0] ?? null);
  const fixed = span("at");
  return {
    fixed, seconds: fixed ? fixed.to - fixed.from : Number(parameters.get("range")) || DEFAULT_RANGE,
    selection: span("select"), base: span("base"), one: parameters.get("one"), other: parameters.get("other"), by, match, sort: parameters.get("sort") ?? defaultSort(info.type),
  };
}

const spanText = ({ from, to }) => `${from}..${to}`;

export function metric(root, name, parameters, signal) {
  const view = new Metric(root, name, signal);
  view.start().catch((error) => !signal.aborted && root.replaceChildren(failure(error)));
  return () => view.wake();
}

class Metric {
  constructor(root, name, signal) {
    Object.assign(this, { root, name, signal, turn: new AbortController() });
    signal.addEventListener("abort", () => this.wake());
  }

  async start() {
    const { metrics } = await get("api/v1/history", this.signal);
    const info = metrics.find((one) => short(one.metric) === short(this.name));
    if (!info) {
      this.root.append(notice(`There is no metric "${this.name}" in the history.`, "The overview has all that the running probes measure. The probe of this one may not run here; this shows which probes there are:", "kstrobe list"));
      return;
    }
    this.info = info;
    this.build();
    while (!this.signal.aborted) {
      await this.look();
      await this.untilDue();
    }
  }

  /** Makes the next look come now: the address has changed. */
  wake() {
    this.turn.abort();
  }

  /** Waits until a range that moves has moved, or the address has changed. */
  async untilDue() {
    if (!this.turn.signal.aborted) {
      const chosen = this.chosen;
      await pause(chosen.fixed ? 2 ** 30 : Math.max(LIVE_MS, (this.answer?.step ?? 1) * 1000), this.turn.signal);
    }
    this.turn = new AbortController();
  }

  build() {
    const { info } = this;
    const label = `${short(info.metric)} over time`;
    this.chart = info.type === "histogram" ? new HeatMap("large", label, info.unit) : new LineChart(label, info.unit, info.type);
    this.lines = new LineChart(`${short(info.metric)} by label over time`, info.unit, info.type, 180);
    const actions = {
      select: (from, to) => go(changed({ select: spanText({ from, to }) }), true),
      clear: () => go(changed({ select: null }), true),
      zoomIn: () => this.zoomIn(), zoomOut: () => this.zoom(2), older: () => this.shift(-0.5), newer: () => this.shift(0.5),
    };
    this.brushes = [this.chart, this.lines].map((chart) => new Brush(chart, chart.label, actions));
    this.marks = marksOf(this.chart, info.probe);
    this.tools = h("div", { className: "tools" });
    this.span = h("span", { className: "dim num" });
    this.figures = h("div", { className: "figures", id: "selection" });
    this.texts = h("div");
    this.linesHead = h("h3");
    this.byLabel = h("div", { hidden: true }, this.linesHead, this.lines.element, this.lines.legend);
    this.pair = h("div", { className: "tools" });
    this.compared = h("section");
    this.groups = h("div", { className: "card" });
    this.problem = h("div");
    this.root.append(this.tools, this.problem, h("div", { className: "two" },
      h("div", { className: "card" },
        h("div", { className: "head" }, h("h1", {}, short(info.metric)), this.span),
        h("p", { className: "help" }, info.help, info.probe && [" ", h("a", { href: linkTo("probes", info.probe) }, info.probe)]),
        this.chart.element, this.figures, this.byLabel, this.texts),
      this.groups), this.pair, this.compared);
  }

  /** Asks for what the address says, and shows it. */
  async look() {
    const chosen = choice(here().parameters, this.info);
    this.chosen = chosen;
    this.drawTools();
    const { info } = this;
    const now = Date.now() / 1000;
    const shown = chosen.fixed ?? { from: `-${chosen.seconds}`, to: 0 };
    const query = { metric: info.metric, match: chosen.match };
    try {
      const answer = await get(withQuery("api/v1/query", { ...query, ...shown }), this.signal);
      this.answer = answer;
      this.span.replaceChildren(range(answer.from, answer.to), answer.sampled ? h("span", { className: "pill warn", title: "A probe was sampled in this range." }, "estimates: sampled") : "");
      if (info.type === "histogram") this.chart.show(Cells.of(answer), answer.groups[0]);
      else this.chart.show(answer);
      this.brushes.forEach((brush) => brush.show(chosen.selection?.from ?? null, chosen.selection?.to ?? null));
      this.marks.show(answer.marks);
      await this.lookAtPart(query, chosen, answer, now);
      this.problem.replaceChildren();
    } catch (error) {
      if (!this.signal.aborted) this.problem.replaceChildren(failure(error));
    }
  }

  /** Figures and table of the selection, or of all that is shown. */
  async lookAtPart(query, chosen, answer, now) {
    const { info } = this;
    // A table of a range that moves need not follow each column.
    const fresh = this.part && chosen === this.part.chosen;
    const key = JSON.stringify([chosen, here().parameters.toString()]);
    if (this.part?.key === key && !fresh && !chosen.selection && !chosen.fixed && now - this.part.asked < LIVE_MS * 2.5 / 1000) return;
    this.part = { key, asked: now, chosen };
    const part = chosen.selection ?? { from: answer.from, to: answer.to };
    const ask = (more) => {
      const asked = { ...query, ...part, ...more };
      // A part that was chosen while more was shown may have too many of these columns.
      const step = (asked.to - asked.from) / answer.step > MOST_COLUMNS ? null : answer.step;
      return get(withQuery("api/v1/query", { ...asked, step }), this.signal);
    };
    const whole = chosen.selection ? await ask({}) : answer;
    this.drawFigures(whole, chosen);
    if (chosen.by) {
      const by = { by: chosen.by, sort: chosen.sort };
      const groups = await ask({ ...by, top: TOP });
      this.drawGroups(groups, chosen);
      this.drawPair(groups, chosen);
      this.drawLines(chosen.selection ? await ask({ ...by, from: answer.from, to: answer.to, top: LINES }) : groups, chosen.by);
    } else {
      this.byLabel.hidden = this.pair.hidden = true;
      this.groups.replaceChildren(h("h2", {}, "Labels"), h("p", { className: "dim" }, info.labels.length ? "One value of each label is chosen." : "This metric has no labels."));
    }
    const compared = [await compareRanges(info, chosen, whole, ask), await compareValues(info, chosen, ask)];
    fill(this.compared, compared);
  }

  /** A line for each of the largest groups. */
  drawLines(answer, by) {
    this.byLabel.hidden = answer.groups.length < 2;
    if (this.byLabel.hidden) return;
    const what = { histogram: "p99", counter: "Rate", gauge: "Value" }[answer.type];
    this.linesHead.textContent = `${what} by ${by}`;
    this.lines.show(answer, by);
  }

  /** The choice of two values to compare; made anew only when there are others, as it may be open. */
  drawPair(answer, chosen) {
    const { by, one, other } = chosen;
    const names = [...new Set([one, other, ...answer.groups.map((group) => group.labels[by])].filter(Boolean))].sort();
    this.pair.hidden = names.length < 2;
    const key = JSON.stringify([by, one, other, names]);
    if (key === this.pairKey) return;
    this.pairKey = key;
    fill(this.pair, valuesChoice(chosen, names));
  }

  drawTools() {
    // A list that is open stays so.
    if (this.drawn === location.hash) return;
    this.drawn = location.hash;
    const { chosen, info } = this;
    const button = (text, action, more = {}) => h("button", { type: "button", onclick: action, ...more }, text);
    const live = RANGES.map(([seconds, text]) => button(text, () => go(changed({ at: null, select: null, range: seconds })), { "aria-pressed": String(!chosen.fixed && chosen.seconds === seconds) }));
    const by = h("select", { onchange: () => go(changed({ by: by.value, one: null, other: null }), true) }, info.labels.map((label) => h("option", { value: label, selected: label === chosen.by }, label)));
    const chips = chosen.match.map((one) => button(`${one} ×`, () => go(changed({ match: chosen.match.filter((other) => other !== one) })), { "aria-label": `remove the condition ${one}` }));
    const focused = this.tools.contains(document.activeElement) ? [...this.tools.querySelectorAll("button, select")].indexOf(document.activeElement) : -1;
    this.tools.replaceChildren(h("span", { className: "dim" }, "Last"), ...live,
      button("← Older", () => this.shift(-0.5)), button("Newer →", () => this.shift(0.5), { disabled: !chosen.fixed }),
      button("Zoom out", () => this.zoom(2)), button("Zoom in", () => this.zoomIn(), { disabled: !chosen.selection }),
      ...(info.labels.length ? [h("label", {}, "by", by)] : []), ...chips);
    // Made anew, the row keeps the focus where it was.
    if (focused >= 0) this.tools.querySelectorAll("button, select")[focused]?.focus();
  }

  drawFigures(whole, chosen) {
    const { info } = this;
    const total = whole.groups[0]?.total ?? {};
    const one = (key, text) => h("span", { className: key }, `${key} `, figure(text, total[key]));
    const plain = (key) => one(key, value(total[key], info.unit));
    const mean = meanRate(whole.groups[0]);
    const kinds = {
      histogram: () => [...["p50", "p90", "p99", "max"].map(plain), h("span", {}, figure(count(total.count ?? 0), total.count ?? 0), " events"), h("span", {}, figure(rate(mean), mean))],
      counter: () => [h("span", {}, figure(count(total.count ?? 0), total.count ?? 0), " counted"), h("span", {}, figure(rate(mean), mean))],
      gauge: () => ["min", "max", "last"].map(plain),
    };
    const what = chosen.selection ? `selection ${range(whole.from, whole.to)}` : "all that is shown";
    const captureLink = linkTo("captures", "", { probe: info.probe, comm: labelOf(chosen.match, "comm"), pod: podOf(chosen.match), duration: `${Math.min(10, Math.max(1, whole.to - whole.from))}s` });
    const buttons = [
      chosen.selection && h("button", { type: "button", onclick: () => go(changed({ base: spanText(chosen.selection), select: null })) }, "Compare"),
      h("a", { className: "button main", href: captureLink }, "Capture this"),
    ];
    Object.assign(this.figures.dataset, { from: whole.from, to: whole.to });
    fill(this.figures, [h("span", { className: "dim num" }, what), kinds[info.type](), h("span", { className: "end" }, buttons)]);
    this.drawTexts(whole, chosen);
  }

  /** Texts to copy: they stay open while the figures move. */
  drawTexts(whole, chosen) {
    const { info } = this;
    const query = () => promql({ metric: info.metric, type: info.type, by: chosen.by ? [chosen.by] : [], match: chosen.match, from: whole.from, to: whole.to, live: !chosen.fixed && !chosen.selection });
    const picture = () => {
      const all = Cells.of(whole).sum();
      const bounds = whole.bounds;
      const head = `${short(info.metric)}${chosen.match.length ? `{${chosen.match.join(",")}}` : ""} ${range(whole.from, whole.to)}, ${count(events(all))} events`;
      return textHistogram(head, info.unit, bounds, bounds.map(([lower]) => all.get(lower) ?? 0));
    };
    const kinds = [["PromQL", query], ...(info.type === "histogram" && events(Cells.of(whole).sum()) ? [["Histogram as text", picture]] : [])];
    const open = new Set([...this.texts.querySelectorAll("details[open]")].map((one) => one.dataset.kind));
    this.texts.replaceChildren(...kinds.map(([kind, text]) => h("details", { "data-kind": kind, open: open.has(kind) },
      h("summary", {}, kind), h("pre", { tabIndex: 0 }, text()), copyButton("Copy", text))));
  }

  drawGroups(answer, chosen) {
    const where = chosen.selection ? "in the selection" : "in all that is shown";
    const focused = this.groups.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    const content = answer.groups.length ? ranking(answer, chosen.by, chosen.match, chosen.sort) : [h("p", { className: "dim" }, "No event.")];
    const title = answer.type === "histogram" && answer.unit === "seconds" ? "Where the time goes" : `By ${chosen.by}`;
    fill(this.groups, [h("div", { className: "head" }, h("h2", {}, title), h("span", { className: "dim" }, where)), content]);
    if (focused) this.groups.querySelector(`[data-sort="${focused}"]`)?.focus();
  }

  zoomIn() {
    const { selection } = this.chosen;
    if (selection) go(changed({ at: spanText(selection), select: null }));
  }

  /** Shows so many times the range, around the same middle, within the history. */
  zoom(times) {
    const { from, to } = this.answer;
    const half = ((to - from) * times) / 2;
    this.jump((from + to) / 2 - half, (from + to) / 2 + half);
  }

  shift(share) {
    const { from, to } = this.answer;
    this.jump(from + (to - from) * share, to + (to - from) * share);
  }

  /** Shows a range; one that ends with the newest second moves on. */
  async jump(from, to) {
    try {
      const { oldest, newest } = await get("api/v1/history", this.signal);
      const seconds = Math.round(to - from);
      if (to > newest - this.answer.step) go(changed({ at: null, range: Math.min(seconds, Math.max(60, newest - oldest)) }));
      else if (from > oldest - seconds) go(changed({ at: spanText({ from: Math.max(0, Math.round(from)), to: Math.round(to) }), range: null }));
      else this.problem.replaceChildren(h("div", { className: "alert", role: "status" }, `The history begins ${duration(newest - oldest)} before its end.`));
    } catch (error) {
      if (!this.signal.aborted) this.problem.replaceChildren(failure(error));
    }
  }
}

/** The value that conditions choose of a label, if they do. */
function labelOf(match, label) {
  const start = `${label}="`;
  const found = match.find((one) => one.startsWith(start));
  return found ? found.slice(start.length, -1).replaceAll('\\"', '"') : null;
}

/** The pod that conditions choose: its name alone may stand in several namespaces. */
function podOf(match) {
  const [namespace, pod] = [labelOf(match, "namespace"), labelOf(match, "pod")];
  return namespace && pod ? `${namespace}/${pod}` : null;
}
