//! A machine register for every virtual one: graph colouring, with the moves it can save deciding between free colours.

use super::live::{Facts, Wish};
use super::vcode::Vreg;
use crate::diag::Diagnostic;
use crate::isa::Reg;
use std::collections::BTreeSet;

/// The result of one try.
pub enum Allocation {
    /// Everything has a register; `None` for what is never used.
    Done(Vec<Option<Reg>>),
    /// These have to live in memory.
    Spill(Vec<Vreg>),
}

/// In the order they are taken when nothing else decides: what calls destroy anyway comes first.
const ANY: &[Reg] = &[Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9];
const SURVIVORS: &[Reg] = &[Reg::R6, Reg::R7, Reg::R8, Reg::R9];

fn choices(facts: &Facts) -> &'static [Reg] {
    if facts.crosses_call { SURVIVORS } else { ANY }
}

/// Colours the graph. `first_temp` and above are the short-lived registers of spilled ones, which cannot be spilled again.
pub fn allocate(facts: &[Facts], first_temp: u32) -> Result<Allocation, Diagnostic> {
    let mut colours: Vec<Option<Reg>> = vec![None; facts.len()];
    let mut spilled = BTreeSet::new();
    for vreg in order(facts, first_temp).into_iter().rev() {
        let fact = &facts[vreg.0 as usize];
        let taken: BTreeSet<Reg> = fact.neighbours.iter().filter_map(|n| colours[n.0 as usize]).collect();
        let free = choices(fact).iter().copied().filter(|reg| !taken.contains(reg));
        // The first of several best ones: `max_by_key` would take the last.
        let best = free.rev().max_by_key(|reg| score(vreg, *reg, facts, &colours));
        match best {
            Some(reg) => colours[vreg.0 as usize] = Some(reg),
            None if vreg.0 < first_temp => _ = spilled.insert(vreg),
            None => _ = spilled.insert(cheapest_neighbour(fact, facts, first_temp)?),
        }
    }
    if spilled.is_empty() {
        Ok(Allocation::Done(colours))
    } else {
        Ok(Allocation::Spill(spilled.into_iter().collect()))
    }
}

fn cheapest_neighbour(fact: &Facts, facts: &[Facts], first_temp: u32) -> Result<Vreg, Diagnostic> {
    let candidates = fact.neighbours.iter().filter(|n| n.0 < first_temp);
    candidates
        .min_by_key(|n| facts[n.0 as usize].cost)
        .copied()
        .ok_or_else(|| Diagnostic::bug("no register is free for a value in memory"))
}

/// The order in which registers are taken out of the graph: first those that surely find a colour, else the one whose
/// life in memory costs least for the room it makes. Colours are given in the reverse order.
fn order(facts: &[Facts], first_temp: u32) -> Vec<Vreg> {
    let used = |fact: &Facts| fact.cost > 0;
    let mut degree: Vec<usize> = facts.iter().map(|fact| fact.neighbours.len()).collect();
    let vregs = (0u32..).map(Vreg).zip(facts).filter(|(_, fact)| used(fact)).map(|(vreg, _)| vreg);
    let mut left: BTreeSet<Vreg> = vregs.collect();
    let is_easy = |vreg: Vreg, degree: &[usize]| degree[vreg.0 as usize] < choices(&facts[vreg.0 as usize]).len();
    let mut easy: BTreeSet<Vreg> = left.iter().copied().filter(|vreg| is_easy(*vreg, &degree)).collect();
    let mut order = Vec::with_capacity(left.len());
    loop {
        let next = easy.pop_first().or_else(|| {
            left.iter().copied().min_by_key(|vreg| {
                let degree = degree[vreg.0 as usize].max(1) as u64;
                let temp = vreg.0 >= first_temp;
                (temp, facts[vreg.0 as usize].cost * 64 / degree)
            })
        });
        let Some(vreg) = next else { return order };
        left.remove(&vreg);
        order.push(vreg);
        for neighbour in &facts[vreg.0 as usize].neighbours {
            degree[neighbour.0 as usize] -= 1;
            if left.contains(neighbour) && is_easy(*neighbour, &degree) {
                easy.insert(*neighbour);
            }
        }
    }
}

/// Moves saved by giving `reg` to `vreg`, less what its uncoloured neighbours would lose, by heat.
fn score(vreg: Vreg, reg: Reg, facts: &[Facts], colours: &[Option<Reg>]) -> i64 {
    let fact = &facts[vreg.0 as usize];
    let mut score = 4 * gain(fact, reg, colours);
    for (wish, heat) in &fact.wishes {
        // A partner without a colour yet may follow, if it can.
        if let Wish::Same(other) = wish
            && colours[other.0 as usize].is_none()
            && !fact.neighbours.contains(other)
            && can_take(&facts[other.0 as usize], reg, colours)
        {
            score += i64::from(*heat) + gain(&facts[other.0 as usize], reg, colours).min(i64::from(*heat));
        }
    }
    for neighbour in &fact.neighbours {
        let other = &facts[neighbour.0 as usize];
        if colours[neighbour.0 as usize].is_none() && choices(other).contains(&reg) {
            score -= gain(other, reg, colours);
        }
    }
    score
}

/// The heat of the moves that are surely saved if this virtual register gets `reg`.
fn gain(fact: &Facts, reg: Reg, colours: &[Option<Reg>]) -> i64 {
    let granted = fact.wishes.iter().filter(|(wish, _)| match wish {
        Wish::Machine(wished) => *wished == reg,
        Wish::Same(other) => colours[other.0 as usize] == Some(reg),
    });
    granted.map(|(_, heat)| i64::from(*heat)).sum()
}

fn can_take(fact: &Facts, reg: Reg, colours: &[Option<Reg>]) -> bool {
    choices(fact).contains(&reg) && fact.neighbours.iter().all(|other| colours[other.0 as usize] != Some(reg))
}
