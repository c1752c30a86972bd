//! Single events as exemplars of histograms: of each series the newest event in each small range of values.

use super::record::Field;
use crate::config::plan::ExemplarLink;
use kstrobe_export::snapshot::{Descriptor, Exemplar, LabelTexts, Link};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

/// Exemplars that are kept; the oldest go.
const MAX_KEPT: usize = 1024;
/// Ranges of values for a factor of two: finer than classic bounds are in practice.
const RANGES_OF_TWO: f64 = 4.0;

/// What an event was counted as.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Full name of the metric.
    pub family: Arc<str>,
    /// Label values in the user's order.
    pub labels: Vec<Arc<str>>,
    /// The observation, in the exported unit.
    pub value: f64,
}

/// The histograms that an event was counted in, from the fields of its record.
pub fn observed(linked: &[ExemplarLink], fields: &[Field]) -> Vec<Observed> {
    let value = |at: usize| match fields.get(at) {
        Some(Field::Value(value)) => Some(value),
        _ => None,
    };
    let one = |linked: &ExemplarLink| {
        if linked.filter.is_some_and(|at| value(at) != Some(&Value::Bool(true))) {
            return None;
        }
        let labels = linked.labels.iter().map(|at| value(*at).map(text)).collect::<Option<_>>()?;
        Some(Observed { family: linked.family.clone(), labels, value: value(linked.value)?.as_f64()? })
    };
    linked.iter().filter_map(one).collect()
}

/// As a label has it.
fn text(value: &Value) -> Arc<str> {
    match value {
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

/// One range of values of one series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    family: Arc<str>,
    labels: Vec<Arc<str>>,
    range: i32,
}

#[derive(Clone, Debug)]
struct Kept {
    id: String,
    value: f64,
    at: SystemTime,
    number: u64,
}

/// The newest events by where they were counted.
#[derive(Debug, Default)]
pub struct Exemplars {
    kept: HashMap<Place, Kept>,
    /// The same by when they came.
    order: BTreeMap<u64, Place>,
    next: u64,
}

impl Exemplars {
    /// An event was counted as this.
    pub fn add(&mut self, observed: Observed, id: &str, at: SystemTime) {
        let Observed { family, labels, value } = observed;
        // Of nothing the logarithm is the lowest range.
        let range = (value.log2() * RANGES_OF_TWO).floor() as i32;
        let place = Place { family, labels, range };
        let number = self.next;
        self.next += 1;
        self.order.insert(number, place.clone());
        let kept = Kept { id: id.to_owned(), value, at, number };
        if let Some(old) = self.kept.insert(place, kept) {
            self.order.remove(&old.number);
        } else if self.kept.len() > MAX_KEPT
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.kept.remove(&oldest);
        }
    }

    /// Those of families with these names and these columns of labels, the oldest first.
    pub fn of<'f>(&self, families: impl IntoIterator<Item = (&'f Descriptor, &'f [u32])>) -> Vec<Exemplar> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let by_name: HashMap<&str, &[u32]> =
            families.into_iter().map(|(about, columns)| (about.name.as_str(), columns)).collect();
        let in_order = self.order.values().filter_map(|place| Some((place, self.kept.get(place)?)));
        let exemplar = |(place, kept): (&Place, &Kept)| {
            let labels = in_key_order(by_name.get(&*place.family)?, &place.labels)?;
            let (family, link) = (place.family.to_string(), Link::Event(kept.id.clone()));
            Some(Exemplar { family, labels, link, value: kept.value, at: kept.at })
        };
        in_order.filter_map(exemplar).collect()
    }
}

/// Labels in the user's order as series have them; `None` when the metric has others by now.
fn in_key_order(columns: &[u32], labels: &[Arc<str>]) -> Option<LabelTexts> {
    if columns.len() != labels.len() {
        return None;
    }
    let mut texts = vec![None; labels.len()];
    for (column, label) in columns.iter().zip(labels) {
        *texts.get_mut(*column as usize)? = Some(label.clone());
    }
    texts.into_iter().collect::<Option<Vec<_>>>().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_export::snapshot::Kind;
    use std::time::{Duration, UNIX_EPOCH};

    fn linked(filter: Option<usize>) -> ExemplarLink {
        ExemplarLink { family: "kstrobe_x_seconds".into(), value: 2, labels: vec![1, 0], filter }
    }

    fn about() -> Descriptor {
        Descriptor {
            name: "kstrobe_x_seconds".into(),
            help: String::new(),
            kind: Kind::Histogram,
            unit: "seconds".into(),
            raw_per_unit: 1,
            label_names: vec!["a".into(), "b".into()],
        }
    }

    fn seen(label: &str, value: f64) -> Observed {
        Observed { family: "kstrobe_x_seconds".into(), labels: vec![label.into(), "y".into()], value }
    }

    #[test]
    fn fields_say_what_an_event_was_counted_as() {
        let values = [Value::from("nginx"), 7.into(), 0.25.into(), true.into(), false.into()];
        let fields: Vec<Field> = values.into_iter().map(Field::Value).collect();
        let expected =
            Observed { family: "kstrobe_x_seconds".into(), labels: vec!["7".into(), "nginx".into()], value: 0.25 };
        assert_eq!(observed(&[linked(None)], &fields), std::slice::from_ref(&expected));
        assert_eq!(observed(&[linked(Some(3))], &fields), [expected]);
        assert_eq!(observed(&[linked(Some(4))], &fields), [], "the metric's `where` did not hold");
        assert_eq!(observed(&[linked(None)], &fields[..2]), [], "no room for the value");
        assert_eq!(observed(&[linked(None)], &[]), []);
    }

    #[test]
    fn the_newest_of_each_range_of_each_series_is_kept_with_labels_as_series_have_them() {
        let mut exemplars = Exemplars::default();
        for (nth, (label, value)) in
            [("p", 0.010), ("p", 0.0101), ("q", 0.010), ("p", 0.5), ("p", 0.0)].into_iter().enumerate()
        {
            exemplars.add(seen(label, value), &format!("{nth}"), UNIX_EPOCH + Duration::from_secs(nth as u64));
        }
        let found = exemplars.of([(&about(), [1, 0].as_slice())]);
        let ids: Vec<_> = found.iter().map(|e| e.link.label().1).collect();
        assert_eq!(ids, ["1", "2", "3", "4"]);
        assert_eq!(found[0].labels.iter().map(|label| &**label).collect::<Vec<_>>(), ["y", "p"]);
        assert_eq!(exemplars.of([(&about(), [0].as_slice())]), [], "the metric has other labels by now");
        assert_eq!(exemplars.of([]), []);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go() {
        let mut exemplars = Exemplars::default();
        for nth in 0..MAX_KEPT + 5 {
            exemplars.add(seen(&format!("{nth}"), 1.0), "x", UNIX_EPOCH);
        }
        exemplars.add(seen("5", 1.0), "again", UNIX_EPOCH);
        let found = exemplars.of([(&about(), [0, 1].as_slice())]);
        assert_eq!((found.len(), exemplars.order.len()), (MAX_KEPT, MAX_KEPT));
        assert_eq!((&*found[0].labels[0], found[MAX_KEPT - 1].link.label().1), ("6", "again"));
    }
}
