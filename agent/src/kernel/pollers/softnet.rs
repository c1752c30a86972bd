//! `/proc/net/softnet_stat`: one line of hexadecimal columns per online CPU.
//!
//! 0 processed, 1 dropped, 2 time_squeeze, 9 received_rps, 10 flow_limit, 11 backlog, 12 CPU id (both since 5.7),
//! 13 input queue, 14 process queue (since 6.4).

use super::{Reading, Source, number, read_file, small};
use std::collections::BTreeMap;
use std::io;

pub const SOURCE: Source = Source {
    name: "softnet",
    summary: "per-CPU packet backlog of /proc/net/softnet_stat",
    columns: &[small("cpu"), number("processed"), number("dropped"), number("squeezed"), number("backlog")],
    open,
};

fn open() -> Reading {
    let mut totals = Totals::default();
    Box::new(move |rows| {
        for cpu in totals.update(&parse(&read_file("/proc/net/softnet_stat")?)?) {
            let row = [cpu.processed, cpu.dropped, cpu.squeezed, cpu.backlog];
            rows.push(&[&[cpu.cpu.into()], row.map(Into::into).as_slice()].concat());
        }
        Ok(())
    })
}

/// One CPU's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// CPU id.
    cpu: u32,
    /// Packets processed.
    processed: u32,
    /// Packets dropped as the backlog was full.
    dropped: u32,
    /// Times the softirq ran out of budget.
    squeezed: u32,
    /// Packets waiting now.
    backlog: u32,
}

fn parse(text: &str) -> io::Result<Vec<Line>> {
    text.lines().enumerate().map(|(number, line)| parse_line(number, line)).collect()
}

fn parse_line(number: usize, line: &str) -> io::Result<Line> {
    let parsed: Result<Vec<u32>, _> = line.split_whitespace().map(|word| u32::from_str_radix(word, 16)).collect();
    let columns = parsed.ok().filter(|columns| columns.len() >= 3).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("/proc/net/softnet_stat line {}: `{line}`", number + 1))
    })?;
    let column = |at: usize| columns.get(at).copied();
    let queues = column(13).zip(column(14)).map(|(input, process)| input.wrapping_add(process));
    Ok(Line {
        // Lines of offline CPUs are left out, so the line number is the CPU only where the kernel does not say better.
        cpu: column(12).unwrap_or(number as u32),
        processed: columns[0],
        dropped: columns[1],
        squeezed: columns[2],
        backlog: queues.or(column(11)).unwrap_or(0),
    })
}

/// The kernel's 32-bit counters continued to 64 bits: a busy CPU wraps `processed` within the hour, and an exported
/// counter must not go back.
#[derive(Debug, Default)]
struct Totals {
    cpus: BTreeMap<u32, [(u32, u64); 3]>,
}

/// One CPU's continued counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Total {
    /// CPU id.
    cpu: u32,
    /// Packets processed.
    processed: u64,
    /// Packets dropped as the backlog was full.
    dropped: u64,
    /// Times the softirq ran out of budget.
    squeezed: u64,
    /// Packets waiting now.
    backlog: u64,
}

impl Totals {
    /// Adds what happened since the last reading.
    fn update(&mut self, lines: &[Line]) -> Vec<Total> {
        let mut totals = Vec::with_capacity(lines.len());
        for line in lines {
            let state = self.cpus.entry(line.cpu).or_insert([(0, 0); 3]);
            for ((last, total), now) in state.iter_mut().zip([line.processed, line.dropped, line.squeezed]) {
                *total += u64::from(now.wrapping_sub(*last));
                *last = now;
            }
            let [(_, processed), (_, dropped), (_, squeezed)] = *state;
            totals.push(Total { cpu: line.cpu, processed, dropped, squeezed, backlog: u64::from(line.backlog) });
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX_6_18: &str = "\
0000ff0b 00000002 0000000a 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000009 00000000 00000003 00000004
00001664 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000
";

    #[test]
    fn the_cpu_is_a_column_when_there_is_one() {
        let lines = parse(LINUX_6_18).unwrap();
        assert_eq!(lines[0], Line { cpu: 0, processed: 0xff0b, dropped: 2, squeezed: 10, backlog: 7 });
        assert_eq!(lines[1], Line { cpu: 3, processed: 0x1664, dropped: 0, squeezed: 0, backlog: 0 });

        let linux_5_10 = LINUX_6_18.lines().next().unwrap().split(' ').take(13).collect::<Vec<_>>().join(" ");
        assert_eq!(parse(&linux_5_10).unwrap()[0].backlog, 9);
        assert_eq!(parse("1 2 3\n4 5 6\n").unwrap()[1].cpu, 1);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = parse("00000001 00000002 00000003\nnonsense\n").unwrap_err();
        assert!(error.to_string().contains("line 2: `nonsense`"), "{error}");
        assert!(parse("00000001 00000002\n").is_err());
    }

    #[test]
    fn counters_go_on_where_the_kernels_wrap() {
        let line = |processed| Line { cpu: 1, processed, dropped: 0, squeezed: 0, backlog: 0 };
        let mut totals = Totals::default();
        assert_eq!(totals.update(&[line(u32::MAX - 1)])[0].processed, u64::from(u32::MAX) - 1);
        assert_eq!(totals.update(&[line(3)])[0].processed, (1 << 32) + 3);
    }
}
