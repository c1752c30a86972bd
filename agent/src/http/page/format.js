// Figures, times, and texts to copy. Nothing here touches the page.

const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const PLAIN = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

/** Three digits that matter. */
function digits(x) {
  if (x === 0) return "0";
  const whole = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(x))));
  const text = x.toFixed(Math.min(whole, 3));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** A value with its unit: `6.1 ms`, `4 KiB`, `14`. */
export function value(x, unit) {
  if (x === null || x === undefined) return "–";
  if (!Number.isFinite(x)) return "∞";
  const scale = unit === "seconds" ? SECONDS : unit === "bytes" ? BYTES : PLAIN;
  if (x === 0) return unit === "seconds" ? "0 s" : unit === "bytes" ? "0 B" : "0";
  const [size, name] = scale.find(([size]) => Math.abs(x) >= size * 0.9995) ?? scale.at(-1);
  return scale === PLAIN ? digits(x / size) + name : `${digits(x / size)} ${name}`;
}

/** A time that may be long: `71.2 s`, `4 min`, `12 d`. */
export function duration(seconds) {
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size * 2) return `${Math.floor(seconds / size)} ${name}`;
  }
  return value(seconds, "seconds");
}

/** Events a second. */
export function rate(x) {
  if (x === null || x === undefined) return "–";
  const text = value(x, "");
  return /[a-zA-Z]$/.test(text) ? `${text.slice(0, -1)} ${text.slice(-1)}/s` : `${text} /s`;
}

/** Mean of a group's rates: of the measured time alone, as the history may begin later than the range. */
export function meanRate(group) {
  const measured = (group?.rate ?? []).filter((one) => one !== null);
  return measured.length ? measured.reduce((sum, one) => sum + one, 0) / measured.length : null;
}

/** A count with its thousands apart. */
export function count(n) {
  return n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-US");
}

/** A share in percent. */
export function percent(x) {
  return `${x < 0.0001 && x > 0 ? "< 0.01" : digits(Math.round(x * 1e4) / 100)} %`;
}

/** The time of day, here. */
export function clock(unix, withSeconds = true) {
  const time = new Date(unix * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}${withSeconds ? `:${two(time.getSeconds())}` : ""}`;
}

/** A range of time; with the day when it is not today. */
export function range(from, to) {
  const day = new Date(from * 1000);
  const today = day.toDateString() === new Date().toDateString();
  return `${today ? "" : `${day.toISOString().slice(0, 10)} `}${clock(from)} to ${clock(to)}`;
}

/** A metric's name without what all of them begin with. */
export const short = (metric) => metric.replace(/^kstrobe_/, "");

/** Times at which an axis has ticks: at most so many. */
export function timeTicks(from, to, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((step) => (to - from) / step <= most) ?? 86400 * 7;
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let t = Math.ceil((from - offset) / step) * step + offset; t <= to; t += step) ticks.push(t);
  return { ticks, seconds: step < 60 };
}

/** A label's condition, as the API and PromQL write it. */
export const matcher = (label, text) => `${label}="${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n")}"`;

/** The PromQL of what is shown. Of a histogram it is p99 of native buckets; what else may be wanted is in comments: one query is one expression. */
export function promql({ metric, type, by, match, from, to, live }) {
  const where = match.length ? `{${match.join(",")}}` : "";
  const window = live ? "[1m]" : `[${Math.max(1, Math.round(to - from))}s] @ ${Math.round(to)}`;
  const sum = (name, more = []) => {
    const labels = [...by, ...more];
    return `sum${labels.length ? ` by (${labels.join(", ")})` : ""} (rate(${name}${where}${window}))`;
  };
  if (type === "gauge") return `${metric}${where}${live ? "" : ` @ ${Math.round(to)}`}`;
  if (type === "counter") return sum(metric);
  return [
    `histogram_quantile(0.99, ${sum(metric)})`,
    `# with classic buckets:`,
    `# histogram_quantile(0.99, ${sum(`${metric}_bucket`, ["le"])})`,
    `# events a second:`,
    `# histogram_count(${sum(metric)})`,
    `# events a second with classic buckets:`,
    `# ${sum(`${metric}_count`)}`,
  ].join("\n");
}

/** A histogram as text: a row for each power of two, as tools in a terminal print it. */
export function textHistogram(title, unit, bounds, counts) {
  const rows = new Map();
  bounds.forEach(([lower, upper], i) => {
    if (!counts[i]) return;
    const power = lower > 0 ? Math.floor(Math.log2(lower) + 1e-9) : -Infinity;
    const row = rows.get(power) ?? { lower, upper, n: 0 };
    rows.set(power, { lower: Math.min(row.lower, lower), upper: row.upper === null || upper === null ? null : Math.max(row.upper, upper), n: row.n + counts[i] });
  });
  const powers = [...rows.keys()].sort((a, b) => a - b);
  const finite = powers.filter(Number.isFinite);
  for (let power = finite[0]; power < finite.at(-1); power++) {
    if (!rows.has(power)) {
      rows.set(power, { lower: 2 ** power, upper: 2 ** (power + 1), n: 0 });
      powers.push(power);
    }
  }
  powers.sort((a, b) => a - b);
  const most = Math.max(...[...rows.values()].map((row) => row.n), 1);
  const lines = powers.map((power) => {
    const { lower, upper, n } = rows.get(power);
    const name = `[${value(lower, unit)}, ${value(upper === null ? Infinity : upper, unit)})`;
    return [name, count(n), "#".repeat(Math.ceil((n / most) * 40))];
  });
  const [wide, wider] = [0, 1].map((i) => Math.max(...lines.map((line) => line[i].length), 0));
  return [title, ...lines.map(([name, n, bar]) => `${name.padEnd(wide)} ${n.padStart(wider)} |${bar.padEnd(40)}|`)].join("\n");
}
