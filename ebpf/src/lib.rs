//! A pure compiler from a checked probe and a description of a kernel to an eBPF object.
//!
//! Nothing in this crate reads a file, makes a system call or looks at a clock: the same [`Program`] and the same
//! [`Target`] always give the same bytes. Stages are functions over data and never call one another; this file alone
//! strings them together:
//!
//! ```text
//! Program --lang--> AST --check--> typed::Probe --build--> ir::Module --lower--> isa code --elf--> bytes
//! ```
#![forbid(unsafe_code)]

pub mod asm;
pub mod ast;
pub mod buckets;
mod build;
pub mod check;
mod choices;
pub mod diag;
pub mod dispatch;
pub mod elf;
mod filters;
pub mod hook;
pub mod ir;
pub mod isa;
pub mod kernel_target;
pub mod lang;
pub mod layout;
pub mod lower;
pub mod program;
pub mod source;
pub mod typed;
pub mod unwind;

pub use diag::{Diagnostic, Fault};
pub use elf::Source;
pub use kernel_target::Target;
pub use layout::Layout;
pub use program::Program;

use diag::Place;
use std::borrow::Cow;
use typed::Attach;

/// What the compiler makes of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    /// The IR, with the layout of every map: what the interpreter runs and what readers go by.
    pub module: ir::Module,
    /// An ELF object for aya or libbpf; empty when nothing of the probe runs in the kernel (polls).
    pub object: Vec<u8>,
    /// Its programs, in the order they should be attached.
    pub programs: Vec<ProgramInfo>,
    /// What was chosen among several ways.
    pub choices: Vec<typed::Choice>,
    /// Where hooks attach, by their texts. System calls of one edge share the place of the first hook.
    pub attach_points: Vec<(source::TextId, Attach)>,
    /// Expressions that compile but are probably mistakes, in the order of the places.
    pub warnings: Vec<Diagnostic>,
    /// Of an ftrace session: events of these places that do not match can be left out by the kernel's own filter.
    pub filters: Vec<(Attach, String)>,
}

impl Artifact {
    /// Whether the probe compiled to nothing, as its conditions are never true on the target.
    pub fn is_idle(&self) -> bool {
        self.module.funcs.is_empty()
    }
}

/// One program of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramInfo {
    /// Symbol in the object.
    pub name: String,
    /// Where it attaches.
    pub attach: Attach,
    /// Instructions, 64-bit constants counting twice as the kernel counts them.
    pub instructions: u32,
    pub stack_bytes: u32,
    /// The system calls that it measures, where its hook has all of them.
    pub calls: Option<ir::Calls>,
    /// When its hook may rest.
    pub duty: ir::Duty,
    /// Disassembly.
    pub listing: String,
}

/// Compiles a probe for a kernel, or says all that is wrong with it.
pub fn compile(program: &Program, target: &Target) -> Result<Artifact, Vec<Diagnostic>> {
    let target = &*seen_by(program, target);
    let mut probe = check(program, target)?;
    let mut choices = std::mem::take(&mut probe.choices);
    choices.extend(choices::of_shape(&probe.shape, target));
    let warnings = std::mem::take(&mut probe.warnings);
    let attach_points = attach_points(&probe.shape);
    let filters = if target.session { filters::filters(&probe.shape) } else { Vec::new() };
    let (module, missed_casts) = build::build(probe, target, &lines(program))?;
    choices.extend(choices::of_module(&module, missed_casts, target));
    let file = &program.name.at.file;
    let mut artifact = assemble(module, target, Source { file: &file.name, text: &file.text })?;
    (artifact.choices, artifact.attach_points, artifact.filters) = (choices, attach_points, filters);
    artifact.warnings = warnings;
    match check_limits(&artifact, program) {
        None => Ok(artifact),
        Some(error) => Err(vec![error]),
    }
}

/// What of the programs goes beyond the probe's limits.
fn check_limits(artifact: &Artifact, program: &Program) -> Option<Diagnostic> {
    let (limits, at) = (&program.limits, Place { text: program.name.id, ..Place::default() });
    if let Some(p) = artifact.programs.iter().find(|p| p.instructions > limits.instructions) {
        let message =
            format!("program `{}` has {} instructions, more than {}", p.name, p.instructions, limits.instructions);
        return Some(Diagnostic::limit(at, message).hint("split the probe, or measure less in it"));
    }
    let attach_points: usize = artifact.programs.iter().map(|p| p.attach.attach_points()).sum();
    (attach_points > limits.attach_points as usize).then(|| {
        let message = format!("this probe attaches to {attach_points} places, more than {}", limits.attach_points);
        Diagnostic::limit(at, message).hint("use a narrower pattern, or split the probe")
    })
}

