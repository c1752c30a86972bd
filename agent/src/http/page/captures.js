// Captures of the kernel's trace: those there are, and a form that starts one.

import { agentNow, asksAgain, blob, get, pause, send, token } from "./api.js";
import { fill, h, scroller, table } from "./dom.js";
import { count, duration, value } from "./format.js";
import { failure, notice } from "./notice.js";
import { go, to } from "./place.js";
import { report } from "./report.js";
import { Timeline } from "./timeline.js";

const FORMATS = [["dat", "trace.dat"], ["perfetto", "Perfetto"], ["text", "Text"], ["folded", "Folded"], ["pprof", "pprof"]];
/** Events of a timeline: states of threads, and what they asked the kernel for. */
const SCHEDULER = ["sched:sched_switch", "sched:sched_waking"];
const CALLS = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"];
const EVERY_MS = 3000;
const RUNNING_MS = 500;
/** Longest time between two looks while the agent does not answer. */
const MOST_MS = 10000;

export function captures(root, name, parameters, signal) {
  root.append(h("h1", { className: "hidden" }, "Captures"));
  const body = h("div");
  root.append(body);
  const work = name ? one(body, name, parameters, signal) : all(body, parameters, signal);
  work.catch((error) => {
    if (signal.aborted) return;
    const off = error.status === 403 ? [notice("To allow captures, write this into kstrobe.yaml and reload the agent:", null, "captures: {}")] : [];
    body.replaceChildren(failure(error), ...off);
  });
}

async function all(body, parameters, signal) {
  let { captures: found } = await get("api/v1/captures", signal);
  const { probes } = await get("api/v1/probes", signal);
  const list = h("div", { className: "card" });
  body.replaceChildren(form(probes, parameters), list);
  while (!signal.aborted) {
    const rows = found.map((capture) => [h("a", { href: to("captures", capture.id) }, capture.id), state(capture), capture.started.replace("T", " ").slice(0, 19), capture.trigger.kind, value(capture.bytes, "bytes"), count(capture.records), count(capture.lost)]);
    if (!list.contains(document.activeElement)) {
      list.replaceChildren(h("h2", {}, "Captures"), rows.length ? scroller("Captures", table("Captures, the newest first", ["id", "state", "started (UTC)", "by", "size", "records", "lost"], rows, { className: "num" })) : h("p", { className: "dim" }, "None yet: start one above, or by a rule in kstrobe.yaml."));
    }
    await pause(EVERY_MS, signal);
    try {
      ({ captures: found } = await get("api/v1/captures", signal));
    } catch {
      // The next look may have an answer; until then the rows stay.
    }
  }
}

function state(capture) {
  const kind = { done: "ok", failed: "bad", running: "warn" }[capture.state] ?? "";
  return h("span", { className: `pill ${kind}` }, capture.state);
}

/** What is to be recorded, filled in with what was chosen in another view. */
function form(probes, parameters) {
  const field = (label, properties) => {
    const input = h("input", { autocomplete: "off", spellcheck: false, ...properties });
    return [input, h("label", {}, label, input)];
  };
  const traced = (probe) => [...new Set((probe?.hooks ?? []).flatMap((hook) => hook.events ?? []))];
  const chosen = traced(probes.find((probe) => probe.name === parameters.get("probe")));
  const [events, eventsLabel] = field("Events (SYSTEM:EVENT, with globs)", { value: parameters.get("events") ?? [...new Set([...SCHEDULER, ...(chosen.length ? chosen : CALLS)])].join(" "), required: true });
  const [comms, commsLabel] = field("Only threads named (comm, with globs)", { value: parameters.get("comm") ?? "", placeholder: "all" });
  const [pods, podsLabel] = field("Only pods (NAMESPACE/NAME)", { value: parameters.get("pod") ?? "", placeholder: "all" });
  const [seconds, secondsLabel] = field("Duration", { value: parameters.get("duration") ?? "5s", required: true, pattern: "[0-9.]+(ms|s|m)?" });
  const stacks = h("input", { type: "checkbox" });
  const problem = h("div");
  const start = h("button", { type: "submit", className: "main" }, "Start");
  const words = (input) => input.value.split(/[\s,]+/).filter(Boolean);
  const made = h("form", { className: "fields" }, eventsLabel, commsLabel, podsLabel, secondsLabel,
    h("div", { className: "tools" }, h("label", {}, stacks, "kernel stacks"), start));
  made.onsubmit = async (event) => {
    event.preventDefault();
    start.disabled = true;
    const request = { events: words(events), duration: seconds.value };
    if (words(comms).length) request.comms = words(comms);
    if (words(pods).length) request.pods = words(pods);
    if (stacks.checked) request.stacks = true;
    try {
      const { id } = await send("POST", "api/v1/captures", request);
      go(to("captures", id));
    } catch (error) {
      problem.replaceChildren(failure(error));
      start.disabled = false;
    }
  };
  return h("section", { className: "card" }, h("h2", {}, "New capture"), h("p", { className: "help" }, "A bounded recording of the kernel's own trace. It costs more than a probe while it runs."), made, problem);
}

