//! The agent's limit of memory, and the need of its probes: the kernel kills an agent above its limit without a message.

use crate::config::files::AgentConfig;
use crate::kubernetes::variable;
use kstrobe_ebpf::Artifact;
use kstrobe_workloads::cgroups::Hierarchies;

/// Memory of the process beside maps of the kernel: 35 to 50 MiB with the default probes, and buffers for the kernel's types and
/// for an exposition of some thousand histograms.
const PROCESS_BYTES: u64 = 64 << 20;
/// The limit of the container in bytes, as the chart writes it: where the host's control groups are mounted, as names of pods need,
/// the agent's own is not among them by its name.
const VARIABLE: &str = "CONTAINER_MEMORY_LIMIT";

/// A limit of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    /// File or variable that sets it.
    pub from: String,
}

/// Memory that the enabled probes and captures will take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Maps of all probes when they are full. The kernel counts them as this process's.
    pub maps: u64,
    /// One capture while its files are written.
    pub capture: u64,
    /// The history when it is full.
    pub history: u64,
}

/// The lowest limit that holds for this process, if there is one.
pub fn limit() -> Option<Limit> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = Hierarchies::here(None).ok().and_then(|found| found.memory_limit(&own));
    let group = group.map(|limit| Limit { bytes: limit.bytes, from: limit.file.display().to_string() });
    let variable_limit = variable(VARIABLE).and_then(|text| text.parse().ok());
    let variable_limit = variable_limit.map(|bytes| Limit { bytes, from: VARIABLE.to_owned() });
    group.into_iter().chain(variable_limit).min_by_key(|limit| limit.bytes)
}

impl Need {
    /// The need of these programs with this configuration.
    pub fn of<'a>(artifacts: impl Iterator<Item = &'a Artifact>, agent: &AgentConfig) -> Need {
        let maps = artifacts.map(|artifact| artifact.module.layout.bytes()).sum();
        let history = if agent.history.enabled { agent.history.max_memory } else { 0 };
        Need { maps, capture: agent.captures.as_ref().map_or(0, |captures| captures.max_bytes), history }
    }

    /// The sum, with the process itself.
    pub fn bytes(&self) -> u64 {
        PROCESS_BYTES + self.maps + self.capture + self.history
    }

    /// The parts of the sum.
    pub fn text(&self) -> String {
        let capture = match self.capture {
            0 => String::new(),
            bytes => format!(", a capture up to {} (`captures.max_bytes`)", mib(bytes)),
        };
        let history = match self.history {
            0 => String::new(),
            bytes => format!(", the history up to {} (`history.max_memory`)", mib(bytes)),
        };
        format!(
            "maps of probes take up to {}, the agent about {}{history}{capture}",
            mib(self.maps),
            mib(PROCESS_BYTES)
        )
    }

    /// Why a limit is too small for it.
    pub fn exceeds(&self, limit: &Limit) -> Option<String> {
        (self.bytes() > limit.bytes).then(|| {
            format!(
                "the memory limit of {} ({}) is too small for what is enabled: {}; raise it to {} (`MemoryMax=`, in the chart \
                 `resources.limits.memory`) or enable less, else the kernel kills the agent",
                mib(limit.bytes),
                limit.from,
                self.text(),
                mib(self.bytes())
            )
        })
    }
}

/// Whole MiB, more rather than less.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_need_is_explained() {
        let limit = |mib: u64| Limit { bytes: mib << 20, from: "memory.max".into() };
        let need = Need { maps: 20 << 20, ..Need::default() };
        assert_eq!(need.exceeds(&limit(84)), None);
        let why = need.exceeds(&limit(83)).unwrap();
        for part in ["83 MiB (memory.max)", "maps of probes take up to 20 MiB", "raise it to 84 MiB", "MemoryMax="] {
            assert!(why.contains(part), "{part} is not in: {why}");
        }
        assert!(!why.contains("capture"), "{why}");
        let need = Need { capture: 256 << 20, ..need };
        assert!(need.exceeds(&limit(84)).is_some_and(|why| why.contains("a capture up to 256 MiB")));
    }
}
