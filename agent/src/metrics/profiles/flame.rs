//! A flame graph as one SVG file that opens in any browser.

use super::{Resolved, Unit, folded};
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Direction, Options, from_lines};
use kstrobe_ftrace::report::names;
use std::io;

/// Colour of functions that give the CPU away.
const WAITING: Color = Color { r: 70, g: 110, b: 205 };

/// Draws the profile. A profile without samples is drawn as such: a picture that says so beats an error in a browser.
pub fn write(profile: &Resolved) -> io::Result<Vec<u8>> {
    let mut options = Options::default();
    // Roots at the top, where a browser opens the picture.
    options.direction = Direction::Inverted;
    let sums = folded::lines(profile);
    let total = sums.values().fold(0u64, |sum, value| sum.saturating_add(*value));
    (options.count_name, options.factor) = scale(profile.unit, total);
    options.title = title(profile, &options.count_name);
    // The same function has the same colour in every graph, so that two can be compared.
    options.deterministic = true;
    let mut waits = waits(profile);
    options.palette_map = Some(&mut waits);
    // Of waits alone, everything is blue; else kernel frames are orange, by the palette that knows `_[k]`.
    let of_waits = is_of_waits(profile, total);
    if let Ok(palette) = if of_waits { "aqua" } else { "java" }.parse() {
        options.colors = palette;
    }
    options.bgcolors = of_waits.then_some(BackgroundColor::Blue);
    let mut lines: Vec<String> = sums.iter().map(|(stack, value)| format!("{stack} {value}")).collect();
    if lines.is_empty() {
        options.title += ": nothing was counted in this time";
        lines.push("[nothing] 1".to_owned());
    }
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    Ok(svg)
}

/// `offcpu_seconds (us) on node-7`
fn title(profile: &Resolved, unit: &str) -> String {
    let on = if profile.node.is_empty() { String::new() } else { format!(" on {}", profile.node) };
    format!("{} ({unit}){on}", profile.metric)
}

/// The functions that wait, as they stand in folded text, with their colour.
fn waits(profile: &Resolved) -> PaletteMap {
    let mut map = PaletteMap::default();
    for frame in profile.frames.iter().filter(|frame| frame.kernel && names::waits(&frame.name)) {
        map.insert(format!("{}_[k]", frame.name), WAITING);
    }
    map
}

/// Whether most of the sum is of tasks that wait: their stacks end in the scheduler.
fn is_of_waits(profile: &Resolved, total: u64) -> bool {
    let leaf = |frames: &[u32]| frames.first().map(|frame| &profile.frames[*frame as usize]);
    let waits = |frames: &[u32]| leaf(frames).is_some_and(|leaf| leaf.kernel && names::waits(&leaf.name));
    let waiting = profile.samples.iter().filter(|sample| waits(&sample.frames)).map(|sample| sample.value);
    waiting.fold(0u64, u64::saturating_add) > total / 2
}

/// What the picture counts, and how much one of it is in raw units.
///
/// Nanoseconds of a minute have eleven digits, too many to read. But inferno computes percentages from rounded counts,
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
    use crate::metrics::profiles::folded::tests::profile;

    #[test]
    fn every_frame_has_a_box_with_its_share() {
        let svg = String::from_utf8(write(&profile()).unwrap()).unwrap();
        assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains(">offcpu_seconds_stacks (ns) on node-7<"), "{svg}");
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
        assert!(svg.contains("cpu (samples): nothing was counted in this time"), "{svg}");
    }

    /// Top and colour of the box of a frame.
    fn drawn(svg: &str, title: &str) -> (u32, String) {
        let (_, after) = svg.split_once(&format!("<title>{title} (")).unwrap_or_else(|| panic!("{title} in {svg}"));
        let attribute = |name: &str| {
            let (_, value) = after.split_once(&format!(" {name}=\"")).expect("a box");
            value.split('"').next().expect("a value").to_owned()
        };
        (attribute("y").parse().expect("a number"), attribute("fill"))
    }

    #[test]
    fn roots_are_at_the_top() {
        let svg = String::from_utf8(write(&profile()).unwrap()).unwrap();
        let tops = ["all", "app", "main", "nap(&amp;[u8: 4])", "do_nanosleep"].map(|f| drawn(&svg, f).0);
        assert!(tops.is_sorted_by(|a, b| a < b), "{tops:?}");
    }

    #[test]
    fn waits_have_colours_of_their_own() {
        let fill =
            |profile: &Resolved, frame: &str| drawn(&String::from_utf8(write(profile).unwrap()).unwrap(), frame).1;
        let waiting = profile();
        assert_eq!(fill(&waiting, "schedule"), "rgb(70,110,205)");
        let mut working = profile();
        working.samples[0].frames.remove(0);
        working.samples[1].value = 1;
        assert_eq!(fill(&working, "schedule"), "rgb(70,110,205)", "also among work");
        for frame in ["main", "do_nanosleep"] {
            assert_ne!(fill(&waiting, frame), fill(&working, frame), "{frame}");
        }
    }
}
