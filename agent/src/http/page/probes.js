// The probes: how each stands, what it hooks and what was chosen for this kernel.

import { figure, h } from "./dom.js";
import { count, percent, short } from "./format.js";
import { failure, notice } from "./notice.js";
import { to } from "./place.js";
import { watch } from "./status.js";

export function probes(root, name, _parameters, signal) {
  root.append(h("h1", { className: "hidden" }, "Probes"));
  const list = h("div", { className: "grid" });
  root.append(list);
  let drawn = "";
  watch(signal, (status) => {
    const chosen = status.probes.filter((probe) => !name || probe.name === name);
    // An opened part must not close by itself: only what has changed is made anew.
    const now = JSON.stringify(chosen);
    if (now === drawn) return;
    drawn = now;
    const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.probe));
    const all = name ? [h("p", {}, h("a", { href: to("probes") }, "All probes"))] : [];
    const none = notice(name ? `No probe ${name} is enabled.` : "No probe is enabled.", "See which there are, and enable some:", "kstrobe list\nkstrobe run --enable recvfrom");
    list.replaceChildren(...all, ...(status.error ? [failure(status.error)] : chosen.length ? chosen.map((probe) => card(probe, open.has(probe.name) || name)) : [none]));
  });
}

function card(probe, open) {
  const state = probe.throttled ? ["warn", probe.attached ? `sampled 1 in ${probe.one_of ?? "?"}` : "off its hooks"] : probe.idle ? ["", "not for this kernel"] : probe.attached ? ["ok", "attached"] : ["bad", "not attached"];
  const metrics = [...probe.metrics.map((metric) => h("a", { href: to("metric", short(metric)) }, short(metric))), ...(probe.stacks ?? []).map((stack) => h("a", { href: to("stacks", stack) }, stack))];
  const lost = Object.entries(probe.lost ?? {});
  return h("article", { className: "card" },
    h("div", { className: "head" }, h("h2", {}, probe.name), h("span", { className: `pill ${state[0]}` }, state[1])),
    h("p", { className: "help" }, probe.summary),
    (probe.throttled || probe.reason) && h("p", {}, probe.throttled || probe.reason),
    h("p", {}, metrics.flatMap((one, i) => [i ? ", " : "", one])),
    h("details", { open, "data-probe": probe.name }, h("summary", {}, `${probe.hooks.length} hooks`,
      probe.share !== null && probe.share !== undefined && [", ", figure(percent(probe.share), probe.share), " of the machine"]),
      h("dl", {},
        probe.hooks.flatMap((hook) => [h("dt", {}, hook.kind), h("dd", {}, hook.hook, hook.reason && h("span", { className: "dim" }, ` ${hook.reason}`))]),
        probe.choices.flatMap(({ wanted, got, because }) => [h("dt", {}, "chosen"), h("dd", {}, `${got} for ${wanted}${because.length ? `: ${because.join("; ")}` : ""}`)]),
        (probe.files ?? []).flatMap((file) => [h("dt", {}, "file"), h("dd", {}, file)]),
        lost.flatMap(([reason, n]) => [h("dt", {}, "lost"), h("dd", {}, `${count(n)} ${reason}`)]))));
}
