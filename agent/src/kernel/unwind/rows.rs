//! `.eh_frame` to rows: bytes in, rows out. Format: the DWARF standard's call frame information, as the Linux Standard Base has it in
//! `.eh_frame`; registers as in the System V ABI for x86-64. The `gimli` crate reads it.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use kstrobe_ebpf::unwind::{MAX_ROWS, Rule, SavedBp};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// From an address of the file on, up to the next row's, the rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub address: u64,
    pub rule: Rule,
}

/// The rows of a section that lies at this address, ascending, each with another rule than the one before. Entries that cannot be read are
/// left out: their addresses have [`Rule::Unknown`]. Of a section with more rows than there is room for, there are none.
pub fn rows(section: &[u8], address: u64) -> Vec<Row> {
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut section = EhFrame::new(section, LittleEndian);
    section.set_address_size(8);
    let mut context = UnwindContext::new();
    let mut functions: Vec<(u64, u64, Vec<Row>)> = Vec::new();
    let mut entries = section.entries(&bases);
    let mut all = 0;
    // The iterator ends where an entry's length is wrong: nothing behind it can be found.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(function) = partial.parse(|_, bases, at| section.cie_from_offset(bases, at)) else { continue };
        let (start, end) = (function.initial_address(), function.end_address());
        if start != 0 && start < end {
            let of_function = rows_of(&function, &section, &bases, &mut context);
            all += of_function.len() + 1;
            functions.push((start, end, of_function));
        }
        if all > MAX_ROWS as usize {
            return Vec::new();
        }
    }
    functions.sort_by_key(|(start, ..)| *start);
    joined(&functions)
}

/// The rows of functions one after the other.
fn joined(functions: &[(u64, u64, Vec<Row>)]) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    let mut add = |row: Row| {
        if all.last().is_none_or(|last| last.rule != row.rule) {
            all.push(row);
        }
    };
    for (i, (start, end, rows)) in functions.iter().enumerate() {
        let next = functions.get(i + 1).map_or(u64::MAX, |(next, ..)| *next);
        let first = rows.first().filter(|row| row.address == *start);
        if first.is_none() {
            add(Row { address: *start, rule: Rule::Unknown });
        }
        rows.iter().filter(|row| row.address < next).for_each(|row| add(*row));
        if *end < next {
            add(Row { address: *end, rule: Rule::Unknown });
        }
    }
    all
}

fn rows_of(
    function: &FrameDescriptionEntry<Bytes<'_>>,
    section: &EhFrame<Bytes<'_>>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let Ok(mut table) = function.rows(section, bases, context) else { return rows };
    loop {
        match table.next_row() {
            Ok(Some(row)) if rows.len() < MAX_ROWS as usize => {
                let rule = rule(row, function.cie(), section);
                rows.push(Row { address: row.start_address(), rule });
            }
            Ok(None) => return rows,
            // Where the last row ends is not known.
            Ok(Some(_)) | Err(_) => return Vec::new(),
        }
    }
}

fn rule(row: &UnwindTableRow<usize>, cie: &CommonInformationEntry<Bytes<'_>>, section: &EhFrame<Bytes<'_>>) -> Rule {
    // The kernel's own frame: other trampolines are marked so as well, with an address from registers.
    if cie.is_signal_trampoline() && matches!(row.cfa(), CfaRule::Expression(_)) {
        return Rule::Signal;
    }
    match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => return Rule::End,
        Some(RegisterRule::Offset(-8)) => {}
        _ => return Rule::Unknown,
    }
    let expression = |at: &UnwindExpression<usize>| at.get(section).ok().map(|bytes| bytes.0.slice());
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let (Some(words), Some(bp)) = (words(*offset), saved_bp(row.register(X86_64::RBP))) else {
                return Rule::Unknown;
            };
            match *register {
                X86_64::RSP => Rule::Sp { words, bp },
                X86_64::RBP => Rule::Bp { words, bp },
                Register(_) => Rule::Unknown,
            }
        }
        CfaRule::Expression(at) => match expression(at) {
            // A signed number of 7 bits.
            Some([0x76, offset, DEREF]) if saves_at_bp(row.register(X86_64::RBP), expression) => {
                words(-i64::from((*offset << 1) as i8 >> 1)).map_or(Rule::Unknown, |words| Rule::AlignedBp { words })
            }
            Some(bytes) => linkage_table(bytes).unwrap_or(Rule::Unknown),
            None => Rule::Unknown,
        },
    }
}

/// `DW_OP_deref`
const DEREF: u8 = 0x06;

fn words(bytes: i64) -> Option<u16> {
    (bytes % 8 == 0).then(|| u16::try_from(bytes / 8).ok()).flatten()
}

fn saved_bp(rule: Option<RegisterRule<usize>>) -> Option<SavedBp> {
    match rule {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Some(SavedBp(0)),
        Some(RegisterRule::Offset(offset)) => {
            words(-offset).and_then(|words| u8::try_from(words).ok()).filter(|w| *w > 0).map(SavedBp)
        }
        _ => None,
    }
}

