//! What one asks of a busy node, as PromQL.

use crate::prometheus::Prometheus;
use anyhow::Result;

/// Most answers shown.
const MAX_SHOWN: usize = 5;

/// A question, its expression with `RANGE` for the time the load took, and the unit of its answers.
const QUESTIONS: &[(&str, &str, &str)] = &[
    (
        "Who waits longest for data from the network (99th percentile)?",
        "topk(5, histogram_quantile(0.99, sum by (comm) (rate(kstrobe_recv_wait_seconds[RANGE]))))",
        "s",
    ),
    (
        "And how long does the kernel work on it, waiting not counted?",
        "topk(5, histogram_quantile(0.99, sum by (comm) (rate(kstrobe_recv_work_seconds[RANGE]))))",
        "s",
    ),
    (
        "Who waits longest for a CPU?",
        "topk(5, histogram_quantile(0.99, sum by (comm) (rate(kstrobe_runqueue_latency_seconds[RANGE]))))",
        "s",
    ),
    (
        "Which system calls take the most time?",
        "topk(5, sum by (syscall) (histogram_sum(rate(kstrobe_syscall_duration_seconds[RANGE]))))",
        "s/s",
    ),
    (
        "How long does a softirq wait until it runs?",
        "topk(5, histogram_quantile(0.99, sum by (vector) (rate(kstrobe_softirq_delay_seconds[RANGE]))))",
        "s",
    ),
    (
        "Which errors do system calls end with?",
        "topk(5, sum by (syscall, errno) (rate(kstrobe_syscall_errors_total[RANGE])))",
        "/s",
    ),
    (
        "What do the probes themselves cost?",
        "topk(5, sum by (probe) (rate(kstrobe_program_run_seconds_total[RANGE])))",
        "CPUs",
    ),
    (
        "Which probes have hooks that this kernel lacks (the reasons: /api/v1/probes)?",
        "count by (probe) (kstrobe_probe_attached == 0)",
        "hooks",
    ),
];

/// Asks all of them and prints the answers.
pub fn answer(prometheus: &Prometheus, seconds: u64) -> Result<()> {
    for (question, expression, unit) in QUESTIONS {
        let expression = expression.replace("RANGE", &format!("{seconds}s"));
        println!("{question}\n  {expression}");
        let samples = prometheus.query(&expression)?;
        for sample in samples.iter().take(MAX_SHOWN) {
            println!("  {:>12.6} {unit:<5} {}", sample.value, sample.labels());
        }
        match samples.len() {
            0 => println!("  none"),
            n if n > MAX_SHOWN => println!("  and {} more", n - MAX_SHOWN),
            _ => {}
        }
        println!();
    }
    Ok(())
}
