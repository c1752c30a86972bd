//! Which histograms a slow event is counted in: the record of an event says so in fields that only the agent sees.

use kstrobe_config::model::{MetricKind, Program, Shape, Slow, Spanned, SpannedStr};
use std::sync::Arc;

use super::probe_meta::PREFIX;

/// A histogram, and which fields of a record say what the event was counted as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExemplarLink {
    /// Full name of the metric.
    pub family: Arc<str>,
    /// The observation.
    pub value: usize,
    /// Label values in the user's order.
    pub labels: Vec<usize>,
    /// The metric's `where`.
    pub filter: Option<usize>,
}

impl ExemplarLink {
    /// Whether it is without effect in records of so many fields.
    pub fn needs(&self, fields: usize) -> bool {
        self.labels.iter().chain(&self.filter).chain([&self.value]).any(|field| *field >= fields)
    }
}

/// Histograms that events are counted in, and the fields that a record needs for them behind those of the user.
#[derive(Default)]
pub(super) struct Links {
    pub fields: Vec<(SpannedStr, SpannedStr)>,
    pub exemplars: Vec<ExemplarLink>,
}

/// None without `slow:`. Neither do steps have any, as what one step observes may have been said by another.
pub(super) fn links(program: &Program) -> Links {
    let mut links = Links::default();
    let Some(slow) = program.slow.as_ref().filter(|_| !matches!(program.shape, Shape::Steps(_))) else { return links };
    for metric in program.metrics.iter().filter(|metric| matches!(metric.kind, MetricKind::Histogram(_))) {
        let Some(value) = &metric.value else { continue };
        let link = ExemplarLink {
            family: format!("{PREFIX}{}", metric.name.value).into(),
            value: links.field(slow, value),
            labels: metric.labels.iter().map(|label| links.field(slow, &label.value)).collect(),
            filter: metric.filter.as_ref().map(|text| links.field(slow, text)),
        };
        links.exemplars.push(link);
    }
    links
}

impl Links {
    /// The field with this expression, which is a new one when there is none.
    fn field(&mut self, slow: &Slow, text: &SpannedStr) -> usize {
        let mut all = slow.fields.iter().chain(&self.fields);
        let known = all.position(|(_, known)| known.value.trim() == text.value.trim());
        known.unwrap_or_else(|| {
            let index = slow.fields.len() + self.fields.len();
            // No name of a user's has a blank.
            self.fields.push((Spanned::new(format!("field {index}"), text.at.clone()), text.clone()));
            index
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_config::model::{Probe, SourceFile};

    fn probe(text: &str) -> Probe {
        let file = Arc::new(SourceFile { name: "p.yaml".into(), text: text.into() });
        let (mut probes, wrong) = kstrobe_config::probes(&[file]);
        assert_eq!(wrong, []);
        probes.remove(0)
    }

    const PROBE: &str = "\
probe: receives
summary: Receives.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit' }
metrics:
  receives_total: { type: counter, labels: { gid: gid } }
  receive_seconds: { type: histogram, value: elapsed, labels: { comm: comm, call: syscall } }
  failed_seconds: { type: histogram, value: elapsed.off_cpu, where: retval < 0, labels: { comm: comm } }
slow: { when: elapsed > 1ms, fields: { who: comm, took: elapsed } }
";

    #[test]
    fn a_record_has_what_every_histogram_needs_once() {
        let probe = probe(PROBE);
        let links = links(&probe.program);
        let shown = &probe.program.slow.as_ref().unwrap().fields;
        let texts: Vec<_> =
            shown.iter().chain(&links.fields).map(|(name, text)| (name.value.as_str(), text.value.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("who", "comm"),
                ("took", "elapsed"),
                ("field 2", "syscall"),
                ("field 3", "elapsed.off_cpu"),
                ("field 4", "retval < 0")
            ]
        );
        let link = |family: &str, value, labels: &[usize], filter| ExemplarLink {
            family: family.into(),
            value,
            labels: labels.into(),
            filter,
        };
        assert_eq!(
            links.exemplars,
            [link("kstrobe_receive_seconds", 1, &[0, 2], None), link("kstrobe_failed_seconds", 3, &[0], Some(4)),]
        );
    }

    #[test]
    fn without_slow_there_is_nothing() {
        let links = links(&probe(PROBE.split("slow:").next().unwrap()).program);
        assert!(links.fields.is_empty() && links.exemplars.is_empty());
    }
}
