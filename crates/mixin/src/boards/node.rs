//! One node: what its resources do (utilization, saturation, errors), then each latency (rate, slow share, duration).

use super::{MAX_SERIES, histogram, panel, red};
use crate::catalogue::Catalogue;
use crate::dashboard::{Dashboard, Row};
use crate::objectives;
use crate::panel::{Look, MATCHERS, Panel, Target, WINDOW};
use crate::promql::{Form, rate, top};

pub(super) fn board(catalogue: &Catalogue, form: Form) -> Dashboard {
    let mut rows = vec![cpu(form), disks(form), network(), memory(form)];
    for objective in objectives::shipped() {
        let Some((Some(probe), metric)) = catalogue.find(&objective.metric) else { continue };
        let separator = if objective.matchers.is_empty() { "" } else { ", " };
        let matchers = format!("{MATCHERS}{separator}{}", objective.matchers);
        let threshold = Some((objective.threshold, objective.says.clone()));
        let panels = red(&objective.name, metric, &matchers, threshold, form);
        rows.push(Row { title: format!("{} ({})", objective.name, probe.name), collapsed: false, panels });
    }
    Dashboard {
        uid: "kstrobe-node".into(),
        title: "Node".into(),
        about:
            "One node: utilization, saturation and errors of its resources, then rate, slow share and duration of each \
                latency. Choose an instance above; with several the sum of them shows."
                .into(),
        rows,
    }
}

/// Seconds of a latency per second: how many are in it at a time, on average.
fn at_a_time(title: &str, about: &str, metric: &str, by: &str, form: Form) -> Panel {
    let all = histogram(metric, MATCHERS, form).total(by);
    let total = if by.is_empty() { all } else { top(MAX_SERIES, &all) };
    let legend = if by.is_empty() { title.to_owned() } else { format!("{{{{{by}}}}}") };
    narrow(panel(title, about, "short", Look::Lines, vec![Target::of(form, total, legend)]))
}

fn counted(title: &str, about: &str, metric: &str, by: &str) -> Panel {
    let expr = rate(metric, MATCHERS, WINDOW, by);
    let (expr, legend) =
        if by.is_empty() { (expr, title.to_owned()) } else { (top(MAX_SERIES, &expr), format!("{{{{{by}}}}}")) };
    narrow(panel(title, about, "cps", Look::Lines, vec![Target::new(expr, legend)]))
}

fn narrow(panel: Panel) -> Panel {
    Panel { width: 8, ..panel }
}

fn use_row(title: &str, panels: Vec<Panel>) -> Row {
    Row { title: format!("USE: {title}"), collapsed: false, panels }
}

fn cpu(form: Form) -> Row {
    use_row(
        "CPU",
        vec![
            at_a_time(
                "Utilization: CPUs in softirqs",
                "CPUs that run softirq handlers, on average, by vector. 1 is one whole CPU.",
                "kstrobe_softirq_duration_seconds",
                "vector",
                form,
            ),
            at_a_time(
                "Saturation: tasks waiting for a CPU",
                "Runnable tasks that wait for a CPU, on average.",
                "kstrobe_runqueue_latency_seconds",
                "",
                form,
            ),
            at_a_time(
                "Saturation: softirqs waiting",
                "Raised softirqs that wait for their CPU, on average, by vector.",
                "kstrobe_softirq_delay_seconds",
                "vector",
                form,
            ),
        ],
    )
}

fn disks(form: Form) -> Row {
    use_row(
        "disks",
        vec![
            at_a_time(
                "Utilization: requests in the device",
                "Block requests issued and not yet complete, on average, by disk.",
                "kstrobe_block_io_duration_seconds",
                "disk",
                form,
            ),
            at_a_time(
                "Saturation: requests queued",
                "Block requests in the I/O scheduler, on average, by disk.",
                "kstrobe_block_queue_duration_seconds",
                "disk",
                form,
            ),
            counted(
                "Errors: slow requests",
                "Block requests slower than the probe slow_block_io's bound.",
                "kstrobe_slow_block_io_total",
                "disk",
            ),
        ],
    )
}

fn network() -> Row {
    let fill = format!(
        "max by (port) (kstrobe_tcp_listen_queue_depth{{{MATCHERS}}} / (kstrobe_tcp_listen_queue_limit{{{MATCHERS}}} > 0))"
    );
    let backlog = format!("sum by (cpu) (kstrobe_softnet_backlog_packets{{{MATCHERS}}})");
    use_row(
        "network",
        vec![
            counted(
                "Utilization: packets processed",
                "Packets that the per-CPU backlog handler processed.",
                "kstrobe_softnet_processed_total",
                "cpu",
            ),
            narrow(panel(
                "Saturation: accept queues",
                "How full accept queues are, the fullest of them. At 1 new connections are dropped.",
                "percentunit",
                Look::Lines,
                vec![Target::new(top(MAX_SERIES, &fill), "port {{port}}")],
            )),
            narrow(panel(
                "Saturation: packet backlog",
                "Packets in the per-CPU backlog.",
                "short",
                Look::Lines,
                vec![Target::new(top(MAX_SERIES, &backlog), "CPU {{cpu}}")],
            )),
            counted(
                "Saturation: time squeezes",
                "Times the receive softirq ran out of budget with work left.",
                "kstrobe_softnet_squeezed_total",
                "cpu",
            ),
            counted(
                "Errors: retransmits",
                "TCP segments sent again, by state.",
                "kstrobe_tcp_retransmits_total",
                "state",
            ),
            counted(
                "Errors: drops",
                "Packets that the kernel dropped, by reason.",
                "kstrobe_packet_drops_total",
                "reason",
            ),
        ],
    )
}

fn memory(form: Form) -> Row {
    use_row(
        "memory",
        vec![
            counted("Utilization: page faults", "Page faults by mode.", "kstrobe_page_faults_total", "mode"),
            at_a_time(
                "Saturation: tasks reclaiming",
                "Tasks that reclaim memory instead of working, on average.",
                "kstrobe_direct_reclaim_duration_seconds",
                "",
                form,
            ),
            counted("Errors: OOM kills", "Processes killed because memory was out.", "kstrobe_oom_kills_total", "comm"),
        ],
    )
}
