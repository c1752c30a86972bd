//! Which bytes a member, an element or a cast means.
//!
//! A pointer is [`Trust::Btf`] only while the verifier is known to give it the same BTF type: [`Btf::access`] says how it types a
//! load, and it ignores casts.

use super::expr::{Env, Value};
use super::members::{Found, bitfield_read, field_macro, find, member_candidates};
use super::report::{Checked, unknown};
use crate::ast::Ident;
use crate::diag::{Span, did_you_mean};
use crate::kernel_target::Btf;
use crate::kernel_target::btf::{Access, Kind as BtfKind, Type};
use crate::typed::{Bitfield, Expr, Kind, Trust, Ty};

/// A place in memory: what C calls an lvalue.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// The pointer it is reached through.
    pub(super) base: Expr,
    /// Bytes from the pointer.
    pub(super) offset: i32,
    /// BTF type of what lies there.
    pub(super) ty: u32,
    /// Set for bitfields.
    pub(super) bitfield: Option<Bitfield>,
    /// Where it was written.
    pub(super) span: Span,
}

impl Memory {
    /// What `pointer`, a pointer to `to`, points to; constant offsets are folded into later reads.
    pub(super) fn behind(pointer: Expr, to: u32, trust: Trust, span: Span) -> Memory {
        let (base, offset) = match pointer.kind {
            Kind::Offset { base, offset } => (*base, offset),
            _ => (pointer, 0),
        };
        Memory { base: retrust(base, trust), offset, ty: to, bitfield: None, span }
    }

    fn trust(&self) -> Trust {
        match self.base.ty {
            Ty::Ptr { trust, .. } => trust,
            _ => Trust::Probe,
        }
    }

    /// Its address, as a pointer to `to`.
    pub(super) fn address(self, to: u32, trust: Trust, env: &Env) -> Expr {
        let ty = Ty::Ptr { to, trust };
        let place = env.place(self.span);
        // A BTF pointer keeps its own type below an offset of 0: that type is what the verifier sees.
        if self.offset == 0 && (trust != Trust::Btf || self.base.ty == ty) {
            return Expr { ty, place, ..self.base };
        }
        let base = Box::new(retrust(self.base, trust));
        Expr { kind: Kind::Offset { base, offset: self.offset }, ty, duration: false, place }
    }
}

/// The same pointer, read in another way.
pub(super) fn retrust(pointer: Expr, trust: Trust) -> Expr {
    match pointer.ty {
        Ty::Ptr { to, .. } => Expr { ty: Ty::Ptr { to, trust }, ..pointer },
        _ => pointer,
    }
}

/// The type of an integer, enum or bool; `None` for anything else.
pub(super) fn scalar_type(btf: &Btf, t: Type) -> Option<Ty> {
    match t.kind {
        BtfKind::Int if btf.is_bool(t) => Some(Ty::Bool),
        BtfKind::Int | BtfKind::Enum | BtfKind::Enum64 if matches!(t.size_or_type, 1 | 2 | 4 | 8) => {
            Some(Ty::Int { bits: 8 * t.size_or_type as u8, signed: btf.is_signed(t) })
        }
        _ => None,
    }
}

/// The type of a pointer that was got with this trust.
pub(super) fn pointer_type(btf: &Btf, pointer: Type, trust: Trust) -> Ty {
    let pointee = btf.strip(pointer.size_or_type);
    let trust = match trust {
        _ if btf.is_user_pointer(pointer) => Trust::User,
        // The verifier types only pointers to structs, of declared ones not even these; a per-CPU pointer is an offset, not an address.
        Trust::Btf if pointee.kind != BtfKind::Struct || is_per_cpu(btf, pointer) => Trust::Probe,
        trust => trust,
    };
    Ty::Ptr { to: resolve(btf, pointee.id).id, trust }
}

/// A word of the context: loaded, or copied where the verifier refuses to type what is loaded.
pub(super) fn argument(btf: &Btf, ty: u32, offset: u32, trust: Trust) -> Kind {
    match trust {
        Trust::Btf if !btf.is_loadable_argument(ty) => Kind::ArgCopy { offset },
        _ => Kind::Arg { offset },
    }
}

fn is_per_cpu(btf: &Btf, pointer: Type) -> bool {
    let mut t = btf.ty(pointer.size_or_type);
    for _ in 0..8 {
        match t.kind {
            BtfKind::TypeTag if btf.name(t) == "percpu" => return true,
            BtfKind::TypeTag | BtfKind::Const | BtfKind::Volatile | BtfKind::Restrict => t = btf.ty(t.size_or_type),
            _ => return false,
        }
    }
    false
}

/// The type behind typedefs, qualifiers and forward declarations.
pub(super) fn resolve(btf: &Btf, id: u32) -> Type {
    let t = btf.strip(id);
    match t.kind {
        BtfKind::Fwd => btf.find_aggregate(btf.name(t)).map_or(t, |id| btf.ty(id)),
        _ => t,
    }
}

