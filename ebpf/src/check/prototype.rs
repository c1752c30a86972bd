//! Arguments and results of kernel functions: of what type they are, and where they lie at each kind of hook.

use super::access::{argument, convert, pointer_type, resolve, scalar_type};
use super::expr::{Env, Value};
use super::report::{Checked, Reported, unknown};
use super::scope::Args;
use crate::ast::Ident;
use crate::diag::{Diagnostic, Span, did_you_mean};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::kernel_target::{Arch, Btf, Function, Target, plain_name};
use crate::typed::{Expr, Kind, Trust, Ty};

/// `arg0` to `arg5`, as bpftrace names the registers that arguments are passed in.
pub(super) const REGISTERS: [&str; 6] = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];

/// What a hook at one or several functions can show.
#[derive(Clone, Debug)]
pub(super) struct FunctionArgs {
    /// As the user named them, for messages.
    pub(super) what: String,
    /// Of each function.
    pub(super) prototypes: Vec<Prototype>,
    pub(super) seen: Seen,
    /// The list of hooks has several functions at one of its places: which of them it is, the kernel tells.
    pub(super) by_address: bool,
}

/// Where arguments and result lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// fentry: 8 bytes of the context each.
    Entry,
    /// fexit: the same, then the result.
    Exit,
    /// kprobe: registers.
    Registers(Arch),
    /// kretprobe: the result's register.
    Return(Arch),
    /// kprobe inside a function: registers hold anything.
    Inside,
}

/// One function's prototype.
#[derive(Clone, Debug)]
pub(super) struct Prototype {
    /// Its symbol.
    pub(super) name: String,
    pub(super) params: Result<Vec<Param>, Unknown>,
    /// Why programs by BTF cannot be attached to it, if so.
    pub(super) untraceable: Option<String>,
    /// BTF type of its result.
    result: u32,
    /// Words that all parameters take.
    words: u32,
}

/// Why the parameters of a function are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unknown {
    #[error("the types of module {0} are not known")]
    Module(String),
    #[error("this kernel publishes no BTF")]
    NoBtf,
    #[error("{0} is a part of the function, with arguments of its own")]
    Part(String),
    #[error("BTF does not describe {0}")]
    NotInBtf(String),
}

/// One argument.
#[derive(Clone, Debug)]
pub(super) struct Param {
    name: String,
    ty: u32,
    /// Words before it among those that programs by BTF see.
    word: u32,
    /// Position among the argument registers; `None` on the stack.
    register: Option<u32>,
}

/// Argument registers of both architectures that programs may count on: x86 has six.
const ARGUMENT_REGISTERS: u32 = 6;

/// Where an argument register lies; there is none beyond the sixth.
fn argument_register(arch: Arch, n: u32) -> u32 {
    arch.call_args()[n.min(ARGUMENT_REGISTERS - 1) as usize]
}

impl Prototype {
    pub(super) fn of(function: &Function, target: &Target) -> Prototype {
        let unknown = |why: Unknown| Prototype {
            name: function.symbol.clone(),
            params: Err(why),
            untraceable: None,
            result: 0,
            words: 0,
        };
        let Some(btf) = target.types_of(function.module.as_deref()) else {
            return unknown(match &function.module {
                Some(module) => Unknown::Module(module.clone()),
                None => Unknown::NoBtf,
            });
        };
        // What gcc calls `.part.` takes other arguments than the function it was cut out of. `.isra.` and `.constprop.`
        // would too, but BTF has only those in which every argument lies where the source says.
        if function.symbol.contains(".part.") {
            return unknown(Unknown::Part(function.symbol.clone()));
        }
        let Some((params, result)) = btf.function(plain_name(&function.symbol)) else {
            return unknown(Unknown::NotInBtf(function.symbol.clone()));
        };
        let (mut word, mut next) = (0, 0);
        let place = |(name, ty): (&str, u32)| {
            let (words, registers) = width(btf, ty, target.arch);
            let fits = next + registers <= ARGUMENT_REGISTERS && registers > 0;
            let param = Param { name: name.into(), ty, word, register: fits.then_some(next) };
            word += words;
            next += if fits { registers } else { 0 };
            param
        };
        let params: Vec<Param> = params.into_iter().map(place).collect();
        let untraceable = untraceable(btf, &params, result);
        Prototype { name: function.symbol.clone(), params: Ok(params), untraceable, result, words: word }
    }
}

