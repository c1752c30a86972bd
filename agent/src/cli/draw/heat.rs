//! Latency over time: a strip one line high, and a heat map of time by the logarithm of the latency.

/// From nothing to full.
pub(super) const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Where there are no colours.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// A step of a strip is at least this factor, so that noise of a steady latency does not look like a mountain range.
const MIN_STEP: f64 = 1.5;
/// Colours of a heat map from few to many observations, for dark and for light terminals.
const DARK: [[u8; 3]; 5] = [[22, 25, 28], [76, 29, 12], [194, 65, 12], [251, 146, 60], [254, 240, 200]];
const LIGHT: [[u8; 3]; 5] = [[255, 255, 255], [254, 229, 200], [251, 146, 60], [194, 65, 12], [67, 20, 7]];

/// One character a value, by its logarithm above the smallest one. A blank has no value.
pub fn log_strip(values: &[Option<f64>]) -> String {
    let positive = || values.iter().flatten().copied().filter(|value| *value > 0.0);
    let (low, high) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
    let step = (high / low).powf(1.0 / 7.0).max(MIN_STEP).ln();
    let eighth = |value: f64| if value > 0.0 { 1 + ((value / low).ln() / step).round() as usize } else { 1 };
    values.iter().map(|value| value.map_or(' ', |value| EIGHTHS[eighth(value).min(8)])).collect()
}

/// One character a value, by its share of the largest one. A blank has no value.
pub fn linear_strip(values: &[Option<f64>]) -> String {
    columns(values, 1).pop().unwrap_or_default()
}

/// The same, `height` lines high.
pub fn columns(values: &[Option<f64>], height: usize) -> Vec<String> {
    let high = values.iter().flatten().copied().fold(0.0, f64::max);
    let eighths = |value: f64| match value / high {
        share if share > 0.0 => ((share * 8.0 * height as f64).round() as usize).max(1),
        // Zero is not absent.
        _ => 1,
    };
    let line = |above: usize| {
        let of =
            |value: &Option<f64>| value.map_or(' ', |value| EIGHTHS[eighths(value).saturating_sub(above * 8).min(8)]);
        values.iter().map(of).collect()
    };
    (0..height).rev().map(line).collect()
}

