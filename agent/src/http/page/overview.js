// All metrics at once: what is wrong, a heat map for each histogram, the others in a table, and what the probes cost.

import { asksAgain, events as live, get, pause, sentence, withQuery } from "./api.js";
import { Cells, events } from "./cells.js";
import { figure, fill, h, scroller, sparkline, table } from "./dom.js";
import { percent, rate, short, value } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { failure, notice } from "./notice.js";
import { to } from "./place.js";
import { problems, watch } from "./status.js";

/** What a card shows: the last five minutes in columns of two seconds. */
const SECONDS = 300;
const STEP = 2;
/** Columns that the figures below a heat map are about: ten seconds. */
const LAST = 5;
/** Seconds of a column of the others' trends. */
const TREND_STEP = 5;
const AGAIN_MS = 2000;
/** Queries at once: the agent has other things to do. */
const AT_ONCE = 3;

export function overview(root, _name, _parameters, signal) {
  const alerts = h("div", { "aria-live": "polite" });
  const problem = h("div", { "aria-live": "polite" });
  const grid = h("div", { className: "grid" });
  const quiet = h("p", { className: "dim" });
  const others = h("div", { className: "card" });
  const costs = h("div", { className: "card" });
  const legend = h("p", { className: "dim" }, "The last 5 min; figures are those of the last 10 s.");
  root.append(h("h1", { className: "hidden" }, "Overview"), alerts, problem, legend, grid, quiet,
    h("div", { className: "two" }, others, costs));
  watch(signal, (status) => {
    alerts.replaceChildren(...problems(status).map(alertOf));
    costs.replaceChildren(...costOf(status));
  });
  const stands = (error) => standsStill(problem, error);
  load(grid, quiet, others, stands, signal).catch((error) => {
    if (!signal.aborted) grid.replaceChildren(failure(error));
  });
}

/** Says why the figures stand still; nothing while they do not. */
function standsStill(problem, error) {
  const text = error ? [error.message, error.hint].filter(Boolean).map(sentence).join(" ") : "";
  // Said once, not at each attempt.
  if (problem.dataset.text === text) return;
  problem.dataset.text = text;
  const alert = () => h("div", { className: "alert bad" }, h("b", {}, "The figures stand still."), ` ${text}`);
  fill(problem, error && (error.status === 401 ? failure(error) : alert()));
}

/** Where the columns of an answer begin whose last one has the newest second: at a multiple of the step. */
function begin(newest, step) {
  return Math.floor((newest - 1) / step) * step - SECONDS + step;
}

