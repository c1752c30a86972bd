// The reports of a capture: whatever tables and figures the agent's JSON has, as `kstrobe report` prints them.

import { get } from "./api.js";
import { h, scroller, table } from "./dom.js";
import { count, value } from "./format.js";

const TITLES = {
  summary: "Capture", waits: "Wait against work", calls: "The slowest calls", functions: "Time by function", wakeups: "From wakeup to running",
  switches: "Why threads left the CPU", interrupts: "Interrupts and softirqs", syscalls: "System calls", packets: "Ways of packets", blocks: "Block requests", missing: "Missing",
};
/** Rows of a table. */
const MOST = 12;

export async function report(path, signal) {
  const data = await get(`${path}/report`, signal);
  const parts = Object.keys(TITLES).filter((name) => data[name]);
  return h("section", { className: "card", id: "report" }, h("h2", {}, "Report"),
    parts.map((name) => h("details", { open: name === "switches" || name === "syscalls" }, h("summary", {}, TITLES[name]), part(TITLES[name], data[name]))));
}

const words = (name) => name.replace(/_ns$/, "").replaceAll("_", " ");
const plain = (one) => one === null || typeof one !== "object";

/** A figure, a text, or what of a list fits into a cell. */
function cell(name, one) {
  if (one === null || one === undefined) return "–";
  if (typeof one === "number") return name.endsWith("_ns") ? value(one / 1e9, "seconds") : name === "pid" || name.endsWith("_pid") ? String(one) : count(one);
  if (Array.isArray(one)) return one.every(plain) ? one.join(" < ") : one.map((inner) => Object.values(inner).join(" × ")).join(", ");
  if (typeof one === "object") return Object.entries(one).filter(([, inner]) => plain(inner)).map(([key, inner]) => `${words(key)} ${cell(key, inner)}`).join(", ");
  return String(one);
}

function part(title, data) {
  const figures = Object.entries(data).filter(([, one]) => plain(one) && one !== "");
  const others = Object.entries(data).filter(([, one]) => !plain(one));
  return [
    figures.length > 0 && h("dl", {}, figures.map(([name, one]) => [h("dt", {}, words(name)), h("dd", { className: "num" }, cell(name, one))])),
    ...others.flatMap(([name, one]) => {
      if (!Array.isArray(one)) return h("p", { className: "num" }, `${words(name)}: ${cell(name, one)}`);
      if (one.length === 0) return [];
      if (one.every(plain)) return h("p", {}, `${words(name)}: ${one.join(", ")}`);
      return rows(`${title}: ${words(name)}`, words(name), one);
    }),
  ];
}

function rows(caption, name, list) {
  // A column that says nothing in all rows is none.
  const keys = [...new Set(list.flatMap((row) => Object.keys(row)))].filter((key) => list.some((row) => row[key] !== null && !(Array.isArray(row[key]) && row[key].length === 0)));
  // Names lead, as in all tables.
  keys.sort((a, b) => Number(list.every((row) => typeof row[a] !== "string")) - Number(list.every((row) => typeof row[b] !== "string")));
  const shown = list.slice(0, MOST).map((row) => keys.map((key) => cell(key, row[key])));
  return [name !== "rows" && h("h3", {}, name), scroller(caption, table(caption, keys.map(words), shown, { className: "num" })), list.length > MOST && h("p", { className: "dim" }, `and ${count(list.length - MOST)} more: kstrobe report has all`)];
}
