//! Time in interrupts and softirqs.

use super::text::{Table, head, not_recorded, time};
use super::{Asked, Happening};
use serde::Serialize;
use std::collections::HashMap;

/// Time in interrupts and softirqs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interrupts {
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// The most time first.
    pub rows: Vec<InterruptRow>,
    /// Entries without their exit, and the other way round.
    pub unpaired: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    /// A device's handler (`irq:irq_handler_*`).
    Irq,
    /// A softirq (`irq:softirq_*`).
    Softirq,
    /// One of the CPU's own vectors (`irq_vectors:*`).
    Vector,
}

/// One interrupt on one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterruptRow {
    pub kind: InterruptKind,
    /// Interrupt number, or that of the softirq.
    pub number: Option<u64>,
    /// The handler's name, or that of the softirq.
    pub name: String,
    /// Where.
    pub cpu: u32,
    /// How often it was seen from entry to exit.
    pub count: u64,
    /// Time from entry to exit, other interrupts meanwhile included.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Interrupts of others meanwhile.
    pub interrupted_ns: u64,
    /// Delays of a softirq from the first `softirq_raise` to its entry: how many were seen.
    pub raised: u64,
    /// Their sum.
    pub raised_ns: u64,
    /// The longest.
    pub raised_max_ns: u64,
}

/// Softirqs by number, the same on all kernels.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

type Key = (InterruptKind, Option<u64>, String, u32);

/// An interrupt that is not over.
struct Open {
    key: Key,
    start_ns: u64,
    interrupted_ns: u64,
    raised_ns: Option<u64>,
}

/// Time in interrupts and softirqs (`irq:*`, `irq_vectors:*`).
pub fn interrupts<'a>(events: impl Iterator<Item = Happening<'a>>, asked: &Asked) -> Interrupts {
    let mut report = Interrupts::default();
    let mut rows: HashMap<Key, InterruptRow> = HashMap::new();
    // Per CPU what is going on, the outermost first.
    let mut open: HashMap<u32, Vec<Open>> = HashMap::new();
    let mut raised: HashMap<(u32, u64), u64> = HashMap::new();
    let mut seen = [false; 2];
    for event in events {
        let cpu = event.cpu;
        if event.lost {
            report.unpaired += open.remove(&cpu).map_or(0, |open| open.len() as u64);
            raised.retain(|(on, _), _| *on != cpu);
        }
        let vector = event.system() == "irq_vectors";
        let (kind, enters) = match event.name() {
            "irq_handler_entry" => (InterruptKind::Irq, true),
            "irq_handler_exit" => (InterruptKind::Irq, false),
            "softirq_entry" => (InterruptKind::Softirq, true),
            "softirq_exit" => (InterruptKind::Softirq, false),
            "softirq_raise" => {
                if let Some(number) = event.number("vec") {
                    raised.entry((cpu, number)).or_insert(event.time_ns);
                }
                continue;
            }
            name if vector && name.ends_with("_entry") => (InterruptKind::Vector, true),
            name if vector && name.ends_with("_exit") => (InterruptKind::Vector, false),
            _ => continue,
        };
        seen[usize::from(kind == InterruptKind::Softirq)] = true;
        if !asked.cpus.is_empty() && !asked.cpus.contains(&cpu) {
            continue;
        }
        let number = match kind {
            InterruptKind::Irq => event.number("irq"),
            InterruptKind::Softirq => event.number("vec"),
            InterruptKind::Vector => event.number("vector"),
        };
        let name = || match kind {
            InterruptKind::Irq => event.text("name").map(|name| name.into_owned()),
            InterruptKind::Softirq => number.and_then(|number| Some((*SOFTIRQS.get(number as usize)?).to_owned())),
            InterruptKind::Vector => event.name().strip_suffix("_entry").map(str::to_owned),
        };
        let stack = open.entry(cpu).or_default();
        if enters {
            let key = (kind, number, name().unwrap_or_else(|| "?".to_owned()), cpu);
            let raised_ns =
                number.filter(|_| kind == InterruptKind::Softirq).and_then(|number| raised.remove(&(cpu, number)));
            stack.push(Open { key, start_ns: event.time_ns, interrupted_ns: 0, raised_ns });
            continue;
        }
        let Some(at) = stack.iter().rposition(|one| one.key.0 == kind && one.key.1 == number) else {
            report.unpaired += 1;
            continue;
        };
        // What was entered after it and did not end has lost its exit.
        report.unpaired += (stack.len() - at - 1) as u64;
        stack.truncate(at + 1);
        let Some(done) = stack.pop() else { continue };
        let total_ns = event.time_ns.saturating_sub(done.start_ns);
        if let Some(outer) = stack.last_mut() {
            outer.interrupted_ns = outer.interrupted_ns.saturating_add(total_ns);
        }
        let (kind, number, name, cpu) = done.key.clone();
        let row = rows.entry(done.key).or_insert(InterruptRow {
            kind,
            number,
            name,
            cpu,
            count: 0,
            total_ns: 0,
            max_ns: 0,
            interrupted_ns: 0,
            raised: 0,
            raised_ns: 0,
            raised_max_ns: 0,
        });
        row.count += 1;
        row.total_ns = row.total_ns.saturating_add(total_ns);
        row.max_ns = row.max_ns.max(total_ns);
        row.interrupted_ns = row.interrupted_ns.saturating_add(done.interrupted_ns);
        if let Some(raised_ns) = done.raised_ns {
            let delay_ns = done.start_ns.saturating_sub(raised_ns);
            row.raised += 1;
            row.raised_ns = row.raised_ns.saturating_add(delay_ns);
            row.raised_max_ns = row.raised_max_ns.max(delay_ns);
        }
    }
    report.unpaired += open.values().map(|open| open.len() as u64).sum::<u64>();
    let names = [["irq_handler_entry", "irq_handler_exit"], ["softirq_entry", "softirq_exit"]];
    for (names, _) in names.into_iter().zip(seen).filter(|(_, seen)| !seen) {
        report.not_recorded.extend(names.map(str::to_owned));
    }
    report.rows = rows.into_values().collect();
    report.rows.sort_by(|one, two| {
        (two.total_ns, one.kind, &one.name, one.cpu).cmp(&(one.total_ns, two.kind, &two.name, two.cpu))
    });
    report
}

impl Interrupts {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, "Interrupts and softirqs");
        not_recorded(out, &self.not_recorded);
        if self.rows.is_empty() {
            return;
        }
        let mut table = Table::new(&[
            "kind",
            ">number",
            "name",
            ">CPU",
            ">count",
            ">total",
            ">max",
            ">interrupted",
            ">raised",
            ">mean delay",
            ">max delay",
        ]);
        for row in &self.rows {
            let kind = match row.kind {
                InterruptKind::Irq => "irq",
                InterruptKind::Softirq => "softirq",
                InterruptKind::Vector => "vector",
            };
            let number = row.number.map_or("-".to_owned(), |number| number.to_string());
            let mut cells = vec![kind.to_owned(), number, row.name.clone(), row.cpu.to_string(), row.count.to_string()];
            cells.extend([row.total_ns, row.max_ns, row.interrupted_ns].map(time));
            if let Some(mean_ns) = row.raised_ns.checked_div(row.raised) {
                cells.extend([row.raised.to_string(), time(mean_ns), time(row.raised_max_ns)]);
            }
            table.row(cells);
        }
        table.render(out);
        if self.unpaired > 0 {
            head(out, &format!("  {} entries or exits without the other", self.unpaired));
        }
    }
}
