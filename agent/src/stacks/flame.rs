//! A flame graph as one SVG file that opens in any browser.

use super::{Resolved, Unit, folded};
use inferno::flamegraph::{Options, from_lines};
use std::io;

/// Draws the profile. A profile without samples is drawn as such: a picture that says so beats an error in a browser.
pub fn write(profile: &Resolved) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    options.title = profile.metric.clone();
    let sums = folded::lines(profile);
    let total = sums.values().fold(0u64, |sum, value| sum.saturating_add(*value));
    (options.count_name, options.factor) = scale(profile.unit, total);
    // The same function has the same colour in every graph, so that two can be compared.
    options.deterministic = true;
    if let Ok(palette) = "java".parse() {
        // The palette that knows `_[k]`: kernel frames orange.
        options.colors = palette;
    }
    let mut lines: Vec<String> = sums.iter().map(|(stack, value)| format!("{stack} {value}")).collect();
    if lines.is_empty() {
        options.title = format!("{}: nothing was counted in this time", profile.metric);
        lines.push("[nothing] 1".to_owned());
    }
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    Ok(svg)
}

/// What the picture counts, and how much one of it is in raw units.
///
/// Nanoseconds of a minute have eleven digits, which nobody reads. But inferno computes percentages from rounded counts,
/// so that short times stay in nanoseconds.
fn scale(unit: Unit, total: u64) -> (String, f64) {
    match unit {
        Unit::Nanoseconds if total >= 10_000_000 => ("us".to_owned(), 1e-3),
        Unit::Nanoseconds => ("ns".to_owned(), 1.0),
        Unit::Bytes => ("bytes".to_owned(), 1.0),
        Unit::Count => ("samples".to_owned(), 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::folded::tests::profile;

    #[test]
    fn every_frame_has_a_box_with_its_share() {
        let svg = String::from_utf8(write(&profile()).unwrap()).unwrap();
        assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("offcpu_seconds_stacks"));
        for frame in ["app", "main", "nap(&amp;[u8: 4])", "do_nanosleep"] {
            assert!(svg.contains(&format!("<title>{frame} (570 ns, 99.48%)")), "{frame} in {svg}");
        }
        assert!(svg.contains("<title>other:x (3 ns, 0.52%)"), "{svg}");
    }

    #[test]
    fn long_times_are_microseconds() {
        let mut long = profile();
        long.samples[0].value = 9_999_999_930;
        let svg = String::from_utf8(write(&long).unwrap()).unwrap();
        assert!(svg.contains("<title>main (10,000,000 us, 100.00%)"), "{svg}");
    }

    #[test]
    fn an_empty_profile_says_so() {
        let empty = Resolved { metric: "cpu".to_owned(), ..Resolved::default() };
        let svg = String::from_utf8(write(&empty).unwrap()).unwrap();
        assert!(svg.contains("cpu: nothing was counted in this time"), "{svg}");
    }
}
