//! Kernel functions: which of the ways to hook them this kernel has for these, and why not a better one.
//!
//! `function:` takes the first that works of fentry (BTF-typed, the cheapest), kprobe_multi (one link for any number of
//! functions) and kprobe (a perf event each).

use super::hooks::{Point, cannot_attach, reason};
use super::prototype::{FunctionArgs, Prototype, Seen};
use super::report::{Checked, Report, whole};
use super::scope::Args;
use crate::diag::{Diagnostic, Place, slip};
use crate::kernel_target::{Ability, Function, Target, plain_name};
use crate::program::{Edge, Hook, Via};
use crate::typed::{Attach, Choice, Select};
use std::collections::BTreeSet;

/// Most functions that get a perf event each: each takes a descriptor and some milliseconds of the kernel's time.
pub(super) const MAX_KPROBES: usize = 128;
/// Most functions of one kprobe_multi link.
pub(super) const MAX_KPROBE_MULTI: usize = 1024;
/// Most arguments of a function that every kernel can trace by BTF (more from 6.6 on x86).
const MAX_TRACED_ARGS: usize = 6;

/// What a hook asks for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) module: Option<&'a str>,
    pub(super) offset: u64,
    pub(super) edge: Edge,
    pub(super) via: Via,
}

impl Wanted<'_> {
    fn is_pattern(&self) -> bool {
        self.name.contains(['*', '?'])
    }
}

pub(super) fn function<'a>(
    hook: &'a Hook,
    wanted: Wanted<'_>,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let place = whole(&hook.text);
    let mut because = Vec::new();
    let key = hook.kind.functions().unwrap_or_default();
    let known = target.functions.get(&key).map(Vec::as_slice).unwrap_or_default();
    let functions = match wanted.is_pattern() {
        true => unambiguous(known, &mut because),
        false => instances(wanted, known, place, &mut because).map_err(|d| report.add(d))?,
    };
    if functions.is_empty() {
        return Err(report.add(not_found(&wanted, target, place)));
    }
    let prototypes = functions.iter().map(|f| Prototype::of(f, target)).collect::<Vec<_>>();
    let attach = match choose(wanted, &functions, &prototypes, target, &mut because) {
        Ok(attach) => attach,
        Err(refusals) => {
            cannot_attach(hook, refusals.join("; "), target, report)?;
            assumed(wanted, &functions, &prototypes, &mut because)
        }
    };
    let seen = match (&attach, wanted.offset) {
        (Attach::Fentry { .. }, _) => Seen::Entry,
        (Attach::Fexit { .. }, _) => Seen::Exit,
        (Attach::Kprobe { ret: true, .. }, _) => Seen::Return(target.arch),
        (_, 0) => Seen::Registers(target.arch),
        _ => Seen::Inside,
    };
    if wanted.via == Via::Best || !because.is_empty() {
        report.choose(Choice { wanted: hook.text.value.clone(), got: short(&attach), because });
    }
    let what = format!("`{key}`");
    // Functions beyond the cut are not hooked, so their arguments are not checked.
    let hooked = if let Attach::Kprobe { functions, .. } = &attach { functions.len() } else { 1 };
    let prototypes = prototypes.into_iter().take(hooked).collect();
    let args = Args::Function(FunctionArgs { what, prototypes, seen, by_address: false });
    Ok(Point { attach, place, select: Select::All, numbers: None, args })
}

/// A list of functions would hide what matters.
fn short(attach: &Attach) -> String {
    match attach {
        Attach::Kprobe { functions, .. } if functions.len() > 3 => {
            format!("{} at {} functions", attach.kind(), functions.len())
        }
        attach => attach.to_string(),
    }
}

