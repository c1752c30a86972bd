//! The series that a receiver has, each of which gets a stale marker when it ends.

use crate::snapshot::{Descriptor, Family, LabelTexts, Series, Snapshot, Values};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Most series remembered besides those of the last report: reports that arrived in part add up until one arrives whole.
const MAX_SERIES: usize = 1 << 20;

/// Series that were sent, without their values.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    families: HashMap<String, SeenFamily>,
    series: usize,
}

#[derive(Clone, Debug)]
struct SeenFamily {
    about: Arc<Descriptor>,
    columns: Arc<[u32]>,
    labels: HashSet<LabelTexts>,
}

/// Series of one family that are gone.
#[derive(Clone, Debug)]
pub struct Gone {
    /// Its values mean nothing.
    pub family: Family,
}

impl Seen {
    /// The series of one snapshot.
    pub fn of(snapshot: &Snapshot) -> Seen {
        let mut seen = Seen::default();
        for family in &snapshot.families {
            let labels: HashSet<_> = family.series.iter().map(|series| series.labels.clone()).collect();
            let (about, columns) = (family.about.clone(), family.columns.clone());
            seen.series += labels.len();
            seen.families.insert(about.name.clone(), SeenFamily { about, columns, labels });
        }
        seen
    }

    /// These series too. Beyond a million the oldest are forgotten: a receiver then ends them after five minutes itself.
    pub fn and(&mut self, newer: Seen) {
        if self.series + newer.series > MAX_SERIES {
            *self = newer;
            return;
        }
        for (name, family) in newer.families {
            let there =
                self.families.entry(name).or_insert_with(|| SeenFamily { labels: HashSet::new(), ..family.clone() });
            if same(there, &family.about, &family.columns) {
                there.labels.extend(family.labels);
            } else {
                *there = family;
            }
        }
        self.series = self.families.values().map(|family| family.labels.len()).sum();
    }

    /// Series that are not in the snapshot, in a stable order. A receiver knows a series by names and values of labels, in
    /// whatever order they were.
    pub fn gone(&self, snapshot: &Snapshot) -> Vec<Gone> {
        let now: HashMap<&str, &Family> = snapshot.families.iter().map(|f| (f.about.name.as_str(), f)).collect();
        let mut names: Vec<&String> = self.families.keys().collect();
        names.sort();
        let gone = names.into_iter().filter_map(|name| {
            let family = &self.families[name];
            let mut labels: Vec<&LabelTexts> = match now.get(name.as_str()) {
                Some(now) if same(family, &now.about, &now.columns) => {
                    let live: HashSet<&LabelTexts> = now.series.iter().map(|series| &series.labels).collect();
                    family.labels.iter().filter(|labels| !live.contains(labels)).collect()
                }
                Some(now) => {
                    let named = |labels| named(&now.about, &now.columns, labels);
                    let live: HashSet<_> = now.series.iter().map(|series| named(&series.labels)).collect();
                    family.labels.iter().filter(|labels| !live.contains(&family.named(labels))).collect()
                }
                None => family.labels.iter().collect(),
            };
            labels.sort();
            (!labels.is_empty()).then(|| family.gone(&labels))
        });
        gone.collect()
    }
}

/// Names and values of labels in the order of names, without empty ones, which are none to a receiver.
fn named<'a>(about: &'a Descriptor, columns: &[u32], labels: &'a LabelTexts) -> Vec<(&'a str, &'a str)> {
    let texts = columns.iter().map(|column| labels.get(*column as usize).map_or("", |text| text));
    let named = about.label_names.iter().map(String::as_str).zip(texts);
    let mut named: Vec<_> = named.filter(|(_, text)| !text.is_empty()).collect();
    named.sort_unstable();
    named
}

/// Whether label texts of both can be compared as they are.
fn same(family: &SeenFamily, about: &Arc<Descriptor>, columns: &Arc<[u32]>) -> bool {
    let known = &family.about;
    (known.kind, &known.label_names, &*family.columns) == (about.kind, &about.label_names, &**columns)
}

impl SeenFamily {
    fn named<'a>(&'a self, labels: &'a LabelTexts) -> Vec<(&'a str, &'a str)> {
        named(&self.about, &self.columns, labels)
    }

    fn gone(&self, labels: &[&LabelTexts]) -> Gone {
        let series = labels.iter().map(|labels| Series { labels: (*labels).clone(), created: None }).collect();
        let values = Values::Counters(Vec::new());
        Gone { family: Family { about: self.about.clone(), columns: self.columns.clone(), series, values } }
    }
}
