//! Events as text: what the kernels wrote of the same records.

mod print_fixtures;
mod support;

use kstrobe_ftrace::text::{self, Options, Written};
use kstrobe_ftrace::trace::Trace;
use std::collections::BTreeMap;
use support::{EVENTS, GRAPHS, KERNELS, trace};

/// Kernels since 5.12 write a hash of an address for `%p` (`hash-ptr`); the record has the address. One address has one hash.
#[derive(Default)]
struct Hashes {
    of: BTreeMap<String, String>,
    by: BTreeMap<String, String>,
}

impl Hashes {
    /// Whether a line is the kernel's, but for hashed addresses.
    fn equal(&mut self, ours: &str, kernels: &str) -> bool {
        let words = |line: &'_ str| -> Vec<String> { line.split_inclusive([' ', '=']).map(str::to_owned).collect() };
        let (ours, kernels) = (words(ours), words(kernels));
        ours.len() == kernels.len()
            && ours.iter().zip(&kernels).all(|(ours, kernels)| ours == kernels || self.same(ours, kernels))
    }

    fn same(&mut self, ours: &str, kernels: &str) -> bool {
        // `%pS` adds the size of the function, which a trace does not have.
        let sized = kernels.rsplit_once("/0x").is_some_and(|(place, _)| place == ours && ours.contains("+0x"));
        sized || self.hashed(ours, kernels)
    }

    fn hashed(&mut self, address: &str, hash: &str) -> bool {
        let (address, hash) = (address.trim_end(), hash.trim_end());
        let hexadecimal = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hexadecimal(address) || !hexadecimal(hash) || !address.starts_with("ff") || !hash.starts_with("00000000") {
            return false;
        }
        let of = self.of.entry(address.to_owned()).or_insert_with(|| hash.to_owned());
        let by = self.by.entry(hash.to_owned()).or_insert_with(|| address.to_owned());
        of == hash && by == address
    }
}

fn whole(trace: &Trace, options: Options) -> String {
    let mut out = Vec::new();
    let written = text::write(trace, options, &mut out).unwrap();
    assert_eq!(written, Written { events: written.events, ..Written::default() });
    String::from_utf8(out).unwrap()
}

#[test]
fn events_are_what_the_kernel_wrote() {
    let mut hashed = BTreeMap::new();
    for kernel in KERNELS {
        let mut hashes = Hashes::default();
        for scenario in EVENTS {
            let ours = whole(&trace(kernel, scenario), Options::default());
            let kernels = support::text(kernel, scenario, "trace.txt");
            assert_eq!(ours.lines().count(), kernels.lines().count(), "lines of {scenario} on {kernel}");
            for (number, (ours, kernels)) in ours.lines().zip(kernels.lines()).enumerate() {
                let same = ours == kernels || hashes.equal(ours, kernels);
                assert!(same, "{scenario} on {kernel}, line {}:\n{ours}\n{kernels}", number + 1);
                *hashed.entry((kernel, scenario)).or_insert(0) += usize::from(ours != kernels);
            }
        }
    }
    hashed.retain(|_, lines| *lines > 0);
    // The only lines that differ, and all of them in a hashed address (and `consume_skb` in the size behind `location=`).
    let expected = [
        (("6.1", "events"), 43),
        (("6.1", "stacks"), 5),
        (("6.12", "events"), 48),
        (("6.12", "stacks"), 5),
        (("sid", "events"), 49),
        (("sid", "stacks"), 5),
    ];
    assert_eq!(hashed, BTreeMap::from(expected));
}

#[test]
fn calls_and_events_between_them_are_what_the_kernel_wrote() {
    for kernel in KERNELS {
        for scenario in GRAPHS {
            let trace = trace(kernel, scenario);
            for (file, graph) in [("trace.txt", Default::default()), ("full.txt", text::graph::Options::full())] {
                let ours = whole(&trace, Options { graph, ..Options::default() });
                let kernels = support::text(kernel, scenario, file);
                for (number, (ours, kernels)) in ours.lines().zip(kernels.lines()).enumerate() {
                    assert_eq!(ours, kernels, "{scenario}/{file} on {kernel}, line {}", number + 1);
                }
                assert_eq!(ours.len(), kernels.len());
            }
        }
    }
}

/// Many kinds of events, and stacks of programs and what programs wrote, from a kernel that was told not to hash addresses.
#[test]
fn many_kinds_of_events_are_what_the_kernel_wrote() {
    for (scenario, names) in [("mix", 40), ("user", 10)] {
        let trace = print_fixtures::trace(scenario);
        let mut out = Vec::new();
        let written = text::write(&trace, Options::default(), &mut out).unwrap();
        assert_eq!((written.incomplete, written.unreadable.len()), (0, 0));
        // This kernel does not put the values of enumerators into its formats.
        let left_out = |why: &String| why.starts_with("timer:hrtimer_") && why.ends_with("left out");
        assert!(written.not_understood.iter().all(left_out), "{:?}", written.not_understood);
        let seen = trace.events().map(|event| event.format.unwrap().id).collect::<std::collections::BTreeSet<_>>();
        assert!(seen.len() >= names, "{scenario}: {} kinds of events", seen.len());

        let ours = String::from_utf8(out).unwrap();
        let kernels = print_fixtures::text(&format!("6.18/{scenario}/trace.txt"));
        assert_eq!(ours.lines().count(), kernels.lines().count());
        for (number, (ours, kernels)) in ours.lines().zip(kernels.lines()).enumerate() {
            let words = |line: &str| line.split_inclusive(' ').map(str::to_owned).collect::<Vec<_>>();
            let (ours, kernels) = (words(ours), words(kernels));
            assert_eq!(ours.len(), kernels.len(), "{scenario}, line {}", number + 1);
            for (ours, kernels) in ours.iter().zip(&kernels) {
                let size = kernels.rsplit_once("/0x").is_some_and(|(place, _)| place == ours.trim_end());
                let mode = kernels.starts_with("mode=") && ours.starts_with("mode=0x");
                assert!(ours == kernels || size || mode, "{scenario}, line {}: {ours} {kernels}", number + 1);
            }
        }
    }
}
