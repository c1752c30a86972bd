//! How probes stand, as `/api/v1/probes` lists them and the status of `Probe` objects says.

use serde::Serialize;
use std::collections::BTreeMap;

/// What was asked of the agent, as `/api/v1/probes` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    pub node: NodeStatus,
    /// Every enabled probe.
    pub probes: Vec<ProbeStatus>,
    /// Mistakes in files, each on a line: what stands there is no probe, so none of the others can tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<String>,
    /// Why the last reload was refused, if it was: what ran before runs on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Why the history is not written to disk; empty when it is, or should not be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub history: String,
}

/// The machine, and how much of it probes may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    pub name: String,
    /// Release of the kernel.
    pub kernel: String,
    /// CPUs that are online.
    pub cpus: usize,
    /// Budget of all probes without one of their own, in millionths of one CPU's time; absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ppm: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProbeStatus {
    pub name: String,
    /// One sentence.
    pub summary: String,
    /// Whether all of it is attached.
    pub attached: bool,
    /// Why not, empty when it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What its overhead budget holds back, and why; empty when nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub throttled: String,
    /// What its programs took in the last second, in millionths of one CPU's time; absent before the first measurement, and while none
    /// of its programs runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ppm: Option<u64>,
    /// One of so many events is sampled and counts for all of them; absent while each event is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_of: Option<u64>,
    /// Events that were not measured since it was attached, by the reason that `kstrobe_lost_total` has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<&'static str, u64>,
    /// Whether there is nothing to attach, as its conditions are never true on this kernel; `reason` has them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// Whether a `Probe` object of the cluster asks for it: its status has the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_cluster: bool,
    pub hooks: Vec<HookStatus>,
    /// What was chosen for it among several ways.
    pub choices: Vec<ChoiceStatus>,
    /// Programs and libraries that it hooks, each with the number of places, and those it cannot, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Full names of its metrics.
    pub metrics: Vec<String>,
    /// Names of its sums by stack, which are no metrics of Prometheus.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<String>,
}

/// A hook of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HookStatus {
    /// As the user wrote it.
    pub hook: String,
    /// What was chosen for it, e.g. `tp_btf`.
    pub kind: String,
    /// Whether it is attached.
    pub attached: bool,
    /// Why not, empty when it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Events that a trace records in its place, as a capture takes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Functions that a trace records in its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// A choice made for this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChoiceStatus {
    /// What was asked for, or is best.
    pub wanted: String,
    /// What it became.
    pub got: String,
    /// Why not something better; empty when it is the best.
    pub because: Vec<String>,
}
