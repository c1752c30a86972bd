//! The tests, in the order in which they run: the first ones put the agent and workloads into the cluster, the last ones kill
//! what they run on.

mod agent;
mod failures;
mod objects;
mod owners;
mod people;

use super::table::{Outcome, Table};
use super::{Cluster, release};
use anyhow::{Result, ensure};
use std::fs;
use std::time::{Duration, Instant};

/// Returns what was seen.
type Run = fn(&mut Cluster) -> Result<String>;

struct Test {
    name: &'static str,
    /// The oldest Kubernetes that can judge it, and why.
    since: Option<((u32, u32), &'static str)>,
    run: Run,
}

const ANY: Option<((u32, u32), &str)> = None;
const CHART: Option<((u32, u32), &str)> = Some((release::SINCE, "the chart and the rules of its definitions"));

/// All of them. Those without which the others mean nothing come first.
const TESTS: [Test; 15] = [
    Test { name: "definitions and objects, by the API server", since: CHART, run: objects::judged },
    Test { name: "the chart is installed", since: CHART, run: agent::installed },
    Test { name: "the chart's objects are applied", since: ANY, run: agent::applied },
    Test { name: "the agent is ready and attached", since: ANY, run: agent::ready },
    Test { name: "labels of all owners", since: ANY, run: owners::labels },
    Test { name: "a new pod has its labels, by a watch", since: ANY, run: owners::watched },
    Test { name: "roles allow what is asked, and no more", since: ANY, run: people::roles },
    Test { name: "people reach the agent through pods/proxy", since: ANY, run: people::proxy },
    Test { name: "kubectl kstrobe", since: ANY, run: people::plugin },
    Test { name: "Capture and Probe objects", since: ANY, run: objects::carried_out },
    Test { name: "the API server is killed and comes back", since: ANY, run: failures::api_server },
    Test { name: "a version that is gone (410)", since: ANY, run: failures::gone },
    Test { name: "the kubelet is killed and comes back", since: ANY, run: failures::kubelet },
    Test { name: "the chart's upgrade, rollback and tests", since: CHART, run: agent::upgraded },
    Test { name: "the chart is uninstalled", since: CHART, run: agent::uninstalled },
];

/// Runs them, or those whose names contain one of the words and those that come first; prints the table and keeps it.
pub fn run(cluster: &mut Cluster, wanted: &[String]) -> Result<()> {
    let mut table = Table::default();
    for (number, test) in TESTS.iter().enumerate() {
        let needed = number < 4 || wanted.is_empty() || wanted.iter().any(|word| test.name.contains(word.as_str()));
        // On versions that Helm installs the chart on, its objects are there already.
        let doubled = test.name == "the chart's objects are applied" && cluster.version >= release::SINCE;
        if !needed || doubled {
            continue;
        }
        if let Some(((major, minor), what)) = test.since.filter(|(since, _)| cluster.version < *since) {
            let why = format!("{what}: Kubernetes {major}.{minor} or newer (--kubernetes-bin)");
            table.add(test.name, Outcome::NotRun(why), Duration::ZERO);
            continue;
        }
        let begin = Instant::now();
        let outcome = match (test.run)(cluster) {
            Ok(seen) => Outcome::Passed(seen),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        table.add(test.name, outcome, begin.elapsed());
    }
    let (major, minor) = cluster.version;
    let text = format!("Kubernetes {major}.{minor}\n\n{}", table.text());
    let file = cluster.folder.join("table.md");
    fs::write(&file, &text)?;
    println!("\n{text}\n{}", file.display());
    ensure!(table.failed() == 0, "{} tests failed", table.failed());
    Ok(())
}
