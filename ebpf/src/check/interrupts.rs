//! Hooks that run in interrupts, or in whatever task causes something for another one: a span by thread pairs nothing there.

use super::report::{Report, whole};
use crate::diag::Diagnostic;
use crate::program::{Hook, HookKind};

/// Tracepoints that come in interrupts and softirqs, and those of wakeups, at which the waking task runs.
const EVENTS: [&str; 34] = [
    "block_bio_complete",
    "block_rq_complete",
    "block_rq_error",
    "hrtimer_expire_entry",
    "hrtimer_expire_exit",
    "inet_sock_set_state",
    "irq_handler_entry",
    "irq_handler_exit",
    "napi_gro_frags_entry",
    "napi_gro_receive_entry",
    "napi_poll",
    "netif_receive_skb",
    "netif_receive_skb_entry",
    "netif_receive_skb_list_entry",
    "netif_rx",
    "netif_rx_entry",
    "nvme_complete_rq",
    "sched_wakeup",
    "sched_wakeup_new",
    "sched_waking",
    "scsi_dispatch_cmd_done",
    "scsi_dispatch_cmd_timeout",
    "softirq_entry",
    "softirq_exit",
    "softirq_raise",
    "tasklet_entry",
    "tasklet_exit",
    "tcp_probe",
    "tcp_receive_reset",
    "tcp_retransmit_skb",
    "tcp_retransmit_synack",
    "timer_expire_entry",
    "timer_expire_exit",
    "ufshcd_command",
];

/// Functions that run there.
const FUNCTIONS: [&str; 30] = [
    "__netif_receive_skb",
    "__netif_receive_skb_core",
    "bio_endio",
    "blk_account_io_done",
    "blk_mq_complete_request",
    "blk_mq_end_request",
    "blk_update_request",
    "handle_irq_event",
    "ip_local_deliver",
    "ip_rcv",
    "ipv6_rcv",
    "napi_complete_done",
    "napi_gro_receive",
    "net_rx_action",
    "netif_receive_skb",
    "nvme_irq",
    "run_timer_softirq",
    "scsi_io_completion",
    "tcp_ack",
    "tcp_fin",
    "tcp_rcv_established",
    "tcp_rcv_state_process",
    "tcp_retransmit_timer",
    "tcp_v4_rcv",
    "tcp_v6_rcv",
    "tcp_write_timer",
    "try_to_wake_up",
    "ttwu_do_activate",
    "udp_rcv",
    "udpv6_rcv",
];

/// The event or function of a hook that runs in interrupts.
fn in_interrupts(hook: &Hook) -> Option<&str> {
    match &hook.kind {
        HookKind::Function { name, .. } => FUNCTIONS.contains(&name.as_str()).then_some(name),
        HookKind::FirstOf(hooks) => hooks.iter().find_map(in_interrupts),
        kind => kind.event().filter(|event| EVENTS.contains(event)),
    }
}

/// What begins and ends within one interrupt, by the name that both ends share.
fn family(name: &str) -> Option<&str> {
    name.strip_suffix("_entry").or_else(|| name.strip_suffix("_exit"))
}

/// Warns of the first end of a span by thread that runs in another thread or in an interrupt.
pub(super) fn check(starts: &[Hook], ends: &[Hook], report: &mut Report) {
    // Both ends of one handler, or of one function, run on top of the same task.
    let of = |hooks: &[Hook]| -> Vec<Option<String>> {
        let name = |hook: &Hook| match &hook.kind {
            HookKind::Function { name, .. } => Some(name.clone()),
            _ => in_interrupts(hook).and_then(family).map(str::to_owned),
        };
        hooks.iter().map(name).collect()
    };
    let same = of(starts).iter().all(|start| start.is_some() && of(ends).iter().all(|end| end == start));
    let Some((hook, name)) = ends.iter().chain(starts).find_map(|hook| Some((hook, in_interrupts(hook)?))) else {
        return;
    };
    if same {
        return;
    }
    let message = format!("`{name}` runs in an interrupt or in another thread, and this span is by thread");
    let hint = "pair by what both ends know, as in `by: args.rq` or `by: { start: args.p.pid, end: args.next.pid }`";
    report.warn(Diagnostic::warning(whole(&hook.text), message).hint(hint));
}
