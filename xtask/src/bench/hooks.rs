//! What each kind of hook costs, stacks and slow events included: the agent alone, with one probe a row.

use super::agent::{self, Agent, Settings};
use super::{in_turn, load, table};
use anyhow::{Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// Probe of `xtask/bench/hooks.yaml`, what it shows, and the metric that says how much it saw.
struct Row {
    probe: &'static str,
    name: &'static str,
    seen: &'static str,
    /// Whether it counts the calls; if not, it must count none.
    counts: bool,
}

const fn row(probe: &'static str, name: &'static str, seen: &'static str) -> Row {
    Row { probe, name, seen, counts: true }
}

/// One that lets no event through.
const fn filtered(probe: &'static str, name: &'static str, seen: &'static str) -> Row {
    Row { probe, name, seen, counts: false }
}

/// The first is what the others are compared with.
const ROWS: [Row; 19] = [
    row("bench_tp_btf", "counter at a BTF-typed tracepoint", "kstrobe_bench_tp_btf_total"),
    row("bench_selected", "the same of cgroups that a condition means", "kstrobe_bench_selected_total"),
    filtered("bench_unselected", "the same of others: it ends at the look-up", "kstrobe_bench_unselected_total"),
    row("bench_tracepoint", "counter at a perf tracepoint", "kstrobe_bench_tracepoint_total"),
    row("bench_fentry", "counter at fentry", "kstrobe_bench_fentry_total"),
    row("bench_fexit", "counter at fexit", "kstrobe_bench_fexit_total"),
    row("bench_kprobe", "counter at a kprobe", "kstrobe_bench_kprobe_total"),
    row("bench_kretprobe", "counter at a kretprobe", "kstrobe_bench_kretprobe_total"),
    row("bench_kprobe_multi", "counter at kprobe_multi", "kstrobe_bench_kprobe_multi_total"),
    row("bench_uprobe", "counter at a uprobe", "kstrobe_bench_uprobe_total"),
    row("bench_uretprobe", "counter at a uretprobe", "kstrobe_bench_uretprobe_total"),
    row("bench_span", "histogram of a span", "kstrobe_bench_span_seconds_count"),
    row("bench_slow_never", "the same with `slow:`, none slow", "kstrobe_bench_slow_never_seconds_count"),
    row("bench_slow_limited", "the same, all slow, 10 records a second", "kstrobe_bench_slow_limited_seconds_count"),
    row("bench_slow_each", "the same, a record of each", "kstrobe_bench_slow_each_seconds_count"),
    row("bench_kernel_stack", "counter and the kernel's stack", "kstrobe_bench_kernel_stack_total"),
    row("bench_frame_pointers", "counter and user stack by frame pointers", "kstrobe_bench_frame_pointers_total"),
    row("bench_user_stack", "counter and user stack by tables", "kstrobe_bench_user_stack_total"),
    row("bench_stacks", "counter and stacks, kernel and user", "kstrobe_bench_stacks_total"),
];

/// Nanoseconds of the fastest call with nothing attached, then of each row; why a row is not run.
type Results = Vec<Result<Vec<f64>, String>>;

/// Measures all rows and returns the report.
pub fn run(sources: &Path, build: &Path, binary: &Path, cpu: usize, rounds: usize, calls: u32) -> Result<String> {
    let mut bare = Vec::new();
    let mut results: Results = ROWS.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        bare.push(load::fastest_call_ns(cpu, calls)?);
        for i in in_turn(round, ROWS.len()) {
            let Ok(rounds_ns) = &mut results[i] else { continue };
            match measure(&ROWS[i], sources, build, binary, cpu, calls)? {
                Ok(ns) => rounds_ns.push(ns),
                Err(reason) => results[i] = Err(reason),
            }
        }
    }
    Ok(report(&bare, &results, rounds, calls))
}

/// One row, one round: nanoseconds of the fastest call, or why it cannot run here.
fn measure(
    row: &Row,
    sources: &Path,
    build: &Path,
    binary: &Path,
    cpu: usize,
    calls: u32,
) -> Result<Result<f64, String>> {
    let config = agent::only(build, row.probe, Some(&sources.join("hooks.yaml")))?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    let before = agent.scrape()?;
    if let Some(reason) = refusal(&before, row.probe) {
        agent.stop()?;
        return Ok(Err(reason));
    }
    // Attaching patches kernel code and wakes every CPU; let that pass.
    std::thread::sleep(Duration::from_millis(20));
    let before = match until_selected(&agent, before, row.probe)? {
        Ok(before) => before,
        Err(reason) => return Ok(Err(reason)),
    };
    let before = until_walked(&agent, before, cpu)?;
    let ns = load::fastest_call_ns(cpu, calls)?;
    let after = agent.scrape()?;
    agent.stop()?;
    let seen = |text: &str| agent::plain_value(text, row.seen);
    let Some(counted) = seen(&after) else { return Ok(Err(format!("no {} in /metrics", row.seen))) };
    let counted = counted - seen(&before).unwrap_or(0.0);
    if !row.counts && counted == 0.0 {
        return Ok(Ok(ns));
    }
    // A fast program that counts nothing would win.
    if !row.counts || !(f64::from(calls) * 0.99..=f64::from(calls) * 1.05).contains(&counted) {
        bail!("{} counted {counted} of {calls} calls", row.probe);
    }
    Ok(Ok(ns))
}

