// Runs the script of a timeline page with the least of a browser, and prints what it shows as JSON.
// Usage: node timeline.js FILE
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)].map((match) => match[1]);
const drawn = [], frames = [];
const pen = new Proxy({}, {
  get: (own, name) => name === "fillText" ? (text) => drawn.push(text) : own[name] ?? (() => {}),
  set: (own, name, value) => { own[name] = value; return true; },
});
const element = () => ({
  listeners: {}, style: {}, children: [], textContent: "", clientWidth: 1000, clientHeight: 400, offsetWidth: 10, offsetHeight: 10,
  addEventListener(name, listener) { this.listeners[name] = listener; },
  append(...more) { this.children.push(...more); },
  getContext: () => pen,
});
const elements = { data: Object.assign(element(), { textContent: scripts[0] }) };
const document = { body: {}, getElementById: (id) => elements[id] ??= element(), createElement: element };
const window = { ...element(), devicePixelRatio: 1, innerWidth: 1000, innerHeight: 500 };
const run = new Function("document", "window", "requestAnimationFrame", "getComputedStyle", scripts[1]);
run(document, window, (draw) => frames.push(draw), () => ({ color: "#000", backgroundColor: "#fff" }));

const frame = () => { drawn.length = 0; while (frames.length) frames.shift()(); return [...drawn]; };
const { picture, tip, whole } = elements;
const mouse = (x, y, more) => ({ offsetX: x, offsetY: y, clientX: x, clientY: y, preventDefault() {}, ...more });
const tips = (points) => points.map(([x, y]) => { picture.listeners.mousemove(mouse(x, y)); return tip.style.display === "block" ? tip.textContent : null; });
const first = frame();
// The second lane of the first row is 22 + 18 + 17 pixels down.
const found = tips([[500, 45], [500, 62], [900, 62], [500, 5]]);
picture.listeners.dblclick(mouse(500, 62));
const zoomed = frame();
for (let turn = 0; turn < 100; turn++) picture.listeners.wheel(mouse(500, 62, { deltaY: 1 }));
const out = frame();
for (let turn = 0; turn < 200; turn++) picture.listeners.wheel(mouse(500, 62, { deltaY: -1 }));
const closest = frame();
picture.listeners.mousedown(mouse(500, 62));
picture.listeners.mousemove(mouse(-100000, 62));
window.listeners.mouseup();
frame();
whole.listeners.click();
const legend = elements.legend.children.map((item) => item.children[1]);
console.log(JSON.stringify({ first, tips: found, zoomed, out, closest, again: frame(), said: elements.said.textContent, legend }));
