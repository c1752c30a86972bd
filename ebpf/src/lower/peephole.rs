//! Jumps that lead nowhere useful.

use crate::asm::{Item, Label};
use crate::isa::{Insn, Op};
use std::collections::{HashMap, HashSet};

/// Follows chains of jumps, turns `if .. skip a jump` around, and drops jumps to the next instruction and code that is
/// never reached, until nothing changes.
pub fn tidy(mut items: Vec<Item>) -> Vec<Item> {
    loop {
        let before = items.len();
        let threaded = thread(&mut items);
        turn_around(&mut items);
        drop_unreachable(&mut items);
        drop_to_next(&mut items);
        if items.len() == before && !threaded {
            return items;
        }
    }
}

fn is_code(item: &Item) -> bool {
    !matches!(item, Item::Bind(_) | Item::Mark { .. })
}

fn goes_always(item: &Item) -> bool {
    matches!(item, Item::Jump(Insn { op: Op::Ja, .. }, _) | Item::Insn(Insn { op: Op::Exit, .. }))
}

/// Jumps to a jump go to where that one goes; true if any was changed.
fn thread(items: &mut [Item]) -> bool {
    let mut leads_to: HashMap<Label, Label> = HashMap::new();
    let mut next = None;
    for item in items.iter().rev() {
        match item {
            Item::Jump(Insn { op: Op::Ja, .. }, to) => next = Some(*to),
            Item::Bind(label) => _ = next.map(|to| leads_to.insert(*label, to)),
            Item::Mark { .. } => {}
            _ => next = None,
        }
    }
    let mut changed = false;
    for item in items.iter_mut() {
        if let Item::Jump(_, to) = item {
            // Forward only, so a chain ends.
            while let Some(further) = leads_to.get(to).filter(|further| *further != to) {
                *to = *further;
                changed = true;
            }
        }
    }
    changed
}

/// Whether `label` stands right after position `at`, with no code in between.
fn stands_next(items: &[Item], at: usize, label: Label) -> bool {
    let next = items.iter().skip(at + 1).take_while(|item| !is_code(item));
    next.into_iter().any(|item| *item == Item::Bind(label))
}

/// `if c goto a; goto b; a:` becomes `if !c goto b; a:`.
fn turn_around(items: &mut Vec<Item>) {
    let mut at = 0;
    while at + 1 < items.len() {
        if let (Item::Jump(branch, over), Item::Jump(Insn { op: Op::Ja, .. }, to)) = (items[at], items[at + 1])
            && stands_next(items, at + 1, over)
            && let Some(op) = opposite(branch.op)
        {
            items[at] = Item::Jump(Insn { op, ..branch }, to);
            items.remove(at + 1);
        }
        at += 1;
    }
}

fn opposite(op: Op) -> Option<Op> {
    match op {
        Op::JmpImm(cond) => cond.opposite().map(Op::JmpImm),
        Op::JmpReg(cond) => cond.opposite().map(Op::JmpReg),
        _ => None,
    }
}

fn drop_unreachable(items: &mut Vec<Item>) {
    let named: HashSet<Label> = items
        .iter()
        .filter_map(|item| match item {
            Item::Jump(_, to) => Some(*to),
            _ => None,
        })
        .collect();
    let mut reached = true;
    items.retain(|item| {
        if let Item::Bind(label) = item {
            reached |= named.contains(label);
            return named.contains(label);
        }
        let keep = reached || !is_code(item);
        if reached && goes_always(item) {
            reached = false;
        }
        keep
    });
}

fn drop_to_next(items: &mut Vec<Item>) {
    let mut at = 0;
    while at < items.len() {
        match items[at] {
            Item::Jump(_, to) if stands_next(items, at, to) => _ = items.remove(at),
            _ => at += 1,
        }
    }
}
