//! Cost per event: every variant attached in turn, many times over, on the same load.

use super::variants::{Skipped, Variant};
use super::{in_turn, load, table};
use anyhow::{Result, bail};
use std::time::Duration;

/// A variant's result: the fastest call of each round, in nanoseconds.
struct Measured {
    letter: char,
    name: &'static str,
    rounds_ns: Vec<f64>,
}

impl Measured {
    fn fastest_ns(&self) -> f64 {
        self.rounds_ns.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median_ns(&self) -> f64 {
        let mut sorted = self.rounds_ns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Measures all variants and returns the report.
pub fn run(mut variants: Vec<Variant>, skipped: &[Skipped], cpu: usize, rounds: usize, calls: u32) -> Result<String> {
    let mut results: Vec<Measured> =
        variants.iter().map(|v| Measured { letter: v.letter, name: v.name, rounds_ns: Vec::new() }).collect();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for i in in_turn(round, variants.len()) {
            results[i].rounds_ns.push(measure(&mut variants[i], cpu, calls)?);
        }
    }
    Ok(report(&results, skipped, rounds, calls))
}

/// One variant, one round.
fn measure(variant: &mut Variant, cpu: usize, calls: u32) -> Result<f64> {
    let attached = variant.setup.attach()?;
    // Attaching patches kernel code and wakes every CPU; let that pass.
    std::thread::sleep(Duration::from_millis(20));
    let ns = load::fastest_call_ns(cpu, calls)?;
    // A fast program that counts nothing would win: what it saw must be what was called, within the share that bpftrace
    // may lose and the few calls that others on the machine make.
    if let Some(seen) = variant.setup.detach(attached)? {
        let (least, most) = (f64::from(calls) * 0.99, f64::from(calls) * 1.05);
        if !(least..=most).contains(&(seen as f64)) {
            bail!("({}) {} counted {seen} of {calls} calls", variant.letter, variant.name);
        }
    }
    Ok(ns)
}

fn report(results: &[Measured], skipped: &[Skipped], rounds: usize, calls: u32) -> String {
    let fastest = |letter| results.iter().find(|m| m.letter == letter).map(Measured::fastest_ns);
    let (bare, floor) = (fastest('a').unwrap_or(0.0), fastest('b'));
    // Cost above the floor, as a share of another variant's.
    let share = |ns: f64, of| {
        let floor = floor?;
        let (above, reference) = (ns - floor, fastest(of)? - floor);
        (ns > floor && reference > 0.0).then(|| format!("{:.2}x", above / reference))
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = results.iter().map(|m| {
        let ns = m.fastest_ns();
        vec![
            format!("({}) {}", m.letter, m.name),
            or_dash(share(ns, 'c')),
            or_dash(share(ns, 'd')),
            or_dash(floor.filter(|_| m.letter != 'a').map(|f| format!("{:.0}", ns - f))),
            if m.letter == 'a' { "-".to_owned() } else { format!("{:.0}", ns - bare) },
            format!("{ns:.0}"),
            format!("{:.0}", m.median_ns()),
        ]
    });
    let head =
        ["variant", "cost / (c)", "cost / (d)", "above floor, ns", "added, ns", "fastest call, ns", "median round, ns"];
    let mut text = format!(
        "### Cost per system call (enter and exit)\n\n`getppid` on one CPU, {calls} calls a round, {rounds} interleaved \
         rounds; the fastest 10,000 calls of all rounds count. Ratios are of the cost above the floor (b).\n\n"
    );
    text += &table::markdown(&head, rows);
    for s in skipped {
        text += &format!("\nNot run: {} ({})\n", s.name, s.reason);
    }
    text
}
