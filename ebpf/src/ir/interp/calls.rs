//! What helpers do.

use super::environment::copy_str;
use super::frame::slot_arg;
use super::maps::{EFAULT, EINVAL};
use super::{CTX_BASE, Code, ELEMENT_SHIFT, Environment, MAP_SHIFT, Machine, Trap, VALUE_BASE};
use crate::ir::{Arg, Call, Helper};
use crate::layout::MapKind;

impl Machine {
    pub(super) fn call(&mut self, code: &Code<'_>, call: &Call) -> Result<u64, Trap> {
        let params = call.helper.params();
        if params.len() != call.args.len() {
            return Err(Trap::new(format!("{:?} takes {} arguments", call.helper, params.len())));
        }
        Ok(match call.helper {
            Helper::KtimeGetNs => {
                let now = self.environment.now_ns;
                self.environment.now_ns = now.wrapping_add(self.environment.tick_ns);
                now
            }
            Helper::GetPrandomU32 => self.environment.random.into(),
            Helper::GetCurrentPidTgid => self.environment.pid_tgid,
            Helper::GetCurrentUidGid => self.environment.uid_gid,
            Helper::GetCurrentCgroupId => self.environment.cgroup_id,
            Helper::GetSmpProcessorId => self.environment.cpu.into(),
            Helper::GetFuncIp => self.environment.function,
            Helper::GetAttachCookie => self.environment.cookie,
            Helper::GetCurrentTask | Helper::GetCurrentTaskBtf => self.environment.task,
            Helper::RdonlyCast => self.frame.scalar_arg(call, 0)?,
            Helper::GetStackId => self.stack_id(call)? as u64,
            Helper::RingbufOutput => self.output(call, [0, 1, 2])? as u64,
            Helper::PerfEventOutput => self.output(call, [1, 3, 4])? as u64,
            Helper::GetCurrentComm => self.current_comm(call)? as u64,
            Helper::ProbeReadKernel | Helper::ProbeReadUser => self.probe_read(code, call)? as u64,
            Helper::ProbeReadKernelStr | Helper::ProbeReadUserStr => self.probe_read_str(code, call)? as u64,
            Helper::MapLookup
            | Helper::MapUpdate
            | Helper::MapDelete
            | Helper::MapPush
            | Helper::MapPop
            | Helper::TaskStorageGet => self.map_call(call)?,
        })
    }

    /// The stacks themselves are no memory a program could read.
    fn stack_id(&self, call: &Call) -> Result<i64, Trap> {
        const USER_STACK: u64 = 1 << 8;
        let user = self.frame.scalar_arg(call, 2)? & USER_STACK != 0;
        let stacks = if user { self.environment.user_stack } else { self.environment.kernel_stack };
        let first = self.maps.iter().position(|map| map.def.kind == MapKind::StackTrace);
        let is_first = matches!(call.args.get(1), Some(Arg::Map(id)) if Some(id.0 as usize) == first);
        Ok(stacks[usize::from(!is_first)])
    }

    /// `at`: places of the map, the record and its length among the arguments.
    fn output(&mut self, call: &Call, at: [usize; 3]) -> Result<i64, Trap> {
        let Some(Arg::Map(id)) = call.args.get(at[0]) else {
            return Err(Trap::new(format!("{:?} wants a map", call.helper)));
        };
        let bytes = self.frame.scalar_arg(call, at[2])?;
        let bytes = u32::try_from(bytes).map_err(|_| Trap::new(format!("a record of {bytes} bytes")))?;
        let record = self.frame.read_arg(call, at[1], bytes)?;
        match self.maps.get_mut(id.0 as usize) {
            Some(map) if call.helper.takes(map.def.kind) => Ok(map.output(record)),
            _ => Err(Trap::new(format!("{:?} does not take map {}", call.helper, id.0))),
        }
    }

