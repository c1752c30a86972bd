// What pictures over time have in common: their horizontal axis, from `left` over `width` pixels, with the range of `cells`.

/** Height of the lane above a picture where marks stand. */
export const LANE = 18;
/** Rows of the table that stands for a picture. */
export const TABLE_ROWS = 12;

export class TimeChart {
  x(time) {
    return this.left + ((time - this.cells.from) / (this.cells.to - this.cells.from)) * this.width;
  }

  time(x) {
    return this.cells.from + ((x - this.left) / this.width) * (this.cells.to - this.cells.from);
  }
}
