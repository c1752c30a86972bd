//! The text form of the IR, for `explain`, test cases and error messages. It is stable and depends on nothing but the IR.
//!
//! ```text
//! func sys_exit tp_btf:sys_exit
//!   slot s0 8 bytes
//!   v1 = ctx.u64[v0 + 8]
//!   @12:5
//!   if v1 s< 0
//!     return
//!   s0.u32[0] = v1
//!   v2 = map_lookup(values, &s0)
//!   if v2 != 0
//!     value.u64[v2 + 16] += 1 atomic
//! ```

use super::{AluOp, Arg, Block, Call, CmpOp, Cond, Func, Helper, Module, Op, Operand, Size, Space, Stmt, Var};
use crate::layout::{Layout, MapKind};
use crate::typed::Attach;
use std::fmt::{self, Write as _};

/// All of a module: maps, the size of the read-only bytes, functions.
pub fn module(module: &Module) -> String {
    let mut text = String::new();
    for map in &module.layout.maps {
        let kind = match map.kind {
            MapKind::Array { mmap: true } => "array mmap",
            MapKind::Array { mmap: false } => "array",
            MapKind::Hash => "hash",
            MapKind::Stack => "stack",
            MapKind::TaskStorage => "task_storage",
            MapKind::LruHash => "lru_hash",
            MapKind::RingBuf => "ringbuf",
            MapKind::PerfEvents => "perf_events",
            MapKind::StackTrace => "stack_trace",
        };
        let (key, value, entries) = (map.key_bytes, map.value_bytes, map.entries);
        line(&mut text, 0, format_args!("map {} {kind} key {key} value {value} entries {entries}", map.name));
    }
    line(&mut text, 0, format_args!("rodata {} bytes", module.rodata.len()));
    for f in &module.funcs {
        text.push('\n');
        text.push_str(&func(f, &module.layout));
    }
    text
}

/// One function; the layout gives the names of maps.
pub fn func(func: &Func, layout: &Layout) -> String {
    let mut text = String::new();
    line(&mut text, 0, format_args!("func {} {}", func.name, AttachText(func.attach.as_ref())));
    for (i, bytes) in func.slots.iter().enumerate() {
        line(&mut text, 1, format_args!("slot s{i} {bytes} bytes"));
    }
    block(&mut text, &func.body, layout, 1);
    text
}

/// A statement on one line, without the blocks inside it.
pub fn stmt(stmt: &Stmt, layout: &Layout) -> String {
    StmtText(stmt, layout).to_string()
}

fn line(text: &mut String, depth: usize, what: fmt::Arguments<'_>) {
    text.extend(std::iter::repeat_n("  ", depth));
    // Writing to a String cannot fail.
    let _ = text.write_fmt(what);
    text.push('\n');
}

fn block(text: &mut String, stmts: &Block, layout: &Layout, depth: usize) {
    for s in stmts {
        line(text, depth, format_args!("{}", StmtText(s, layout)));
        if let Stmt::If { then, otherwise, .. } = s {
            block(text, then, layout, depth + 1);
            if !otherwise.is_empty() {
                line(text, depth, format_args!("else"));
                block(text, otherwise, layout, depth + 1);
            }
        }
    }
}

struct AttachText<'a>(Option<&'a Attach>);

impl fmt::Display for AttachText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("interpreted"),
            Some(attach) => write!(f, "{attach}"),
        }
    }
}

struct StmtText<'a>(&'a Stmt, &'a Layout);

impl fmt::Display for StmtText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Stmt::Mark { line, column } => write!(f, "@{line}:{column}"),
            Stmt::Set(var, op) => write!(f, "{var} = {}", OpText(op, self.1)),
            Stmt::Call(call) => write!(f, "{}", CallText(call, self.1)),
            Stmt::Store { ptr, offset, size, value } => {
                write!(f, "value.{}[{ptr}{}] = {value}", UInt(*size), Offset(*offset))
            }
            Stmt::Add { ptr, offset, value, atomic } => {
                let atomic = if *atomic { " atomic" } else { "" };
                write!(f, "value.u64[{ptr}{}] += {value}{atomic}", Offset(*offset))
            }
            Stmt::StoreSlot { slot, offset, size, value } => {
                write!(f, "s{}.{}[{offset}] = {value}", slot.0, UInt(*size))
            }
            Stmt::If { cond, .. } => write!(f, "if {cond}"),
            Stmt::Return => f.write_str("return"),
        }
    }
}

struct OpText<'a>(&'a Op, &'a Layout);

