//! Counters of the network's protocols. `/proc/net/snmp` and `/proc/net/netstat` are pairs of lines, names and then values, each with the
//! same prefix; `/proc/net/snmp6` and `/proc/net/sctp/snmp` have a name and a value in each line.

use super::{Rows, Source, number, read_file, text};
use std::io;

/// Room for a name with its NUL; the kernel's longest is 35 bytes.
const NAME_BYTES: usize = 48;

pub const SOURCE: Source = Source {
    name: "netstat",
    summary: "counters of /proc/net/snmp, netstat, snmp6 and sctp/snmp, named as nstat does",
    columns: &[text("name", NAME_BYTES), number("value")],
    open: || Box::new(read),
};

fn read(rows: &mut Rows) -> io::Result<()> {
    parse(&read_file("/proc/net/snmp")?, rows);
    parse(&read_file("/proc/net/netstat")?, rows);
    // Kernels without IPv6, or whose module of SCTP is not loaded, have no such file.
    for file in ["/proc/net/snmp6", "/proc/net/sctp/snmp"] {
        parse_lines(&read_file(file).unwrap_or_default(), rows);
    }
    Ok(())
}

/// One row per line of a name and a value.
fn parse_lines(text: &str, rows: &mut Rows) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse::<u64>)) {
            rows.push(&[name.into(), value.into()]);
        }
    }
}

/// Appends one row per counter, named prefix and name in one word as nstat prints them (`TcpExtTCPTimeouts`). Values that
/// are not counters at all (Tcp MaxConn is -1), lines without their partner and names that do not fit are left out.
fn parse(text: &str, rows: &mut Rows) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((prefix, names)), Some((values_prefix, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        if prefix != values_prefix {
            continue;
        }
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            let name = format!("{prefix}{name}");
            if let (Ok(value), true) = (value.parse::<u64>(), name.len() < NAME_BYTES) {
                rows.push(&[name.as_str().into(), value.into()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::pollers::tests::{text_at, word};

    fn rows(text: &str) -> Vec<(String, u64)> {
        let mut rows = Rows::of(&SOURCE);
        parse(text, &mut rows);
        rows.iter().map(|row| (text_at(row, 0), word(row, NAME_BYTES))).collect()
    }

    #[test]
    fn names_are_nstats_and_negative_values_are_skipped() {
        let text = "\
Tcp: RtoAlgorithm MaxConn ActiveOpens
Tcp: 1 -1 49
TcpExt: TCPLossProbes TCPTimeouts
TcpExt: 7 18446744073709551615
";
        let expected = [
            ("TcpRtoAlgorithm", 1),
            ("TcpActiveOpens", 49),
            ("TcpExtTCPLossProbes", 7),
            ("TcpExtTCPTimeouts", u64::MAX),
        ];
        assert_eq!(rows(text), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn odd_lines_do_no_harm() {
        let long = "x".repeat(60);
        let text = format!("Ip: A B\nTcp: 1 2\nno colon\nat all\nUdp: {long} Fits\nUdp: 1 2\nIcmp: A\n");
        assert_eq!(rows(&text), [("UdpFits".to_owned(), 2)]);
        assert_eq!(rows(""), []);
    }

    #[test]
    fn files_with_a_counter_in_each_line_are_read_too() {
        let mut rows = Rows::of(&SOURCE);
        parse_lines("Ip6InReceives                   \t17\nIcmp6OutType143 \t3\nodd\n", &mut rows);
        let found: Vec<_> = rows.iter().map(|row| (text_at(row, 0), word(row, NAME_BYTES))).collect();
        assert_eq!(found, [("Ip6InReceives".to_owned(), 17), ("Icmp6OutType143".to_owned(), 3)]);
    }
}
