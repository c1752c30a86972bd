//! Interrupts and softirqs by CPU: `/proc/interrupts` and `/proc/softirqs`, which have one shape.

use super::{Rows, Source, number, read_file, small, text};
use std::io;

pub const INTERRUPTS: Source = Source {
    name: "interrupts",
    summary: "interrupts by CPU, of /proc/interrupts; `device` is the rest of the line",
    columns: &[text("irq", 16), text("device", 64), small("cpu"), number("count")],
    open: || Box::new(|rows| push(rows, &read_file("/proc/interrupts")?, true)),
};

pub const SOFTIRQS: Source = Source {
    name: "softirqs",
    summary: "softirqs by CPU, of /proc/softirqs",
    columns: &[text("softirq", 16), small("cpu"), number("count")],
    open: || Box::new(|rows| push(rows, &read_file("/proc/softirqs")?, false)),
};

/// Softirqs that have run, of all kinds and CPUs.
pub fn softirqs() -> io::Result<f64> {
    // Names of kinds and CPUs are no numbers.
    let counts = read_file("/proc/softirqs")?;
    Ok(counts.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum::<u64>() as f64)
}

/// The heading names the CPUs that are online; lines have a name, a count for each, and perhaps words for people. Lines without a count
/// for each CPU (`ERR`, `MIS`) are sums of errors that belong to none, given to the first.
fn push(rows: &mut Rows, text: &str, with_device: bool) -> io::Result<()> {
    let mut lines = text.lines();
    let cpus: Option<Vec<u32>> = lines
        .next()
        .map(|heading| heading.split_whitespace().map_while(|name| name.strip_prefix("CPU")?.parse().ok()).collect());
    let cpus = cpus.filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the first line of /proc/interrupts or /proc/softirqs names no CPU")
    })?;
    for (name, rest) in lines.filter_map(|line| line.split_once(':')) {
        let name = name.trim().to_lowercase();
        let words: Vec<&str> = rest.split_whitespace().collect();
        let counts: Vec<u64> = words.iter().take(cpus.len()).map_while(|word| word.parse().ok()).collect();
        let device = words[counts.len()..].join(" ");
        for (cpu, count) in cpus.iter().zip(&counts) {
            match with_device {
                true => rows.push(&[name.as_str().into(), device.as_str().into(), (*cpu).into(), (*count).into()]),
                false => rows.push(&[name.as_str().into(), (*cpu).into(), (*count).into()]),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::pollers::tests::{text_at, word};

    #[test]
    fn counts_belong_to_the_cpus_of_the_heading() {
        let text = "\
           CPU0       CPU2
 24:          1          7  IO-APIC   5-edge      ACPI:Ged
NMI:          3          4   Non-maskable interrupts
ERR:          5
";
        let mut rows = Rows::of(&INTERRUPTS);
        push(&mut rows, text, true).unwrap();
        let found: Vec<_> =
            rows.iter().map(|row| (text_at(row, 0), text_at(row, 16), row[80], word(row, 88))).collect();
        let line = |irq: &str, device: &str, cpu, count| (irq.to_owned(), device.to_owned(), cpu, count);
        let expected = [
            line("24", "IO-APIC 5-edge ACPI:Ged", 0, 1),
            line("24", "IO-APIC 5-edge ACPI:Ged", 2, 7),
            line("nmi", "Non-maskable interrupts", 0, 3),
            line("nmi", "Non-maskable interrupts", 2, 4),
            line("err", "", 0, 5),
        ];
        assert_eq!(found, expected);
        assert!(push(&mut Rows::of(&INTERRUPTS), "nothing\n", true).is_err());
    }
}