impl fmt::Display for OpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Op::Copy(value) => write!(f, "{value}"),
            Op::Alu(op, a, b) => write!(f, "{a} {} {b}", alu(*op)),
            Op::Alu32(op, a, b) => write!(f, "{a} {} {b} as u32", alu(*op)),
            Op::Extend { a, bits, signed: false } => write!(f, "{a} as u{bits}"),
            Op::Extend { a, bits, signed: true } => write!(f, "{a} as s{bits}"),
            Op::Swap { a, bits } => write!(f, "swap{bits}({a})"),
            Op::Load { ptr, offset, size, space } => {
                let space = match space {
                    Space::Ctx => "ctx",
                    Space::Kernel => "kernel",
                    Space::Value => "value",
                    Space::Rodata => "rodata",
                };
                write!(f, "{space}.{}[{ptr}{}]", UInt(*size), Offset(*offset))
            }
            Op::LoadSlot { slot, offset, size } => write!(f, "s{}.{}[{offset}]", slot.0, UInt(*size)),
            Op::FetchAdd { ptr, offset, value } => write!(f, "fetch_add(value.u64[{ptr}{}], {value})", Offset(*offset)),
            Op::Rodata(offset) => write!(f, "&rodata[{offset}]"),
            Op::Call(call) => write!(f, "{}", CallText(call, self.1)),
        }
    }
}

struct CallText<'a>(&'a Call, &'a Layout);

impl fmt::Display for CallText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.0.helper)?;
        for (i, arg) in self.0.args.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            match arg {
                Arg::Var(var) => write!(f, "{var}")?,
                Arg::Imm(value) => write!(f, "{}", Operand::Imm(*value))?,
                Arg::Slot(slot, 0) => write!(f, "&s{}", slot.0)?,
                Arg::Slot(slot, offset) => write!(f, "&s{} + {offset}", slot.0)?,
                Arg::Map(id) => match self.1.maps.get(id.0 as usize) {
                    Some(map) => f.write_str(&map.name)?,
                    None => write!(f, "map#{}", id.0)?,
                },
            }
        }
        f.write_str(")")
    }
}

struct UInt(Size);

impl fmt::Display for UInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0.bytes() * 8)
    }
}

struct Offset(i32);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1.. => write!(f, " + {}", self.0),
            _ => write!(f, " - {}", self.0.unsigned_abs()),
        }
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Var(var) => write!(f, "{var}"),
            // Masks and addresses are hard to read in decimal.
            Operand::Imm(value) if value.unsigned_abs() > 0xffff_ffff => write!(f, "{value:#x}"),
            Operand::Imm(value) => write!(f, "{value}"),
        }
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            CmpOp::Eq => "==",
            CmpOp::Ne => "!=",
            CmpOp::Lt => "<",
            CmpOp::Le => "<=",
            CmpOp::Gt => ">",
            CmpOp::Ge => ">=",
            CmpOp::SLt => "s<",
            CmpOp::SLe => "s<=",
            CmpOp::SGt => "s>",
            CmpOp::SGe => "s>=",
            CmpOp::Test => "&",
        };
        write!(f, "{} {op} {}", self.a, self.b)
    }
}

impl fmt::Display for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Helper::MapLookup => "map_lookup",
            Helper::MapUpdate => "map_update",
            Helper::MapDelete => "map_delete",
            Helper::MapPush => "map_push",
            Helper::MapPop => "map_pop",
            Helper::KtimeGetNs => "ktime_get_ns",
            Helper::GetPrandomU32 => "get_prandom_u32",
            Helper::GetCurrentPidTgid => "get_current_pid_tgid",
            Helper::GetCurrentUidGid => "get_current_uid_gid",
            Helper::GetCurrentComm => "get_current_comm",
            Helper::GetCurrentCgroupId => "get_current_cgroup_id",
            Helper::GetFuncIp => "get_func_ip",
            Helper::GetAttachCookie => "get_attach_cookie",
            Helper::GetSmpProcessorId => "get_smp_processor_id",
            Helper::GetCurrentTask => "get_current_task",
            Helper::GetCurrentTaskBtf => "get_current_task_btf",
            Helper::ProbeReadKernel => "probe_read_kernel",
            Helper::ProbeReadUser => "probe_read_user",
            Helper::ProbeReadKernelStr => "probe_read_kernel_str",
            Helper::ProbeReadUserStr => "probe_read_user_str",
            Helper::TaskStorageGet => "task_storage_get",
            Helper::RdonlyCast => "rdonly_cast",
            Helper::GetStackId => "get_stackid",
            Helper::RingbufOutput => "ringbuf_output",
            Helper::PerfEventOutput => "perf_event_output",
        })
    }
}

