// How the probes stand and what they cost, asked for every few seconds by whatever view needs it.

import { asksAgain, get, pause } from "./api.js";

const EVERY_MS = 3000;
/** The history is looked at less often: its answer has all metrics. */
const HISTORY_MS = 30000;
const listeners = new Set();
let last = null;
let running = false;

/** Calls with each status, the last one first, until the signal. */
export function watch(signal, each) {
  listeners.add(each);
  signal?.addEventListener("abort", () => listeners.delete(each), { once: true });
  if (last) each(last);
  if (!running) run();
}

async function run() {
  running = true;
  let before = null;
  let history = null;
  let looked = -HISTORY_MS;
  while (listeners.size) {
    if (!document.hidden) {
      try {
        const answer = await get("api/v1/probes");
        if (performance.now() - looked >= HISTORY_MS) {
          looked = performance.now();
          history = await historyAfter(history);
        }
        last = { ...withRates(answer, before), history, error: null };
        before = answer;
      } catch (error) {
        last = { ...(last ?? { probes: [], mistakes: [], refused: [] }), error: asksAgain(error) };
      }
      listeners.forEach((each) => each(last));
    }
    await pause(EVERY_MS);
  }
  running = false;
}

/** How the history stands, with the seconds lost since the look before; `null` when it is off. */
async function historyAfter(before) {
  try {
    const { disk, lost_seconds: lost } = await get("api/v1/history");
    return { stopped: disk?.stopped, lost, losing: Math.max(0, lost - (before?.lost ?? lost)) };
  } catch {
    return null;
  }
}

/** Adds shares of the machine, and what was lost since the last answer. */
function withRates(answer, before) {
  const older = new Map((before?.probes ?? []).map((probe) => [probe.name, probe.lost ?? {}]));
  const { cpus, budget_ppm } = answer.node;
  const probes = answer.probes.map((probe) => {
    const old = older.get(probe.name);
    const losing = Object.entries(probe.lost ?? {}).map(([reason, n]) => ({ reason, n: n - (old?.[reason] ?? 0) }));
    return { ...probe, share: probe.cost_ppm === undefined ? null : probe.cost_ppm / 1e6 / cpus, losing: old ? losing.filter(({ n }) => n > 0) : [] };
  });
  const known = probes.filter((probe) => probe.share !== null);
  const share = known.length ? known.reduce((sum, probe) => sum + probe.share, 0) : null;
  return { mistakes: [], refused: [], ...answer, probes, share, budget: budget_ppm ? budget_ppm / 1e6 / cpus : null };
}

/** What is wrong, the worst first: `{bad, title, text}`; with `history` it is about that and about no probe. */
export function problems(status) {
  const all = [];
  if (status.error) all.push({ bad: true, title: status.error.message, text: status.error.hint ?? "", error: status.error });
  for (const text of status.mistakes) all.push({ bad: true, title: "A file has a mistake: what it asks for does not run.", text });
  for (const text of status.refused) all.push({ bad: true, title: "The last reload was refused; what ran before runs on.", text });
  const { stopped, losing } = status.history ?? {};
  if (stopped) all.push({ bad: true, history: true, title: "The history on the disk is not written any more.", text: stopped });
  if (losing) {
    const text = `${losing} in the last half minute had no reading of their own, or no memory (lost_seconds in api/v1/history).`;
    all.push({ history: true, title: "The history loses seconds.", text });
  }
  const [throttled, attached] = [[], []];
  for (const probe of status.probes) {
    if (probe.throttled) throttled.push(probe);
    else if (!probe.attached && !probe.idle) {
      all.push({ bad: true, title: `${probe.name} is not attached.`, text: probe.reason || "No reason is known." });
    } else attached.push(probe);
  }
  for (const { name, throttled: why, attached } of throttled) {
    const meaning = attached ? "Rates are weighted, and all figures of it are estimates." : "It measures nothing meanwhile.";
    all.push({ title: attached ? `${name} is sampled:` : `${name} is off its hooks:`, text: `${why}. ${meaning}` });
  }
  for (const probe of [...throttled, ...attached]) {
    for (const { reason, n } of probe.losing ?? []) {
      all.push({ title: `${probe.name} loses events.`, text: `${n} in the last seconds: ${reason} (kstrobe_lost_total).` });
    }
  }
  return all;
}