    fn map_call(&mut self, call: &Call) -> Result<u64, Trap> {
        let Some(Arg::Map(id)) = call.args.first() else {
            return Err(Trap::new(format!("{:?} wants a map", call.helper)));
        };
        let frame = &mut self.frame;
        let map = self.maps.get_mut(id.0 as usize).ok_or_else(|| Trap::new(format!("no map {}", id.0)))?;
        if !call.helper.takes(map.def.kind) {
            return Err(Trap::new(format!("{:?} does not take map {}", call.helper, map.def.name)));
        }
        let (key_bytes, value_bytes) = (map.def.key_bytes, map.def.value_bytes);
        let address =
            |element: u32| VALUE_BASE + (u64::from(id.0) << MAP_SHIFT) + (u64::from(element) << ELEMENT_SHIFT);
        Ok(match call.helper {
            Helper::MapUpdate => {
                let flags = frame.scalar_arg(call, 3)? as i64;
                let (key, value) = (frame.read_arg(call, 1, key_bytes)?, frame.read_arg(call, 2, value_bytes)?);
                map.update(key, value, flags) as u64
            }
            Helper::MapDelete => map.delete(frame.read_arg(call, 1, key_bytes)?) as u64,
            Helper::MapPush => {
                let flags = frame.scalar_arg(call, 2)? as i64;
                map.push(frame.read_arg(call, 1, value_bytes)?, flags) as u64
            }
            Helper::MapPop => map.pop(frame.write_arg(call, 1, value_bytes)?) as u64,
            Helper::TaskStorageGet => {
                let (task, flags) = (frame.scalar_arg(call, 1)?, frame.scalar_arg(call, 3)?);
                map.of_task(task, flags & 1 != 0).map_or(0, address)
            }
            _ => map.look_up(frame.read_arg(call, 1, key_bytes)?).map_or(0, address),
        })
    }

    fn current_comm(&mut self, call: &Call) -> Result<i64, Trap> {
        let size = self.size_arg(call)?;
        let out = self.frame.write_arg(call, 0, size)?;
        out.fill(0);
        // A size of 0 leaves no room for the NUL.
        let Some(room) = out.len().checked_sub(1) else { return Ok(EINVAL) };
        let comm = &self.environment.comm;
        let length = comm.iter().position(|&b| b == 0).unwrap_or(comm.len()).min(room);
        out[..length].copy_from_slice(&comm[..length]);
        Ok(0)
    }

    fn probe_read(&mut self, code: &Code<'_>, call: &Call) -> Result<i64, Trap> {
        let (size, address) = (self.size_arg(call)?, self.frame.scalar_arg(call, 2)?);
        let memory = readable(&self.environment, code, call.helper == Helper::ProbeReadKernel, address);
        let out = self.frame.write_arg(call, 0, size)?;
        match memory.and_then(|bytes| bytes.get(..out.len())) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(0)
            }
            None => {
                out.fill(0);
                Ok(EFAULT)
            }
        }
    }

    /// Bytes behind the NUL stay as they were: the kernel does not write them, so they must not be relied on.
    fn probe_read_str(&mut self, code: &Code<'_>, call: &Call) -> Result<i64, Trap> {
        let (size, address) = (self.size_arg(call)?, self.frame.scalar_arg(call, 2)?);
        let memory = readable(&self.environment, code, call.helper == Helper::ProbeReadKernelStr, address);
        let (slot, offset) = slot_arg(call, 0)?;
        let out = self.frame.borrow(slot, offset, size)?;
        match memory.and_then(|bytes| copy_str(bytes, out)) {
            Some(length) => {
                self.frame.mark(slot, offset, length as u32)?;
                Ok(length as i64)
            }
            None => {
                self.frame.write(slot, offset, size)?.fill(0);
                Ok(EFAULT)
            }
        }
    }

    /// The second argument as a number of bytes.
    fn size_arg(&self, call: &Call) -> Result<u32, Trap> {
        let size = self.frame.scalar_arg(call, 1)?;
        u32::try_from(size).map_err(|_| Trap::new(format!("{:?} of {size} bytes", call.helper)))
    }
}

/// What a helper can read from an address on; the context lies in the kernel's memory.
fn readable<'a>(environment: &'a Environment, code: &Code<'a>, kernel: bool, address: u64) -> Option<&'a [u8]> {
    match address.checked_sub(CTX_BASE).and_then(|at| code.ctx.get(usize::try_from(at).ok()?..)) {
        Some(bytes) if kernel && !bytes.is_empty() => Some(bytes),
        _ if kernel => environment.kernel.from(address),
        _ => environment.user.from(address),
    }
}
