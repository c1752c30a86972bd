//! Labels: which values may be one, and how user space shows them.

use super::expr::{Env, Value};
use super::report::{Checked, Report};
use super::{access, walk};
use crate::ast::{self, ExprKind};
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{CgroupName, Decoder, Expr, Kind, TextPattern, Ty};

/// Calls that stand only outermost in a label.
pub(super) const DECODERS: [&str; 18] = [
    "syscall",
    "errno",
    "tcp_state",
    "address_family",
    "softirq",
    "ip",
    "port",
    "ifname",
    "signal",
    "ksym",
    "hex",
    "map",
    "enum",
    "namespace",
    "pod",
    "container",
    "workload",
    "unit",
];

/// A label at one site.
pub(super) struct LabelValue {
    pub(super) expr: Expr,
    pub(super) decoder: Decoder,
    pub(super) domain: Option<u32>,
}

/// Number of values of a decoder's argument, when small and fixed: softirq vectors (10 in all kernels so far), TCP states
/// (13 are used), system call numbers (the tables end below 512).
pub(super) fn key_domain(decoder: &str) -> Option<u32> {
    match decoder {
        "softirq" => Some(10),
        "tcp_state" => Some(16),
        "syscall" => Some(512),
        _ => None,
    }
}

/// The value as it lies in a key or a record: an address is a number there.
pub(super) fn stored(expr: Expr) -> Expr {
    match expr.ty {
        Ty::Ptr { .. } => access::convert(expr, Ty::U64),
        _ => expr,
    }
}

