//! What this process may do, for `doctor` and for messages.

use crate::kernel::detect;
use crate::kernel::tracefs::{How, Tracefs};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use std::fs::read_to_string;
use std::io;
use std::path::Path;

/// The capabilities that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Load programs and maps.
    pub bpf: bool,
    /// Tracing programs and perf events.
    pub perfmon: bool,
    /// Kernel addresses, so that functions have names.
    pub syslog: bool,
    /// Everything the others are carved out of: mounts, statistics, programs by id.
    pub sys_admin: bool,
    /// Other processes' executables and maps.
    pub sys_ptrace: bool,
    /// Raise RLIMIT_MEMLOCK (kernels before 5.11).
    pub sys_resource: bool,
}

impl Capabilities {
    /// Those in effect for this process.
    pub fn effective() -> io::Result<Capabilities> {
        parse_capabilities(&read_to_string("/proc/self/status")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no CapEff"))
    }

    /// Those of CAP_BPF and CAP_PERFMON that are missing: without either the kernel loads no program of a probe. Before
    /// Linux 5.8 there is neither, and CAP_SYS_ADMIN stands for both.
    pub fn missing_for_programs(self) -> Vec<&'static str> {
        let needed = [("CAP_BPF", self.bpf), ("CAP_PERFMON", self.perfmon)];
        needed.into_iter().filter(|(_, held)| !held && !self.sys_admin).map(|(name, _)| name).collect()
    }
}

impl Capabilities {
    /// Capabilities that this process lacks and that every program in the kernel needs.
    pub fn missing_here() -> Vec<&'static str> {
        Capabilities::effective().map(Capabilities::missing_for_programs).unwrap_or_default()
    }

    /// What of CAP_BPF and CAP_PERFMON is not there, for a sentence; `None` when nothing is.
    pub fn missing(&self) -> Option<&'static str> {
        match (self.bpf || self.sys_admin, self.perfmon || self.sys_admin) {
            (true, true) => None,
            (false, true) => Some("CAP_BPF"),
            (true, false) => Some("CAP_PERFMON"),
            (false, false) => Some("CAP_BPF and CAP_PERFMON"),
        }
    }
}

fn parse_capabilities(status: &str) -> Option<Capabilities> {
    let text = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(text.trim(), 16).ok()?;
    // Numbers of linux/capability.h.
    let has = |capability: u32| mask >> capability & 1 == 1;
    Some(Capabilities {
        sys_ptrace: has(19),
        sys_admin: has(21),
        sys_resource: has(24),
        syslog: has(34),
        perfmon: has(38),
        bpf: has(39),
    })
}

/// Kernel lockdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Off, or not built in.
    None,
    /// The kernel may be read, not changed: tracing works.
    Integrity,
    /// The kernel may not be read: programs cannot read its memory.
    Confidentiality,
}

/// What may forbid what the capabilities of this process allow, as far as it can be seen.
pub fn forbidding() -> String {
    let lockdown = lockdown();
    let filtered = has_seccomp_filter(&read_to_string("/proc/self/status").unwrap_or_default());
    what_forbids(lockdown, filtered, counts_locked(&detect::release()))
}

fn what_forbids(lockdown: Lockdown, filtered: bool, counts_locked: bool) -> String {
    let causes = [
        (lockdown == Lockdown::Confidentiality, "the kernel is locked down (`confidentiality`)"),
        (filtered, "a seccomp filter is in force: the runtime's seccomp profile has to allow bpf and perf_event_open"),
        (counts_locked, "this kernel counts maps against RLIMIT_MEMLOCK"),
    ];
    let found: Vec<&str> = causes.into_iter().filter(|(holds, _)| *holds).map(|(_, cause)| cause).collect();
    match found.is_empty() {
        true => {
            "neither lockdown nor a seccomp filter is in force: a security module forbids it, or it is not built in"
                .into()
        }
        false => found.join(", "),
    }
}

/// `Seccomp: 2` is a filter, 1 the strict mode that no agent could run in.
fn has_seccomp_filter(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == "2")
}

/// Which cgroup hierarchies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// cgroup2 at /sys/fs/cgroup.
    Unified,
    /// cgroup v1, with cgroup2 beside it.
    Hybrid,
    /// cgroup v1 only.
    Legacy,
    /// None mounted.
    None,
}

/// What decides whether probes can work here.
#[derive(Debug)]
pub struct Privileges {
    /// Of this process; the reason when they cannot be read.
    pub capabilities: io::Result<Capabilities>,
    /// Kernel lockdown.
    pub lockdown: Lockdown,
    /// `kernel.unprivileged_bpf_disabled`, where there is one.
    pub unprivileged_bpf_disabled: Option<i32>,
    /// `kernel.perf_event_paranoid`, where there is one.
    pub perf_event_paranoid: Option<i32>,
    /// The kernel publishes its types.
    pub btf: bool,
    /// How tracefs can be read, or why not.
    pub tracefs: io::Result<How>,
    /// cgroup hierarchies.
    pub cgroups: CgroupMode,
    /// Bytes that all maps of this process may have, `RLIM_INFINITY` without a limit. Kernels before 5.11 count them against
    /// RLIMIT_MEMLOCK, whose hard limit takes CAP_SYS_RESOURCE to lift; `None` on others.
    pub most_locked: Option<u64>,
}

/// Looks at everything.
pub fn privileges() -> Privileges {
    let number = |path: &str| read_to_string(path).ok()?.trim().parse().ok();
    Privileges {
        capabilities: Capabilities::effective(),
        lockdown: lockdown(),
        unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        tracefs: Tracefs::open().map(|t| t.how().clone()),
        cgroups: cgroup_mode(&read_to_string("/proc/self/mountinfo").unwrap_or_default()),
        most_locked: counts_locked(&detect::release()).then(most_locked).flatten(),
    }
}

