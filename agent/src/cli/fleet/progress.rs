//! How far each node is: lines that change on a terminal, and lines that follow one another elsewhere.

use kstrobe_fleet::node_session::Stage;
use kstrobe_fleet::run::NodeProgress;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Stderr, Write};
use std::time::Instant;

use crate::cli::terminal::LiveLines;

/// Nodes that have a line of their own; of the others the number at each stage is shown.
const MAX_LINES: usize = 20;

/// What was shown.
pub struct Progress {
    terminal: bool,
    begun: Instant,
    live: LiveLines<Stderr>,
    stages: BTreeMap<String, Stage>,
}

impl Progress {
    /// On standard error.
    pub fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { terminal, begun: Instant::now(), live: LiveLines::of(std::io::stderr()), stages: BTreeMap::new() }
    }

    /// Shows how all nodes stand.
    pub fn show(&mut self, nodes: &[NodeProgress]) {
        let seconds = self.begun.elapsed().as_secs();
        if self.terminal && !self.live.is_in_background() {
            let lines = lines(nodes, seconds);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let text = self.live.replace(&lines);
            self.write(&text);
            return;
        }
        // What was drawn before the shell put it into the background stays.
        self.live.clear();
        for node in nodes {
            if self.stages.insert(node.node.clone(), node.stage) != Some(node.stage) {
                self.write(&format!("{seconds:>4}s  {}\n", line(node)));
            }
        }
    }

    /// Shows it for the last time, on a terminal with the lines that had no room.
    pub fn end(&mut self, nodes: &[NodeProgress]) {
        if !self.terminal {
            return self.show(nodes);
        }
        let lines = lines(nodes, self.begun.elapsed().as_secs());
        self.say(&lines.join("\n"));
    }

    /// Says something in between.
    pub fn say(&mut self, text: &str) {
        let text = self.live.clear() + text + "\n";
        self.write(&text);
    }

    fn write(&self, text: &str) {
        // The reader is gone: progress is dropped.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

fn lines(nodes: &[NodeProgress], seconds: u64) -> Vec<String> {
    let mut lines: Vec<String> = nodes.iter().take(MAX_LINES).map(line).collect();
    if nodes.len() > MAX_LINES {
        lines.push(format!("and {} more: {}", nodes.len() - MAX_LINES, sums(&nodes[MAX_LINES..])));
    }
    lines.push(format!("{seconds}s  {}", sums(nodes)));
    lines
}

fn sums(nodes: &[NodeProgress]) -> String {
    let mut stages: BTreeMap<Stage, usize> = BTreeMap::new();
    nodes.iter().for_each(|node| *stages.entry(node.stage).or_default() += 1);
    stages.iter().map(|(stage, n)| format!("{n} {}", stage.name())).collect::<Vec<_>>().join(", ")
}

fn line(node: &NodeProgress) -> String {
    let name = if node.node.is_empty() { "-" } else { &node.node };
    let head = format!("{name}  {}", node.stage.name());
    match node.stage {
        Stage::Failed => format!("{head}: {}", node.reason),
        // What is tried again.
        _ if !node.reason.is_empty() => format!("{head} ({})", node.reason),
        Stage::Recorded | Stage::Downloaded => {
            let mib = node.bytes as f64 / f64::from(1 << 20);
            format!("{head}  {} records, {mib:.1} MiB", node.records)
        }
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(node: &str, stage: Stage, reason: &str) -> NodeProgress {
        NodeProgress { node: node.into(), stage, bytes: 3 << 20, records: 7, reason: reason.into() }
    }

    #[test]
    fn a_line_for_each_of_the_first_nodes() {
        assert_eq!(line(&seen("n1", Stage::Downloaded, "")), "n1  done  7 records, 3.0 MiB");
        assert_eq!(line(&seen("n1", Stage::Failed, "no answer")), "n1  failed: no answer");
        assert_eq!(line(&seen("n1", Stage::Recording, "502")), "n1  recording (502)");
        let mut nodes = vec![seen("n", Stage::Recording, ""); 25];
        nodes[24].stage = Stage::Failed;
        let lines = lines(&nodes, 4);
        assert_eq!(lines.len(), MAX_LINES + 2);
        assert_eq!(lines[MAX_LINES..], ["and 5 more: 4 recording, 1 failed", "4s  24 recording, 1 failed"]);
    }
}
