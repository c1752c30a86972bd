//! Calls: arity, kinds of arguments, constants, stack areas.

use super::state::{Kind, State, fresh};
use super::{Walk, check};
use crate::ir::{Arg, CTX, Call, Helper, Operand, Param, Slot};
use crate::layout::{MapDef, MapId};

impl Walk<'_> {
    /// Checks a call and gives what its result is.
    pub(super) fn call(&mut self, call: &Call, state: &mut State) -> Result<Kind, String> {
        let params = call.helper.params();
        check(params.len() == call.args.len(), || {
            format!("takes {} arguments, not {}", params.len(), call.args.len())
        })?;
        for (i, (param, arg)) in params.iter().zip(&call.args).enumerate() {
            check_kind(*param, *arg, state).map_err(|message| format!("argument {}: {message}", i + 1))?;
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

    fn map(&self, helper: Helper, id: MapId) -> Result<&MapDef, String> {
        let map = self.module.layout.maps.get(id.0 as usize).ok_or_else(|| format!("map {} does not exist", id.0))?;
        check(helper.takes(map.kind), || format!("{helper} does not take map {}", map.name))?;
        Ok(map)
    }
}

fn check_kind(param: Param, arg: Arg, state: &State) -> Result<(), String> {
    match (param, arg) {
        (Param::Context, Arg::Var(CTX)) => Ok(()),
        (Param::Context, _) => Err("must be the context".into()),
        (Param::Value | Param::Var, Arg::Var(var)) => state.number(Operand::Var(var)),
        (Param::Value | Param::Imm, Arg::Imm(_))
        | (Param::SlotIn | Param::SlotOut, Arg::Slot(..))
        | (Param::Map, Arg::Map(_)) => Ok(()),
        (Param::Value, _) => Err("must be a variable or a constant".into()),
        (Param::Var, _) => Err("must be a variable".into()),
        (Param::Imm, _) => Err("must be a constant".into()),
        (Param::SlotIn | Param::SlotOut, _) => Err("must be a stack area".into()),
        (Param::Map, _) => Err("must be a map".into()),
    }
}

/// Constants the kernel would refuse.
fn check_constants(call: &Call) -> Result<(), String> {
    let imm = |i: usize| match call.args.get(i) {
        Some(Arg::Imm(value)) => *value,
        _ => 0,
    };
    let allowed = |i: usize, values: &[i64]| {
        check(values.contains(&imm(i)), || format!("argument {}: must be one of {values:?}", i + 1))
    };
    match call.helper {
        Helper::MapUpdate => allowed(3, &[0, 1, 2]),
        Helper::MapPush => allowed(2, &[0, 2]),
        Helper::TaskStorageGet => allowed(2, &[0]).and(allowed(3, &[0, 1])),
        Helper::RdonlyCast => check((1..=i64::from(i32::MAX)).contains(&imm(1)), || "argument 2: not a BTF id".into()),
        Helper::GetCurrentComm
        | Helper::ProbeReadKernel
        | Helper::ProbeReadUser
        | Helper::ProbeReadKernelStr
        | Helper::ProbeReadUserStr => {
            check((1..=512).contains(&imm(1)), || "argument 2: not a size of 1 to 512 bytes".into())
        }
        _ => Ok(()),
    }
}

/// How many bytes of its stack area argument `i` a helper uses.
fn area_bytes(call: &Call, i: usize, map: Option<&MapDef>) -> Result<u32, String> {
    let is_key = i == 1 && matches!(call.helper, Helper::MapLookup | Helper::MapUpdate | Helper::MapDelete);
    let size = |at: usize| match call.args.get(at) {
        Some(Arg::Imm(size)) => u32::try_from(*size).map_err(|_| format!("a size of {size} bytes")),
        _ => Err(format!("argument {}: must be a constant", at + 1)),
    };
    match call.helper {
        Helper::RingbufOutput => return size(2),
        Helper::PerfEventOutput => return size(4),
        _ => {}
    }
    match (map, call.args.get(1)) {
        (Some(map), _) => Ok(if is_key { map.key_bytes } else { map.value_bytes }),
        (None, Some(Arg::Imm(size))) => u32::try_from(*size).map_err(|_| format!("a size of {size} bytes")),
        _ => Err("argument 2: must be a constant".into()),
    }
}

fn write_area(call: &Call, state: &mut State, slot: Slot, offset: u32, bytes: u32) -> Result<(), String> {
    let is_str = matches!(call.helper, Helper::ProbeReadKernelStr | Helper::ProbeReadUserStr);
    state.place(slot, offset, bytes)?;
    state.write(slot, offset, if is_str { 1 } else { bytes })
}
