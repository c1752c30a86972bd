//! The shipped probes, against the types of the kernel this test runs on.

use crate::program_text;
use kstrobe_ebpf::check;
use kstrobe_ebpf::kernel_target::{Ability, Btf, Field, FieldType, Syscall, SyscallArg, Target};
use kstrobe_ebpf::typed::{Attach, Shape, SpanKey};

/// This machine's kernel types with the abilities of a recent kernel; `None` where the kernel does not publish them.
fn target() -> Option<Target> {
    let raw = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
    let mut target = Target { cpus: 8, btf: Some(Btf::parse(raw).expect("the kernel's own BTF")), ..Target::default() };
    let a = &mut target.abilities;
    for ability in
        [&mut a.tp_btf, &mut a.raw_tp, &mut a.task_storage, &mut a.current_task_btf, &mut a.probe_read_kernel]
    {
        *ability = Ability::Yes;
    }
    let fd = |ctype: &str| Some(vec![SyscallArg { name: "fd".into(), ctype: ctype.into() }]);
    let calls =
        [("read", 0, "unsigned int"), ("recvfrom", 45, "int"), ("recvmsg", 47, "int"), ("recvmmsg", 299, "int")]
            .into_iter()
            .chain([("accept", 43, "int"), ("accept4", 288, "int")]);
    target.syscalls = calls.map(|(name, number, ty)| (name.into(), Syscall { number, args: fd(ty) })).collect();
    let field = |name: &str, offset, ty| Field { name: name.into(), offset, ty };
    let int = |size| FieldType::Int { size, signed: false };
    target.polls = [
        (
            "tcp_listen",
            vec![
                field("port", 0, int(2)),
                field("depth", 8, int(4)),
                field("limit", 12, int(4)),
                field("syn", 16, int(4)),
            ],
        ),
        (
            "softnet",
            ["cpu", "processed", "dropped", "squeezed", "backlog"]
                .into_iter()
                .enumerate()
                .map(|(i, name)| field(name, 8 * i as u32, int(if i == 0 { 4 } else { 8 })))
                .collect(),
        ),
        ("netstat", vec![field("name", 0, FieldType::Str(48)), field("value", 48, int(8))]),
    ]
    .map(|(name, fields)| (name.to_string(), fields))
    .into();
    Some(target)
}

/// Name and expressions as in `probes/*/*.yaml`, in the form of the case files.
const PROBES: [(&str, &str); 11] = [
    (
        "recvfrom",
        "start: syscall:[recvfrom, recvmsg, recvmmsg, read]:enter\nend: syscall:[recvfrom, recvmsg, recvmmsg, read]:exit\n\
         start.where: syscall != SYS_read || fd_sock(args.fd)\n\
         metric: histogram recv_duration_seconds\nvalue: elapsed\nlabel syscall: syscall\nlabel comm: comm\n\
         metric: histogram recv_wait_seconds\nvalue: elapsed.off_cpu\nlabel syscall: syscall\nlabel comm: comm\n\
         metric: histogram recv_work_seconds\nvalue: elapsed.on_cpu\nlabel syscall: syscall\nlabel comm: comm",
    ),
    (
        "softirq",
        "start: rawtracepoint:softirq_entry\nend: rawtracepoint:softirq_exit\nby: cpu\n\
         metric: histogram softirq_duration_seconds\nvalue: elapsed\nlabel vector: softirq(args.vec_nr)",
    ),
    (
        "softirq_delay",
        "start: rawtracepoint:softirq_raise\nend: rawtracepoint:softirq_entry\nby: cpu\nby: softirq(args.vec_nr)\nkeep: first\n\
         metric: histogram softirq_delay_seconds\nvalue: elapsed\nlabel vector: softirq(args.vec_nr)",
    ),
    (
        "syscalls",
        "start: syscall:*:enter\nend: syscall:*:exit\n\
         metric: histogram syscall_duration_seconds\nvalue: elapsed\nlabel syscall: syscall\n\
         metric: counter syscall_errors_total\nmetric.where: retval < 0 && retval >= -4095\n\
         label syscall: syscall\nlabel errno: errno(-retval)",
    ),
    (
        "tcp_backlog",
        "start: syscall:[accept, accept4]:enter\nend: syscall:[accept, accept4]:exit\nsave sk: fd_sock(args.fd)\n\
         where: retval >= 0 && start.sk\n\
         metric: histogram tcp_accept_queue_depth\nvalue: u64(start.sk.sk_ack_backlog) + 1\nlabel port: start.sk.sk_num\n\
         metric: gauge tcp_accept_queue_limit\nvalue: u64(start.sk.sk_max_ack_backlog)\nlabel port: start.sk.sk_num",
    ),
    (
        "tcp_listen",
        "poll: tcp_listen\nmetric: gauge tcp_listen_queue_depth\nvalue: args.depth\nlabel port: args.port\n\
         metric: gauge tcp_listen_queue_limit\nvalue: args.limit\nlabel port: args.port\n\
         metric: gauge tcp_syn_queue_depth\nvalue: args.syn\nlabel port: args.port",
    ),
    (
        "softnet",
        "poll: softnet\nmetric: counter softnet_processed_total\nvalue: args.processed\nlabel cpu: args.cpu\n\
         metric: counter softnet_dropped_total\nvalue: args.dropped\nlabel cpu: args.cpu\n\
         metric: counter softnet_squeezed_total\nvalue: args.squeezed\nlabel cpu: args.cpu\n\
         metric: gauge softnet_backlog_packets\nvalue: args.backlog\nlabel cpu: args.cpu",
    ),
    (
        "tcp_retransmits",
        "at: rawtracepoint:tcp_retransmit_skb\nmetric: counter tcp_retransmits_total\n\
         value: u64(cast(struct tcp_skb_cb, args.skb.cb).tcp_gso_segs)\n\
         label family: address_family(args.sk.sk_family)\nlabel state: tcp_state(args.sk.sk_state)",
    ),
    (
        "tcp_retransmits_by_port",
        "at: rawtracepoint:tcp_retransmit_skb\nmetric: counter tcp_port_retransmits_total\n\
         value: u64(cast(struct tcp_skb_cb, args.skb.cb).tcp_gso_segs)\n\
         label local_port: args.sk.sk_num\nlabel remote_port: port(args.sk.sk_dport)",
    ),
    (
        "tcp_synack_retransmits",
        "at: rawtracepoint:tcp_retransmit_synack\nmetric: counter tcp_synack_retransmits_total\n\
         label family: address_family(args.sk.sk_family)\nlabel port: args.sk.sk_num",
    ),
    (
        "tcp_loss",
        "poll: netstat\nwhere: args.name in [\"TcpExtTCPLossProbes\", \"TcpExtTCPLossProbeRecovery\"]\n\
         metric: counter tcp_loss_events_total\nvalue: args.value\nlabel event: args.name",
    ),
];

