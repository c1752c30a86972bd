//! A dashboard of a topic: a row for each of its probes.

use super::generic;
use crate::catalogue::Catalogue;
use crate::dashboard::{Dashboard, Row};
use crate::promql::Form;
use crate::topics::Topic;

pub(super) fn board(topic: &Topic, catalogue: &Catalogue, form: Form) -> Dashboard {
    let rows = topic.probes(catalogue).into_iter().map(|probe| Row {
        title: probe.name.clone(),
        collapsed: false,
        panels: probe.metrics.iter().flat_map(|metric| generic(metric, form)).collect(),
    });
    Dashboard {
        uid: format!("kstrobe-{}", topic.id),
        title: topic.title.to_owned(),
        about: topic.about.to_owned(),
        rows: rows.collect(),
    }
}
