//! Which histograms a slow event is counted in: the record of an event says so in fields that only the agent sees.

use kstrobe_config::model::{self, MetricKind, Shape, Spanned};
use std::sync::Arc;

use super::outline::PREFIX;

/// A histogram, and which fields of a record say what the event was counted as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    /// Full name of the metric.
    pub family: Arc<str>,
    /// The observation.
    pub value: usize,
    /// Label values in the user's order.
    pub labels: Vec<usize>,
    /// The metric's `where`.
    pub filter: Option<usize>,
}

impl Linked {
    /// Whether it is without effect in records of so many fields.
    pub fn needs(&self, fields: usize) -> bool {
        self.labels.iter().chain(&self.filter).chain([&self.value]).any(|field| *field >= fields)
    }
}

/// Fields of a record: the user's, then those that only links need.
pub(super) struct Fields<'a> {
    /// Name and expression.
    pub all: Vec<(Spanned<String>, &'a Spanned<String>)>,
    pub linked: Vec<Linked>,
}

/// None when the probe has no `slow`. What a step observes may have been said by another step: there are no links of steps.
pub(super) fn fields(probe: &model::Probe) -> Option<Fields<'_>> {
    let slow = probe.slow.as_ref()?;
    let mut fields =
        Fields { all: slow.fields.iter().map(|(name, text)| (name.clone(), text)).collect(), linked: vec![] };
    if matches!(probe.shape, Shape::Steps(_)) {
        return Some(fields);
    }
    for metric in probe.metrics.iter().filter(|metric| matches!(metric.kind, MetricKind::Histogram(_))) {
        let Some(value) = &metric.value else { continue };
        let linked = Linked {
            family: format!("{PREFIX}{}", metric.name.value).into(),
            value: fields.place(value),
            labels: metric.labels.iter().map(|(_, text)| fields.place(text)).collect(),
            filter: metric.filter.as_ref().map(|text| fields.place(text)),
        };
        fields.linked.push(linked);
    }
    Some(fields)
}

impl<'a> Fields<'a> {
    /// The field with this expression, which is a new one when there is none.
    fn place(&mut self, text: &'a Spanned<String>) -> usize {
        let same = |(_, there): &(_, &Spanned<String>)| there.value.trim() == text.value.trim();
        self.all.iter().position(same).unwrap_or_else(|| {
            // No name of a user's has a blank.
            let name = Spanned { value: format!("field {}", self.all.len()), at: text.at.clone() };
            self.all.push((name, text));
            self.all.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_config::model::SourceFile;

    fn probe(text: &str) -> model::Probe {
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
        let fields = fields(&probe).unwrap();
        let texts: Vec<_> = fields.all.iter().map(|(name, text)| (name.value.as_str(), text.value.as_str())).collect();
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
        let link = |family: &str, value, labels: &[usize], filter| Linked {
            family: family.into(),
            value,
            labels: labels.into(),
            filter,
        };
        assert_eq!(
            fields.linked,
            [link("kstrobe_receive_seconds", 1, &[0, 2], None), link("kstrobe_failed_seconds", 3, &[0], Some(4)),]
        );
    }

    #[test]
    fn without_slow_there_is_nothing() {
        assert!(fields(&probe(PROBE.split("slow:").next().unwrap())).is_none());
    }
}
