//! Converts the hooks of a probe to ftrace events and functions.

use crate::Error;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Members of a capture request that record these hooks, and the hooks that ftrace cannot record. Fails if none can be recorded.
///
/// Hooks have the syntax of probes. Context switches and wakeups are added: without them a trace shows a delay but not its
/// cause.
pub fn request(probe: &str, hooks: &[String]) -> Result<(Value, Vec<String>), Error> {
    let mut events: BTreeSet<String> = ["sched:sched_switch", "sched:sched_waking"].map(String::from).into();
    let mut functions: BTreeSet<String> = BTreeSet::new();
    let mut cannot = Vec::new();
    let mut any = false;
    for hook in hooks {
        let (kind, rest) = hook.split_once(':').unwrap_or((hook.as_str(), ""));
        match kind {
            "tracepoint" => _ = events.insert(rest.to_owned()),
            // Hook names omit the subsystem.
            "rawtracepoint" => _ = events.insert(format!("*:{rest}")),
            "syscall" => syscall(rest, &mut events),
            "function" | "fentry" | "fexit" | "kprobe" | "kretprobe" => functions.extend(function(kind, rest)),
            _ => {
                cannot.push(hook.clone());
                continue;
            }
        }
        any = true;
    }
    if !any {
        return Err(Error::Unrecordable { probe: probe.to_owned(), hooks: hooks.to_vec() });
    }
    let mut request = json!({"events": events});
    if !functions.is_empty() {
        request["tracer"] = "function_graph".into();
        request["graph"] = json!(functions);
    }
    Ok((request, cannot))
}

/// `NAME:enter`, `[A, B]:exit`, `*:enter`
fn syscall(rest: &str, events: &mut BTreeSet<String>) {
    let names = rest.rsplit_once(':').map_or(rest, |(names, _)| names).trim();
    if names == "*" {
        events.extend(["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"].map(String::from));
        return;
    }
    let names = names.trim_start_matches('[').trim_end_matches(']');
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        events.insert(format!("syscalls:sys_enter_{name}"));
        events.insert(format!("syscalls:sys_exit_{name}"));
    }
}

/// `[MODULE:]NAME:entry|return`, `[MODULE:]NAME[+OFFSET]`
fn function(kind: &str, rest: &str) -> Option<String> {
    let rest = match kind {
        "function" => rest.rsplit_once(':').map_or(rest, |(name, _)| name),
        _ => rest,
    };
    let name = rest.rsplit_once(':').map_or(rest, |(_, name)| name);
    let name = name.split('+').next().unwrap_or(name).trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hooks: &[&str]) -> Result<(Value, Vec<String>), Error> {
        request("p", &hooks.iter().map(|hook| (*hook).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn hooks_become_ftrace_events() {
        let syscalls = of(&["syscall:[recvfrom, recvmsg]:enter", "syscall:[recvfrom, recvmsg]:exit"]).unwrap().0;
        let events = json!([
            "sched:sched_switch",
            "sched:sched_waking",
            "syscalls:sys_enter_recvfrom",
            "syscalls:sys_enter_recvmsg",
            "syscalls:sys_exit_recvfrom",
            "syscalls:sys_exit_recvmsg"
        ]);
        assert_eq!(syscalls, json!({"events": events}));
        let all = of(&["syscall:*:enter"]).unwrap().0["events"].clone();
        assert_eq!(all.as_array().unwrap().len(), 4);
        let raw = of(&["rawtracepoint:tcp_retransmit_skb", "tracepoint:irq:softirq_entry"]).unwrap().0;
        assert!(raw["events"].as_array().unwrap().contains(&json!("*:tcp_retransmit_skb")), "{raw}");
        let functions =
            of(&["function:nf_tables:nft_do_chain:entry", "function:vfs_read:return", "kprobe:tcp_v4_rcv+4"]);
        let functions = functions.unwrap().0;
        assert_eq!(functions["graph"], json!(["nft_do_chain", "tcp_v4_rcv", "vfs_read"]));
        assert_eq!(functions["tracer"], "function_graph");
    }

    #[test]
    fn unrecordable_hooks_are_listed() {
        let error = of(&["profile:hz:99"]).unwrap_err().to_string();
        assert!(error.contains("`p`") && error.contains("profile:hz:99"), "{error}");
        assert!(of(&[]).is_err());
        let some = of(&["uprobe:/bin/x:main", "rawtracepoint:sched_switch"]).unwrap();
        assert_eq!(some.1, ["uprobe:/bin/x:main"]);
    }
}
