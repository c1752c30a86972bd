//! System calls: where their number, arguments and result lie, and of what type they are.

use super::access::{pointer_type, scalar_type};
use super::expr::{Env, Value};
use super::prototype;
use super::report::{Checked, Reported};
use super::scope::Args;
use super::user::{self, UserArgs};
use crate::ast::Ident;
use crate::diag::{Diagnostic, Place, Span, did_you_mean};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::kernel_target::{Btf, Target};
use crate::program::Edge;
use crate::typed::{Expr, Kind, Trust, Ty};
use std::collections::BTreeMap;

/// The arguments of a set of system calls.
#[derive(Clone, Debug)]
pub(super) struct SyscallArgs<'a> {
    /// Entry or exit.
    pub(super) edge: Edge,
    /// Names; empty for all calls.
    pub(super) names: Vec<&'a str>,
    /// Where its numbers and arguments lie.
    pub(super) source: CallSource,
}

/// Where the number, the arguments and the result of a call are found.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallSource {
    /// In `struct pt_regs`, which may be read in this way.
    Registers(Trust),
    /// In the records of `raw_syscalls:sys_enter` and `sys_exit`: `long id` at byte 8, then the arguments or the result, of
    /// 8 bytes each, since Linux 2.6.32.
    Record,
}

/// `long id` of a record.
const RECORD_NUMBER: u32 = 8;
/// `unsigned long args[6]`, or `long ret`.
const RECORD_WORDS: u32 = 16;

impl<'a> SyscallArgs<'a> {
    /// Names that every call of the set has.
    pub(super) fn arg_names(&self, target: &'a Target) -> Vec<&'a str> {
        let args = |call: &str| target.syscalls.get(call).and_then(|c| c.args.as_deref()).unwrap_or_default();
        let Some((first, rest)) = self.names.split_first() else { return Vec::new() };
        let in_all = |name: &str| rest.iter().all(|call| args(call).iter().any(|a| a.name == name));
        args(first).iter().map(|a| a.name.as_str()).filter(|name| in_all(name)).collect()
    }
}

/// A read of `struct pt_regs`, which both `sys_enter` and `sys_exit` have as their first argument. `path` is a member,
/// perhaps with a constant index: `regs[3]`. `None` when this kernel's struct has no such member.
fn register(btf: &Btf, trust: Trust, path: &str, ty: Ty, place: Place) -> Option<Expr> {
    let (name, index) = match path.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse::<u32>().ok()?),
        None => (path, 0),
    };
    let to = btf.find("pt_regs", BtfKind::Struct)?;
    let offset = btf.member(to, name)?.bit_offset / 8 + 8 * index;
    let regs = Expr { kind: Kind::Arg { offset: 0 }, ty: Ty::Ptr { to, trust }, duration: false, place };
    let kind = Kind::Load { base: Box::new(regs), offset: offset as i32, bitfield: None };
    Some(Expr { kind, ty, duration: false, place })
}

/// The number of the call that enters or returns; `None` when only the kernel's types could tell.
pub(super) fn number(target: &Target, edge: Edge, source: CallSource, place: Place) -> Option<Expr> {
    let CallSource::Registers(trust) = source else {
        return Some(Expr { kind: Kind::Field { offset: RECORD_NUMBER }, ty: Ty::U32, duration: false, place });
    };
    match edge {
        Edge::Enter => Some(Expr { kind: Kind::Arg { offset: 8 }, ty: Ty::U32, duration: false, place }),
        // The low half of the register: numbers have 32 bits, and both architectures are little-endian.
        Edge::Exit => register(target.btf.as_ref()?, trust, target.arch.syscall_nr(), Ty::U32, place),
    }
}

/// `args.NAME` at a system call hook.
pub(super) fn arg(env: &mut Env, call: &SyscallArgs, field: &Ident, span: Span) -> Checked<Value> {
    if call.names.is_empty() {
        let message = "arguments differ from call to call, and this hook has all calls";
        return Err(env.fail_hint(span, message, "name the calls: `syscall:[read, write]:enter`"));
    }
    let mut found: Vec<(usize, Ty, &str)> = Vec::new();
    for name in &call.names {
        let (index, ty) = one_call(env, name, field, span)?;
        if let Some((_, other, first)) = found.first()
            && !same_class(*other, ty)
        {
            let (a, b) = (env.describe(*other), env.describe(ty));
            let message = format!("`{}` is {a} in {first} but {b} in {name}", field.name);
            return Err(env.fail_hint(span, message, "use one probe for each of them"));
        }
        found.push((index, ty, name));
    }
    let (first, ty, _) = *found.first().ok_or(Reported)?;
    let place = env.place(span);
    let mut expr = nth(env, call, first, ty, span)?;
    // Calls that have it elsewhere, by where.
    let mut elsewhere: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (index, _, name) in found.into_iter().filter(|(index, ..)| *index != first) {
        let number = env.target.syscalls.get(name).map(|call| u64::from(call.number));
        elsewhere.entry(index).or_default().extend(number);
    }
    for (index, mut numbers) in elsewhere {
        numbers.sort_unstable();
        let called = number(env.target, call.edge, call.source, place).ok_or(Reported)?;
        let is_one = Expr { kind: Kind::OneOf(Box::new(called), numbers), ty: Ty::Bool, duration: false, place };
        let there = nth(env, call, index, ty, span)?;
        let kind = Kind::Cond(Box::new(is_one), Box::new(there), Box::new(expr));
        expr = Expr { kind, ty, duration: false, place };
    }
    Ok(Value::Typed(expr))
}

