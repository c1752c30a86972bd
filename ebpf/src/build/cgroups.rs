//! Conditions on the names of cgroups: which maps of ids a probe needs, and the question to one of them.

use super::expr::Exprs;
use super::measure::lost_in;
use super::memory::{add_map, measurement_sites};
use crate::ir::{Arg, CmpOp, Cond, Helper, Op, Operand, Size, Space};
use crate::layout::{Layout, Loss, MapKind, PASSES, SelectedMap, UNDECIDED};
use crate::typed::{Expr, Kind, Probe, Selector, Shape, StepSite};

/// Most cgroups of a map. A node has some hundred pods and a thousand cgroups; what fits no more is counted by the agent.
pub const MAX_SELECTED: u32 = 8192;

/// One map for each distinct selector.
pub(super) fn plan(probe: &Probe, layout: &mut Layout) {
    let mut selectors: Vec<&Selector> = Vec::new();
    for filter in filters(probe) {
        collect(filter, &mut selectors);
    }
    for (n, selector) in selectors.into_iter().enumerate() {
        let map = add_map(layout, format!("ks_selected{n}"), MapKind::Hash, 8, 4, MAX_SELECTED);
        layout.selected.push(SelectedMap { map, selector: selector.clone() });
    }
}

/// Every condition of a probe.
fn filters(probe: &Probe) -> Vec<&Expr> {
    let mut all: Vec<&Expr> = Vec::new();
    match &probe.shape {
        Shape::At(sites) => all.extend(sites.iter().flat_map(|s| &s.filter)),
        Shape::Span { start, end, .. } => {
            all.extend(start.iter().flat_map(|s| &s.filter));
            all.extend(end.iter().flat_map(|s| s.before.iter().chain(&s.filter)));
        }
        Shape::Steps { sites, .. } => {
            all.extend(sites.iter().flat_map(StepSite::conditions));
        }
        Shape::Poll { filter, .. } => all.extend(filter),
    }
    let measures = measurement_sites(probe).into_iter().flatten().flatten();
    all.extend(measures.flat_map(|measure| &measure.filter));
    all
}

fn collect<'p>(filter: &'p Expr, into: &mut Vec<&'p Selector>) {
    match &filter.kind {
        Kind::And(a, b) => {
            collect(a, into);
            collect(b, into);
        }
        Kind::Selected(_, selector) if !into.contains(&selector) => into.push(selector),
        _ => {}
    }
}

impl Exprs<'_> {
    /// Whether the map of the selector says that the id passes. That nothing is decided about it yet is counted.
    pub(super) fn selected(&mut self, id: &Expr, selector: &Selector) -> Cond {
        let memory = self.memory;
        let says = self.w.imm(0);
        let passes = Cond { op: CmpOp::Eq, a: says, b: Operand::Imm(PASSES.into()) };
        let Some(selected) = memory.layout.selected.iter().find(|s| s.selector == *selector) else {
            return passes;
        };
        let key = self.w.slot(8);
        let value = self.kept(id);
        self.w.store_slot(key, 0, Size::B8, value);
        let found = self.w.call(Helper::MapLookup, vec![Arg::Map(selected.map), Arg::Slot(key, 0)]);
        self.w.release(key);
        self.w.when(CmpOp::Ne, found, Operand::Imm(0), |w| {
            w.assign(says, Op::Load { ptr: found, offset: 0, size: Size::B4, space: Space::Value });
            w.when(CmpOp::Eq, says, Operand::Imm(UNDECIDED.into()), |w| lost_in(memory, w, Loss::CgroupUndecided));
        });
        passes
    }
}
