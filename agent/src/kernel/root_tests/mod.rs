//! What only a real kernel can show. Run with `cargo test -p kstrobe -- --ignored root_` as root.

mod hooks;
mod instance;
mod loading;
mod maps;
pub(super) mod objects;

use super::sys::perf;
use super::*;
use crate::kernel::tracefs::{How, Tracefs};
use kstrobe_ebpf::kernel_target::btf::Kind;
use kstrobe_ebpf::kernel_target::{Ability, FieldType};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

#[test]
#[ignore = "needs root"]
fn root_detect_describes_this_kernel() {
    if std::env::var_os("KSTROBE_LAB").is_some() {
        // Its module stays when the device goes.
        for verb in ["add", "del"] {
            let kind: &[&str] = if verb == "add" { &["type", "dummy"] } else { &[] };
            let done = std::process::Command::new("ip").args(["link", verb, "kst-any"]).args(kind).status().unwrap();
            assert!(done.success(), "ip link {verb}: {done}");
        }
    }
    let wanted = Wanted {
        tracepoints: ["sched:sched_switch", "sock:inet_sock_set_state", "no:such"].map(String::from).into(),
        syscalls: ["recvfrom", "stat", "sendfile", "umount2", "uname"].map(String::from).into(),
        try_all: true,
        ..Wanted::default()
    };
    let target = detect(&wanted);
    assert_eq!(target.release, std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim());
    let online = std::fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count() as u32;
    assert!(target.cpus >= online && online > 0);
    let btf = target.btf.as_ref().expect("this kernel publishes BTF");
    assert!(btf.find("task_struct", Kind::Struct).is_some());
    let switch = &target.tracepoints["sched:sched_switch"].fields;
    let next = switch.iter().find(|f| f.name == "next_comm").unwrap();
    assert_eq!(
        (next.ty, switch[0].offset),
        (FieldType::Str(16), 8),
        "the common fields are left out, not shifted away"
    );
    assert!(target.tracepoints.contains_key("sock:inet_sock_set_state") && !target.tracepoints.contains_key("no:such"));
    let args = |call: &str| -> Vec<String> {
        target.syscalls[call].args.as_ref().unwrap().iter().map(|arg| arg.name.clone()).collect()
    };
    assert_eq!(args("recvfrom"), ["fd", "ubuf", "size", "flags", "addr", "addr_len"]);
    // arm64 never had stat(2).
    if cfg!(target_arch = "x86_64") {
        assert_eq!(args("stat"), ["filename", "statbuf"], "its event is called newstat");
    }
    assert_eq!(args("sendfile"), ["out_fd", "in_fd", "offset", "count"], "its event is called sendfile64");
    assert_eq!(args("umount2"), ["name", "flags"], "its event is called umount");
    assert_eq!(args("uname").len(), 1);
    assert_eq!(target.syscalls["read"].args, None, "no probe needs them");
    assert_abilities_are_known(&target);
}

/// Abilities with the first version that has each. A kernel of that version or newer that lacks one, or that we believe to
/// lack one, fails; an older one has to say why. Distributions carry some of them back to older versions.
fn assert_abilities_are_known(target: &kstrobe_ebpf::Target) {
    let mut numbers = target.release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let a = &target.abilities;
    // A kernel without ftrace and kprobes (as the project's own build machines have) can hook no functions.
    let never = (u32::MAX, 0);
    let ftrace = Tracefs::open().is_ok_and(|t| t.read("available_filter_functions").is_ok());
    let functions = (!ftrace).then_some(never);
    // arm64 has direct calls of trampolines since 6.4, and fprobe since 6.14.
    let (fentry, fprobe) = if cfg!(target_arch = "aarch64") { ((6, 4), (6, 14)) } else { ((5, 5), (6, 12)) };
    let expected = [
        ("tp_btf", &a.tp_btf, (5, 5)),
        ("raw_tp", &a.raw_tp, (4, 17)),
        ("tracepoint", &a.tracepoint, (4, 7)),
        ("perf_event", &a.perf_event, (4, 9)),
        ("mmapable", &a.mmapable, (5, 5)),
        ("batch", &a.batch, (5, 6)),
        ("ringbuf", &a.ringbuf, (5, 8)),
        ("probe_read_kernel", &a.probe_read_kernel, (5, 5)),
        ("current_task_btf", &a.current_task_btf, (5, 11)),
        ("task_storage", &a.task_storage, (5, 12)),
        ("rdonly_cast", &a.rdonly_cast, (6, 2)),
        ("fentry", &a.fentry, functions.unwrap_or(fentry)),
        ("kprobe", &a.kprobe, functions.unwrap_or((4, 17))),
        // Debian builds its kernels with CONFIG_FPROBE, and with types of modules, since these.
        ("kprobe_multi", &a.kprobe_multi, functions.unwrap_or(fprobe)),
        ("module_btf", &a.module_btf, functions.unwrap_or((6, 1))),
        ("uprobe", &a.uprobe, (4, 17)),
        ("uprobe_multi", &a.uprobe_multi, (6, 6)),
        ("func_ip", &a.func_ip, (5, 15)),
        ("iter", &a.iter, (5, 9)),
        ("atomic_fetch", &a.atomic_fetch, if cfg!(target_arch = "aarch64") { (5, 18) } else { (5, 12) }),
    ];
    for (name, ability, since) in expected {
        match ability {
            Ability::Yes => {}
            // It is unknown then, and no probe needs it. Those of the lab have one loaded.
            Ability::No(reason) if reason == "this kernel has no module loaded" => {
                assert!(std::env::var_os("KSTROBE_LAB").is_none(), "{name}: {reason}");
            }
            Ability::No(reason) => {
                assert!(version < since, "{name} is in {since:?}, this is {version:?}: {reason}");
                let why = ["this kernel", "the kernel forbids", "unknown func"];
                assert!(why.iter().any(|why| reason.contains(why)), "{name}: {reason}");
            }
            Ability::Unknown => panic!("{name} was not tried"),
        }
    }
    let has_cast = target.btf.as_ref().is_some_and(|btf| btf.find("bpf_rdonly_cast", Kind::Func).is_some());
    assert_eq!(a.rdonly_cast.yes(), has_cast, "{a:#?}");
    if version < (5, 11) {
        // All processes of this user share it: with a limit, an ability would be a matter of luck.
        let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
        assert_eq!(soft, RLIM_INFINITY);
    }
}

