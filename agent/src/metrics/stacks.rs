//! Sums by stack as they lie in a table: by ids of stacks, not by addresses.

use crate::metrics::fold::{self, Column, FoldError, Words};
use crate::metrics::labels::{Names, OTHER};
use kstrobe_ebpf::layout::{KeyField, Table};
use kstrobe_export::snapshot::Descriptor;
use std::time::Instant;

/// What a sum belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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

/// The sums of one cell in these slots.
pub fn values<W: Words + ?Sized>(table: &Table, cell: usize, words: &W, slots: &[u32]) -> Result<Vec<u64>, FoldError> {
    let folded = fold::fold(table, words, slots.chunks(1))?;
    match folded.columns.into_iter().nth(cell) {
        Some(Column::Counter(values)) => Ok(values),
        _ => Ok(vec![0; slots.len()]),
    }
}

/// What a key of the table's index means for one cell.
pub fn stack_key(
    table: &Table,
    cell: usize,
    about: &Descriptor,
    key: &[u8],
    names: &mut Names,
    now: Instant,
) -> StackKey {
    let bytes = |field: &KeyField| {
        let at = field.offset as usize;
        key.get(at..at + field.ty.bytes() as usize).unwrap_or(&[])
    };
    let columns = table.cells.get(cell).map_or(&[][..], |cell| &cell.labels);
    let fields = columns.iter().filter_map(|column| table.key.get(*column as usize));
    let labels = about.label_names.iter().zip(fields);
    let labels = labels.map(|(name, field)| (name.clone(), names.text(&field.decoder, field.ty, bytes(field), now)));
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

/// Key of the sum of all events that found no slot.
pub fn overflow(table: &Table, about: &Descriptor) -> StackKey {
    let stacks = table.stack_key();
    StackKey {
        labels: about.label_names.iter().map(|name| (name.clone(), OTHER.to_owned())).collect(),
        kernel: stacks.and_then(|s| s.kernel).map(|_| NOT_KEPT),
        user: stacks.and_then(|s| s.user).map(|_| NOT_KEPT),
        pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::layout::{Cell, CellKind, Index, MapId, StackSpec, Unwind};
    use kstrobe_ebpf::typed::{Decoder, Ty};
    use kstrobe_export::snapshot::Kind;

    fn field(name: &str, ty: Ty, offset: u32, decoder: Decoder) -> KeyField {
        KeyField { names: vec![name.to_owned()], ty, offset, decoder }
    }

    /// Two shards of four slots, by a name and both stacks.
    fn table() -> Table {
        let spec = StackSpec { kernel: true, user: true, depth: 127, at_start: false, unwind: Unwind::Tables };
        Table {
            values: MapId(0),
            changes: None,
            shards: 2,
            slots: 4,
            overflow: Some(0),
            index: Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 32, fresh: None },
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

    #[test]
    fn keys_are_labels_ids_and_a_process() {
        let mut names = Names::with_interfaces(|_| None);
        let labels = |comm: &str| vec![("comm".to_owned(), comm.to_owned())];
        let found = stack_key(&table(), 0, &about(), &key("app", 5, NO_FRAMES, 70), &mut names, Instant::now());
        assert_eq!(found, StackKey { labels: labels("app"), kernel: Some(5), user: Some(NO_FRAMES), pid: 70 });
        let expected = StackKey { labels: labels("other"), kernel: Some(NOT_KEPT), user: Some(NOT_KEPT), pid: 0 };
        assert_eq!(overflow(&table(), &about()), expected);
    }

    #[test]
    fn values_are_summed_over_shards() {
        let words: &[u64] = &[7, 10, 3, 0, 0, 20, 0, 0];
        assert_eq!(values(&table(), 0, words, &[1, 2, 3, 0]).unwrap(), [30, 3, 0, 7]);
        assert!(values(&table(), 0, &words[1..], &[1]).is_err(), "memory of another layout");
    }
}