fn most_locked() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(_, hard)| hard)
}

/// Lifts RLIMIT_MEMLOCK (64 KiB by default) where the kernel counts maps and programs against it. Those of all processes of a
/// user count: without this, what there is room for now may have none a moment later, and would be taken for something that the
/// kernel cannot do. Without CAP_SYS_RESOURCE the soft limit goes up to the hard one.
pub fn lift_locked() {
    if counts_locked(&detect::release())
        && setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_err()
        && let Some(hard) = most_locked()
    {
        // Failure leaves the limit as it was, and the map creation that comes next reports it.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}

/// Whether a release of the kernel counts maps and programs against RLIMIT_MEMLOCK: those before 5.11 do.
fn counts_locked(release: &str) -> bool {
    detect::version(release).is_some_and(|version| version < (5, 11))
}

/// How far the kernel is locked down.
pub fn lockdown() -> Lockdown {
    parse_lockdown(&read_to_string("/sys/kernel/security/lockdown").unwrap_or_default())
}

/// The mode in brackets is the one in force: `none [integrity] confidentiality`.
fn parse_lockdown(text: &str) -> Lockdown {
    match text.split(['[', ']']).nth(1) {
        Some("integrity") => Lockdown::Integrity,
        Some("confidentiality") => Lockdown::Confidentiality,
        _ => Lockdown::None,
    }
}

fn cgroup_mode(mountinfo: &str) -> CgroupMode {
    let kinds: Vec<&str> = mountinfo.lines().filter_map(|line| line.split_once(" - ")?.1.split(' ').next()).collect();
    match (kinds.contains(&"cgroup"), kinds.contains(&"cgroup2")) {
        (false, true) => CgroupMode::Unified,
        (true, true) => CgroupMode::Hybrid,
        (true, false) => CgroupMode::Legacy,
        (false, false) => CgroupMode::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_from_status() {
        let only = |bit: u32| parse_capabilities(&format!("Name:\tx\nCapEff:\t{:016x}\nCapBnd:\t0\n", 1u64 << bit));
        assert_eq!(only(39), Some(Capabilities { bpf: true, ..Capabilities::default() }));
        assert_eq!(only(38), Some(Capabilities { perfmon: true, ..Capabilities::default() }));
        assert_eq!(only(34), Some(Capabilities { syslog: true, ..Capabilities::default() }));
        assert_eq!(only(24), Some(Capabilities { sys_resource: true, ..Capabilities::default() }));
        assert_eq!(only(21), Some(Capabilities { sys_admin: true, ..Capabilities::default() }));
        assert_eq!(only(19), Some(Capabilities { sys_ptrace: true, ..Capabilities::default() }));
        let missing = |bits: &[u32]| {
            let mask = bits.iter().fold(0, |mask, bit| mask | 1u64 << bit);
            parse_capabilities(&format!("CapEff:\t{mask:016x}\n")).unwrap().missing_for_programs().join(" ")
        };
        assert_eq!([missing(&[]), missing(&[39]), missing(&[38])], ["CAP_BPF CAP_PERFMON", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!([missing(&[38, 39]), missing(&[21])], ["", ""]);
        assert_eq!(parse_capabilities("CapEff:\tzz\n"), None);
        assert_eq!(parse_capabilities(""), None);
    }

    #[test]
    fn what_is_missing_is_named_alone() {
        let missing = |bpf, perfmon, sys_admin| {
            Capabilities { bpf, perfmon, sys_admin, ..Capabilities::default() }.missing().unwrap_or_default()
        };
        assert_eq!(missing(false, false, false), "CAP_BPF and CAP_PERFMON");
        assert_eq!((missing(true, false, false), missing(false, true, false)), ("CAP_PERFMON", "CAP_BPF"));
        assert_eq!((missing(true, true, false), missing(false, false, true)), ("", ""));
    }

    #[test]
    fn what_forbids_is_what_is_in_force() {
        let filtered = what_forbids(Lockdown::Integrity, true, false);
        assert!(filtered.starts_with("a seccomp filter is in force: the runtime's seccomp profile"), "{filtered}");
        let both = what_forbids(Lockdown::Confidentiality, true, false);
        assert!(both.contains("locked down") && both.contains("seccomp"), "{both}");
        let none = what_forbids(Lockdown::None, false, false);
        assert!(none.starts_with("neither lockdown nor a seccomp filter"), "{none}");
        assert!(has_seccomp_filter("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_seccomp_filter("Seccomp:\t0\nSeccomp_filters:\t2\n"));
    }

    #[test]
    fn lockdown_modes() {
        assert_eq!(parse_lockdown("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(parse_lockdown("none [integrity] confidentiality\n"), Lockdown::Integrity);
        assert_eq!(parse_lockdown("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
        assert_eq!(parse_lockdown(""), Lockdown::None);
    }

    #[test]
    fn kernels_that_count_locked_memory() {
        let count = ["5.10.0-46-cloud-amd64", "5.4.1", "4.18.0-305.el8"].map(counts_locked);
        let do_not = ["5.11.0", "6.1.0-56-cloud-amd64", "7.2.13+deb14", "odd", ""].map(counts_locked);
        assert_eq!((count, do_not), ([true; 3], [false; 5]));
    }

    #[test]
    fn cgroup_modes() {
        let v1 = "30 29 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let v2 = "31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_mode(v2), CgroupMode::Unified);
        assert_eq!(cgroup_mode(&format!("{v1}{v2}")), CgroupMode::Hybrid);
        assert_eq!(cgroup_mode(v1), CgroupMode::Legacy);
        assert_eq!(cgroup_mode("junk"), CgroupMode::None);
    }
}
