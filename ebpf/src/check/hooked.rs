//! Which hook of a list, and which function, an event is of.

use super::expr::{Env, Value};
use super::hooks::reason;
use super::prototype::FunctionArgs;
use super::report::{Checked, Reported};
use super::scope::Args;
use super::syscalls;
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::plain_name;
use crate::program::{Hook, HookKind};
use crate::typed::{Decoder, Expr, Kind, Ty};

/// Bytes of the text `func`: the same at all hooks, so that they can share a label.
const FUNC_BYTES: u16 = 32;

impl Env<'_> {
    /// The name of the kernel function that is hooked, a constant.
    pub(super) fn func(&mut self, span: Span) -> Checked<Value> {
        let name = match &self.scope.args {
            Args::Function(FunctionArgs { by_address: false, prototypes, .. }) if prototypes.len() == 1 => {
                plain_name(&prototypes[0].name).to_owned()
            }
            Args::Function(_) | Args::User(_) => {
                let message = "which function `func` is, is known when it is read: here it is no value to compute with";
                let hint = "it stands alone: as a label, as a field of `slow`, in `by`; to choose functions, name them in the hook";
                return Err(self.fail_hint(span, message, hint));
            }
            _ => return Err(self.no_function(span)),
        };
        // Room for a NUL, so that it is whole text where it is compared.
        let bytes = name.bytes().take(usize::from(FUNC_BYTES) - 1).collect();
        let (kind, ty) = (Kind::Str(bytes), Ty::Str(FUNC_BYTES));
        Ok(Value::Typed(Expr { kind, ty, duration: false, place: self.place(span) }))
    }

    fn no_function(&mut self, span: Span) -> Reported {
        let message = "`func` is the name of a function, and this hook is at none";
        self.fail_hint(
            span,
            message,
            "hooks at functions have it: `function:NAME:entry`, `uprobe:PATH:SYMBOL` and the like",
        )
    }

    /// What tells at an event the function that it is of, where the hook is at more than one.
    pub(super) fn hooked_function(&mut self, span: Span) -> Option<Checked<(Expr, Decoder)>> {
        let abilities = &self.target.abilities;
        let (kind, decoder, what, ability) = match &self.scope.args {
            Args::Function(f) if f.by_address => {
                (Kind::FunctionAddress, Decoder::Ksym, "bpf_get_func_ip", &abilities.func_ip)
            }
            Args::User(_) => (Kind::PlaceId, Decoder::PlaceName, "uprobe_multi", &abilities.uprobe_multi),
            _ => return None,
        };
        let place = self.place(span);
        if !ability.yes() {
            let message = "this kernel does not tell which of its functions a hook is at";
            let hint = format!("{what}: {}; `hook` tells hooks of a list apart", reason(ability));
            return Some(Err(self.report.add(Diagnostic::target(place, message).hint(hint))));
        }
        Some(Ok((Expr { kind, ty: Ty::U64, duration: false, place }, decoder)))
    }

    /// The hook at hand as its number among those of the probe, and all their texts.
    pub(super) fn hook(&mut self, span: Span) -> Checked<(Expr, Vec<(i64, String)>)> {
        let place = self.place(span);
        let Some((program, at)) = self.scope.hook else {
            let message = "`hook` is the hook that an event is of, and a poll has none";
            return Err(self.fail_hint(span, message, "a poll has its row's `args`, constants and functions"));
        };
        let hooks = program.hooks();
        let names = hooks.iter().zip(0..).map(|(hook, i)| (i, hook.text.value.clone())).collect();
        let number = |i: usize| Expr { kind: Kind::Const(i as u64), ty: Ty::U32, duration: false, place };
        let index = hooks.iter().position(|hook| hook.text.id == at.text);
        let mut expr = number(index.unwrap_or(0));
        // Hooks at system calls of one edge are one point: the number of the call tells them apart.
        for (i, numbers) in self.calls_of(&hooks).into_iter().skip(1).rev() {
            let Args::Syscall(call) = &self.scope.args else { break };
            let called = syscalls::number(self.target, call.edge, call.source, place).ok_or(Reported)?;
            let is_it = Expr { kind: Kind::OneOf(Box::new(called), numbers), ty: Ty::Bool, duration: false, place };
            let kind = Kind::Cond(Box::new(is_it), Box::new(number(i)), Box::new(expr));
            expr = Expr { kind, ty: Ty::U32, duration: false, place };
        }
        Ok((expr, names))
    }

    /// Of the hooks that share this point, the numbers of the system calls that each of them names, by its index.
    fn calls_of(&self, hooks: &[&Hook]) -> Vec<(usize, Vec<u64>)> {
        let Args::Syscall(call) = &self.scope.args else { return Vec::new() };
        let number = |name: &String| Some(u64::from(self.target.syscalls.get(name)?.number));
        let mut found = Vec::new();
        for (i, hook) in hooks.iter().enumerate() {
            let HookKind::Syscall { names, edge } = &hook.kind else { continue };
            let ours = names.iter().any(|name| call.names.contains(&name.as_str()));
            if *edge == call.edge && ours {
                let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
                numbers.sort_unstable();
                found.push((i, numbers));
            }
        }
        found
    }

    pub(super) fn hook_misplaced(&mut self, span: Span) -> Reported {
        let message = "which hook it is, is known when it is read: here `hook` is no value to compute with";
        self.fail_hint(span, message, "it stands alone, as a label or a field of `slow`")
    }
}
