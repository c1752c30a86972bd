//! Functions.

use super::access::{Memory, convert, is_byte_array, resolve};
use super::expr::{Env, Value, constant_bool};
use super::label::DECODERS;
use super::packet::Header;
use super::report::{Checked, Report, Reported, unknown};
use super::scope::Role;
use crate::ast::{self, ExprKind, Ident, TypeKind};
use crate::diag::{Span, did_you_mean};
use crate::kernel_target::Btf;
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{Arith, CgroupName, Expr, Kind, Trust, Ty};

/// Conversions: name and the type they give.
const CONVERSIONS: [(&str, u8, bool); 8] = [
    ("u8", 8, false),
    ("u16", 16, false),
    ("u32", 32, false),
    ("u64", 64, false),
    ("s8", 8, true),
    ("s16", 16, true),
    ("s32", 32, true),
    ("s64", 64, true),
];

/// The other functions: name and how they are written.
const FUNCTIONS: [(&str, usize, &str); 21] = [
    ("ntohs", 1, "ntohs(x)"),
    ("ntohl", 1, "ntohl(x)"),
    ("min", 2, "min(a, b)"),
    ("max", 2, "max(a, b)"),
    ("clamp", 3, "clamp(x, low, high)"),
    ("log2", 1, "log2(x)"),
    ("cast", 2, "cast(struct NAME, x)"),
    ("container_of", 3, "container_of(pointer, struct NAME, member)"),
    ("has", 1, "has(args.x.y)"),
    ("has_type", 1, "has_type(struct NAME)"),
    ("fd_file", 1, "fd_file(fd)"),
    ("fd_sock", 1, "fd_sock(fd)"),
    ("cgroup_of", 1, "cgroup_of(x)"),
    ("socket_cookie", 1, "socket_cookie(sk)"),
    ("ip_header", 1, "ip_header(skb)"),
    ("ipv6_header", 1, "ipv6_header(skb)"),
    ("tcp_header", 1, "tcp_header(skb)"),
    ("udp_header", 1, "udp_header(skb)"),
    ("str", 2, "str(pointer, length)"),
    ("starts_with", 2, "starts_with(text, \"x\")"),
    ("glob", 2, "glob(text, \"x*\")"),
];

/// Names of conversions and functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CONVERSIONS.iter().map(|c| c.0).chain(FUNCTIONS.iter().map(|f| f.0))
}

/// Whether a function has this name.
pub(super) fn is_function(name: &str) -> bool {
    conversion(name).is_some() || FUNCTIONS.iter().any(|f| f.0 == name) || DECODERS.contains(&name)
}

/// Whether it is a conversion's.
pub(super) fn is_conversion(name: &str) -> bool {
    conversion(name).is_some()
}

/// The conversion that is meant by the name of a type of C.
fn of_c(name: &str) -> Option<&'static str> {
    CONVERSIONS.iter().map(|c| c.0).find(|ours| *ours == name).or_else(|| {
        let (_, ours) = C_NUMBERS.iter().find(|(c, _)| *c == name)?;
        Some(ours)
    })
}

/// Numbers as C and its libraries call them.
const C_NUMBERS: [(&str, &str); 20] = [
    ("char", "s8"),
    ("int", "s32"),
    ("int16_t", "s16"),
    ("int32_t", "s32"),
    ("int64_t", "s64"),
    ("int8_t", "s8"),
    ("long", "s64"),
    ("short", "s16"),
    ("size_t", "u64"),
    ("ssize_t", "s64"),
    ("uint", "u32"),
    ("uint16_t", "u16"),
    ("uint32_t", "u32"),
    ("uint64_t", "u64"),
    ("uint8_t", "u8"),
    ("uintptr_t", "u64"),
    ("ulong", "u64"),
    ("unsigned", "u32"),
    ("__u32", "u32"),
    ("__u64", "u64"),
];

fn conversion(name: &str) -> Option<Ty> {
    CONVERSIONS.iter().find(|c| c.0 == name).map(|&(_, bits, signed)| Ty::Int { bits, signed })
}

