//! Probes made from random numbers, over the real types of the running kernel: every hook's arguments are followed
//! through members, unions, bitfields, arrays, casts and texts, and become values, labels, conditions, keys and states.
//!
//! Fewer and smaller numbers give simpler probes, so that proptest finds the small one behind a failure.

mod expressions;
mod probes;

use kstrobe::kernel::tracefs::Tracefs;
use kstrobe::kernel::{Wanted, detect};
use kstrobe_ebpf::Target;
use kstrobe_ebpf::kernel_target::btf::{Btf, ITERATOR, Kind};
use std::collections::BTreeSet;

/// Numbers that decide what is generated; zeros once they have run out.
pub struct Numbers<'a>(pub std::slice::Iter<'a, u32>);

impl Numbers<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |number| *number as usize % n.max(1))
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    /// Whether to do what only one of `n` does. Never, once the numbers have run out.
    fn one_of(&mut self, n: usize) -> bool {
        self.below(n) + 1 == n
    }
}

/// A value that a probe may start from: its text, and its BTF type where it has one (a number or a text of the record otherwise).
#[derive(Clone, Debug)]
pub struct Root {
    pub text: String,
    pub ty: Option<u32>,
}

/// A hook, and what its events know.
#[derive(Clone, Debug)]
pub struct Hook {
    pub text: String,
    pub roots: Vec<Root>,
}

/// What the kernel has to choose from.
pub struct Kernel {
    pub target: Target,
    pub hooks: Vec<Hook>,
    pub objects: Vec<Hook>,
    /// Structs by name, each name once.
    pub structs: Vec<u32>,
}

/// Hooks of a kind: enough that each seed meets others, few enough that their descriptions are read in a second.
const MAX_OF_KIND: usize = 400;

fn spread<T: Clone>(all: Vec<T>) -> Vec<T> {
    let step = all.len().div_ceil(MAX_OF_KIND).max(1);
    all.into_iter().step_by(step).collect()
}

impl Kernel {
    /// The kernel that runs; `None` without types.
    pub fn look() -> Option<Kernel> {
        let tracepoints = spread(events());
        let first = detect(&Wanted::default());
        let btf = first.btf?;
        let functions: BTreeSet<&str> = btf.functions().filter(|name| !name.contains('.')).collect();
        let functions: Vec<String> = spread(functions.into_iter().map(str::to_owned).collect());
        let syscalls: Vec<String> = spread(first.syscalls.keys().cloned().collect());
        let mut target = detect(&Wanted {
            tracepoints: tracepoints.iter().cloned().collect(),
            syscalls: syscalls.iter().cloned().collect(),
            functions: functions.iter().cloned().collect(),
            ..Wanted::default()
        });
        target.polls = kstrobe::kernel::pollers::row_types();
        let mut hooks = raw(&btf);
        hooks.extend(records(&target));
        hooks.extend(syscalls.iter().flat_map(|name| of_syscall(&target, name)));
        hooks.extend(functions.iter().flat_map(|name| of_function(&target, &btf, name)));
        for text in ["interval:s:1", "profile:hz:99"] {
            hooks.push(Hook { text: text.into(), roots: Vec::new() });
        }
        let objects = objects(&btf);
        let mut names = BTreeSet::new();
        let own = |t: &kstrobe_ebpf::kernel_target::btf::Type| t.kind == Kind::Struct && t.count > 0;
        let types = (1..btf.len()).map(|id| btf.ty(id)).filter(own);
        let structs = types.filter(|t| !btf.name(*t).is_empty() && names.insert(btf.name(*t).to_owned()));
        let structs = structs.map(|t| t.id).collect();
        Some(Kernel { target, hooks, objects, structs })
    }

    fn btf(&self) -> &Btf {
        self.target.btf.as_ref().expect("a kernel with types")
    }
}

fn args(of: Vec<(String, u32)>) -> Vec<Root> {
    of.into_iter().map(|(name, ty)| Root { text: format!("args.{name}"), ty: Some(ty) }).collect()
}

fn raw(btf: &Btf) -> Vec<Hook> {
    let hook = |event: &&str| {
        let roots = args(btf.tracepoint_args(event)?);
        Some(Hook { text: format!("rawtracepoint:{event}"), roots })
    };
    btf.tracepoints().iter().filter_map(hook).collect()
}

/// Events with a format, as `system:event`.
fn events() -> Vec<String> {
    let Ok(tracefs) = Tracefs::open() else { return Vec::new() };
    let mut all = Vec::new();
    for system in tracefs.list("events").unwrap_or_default() {
        for event in tracefs.list(&format!("events/{system}")).unwrap_or_default() {
            if tracefs.exists(&format!("events/{system}/{event}/format")) && system != "ftrace" {
                all.push(format!("{system}:{event}"));
            }
        }
    }
    all.sort();
    all
}

fn records(target: &Target) -> Vec<Hook> {
    let field = |name: &str| Root { text: format!("args.{name}"), ty: None };
    let hook = |(name, format): (&String, &kstrobe_ebpf::kernel_target::TracepointFormat)| Hook {
        text: format!("tracepoint:{name}"),
        roots: format.fields.iter().map(|f| field(&f.name)).collect(),
    };
    target.tracepoints.iter().map(hook).collect()
}

fn of_syscall(target: &Target, name: &str) -> Vec<Hook> {
    let Some(args) = target.syscalls.get(name).and_then(|call| call.args.as_ref()) else { return Vec::new() };
    let roots: Vec<Root> = args.iter().map(|arg| Root { text: format!("args.{}", arg.name), ty: None }).collect();
    let result = Root { text: "retval".into(), ty: None };
    vec![
        Hook { text: format!("syscall:{name}:enter"), roots },
        Hook { text: format!("syscall:{name}:exit"), roots: vec![result] },
    ]
}

fn of_function(target: &Target, btf: &Btf, name: &str) -> Vec<Hook> {
    let there = target.functions.get(name).is_some_and(|found| !found.is_empty());
    let Some((params, result)) = btf.function(name).filter(|_| there) else { return Vec::new() };
    let roots = args(params.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect());
    let result = (result != 0).then(|| Root { text: "retval".into(), ty: Some(result) });
    let at_exit: Vec<Root> = roots.iter().cloned().chain(result.clone()).collect();
    vec![
        Hook { text: format!("fentry:{name}"), roots: roots.clone() },
        Hook { text: format!("fexit:{name}"), roots: at_exit },
        Hook { text: format!("kprobe:{name}"), roots },
        Hook { text: format!("kretprobe:{name}"), roots: result.into_iter().collect() },
    ]
}

fn objects(btf: &Btf) -> Vec<Hook> {
    let hook = |kind: &str| {
        let (params, _) = btf.function(&format!("{ITERATOR}{kind}"))?;
        let roots = args(params.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect());
        Some(Hook { text: format!("iter:{kind}"), roots })
    };
    ["task", "tcp", "udp", "unix"].into_iter().filter_map(hook).collect()
}
