// Exact buckets over time as plain data: what the API's answers hold, and what is added to it second by second.

/** Columns of buckets. A bucket is known by its lower bound, since each answer has bounds of its own. */
export class Cells {
  constructor(from, step, columns) {
    Object.assign(this, { from, step, columns, bounds: new Map() });
  }

  /** All groups of an answer of `/api/v1/query` together, or one of them. */
  static of(answer, groups = answer.groups) {
    const cells = new Cells(answer.from, answer.step, Array.from({ length: answer.columns }, () => new Map()));
    for (const group of groups) (group.heat ?? []).forEach((column, i) => cells.add(i, answer.bounds, column));
    return cells;
  }

  get to() {
    return this.from + this.step * this.columns.length;
  }

  /** Adds `[bucket, n, bucket, n, ..]` to a column. */
  add(column, bounds, pairs) {
    const cells = this.columns[column];
    for (let i = 0; i < pairs.length; i += 2) {
      const [lower, upper] = bounds[pairs[i]];
      this.bounds.set(lower, [lower, upper]);
      cells.set(lower, (cells.get(lower) ?? 0) + pairs[i + 1]);
    }
  }

  /** Adds what came at a time; older columns leave at the left. */
  push(time, bounds, pairs) {
    const behind = Math.floor((time - this.from) / this.step) - this.columns.length + 1;
    for (let i = 0; i < Math.min(behind, this.columns.length); i++) {
      this.columns.shift();
      this.columns.push(new Map());
    }
    if (behind > 0) this.from += behind * this.step;
    const column = Math.floor((time - this.from) / this.step);
    if (column >= 0) this.add(column, bounds, pairs);
  }

  /** Columns from one to another, the last not included, as one. */
  sum(first = 0, last = this.columns.length) {
    const all = new Map();
    for (const column of this.columns.slice(first, last)) {
      for (const [lower, n] of column) all.set(lower, (all.get(lower) ?? 0) + n);
    }
    return all;
  }

  get isEmpty() {
    return this.columns.every((column) => column.size === 0);
  }

  /** Largest count of a cell. */
  get most() {
    let most = 0;
    for (const column of this.columns) for (const n of column.values()) most = Math.max(most, n);
    return most;
  }

  /** Lower and upper bound of a bucket; without an upper bound it is shown as wide as an octave. */
  edges(lower) {
    const [, upper] = this.bounds.get(lower);
    const top = upper ?? lower * 2;
    return [lower > 0 ? lower : top / 2, top];
  }

  /** The value that a share of a column's events does not exceed; a straight line within its bucket. */
  quantile(column, q) {
    let total = 0;
    for (const n of column.values()) total += n;
    if (total === 0) return null;
    let below = 0;
    for (const lower of [...column.keys()].sort((a, b) => a - b)) {
      const n = column.get(lower);
      if (below + n >= q * total) {
        const [, upper] = this.bounds.get(lower);
        return upper === null ? lower : lower + ((q * total - below) / n) * (upper - lower);
      }
      below += n;
    }
    return null;
  }

  /** Upper bound of a column's highest bucket. */
  highest(column) {
    if (column.size === 0) return null;
    const [lower, upper] = this.bounds.get(Math.max(...column.keys()));
    return upper ?? lower;
  }
}

/** Number of events of a column. */
export function events(column) {
  let total = 0;
  for (const n of column.values()) total += n;
  return total;
}