/// Whether this is an array of `char`, which holds text; `u8` arrays hold bytes.
fn text_length(btf: &Btf, t: Type) -> Option<u32> {
    let (element, count) = btf.array(t)?;
    let element = btf.strip(element);
    (element.kind == BtfKind::Int && element.size_or_type == 1 && btf.name(element) == "char").then_some(count)
}

/// Whether this is an array of single bytes, which kernel code uses as scratch space (`sk_buff.cb`).
pub(super) fn is_byte_array(btf: &Btf, t: Type) -> bool {
    btf.array(t).is_some_and(|(element, _)| {
        let element = btf.strip(element);
        element.kind == BtfKind::Int && element.size_or_type == 1
    })
}

impl Env<'_> {
    /// The place a value points to or is.
    fn target_of(&mut self, value: Value) -> Checked<Memory> {
        let span = value.span();
        let pointer = match value {
            Value::Memory(m) => {
                let btf = self.btf(span)?;
                if btf.strip(m.ty).kind != BtfKind::Ptr {
                    return Ok(m);
                }
                self.load(m)?
            }
            value => self.typed(value)?,
        };
        match pointer.ty {
            Ty::Ptr { to: 0, .. } => {
                let message = format!("`{}` is a pointer to an unknown type", self.quote(span));
                Err(self.fail_hint(span, message, &format!("say which: `cast(struct NAME, {})`", self.quote(span))))
            }
            Ty::Ptr { to, trust } => Ok(Memory::behind(pointer, to, trust, span)),
            ty => {
                let message = format!("`{}` is {} and has no members", self.quote(span), self.describe(ty));
                Err(self.fail(span, message))
            }
        }
    }

    pub(super) fn member(&mut self, base: Value, field: &Ident, span: Span) -> Checked<Value> {
        let base_span = base.span();
        let memory = self.target_of(base)?;
        let btf = self.btf(span)?;
        let aggregate = resolve(btf, memory.ty);
        if !matches!(aggregate.kind, BtfKind::Struct | BtfKind::Union) {
            let what = btf.describe(memory.ty);
            let message = format!("`{}` is `{what}` and has no members", self.quote(base_span));
            return Err(self.fail(base_span, message));
        }
        if let Some(found) = find(btf, aggregate, &field.name, 0) {
            return self.found_member(memory, found, span).map(Value::Memory);
        }
        if let Some(path) = field_macro(btf, aggregate.id, &field.name) {
            let mut value = Value::Memory(Memory { ty: aggregate.id, ..memory });
            for name in path {
                value = self.member(value, &Ident { name, span: field.span }, span)?;
            }
            return Ok(value);
        }
        let candidates = member_candidates(btf, aggregate.id);
        let near = did_you_mean(&field.name, candidates.iter().map(String::as_str));
        let message = format!("`{}` has no member `{}` on this kernel", btf.describe(aggregate.id), field.name);
        let otherwise = "test with `has(..)` what only some kernels have";
        let diagnostic = unknown(self.place(field.span), message, near, otherwise);
        Err(self.report.add(diagnostic))
    }

    fn found_member(&mut self, memory: Memory, found: Found, span: Span) -> Checked<Memory> {
        let (bytes, bitfield) = match found.bit_size {
            0 => (found.bit_offset / 8, None),
            _ => match bitfield_read(&found) {
                Some((bytes, bitfield)) => (bytes, Some(bitfield)),
                None => return Err(self.fail(span, "this bitfield cannot be read with one load")),
            },
        };
        let offset = self.offset(memory.offset, i64::from(bytes), span)?;
        Ok(Memory { offset, ty: found.ty, bitfield, span, ..memory })
    }

    pub(super) fn offset(&mut self, from: i32, by: i64, span: Span) -> Checked<i32> {
        i32::try_from(i64::from(from) + by).map_err(|_| self.fail(span, "this lies too far from its pointer (2 GiB)"))
    }

    /// `base[index]`: an element of an array, or of what a pointer points to.
    pub(super) fn element(&mut self, base: Value, index: Value, span: Span) -> Checked<Value> {
        let base_span = base.span();
        let is_array = match &base {
            Value::Memory(m) => self.btf(span)?.array(self.btf(span)?.strip(m.ty)),
            _ => None,
        };
        let (memory, element, count) = match (base, is_array) {
            (Value::Memory(m), Some((element, count))) => (m, element, count),
            (base, _) => {
                let memory = self.target_of(base)?;
                let element = memory.ty;
                let kind = self.btf(span)?.strip(element).kind;
                if matches!(kind, BtfKind::Struct | BtfKind::Union) && memory.span == base_span && memory.offset != 0 {
                    return Err(self.fail(base_span, format!("`{}` is no array", self.quote(base_span))));
                }
                (memory, element, 0)
            }
        };
        let Some(size) = self.btf(span)?.size(element) else {
            let message = format!("elements of `{}` have no known size", self.quote(base_span));
            return Err(self.fail(base_span, message));
        };
        match index {
            Value::Literal(l) => {
                let in_range = l.value >= 0 && (count == 0 || l.value < i128::from(count));
                let Some(index) = i64::try_from(l.value).ok().filter(|_| in_range) else {
                    let message = format!("index {} is outside `{}`", l.value, self.quote(base_span));
                    return Err(self.fail_hint(l.span, message, &format!("it has {count} elements")));
                };
                let bytes = index.saturating_mul(i64::from(size));
                let offset = self.offset(memory.offset, bytes, span)?;
                // Past the first of an unbounded run the verifier knows no type.
                let base = match count == 0 && index != 0 && memory.trust() == Trust::Btf {
                    true => retrust(memory.base, Trust::Probe),
                    false => memory.base,
                };
                Ok(Value::Memory(Memory { base, offset, ty: element, bitfield: None, span }))
            }
            index => self.variable_element(memory, element, size, count, index, span),
        }
    }

    fn variable_element(
        &mut self,
        memory: Memory,
        element: u32,
        scale: u32,
        count: u32,
        index: Value,
        span: Span,
    ) -> Checked<Value> {
        let index_span = index.span();
        if count == 0 {
            let hint = "index it with a number";
            return Err(self.fail_hint(
                index_span,
                "the length is unknown, so a computed index could go anywhere",
                hint,
            ));
        }
        let index = self.integer(index)?;
        if matches!(index.ty, Ty::Int { signed: true, .. }) {
            let message =
                format!("an index must be unsigned, `{}` is {}", self.quote(index_span), self.describe(index.ty));
            let hint = format!("write `u32({})`", self.quote(index_span));
            return Err(self.fail_hint(index_span, message, &hint));
        }
        let index = Box::new(convert(index, Ty::U64));
        // The verifier takes no computed offset from a BTF pointer.
        let trust = if memory.trust() == Trust::User { Trust::User } else { Trust::Probe };
        let to = self.btf(span)?.strip(element).id;
        let array_type = memory.ty;
        let base = Box::new(memory.address(array_type, trust, self));
        let kind = Kind::Element { base, index, scale, count };
        let base = Expr { kind, ty: Ty::Ptr { to, trust }, duration: false, place: self.place(span) };
        Ok(Value::Memory(Memory { base, offset: 0, ty: element, bitfield: None, span }))
    }

    /// Reads a place: an integer, bool, pointer or text.
    pub(super) fn load(&mut self, memory: Memory) -> Checked<Expr> {
        let btf = self.btf(memory.span)?;
        let t = btf.strip(memory.ty);
        let ty = match t.kind {
            BtfKind::Ptr => {
                let pointee = btf.strip(t.size_or_type).id;
                let trust = match memory.base.ty {
                    Ty::Ptr { trust: Trust::Btf, to }
                        if btf.access(to, memory.offset, 8) != Access::Pointer(pointee) =>
                    {
                        Trust::Probe
                    }
                    _ => memory.trust(),
                };
                Some(pointer_type(btf, t, trust))
            }
            BtfKind::Array => {
                text_length(btf, t).filter(|n| *n > 0).map(|n| Ty::Str(n.min(u32::from(super::MAX_TEXT)) as u16))
            }
            _ => scalar_type(btf, t),
        };
        let Some(ty) = ty else {
            let message = format!("`{}` is `{}`, not a single value", self.quote(memory.span), btf.describe(memory.ty));
            let hint = match t.kind {
                BtfKind::Struct | BtfKind::Union => "read one of its members with `.`",
                BtfKind::Array => "read one of its elements with `[i]`, or show addresses with `ip(..)`",
                _ => "numbers of 1, 2, 4 or 8 bytes, bools, pointers and text can be read",
            };
            return Err(self.fail_hint(memory.span, message, hint));
        };
        let place = self.place(memory.span);
        let kind = Kind::Load { base: Box::new(memory.base), offset: memory.offset, bitfield: memory.bitfield };
        Ok(Expr { kind, ty, duration: false, place })
    }
}

/// A conversion, unless the value has the type already.
pub(super) fn convert(expr: Expr, ty: Ty) -> Expr {
    if expr.ty == ty {
        return expr;
    }
    let Expr { duration, place, .. } = expr;
    match expr.kind {
        // A constant's bits are those of its extended value.
        Kind::Const(bits) => Expr { kind: Kind::Const(extend(bits, ty)), ty, duration, place },
        _ => Expr { kind: Kind::Convert(Box::new(expr)), ty, duration, place },
    }
}

/// The 64 bits of a value cut to a type.
fn extend(bits: u64, ty: Ty) -> u64 {
    match ty {
        Ty::Int { bits: width, signed } if width < 64 => {
            let spare = 64 - u32::from(width);
            if signed { (((bits << spare) as i64) >> spare) as u64 } else { bits << spare >> spare }
        }
        Ty::Bool => (bits != 0).into(),
        _ => bits,
    }
}