/// What of a prototype no kernel traces by BTF (`btf_distill_func_proto`): results and arguments of other kinds than these, and
/// structs of more than two words.
fn untraceable(btf: &Btf, params: &[Param], result: u32) -> Option<String> {
    let is_word = |id| matches!(btf.strip(id).kind, BtfKind::Int | BtfKind::Ptr | BtfKind::Enum | BtfKind::Enum64);
    if result != 0 && !is_word(result) && btf.strip(result).kind != BtfKind::Void {
        return Some(format!("it returns `{}` by value", btf.describe(result)));
    }
    let refused = |param: &&Param| {
        let is_small = btf.strip(param.ty).kind == BtfKind::Struct && btf.size(param.ty).is_some_and(|size| size <= 16);
        !is_word(param.ty) && !is_small
    };
    let param = params.iter().find(refused)?;
    Some(match param.ty {
        0 => "it takes any number of arguments".into(),
        ty => format!("its argument `{}` is `{}`, passed by value", param.name, btf.describe(ty)),
    })
}

/// Words that programs by BTF see of a parameter, and registers it is passed in; none on the stack.
fn width(btf: &Btf, ty: u32, arch: Arch) -> (u32, u32) {
    let words = btf.size(ty).unwrap_or(8).div_ceil(8);
    match (btf.strip(ty).kind, arch) {
        // Larger ones lie on the stack of the caller; on arm64 a register points there.
        (BtfKind::Struct | BtfKind::Union, Arch::X86_64) if words > 2 => (words, 0),
        (BtfKind::Struct | BtfKind::Union, Arch::Aarch64) if words > 2 => (words, 1),
        _ => (words, words),
    }
}

impl FunctionArgs {
    /// BTF type of a parameter.
    pub(super) fn arg_type(&self, name: &str) -> Option<u32> {
        let params = self.prototypes.iter().flat_map(|p| p.params.as_deref().unwrap_or_default());
        params.into_iter().find(|param| param.name == name).map(|param| param.ty)
    }

    /// Names that all functions have.
    pub(super) fn names(&self) -> Vec<&str> {
        if matches!(self.seen, Seen::Return(_) | Seen::Inside) {
            return Vec::new();
        }
        let params =
            |p: &'_ Prototype| p.params.as_deref().unwrap_or_default().iter().map(|p| p.name.clone()).collect();
        let all: Vec<Vec<String>> = self.prototypes.iter().map(params).collect();
        let Some(first) = self.prototypes.first() else { return Vec::new() };
        let names = first.params.as_deref().unwrap_or_default().iter().map(|p| p.name.as_str());
        names.filter(|name| all.iter().all(|list| list.iter().any(|n| n == name))).collect()
    }
}

/// `args.NAME` at functions: of the same type and at the same place in all of them.
pub(super) fn arg(env: &mut Env, f: &FunctionArgs, field: &Ident, span: Span) -> Checked<Value> {
    let mut found: Option<(Expr, &str)> = None;
    for prototype in &f.prototypes {
        let params = known_params(env, f, prototype, span)?;
        let Some(param) = params.iter().find(|p| p.name == field.name) else {
            return Err(no_such_argument(env, prototype, field));
        };
        let value = at(env, f, prototype, param, span)?;
        match &found {
            Some((first, _)) if *first == value => {}
            Some((first, other)) => {
                let (a, b) = (env.describe(first.ty), env.describe(value.ty));
                let differs = if a == b { "lies elsewhere".into() } else { format!("is {a} in {other} but {b}") };
                let message = format!("`{}` {differs} in {}", field.name, prototype.name);
                return Err(env.fail_hint(span, message, "use one probe for each of them"));
            }
            None => found = Some((value, &prototype.name)),
        }
    }
    found.map(|(value, _)| Value::Typed(value)).ok_or(Reported)
}

/// The parameters, where the hook shows any.
fn known_params<'f>(env: &mut Env, f: &FunctionArgs, prototype: &'f Prototype, span: Span) -> Checked<&'f [Param]> {
    let name = f.what.trim_matches('`');
    match (f.seen, &prototype.params) {
        (Seen::Return(_), _) => {
            let message = "when a function returns, its arguments are gone";
            let hint = format!(
                "measure a span, and save them at its start: `start: function:{name}:entry`, `save: {{ x: args.x }}`"
            );
            Err(env.fail_hint(span, message, &hint))
        }
        (Seen::Inside, _) => {
            let message = "inside a function, registers may hold anything";
            Err(env.fail_hint(span, message, "leave the offset out, or use `pid`, `comm` and the like"))
        }
        (_, Ok(params)) => Ok(params),
        (seen, Err(why)) => {
            let message = format!("the arguments of `{}` are unknown: {why}", prototype.name);
            let diagnostic = Diagnostic::target(env.place(span), message);
            let hint = "`arg0` to `arg5` are the registers that arguments are passed in";
            Err(env.report.add(if matches!(seen, Seen::Registers(_)) { diagnostic.hint(hint) } else { diagnostic }))
        }
    }
}

fn no_such_argument(env: &mut Env, prototype: &Prototype, field: &Ident) -> Reported {
    let names: Vec<&str> = prototype.params.as_deref().unwrap_or_default().iter().map(|p| p.name.as_str()).collect();
    let near = did_you_mean(&field.name, names.iter().copied());
    let otherwise = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
    let message = format!("function `{}` has no argument `{}`", prototype.name, field.name);
    let diagnostic = unknown(env.place(field.span), message, near, &otherwise);
    env.report.add(diagnostic)
}

