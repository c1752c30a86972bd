// Elements without a framework: what a view builds, and what several views show alike.

/** An element with properties, attributes (`aria-…`, `data-…`, `role`), listeners (`onclick`) and children. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return fill(element, children, true);
}

/** Gives an element these children; what is `false`, `null` or `undefined` is none. */
export function fill(element, children, more = false) {
  const all = [children].flat(3).filter((child) => child !== null && child !== undefined && child !== false);
  if (more) element.append(...all);
  else element.replaceChildren(...all);
  return element;
}

/** The same in SVG: everything is an attribute. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A figure as people read it, with its exact value for programs. */
export function figure(text, value) {
  return h("data", { value: value === undefined || value === null ? "" : String(value) }, text);
}

/** A line of values; gaps where there is none. */
export function sparkline(values, width = 72, height = 16) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const most = Math.max(...known, 0) || 1;
  let path = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    const x = (i / Math.max(values.length - 1, 1)) * (width - 2) + 1;
    path += `${pen}${x.toFixed(1)},${(height - 1.5 - (value / most) * (height - 3)).toFixed(1)}`;
    pen = "L";
  });
  return svg("svg", { width, height, class: "spark", "aria-hidden": "true" }, svg("path", { d: path || "M0,0", fill: "none", stroke: "currentColor" }));
}

/** Copies a text; the button says whether it could. */
export function copyButton(label, text) {
  const button = h("button", { type: "button" }, label);
  button.onclick = async () => {
    const value = text();
    try {
      await navigator.clipboard.writeText(value);
      button.textContent = "Copied";
    } catch {
      // Without TLS, browsers give no clipboard but on localhost: the older way needs a selected field.
      const field = h("textarea", { value, className: "hidden", "aria-label": "text to copy" });
      document.body.append(field);
      field.select();
      button.textContent = document.execCommand("copy") ? "Copied" : "Cannot copy here";
      field.remove();
    }
    setTimeout(() => (button.textContent = label), 1500);
  };
  return button;
}

/** A table with its heads; cells are texts or elements. The first column holds names, the others figures. */
export function table(caption, heads, rows, properties = {}) {
  return h("table", properties, h("caption", { className: "hidden" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => (row instanceof Element ? row : h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

/** A box around a table that is wider than a phone. */
export function scroller(label, ...children) {
  return h("div", { className: "scroller", tabIndex: 0, role: "region", "aria-label": label }, children);
}
