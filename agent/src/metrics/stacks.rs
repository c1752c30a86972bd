//! Sums by stack as they lie in a table: ids, not addresses. Two readings give what was added between them.

use crate::metrics::fold::{self, Column, FoldError, Words};
use crate::metrics::labels::{Names, OTHER};
use kstrobe_ebpf::layout::{KeyField, Table};
use kstrobe_export::snapshot::{Descriptor, Moment};
use std::collections::HashMap;

/// What a sum belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackKey {
    /// Names and texts of the metric's labels.
    pub labels: Vec<(String, String)>,
    /// Id of the kernel's stack; negative when there is none; `None` when it is not asked for.
    pub kernel: Option<i32>,
    /// Likewise of the process's stack.
    pub user: Option<i32>,
    /// The process, 0 when the stacks are the kernel's alone.
    pub pid: u32,
}

/// What the kernel says instead of an id when there is nothing on that side (`-EFAULT`). Other negative numbers tell that
/// it could not keep the stack.
pub const NO_FRAMES: i32 = -14;
/// In the sum of everything that found no room (`-ENOMEM`).
const NOT_KEPT: i32 = -12;

/// Sums by key.
pub type StackSums = HashMap<StackKey, u64>;

/// Reads the sums of one cell. `index` is the content of the table's index map.
pub fn read<'k, W: Words + ?Sized>(
    table: &Table,
    cell: usize,
    about: &Descriptor,
    words: &W,
    index: impl IntoIterator<Item = (&'k [u8], u32)>,
    names: &mut Names,
    now: Moment,
) -> Result<StackSums, FoldError> {
    let (keys, mut slots): (Vec<&[u8]>, Vec<u32>) =
        index.into_iter().filter(|(_, s)| Some(*s) != table.overflow).unzip();
    slots.extend(table.overflow);
    let folded = fold::fold(table, words, slots.chunks(1))?;
    let Some(Column::Counter(values)) = folded.columns.get(cell) else { return Ok(StackSums::new()) };
    let mut sums = StackSums::new();
    let keys = keys.iter().map(|key| stack_key(table, cell, about, key, names, now));
    let keys = keys.chain(table.overflow.map(|_| overflow(table, about)));
    for (key, value) in keys.zip(values).filter(|(_, value)| **value > 0) {
        let sum = sums.entry(key).or_default();
        *sum = sum.wrapping_add(*value);
    }
    Ok(sums)
}

fn stack_key(table: &Table, cell: usize, about: &Descriptor, key: &[u8], names: &mut Names, now: Moment) -> StackKey {
    let bytes = |field: &KeyField| {
        let at = field.offset as usize;
        key.get(at..at + field.ty.bytes() as usize).unwrap_or(&[])
    };
    let columns = table.cells.get(cell).map_or(&[][..], |cell| &cell.labels);
    let fields = columns.iter().filter_map(|column| table.key.get(*column as usize));
    let labels = about.label_names.iter().zip(fields);
    let labels =
        labels.map(|(name, field)| (name.clone(), names.text(&field.decoder, field.ty, bytes(field), now.mono)));
    let labels = labels.collect();
    let word = |field: &KeyField| i32::from_ne_bytes(bytes(field).try_into().unwrap_or_default());
    let Some(stacks) = table.stack_key() else { return StackKey { labels, ..StackKey::default() } };
    StackKey {
        labels,
        kernel: stacks.kernel.map(word),
        user: stacks.user.map(word),
        pid: stacks.pid.map_or(0, |field| word(field) as u32),
    }
}

fn overflow(table: &Table, about: &Descriptor) -> StackKey {
    let stacks = table.stack_key();
    StackKey {
        labels: about.label_names.iter().map(|name| (name.clone(), OTHER.to_owned())).collect(),
        kernel: stacks.and_then(|s| s.kernel).map(|_| NOT_KEPT),
        user: stacks.and_then(|s| s.user).map(|_| NOT_KEPT),
        pid: 0,
    }
}