/// The argument at a position.
fn nth(env: &mut Env, call: &SyscallArgs, index: usize, ty: Ty, span: Span) -> Checked<Expr> {
    let place = env.place(span);
    let CallSource::Registers(trust) = call.source else {
        let kind = Kind::Field { offset: RECORD_WORDS + 8 * index as u32 };
        return Ok(Expr { kind, ty, duration: false, place });
    };
    let btf = env.btf(span)?;
    let path = env.target.arch.syscall_args().get(index).copied();
    path.and_then(|path| register(btf, trust, path, ty, place)).ok_or_else(|| {
        let message = format!("this kernel's `struct pt_regs` does not show where argument {} lies", index + 1);
        env.report.add(Diagnostic::target(place, message))
    })
}

/// Position and type of an argument of one call.
fn one_call(env: &mut Env, call: &str, field: &Ident, span: Span) -> Checked<(usize, Ty)> {
    let target = env.target;
    let Some(args) = target.syscalls.get(call).and_then(|c| c.args.as_ref()) else {
        let message = format!("the arguments of `{call}` are unknown");
        let hint = "they are read from tracefs (events/syscalls), which is not mounted or not readable";
        let diagnostic = Diagnostic::target(env.place(span), message).hint(hint);
        return Err(env.report.add(diagnostic));
    };
    match args.iter().position(|a| a.name == field.name) {
        Some(i) => Ok((i, c_type(target, &args[i].ctype))),
        None => Err(env.unknown_arg_of(field, call, args.iter().map(|a| a.name.as_str()).collect())),
    }
}

/// Registers hold 64 bits; what matters is whether the upper half means anything.
fn same_class(a: Ty, b: Ty) -> bool {
    (a.bytes() <= 4) == (b.bytes() <= 4) && matches!(a, Ty::Ptr { .. }) == matches!(b, Ty::Ptr { .. })
}

/// A C type as `events/syscalls/*/format` prints it. All pointers are addresses in the caller.
pub(super) fn c_type(target: &Target, ctype: &str) -> Ty {
    let words: Vec<&str> =
        ctype.split_whitespace().filter(|w| !matches!(*w, "const" | "volatile" | "__user")).collect();
    let name = words.join(" ");
    if let Some(pointee) = name.strip_suffix('*') {
        let pointee = pointee.trim_end();
        let to = pointee.strip_prefix("struct ").and_then(|s| target.btf.as_ref()?.find(s, BtfKind::Struct));
        return Ty::Ptr { to: to.unwrap_or(0), trust: Trust::User };
    }
    match name.as_str() {
        "char" => Ty::Int { bits: 8, signed: true },
        "int" | "pid_t" | "key_t" | "clockid_t" | "timer_t" | "mqd_t" | "key_serial_t" | "rwf_t" => Ty::S32,
        "unsigned int" | "unsigned" | "uid_t" | "gid_t" | "qid_t" => Ty::U32,
        "long" | "ssize_t" | "off_t" | "loff_t" => Ty::S64,
        "unsigned long" | "size_t" | "aio_context_t" => Ty::U64,
        "umode_t" => Ty::Int { bits: 16, signed: false },
        name if name.starts_with("enum ") => Ty::U32,
        name => typedef(target, name).unwrap_or(Ty::U64),
    }
}

fn typedef(target: &Target, name: &str) -> Option<Ty> {
    let btf = target.btf.as_ref()?;
    let t = btf.strip(btf.find(name, BtfKind::Typedef)?);
    match t.kind {
        BtfKind::Ptr => Some(pointer_type(btf, t, Trust::User)),
        _ => scalar_type(btf, t),
    }
}

impl Env<'_> {
    fn unknown_arg_of(&mut self, field: &Ident, call: &str, names: Vec<&str>) -> Reported {
        let hint = match did_you_mean(&field.name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it has {}", names.join(", ")),
        };
        self.fail_hint(field.span, format!("`{call}` has no argument `{}`", field.name), &hint)
    }

    pub(super) fn retval(&mut self, span: Span) -> Checked<Value> {
        let (place, scope) = (self.place(span), self.scope);
        match &scope.args {
            Args::Syscall(SyscallArgs { edge: Edge::Exit, source, .. }) => {
                let kind = match source {
                    CallSource::Registers(_) => Kind::Arg { offset: 8 },
                    CallSource::Record => Kind::Field { offset: RECORD_WORDS },
                };
                Ok(Value::Typed(Expr { kind, ty: Ty::S64, duration: false, place }))
            }
            Args::User(UserArgs::Return(arch)) => Ok(user::retval(*arch, place)),
            Args::Function(f) => prototype::result(self, f, span),
            _ => Err(self.fail_hint(
                span,
                "`retval` is known only when a system call or a function returns",
                "hook `syscall:NAME:exit`, `function:NAME:return` or `uretprobe:PATH:SYMBOL`",
            )),
        }
    }

    /// `syscall`: the number of the call at hand; at a span's end, of the call that began it.
    pub(super) fn syscall(&mut self, span: Span) -> Checked<Value> {
        let place = self.place(span);
        if let Some(index) = self.scope.saved_syscall {
            let kind = Kind::Saved(index);
            return Ok(Value::Typed(Expr { kind, ty: Ty::U32, duration: false, place }));
        }
        let Args::Syscall(SyscallArgs { edge, source, .. }) = &self.scope.args else {
            let message = "`syscall` is known only at system call hooks and at the end of spans that began at one";
            return Err(self.fail_hint(span, message, "hook `syscall:NAME:enter` or `syscall:NAME:exit`"));
        };
        match number(self.target, *edge, *source, place) {
            Some(expr) => Ok(Value::Typed(expr)),
            None => {
                self.btf(span)?;
                let message = "this kernel's `struct pt_regs` does not show which call returns";
                let diagnostic = Diagnostic::target(place, message);
                Err(self.report.add(diagnostic))
            }
        }
    }
}
