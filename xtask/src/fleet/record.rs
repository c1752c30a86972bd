//! Records a node: the agent with its default probes on a busy machine, twice.

use super::node::{delimited, families};
use crate::bench::agent::{Agent, Settings};
use crate::demo::load;
use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use kstrobe_export::message::MetricFamily;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Until caches and buckets of a young agent have filled somewhat.
const WARM: Duration = Duration::from_secs(30);
/// Between the two: a usual scrape interval.
const GAP: Duration = Duration::from_secs(15);
const ACCEPT: &str =
    "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n";
/// Names that the demonstration gives its threads; others are the machine's own business.
const OURS: &str = "shop-";

/// Writes the recording.
pub fn run(agent: &Path, folder: &Path, into: &Path) -> Result<()> {
    let busy = WARM + GAP + Duration::from_secs(5);
    let shop = load::start(&folder.join("files"), busy)?;
    let agent = Agent::start(&Settings { binary: agent.to_owned(), config: None })?;
    std::thread::sleep(WARM);
    let before = agent.ask(ACCEPT)?;
    std::thread::sleep(GAP);
    let after = agent.ask(ACCEPT)?;
    agent.stop()?;
    shop.wait()?;
    let mut names = Names::default();
    let moments = [before, after].map(|bytes| families(&bytes).map(|families| names.replaced(families)));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for moment in moments {
        let bytes = delimited(&moment?);
        let mut length = Vec::new();
        prost::encode_length_delimiter(bytes.len(), &mut length)?;
        encoder.write_all(&length)?;
        encoder.write_all(&bytes)?;
    }
    let packed = encoder.finish()?;
    std::fs::write(into, &packed).with_context(|| format!("writing {}", into.display()))?;
    println!("{}: {} bytes", into.display(), packed.len());
    Ok(())
}

/// Programs of the recorded machine, each with a number instead of its name.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn replaced(&mut self, mut families: Vec<MetricFamily>) -> Vec<MetricFamily> {
        let labels = families.iter_mut().flat_map(|family| &mut family.metric).flat_map(|metric| &mut metric.label);
        for label in labels.filter(|label| label.name == "comm" && !label.value.starts_with(OURS)) {
            let next = format!("program-{}", self.0.len() + 1);
            label.value = self.0.entry(std::mem::take(&mut label.value)).or_insert(next).clone();
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_export::message::{LabelPair, Metric};

    #[test]
    fn a_program_keeps_its_number() {
        let metric = |name: &str, value: &str| Metric {
            label: vec![LabelPair { name: name.into(), value: value.into() }],
            ..Metric::default()
        };
        let moment = |values: &[(&str, &str)]| {
            vec![MetricFamily { metric: values.iter().map(|(n, v)| metric(n, v)).collect(), ..MetricFamily::default() }]
        };
        let mut names = Names::default();
        let first = names.replaced(moment(&[("comm", "payroll"), ("comm", "shop-web"), ("syscall", "read")]));
        assert_eq!(first, moment(&[("comm", "program-1"), ("comm", "shop-web"), ("syscall", "read")]));
        let second = names.replaced(moment(&[("comm", "other"), ("comm", "payroll")]));
        assert_eq!(second, moment(&[("comm", "program-2"), ("comm", "program-1")]));
    }
}
