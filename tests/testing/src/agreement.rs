//! What another tool said of the same load in the same run, for docs/agreement.md.

use serde_json::{Value, json};
use std::io::Write;

/// The variable that names the file to which tests append what they compared, a JSON object a line.
pub const AGREEMENT_FILE: &str = "KSTROBE_AGREEMENT_FILE";

/// One number of a probe beside that of another tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    pub probe: String,
    /// The metric without its prefix.
    pub metric: String,
    /// A program, or the path of a file of procfs or sysfs.
    pub tool: String,
    pub ours: f64,
    /// The least and the most: what happened while we read is in ours or not.
    pub theirs: (f64, f64),
    /// Bounds of a histogram at which both tools had as many values; 0 of a plain number.
    pub bounds: usize,
}

impl Agreement {
    /// Two plain numbers.
    pub fn new(probe: &str, metric: &str, tool: &str, ours: f64, theirs: f64) -> Agreement {
        let [probe, metric, tool] = [probe, metric, tool].map(str::to_owned);
        Agreement { probe, metric, tool, ours, theirs: (theirs, theirs), bounds: 0 }
    }

    /// Appends it to the file that [`AGREEMENT_FILE`] names, if there is one.
    #[track_caller]
    pub fn record(&self) {
        let Some(path) = std::env::var_os(AGREEMENT_FILE) else { return };
        let Agreement { probe, metric, tool, ours, theirs, bounds } = self;
        let line = json!({
            "probe": probe, "metric": metric, "tool": tool, "ours": ours, "least": theirs.0, "most": theirs.1, "bounds": bounds
        });
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// What [`record`](Self::record) wrote.
    #[track_caller]
    pub fn parse(line: &str) -> Agreement {
        let value: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| value[name].as_str().expect("a text").to_owned();
        let number = |name: &str| value[name].as_f64().expect("a number");
        Agreement {
            probe: text("probe"),
            metric: text("metric"),
            tool: text("tool"),
            ours: number("ours"),
            theirs: (number("least"), number("most")),
            bounds: number("bounds") as usize,
        }
    }
}
