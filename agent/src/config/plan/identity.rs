//! When two definitions are one and the same probe, so that what runs for the first may go on for the second.

use kstrobe_ebpf::Program;

use super::probe_meta::{Engine, Metric, ProbeMeta};

/// All of a definition that reaches its programs, its maps or its series. Where it stands, what comments say beside it, whether
/// it runs by default and how large its budget is do not.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// Texts are equal wherever they stand.
    program: Program,
    engine: Engine,
    /// With their help texts, which series carry.
    metrics: Vec<Metric>,
}

impl Identity {
    pub(super) fn new(program: Program, meta: &ProbeMeta) -> Identity {
        Identity { program, engine: meta.engine, metrics: meta.metrics.clone() }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::plan::plan;
    use kstrobe_config::model::SourceFile;
    use std::sync::Arc;

    const PROBE: &str = "\
probe: calls
summary: Calls.
at: [syscall:getppid:enter, \"function:do_exit:entry\"]
where: pid > 1
metrics:
  calls_total: { type: counter, labels: { comm: comm } }
  sizes_bytes: { type: histogram, value: pid, help: Sizes., ttl: 5m }
";

    fn same(other: &str) -> bool {
        let identity = |name: &str, text: &str| {
            let file = Arc::new(SourceFile { name: name.into(), text: text.into() });
            let (mut probes, wrong) = kstrobe_config::probes(&[file]);
            assert_eq!(wrong, []);
            plan(probes.remove(0)).identity().clone()
        };
        identity("a.yaml", PROBE) == identity("b.yaml", other)
    }

    #[test]
    fn what_reaches_the_programs_or_the_series_makes_another_probe() {
        let change = |from: &str, to: &str| {
            assert!(PROBE.contains(from), "{from}");
            PROBE.replace(from, to)
        };
        for (from, to, expected) in [
            ("probe: calls", "probe: calls", true),
            ("probe: calls", "# A comment.\n\nprobe:   calls", true),
            ("type: counter, labels: { comm: comm }", "labels: {comm:   comm}, type: counter", true),
            ("summary: Calls.", "summary: Calls.\nenabled: false", true),
            ("summary: Calls.", "summary: Calls.\nbudget_cpu_percent: 1", true),
            // Without a budget its programs have nothing that thins events out.
            ("summary: Calls.", "summary: Calls.\nbudget_cpu_percent: 0", false),
            ("probe: calls", "probe: others", false),
            ("pid > 1", "pid > 2", false),
            ("getppid", "getpid", false),
            ("do_exit:entry", "do_exit:return", false),
            ("labels: { comm: comm }", "labels: { call: comm }", false),
            ("labels: { comm: comm }", "labels: { comm: comm }, max_series: 7", false),
            ("ttl: 5m", "ttl: 6m", false),
            ("Sizes.", "Other sizes.", false),
            // The help of a metric that has none of its own.
            ("summary: Calls.", "summary: Other calls.", false),
            ("summary: Calls.", "summary: Calls.\nengine: auto", false),
            ("summary: Calls.", "summary: Calls.\nmax_map_bytes: 1048576", false),
        ] {
            assert_eq!(same(&change(from, to)), expected, "{from} -> {to}");
        }
    }
}