/// A parameter's value.
fn at(env: &mut Env, f: &FunctionArgs, prototype: &Prototype, param: &Param, span: Span) -> Checked<Expr> {
    match f.seen {
        Seen::Entry | Seen::Exit => typed(env, param.ty, 8 * param.word, Trust::Btf, span),
        Seen::Registers(arch) => match param.register {
            Some(n) => typed(env, param.ty, argument_register(arch, n), Trust::Probe, span),
            None => {
                let message = format!("`{}` of `{}` is passed on the stack", param.name, prototype.name);
                let diagnostic = Diagnostic::target(env.place(span), message);
                Err(env.report.add(diagnostic.hint("`fentry:` sees it, on kernels that trace so many arguments")))
            }
        },
        Seen::Return(_) | Seen::Inside => Err(Reported),
    }
}

/// A word of the context as a value of a BTF type.
fn typed(env: &mut Env, id: u32, offset: u32, trust: Trust, span: Span) -> Checked<Expr> {
    let btf = env.btf(span)?;
    let stripped = btf.strip(id);
    let found = match stripped.kind {
        BtfKind::Ptr => Some(pointer_type(btf, stripped, trust)),
        _ => scalar_type(btf, stripped),
    };
    let Some(ty) = found else {
        let message = format!("`{}` is passed by value and cannot be read", btf.describe(id));
        return Err(env.fail(span, message));
    };
    Ok(Expr { kind: argument(btf, id, offset, trust), ty, duration: false, place: env.place(span) })
}

impl Env<'_> {
    /// `arg0` to `arg5`: what the register held when the function was called.
    pub(super) fn register(&mut self, name: &str, span: Span) -> Checked<Value> {
        let scope = self.scope;
        let n = REGISTERS.iter().position(|r| *r == name).unwrap_or_default();
        let Args::Function(f) = &scope.args else {
            let message = format!("`{name}` is a register that a function's argument is passed in");
            return Err(self.fail_hint(span, message, "at this hook, arguments have names: `args.NAME`"));
        };
        match f.seen {
            Seen::Registers(arch) => {
                let kind = Kind::Arg { offset: argument_register(arch, n as u32) };
                Ok(Value::Typed(Expr { kind, ty: Ty::U64, duration: false, place: self.place(span) }))
            }
            Seen::Entry | Seen::Exit => {
                let Some(prototype) = f.prototypes.first() else { return Err(Reported) };
                let params = known_params(self, f, prototype, span)?;
                let Some(param) = params.iter().find(|p| p.register == Some(n as u32)) else {
                    let message = format!("no argument of `{}` is passed in register {n}", prototype.name);
                    return Err(self.fail_hint(span, message, "arguments have names: `args.NAME`"));
                };
                let value = at(self, f, prototype, param, span)?;
                Ok(Value::Typed(convert(value, Ty::U64)))
            }
            Seen::Return(_) | Seen::Inside => match f.prototypes.first() {
                Some(prototype) => known_params(self, f, prototype, span).and(Err(Reported)),
                None => Err(Reported),
            },
        }
    }
}

/// `retval` at functions: of the same type in all of them.
pub(super) fn result(env: &mut Env, f: &FunctionArgs, span: Span) -> Checked<Value> {
    let mut found: Option<(Expr, &str)> = None;
    for prototype in &f.prototypes {
        if let Err(why) = &prototype.params {
            let message = format!("the result of `{}` is of unknown type: {why}", prototype.name);
            let diagnostic = Diagnostic::target(env.place(span), message);
            return Err(env.report.add(diagnostic));
        }
        let (offset, trust) = match f.seen {
            Seen::Exit => (8 * prototype.words, Trust::Btf),
            Seen::Return(arch) => (arch.call_result(), Trust::Probe),
            Seen::Entry | Seen::Registers(_) | Seen::Inside => {
                let message = "a function has no result before it returns";
                let hint = format!("hook `function:{}:return`", f.what.trim_matches('`'));
                return Err(env.fail_hint(span, message, &hint));
            }
        };
        let btf = env.btf(span)?;
        if resolve(btf, prototype.result).kind == BtfKind::Void {
            return Err(env.fail(span, format!("function `{}` returns nothing", prototype.name)));
        }
        let value = typed(env, prototype.result, offset, trust, span)?;
        match &found {
            Some((first, _)) if first.ty == value.ty => {}
            Some((first, other)) => {
                let (a, b) = (env.describe(first.ty), env.describe(value.ty));
                let message = format!("`retval` is {a} in {other} but {b} in {}", prototype.name);
                return Err(env.fail_hint(span, message, "use one probe for each of them"));
            }
            None => found = Some((value, &prototype.name)),
        }
    }
    found.map(|(value, _)| Value::Typed(value)).ok_or(Reported)
}
