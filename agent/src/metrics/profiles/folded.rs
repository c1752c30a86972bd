//! Folded text, one line a stack: `label;root;...;leaf_[k] VALUE`, what `flamegraph.pl`, `inferno` and speedscope read.

use super::{Frame, Resolved};
use std::collections::BTreeMap;
use std::fmt::Write;

/// All stacks, sorted, with equal lines summed.
///
/// A line begins with the texts of the metric's labels (usually `comm`), as bpftrace and bcc do it; kernel frames end in
/// `_[k]`, which colours them in flame graphs.
pub fn write(profile: &Resolved) -> String {
    let mut text = String::new();
    for (stack, value) in lines(profile) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{stack} {value}");
    }
    text
}

/// Stacks as text and their sums.
pub(super) fn lines(profile: &Resolved) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &profile.samples {
        let mut stack = String::new();
        for (_, text) in &sample.labels {
            push(&mut stack, text, "");
        }
        for &frame in sample.frames.iter().rev() {
            let Frame { name, kernel, .. } = &profile.frames[frame as usize];
            push(&mut stack, name, if *kernel { "_[k]" } else { "" });
        }
        let sum = sums.entry(stack).or_default();
        *sum = sum.saturating_add(sample.value);
    }
    sums.retain(|_, value| *value > 0);
    sums
}

/// Appends one frame. `;` ends a frame and a line ends a stack, so neither may stand in a name (`[u8; 4]` in Rust does).
fn push(stack: &mut String, name: &str, suffix: &str) {
    if !stack.is_empty() {
        stack.push(';');
    }
    let clean = |c: char| match c {
        ';' => ':',
        c if c.is_control() => ' ',
        c => c,
    };
    match name.trim().is_empty() {
        true => stack.push_str("[none]"),
        false => stack.extend(name.chars().map(clean)),
    }
    stack.push_str(suffix);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::metrics::profiles::{Named, Unit};

    pub(in crate::metrics::profiles) fn frame(name: &str, address: u64, kernel: bool) -> Frame {
        let module = if kernel { "[kernel.kallsyms]" } else { "/usr/bin/app" };
        Frame { name: name.into(), module: Some(module.into()), address, kernel }
    }

    pub(in crate::metrics::profiles) fn profile() -> Resolved {
        let comm = |name: &str| vec![("comm".to_owned(), name.to_owned())];
        let sample =
            |name, pid, frames: &[u32], value| Named { labels: comm(name), pid, frames: frames.to_vec(), value };
        Resolved {
            metric: "offcpu_seconds_stacks".to_owned(),
            node: "node-7".to_owned(),
            unit: Unit::Nanoseconds,
            period_ns: None,
            start_unix_ns: 1_700_000_000_000_000_000,
            duration_ns: 10_000_000_000,
            frames: vec![
                frame("schedule", 0xffff_ffff_8100_0010, true),
                frame("do_nanosleep", 0xffff_ffff_8100_0020, true),
                frame("nap(&[u8; 4])", 0x1010, false),
                frame("main", 0x1020, false),
            ],
            samples: vec![
                sample("app", 10, &[0, 1, 2, 3], 500),
                sample("app", 11, &[0, 1, 2, 3], 70),
                sample("other;x", 12, &[0], 3),
                sample("app", 10, &[3], 0),
            ],
        }
    }

    #[test]
    fn roots_first_kernel_marked_equal_lines_summed() {
        assert_eq!(
            write(&profile()),
            "app;main;nap(&[u8: 4]);do_nanosleep_[k];schedule_[k] 570\nother:x;schedule_[k] 3\n"
        );
    }

    #[test]
    fn nothing_is_no_line() {
        assert_eq!(write(&Resolved::default()), "");
    }

    #[test]
    fn values_stay_the_last_word() {
        let mut odd = profile();
        odd.frames[3].name = "two words\n 17".into();
        odd.samples.truncate(1);
        odd.samples[0].labels[0].1 = "  ".to_owned();
        let text = write(&odd);
        assert_eq!(text, "[none];two words  17;nap(&[u8: 4]);do_nanosleep_[k];schedule_[k] 500\n");
        assert_eq!(text.trim_end().rsplit_once(' ').unwrap().1, "500");
    }
}
