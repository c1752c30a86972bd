//! A dashboard of a topic: a row for each metric of its probes.

use super::generic;
use crate::catalogue::Catalogue;
use crate::dashboard::{Dashboard, Row};
use crate::topics::Topic;

pub(super) fn board(topic: &Topic, catalogue: &Catalogue) -> Dashboard {
    let probes = topic.probes(catalogue);
    // What does not run by default has a row that asks nothing until it is opened.
    let rows = probes.iter().flat_map(|probe| {
        probe.metrics.iter().filter_map(|metric| {
            let row = generic(metric, !probe.enabled)?;
            Some(Row { title: format!("{} ({})", row.title, probe.name), ..row })
        })
    });
    Dashboard {
        uid: format!("kstrobe-{}", topic.id),
        title: topic.title.to_owned(),
        about: topic.about.to_owned(),
        rows: rows.collect(),
    }
}
