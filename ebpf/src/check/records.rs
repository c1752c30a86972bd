//! What of a probe an ftrace session cannot know: it has the records of events, and no more.

use super::walk;
use crate::diag::Diagnostic;
use crate::typed::{EndSite, Expr, Kind, Measure, MetricKind, Probe, Shape};

/// Every value that no record holds, once a place.
pub(super) fn beyond(probe: &Probe) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for metric in probe.metrics.iter().filter(|m| matches!(m.kind, MetricKind::Stacks(_))) {
        let message = "call stacks are not summed by `engine: ftrace`";
        found.push(Diagnostic::target(metric.place, message).hint("use `engine: bpf`"));
    }
    if let Some(slow) = &probe.slow {
        let message = "single events are not sent by `engine: ftrace`";
        found.push(Diagnostic::target(slow.place, message).hint("`kstrobe capture` records them"));
    }
    let mut look = |expr: &Expr| {
        if let Some((what, place)) = reads(expr) {
            let message = format!("the records of an ftrace session do not hold {what}");
            found.push(Diagnostic::target(place, message).hint("use what `args` has, or `engine: bpf`"));
        }
    };
    let measure = |m: &Measure, look: &mut dyn FnMut(&Expr)| {
        m.filter.iter().chain([&m.value]).chain(&m.labels).for_each(look);
    };
    match &probe.shape {
        Shape::At(sites) => {
            for site in sites {
                site.filter.iter().for_each(&mut look);
                site.measures.iter().flatten().for_each(|m| measure(m, &mut look));
            }
        }
        Shape::Span { start, end, .. } => {
            for site in start {
                site.filter.iter().chain(&site.by).chain(&site.save).for_each(&mut look);
            }
            for EndSite { before, filter, by, measures, .. } in end {
                before.iter().chain(filter).chain(by).for_each(&mut look);
                measures.iter().flatten().for_each(|m| measure(m, &mut look));
            }
        }
        Shape::Steps { sites, .. } => {
            for site in sites {
                site.conditions().chain(&site.by).for_each(&mut look);
                site.set.iter().for_each(|(_, expr)| look(expr));
                site.observe.iter().for_each(|(_, m)| measure(m, &mut look));
            }
        }
        Shape::Poll { .. } => {}
    }
    found.dedup();
    found
}

/// The first value of an expression that is read from memory or from a task.
fn reads(expr: &Expr) -> Option<(&'static str, crate::diag::Place)> {
    let what = match &expr.kind {
        Kind::Load { .. } | Kind::StrAt(_) | Kind::FdFile(_) | Kind::FdSock(_) => Some("what a pointer points to"),
        Kind::Task => Some("`task`"),
        Kind::Uid => Some("`uid`"),
        Kind::Gid => Some("`gid`"),
        Kind::Cgroup => Some("`cgroup`"),
        Kind::KernelStack | Kind::UserStack => Some("call stacks"),
        Kind::Selected(..) => Some("whose events they are"),
        _ => None,
    };
    match what {
        Some(what) => Some((what, expr.place)),
        None => walk::children(expr).into_iter().find_map(reads),
    }
}
