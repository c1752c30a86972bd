//! `/proc/net/snmp` and `/proc/net/netstat`: pairs of lines, names and then values, each with the same prefix.

use super::Rows;

/// Room for a name with its NUL; the kernel's longest is 35 bytes.
pub const NAME_BYTES: usize = 48;

/// Appends one row per counter, named prefix and name in one word as nstat prints them (`TcpExtTCPTimeouts`). Values that
/// are not counters at all (Tcp MaxConn is -1), lines without their partner and names that do not fit are left out.
pub fn parse(text: &str, rows: &mut Rows) {
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
            let length = prefix.len() + name.len();
            if let (Ok(value), true) = (value.parse::<u64>(), length < NAME_BYTES) {
                rows.bytes.extend_from_slice(prefix.as_bytes());
                rows.bytes.extend_from_slice(name.as_bytes());
                rows.bytes.resize(rows.bytes.len() + NAME_BYTES - length, 0);
                rows.push_words(&[value]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<(String, u64)> {
        let mut rows = Rows { row_bytes: NAME_BYTES + 8, bytes: vec![] };
        parse(text, &mut rows);
        let name =
            |row: &[u8]| String::from_utf8(row[..NAME_BYTES].to_vec()).unwrap().trim_end_matches('\0').to_owned();
        let value = |row: &[u8]| u64::from_le_bytes(row[NAME_BYTES..].try_into().unwrap());
        rows.iter().map(|row| (name(row), value(row))).collect()
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
}
