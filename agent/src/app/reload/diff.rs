//! Compares the running probes with a new set of definitions.

use crate::config::plan::Identity;
use std::collections::HashMap;

/// A probe of the old configuration.
pub(super) struct Old<'a> {
    pub name: &'a str,
    pub identity: &'a Identity,
    /// Whether it measures, or waits for what it measures. One that failed to start is tried again.
    pub runs: bool,
}

/// A probe of the new configuration.
pub(super) struct New<'a> {
    pub name: &'a str,
    pub identity: &'a Identity,
}

/// Where a new probe comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The old one at this place goes on.
    Keep(usize),
    /// It is begun anew, and then the old one at this place is ended.
    Replace(usize),
    /// There was none of its name.
    Start,
}

impl Step {
    /// Place of the old probe of its name.
    pub fn old(&self) -> Option<usize> {
        match self {
            Step::Keep(at) | Step::Replace(at) => Some(*at),
            Step::Start => None,
        }
    }
}

/// One step for each new probe, in their order, and the places of old ones that end with nothing in their stead.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub ends: Vec<usize>,
}

/// Names are unique among the old as among the new.
pub(super) fn diff(old: &[Old], new: &[New]) -> Plan {
    let places: HashMap<&str, usize> = old.iter().enumerate().map(|(at, old)| (old.name, at)).collect();
    let mut gone = vec![true; old.len()];
    let step = |new: &New| match places.get(new.name) {
        None => Step::Start,
        Some(&at) => {
            gone[at] = false;
            match old[at].runs && old[at].identity == new.identity {
                true => Step::Keep(at),
                false => Step::Replace(at),
            }
        }
    };
    let steps = new.iter().map(step).collect();
    let ends = gone.iter().enumerate().filter(|(_, gone)| **gone).map(|(at, _)| at).collect();
    Plan { steps, ends }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::files::SourceFile;
    use crate::config::plan::plan;
    use std::sync::Arc;

    /// `a b2 !c`: probes by name, each with a version (1 when none is said); `!` marks one that does not run.
    fn probes(text: &str) -> Vec<(String, Arc<Identity>, bool)> {
        let one = |word: &str| {
            let (runs, word) = word.strip_prefix('!').map_or((true, word), |rest| (false, rest));
            let name = word.trim_end_matches(char::is_numeric);
            let version = word[name.len()..].parse().unwrap_or(1);
            let text = format!(
                "probe: {name}\nsummary: One.\nat: rawtracepoint:sched_switch\nwhere: pid > {version}\n\
                 metrics: {{ {name}_total: {{ type: counter }} }}\n"
            );
            let file = Arc::new(SourceFile { name: "probes.yaml".into(), text });
            let (mut probes, wrong) = crate::config::files::check_probes(&[file]);
            assert_eq!(wrong, []);
            (name.to_owned(), plan(probes.remove(0)).identity().clone(), runs)
        };
        text.split_whitespace().map(one).collect()
    }

    fn shown(old: &str, new: &str) -> String {
        let (old, new) = (probes(old), probes(new));
        let olds: Vec<Old> = old.iter().map(|(name, identity, runs)| Old { name, identity, runs: *runs }).collect();
        let news: Vec<New> = new.iter().map(|(name, identity, _)| New { name, identity }).collect();
        let Plan { steps, ends } = diff(&olds, &news);
        let step = |(step, (name, ..)): (&Step, &(String, _, _))| match step {
            Step::Keep(at) => format!("{name} keeps {}", old[*at].0),
            Step::Replace(at) => format!("{name} replaces {}", old[*at].0),
            Step::Start => format!("{name} starts"),
        };
        let steps = steps.iter().zip(&new).map(step);
        let ends = ends.iter().map(|at| format!("{} ends", old[*at].0));
        steps.chain(ends).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn steps() {
        for (old, new, expected) in [
            ("", "", ""),
            ("", "a b", "a starts, b starts"),
            ("a b", "", "a ends, b ends"),
            ("a b", "a b", "a keeps a, b keeps b"),
            ("a b", "b a", "b keeps b, a keeps a"),
            ("a b", "a b2", "a keeps a, b replaces b"),
            ("a b2", "a b", "a keeps a, b replaces b"),
            ("a b c", "d b2 a", "d starts, b replaces b, a keeps a, c ends"),
            ("!a b", "a b", "a replaces a, b keeps b"),
            ("!a", "a2", "a replaces a"),
            ("!a", "", "a ends"),
        ] {
            assert_eq!(shown(old, new), expected, "{old} -> {new}");
        }
    }
}