impl Env<'_> {
    /// A call of anything but a decoder at its place.
    pub(super) fn call(&mut self, name: &Ident, args: &[ast::Expr], span: Span) -> Checked<Value> {
        if let Some(ty) = conversion(&name.name) {
            self.arity(&name.name, args, 1, &format!("{}(x)", name.name), span)?;
            return self.conversion(&args[0], ty, span);
        }
        if let Some((_, count, usage)) = FUNCTIONS.iter().find(|f| f.0 == name.name) {
            self.arity(&name.name, args, *count, usage, span)?;
            return self.function(&name.name, args, span);
        }
        if CgroupName::of(&name.name).is_some() {
            return Err(self.name_of_cgroup_misplaced(&name.name, name.span));
        }
        if DECODERS.contains(&name.name.as_str()) {
            let message = format!("`{}(..)` decodes a label: it stands only outermost in one", name.name);
            return Err(self.fail_hint(name.span, message, "in other places use the number itself"));
        }
        self.look_at(args);
        let hint = match did_you_mean(&name.name, names().chain(DECODERS)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "docs/language.md lists the functions".into(),
        };
        Err(self.fail_hint(name.span, format!("unknown function `{}`", name.name), &hint))
    }

    /// Reports mistakes in arguments of a call that is itself a mistake, so that one run shows both.
    fn look_at(&mut self, args: &[ast::Expr]) {
        // Types and names of members are no values.
        if args.iter().any(|arg| matches!(arg.kind, ExprKind::TypeName(..) | ExprKind::Arm(..))) {
            return;
        }
        for arg in args {
            // Mistakes are in the report; the typed argument is not used.
            let _ = self.value(arg);
        }
    }

    /// Refuses a wrong number of arguments.
    pub(super) fn arity(
        &mut self,
        name: &str,
        args: &[ast::Expr],
        wanted: usize,
        usage: &str,
        span: Span,
    ) -> Checked<()> {
        if args.len() == wanted {
            return Ok(());
        }
        // Arguments of these are no values, or need not be there.
        if !matches!(name, "cast" | "container_of" | "has" | "has_type" | "enum") {
            self.look_at(args);
        }
        let plural = if wanted == 1 { "" } else { "s" };
        let message = format!("`{name}` takes {wanted} argument{plural}, not {}", args.len());
        Err(self.fail_hint(span, message, &format!("write `{usage}`")))
    }

    fn function(&mut self, name: &str, args: &[ast::Expr], span: Span) -> Checked<Value> {
        match name {
            "ntohs" => self.swap(&args[0], Ty::Int { bits: 16, signed: false }, span),
            "ntohl" => self.swap(&args[0], Ty::U32, span),
            "min" | "max" => {
                let op = if name == "min" { Arith::Min } else { Arith::Max };
                let (a, b) = (self.value(&args[0]), self.value(&args[1]));
                self.arith(op, a?, b?, span)
            }
            "clamp" => {
                let (x, low, high) = (self.value(&args[0]), self.value(&args[1]), self.value(&args[2]));
                let at_least = self.arith(Arith::Max, x?, low?, span)?;
                self.arith(Arith::Min, at_least, high?, span)
            }
            "log2" => self.log2(&args[0], span),
            "cast" => self.cast(&args[0], &args[1], span),
            "container_of" => self.container_of(args, span),
            "has" => self.has(&args[0], span),
            "has_type" => {
                let (_, kind, name) = self.type_name(&args[0])?;
                let found = self.target.btf.as_ref().is_some_and(|btf| find_type(btf, &name, kind).is_some());
                Ok(Value::Typed(constant_bool(found, self.place(span))))
            }
            "fd_file" => self.behind_descriptor(&args[0], "file", Kind::FdFile, span),
            "fd_sock" => self.behind_descriptor(&args[0], "sock", Kind::FdSock, span),
            "cgroup_of" => self.cgroup_id(&args[0]).map(Value::Typed),
            "socket_cookie" => self.socket_cookie(&args[0]).map(Value::Typed),
            "str" => self.str(args, span),
            _ => match Header::of(name) {
                Some(header) => self.header(header, &args[0], span),
                None => self.text_function(name, args, span),
            },
        }
    }

    fn conversion(&mut self, arg: &ast::Expr, ty: Ty, span: Span) -> Checked<Value> {
        let value = self.value(arg)?;
        let place = self.place(span);
        let expr = match value {
            Value::Literal(l) => self.adapt(l, ty)?,
            value => self.typed(value)?,
        };
        match expr.ty {
            Ty::Int { .. } | Ty::Bool => {}
            Ty::Ptr { .. } if ty.bytes() == 8 => {}
            from => {
                let message = format!("{} cannot become {}", self.describe(from), self.describe(ty));
                return Err(match from {
                    Ty::Ptr { .. } => self.fail_hint(arg.span, message, "an address has 64 bits: use `u64(x)`"),
                    _ => self.fail(arg.span, message),
                });
            }
        }
        Ok(Value::Typed(Expr { place, ..convert(expr, ty) }))
    }

    fn swap(&mut self, arg: &ast::Expr, ty: Ty, span: Span) -> Checked<Value> {
        let operand = match self.value(arg)? {
            Value::Literal(l) => self.adapt(l, ty)?,
            value => self.typed(value)?,
        };
        if operand.ty != ty {
            let quote = self.quote(arg.span);
            let message = format!("`{quote}` is {}, not {}", self.describe(operand.ty), self.describe(ty));
            let hint = match operand.ty {
                Ty::Int { bits: 16, .. } => "use ntohs(..) for 16 bits".to_string(),
                Ty::Int { bits: 32, .. } => "use ntohl(..) for 32 bits".to_string(),
                _ => format!("convert it: `{}({quote})`", self.describe(ty)),
            };
            return Err(self.fail_hint(arg.span, message, &hint));
        }
        let kind = Kind::Swap(Box::new(operand));
        Ok(Value::Typed(Expr { kind, ty, duration: false, place: self.place(span) }))
    }

    fn log2(&mut self, arg: &ast::Expr, span: Span) -> Checked<Value> {
        let value = self.value(arg)?;
        let operand = self.integer(value)?;
        if let Ty::Int { bits, signed: true } = operand.ty {
            let quote = self.quote(arg.span);
            let message = format!("log2 needs an unsigned number, `{quote}` is s{bits}");
            return Err(self.fail_hint(arg.span, message, &format!("convert it: `u{bits}({quote})`")));
        }
        let ty = operand.ty;
        let kind = Kind::Log2(Box::new(operand));
        Ok(Value::Typed(Expr { kind, ty, duration: false, place: self.place(span) }))
    }

    /// `struct NAME` as an argument: its place, kind and name.
    fn type_name(&mut self, arg: &ast::Expr) -> Checked<(Span, BtfKind, String)> {
        match &arg.kind {
            ExprKind::TypeName(kind, name) => {
                let kind = match kind {
                    TypeKind::Struct => BtfKind::Struct,
                    TypeKind::Union => BtfKind::Union,
                    TypeKind::Enum => BtfKind::Enum,
                };
                Ok((arg.span, kind, name.clone()))
            }
            ExprKind::Name(name) => {
                let (message, kinds) = (format!("`{name}` is not a type"), ["struct", "union", "enum"]);
                let known = |kind: &&str| {
                    let kind = match *kind {
                        "struct" => BtfKind::Struct,
                        "union" => BtfKind::Union,
                        _ => BtfKind::Enum,
                    };
                    self.target.btf.as_ref().is_some_and(|btf| find_type(btf, name, kind).is_some())
                };
                let hint = match of_c(name) {
                    Some(ours) => {
                        format!("types here are structs, unions and enums; a number is converted by `{ours}(x)`")
                    }
                    None => format!("write `{} {name}`", kinds.iter().find(|kind| known(kind)).unwrap_or(&"struct")),
                };
                Err(self.fail_hint(arg.span, message, &hint))
            }
            _ => Err(self.fail_hint(arg.span, "expected a type", "write `struct NAME`")),
        }
    }

    /// The id of a type of the kernel.
    pub(super) fn named_type(&mut self, arg: &ast::Expr) -> Checked<u32> {
        let (span, kind, name) = self.type_name(arg)?;
        let btf = self.btf(span)?;
        if let Some(id) = find_type(btf, &name, kind) {
            return Ok(id);
        }
        let prefix = name.get(..2).unwrap_or("");
        let candidates: Vec<&str> = (1..btf.len())
            .map(|id| btf.ty(id))
            .filter(|t| t.kind == kind)
            .map(|t| btf.name(t))
            .filter(|n| n.starts_with(prefix))
            .collect();
        let near = did_you_mean(&name, candidates);
        let message = format!("this kernel has no `{}`", self.quote(span));
        let diagnostic =
            unknown(self.place(span), message, near, "test with `has_type(..)` what only some kernels have");
        Err(self.report.add(diagnostic.absent()))
    }

    /// `cast(struct T, x)`: a pointer as a pointer to T, an embedded struct or array as its address.
    fn cast(&mut self, ty: &ast::Expr, arg: &ast::Expr, span: Span) -> Checked<Value> {
        let (to, value) = (self.named_type(ty), self.value(arg));
        self.cast_to(to?, value?, arg.span, span)
    }

    /// `from` is where the value stands.
    pub(super) fn cast_to(&mut self, to: u32, value: Value, from: Span, span: Span) -> Checked<Value> {
        let btf = self.btf(span)?;
        let place = self.place(span);
        if let Value::Memory(memory) = &value {
            let t = btf.strip(memory.ty);
            if matches!(t.kind, BtfKind::Struct | BtfKind::Union | BtfKind::Array) {
                let trust = match memory.base.ty {
                    // The verifier lets any bytes of a byte array be read: the kernel keeps private structs there.
                    Ty::Ptr { trust: Trust::Btf, .. } if is_byte_array(btf, t) => Trust::Btf,
                    Ty::Ptr { trust: Trust::User, .. } => Trust::User,
                    _ => Trust::Probe,
                };
                return Ok(Value::Typed(Expr { place, ..memory.clone().address(to, trust, self) }));
            }
        }
        let expr = super::user::as_pointer(&self.scope.args, self.typed(value)?);
        let pointer = match expr.ty {
            Ty::Ptr { to: known, .. } if known == to => expr,
            Ty::Ptr { trust, .. } => {
                let trust = if trust == Trust::User { trust } else { Trust::Probe };
                Expr { ty: Ty::Ptr { to, trust }, ..super::access::retrust(expr, trust) }
            }
            // An address kept as a number (`unsigned long` fields of tracepoints).
            Ty::Int { bits: 64, .. } => Expr {
                kind: Kind::Convert(Box::new(expr)),
                ty: Ty::Ptr { to, trust: Trust::Probe },
                duration: false,
                place,
            },
            other => {
                let message = format!("`{}` is {} and no pointer", self.quote(from), self.describe(other));
                return Err(self.fail(from, message));
            }
        };
        Ok(Value::Typed(Expr { place, ..pointer }))
    }

    /// `container_of(pointer, struct T, member)`: the T whose member the pointer points to.
    fn container_of(&mut self, args: &[ast::Expr], span: Span) -> Checked<Value> {
        let (value, to) = (self.value(&args[0]), self.named_type(&args[1]));
        let (value, to) = (value?, to?);
        let btf = self.btf(span)?;
        let mut at = (to, 0u32);
        for field in member_path(&args[2]).unwrap_or_default() {
            let Some(m) = btf.member(at.0, &field.name) else {
                let names = btf.member_names(at.0);
                let near = did_you_mean(&field.name, names);
                let message = format!("`{}` has no member `{}`", btf.describe(at.0), field.name);
                let diagnostic = unknown(self.place(field.span), message, near, "test with `has(..)`");
                return Err(self.report.add(diagnostic));
            };
            at = (m.ty, at.1 + m.bit_offset / 8);
        }
        if member_path(&args[2]).is_none() {
            return Err(self.fail_hint(
                args[2].span,
                "expected a member's name",
                "write `container_of(p, struct T, member)`",
            ));
        }
        let pointer = match value {
            Value::Memory(m) if resolve(btf, m.ty).kind != BtfKind::Ptr => {
                let ty = m.ty;
                m.address(ty, Trust::Probe, self)
            }
            value => self.typed(value)?,
        };
        let Ty::Ptr { trust, .. } = pointer.ty else {
            let message = format!("`{}` is {} and no pointer", self.quote(args[0].span), self.describe(pointer.ty));
            return Err(self.fail(args[0].span, message));
        };
        let trust = if trust == Trust::User { trust } else { Trust::Probe };
        let memory = Memory::behind(super::access::retrust(pointer, trust), to, trust, span);
        let offset = self.offset(memory.offset, -i64::from(at.1), span)?;
        Ok(Value::Typed(Memory { offset, ..memory }.address(to, trust, self)))
    }

    /// `has(args.x.y)`: whether this kernel has it. Mistakes inside mean no.
    fn has(&mut self, arg: &ast::Expr, span: Span) -> Checked<Value> {
        if matches!(&arg.kind, ExprKind::Name(name) if name == "state") && self.scope.role == Role::Step {
            // The mark that a state is there follows its fields.
            let kind = Kind::State(self.scope.state.len() as u32);
            return Ok(Value::Typed(Expr { kind, ty: Ty::Bool, duration: false, place: self.place(span) }));
        }
        let ExprKind::Field(of, _) = &arg.kind else {
            return Err(self.fail_hint(arg.span, "`has` asks for a member or an argument", "write `has(args.x.y)`"));
        };
        match &of.kind {
            ExprKind::Name(name) if name == "state" && self.scope.role == Role::Step => {
                let message = "a field is always there, with 0 or no text where there is no state";
                return Err(self.fail_hint(arg.span, message, "write `has(state)`"));
            }
            _ => {}
        }
        let mut unheard = Report::default();
        let mut quiet = Env { report: &mut unheard, ..*self };
        let found = quiet.value(arg).is_ok();
        if !found && unheard.is_empty() {
            // Behind a hook that this kernel does not have: the answer is unknown.
            return Err(Reported);
        }
        Ok(Value::Typed(constant_bool(found, self.place(span))))
    }

    /// `str(pointer, n)`.
    fn str(&mut self, args: &[ast::Expr], span: Span) -> Checked<Value> {
        let (value, length) = (self.value(&args[0]), self.value(&args[1]));
        let (value, length) = (value?, length?);
        let most = i128::from(super::MAX_TEXT);
        let n = match length {
            Value::Literal(l) if (1..=most).contains(&l.value) => l.value as u16,
            other => {
                let message = format!("the length of str(..) is a number from 1 to {most}");
                return Err(self.fail(other.span(), message));
            }
        };
        let pointer = match value {
            Value::Memory(m) if self.btf(span)?.strip(m.ty).kind == BtfKind::Array => {
                let (ty, trust) = (m.ty, m.base.ty);
                let trust = if let Ty::Ptr { trust, .. } = trust { trust } else { Trust::Probe };
                m.address(ty, trust, self)
            }
            value => super::user::as_pointer(&self.scope.args, self.typed(value)?),
        };
        if !matches!(pointer.ty, Ty::Ptr { .. }) {
            let message =
                format!("`{}` is {}, not a pointer to text", self.quote(args[0].span), self.describe(pointer.ty));
            return Err(self.fail(args[0].span, message));
        }
        let kind = Kind::StrAt(Box::new(pointer));
        Ok(Value::Typed(Expr { kind, ty: Ty::Str(n), duration: false, place: self.place(span) }))
    }
}

/// A type by name; C calls enums of 32 and of 64 bits the same.
fn find_type(btf: &Btf, name: &str, kind: BtfKind) -> Option<u32> {
    let wide = || if kind == BtfKind::Enum { btf.find(name, BtfKind::Enum64) } else { None };
    btf.find(name, kind).or_else(wide)
}

/// `a.b.c` as its names.
fn member_path(arg: &ast::Expr) -> Option<Vec<Ident>> {
    match &arg.kind {
        ExprKind::Name(name) => Some(vec![Ident { name: name.clone(), span: arg.span }]),
        ExprKind::Field(base, field) => {
            let mut path = member_path(base)?;
            path.push(field.clone());
            Some(path)
        }
        _ => None,
    }
}