#[test]
fn shipped_probes_check_on_this_kernel() {
    let Some(target) = target() else {
        eprintln!("not run: this kernel publishes no BTF");
        return;
    };
    for (name, text) in PROBES {
        let (program, texts) = program_text::read(text);
        match check(&program, &target) {
            Err(list) => {
                let shown: String = list.iter().map(|d| crate::show(d, &texts)).collect();
                panic!("{name}:\n{shown}");
            }
            Ok(probe) => match (name, &probe.shape) {
                ("recvfrom", Shape::Span { key, off_cpu, filtered, save, .. }) => {
                    assert_eq!((key, off_cpu, filtered), (&SpanKey::Task, &true, &true));
                    assert_eq!(save.len(), 1, "the call's number is saved");
                }
                ("softirq_delay", Shape::Span { key, .. }) => assert_eq!(*key, SpanKey::Dense(vec![8, 10])),
                ("tcp_retransmits", Shape::At(sites)) => {
                    assert_eq!(sites[0].attach, Attach::TpBtf { event: "tcp_retransmit_skb".into() });
                }
                _ => {}
            },
        }
    }
}

/// A kernel whose containers are in groups of version 1: any controller will do.
#[test]
fn cgroups_of_version_1_have_ids_on_this_kernel() {
    let Some(target) = target() else {
        eprintln!("not run: this kernel publishes no BTF");
        return;
    };
    for controller in ["pids", "memory", "cpu", "blkio"] {
        let target = Target { cgroup_v1: Some(controller.into()), ..target.clone() };
        let (program, texts) = program_text::read("at: rawtracepoint:tcp_retransmit_skb\nlabel group: cgroup");
        if let Err(list) = check(&program, &target) {
            let shown: String = list.iter().map(|d| crate::show(d, &texts)).collect();
            panic!("{controller}:\n{shown}");
        }
    }
}

/// Other paths through real structs: unions, bitfields, arrays, lists, macros.
#[test]
fn members_of_real_structs_are_found() {
    let Some(target) = target() else {
        eprintln!("not run: this kernel publishes no BTF");
        return;
    };
    for expression in [
        "u64(args.skb.pkt_type)",
        "u64(args.skb.len)",
        "u64(args.skb.dev.ifindex)",
        "u64(args.skb.dev.name == \"lo\")",
        "u64(args.sk.sk_net.net.ns.inum)",
        "u64(cast(struct tcp_sock, args.sk).srtt_us)",
        "u64(cast(struct tcp_sock, args.sk).is_sack_reneg)",
        "u64(container_of(args.sk, struct tcp_sock, inet_conn.icsk_inet.sk).snd_cwnd)",
        "u64(task.parent.tgid == 1)",
        "u64(task.comm == \"init\")",
        "u64(netns)",
        "u64(task.cgroups.dfl_cgrp.kn.id)",
        "u64(task.signal.rlim[7].rlim_cur)",
        "u64(args.skb.sk.sk_prot.name == \"TCP\")",
        "has(args.skb.nope) ? u64(args.skb.nope) : 1",
    ] {
        let text = format!("at: rawtracepoint:tcp_retransmit_skb\nvalue: {expression}");
        let (program, texts) = program_text::read(&text);
        if let Err(list) = check(&program, &target) {
            let shown: String = list.iter().map(|d| crate::show(d, &texts)).collect();
            panic!("{expression}:\n{shown}");
        }
    }
}