/// Those of the symbols of one name that run when the function is called: its own; if it has none, the copies that the
/// compiler made in its place; if there are none either, the part it did not inline.
fn instances<'f>(
    wanted: Wanted<'_>,
    known: &'f [Function],
    place: Place,
    because: &mut Vec<String>,
) -> Result<Vec<&'f Function>, Diagnostic> {
    let is_part = |f: &&Function| f.symbol.contains(".part.");
    let own: Vec<_> = known.iter().filter(|f| f.symbol == wanted.name).collect();
    let copies: Vec<_> = known.iter().filter(|f| f.symbol != wanted.name && !is_part(f)).collect();
    let parts: Vec<_> = known.iter().filter(is_part).collect();
    let found = [&own, &copies, &parts].into_iter().find(|list| !list.is_empty()).cloned().unwrap_or_default();
    // The kernel's own function goes before those of modules.
    let kernels: Vec<_> = found.iter().copied().filter(|f| f.module.is_none()).collect();
    let found = if kernels.is_empty() { found } else { kernels };
    let mut modules: Vec<&str> = found.iter().filter_map(|f| f.module.as_deref()).collect();
    modules.dedup();
    if let [first, _, ..] = modules[..] {
        let message = format!("`{}` is a function of several modules: {}", wanted.name, modules.join(", "));
        return Err(Diagnostic::user(place, message).hint(format!("name one of them: `{first}:{}`", wanted.name)));
    }
    let Some(first) = found.first() else { return Ok(found) };
    if first.symbol != wanted.name {
        let symbols: Vec<&str> = found.iter().map(|f| f.symbol.as_str()).collect();
        because.push(format!("the compiler made {} of {}", symbols.join(", "), wanted.name));
    } else if let [copy, ..] = copies[..] {
        because
            .push(format!("calls of its copy {} are not seen: `{}.*` would hook them too", copy.symbol, wanted.name));
    }
    // They are of one module, and sorted.
    if let Some([twice, ..]) = found.windows(2).find(|pair| pair.iter().all(|f| f.symbol == pair[0].symbol)) {
        let message = format!("several functions of this kernel have the name `{}`", twice.symbol);
        return Err(Diagnostic::target(place, message).hint("hook a function that calls them, or one that they call"));
    }
    Ok(found)
}

/// Those that a pattern fits, but for names that several functions have: by its name the kernel would find any of these, or none.
fn unambiguous<'f>(known: &'f [Function], because: &mut Vec<String>) -> Vec<&'f Function> {
    let (shared, found): (Vec<_>, Vec<_>) = known.iter().partition(|f| f.shared);
    let names: BTreeSet<&str> = shared.iter().map(|f| f.symbol.as_str()).collect();
    if let Some(first) = names.first() {
        let others = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        because.push(format!("left out, as several functions have the name: {first}{others}"));
    }
    found
}

fn not_found(wanted: &Wanted<'_>, target: &Target, place: Place) -> Diagnostic {
    let within = wanted.module.map_or(String::new(), |m| format!(" in module `{m}`"));
    if wanted.is_pattern() {
        let message = format!("no function of this kernel fits `{}`{within}", wanted.name);
        return Diagnostic::target(place, message).hint("`kstrobe list functions PATTERN` shows those it has");
    }
    let message = format!("this kernel has no function `{}`{within}", wanted.name);
    let module = wanted.module.and_then(|m| target.modules.get(m));
    let types = module.or(target.btf.as_ref().filter(|_| wanted.module.is_none()));
    let described = types.is_some_and(|btf| btf.function(plain_name(wanted.name)).is_some());
    // Of 60,000 functions some name is always near; a function of a module that is not loaded is none of them.
    let near = types.and_then(|btf| slip(wanted.name, btf.functions()));
    // Probes at functions ask for what only some kernels have: never a mere slip of the user's.
    Diagnostic::target(place, message).absent().hint(match near.filter(|near| *near != wanted.name) {
        _ if described => "its BTF describes one, but the compiler has inlined it everywhere".into(),
        Some(near) => format!("did you mean `{near}`?"),
        None => match wanted.module {
            Some(m) => format!("the module may not be loaded, or the function be inlined: see `kstrobe list functions '{m}:*'`"),
            None => "it may be inlined, or in a module that is not loaded; `kstrobe list functions PATTERN` shows what there is"
                .into(),
        },
    })
}

/// The best way that works, or why none does.
fn choose(
    wanted: Wanted<'_>,
    functions: &[&Function],
    prototypes: &[Prototype],
    target: &Target,
    because: &mut Vec<String>,
) -> Result<Attach, Vec<String>> {
    let abilities = &target.abilities;
    let mut refusals = Vec::new();
    if wanted.via != Via::Kprobe {
        match not_traced(wanted, functions, prototypes, target) {
            None => return Ok(traced(functions[0], wanted.edge)),
            Some(why) => refusals.push(format!("fentry: {why}")),
        }
    }
    if wanted.via == Via::Fentry {
        return Err(refusals);
    }
    // A user who writes `kprobe:` with one name means a kprobe.
    if wanted.via == Via::Best || functions.len() > 1 {
        match not_multi(wanted, functions, &abilities.kprobe_multi) {
            None => {
                because.append(&mut refusals);
                return Ok(kprobe(wanted, functions, true, because));
            }
            Some(why) => refusals.push(format!("kprobe_multi: {why}")),
        }
    }
    match &abilities.kprobe {
        Ability::Yes => {
            because.append(&mut refusals);
            Ok(kprobe(wanted, functions, false, because))
        }
        ability => {
            refusals.push(format!("kprobe: {}", reason(ability)));
            Err(refusals)
        }
    }
}

