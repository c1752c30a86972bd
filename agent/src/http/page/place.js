// Where the reader is: everything that is shown stands in the address, behind `#`.

/** View, name (of a metric, for instance) and parameters of the address. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, name = ""] = path.split("/");
  return { view, name: decodeURIComponent(name), parameters: new URLSearchParams(query) };
}

/** Parameters of an address, without what is empty; an array is a parameter several times. */
export function parametersOf(values) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") parameters.append(key, one);
    }
  }
  return parameters;
}

/** The address of a view. */
export function to(view, name = "", parameters = {}) {
  const query = parametersOf(parameters);
  const path = [view, encodeURIComponent(name)].filter(Boolean).join("/");
  return `#/${path}${query.size ? `?${query}` : ""}`;
}

/** The address of this view with some parameters changed; `null` takes one away. */
export function changed(changes) {
  const { view, name, parameters } = here();
  const all = {};
  for (const key of parameters.keys()) all[key] = parameters.getAll(key);
  return to(view, name, { ...all, ...changes });
}

/** Goes there. What is but a finer choice of the same replaces its entry in the history of the browser. */
export function go(address, replace = false) {
  if (address === location.hash) return;
  if (!replace) {
    location.hash = address;
    return;
  }
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
