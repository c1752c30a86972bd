//! What names mean at a site.

use super::Input;
use super::cgroup::Owner;
use super::expr::{Env, Value};
use super::hooks::Point;
use super::objects::{self, ObjectArgs};
use super::prototype::{self, FunctionArgs, REGISTERS};
use super::report::{Checked, Reported, unknown};
use super::syscalls::SyscallArgs;
use super::user::UserArgs;
use super::{access, defines, sampling, syscalls, user};
use crate::ast::Ident;
use crate::diag::{Diagnostic, Place, Span, did_you_mean, slip};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::kernel_target::syscalls::{NO_SYSTEM_CALL, is_system_call};
use crate::kernel_target::{Arch, Field, FieldType};
use crate::program::Program;
use crate::typed::{CgroupName, Expr, Kind, Trust, Ty};

/// Which part of a probe an expression belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `at:` hooks.
    At,
    /// `at:` an iterator: a task runs, but it is the agent.
    Object,
    /// A span's start.
    Start,
    /// A span's end.
    End,
    /// The same before the span is looked for.
    Ending,
    /// A span's `by`, at both ends: what finds the span cannot read from it.
    Key,
    Step,
    Poll,
}

/// The arguments of a hook.
#[derive(Clone, Debug)]
pub(super) enum Args<'a> {
    /// It has none (`interval:`).
    None,
    /// Those of a hook that this kernel does not have, which is reported: nothing is known of them.
    Unknown,
    /// C arguments of a tracepoint.
    Raw {
        /// Its name, for messages.
        event: &'a str,
        /// Name and BTF type of each.
        args: Vec<(String, u32)>,
        /// How pointers to structs may be read.
        trust: Trust,
    },
    /// Fields of a record.
    Record {
        /// Whose, for messages.
        what: String,
        fields: &'a [Field],
    },
    /// A system call's entry or exit.
    Syscall(SyscallArgs<'a>),
    /// A perf event.
    Sample(Arch),
    /// One or several kernel functions.
    Function(FunctionArgs),
    /// A place in a program or library.
    User(UserArgs),
    /// What an iterator came by.
    Object(ObjectArgs<'a>),
}

/// A value saved at the start of a span.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    pub(super) name: String,
    /// `None` when the expression is wrong.
    pub(super) ty: Option<Ty>,
    pub(super) duration: bool,
    /// See [`super::walk::identity`].
    pub(super) identity: Option<&'static str>,
    /// See [`Env::network_bits`].
    pub(super) network: Option<u8>,
}

/// Everything that a name may mean at one site.
pub(super) struct Scope<'a> {
    pub(super) role: Role,
    pub(super) args: Args<'a>,
    /// `start.NAME`, at a span's end.
    pub(super) saved: Vec<Saved>,
    /// `state.NAME`, in a step.
    pub(super) state: Vec<Saved>,
    /// Index that the number of the call which began the span has (or would get) among the saved values.
    pub(super) saved_syscall: Option<u32>,
    /// Why `elapsed.off_cpu` cannot be had, if so: message and hint.
    pub(super) no_switches: Option<(String, String)>,
    /// Whose the events are.
    pub(super) owner: Owner<'a>,
    /// The hook, by its place, among those of the probe.
    pub(super) hook: Option<(&'a Program, Place)>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(input: Input<'a>, role: Role, args: Args<'a>) -> Self {
        let owner = Owner::at(input, role);
        Self {
            role,
            args,
            saved: Vec::new(),
            state: Vec::new(),
            saved_syscall: None,
            no_switches: None,
            owner,
            hook: None,
        }
    }

    /// Of a hook.
    pub(super) fn at(input: Input<'a>, role: Role, point: &Point<'a>) -> Self {
        Self { hook: Some((input.program, point.place)), ..Self::new(input, role, point.args.clone()) }
    }

    /// BTF type of an argument of the hook, where it has one.
    pub(super) fn arg_type(&self, name: &str) -> Option<u32> {
        match &self.args {
            Args::Raw { args, .. } => args.iter().find(|(arg, _)| arg == name).map(|(_, ty)| *ty),
            Args::Function(f) => f.arg_type(name),
            _ => None,
        }
    }

    pub(super) fn arg_names(&self, target: &'a crate::Target) -> Vec<&str> {
        match &self.args {
            Args::None | Args::Unknown => Vec::new(),
            Args::Raw { args, .. } => args.iter().map(|(name, _)| name.as_str()).collect(),
            Args::Record { fields, .. } => fields.iter().map(|f| f.name.as_str()).collect(),
            Args::Syscall(s) => s.arg_names(target),
            Args::Sample(_) => sampling::NAMES.to_vec(),
            Args::Function(f) => f.names(),
            Args::User(user) => user.names(),
            Args::Object(object) => object.names(),
        }
    }
}

