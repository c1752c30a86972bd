//! Calls: arity, kinds of arguments, constants, stack areas.

use super::state::{Kind, State, fresh};
use super::violation::Violation;
use super::{Walk, check};
use crate::ir::{Arg, CTX, Call, Helper, Operand, Param, Slot};
use crate::layout::{MapDef, MapId};

impl Walk<'_> {
    /// Checks a call and gives what its result is.
    pub(super) fn call(&mut self, call: &Call, state: &mut State) -> Result<Kind, Violation> {
        let params = call.helper.params();
        let (wanted, found) = (params.len(), call.args.len());
        check(wanted == found, || Violation::Arity { wanted, found })?;
        for (i, (param, arg)) in params.iter().zip(&call.args).enumerate() {
            check_kind(*param, *arg, state).map_err(|violation| violation.at(i))?;
        }
        let map = match call.args.iter().find(|arg| matches!(arg, Arg::Map(_))) {
            Some(Arg::Map(id)) => Some((*id, self.map(call.helper, *id)?)),
            _ => None,
        };
        check_constants(call)?;
        // Areas are read before any is written.
        for (i, (param, arg)) in params.iter().zip(&call.args).enumerate() {
            if let (Param::SlotIn, Arg::Slot(slot, offset)) = (param, arg) {
                state.read(*slot, *offset, area_bytes(call, i, map.map(|(_, def)| def))?)?;
            }
        }
        for (i, (param, arg)) in params.iter().zip(&call.args).enumerate() {
            if let (Param::SlotOut, Arg::Slot(slot, offset)) = (param, arg) {
                write_area(call, state, *slot, *offset, area_bytes(call, i, map.map(|(_, def)| def))?)?;
            }
        }
        Ok(match (call.helper, map) {
            (Helper::MapLookup | Helper::TaskStorageGet, Some((id, _))) => {
                Kind::Value { map: id.0, id: fresh(&mut self.next_id), null: true, offset: Some(0) }
            }
            _ => Kind::Number,
        })
    }

    fn map(&self, helper: Helper, id: MapId) -> Result<&MapDef, Violation> {
        let map = self.module.layout.maps.get(id.0 as usize).ok_or(Violation::NoMap(id.0))?;
        check(helper.takes(map.kind), || Violation::MapKind { helper, map: map.name.clone() })?;
        Ok(map)
    }
}

fn check_kind(param: Param, arg: Arg, state: &State) -> Result<(), Violation> {
    match (param, arg) {
        (Param::Context, Arg::Var(CTX)) => Ok(()),
        (Param::Context, _) => Err(Violation::NeedsContext),
        (Param::Value | Param::Var, Arg::Var(var)) => state.number(Operand::Var(var)),
        (Param::Value | Param::Imm, Arg::Imm(_))
        | (Param::SlotIn | Param::SlotOut, Arg::Slot(..))
        | (Param::Map, Arg::Map(_)) => Ok(()),
        (Param::Value, _) => Err(Violation::NeedsValue),
        (Param::Var, _) => Err(Violation::NeedsVar),
        (Param::Imm, _) => Err(Violation::NeedsConstant),
        (Param::SlotIn | Param::SlotOut, _) => Err(Violation::NeedsSlot),
        (Param::Map, _) => Err(Violation::NeedsMap),
    }
}

/// Constants the kernel would refuse.
fn check_constants(call: &Call) -> Result<(), Violation> {
    let imm = |i: usize| match call.args.get(i) {
        Some(Arg::Imm(value)) => *value,
        _ => 0,
    };
    let allowed = |i: usize, values: &'static [i64]| check(values.contains(&imm(i)), || Violation::OneOf(values).at(i));
    match call.helper {
        Helper::MapUpdate => allowed(3, &[0, 1, 2]),
        Helper::MapPush => allowed(2, &[0, 2]),
        Helper::TaskStorageGet => allowed(2, &[0]).and(allowed(3, &[0, 1])),
        Helper::RdonlyCast => check((1..=i64::from(i32::MAX)).contains(&imm(1)), || Violation::BtfId.at(1)),
        Helper::GetCurrentComm
        | Helper::ProbeReadKernel
        | Helper::ProbeReadUser
        | Helper::ProbeReadKernelStr
        | Helper::ProbeReadUserStr => check((1..=512).contains(&imm(1)), || Violation::ReadSize.at(1)),
        _ => Ok(()),
    }
}

/// How many bytes of its stack area argument `i` a helper uses.
fn area_bytes(call: &Call, i: usize, map: Option<&MapDef>) -> Result<u32, Violation> {
    let is_key = i == 1 && matches!(call.helper, Helper::MapLookup | Helper::MapUpdate | Helper::MapDelete);
    let size = |at: usize| match call.args.get(at) {
        Some(Arg::Imm(size)) => u32::try_from(*size).map_err(|_| Violation::AreaSize(*size)),
        _ => Err(Violation::NeedsConstant.at(at)),
    };
    match call.helper {
        Helper::RingbufOutput => return size(2),
        Helper::PerfEventOutput => return size(4),
        _ => {}
    }
    match (map, call.args.get(1)) {
        (Some(map), _) => Ok(if is_key { map.key_bytes } else { map.value_bytes }),
        (None, Some(Arg::Imm(size))) => u32::try_from(*size).map_err(|_| Violation::AreaSize(*size)),
        _ => Err(Violation::NeedsConstant.at(1)),
    }
}

fn write_area(call: &Call, state: &mut State, slot: Slot, offset: u32, bytes: u32) -> Result<(), Violation> {
    let is_str = matches!(call.helper, Helper::ProbeReadKernelStr | Helper::ProbeReadUserStr);
    state.place(slot, offset, bytes)?;
    state.write(slot, offset, if is_str { 1 } else { bytes })
}