fn alu(op: AluOp) -> &'static str {
    match op {
        AluOp::Add => "+",
        AluOp::Sub => "-",
        AluOp::Mul => "*",
        AluOp::Div => "/",
        AluOp::Mod => "%",
        AluOp::And => "&",
        AluOp::Or => "|",
        AluOp::Xor => "^",
        AluOp::Shl => "<<",
        AluOp::Shr => ">>",
        AluOp::Sar => "s>>",
    }
}

#[cfg(test)]
mod tests {
    use super::{func, module};
    use crate::ir::sketch::{self, *};
    use crate::ir::{AluOp, Arg, CmpOp, Duty, Func, Helper, Op, Size, Slot, Space, Stmt, Var};
    use crate::typed::Attach;

    #[test]
    fn every_form_has_a_text() {
        let body = vec![
            Stmt::Mark { line: 12, column: 5 },
            load(1, Space::Ctx, 0, 8, Size::B8),
            when_else(
                1,
                CmpOp::SLt,
                i(0),
                vec![alu(2, AluOp::Sub, 1, i(7)), Stmt::Return],
                vec![when(1, CmpOp::Test, i(4), vec![copy(2, v(1))])],
            ),
            set(2, Op::Alu32(AluOp::Shr, Var(1), i(3))),
            set(2, Op::Extend { a: Var(2), bits: 16, signed: true }),
            set(2, Op::Swap { a: Var(2), bits: 64 }),
            set(3, Op::Rodata(24)),
            load(3, Space::Rodata, 3, -2, Size::B1),
            copy(4, i(0x1234_5678_9abc)),
            store_slot(1, 4, Size::B4, i(-1)),
            load_slot(5, 1, 4, Size::B2),
            set_call(6, Helper::MapLookup, &[map(0), slot(0)]),
            store(6, 0, Size::B4, v(5)),
            add(6, 16, i(1)),
            Stmt::Add { ptr: Var(6), offset: 16, value: v(5), atomic: false },
            Stmt::Call(call(Helper::MapUpdate, &[map(9), Arg::Slot(Slot(1), 8), slot(2), Arg::Imm(1)])),
            set_call(7, Helper::KtimeGetNs, &[]),
            set(8, Op::FetchAdd { ptr: Var(6), offset: 8, value: i(1) }),
        ];
        let expected = "\
map values array mmap key 4 value 24 entries 4
map keys hash key 8 value 16 entries 2
map free stack key 0 value 4 entries 3
map tasks task_storage key 4 value 16 entries 0
rodata 64 bytes

func test interpreted
  slot s0 8 bytes
  slot s1 24 bytes
  slot s2 16 bytes
  @12:5
  v1 = ctx.u64[v0 + 8]
  if v1 s< 0
    v2 = v1 - 7
    return
  else
    if v1 & 4
      v2 = v1
  v2 = v1 >> 3 as u32
  v2 = v2 as s16
  v2 = swap64(v2)
  v3 = &rodata[24]
  v3 = rodata.u8[v3 - 2]
  v4 = 0x123456789abc
  s1.u32[4] = -1
  v5 = s1.u16[4]
  v6 = map_lookup(values, &s0)
  value.u32[v6] = v5
  value.u64[v6 + 16] += 1 atomic
  value.u64[v6 + 16] += v5
  map_update(map#9, &s1 + 8, &s2, 1)
  v7 = ktime_get_ns()
  v8 = fetch_add(value.u64[v6 + 8], 1)
";
        assert_eq!(module(&sketch::module(body)), expected);
    }

    #[test]
    fn attach_points_are_named() {
        for (attach, expected) in [
            (Attach::TpBtf { event: "sys_exit".into() }, "func f tp_btf:sys_exit\n"),
            (Attach::RawTp { event: "sys_exit".into() }, "func f raw_tp:sys_exit\n"),
            (Attach::Tracepoint { system: "a".into(), event: "b".into() }, "func f tracepoint:a:b\n"),
            (Attach::Interval { period_ns: 5 }, "func f interval:5ns\n"),
        ] {
            let f = Func {
                name: "f".into(),
                attach: Some(attach),
                calls: None,
                duty: Duty::Always,
                vars: 1,
                slots: vec![],
                body: vec![],
            };
            assert_eq!(func(&f, &layout()), expected);
        }
    }
}
