"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("picture"), tip = document.getElementById("tip");
const pen = canvas.getContext("2d");
const [NAME, GROUP, DEPTH, START, LENGTH, OWN, FLAGS] = [0, 1, 2, 3, 4, 5, 6];
const [WAIT, INTERRUPT, START_UNKNOWN, END_UNKNOWN] = [1, 2, 4, 8];
const LANE = 17, LABEL = 18, GAP = 8, AXIS = 22;
const whole = { from: 0, to: Math.max(1, data.end_ns) };
let view = { ...whole, top: 0 }, wanted = "", drag = null, asked = false;

const time = (ns) => ns >= 1e9 ? (ns / 1e9).toFixed(6) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : ns >= 1e3 ? (ns / 1e3).toFixed(3) + " µs" : ns + " ns";
const hue = (text) => { let sum = 7; for (const c of text) sum = (sum * 31 + c.codePointAt(0)) >>> 0; return (sum * 137) % 360; };
const colours = data.groups.map((group) => `hsl(${hue(group)} 55% 62%)`);

let height = 0;
for (const row of data.rows) { row.top = height; height += LABEL + row.depth * LANE + GAP; }

function x(ns) { return (ns - view.from) / (view.to - view.from) * canvas.clientWidth; }
function ns(px) { return view.from + px / canvas.clientWidth * (view.to - view.from); }

function clamp() {
  const length = Math.min(Math.max(view.to - view.from, 10), whole.to);
  view.from = Math.min(Math.max(view.from, 0), whole.to - length);
  view.to = view.from + length;
  view.top = Math.max(0, Math.min(view.top, height - canvas.clientHeight + AXIS));
}

function ask() { if (!asked) { asked = true; requestAnimationFrame(draw); } }

function draw() {
  asked = false;
  clamp();
  const scale = window.devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
  canvas.width = wide * scale; canvas.height = high * scale;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, wide, high);
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  const text = getComputedStyle(document.body).color;
  for (const row of data.rows) {
    const top = AXIS + row.top - view.top;
    if (top > high || top + LABEL + row.depth * LANE < AXIS) continue;
    pen.fillStyle = text; pen.globalAlpha = 1;
    pen.fillText(row.name, 6, top + LABEL / 2);
    // What was drawn last at each depth: of calls in one pixel one is enough.
    const right = new Array(row.depth).fill(-1);
    for (const call of row.calls) {
      const left = x(call[START]), end = x(call[START] + call[LENGTH]);
      if (end < 0 || left > wide || end < right[call[DEPTH]] + 0.5) continue;
      box(call, left, Math.max(end, left + 0.7), top + LABEL + call[DEPTH] * LANE);
      right[call[DEPTH]] = end;
    }
  }
  axis(wide, text);
}

function box(call, left, end, y) {
  const name = data.names[call[NAME]], wait = call[FLAGS] & WAIT;
  const width = Math.min(end, canvas.clientWidth + 5) - Math.max(left, -5), from = Math.max(left, -5);
  pen.globalAlpha = wanted && !name.includes(wanted) ? 0.15 : 1;
  pen.fillStyle = wait ? "#999" : colours[call[GROUP]];
  pen.fillRect(from, y, width, LANE - 1);
  if (wait && width > 3) {
    pen.save(); pen.beginPath(); pen.rect(from, y, width, LANE - 1); pen.clip();
    pen.strokeStyle = "#ccc"; pen.beginPath();
    for (let at = from - LANE; at < from + width; at += 7) { pen.moveTo(at, y + LANE); pen.lineTo(at + LANE, y); }
    pen.stroke(); pen.restore();
  }
  if (call[FLAGS] & (INTERRUPT | END_UNKNOWN)) {
    pen.strokeStyle = call[FLAGS] & INTERRUPT ? "#c00" : "#555";
    pen.setLineDash(call[FLAGS] & END_UNKNOWN ? [3, 2] : []);
    pen.strokeRect(from + 0.5, y + 0.5, Math.max(width - 1, 0), LANE - 2);
    pen.setLineDash([]);
  }
  if (width > 24) {
    pen.fillStyle = "#111";
    let shown = name;
    const room = Math.floor((width - 6) / 5.6);
    if (shown.length > room) shown = room > 2 ? shown.slice(0, room - 1) + "…" : "";
    pen.fillText(shown, from + 3, y + LANE / 2);
  }
}

