//! Forgets where expressions were written, so that equal ones compare equal and are computed once.

use crate::diag::Place;
use crate::typed::{Expr, Kind, Measure, Metric, Probe, Select, Shape, SlowMeasure, StepSite};

/// Places of what a site's measurements are written from, by metric: kept for the kernel's line info.
pub(super) struct Marks {
    /// `where` of the probe.
    pub filter: Place,
    /// `value` of each metric, or its name when it has none.
    pub values: Vec<Place>,
}

/// Marks of each measuring site, in the order of [`super::memory::measurement_sites`].
pub(super) fn marks(probe: &Probe) -> Vec<Marks> {
    let of = |filter: &Option<Expr>, measures: &[Measure]| {
        let written = |(measure, metric): (&Measure, &Metric)| match measure.value.place {
            place if place == Place::default() => metric.place,
            place => place,
        };
        Marks {
            filter: filter.as_ref().map(|f| f.place).unwrap_or_default(),
            values: measures.iter().zip(&probe.metrics).map(written).collect(),
        }
    };
    match &probe.shape {
        Shape::At(sites) => sites.iter().map(|s| of(&s.filter, &s.measures)).collect(),
        Shape::Span { end, .. } => end.iter().map(|s| of(&s.filter, &s.measures)).collect(),
        Shape::Poll { filter, measures, .. } => vec![of(filter, measures)],
        Shape::Steps { sites, .. } => {
            let at = |site: &StepSite, metric: usize| {
                let measure = site.observe.iter().find(|(n, _)| *n as usize == metric).map(|(_, m)| m.value.place);
                measure.filter(|place| *place != Place::default()).unwrap_or(probe.metrics[metric].place)
            };
            let marks = |site: &StepSite| Marks {
                filter: site.conditions().next().map(|f| f.place).unwrap_or_default(),
                values: (0..probe.metrics.len()).map(|metric| at(site, metric)).collect(),
            };
            sites.iter().map(marks).collect()
        }
    }
}

pub(super) fn probe(mut probe: Probe) -> Probe {
    match &mut probe.shape {
        Shape::At(sites) => {
            for s in sites {
                select(&mut s.select);
                s.filter.iter_mut().for_each(expr);
                s.measures.iter_mut().for_each(measure);
                s.slow.iter_mut().for_each(slow);
            }
        }
        Shape::Span { start, end, .. } => {
            for s in start {
                select(&mut s.select);
                s.filter.iter_mut().for_each(expr);
                s.by.iter_mut().for_each(expr);
                s.save.iter_mut().for_each(expr);
            }
            for s in end {
                select(&mut s.select);
                s.filter.iter_mut().for_each(expr);
                s.by.iter_mut().for_each(expr);
                s.measures.iter_mut().for_each(measure);
                s.slow.iter_mut().for_each(slow);
            }
        }
        Shape::Poll { filter, measures, .. } => {
            filter.iter_mut().for_each(expr);
            measures.iter_mut().for_each(measure);
        }
        Shape::Steps { sites, .. } => {
            for s in sites {
                select(&mut s.select);
                let conditions = s.filter.iter_mut().chain(&mut s.state_filter).chain(&mut s.measured);
                conditions.chain(&mut s.by).for_each(expr);
                s.set.iter_mut().for_each(|(_, e)| expr(e));
                s.observe.iter_mut().for_each(|(_, m)| measure(m));
                s.slow.iter_mut().for_each(slow);
            }
        }
    }
    probe
}

fn select(s: &mut Select) {
    if let Select::OneOf(e, _) | Select::NotNull(e) = s {
        expr(e);
    }
}

fn slow(s: &mut SlowMeasure) {
    expr(&mut s.when);
    s.fields.iter_mut().for_each(expr);
}

fn measure(m: &mut Measure) {
    m.filter.iter_mut().for_each(expr);
    expr(&mut m.value);
    m.labels.iter_mut().for_each(expr);
}

fn expr(e: &mut Expr) {
    e.place = Place::default();
    // Whether a value counts nanoseconds matters to `check` only.
    e.duration = false;
    match &mut e.kind {
        Kind::Const(_)
        | Kind::Str(_)
        | Kind::Now
        | Kind::Pid
        | Kind::Tid
        | Kind::Uid
        | Kind::Gid
        | Kind::Comm
        | Kind::Cgroup
        | Kind::Cpu
        | Kind::Task
        | Kind::Arg { .. }
        | Kind::Field { .. }
        | Kind::DataLoc { .. }
        | Kind::Saved(_)
        | Kind::State(_)
        | Kind::KernelStack
        | Kind::UserStack
        | Kind::Elapsed
        | Kind::OffCpu
        | Kind::OnCpu => {}
        Kind::Load { base: a, .. }
        | Kind::Offset { base: a, .. }
        | Kind::StrAt(a)
        | Kind::FdFile(a)
        | Kind::FdSock(a)
        | Kind::Unary(_, a)
        | Kind::Not(a)
        | Kind::Convert(a)
        | Kind::Swap(a)
        | Kind::Log2(a)
        | Kind::StrEq(a, _)
        | Kind::OneOf(a, _)
        | Kind::Selected(a, _) => expr(a),
        Kind::Element { base: a, index: b, .. }
        | Kind::Arith(_, a, b)
        | Kind::Cmp(_, a, b)
        | Kind::And(a, b)
        | Kind::Or(a, b) => {
            expr(a);
            expr(b);
        }
        Kind::Cond(a, b, c) => {
            expr(a);
            expr(b);
            expr(c);
        }
    }
}