/// The front half alone: parses and checks. All mistakes are found in one run, warnings beside them; they come in the order
/// of their places.
pub fn check(program: &Program, target: &Target) -> Result<typed::Probe, Vec<Diagnostic>> {
    let (mut exprs, mut diagnostics) = lang::parse_program(program);
    let uses = lang::expand(program, &mut exprs, &mut diagnostics);
    match check::check(program, &exprs, &seen_by(program, target)) {
        Ok(mut probe) if diagnostics.is_empty() => {
            lang::explain(program, &uses, &mut probe.warnings);
            in_order(&mut probe.warnings);
            return Ok(probe);
        }
        Ok(probe) => diagnostics.extend(probe.warnings),
        Err(more) => diagnostics.extend(more),
    }
    lang::explain(program, &uses, &mut diagnostics);
    in_order(&mut diagnostics);
    Err(diagnostics)
}

/// What the compiler says is in the order of its input.
fn in_order(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|d| d.at.map_or((u32::MAX, 0), |at| (at.text.0, at.span.start)));
}

/// The back half alone: IR to object. What [`compile`] ends with, and how tests run IR of their own in a kernel.
pub fn assemble(module: ir::Module, target: &Target, source: Source<'_>) -> Result<Artifact, Vec<Diagnostic>> {
    if let Err(broken) = ir::verify::verify(&module) {
        return Err(broken.into_iter().map(|b| Diagnostic::bug(format!("invalid IR: {b}"))).collect());
    }
    let rdonly_cast = target.btf.as_ref().and_then(|b| b.find("bpf_rdonly_cast", kernel_target::btf::Kind::Func));
    let options = lower::Options { rdonly_cast_btf_id: rdonly_cast };
    let mut codes = Vec::new();
    let mut programs = Vec::new();
    for func in &module.funcs {
        let Some(attach) = func.attach.clone() else { continue };
        let code = lower::lower(func, &module, &options).map_err(|e| vec![e])?;
        programs.push(ProgramInfo {
            name: func.name.clone(),
            attach,
            instructions: code.slots(),
            stack_bytes: code.stack_bytes,
            calls: func.calls.clone(),
            duty: func.duty,
            listing: code.listing(),
        });
        codes.push(code);
    }
    let object = match codes.is_empty() {
        true => Vec::new(),
        false => elf::object(&module, &codes, &source).map_err(|e| vec![e])?,
    };
    let (choices, attach_points, warnings, filters) = Default::default();
    Ok(Artifact { module, object, programs, choices, attach_points, warnings, filters })
}

fn attach_points(shape: &typed::Shape) -> Vec<(source::TextId, Attach)> {
    let point = |at: &Place, attach: &Attach| (at.text, attach.clone());
    match shape {
        typed::Shape::At(sites) => sites.iter().map(|s| point(&s.place, &s.attach)).collect(),
        typed::Shape::Span { start, end, .. } => {
            let starts = start.iter().map(|s| point(&s.place, &s.attach));
            starts.chain(end.iter().map(|s| point(&s.place, &s.attach))).collect()
        }
        typed::Shape::Steps { sites, .. } => sites.iter().map(|s| point(&s.place, &s.attach)).collect(),
        typed::Shape::Poll { .. } => Vec::new(),
    }
}

/// The kernel as the program's engine sees it, with the types of the module that its functions lie in.
fn seen_by<'t>(program: &Program, target: &'t Target) -> Cow<'t, Target> {
    if program.engine == program::Engine::Ftrace {
        return Cow::Owned(target.as_session());
    }
    let patterns: Vec<String> = program.hooks().iter().filter_map(|hook| hook.kind.functions()).collect();
    target.with_module_of(patterns.iter().map(String::as_str))
}

/// Where each text of the program stands. What a configuration adds stands in another file, which line info does not have.
fn lines(program: &Program) -> build::Lines {
    let in_file = |text: &&source::SpannedStr| text.at.file.name == program.name.at.file.name;
    program.texts().into_iter().filter(in_file).map(|text| (text.id, (text.at.line, text.at.column))).collect()
}