/// Values that are a name and nothing else, for "did you mean".
pub(super) const BUILTINS: [&str; 19] = [
    "args", "retval", "start", "state", "pid", "tid", "uid", "gid", "comm", "cgroup", "cpu", "nsecs", "elapsed",
    "syscall", "netns", "task", "func", "hook", "true",
];

/// `AF_*` are macros in C, so BTF does not know them.
const ADDRESS_FAMILIES: [(&str, i128); 5] =
    [("AF_UNIX", 1), ("AF_INET", 2), ("AF_INET6", 10), ("AF_NETLINK", 16), ("AF_PACKET", 17)];

/// Names of the constants that are the same on every kernel.
pub(super) fn constants() -> impl Iterator<Item = &'static str> {
    ADDRESS_FAMILIES.iter().map(|(name, _)| *name)
}

/// `arg0`, `arg1` and so on.
pub(super) fn is_register_arg(name: &str) -> bool {
    name.strip_prefix("arg").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

impl Env<'_> {
    /// A bare name.
    pub(super) fn name(&mut self, name: &str, span: Span) -> Checked<Value> {
        if let Some(value) = self.builtin(name, span)? {
            return Ok(value);
        }
        if let Some(value) = self.constant(name) {
            return Ok(self.literal(value, span));
        }
        Err(self.unknown_name(name, span))
    }

    fn builtin(&mut self, name: &str, span: Span) -> Checked<Option<Value>> {
        if self.scope.role == Role::Object && objects::is_of_current(name) {
            return Err(self.not_of_object(name, span));
        }
        let simple = |kind, ty| Ok((kind, ty, false));
        let found: Checked<(Kind, Ty, bool)> = match name {
            "pid" => simple(Kind::Pid, Ty::U32),
            "tid" => simple(Kind::Tid, Ty::U32),
            "uid" => simple(Kind::Uid, Ty::U32),
            "gid" => simple(Kind::Gid, Ty::U32),
            "comm" => simple(Kind::Comm, Ty::Str(16)),
            "cpu" => simple(Kind::Cpu, Ty::U32),
            "nsecs" => Ok((Kind::Now, Ty::U64, true)),
            "elapsed" => self.elapsed(Kind::Elapsed, name, span),
            "retval" | "syscall" | "func" if matches!(self.scope.args, Args::Unknown) => return Err(Reported),
            "retval" => return self.retval(span).map(Some),
            "syscall" => return self.syscall(span).map(Some),
            "cgroup" | "task" | "netns" if self.scope.role == Role::Poll => Err(self.not_in_poll(name, span)),
            "task" => return self.task(span).map(|e| Some(Value::Typed(e))),
            "netns" => return self.netns(span).map(Some),
            "cgroup" => return self.own_cgroup(span).map(|e| Some(Value::Typed(e))),
            // bpftrace's names, where a hook has registers rather than named arguments.
            name if CgroupName::of(name).is_some() => return Err(self.name_of_cgroup_misplaced(name, span)),
            _ if is_register_arg(name) && matches!(self.scope.args, Args::User(_)) => {
                return self.arg(&Ident { name: name.into(), span }, span).map(Some);
            }
            _ if is_register_arg(name) && matches!(self.scope.args, Args::Unknown) => return Err(Reported),
            name if REGISTERS.contains(&name) => return self.register(name, span).map(Some),
            "func" => return self.func(span).map(Some),
            "hook" => return Err(self.hook_misplaced(span)),
            "args" => return Err(self.bare_args(span)),
            "start" => return Err(self.bare_start(span)),
            "state" => {
                let hint = "name a field, `state.NAME`, or ask whether there is one, `has(state)`";
                return Err(self.fail_hint(span, "`state` alone is not a value", hint));
            }
            _ => return Ok(None),
        };
        let (kind, ty, duration) = found?;
        if self.scope.role == Role::Poll {
            return Err(self.not_in_poll(name, span));
        }
        Ok(Some(Value::Typed(Expr { kind, ty, duration, place: self.place(span) })))
    }

    fn not_in_poll(&mut self, name: &str, span: Span) -> Reported {
        let message = format!("`{name}` means nothing in a poll: no task runs there");
        self.fail_hint(span, message, "a poll has its row's `args`, constants and functions")
    }

    fn elapsed(&mut self, kind: Kind, name: &str, span: Span) -> Checked<(Kind, Ty, bool)> {
        if self.scope.role == Role::End {
            return Ok((kind, Ty::U64, true));
        }
        let message = format!("`{name}` is known only at the end of a span");
        let hint = match self.scope.role {
            Role::Start => "here the span begins; use it in the probe's `where` and in metrics",
            Role::Key => "`by` finds the span, so it cannot read from it",
            Role::Ending => "this is asked before the span is looked for; use it in the probe's `where` and in metrics",
            _ => "use `span:` with a `start` and an `end` in place of this shape",
        };
        Err(self.fail_hint(span, message, hint))
    }

    /// `elapsed.off_cpu` and `elapsed.on_cpu`.
    pub(super) fn elapsed_part(&mut self, field: &Ident, span: Span) -> Checked<Value> {
        let kind = match field.name.as_str() {
            "off_cpu" => Kind::OffCpu,
            "on_cpu" => Kind::OnCpu,
            other => {
                let message = format!("`elapsed` has no part `{other}`");
                return Err(self.fail_hint(field.span, message, "parts are `elapsed.off_cpu` and `elapsed.on_cpu`"));
            }
        };
        let (kind, ty, duration) = self.elapsed(kind, &format!("elapsed.{}", field.name), span)?;
        if let Some((message, hint)) = &self.scope.no_switches {
            let diagnostic = if hint.is_empty() {
                Diagnostic::target(self.place(span), message.clone())
            } else {
                Diagnostic::user(self.place(span), message.clone()).hint(hint.clone())
            };
            return Err(self.report.add(diagnostic));
        }
        Ok(Value::Typed(Expr { kind, ty, duration, place: self.place(span) }))
    }

    fn bare_args(&mut self, span: Span) -> Reported {
        let names: Vec<String> =
            self.scope.arg_names(self.target).iter().take(8).map(|name| format!("`args.{name}`")).collect();
        let hint = match names.is_empty() {
            true => "this hook has no arguments".to_string(),
            false => format!("name one: {}", names.join(", ")),
        };
        self.fail_hint(span, "`args` alone is not a value", &hint)
    }

    fn bare_start(&mut self, span: Span) -> Reported {
        self.fail_hint(span, "`start` alone is not a value", "name a saved value: `start.NAME`")
    }

    /// `start.NAME`.
    pub(super) fn start(&mut self, field: &Ident, span: Span) -> Checked<Value> {
        if self.scope.role != Role::End {
            let message = format!("`start.{}` is known only at the end of a span", field.name);
            return Err(self.fail_hint(span, message, "values are saved by `span.save` and read at the end"));
        }
        let Some(index) = self.scope.saved.iter().position(|s| s.name == field.name) else {
            let near = did_you_mean(&field.name, self.scope.saved.iter().map(|s| s.name.as_str()));
            let hint = match near {
                Some(near) => format!("did you mean `start.{near}`?"),
                None => format!("save it: `save: {{ {}: EXPRESSION }}` in `span`", field.name),
            };
            return Err(self.fail_hint(field.span, format!("the span saves no `{}`", field.name), &hint));
        };
        let saved = &self.scope.saved[index];
        // A wrong expression was reported where it stands.
        let ty = saved.ty.ok_or(Reported)?;
        let kind = Kind::Saved(index as u32);
        Ok(Value::Typed(Expr { kind, ty, duration: saved.duration, place: self.place(span) }))
    }

    /// `state.NAME`.
    pub(super) fn state(&mut self, field: &Ident, span: Span) -> Checked<Value> {
        if self.scope.role != Role::Step {
            let message = format!("`state.{}` is known only in a step", field.name);
            return Err(self.fail_hint(
                span,
                message,
                "only probes with `steps:` have a state, and its key cannot read it",
            ));
        }
        let Some(index) = self.scope.state.iter().position(|s| s.name == field.name) else {
            let near = did_you_mean(&field.name, self.scope.state.iter().map(|s| s.name.as_str()));
            let hint = match near {
                Some(near) => format!("did you mean `state.{near}`?"),
                None => format!("declare it: `fields: {{ {}: u64 }}` in `state`", field.name),
            };
            return Err(self.fail_hint(field.span, format!("the state has no field `{}`", field.name), &hint));
        };
        let known = &self.scope.state[index];
        let ty = known.ty.ok_or(Reported)?;
        let kind = Kind::State(index as u32);
        Ok(Value::Typed(Expr { kind, ty, duration: known.duration, place: self.place(span) }))
    }

    /// `args.NAME`.
    pub(super) fn arg(&mut self, field: &Ident, span: Span) -> Checked<Value> {
        let scope = self.scope;
        match &scope.args {
            Args::None => {
                Err(self.fail_hint(span, "this hook has no arguments", "use `cpu`, `nsecs`, `pid` and the like"))
            }
            Args::Unknown => Err(Reported),
            Args::Raw { event, args, trust } => match args.iter().position(|(name, _)| *name == field.name) {
                Some(i) => self.raw_arg(i, args[i].1, *trust, span),
                None => Err(self.unknown_arg(field, &format!("tracepoint `{event}`"))),
            },
            Args::Record { what, fields } => match fields.iter().find(|f| f.name == field.name) {
                Some(f) => Ok(Value::Typed(self.record_field(f, span))),
                None => Err(self.unknown_arg(field, what)),
            },
            Args::Syscall(call) => syscalls::arg(self, call, field, span),
            Args::Function(f) => prototype::arg(self, f, field, span),
            Args::Sample(arch) => sampling::arg(self, *arch, field, span),
            Args::User(user) => user::arg(self, user, field, span),
            Args::Object(object) => objects::arg(self, object, field, span),
        }
    }

    pub(super) fn unknown_arg(&mut self, field: &Ident, what: &str) -> Reported {
        let names = self.scope.arg_names(self.target);
        let near = did_you_mean(&field.name, names.iter().copied());
        let otherwise = match names.is_empty() {
            true => "it has none".to_string(),
            false => format!("it has {}", names.join(", ")),
        };
        let diagnostic =
            unknown(self.place(field.span), format!("{what} has no argument `{}`", field.name), near, &otherwise);
        self.report.add(diagnostic)
    }

    pub(super) fn raw_arg(&mut self, index: usize, id: u32, trust: Trust, span: Span) -> Checked<Value> {
        let btf = self.btf(span)?;
        let stripped = btf.strip(id);
        let ty = match stripped.kind {
            BtfKind::Ptr => access::pointer_type(btf, stripped, trust),
            _ => match access::scalar_type(btf, stripped) {
                Some(ty) => ty,
                None => {
                    let message = format!("`{}` is passed by value and cannot be read", btf.describe(id));
                    return Err(self.fail(span, message));
                }
            },
        };
        let kind = access::argument(btf, id, 8 * index as u32, trust);
        Ok(Value::Typed(Expr { kind, ty, duration: false, place: self.place(span) }))
    }

    fn record_field(&self, field: &Field, span: Span) -> Expr {
        let at = Kind::Field { offset: field.offset };
        let (kind, ty) = match field.ty {
            FieldType::Int { size, signed } => (at, Ty::Int { bits: size.saturating_mul(8), signed }),
            FieldType::Pointer => (at, Ty::Ptr { to: 0, trust: Trust::Probe }),
            FieldType::Str(n) => (at, Ty::Str(n.min(super::MAX_TEXT))),
            FieldType::Bytes(n) => (at, Ty::Bytes(n)),
            FieldType::DataLoc => (Kind::DataLoc { offset: field.offset }, Ty::Str(super::MAX_TEXT)),
        };
        Expr { kind, ty, duration: false, place: self.place(span) }
    }

    /// The current `struct task_struct *`.
    pub(super) fn task(&mut self, span: Span) -> Checked<Expr> {
        let to = self.btf(span)?.find("task_struct", BtfKind::Struct).unwrap_or(0);
        let trust = if self.target.abilities.current_task_btf.yes() { Trust::Btf } else { Trust::Probe };
        Ok(Expr { kind: Kind::Task, ty: Ty::Ptr { to, trust }, duration: false, place: self.place(span) })
    }

    /// Inode number of the current task's network namespace: what `ip netns` and `lsns` show.
    fn netns(&mut self, span: Span) -> Checked<Value> {
        let mut value = Value::Typed(self.task(span)?);
        for name in ["nsproxy", "net_ns", "ns", "inum"] {
            value = self.member(value, &Ident { name: name.into(), span }, span)?;
        }
        Ok(value)
    }

    /// Value of a named constant.
    pub(super) fn constant(&self, name: &str) -> Option<i128> {
        if let Some((_, value)) = ADDRESS_FAMILIES.iter().find(|(n, _)| *n == name) {
            return Some(*value);
        }
        if let Some(call) = name.strip_prefix("SYS_") {
            return match self.target.syscalls.get(call) {
                Some(call) => Some(call.number.into()),
                // One probe serves all architectures: a comparison with a call that this one lacks is never true.
                None => is_system_call(call).then_some(NO_SYSTEM_CALL.into()),
            };
        }
        let btf = self.target.btf.as_ref()?;
        let (enumeration, value) = btf.constant(name)?;
        // An enum of 64 unsigned bits comes as the same bits with a sign.
        Some(if btf.is_signed(btf.ty(enumeration)) { value.into() } else { i128::from(value as u64) })
    }

    fn unknown_name(&mut self, name: &str, span: Span) -> Reported {
        if self.scope.arg_names(self.target).contains(&name) {
            return self.fail_hint(span, format!("unknown name `{name}`"), &format!("did you mean `args.{name}`?"));
        }
        if super::call::is_function(name) {
            let hint = format!("write `{name}(..)`");
            return self.fail_hint(span, format!("`{name}` is a function and needs its arguments"), &hint);
        }
        if self.scope.saved.iter().any(|s| s.name == name) {
            return self.fail_hint(span, format!("unknown name `{name}`"), &format!("did you mean `start.{name}`?"));
        }
        if matches!(name, "kstack" | "ustack") {
            let hint = "a stack is a field of `slow` by itself, or summed by a metric of `type: stacks`";
            return self.fail_hint(span, format!("`{name}` is no value to compute with"), hint);
        }
        if let Some(number) = defines::number(name) {
            let hint = format!(
                "it is a `#define` of the kernel's source, which its types do not have: write its number, {number}"
            );
            return self.fail_hint(span, format!("unknown name `{name}`"), &hint);
        }
        let calls: Vec<String> = match name.starts_with("SYS_") {
            true => self.target.syscalls.keys().map(|call| format!("SYS_{call}")).collect(),
            false => Vec::new(),
        };
        let constants = ADDRESS_FAMILIES.iter().map(|(n, _)| *n).chain(self.similar_constants(name));
        let lets = self.scope.hook.iter().flat_map(|(program, _)| &program.lets).map(|(known, _)| known.value.as_str());
        let near = did_you_mean(name, BUILTINS.into_iter().chain(calls.iter().map(String::as_str)).chain(lets))
            // Constants of one family are much alike: what differs by more than a slip is another one.
            .or_else(|| slip(name, constants))
            .map(|near| format!("did you mean `{near}`?"));
        let hint = near.unwrap_or_else(|| match defines::is_constant(name) {
            true => "constants of the kernel's enums have names here; a `#define` has none: write its number".into(),
            false => "names are built-in values, `args.NAME`, and constants of the kernel".into(),
        });
        self.fail_hint(span, format!("unknown name `{name}`"), &hint)
    }

    /// Constants of the kernel's enums with the same first letters: tens of thousands exist.
    fn similar_constants(&self, name: &str) -> Vec<&str> {
        let Some(btf) = &self.target.btf else { return Vec::new() };
        let (Some(prefix), true) = (name.get(..3), name.starts_with(|c: char| c.is_ascii_uppercase())) else {
            return Vec::new();
        };
        (1..btf.len())
            .map(|id| btf.ty(id))
            .filter(|t| matches!(t.kind, BtfKind::Enum | BtfKind::Enum64))
            .flat_map(|t| btf.enum_values(t))
            .map(|(constant, _)| constant)
            .filter(|constant| constant.starts_with(prefix))
            .collect()
    }
}