async function load(grid, quiet, others, stands, signal) {
  const cards = new Map();
  const rows = new Map();
  const known = (metric) => cards.has(metric.metric) || rows.has(metric.metric);
  const none = notice("No metrics yet.", "No probe that runs has one. See which probes there are, and enable some:", "kstrobe list\nkstrobe run --enable recvfrom");
  const arrange = () => {
    const busy = [...cards.values()].filter((card) => card.cells && !card.cells.isEmpty);
    busy.filter((card) => !card.element.isConnected).forEach((card) => grid.append(card.element));
    const still = [...cards.values()].filter((card) => card.cells?.isEmpty && !card.element.isConnected);
    quiet.replaceChildren(...(still.length ? [h("span", {}, "Without an event in the last 5 min: "), ...still.flatMap((card, i) => [i ? ", " : "", card.link()])] : []));
  };
  // An agent that has just started, or has new probes, has metrics that come later. After a pause all have seconds that are not shown.
  const learn = async (all) => {
    const { metrics, newest } = await get("api/v1/history", signal);
    if (metrics.length) none.remove();
    else grid.append(none);
    // Without a second there is no range to ask for; the first one leads here again.
    if (newest === null) return;
    const added = metrics.filter((metric) => !known(metric)).map((metric) => {
      const [kind, those] = metric.type === "histogram" ? [Card, cards] : [Row, rows];
      const one = new kind(metric);
      those.set(metric.metric, one);
      return one;
    });
    const waiting = (all ? [...cards.values(), ...rows.values()] : added).toSorted((a, b) => (a instanceof Row) - (b instanceof Row));
    const worker = async () => {
      for (let next; (next = waiting.shift()); ) {
        const step = next instanceof Card ? STEP : TREND_STEP;
        // By the agent's clock: the browser's may be wrong, and a recorded history ends earlier.
        const from = begin(newest, step);
        next.fill(await get(withQuery("api/v1/query", { metric: next.metric.metric, from, to: from + SECONDS, step }), signal));
        arrange();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    others.replaceChildren(...othersOf([...rows.values()].filter((row) => row.element)));
  };
  for (let learned = false; !learned && !signal.aborted; ) {
    try {
      await learn(true);
      learned = true;
      stands(null);
    } catch (error) {
      // What the agent refuses it would refuse again.
      if (error.status || signal.aborted) throw error;
      stands(asksAgain(error));
      await pause(AGAIN_MS, signal);
    }
  }
  let learning = false;
  let missed = false;
  await live("api/v1/live", signal, (name, data) => {
    if (name !== "second") return;
    for (const metric of data.metrics) {
      cards.get(metric.metric)?.second(data.time, metric, metric.bounds ?? data.bounds);
      rows.get(metric.metric)?.second(data.time, metric);
    }
    arrange();
    if (learning || (!missed && data.metrics.every(known))) return;
    learning = true;
    const all = missed;
    missed = false;
    // The next second asks again when this fails.
    learn(all).catch(() => (missed = true)).finally(() => (learning = false));
  }, (error) => {
    if (error) missed = true;
    stands(error);
  });
}

/** A histogram. */
class Card {
  constructor(metric) {
    this.metric = metric;
    this.rate = h("span", { className: "dim num" });
    this.figures = h("div", { className: "figures" });
    this.heat = new HeatMap("small", `${short(metric.metric)}, the last 5 minutes`, metric.unit);
    this.heat.canvas.dataset.metric = short(metric.metric);
    this.described = 0;
    this.element = h("article", { className: "card link" },
      h("div", { className: "head" }, h("h2", {}, this.link()), this.rate),
      h("p", { className: "help", title: metric.help }, metric.help), this.heat.element, this.figures);
  }

  link() {
    return h("a", { href: to("metric", short(this.metric.metric)) }, short(this.metric.metric));
  }

  fill(answer) {
    this.cells = Cells.of(answer);
    this.sampled = answer.sampled;
    this.heat.show(this.cells);
    this.write();
  }

  second(time, metric, bounds) {
    if (!this.cells) return;
    this.cells.push(time, bounds ?? [], metric.heat ?? []);
    this.sampled = metric.sampled ?? this.sampled;
    if (!this.element.isConnected) return;
    this.heat.draw();
    // A screen reader's table that changes each second cannot be read.
    if (++this.described % 15 === 0) this.heat.describe();
    this.write();
  }

  write() {
    const last = this.cells.sum(this.cells.columns.length - LAST);
    const n = events(last);
    const seconds = LAST * STEP;
    this.rate.replaceChildren(rate(n / seconds));
    const one = (name, v) => h("span", { className: name }, `${name} `, figure(value(v, this.metric.unit), v));
    fill(this.figures, [one("p50", this.cells.quantile(last, 0.5)), one("p99", this.cells.quantile(last, 0.99)),
      one("max", this.cells.highest(last)), this.sampled && h("span", { className: "pill warn" }, "sampled")]);
  }
}

/** A counter or gauge. */
class Row {
  constructor(metric) {
    this.metric = metric;
    this.values = [];
  }

  fill(answer) {
    const group = answer.groups[0];
    this.from = answer.from;
    this.values = [...((group?.rate ?? group?.value) || Array.from({ length: answer.columns }, () => null))];
    this.now = this.metric.type === "counter" ? this.metric.rate : group?.total?.last;
    this.write();
  }

  second(time, metric) {
    this.now = metric.type === "counter" ? metric.rate : (metric.value ?? this.now);
    if (!this.values.length) return;
    // Older columns leave at the left.
    for (; time >= this.from + this.values.length * TREND_STEP; this.from += TREND_STEP) this.values = [...this.values.slice(1), null];
    const column = Math.floor((time - this.from) / TREND_STEP);
    const before = (time - this.from) % TREND_STEP;
    const old = this.values[column];
    const mean = metric.type === "counter" && before && typeof old === "number";
    this.values[column] = mean ? (old * before + this.now) / (before + 1) : (this.now ?? null);
    this.write();
  }

  write() {
    const { metric, help, unit, type } = this.metric;
    this.element ??= h("tr", {}, h("td", {}, h("a", { href: to("metric", short(metric)), title: help }, short(metric))),
      (this.number = h("td")), (this.trend = h("td")));
    this.number.replaceChildren(type === "counter" ? rate(this.now) : value(this.now, unit));
    this.trend.replaceChildren(sparkline(this.values, 90));
  }
}

function othersOf(rows) {
  const head = h("div", { className: "head" }, h("h2", {}, "Counters and gauges"), h("span", { className: "dim" }, "last 5 min"));
  if (!rows.length) return [head, h("p", { className: "dim" }, "The probes that run have none.")];
  return [head, scroller("Counters and gauges", table("Counters and gauges", ["metric", "now", "trend"], rows.map((row) => row.element)))];
}

function alertOf({ bad, title, text, error, history }) {
  if (error?.status === 401) return failure(error);
  const link = !error && !history && h("a", { href: to("probes") }, "Probes");
  return h("div", { className: `alert${bad ? " bad" : ""}` }, h("b", {}, title), ` ${text} `, link);
}

function costOf({ probes, share, budget }) {
  const head = h("div", { className: "head" }, h("h2", {}, "What the probes cost"), h("span", { className: "dim" }, "of the machine's CPU time"));
  const known = probes.filter((probe) => probe.share !== null).sort((a, b) => b.share - a.share);
  if (!known.length) return [head, h("p", { className: "dim" }, "Measuring.")];
  const most = Math.max(budget ?? 0, share, 1e-9);
  const rows = known.map((probe) => {
    const bar = h("i");
    bar.style.width = `${Math.min(100, (probe.share / most) * 100)}%`;
    return [h("a", { href: to("probes", probe.name) }, probe.name), figure(percent(probe.share), probe.share), h("span", { className: "bar" }, bar)];
  });
  const limit = budget ? ` of the budget of ${percent(budget)}` : "; there is no budget";
  return [head, table("Cost of each probe", ["probe", "share", ""], rows), h("p", { className: "dim" }, `${percent(share)} together${limit}. A full bar is the whole ${budget ? "budget" : "sum"}.`)];
}