/// The way that shows most, where there is none: expressions are checked against it.
fn assumed(wanted: Wanted<'_>, functions: &[&Function], prototypes: &[Prototype], because: &mut Vec<String>) -> Attach {
    match (functions, prototypes) {
        ([function], [prototype]) if wanted.via != Via::Kprobe && prototype.params.is_ok() => {
            traced(function, wanted.edge)
        }
        _ => kprobe(wanted, functions, false, because),
    }
}

fn traced(function: &Function, edge: Edge) -> Attach {
    let Function { symbol, module, .. } = function.clone();
    match edge {
        Edge::Enter => Attach::Fentry { function: symbol, module },
        Edge::Exit => Attach::Fexit { function: symbol, module },
    }
}

/// Why fentry and fexit cannot do it, if so.
fn not_traced(
    wanted: Wanted<'_>,
    functions: &[&Function],
    prototypes: &[Prototype],
    target: &Target,
) -> Option<String> {
    let abilities = &target.abilities;
    if !abilities.fentry.yes() {
        return Some(reason(&abilities.fentry).into());
    }
    let ([function], [prototype]) = (functions, prototypes) else {
        return Some(format!("it hooks one function, and here are {}", functions.len()));
    };
    if function.module.is_some() && !abilities.module_btf.yes() {
        return Some(format!("types of modules: {}", reason(&abilities.module_btf)));
    }
    if function.symbol.contains('.') {
        return Some(format!("BTF has no name like {}", function.symbol));
    }
    if !function.traceable {
        return Some("the kernel does not let its entry be traced (notrace)".into());
    }
    let params = match &prototype.params {
        Ok(params) => params,
        Err(unknown) => return Some(unknown.to_string()),
    };
    if let Some(why) = &prototype.untraceable {
        return Some(why.clone());
    }
    if wanted.via == Via::Best && params.len() > MAX_TRACED_ARGS {
        return Some(format!("it has {} arguments, and not every kernel can trace more than 6", params.len()));
    }
    None
}

/// Why kprobe_multi cannot do it, if so.
fn not_multi(wanted: Wanted<'_>, functions: &[&Function], ability: &Ability) -> Option<String> {
    if !ability.yes() {
        return Some(reason(ability).into());
    }
    if wanted.offset > 0 {
        return Some("it has no offsets".into());
    }
    if let Some(f) = functions.iter().find(|f| f.shared && f.module.is_some()) {
        return Some(format!("it goes by names alone, and {} is not the only function of that name", f.symbol));
    }
    let untraced = functions.iter().find(|f| !f.traceable);
    untraced.map(|f| format!("the kernel does not let the entry of {} be traced (notrace)", f.symbol))
}

fn kprobe(wanted: Wanted<'_>, functions: &[&Function], multi: bool, because: &mut Vec<String>) -> Attach {
    let most = if multi { MAX_KPROBE_MULTI } else { MAX_KPROBES };
    if functions.len() > most {
        because.push(format!("only the first {most} of {} functions are hooked", functions.len()));
    }
    let name = |f: &&Function| match &f.module {
        Some(module) => format!("{module}:{}", f.symbol),
        None => f.symbol.clone(),
    };
    let functions = functions.iter().take(most).map(name).collect();
    Attach::Kprobe { functions, offset: wanted.offset, ret: wanted.edge == Edge::Exit, multi }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_several_functions_have_are_left_out_of_a_pattern() {
        let functions = ["a_next", "s_next", "s_next", "t_next", "u_next"];
        let function = |symbol: &str| Function {
            symbol: symbol.into(),
            shared: ["s_next", "t_next"].contains(&symbol),
            traceable: true,
            ..Function::default()
        };
        let of_module = |symbol: &str| Function { module: Some("veth".into()), ..function(symbol) };
        let of_modules = ["t_next", "v_next"].map(of_module);
        let known: Vec<Function> = functions.map(function).into_iter().chain(of_modules).collect();
        let mut because = Vec::new();
        let found = unambiguous(&known, &mut because);
        let found: Vec<_> = found.iter().map(|f| (f.module.as_deref(), f.symbol.as_str())).collect();
        assert_eq!(found, [(None, "a_next"), (None, "u_next"), (Some("veth"), "v_next")]);
        assert_eq!(because, ["left out, as several functions have the name: s_next and 1 more"]);
        because.clear();
        assert_eq!((unambiguous(&known[..1], &mut because).len(), because.len()), (1, 0));
    }
}