async function one(body, id, parameters, signal) {
  const path = `api/v1/captures/${encodeURIComponent(id)}`;
  const problem = h("div");
  const shown = h("div");
  fill(body, [problem, shown]);
  for (let wait = RUNNING_MS; !signal.aborted; await pause(wait, signal)) {
    let capture;
    try {
      capture = await get(path, signal);
    } catch (error) {
      // A capture that is not there, or a lacking token, stays so; a forwarded port comes back.
      if (signal.aborted || (error.status >= 400 && error.status < 500 && error.status !== 429)) throw error;
      wait = Math.min(2 * wait, MOST_MS);
      problem.replaceChildren(failure(asksAgain(error)));
      continue;
    }
    wait = RUNNING_MS;
    problem.replaceChildren();
    const running = capture.state === "running";
    fill(shown, page(capture, path, running));
    if (!running) return analysis(body, capture, path, parameters, signal);
  }
}

/** What the records say, below what the capture is. */
async function analysis(body, capture, path, parameters, signal) {
  if (capture.state === "failed" || !capture.records) return;
  const timeline = new Timeline(path, parameters, signal);
  body.append(timeline.element);
  await timeline.load();
  try {
    body.append(await report(path, signal));
  } catch (error) {
    if (!signal.aborted) body.append(failure(error));
  }
}

function page(capture, path, running) {
  const seconds = Math.max(0, agentNow() - capture.started_unix_ms / 1000);
  const wanted = Number.parseFloat(capture.request.duration) * ({ ms: 0.001, m: 60 }[/[a-z]+$/.exec(capture.request.duration ?? "")?.[0]] ?? 1);
  const problem = h("div");
  const act = (label, method, to, after) => h("button", { type: "button", onclick: () => send(method, to).then(after, (error) => problem.replaceChildren(failure(error))) }, label);
  const file = ([format, label]) => download(`${path}/download?format=${format}`, `${capture.id}.${format}`, label, problem);
  const files = capture.state === "running" ? [] : FORMATS.map(file);
  const progress = h("progress", { max: wanted || 10, value: Math.min(seconds, wanted || 10), "aria-label": "Progress" });
  const term = (name, text) => [h("dt", {}, name), h("dd", {}, text)];
  return [h("p", {}, h("a", { href: to("captures") }, "All captures")),
    h("article", { className: "card", id: "capture" },
      h("div", { className: "head" }, h("h2", {}, capture.id), state(capture)),
      running && h("p", {}, progress, ` ${duration(seconds)} of ${capture.request.duration ?? "10s"}`),
      capture.error && h("p", {}, capture.error),
      h("dl", {}, term("started", capture.started), capture.ended && term("ended", capture.ended), term("asked for by", `${capture.trigger.kind} ${capture.trigger.client ?? ""}`),
        term("size", value(capture.bytes, "bytes")), term("records", count(capture.records)), term("lost", count(capture.lost)), (capture.notes ?? []).flatMap((note) => term("note", note)),
        term("request", h("pre", { tabIndex: 0 }, JSON.stringify(capture.request, null, 2)))),
      h("div", { className: "tools" }, files, running ? act("Stop now", "POST", `${path}/cancel`, () => undefined) : act("Delete", "DELETE", path, () => go(to("captures")))),
      problem)];
}

/** A link; with a token, which no link carries, a button that fetches and saves. */
export function download(source, name, label, problem) {
  if (!token.get()) return h("a", { className: "button", href: source, download: name }, label);
  const save = async () => {
    button.disabled = true;
    try {
      const url = URL.createObjectURL(await blob(source));
      h("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      problem.replaceChildren(failure(error));
    }
    button.disabled = false;
  };
  const button = h("button", { type: "button", onclick: save }, label);
  return button;
}