impl Env<'_> {
    /// The value and decoder of a label.
    pub(super) fn label(&mut self, ast: &ast::Expr, allow_high_cardinality: bool) -> Checked<LabelValue> {
        let label = self.label_value(ast)?;
        let identity = match label.decoder {
            // Addresses in code are few, and those of one function read the same.
            Decoder::Ksym => None,
            _ => walk::identity(&label.expr).or(self.saved_identity(&label.expr)),
        };
        if let (Some(what), false) = (identity, allow_high_cardinality) {
            let message = format!("`{}` is {what}: nearly every event would make a new series", self.quote(ast.span));
            let quote = self.quote(ast.span);
            let hint = match matches!(label.expr.ty, Ty::Ptr { .. }) {
                true => format!(
                    "show a member of what lies there, or the function at an address in code, `ksym({quote})`; or set \
                     `allow_high_cardinality: true`"
                ),
                false => "use `comm`, `cgroup` or a coarser value, or set `allow_high_cardinality: true`".to_owned(),
            };
            return Err(self.fail_hint(ast.span, message, &hint));
        }
        Ok(LabelValue { expr: stored(label.expr), ..label })
    }

    /// The same, however many values it may have; a pointer is still one.
    pub(super) fn label_value(&mut self, ast: &ast::Expr) -> Checked<LabelValue> {
        match &ast.kind {
            // Decoders may stand in the sides of a choice that the kernel decides.
            ExprKind::Cond(condition, yes, no) => match self.decided(condition) {
                Some(true) => self.label_value(yes),
                Some(false) => self.label_value(no),
                None => self.plain_label(ast),
            },
            ExprKind::Name(name) if CgroupName::of(name).is_some() => self.cgroup_label(name, None, ast.span),
            ExprKind::Call(name, args) if CgroupName::of(&name.name).is_some() => {
                self.arity(&name.name, args, 1, &format!("{}(x)", name.name), ast.span)?;
                self.cgroup_label(&name.name, Some(&args[0]), ast.span)
            }
            ExprKind::Name(name) if name == "hook" => {
                let (expr, names) = self.hook(ast.span)?;
                let domain = Some(names.len() as u32);
                Ok(LabelValue { expr, decoder: Decoder::Map(names, None), domain })
            }
            ExprKind::Name(name) if name == "func" => match self.hooked_function(ast.span) {
                Some(found) => found.map(|(expr, decoder)| LabelValue { expr, decoder, domain: None }),
                None => self.plain_label(ast),
            },
            ExprKind::Call(name, args) if name.name == "enum" => self.enum_label(args, ast.span),
            ExprKind::Call(name, args) if name.name == "map" => self.map_label(args, ast.span),
            ExprKind::Call(name, args) if DECODERS.contains(&name.name.as_str()) => {
                self.arity(&name.name, args, 1, &format!("{}(x)", name.name), ast.span)?;
                self.decoded(&name.name, &args[0])
            }
            _ => self.plain_label(ast),
        }
    }

    /// The value of a constant condition. Its mistakes are reported where it is checked as a value.
    fn decided(&self, condition: &ast::Expr) -> Option<bool> {
        let mut unheard = Report::default();
        let mut quiet = Env { report: &mut unheard, ..*self };
        let value = quiet.value(condition).ok()?;
        match quiet.truth(value).ok()?.kind {
            Kind::Const(bit) => Some(bit == 1),
            _ => None,
        }
    }

    /// `pod`, or `pod(x)`.
    fn cgroup_label(&mut self, name: &str, of: Option<&ast::Expr>, span: Span) -> Checked<LabelValue> {
        let expr = self.cgroup_asked(name, of, span)?;
        let decoder = CgroupName::of(name).map_or(Decoder::Unsigned, Decoder::Cgroup);
        Ok(LabelValue { expr, decoder, domain: None })
    }

    fn saved_identity(&self, expr: &Expr) -> Option<&'static str> {
        match &expr.kind {
            Kind::Saved(i) => self.scope.saved.get(*i as usize)?.identity,
            Kind::State(i) => self.scope.state.get(*i as usize)?.identity,
            Kind::Convert(inner) => self.saved_identity(inner),
            _ => None,
        }
    }

    fn plain_label(&mut self, ast: &ast::Expr) -> Checked<LabelValue> {
        let value = self.value(ast)?;
        if let Value::Text(text, span) = value {
            return self.constant_text(&text, span);
        }
        let expr = self.typed(value)?;
        self.readable(ast)?;
        self.address_by_name(ast, &expr);
        let (decoder, domain) = match expr.ty {
            _ if matches!(&ast.kind, ExprKind::Name(name) if name == "syscall") => {
                (Decoder::Syscall, key_domain("syscall"))
            }
            Ty::Bool => (Decoder::Bool, Some(2)),
            Ty::Str(_) => (Decoder::Str, None),
            Ty::Int { signed: true, .. } => (Decoder::Signed, None),
            Ty::Int { signed: false, .. } if expr.kind == Kind::Cpu => {
                (Decoder::Unsigned, Some(self.target.cpus.max(1)))
            }
            Ty::Int { signed: false, .. } | Ty::Ptr { .. } => (Decoder::Unsigned, None),
            Ty::Bytes(_) => {
                let message = format!("`{}` is {}", self.quote(ast.span), self.describe(expr.ty));
                let hint = format!("show an address with `ip({})`", self.quote(ast.span));
                return Err(self.fail_hint(ast.span, message, &hint));
            }
        };
        Ok(LabelValue { expr, decoder, domain })
    }

    fn constant_text(&mut self, text: &str, span: Span) -> Checked<LabelValue> {
        let most = usize::from(super::MAX_TEXT);
        if text.is_empty() || text.len() > most || text.contains('\0') {
            return Err(self.fail(span, format!("a label's text has 1 to {most} bytes")));
        }
        let ty = Ty::Str(text.len() as u16);
        let kind = Kind::Str(text.as_bytes().to_vec());
        let expr = Expr { kind, ty, duration: false, place: self.place(span) };
        Ok(LabelValue { expr, decoder: Decoder::Str, domain: None })
    }

    fn decoded(&mut self, name: &str, arg: &ast::Expr) -> Checked<LabelValue> {
        let value = self.value(arg)?;
        if name == "ip" {
            return self.address(value, arg);
        }
        if name == "ksym" {
            return self.code_address(value, arg);
        }
        let expr = self.integer(value)?;
        if let ("port", false) = (name, matches!(expr.ty, Ty::Int { bits: 16, signed: false })) {
            let quote = self.quote(arg.span);
            let message = format!("a port is u16 in network byte order, `{quote}` is {}", self.describe(expr.ty));
            let hint = "for a number in host order write it without `port(..)`, else convert it with `u16(..)`";
            return Err(self.fail_hint(arg.span, message, hint));
        }
        if name == "errno" {
            self.positive_error(arg, &expr)?;
        }
        let decoder = match name {
            "syscall" => Decoder::Syscall,
            "errno" => Decoder::Errno,
            "tcp_state" => Decoder::TcpState,
            "address_family" => Decoder::AddressFamily,
            "softirq" => Decoder::Softirq,
            "port" => Decoder::PortBe,
            "ifname" => Decoder::IfName,
            "signal" => Decoder::Signal,
            "hex" => Decoder::Address,
            _ => return Err(self.report.add(Diagnostic::bug(format!("`{name}` has no decoder")))),
        };
        Ok(LabelValue { expr, decoder, domain: key_domain(name) })
    }

    /// `ksym(x)`: an address in the kernel's code, as a pointer or a number.
    fn code_address(&mut self, value: Value, arg: &ast::Expr) -> Checked<LabelValue> {
        let expr = self.typed(value)?;
        match expr.ty {
            Ty::Ptr { .. } | Ty::Int { bits: 64, .. } => {
                Ok(LabelValue { expr: access::convert(expr, Ty::U64), decoder: Decoder::Ksym, domain: None })
            }
            ty => {
                let message = format!("`{}` is {} and no address", self.quote(arg.span), self.describe(ty));
                Err(self.fail_hint(arg.span, message, "give `ksym(..)` a pointer or a number of 64 bits"))
            }
        }
    }

    /// `ip(x)`: 4 or 16 bytes in network order, as a `__be32`, an array or a `struct in6_addr`.
    fn address(&mut self, value: Value, arg: &ast::Expr) -> Checked<LabelValue> {
        let expr = match value {
            Value::Memory(m) => {
                let btf = self.btf(m.span)?;
                let t = btf.strip(m.ty);
                let aggregate = matches!(t.kind, BtfKind::Array | BtfKind::Struct | BtfKind::Union);
                match (aggregate, btf.size(t.id)) {
                    (true, Some(n @ (4 | 16))) => {
                        let place = self.place(m.span);
                        let kind = Kind::Load { base: Box::new(m.base), offset: m.offset, bitfield: None };
                        Expr { kind, ty: Ty::Bytes(n as u16), duration: false, place }
                    }
                    _ => self.load(m)?,
                }
            }
            value => self.typed(value)?,
        };
        match expr.ty {
            Ty::Bytes(4 | 16) | Ty::Int { bits: 32, signed: false } => {
                Ok(LabelValue { expr, decoder: Decoder::Ip, domain: None })
            }
            ty => {
                let message =
                    format!("an address has 4 or 16 bytes, `{}` is {}", self.quote(arg.span), self.describe(ty));
                Err(self.fail_hint(arg.span, message, "give `ip(..)` a u32, `u8[16]` or `struct in6_addr`"))
            }
        }
    }

    /// `enum(enum NAME, x)`, or with a third argument the text that names are shown without if they begin so.
    fn enum_label(&mut self, args: &[ast::Expr], span: Span) -> Checked<LabelValue> {
        let (args, prefix) = match args {
            [named @ .., last] if named.len() == 2 => (named, Some(last)),
            _ => (args, None),
        };
        self.arity("enum", args, 2, "enum(enum NAME, x)", span)?;
        let prefix = match prefix.map(|last| (&last.kind, last.span)) {
            None => "",
            Some((ExprKind::Str(text), _)) => text,
            Some((_, span)) => {
                let hint = "as in `enum(enum NAME, x, \"NAME_\")`";
                return Err(self.fail_hint(span, "what names are shown without is text in quotes", hint));
            }
        };
        let (id, value) = (self.named_type(&args[0]), self.value(&args[1]));
        let (id, value) = (id?, value?);
        let btf = self.btf(span)?;
        let t = btf.ty(id);
        if !matches!(t.kind, BtfKind::Enum | BtfKind::Enum64) {
            let message = format!("`{}` is not an enum", self.quote(args[0].span));
            return Err(self.fail_hint(args[0].span, message, "write `enum(enum NAME, x)`"));
        }
        let expr = self.integer(value)?;
        let shown = |name: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty()).unwrap_or(name).to_owned();
        let names = btf.enum_values(t).into_iter().map(|(name, value)| (value, shown(name))).collect();
        Ok(LabelValue { expr, decoder: Decoder::Enum(names), domain: None })
    }

    /// `map(x, 1 => "one", _ => "many")`.
    fn map_label(&mut self, args: &[ast::Expr], span: Span) -> Checked<LabelValue> {
        let Some((value, arms)) = args.split_first().filter(|(_, arms)| !arms.is_empty()) else {
            return Err(self.fail_hint(
                span,
                "`map` needs a value and arms",
                "write `map(x, 1 => \"one\", _ => \"many\")`",
            ));
        };
        let ast = value;
        if arms.iter().any(is_text_arm) {
            return self.map_text(ast, arms);
        }
        let value = self.value(ast)?;
        let expr = self.typed(value)?;
        if !matches!(expr.ty, Ty::Int { .. } | Ty::Bool) {
            let message = format!("`map` needs a number or a bool, this is {}", self.describe(expr.ty));
            let hint = "text is mapped by text, as in `map(comm, \"nginx\" => \"web\", glob(\"php-*\") => \"php\")`";
            return Err(self.fail_hint(expr.place.span, message, hint));
        }
        let arms: Vec<_> = arms.iter().map(|arm| self.arm(arm, expr.ty)).collect();
        let (mut names, mut otherwise) = (Vec::new(), None);
        for (arm, written) in arms.into_iter().collect::<Checked<Vec<_>>>()?.into_iter().zip(&args[1..]) {
            if let (Some(key), ExprKind::Arm(Some(pattern), _)) = (arm.0, &written.kind) {
                self.same_order(ast, key.into(), pattern.span)?;
            }
            match arm {
                (None, text) if otherwise.is_none() => otherwise = Some(text),
                (Some(key), text) if names.iter().all(|(other, _)| *other != key) => names.push((key, text)),
                _ => return Err(self.fail(written.span, "this arm is there twice")),
            }
        }
        let domain = (expr.ty == Ty::Bool).then_some(2);
        Ok(LabelValue { expr, decoder: Decoder::Map(names, otherwise), domain })
    }

    /// `map(x, "a" => "one", glob("b*") => "two", _ => "many")`, by the text that `x` would have as a label.
    fn map_text(&mut self, ast: &ast::Expr, arms: &[ast::Expr]) -> Checked<LabelValue> {
        let label = self.label_value(ast)?;
        if matches!(label.decoder, Decoder::Cgroup(_)) {
            let message = format!("`{}` is a name of a cgroup, which is no text to choose by", self.quote(ast.span));
            return Err(self.fail_hint(ast.span, message, "name those that are meant in `where`"));
        }
        let (mut texts, mut otherwise) = (Vec::new(), None);
        for arm in arms {
            let (pattern, shown) = self.text_arm(arm)?;
            match pattern {
                None if otherwise.is_none() => otherwise = Some(shown),
                Some(pattern) if texts.iter().all(|(other, _)| *other != pattern) => texts.push((pattern, shown)),
                _ => return Err(self.fail(arm.span, "this arm is there twice")),
            }
        }
        let decoder = Decoder::Texts(Box::new(label.decoder), texts, otherwise);
        Ok(LabelValue { expr: label.expr, decoder, domain: label.domain })
    }

    fn text_arm(&mut self, arm: &ast::Expr) -> Checked<(Option<TextPattern>, String)> {
        let (pattern, shown) = self.arm_parts(arm)?;
        let Some(pattern) = pattern else { return Ok((None, shown)) };
        let found = match &pattern.kind {
            ExprKind::Str(text) => Some(TextPattern::Is(text.clone())),
            ExprKind::Call(name, args) if matches!(name.name.as_str(), "glob" | "starts_with") => match args.as_slice()
            {
                [ast::Expr { kind: ExprKind::Str(text), span }] => {
                    Some(self.pattern(&name.name, text.clone(), *span)?)
                }
                _ => None,
            },
            _ => None,
        };
        match found {
            Some(found) => Ok((Some(found), shown)),
            None => {
                let message = format!("`{}` is no text to compare with", self.quote(pattern.span));
                let hint =
                    "an arm of text is `\"nginx\" => ..`, `glob(\"php-*\") => ..` or `starts_with(\"php-\") => ..`";
                Err(self.fail_hint(pattern.span, message, hint))
            }
        }
    }

    /// The left side of an arm, `None` for `_`, and the text on its right.
    fn arm_parts<'e>(&mut self, arm: &'e ast::Expr) -> Checked<(Option<&'e ast::Expr>, String)> {
        let ExprKind::Arm(pattern, text) = &arm.kind else {
            return Err(self.fail_hint(arm.span, "expected an arm", "write `1 => \"one\"` or `_ => \"others\"`"));
        };
        let ExprKind::Str(text) = &text.kind else {
            return Err(self.fail_hint(text.span, "the right side of `=>` is text in quotes", "as in `1 => \"one\"`"));
        };
        Ok((pattern.as_deref(), text.clone()))
    }

    fn arm(&mut self, arm: &ast::Expr, ty: Ty) -> Checked<(Option<i64>, String)> {
        let (pattern, text) = self.arm_parts(arm)?;
        let Some(pattern) = pattern else { return Ok((None, text)) };
        let constant = match self.value(pattern)? {
            Value::Literal(l) => self.adapt(l, ty)?,
            value => self.typed(value)?,
        };
        match constant.kind {
            Kind::Const(bits) if constant.ty == ty => Ok((Some(bits as i64), text)),
            _ => {
                let message = format!("`{}` is no constant {}", self.quote(pattern.span), self.describe(ty));
                Err(self.fail_hint(pattern.span, message, "the left side of `=>` is a number or a constant"))
            }
        }
    }
}

/// Whether an arm of `map` is about text.
fn is_text_arm(arm: &ast::Expr) -> bool {
    let ExprKind::Arm(Some(pattern), _) = &arm.kind else { return false };
    match &pattern.kind {
        ExprKind::Str(_) => true,
        ExprKind::Call(name, _) => matches!(name.name.as_str(), "glob" | "starts_with"),
        _ => false,
    }
}