#[test]
#[ignore = "needs root"]
fn root_a_dump_of_this_kernel_is_read_back() {
    use kstrobe_ebpf::kernel_target::dump::{dump, parse};
    let wanted = Wanted { tracepoints: ["sched:sched_switch".to_string()].into(), ..Wanted::default() };
    let target = detect(&wanted);
    let roots =
        ["task_struct", "sock", "tcp_sock", "sk_buff", "TCP_ESTABLISHED", "btf_trace_sched_switch", "bpf_rdonly_cast"];
    let text = dump(&target, &roots);
    let back = parse(&text).unwrap();
    assert!(text.len() < 2 << 20, "{} bytes", text.len());
    assert_eq!(dump(&back, &roots), text);
    assert_eq!(
        (back.abilities, back.syscalls, back.tracepoints),
        (target.abilities, target.syscalls, target.tracepoints)
    );
    let (old, new) = (target.btf.unwrap(), back.btf.unwrap());
    for (aggregate, member) in
        [("task_struct", "tgid"), ("sock", "sk_ack_backlog"), ("tcp_sock", "srtt_us"), ("sk_buff", "pkt_type")]
    {
        let find = |btf: &kstrobe_ebpf::kernel_target::Btf| {
            let found = btf.member(btf.find(aggregate, Kind::Struct).unwrap(), member).unwrap();
            (found.bit_offset, found.bit_size, btf.size(found.ty))
        };
        assert_eq!(find(&old), find(&new), "{aggregate}.{member}");
    }
    assert_eq!(new.constant("TCP_ESTABLISHED").unwrap().1, 1);
}

#[test]
#[ignore = "needs root"]
fn root_abilities_that_are_known_are_those_that_are_found() {
    let tried = detect(&Wanted { try_all: true, ..Wanted::default() }).abilities;
    // The second of these finds what the first has kept.
    for _ in 0..2 {
        assert_eq!(detect(&Wanted::default()).abilities, tried);
    }
}

#[test]
#[ignore = "needs root"]
fn root_abilities_without_btf_say_so() {
    let target = detect(&Wanted { btf: Some("/nonexistent".into()), ..Wanted::default() });
    assert!(target.btf.is_none());
    for ability in [target.abilities.tp_btf, target.abilities.rdonly_cast] {
        assert!(matches!(&ability, Ability::No(reason) if reason.contains("BTF")), "{ability:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn root_tracefs_is_mounted_where_nobody_sees_it() {
    let mounts = || ["self", "1"].map(|pid| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap());
    let before = mounts();
    let tracefs = Tracefs::open_detached().unwrap();
    let namespace = Tracefs::open_in_namespace().unwrap();
    for tracefs in [&tracefs, &namespace] {
        assert!(tracefs.read("events/sched/sched_switch/format").unwrap().contains("prev_comm"));
        assert!(tracefs.list("events/sched").unwrap().iter().any(|name| name == "sched_switch"));
        assert!(tracefs.event_id("sched", "sched_switch").unwrap() > 0);
        assert!(tracefs.read("events/../../etc/passwd").is_err());
        assert_eq!(tracefs.event_id("no", "such").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
    assert_eq!((tracefs.how(), namespace.how()), (&How::Detached, &How::Namespace));
    assert_eq!(mounts(), before);
}

#[test]
#[ignore = "needs root"]
fn root_privileges_of_root() {
    let p = privileges::privileges();
    let capabilities = p.capabilities.unwrap();
    assert!(capabilities.bpf && capabilities.perfmon && capabilities.sys_admin, "{capabilities:?}");
    assert!(p.btf && p.tracefs.is_ok());
    assert!(p.perf_event_paranoid.is_some() && p.unprivileged_bpf_disabled.is_some());
}

#[test]
#[ignore = "needs root"]
fn root_perf_events_of_absent_cpus_are_refused_in_words() {
    let error = perf::cpu_clock(1_000_000, 60_000).unwrap_err();
    assert!(abilities::perf_refusal(&error).contains("perf"), "{error}");
}