/// What was added from `before` to `after`. A sum that is smaller than before belongs to a key that went and came again.
pub fn difference(mut after: StackSums, before: &StackSums) -> StackSums {
    for (key, value) in &mut after {
        let was = before.get(key).copied().unwrap_or(0);
        *value = value.checked_sub(was).unwrap_or(*value);
    }
    after.retain(|_, value| *value > 0);
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::layout::{Cell, CellKind, Index, MapId, StackSpec};
    use kstrobe_ebpf::typed::{Decoder, Ty};
    use kstrobe_export::snapshot::Kind;

    fn field(name: &str, ty: Ty, offset: u32, decoder: Decoder) -> KeyField {
        KeyField { names: vec![name.to_owned()], ty, offset, decoder }
    }

    /// Two shards of four slots, by a name and both stacks.
    fn table() -> Table {
        let spec = StackSpec { kernel: true, user: true, depth: 127, at_start: false };
        Table {
            values: MapId(0),
            shards: 2,
            slots: 4,
            overflow: Some(0),
            index: Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 32 },
            key: vec![
                field("comm", Ty::Str(16), 0, Decoder::Str),
                field("kernel stack", Ty::S32, 16, Decoder::Signed),
                field("user stack", Ty::S32, 20, Decoder::Signed),
                field("pid", Ty::U32, 24, Decoder::Unsigned),
            ],
            cells: vec![Cell { metric: 0, offset: 0, kind: CellKind::Stacks(spec), labels: vec![0] }],
        }
    }

    fn about() -> Descriptor {
        Descriptor {
            name: "kstrobe_x".into(),
            help: String::new(),
            kind: Kind::Counter,
            unit: String::new(),
            raw_per_unit: 1,
            label_names: vec!["comm".into()],
        }
    }

    fn key(comm: &str, kernel: i32, user: i32, pid: u32) -> Vec<u8> {
        let mut key = comm.as_bytes().to_vec();
        key.resize(16, 0);
        key.extend([kernel.to_ne_bytes(), user.to_ne_bytes(), pid.to_ne_bytes(), [0; 4]].concat());
        key
    }

    fn sum(comm: &str, kernel: i32, user: i32, pid: u32, value: u64) -> (StackKey, u64) {
        let labels = vec![("comm".to_owned(), comm.to_owned())];
        (StackKey { labels, kernel: Some(kernel), user: Some(user), pid }, value)
    }

    fn read_words(words: &[u64], index: &[(Vec<u8>, u32)]) -> Vec<(StackKey, u64)> {
        let index = index.iter().map(|(key, slot)| (key.as_slice(), *slot));
        let mut names = Names::with_interfaces(|_| None);
        let sums = read(&table(), 0, &about(), words, index, &mut names, Moment::now()).unwrap();
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort();
        sums
    }

    #[test]
    fn sums_over_shards_by_key_and_what_found_no_room() {
        let index = [(key("app", 5, -14, 70), 1), (key("app", 5, 6, 70), 2), (key("idle", 5, 6, 70), 3)];
        let found = read_words(&[0, 10, 3, 0, 7, 20, 0, 0], &index);
        let expected =
            [sum("app", 5, NO_FRAMES, 70, 30), sum("app", 5, 6, 70, 3), sum("other", NOT_KEPT, NOT_KEPT, 0, 7)];
        assert_eq!(found, expected, "what has no events yet is absent");
        assert_eq!(read_words(&[0; 8], &[]), []);
    }

    #[test]
    fn memory_of_another_layout_is_refused() {
        let mut names = Names::with_interfaces(|_| None);
        let short: &[u64] = &[0; 7];
        assert!(read(&table(), 0, &about(), short, [], &mut names, Moment::now()).is_err());
    }

    #[test]
    fn differences() {
        let before = StackSums::from([sum("a", 1, 1, 1, 10), sum("b", 1, 1, 1, 10), sum("gone", 1, 1, 1, 10)]);
        let after = StackSums::from([sum("a", 1, 1, 1, 15), sum("b", 1, 1, 1, 10), sum("c", 1, 1, 1, 2)]);
        assert_eq!(difference(after, &before), StackSums::from([sum("a", 1, 1, 1, 5), sum("c", 1, 1, 1, 2)]));
        let again = StackSums::from([sum("a", 1, 1, 1, 4)]);
        assert_eq!(difference(again.clone(), &before), again, "went and came again");
    }
}
