//! Whatever an expression is made of, the check ends in a probe or in mistakes inside the text, never in a panic.

use crate::{fixture, program_text, show};
use kstrobe_ebpf::check;
use kstrobe_ebpf::check::print_probe;
use proptest::prelude::*;

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "args.sk",
        "args.skb",
        "args.req",
        "args.n",
        "args.fd",
        "args.buf",
        "args.count",
        "args.path",
        "args.dropped",
        "start.s",
        "elapsed",
        "elapsed.off_cpu",
        "retval",
        "syscall",
        "pid",
        "comm",
        "cpu",
        "nsecs",
        "task",
        "netns",
        "true",
        "0",
        "1",
        "-1",
        "18446744073709551615",
        "10ms",
        "64KiB",
        "\"x\"",
        "\"\"",
        "AF_INET",
        "SYS_read",
        "ODD_MINUS",
        "nonsense",
    ])
    .prop_map(str::to_string);
    leaf.prop_recursive(5, 40, 3, |e| {
        let op = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", ">=", "&&", "||",
        ]);
        let member = prop::sample::select(vec![
            "sk_prot",
            "sk_prot_u",
            "name",
            "sk_counters",
            "sk_protos",
            "sk_family",
            "__sk_common",
            "skc_reuse",
            "cb",
            "sk",
            "parent",
            "sk_v6_daddr",
            "tgid",
            "oops",
        ]);
        let one = prop::sample::select(vec![
            "u8", "u64", "s16", "ntohs", "ntohl", "log2", "fd_sock", "fd_file", "has", "errno", "ip", "softirq",
            "syscall", "port",
        ]);
        let two = prop::sample::select(vec!["min", "max", "str", "starts_with", "glob", "clamp"]);
        prop_oneof![
            (e.clone(), op, e.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (prop::sample::select(vec!["-", "!", "~"]), e.clone()).prop_map(|(op, a)| format!("{op}{a}")),
            (e.clone(), member).prop_map(|(a, m)| format!("({a}).{m}")),
            (e.clone(), e.clone()).prop_map(|(a, i)| format!("({a})[{i}]")),
            (one, e.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (two, e.clone(), e.clone()).prop_map(|(f, a, b)| format!("{f}({a}, {b})")),
            (e.clone(), e.clone(), e.clone()).prop_map(|(c, a, b)| format!("({c} ? {a} : {b})")),
            (e.clone(), e.clone()).prop_map(|(a, b)| format!("({a} in [{b}, 1])")),
            e.clone().prop_map(|a| format!("cast(struct tcp_skb_cb, {a})")),
            e.clone().prop_map(|a| format!("container_of({a}, struct tcp_sock, sk)")),
            e.prop_map(|a| format!("map({a}, 1 => \"a\", _ => \"b\")")),
        ]
    })
}

const SHAPES: [&str; 5] = [
    "at: rawtracepoint:tcp_event",
    "at: tracepoint:sock:inet_sock_set_state",
    "start: syscall:read:enter\nend: syscall:read:exit\nsave s: fd_sock(args.fd)",
    "start: rawtracepoint:tcp_event\nend: rawtracepoint:tcp_event\nby: args.sk\nsave s: args.n",
    "poll: softnet",
];

proptest! {
    #[test]
    fn any_expression_checks_or_is_a_mistake_inside_it(
        shape in prop::sample::select(&SHAPES[..]),
        role in prop::sample::select(vec!["value", "label l", "where", "metric.where", "save t", "by"]),
        expression in expression(),
        changes in prop::sample::select(vec!["", "no_btf", "no_tp_btf", "no_task_storage rdonly_cast"]),
    ) {
        let target = fixture::target(changes);
        let (program, texts) = program_text::read(&format!("{shape}\n{role}: {expression}"));
        match check(&program, &target) {
            Ok(probe) => prop_assert!(!print_probe(&probe, target.btf.as_ref()).is_empty()),
            Err(list) => {
                prop_assert!(!list.is_empty());
                for d in &list {
                    prop_assert!(d.at.is_some() && !show(d, &texts).is_empty());
                }
            }
        }
    }
}