/// A logarithmic axis of latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Around these buckets, each with its bounds; `None` without a bucket that has a place on it.
    pub fn of(bounds: &[(f64, Option<f64>)]) -> Option<Axis> {
        let (first, last) = (bounds.first()?, bounds.last()?);
        let high = last.1.unwrap_or(last.0);
        // The lowest bucket may begin at 0.
        let low = if first.0 > 0.0 { first.0 } else { first.1.unwrap_or(high) / 2.0 };
        (low > 0.0 && high >= low).then(|| Axis { low, high: high.max(low * 2.0) })
    }

    /// Place of a value: 0 at the low end, 1 at the high one.
    fn place(&self, value: f64) -> f64 {
        ((value / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    /// Powers of ten on the axis, each with its line of `height`, counted from the top.
    pub fn decades(&self, height: usize) -> Vec<(usize, f64)> {
        let (first, last) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
        let decade = |power| {
            let value = 10f64.powi(power);
            // A power of ten between two lines belongs to the lower one, whatever its logarithm is rounded to.
            let line = ((1.0 - self.place(value)) * height as f64 + 1e-9).floor() as usize;
            (line.min(height.saturating_sub(1)), value)
        };
        (first..=last).rev().map(decade).collect()
    }
}

/// Intensities from 0 to 1 by line, from the highest latencies down. `None` where no second was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    pub lines: Vec<Vec<Option<f64>>>,
}

impl HeatMap {
    /// Of columns, each with pairs of a place in `bounds` and a count, or `None` where nothing was measured. A bucket's count is spread over the
    /// lines that it covers.
    pub fn of(axis: Axis, bounds: &[(f64, Option<f64>)], columns: &[Option<&[u64]>], height: usize) -> HeatMap {
        let covered: Vec<(f64, f64)> = bounds.iter().map(|bucket| covered(axis, *bucket, height)).collect();
        let mut counts = vec![vec![None; columns.len()]; height];
        for (column, heat) in columns.iter().enumerate() {
            let Some(heat) = heat else { continue };
            counts.iter_mut().for_each(|line| line[column] = Some(0.0));
            for pair in heat.chunks_exact(2) {
                let (bucket, count) = (usize::try_from(pair[0]).ok(), pair[1]);
                let Some((from, to)) = bucket.and_then(|bucket| covered.get(bucket)) else { continue };
                for line in (*from as usize)..(to.ceil() as usize).min(height) {
                    let part = (to.min(line as f64 + 1.0) - from.max(line as f64)) / (to - from);
                    // Line 0 of the axis is at the bottom.
                    *counts[height - 1 - line][column].get_or_insert(0.0) += count as f64 * part;
                }
            }
        }
        let most = counts.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let intensity = |count: f64| if count > 0.0 { count.ln_1p() / most.ln_1p() } else { 0.0 };
        let lines = counts.into_iter().map(|line| line.into_iter().map(|count| count.map(intensity)).collect());
        HeatMap { lines: lines.collect() }
    }
}

/// Lines that a bucket covers, counted from the bottom: at least half of one.
fn covered(axis: Axis, (lower, upper): (f64, Option<f64>), height: usize) -> (f64, f64) {
    let height = height as f64;
    let from = if lower > 0.0 { axis.place(lower) * height } else { 0.0 };
    let to = upper.map_or(height, |upper| axis.place(upper) * height);
    let from = from.min(height - 0.5);
    (from, to.max(from + 0.5))
}

/// A block that is as dark as the intensity.
pub fn shade(intensity: f64) -> char {
    let last = SHADES.len() - 1;
    match (intensity * last as f64).ceil() {
        step if step > 0.0 => SHADES[(step as usize).min(last)],
        _ => SHADES[0],
    }
}

/// Red, green and blue of an intensity.
pub fn colour(intensity: f64, is_light: bool) -> [u8; 3] {
    let ramp = if is_light { &LIGHT } else { &DARK };
    let place = intensity.clamp(0.0, 1.0) * (ramp.len() - 1) as f64;
    let step = (place as usize).min(ramp.len() - 2);
    let part = place - step as f64;
    let (from, to) = (ramp[step], ramp[step + 1]);
    std::array::from_fn(|i| (f64::from(from[i]) + (f64::from(to[i]) - f64::from(from[i])) * part).round() as u8)
}

/// The nearest of the 216 colours of a cube of six steps, which terminals of 256 colours have from number 16 on.
pub fn indexed(rgb: [u8; 3]) -> u8 {
    let step = |level: u8| match level {
        0..48 => 0,
        48..115 => 1,
        _ => (level - 35) / 40,
    };
    16 + 36 * step(rgb[0]) + 6 * step(rgb[1]) + step(rgb[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_latency_is_flat_and_a_spike_stands_out() {
        let steady: Vec<Option<f64>> = [1.0e-3, 1.05e-3, 1.1e-3, 1.0e-3].map(Some).to_vec();
        assert_eq!(log_strip(&steady), "▁▁▁▁");
        let spike = [Some(1e-3), None, Some(1e-1), Some(0.0), Some(1e-2)];
        assert_eq!(log_strip(&spike), "▁ █▁▅");
        assert_eq!(log_strip(&[None, None]), "  ");
        assert_eq!(log_strip(&[]), "");
    }

    #[test]
    fn columns_are_shares_of_the_largest() {
        assert_eq!(linear_strip(&[Some(0.0), Some(4.0), None, Some(8.0)]), "▁▄ █");
        assert_eq!(columns(&[Some(1.0), Some(0.5), Some(0.75)], 2), ["█ ▄", "███"]);
        assert_eq!(columns(&[Some(0.0)], 2), [" ", "▁"]);
    }

    #[test]
    fn buckets_lie_on_their_lines_of_the_axis() {
        // Three decades on three lines.
        let bounds = [(1e-6, Some(1e-5)), (1e-5, Some(1e-4)), (1e-4, Some(1e-3))];
        let axis = Axis::of(&bounds).unwrap();
        assert_eq!(axis.decades(3), [(0, 1e-3), (1, 1e-4), (2, 1e-5), (2, 1e-6)]);
        let columns: [Option<&[u64]>; 3] = [Some(&[0, 7]), None, Some(&[2, 1, 9, 5])];
        let map = HeatMap::of(axis, &bounds, &columns, 3);
        let third = 2f64.ln() / 8f64.ln();
        assert_eq!(map.lines[2], [Some(1.0), None, Some(0.0)]);
        assert_eq!(map.lines[1], [Some(0.0), None, Some(0.0)]);
        assert_eq!(map.lines[0], [Some(0.0), None, Some(third)], "a bucket that does not exist has no place");
    }

    #[test]
    fn a_bucket_is_spread_over_its_lines() {
        let bounds = [(0.0, Some(2.0)), (2.0, Some(8.0)), (8.0, None)];
        let axis = Axis::of(&bounds).unwrap();
        let columns: [Option<&[u64]>; 1] = [Some(&[1, 100])];
        // 1 to 8 on three lines: the bucket is the upper two.
        let lines = HeatMap::of(axis, &bounds, &columns, 3).lines;
        assert_eq!(lines.concat(), [Some(1.0), Some(1.0), Some(0.0)]);
    }

    #[test]
    fn there_is_no_axis_without_latencies() {
        assert_eq!(Axis::of(&[]), None);
        assert_eq!(Axis::of(&[(0.0, None)]), None);
        assert!(Axis::of(&[(0.0, Some(1e-6))]).is_some());
    }

    #[test]
    fn shades_and_colours_follow_the_intensity() {
        assert_eq!([0.0, 0.01, 0.5, 0.76, 1.0, 2.0].map(shade), [' ', '░', '▒', '█', '█', '█']);
        assert_eq!(colour(0.0, false), DARK[0]);
        assert_eq!(colour(1.0, true), LIGHT[4]);
        assert_eq!(colour(0.625, false), [223, 106, 36]);
        assert_eq!([[0, 0, 0], [255, 255, 255], [95, 135, 215]].map(indexed), [16, 231, 68]);
    }
}