/// Functions that align the stack save the caller's `rbp` where `rbp` points: `DW_OP_breg6 0`.
fn saves_at_bp<'a>(
    rule: Option<RegisterRule<usize>>,
    bytes: impl Fn(&UnwindExpression<usize>) -> Option<&'a [u8]>,
) -> bool {
    matches!(rule, Some(RegisterRule::Expression(at)) if bytes(&at) == Some(&[0x76, 0x00]))
}

/// What linkers write for a procedure linkage table: `rsp + 8 + ((rip & 15) >= from) * 8`.
fn linkage_table(bytes: &[u8]) -> Option<Rule> {
    // breg7 8; breg16 0; lit15; and; lit FROM; ge; lit3; shl; plus
    match bytes {
        [0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, from @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] => {
            Some(Rule::Plt { from: from - 0x30 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSection};
    use std::process::Command;

    fn rows_of_file(path: &str) -> Vec<Row> {
        let bytes = std::fs::read(path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        rows(section.data().unwrap(), section.address())
    }

    fn rule_at(rows: &[Row], address: u64) -> Rule {
        let after = rows.partition_point(|row| row.address <= address);
        after.checked_sub(1).map_or(Rule::Unknown, |at| rows[at].rule)
    }

    /// What `readelf` says of each row: address, canonical frame address, saved `rbp` and return address.
    fn listed(path: &str) -> Vec<(u64, String, String, String)> {
        let output = Command::new("readelf").args(["--debug-dump=frames-interp", path]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (mut columns, mut all, mut is_function) = (Vec::new(), Vec::new(), false);
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [.., "CIE", _, _, _, _] => is_function = false,
                [_, _, _, "FDE", ..] => is_function = true,
                ["LOC", ..] => columns = words.iter().map(|w| (*w).to_owned()).collect(),
                [address, cfa, ..] if is_function && words.len() == columns.len() => {
                    let column = |name: &str| columns.iter().position(|c| c == name).map_or("u", |at| words[at]);
                    let address = u64::from_str_radix(address, 16).unwrap();
                    all.push((address, cfa.to_owned(), column("rbp").to_owned(), column("ra").to_owned()));
                }
                _ => {}
            }
        }
        all
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn rows_are_those_that_readelf_lists() {
        for path in ["/bin/bash", "/lib/x86_64-linux-gnu/libc.so.6"] {
            if !std::path::Path::new(path).exists() {
                continue;
            }
            let rows = rows_of_file(path);
            assert!(rows.windows(2).all(|pair| pair[0].address < pair[1].address), "{path}");
            let (mut compared, mut expressions) = (0, 0);
            for (address, cfa, bp, ra) in listed(path) {
                let rule = rule_at(&rows, address);
                let below = |text: &str| text.strip_prefix("c-").and_then(|n| n.parse::<u16>().ok()).map(|n| n / 8);
                let saved = (bp == "u").then_some(0).or_else(|| below(&bp)).map(|words| SavedBp(words as u8));
                let expected = match (cfa.split_once('+'), saved) {
                    _ if ra == "u" => Rule::End,
                    (Some(("rsp", n)), Some(bp)) => Rule::Sp { words: n.parse::<u16>().unwrap() / 8, bp },
                    (Some(("rbp", n)), Some(bp)) => Rule::Bp { words: n.parse::<u16>().unwrap() / 8, bp },
                    _ => {
                        expressions += 1;
                        let is_known =
                            matches!(rule, Rule::Plt { .. } | Rule::AlignedBp { .. } | Rule::Signal | Rule::Unknown);
                        assert!(is_known, "{path} {address:#x}: {cfa} {rule:?}");
                        continue;
                    }
                };
                assert_eq!(rule, expected, "{path} {address:#x}: {cfa} {bp} {ra}");
                compared += 1;
            }
            assert!(compared > 10_000 && expressions > 0, "{path}: {compared} rows, {expressions} expressions");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn addresses_outside_of_functions_have_no_rule() {
        let rows = rows_of_file("/proc/self/exe");
        assert_eq!(rule_at(&rows, 0), Rule::Unknown);
        assert_eq!(rows.last().unwrap().rule, Rule::Unknown, "behind the last function");
        assert_eq!(rule_at(&rows, u64::MAX), Rule::Unknown);
    }

    #[test]
    fn damaged_sections_give_rows_or_none() {
        let mut section =
            vec![0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 0x10, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
        section.extend([0x14, 0, 0, 0, 0x1c, 0, 0, 0, 0, 0x10, 0, 0, 0x20, 0, 0, 0, 0, 0x44, 0x0e, 0x10, 0, 0, 0, 0]);
        let whole = rows(&section, 0x1000);
        assert_eq!(whole.len(), 3, "{whole:?}");
        let sp = |words| Rule::Sp { words, bp: SavedBp(0) };
        assert_eq!(whole.iter().map(|row| row.rule).collect::<Vec<_>>(), [sp(1), sp(2), Rule::Unknown]);
        for end in 0..section.len() {
            let _ = rows(&section[..end], 0x1000);
        }
        for at in 0..section.len() {
            let mut damaged = section.clone();
            damaged[at] ^= 0xff;
            let _ = rows(&damaged, 0x1000);
        }
    }
}