function axis(wide, text) {
  pen.globalAlpha = 1;
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, wide, AXIS);
  pen.fillStyle = text;
  const rough = (view.to - view.from) / Math.max(2, wide / 140), power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, power * [1, 2, 5, 10].find((n) => n * power >= rough));
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    pen.fillRect(x(at), AXIS - 5, 1, 5);
    pen.fillText(time(Math.round(at)), x(at) + 3, AXIS / 2);
  }
}

function callAt(px, py) {
  const y = py - AXIS + view.top, at = ns(px), slack = (view.to - view.from) / canvas.clientWidth;
  if (py < AXIS) return null;
  const row = data.rows.find((row) => y >= row.top && y < row.top + LABEL + row.depth * LANE);
  const depth = row ? Math.floor((y - row.top - LABEL) / LANE) : -1;
  if (depth < 0) return null;
  const hits = row.calls.filter((call) => call[DEPTH] === depth && call[START] - slack <= at && at <= call[START] + call[LENGTH] + slack);
  const away = (call) => Math.max(call[START] - at, at - call[START] - call[LENGTH], 0);
  return hits.reduce((best, call) => !best || away(call) < away(best) ? call : best, null);
}

function describe(call) {
  const flags = call[FLAGS], lines = [data.names[call[NAME]]];
  lines.push(`took ${flags & END_UNKNOWN ? "at least " : ""}${time(call[LENGTH])}, in itself ${time(call[OWN])}`);
  lines.push(`began at ${time(call[START])}${flags & START_UNKNOWN ? " or thereabouts: not recorded" : ""}`);
  if (data.groups[call[GROUP]]) lines.push(`of ${data.groups[call[GROUP]]}`);
  if (flags & WAIT) lines.push("the thread waits, off its CPU");
  if (flags & INTERRUPT) lines.push("begun by an interrupt");
  return lines.join("\n");
}

function zoom(factor, px) {
  const at = ns(px);
  view.from = at - (at - view.from) * factor;
  view.to = at + (view.to - at) * factor;
  ask();
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.shiftKey) { view.top += event.deltaY || event.deltaX; ask(); }
  else zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
}, { passive: false });
canvas.addEventListener("mousedown", (event) => { drag = { x: event.clientX, y: event.clientY, ...view }; });
window.addEventListener("mouseup", () => { drag = null; });
canvas.addEventListener("mouseleave", () => { tip.style.display = "none"; });
canvas.addEventListener("mousemove", (event) => {
  if (drag) {
    const moved = (event.clientX - drag.x) / canvas.clientWidth * (drag.to - drag.from);
    view = { from: drag.from - moved, to: drag.to - moved, top: drag.top - (event.clientY - drag.y) };
    ask();
  }
  const call = drag ? null : callAt(event.offsetX, event.offsetY);
  tip.style.display = call ? "block" : "none";
  if (!call) return;
  tip.textContent = describe(call);
  tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = Math.min(event.clientY + 12, window.innerHeight - tip.offsetHeight - 4) + "px";
});
canvas.addEventListener("dblclick", (event) => {
  const call = callAt(event.offsetX, event.offsetY);
  if (call) { view.from = call[START] - call[LENGTH] * 0.05; view.to = call[START] + call[LENGTH] * 1.05; ask(); }
});
document.getElementById("find").addEventListener("input", (event) => { wanted = event.target.value; ask(); });
document.getElementById("whole").addEventListener("click", () => { view = { ...whole, top: 0 }; ask(); });
window.addEventListener("resize", ask);

const said = [`${data.shown} calls, ${time(data.end_ns)} from ${data.origin_ns} ns on`];
if (data.left_out) said.push(`${data.left_out} calls left out, none above ${time(data.longest_left_out_ns)}`);
if (data.lost) said.push(`${data.lost} records lost by the kernel`);
if (data.not_understood) said.push(`${data.not_understood} lines or records not understood`);
document.getElementById("said").textContent = said.join("; ");
const spent = new Array(data.groups.length).fill(0);
for (const row of data.rows) for (const call of row.calls) if (!(call[FLAGS] & WAIT)) spent[call[GROUP]] += call[OWN];
const legend = document.getElementById("legend");
for (const group of spent.map((_, at) => at).sort((a, b) => spent[b] - spent[a]).slice(0, 12)) {
  const item = document.createElement("span"), colour = document.createElement("i");
  colour.style.background = colours[group];
  item.append(colour, `${data.groups[group] || "?"} ${time(spent[group])}`);
  legend.append(item);
}
ask();
