//! Which probe answers what a classic tool (`runqlat`, `biosnoop`) was asked.

use crate::model::Probe;

/// Ends that packages and projects give a tool's name: Debian's of BCC and of perf-tools, scripts of BCC and of bpftrace.
pub(crate) const TOOL_SUFFIXES: [&str; 4] = ["-bpfcc", "-perf", ".py", ".bt"];

/// The probes that answer what the tool `name` is asked, by their `replaces:`, in the order of `probes`. `runqlat-bpfcc` and
/// `runqlat.bt` are `runqlat`.
pub fn probes_replacing<'a>(name: &str, probes: &'a [Probe]) -> Vec<&'a Probe> {
    let name = name.to_ascii_lowercase();
    let tool = TOOL_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    probes.iter().filter(|probe| probe.replaces.iter().any(|replaced| replaced == tool)).collect()
}
