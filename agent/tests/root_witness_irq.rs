//! The probe of hardware interrupts against the kernel's own counters of them.

mod support;

use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use support::agent::Setup;
use support::metrics::{Labels, Metrics};
use support::trace_instance::TraceInstance;
use support::{Folder, not_run};

/// Reads of the disk, each of which is an interrupt at its end.
const READS: u64 = 400;
const BLOCK_BYTES: usize = 4096;

/// A disk, or a file on one, to read past the page cache.
fn something_to_read(folder: &Folder) -> File {
    let mut open = OpenOptions::new();
    open.read(true).custom_flags(OFlag::O_DIRECT.bits());
    if let Ok(disk) = std::env::var("KSTROBE_SPARE_DISK") {
        return open.open(format!("/dev/{disk}")).expect("the spare disk opens");
    }
    let path = folder.0.join("blocks");
    std::fs::write(&path, vec![7; 256 * BLOCK_BYTES]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    open.open(&path).unwrap()
}

fn read(file: &File) {
    #[repr(align(4096))]
    struct Block([u8; BLOCK_BYTES]);
    let mut block = Block([0; BLOCK_BYTES]);
    for n in 0..READS {
        file.read_exact_at(&mut block.0, n % 256 * BLOCK_BYTES as u64).unwrap();
    }
}

/// Interrupts with a number: number, count of all CPUs, and the end of the row, which names the devices.
fn proc_interrupts() -> Vec<(String, f64, String)> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let cpus = text.lines().next().unwrap().split_whitespace().count();
    let rows = text.lines().skip(1).filter_map(|line| {
        let (number, rest) = line.trim().split_once(':')?;
        number.parse::<u32>().ok()?;
        let total = rest.split_whitespace().take(cpus).map(|n| n.parse::<f64>().unwrap()).sum();
        Some((number.to_owned(), total, rest.trim().to_owned()))
    });
    rows.collect()
}

#[test]
#[ignore = "needs root"]
fn root_hardirq_counts_agree_with_proc_interrupts() {
    let folder = Folder::new();
    let file = something_to_read(&folder);
    let agent = Setup { arguments: &["--enable", "hardirqs"], ..Setup::default() }.start();
    let name = "kstrobe_hardirq_duration_seconds";
    let in_init = TraceInstance::of_init("irq/irq_handler_entry");
    // The scrape lies between two reads of the file on either side.
    let outer_before = proc_interrupts();
    let before = agent.scrape();
    let inner_before = proc_interrupts();
    read(&file);
    let inner_after = proc_interrupts();
    let after = agent.scrape();
    let outer_after = proc_interrupts();
    let at = |rows: &[(String, f64, String)], number: &str| {
        rows.iter().find(|(other, ..)| other == number).map_or(0.0, |(_, count, _)| *count)
    };
    // What is not in a row of its own is in a counter: a run of a program that the kernel left out, or a lost event with its reason.
    let counted_as_lost = |metrics: &Metrics| {
        ["kstrobe_lost_total", "kstrobe_program_missed_total"]
            .map(|name| metrics.sum(name, &[("probe", "hardirqs")]))
            .iter()
            .sum::<f64>()
    };
    let lost = counted_as_lost(&after) - counted_as_lost(&before);
    let hidden = in_init.map(|recorded| recorded.counts("irq=", " ")).unwrap_or_default();
    let rows: Vec<(Labels, f64)> = [format!("{name}_count"), "kstrobe_lost_total".to_owned()]
        .iter()
        .flat_map(|name| after.series(name, &[]).map(|(labels, value)| (labels.clone(), value)).collect::<Vec<_>>())
        .collect();
    let mut most = 0.0;
    for (number, now, row) in &inner_after {
        // Each device of a shared line has a handler, which all run.
        if row.contains(", ") {
            continue;
        }
        let (inner, outer) = (now - at(&inner_before, number), at(&outer_after, number) - at(&outer_before, number));
        let labels = [("irq", number.as_str())];
        let count = |metrics: &Metrics| metrics.sum(&format!("{name}_count"), &labels);
        let ours = count(&after) - count(&before);
        let slack = outer * 0.02 + 3.0;
        let unseen = lost + hidden.get(number).copied().unwrap_or_default();
        assert!(
            ours + unseen >= inner - slack && ours <= outer + slack,
            "{number}: {ours}, {lost} lost and {unseen} not seen, /proc/interrupts {inner}..={outer}: {row}\n{rows:#?}"
        );
        for (labels, _) in after.series(&format!("{name}_count"), &labels) {
            assert!(row.ends_with(&labels["device"]), "{labels:?}: {row}");
        }
        if inner > most {
            most = inner;
            let times = after.histogram(name, &labels).since(&before.histogram(name, &labels));
            assert!(times.mean() > 0.0 && times.mean() < 0.1, "{times:?}: {row}");
        }
    }
    if most < READS as f64 / 4.0 {
        not_run("root_hardirq_counts_agree_with_proc_interrupts", "reads of the disk make no interrupts");
    }
    agent.stop();
}