/// Scrapes until the agent knows which cgroups a probe's condition means, if it has one. For one that means none there is nothing
/// to wait for but the look at cgroups.
fn until_selected(agent: &Agent, first: String, probe: &str) -> Result<Result<String, String>> {
    let condition = format!("probe=\"{probe}\",map=\"ks_selected0\"");
    if !first.contains(&condition) {
        return Ok(Ok(first));
    }
    let begun = Instant::now();
    loop {
        let now = agent.scrape()?;
        let known = agent::value(&now, "kstrobe_workloads_cgroups", "state=\"named\"").unwrap_or(0.0);
        let meant = agent::value(&now, "kstrobe_map_entries", &condition).unwrap_or(0.0);
        if known > 0.0 && (meant > 0.0 || probe == "bench_unselected") {
            return Ok(Ok(now));
        }
        if begun.elapsed() > Duration::from_secs(10) {
            return Ok(Err("the agent does not know this machine's cgroups".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Calls until user stacks are walked by tables, where they are: the agent makes those of this process when the probe meets it.
fn until_walked(agent: &Agent, first: String, cpu: usize) -> Result<String> {
    let walks = |text: &str| agent::value(text, "kstrobe_user_stacks_total", "outcome=\"complete\"");
    let (begun, mut now) = (Instant::now(), first);
    while walks(&now) == Some(0.0) {
        if begun.elapsed() > Duration::from_secs(10) {
            bail!("no user stack was walked to its end");
        }
        load::fastest_call_ns(cpu, load::CHUNK)?;
        std::thread::sleep(Duration::from_millis(200));
        now = agent.scrape()?;
    }
    Ok(now)
}

/// Why the agent could not attach the probe, if so.
fn refusal(metrics: &str, probe: &str) -> Option<String> {
    let of_probe = format!("probe=\"{probe}\"");
    let line = metrics
        .lines()
        .find(|l| l.starts_with("kstrobe_probe_attached{") && l.contains(&of_probe) && l.ends_with(" 0"))?;
    let reason = line.split_once("reason=\"").map_or("not attached", |(_, rest)| rest);
    // Quotes inside the label are escaped; the text is for people.
    let end = reason.rfind("\"}").unwrap_or(reason.len());
    Some(reason[..end].replace("\\\"", "\"").replace("\\n", " "))
}

fn report(bare: &[f64], results: &Results, rounds: usize, calls: u32) -> String {
    let fastest = |rounds_ns: &[f64]| rounds_ns.iter().copied().fold(f64::INFINITY, f64::min);
    let bare = fastest(bare);
    let added = |i: usize| results[i].as_ref().ok().map(|rounds_ns| fastest(rounds_ns) - bare);
    let reference = added(0).filter(|ns| *ns > 0.0);
    let rows = ROWS.iter().enumerate().filter_map(|(i, row)| {
        let ns = added(i)?;
        let share = reference.map_or("-".to_owned(), |reference| format!("{:.2}x", ns / reference));
        Some(vec![row.name.to_owned(), share, format!("{ns:.0}"), format!("{:.0}", ns + bare)])
    });
    let mut text = format!(
        "### Cost per hook\n\n`getppid` on one CPU, {calls} calls a round, {rounds} interleaved rounds; the fastest 10,000 \
         calls of all rounds count. Without any probe a call takes {bare:.0} ns.\n\n"
    );
    text += &table::markdown(&["what the agent does", "cost / first", "added, ns", "fastest call, ns"], rows);
    for (row, result) in ROWS.iter().zip(results) {
        if let Err(reason) = result {
            text += &format!("\nNot run: {} ({reason})\n", row.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_refusal_is_told_in_the_agents_words() {
        let text = "kstrobe_probe_attached{probe=\"a\",hook=\"x\",kind=\"\",reason=\"no \\\"x\\\" here\"} 0\n\
                    kstrobe_probe_attached{probe=\"b\",hook=\"y\",kind=\"tp_btf\",reason=\"\"} 1\n";
        assert_eq!(super::refusal(text, "a").as_deref(), Some("no \"x\" here"));
        assert_eq!(super::refusal(text, "b"), None);
    }
}
