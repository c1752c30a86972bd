//! Blocks of expressions: each line is an expression and, behind `#`, its type or what is wrong with it.
//!
//! The block's info says where they stand: `expr at HOOK`, `expr span START END` or `expr poll SOURCE`. They are checked
//! as labels, which take numbers, bools, addresses and text.

use super::fences::{Fence, Page};
use super::fixture;
use kstrobe::config::plan::{self, ProbePlan};
use kstrobe_ebpf::ast::ExprKind;
use kstrobe_ebpf::typed::{Expr, Kind, Shape, Trust, Ty};
use kstrobe_ebpf::{Target, lang};

/// A probe that has the expression as a label.
fn plan(context: &str, expression: &str) -> ProbePlan {
    let (kind, rest) = context.split_once(' ').unwrap_or((context, ""));
    let shape = match (kind, rest.split_once(' ')) {
        ("at", _) => format!("at: '{rest}'"),
        ("span", Some((start, end))) => {
            format!("span: {{ start: {start}, end: {end}, save: {{ fd: 1, began: nsecs }} }}")
        }
        ("poll", None) => format!("poll: {{ source: {rest} }}"),
        _ => panic!("no context `{context}`: write `expr at HOOK`, `expr span START END` or `expr poll SOURCE`"),
    };
    let quoted = expression.replace('\'', "''");
    let text = format!(
        "probe: x\nsummary: x\n{shape}\nmetrics:\n  x:\n    type: gauge\n    value: 1\n    allow_high_cardinality: true\n    \
         labels:\n      x: '{quoted}'\n"
    );
    let (mut probes, diagnostics) = kstrobe_config::probes(&[fixture::file("expression", &text)]);
    assert!(diagnostics.is_empty(), "{}", kstrobe_config::render(&diagnostics));
    plan::plan(probes.remove(0))
}

fn describe(target: &Target, ty: Ty) -> String {
    match ty {
        Ty::Int { bits, signed } => format!("{}{bits}", if signed { 's' } else { 'u' }),
        Ty::Bool => "bool".into(),
        Ty::Str(n) => format!("text of {n} bytes"),
        Ty::Bytes(n) => format!("{n} raw bytes"),
        Ty::Ptr { to, trust } => {
            let user = if trust == Trust::User { "user " } else { "" };
            format!("{user}pointer to {}", target.btf.as_ref().map_or("void".into(), |btf| btf.describe(to)))
        }
    }
}

/// Type and, when it is known, value of an expression; or what is wrong.
fn outcome(context: &str, text: &str) -> String {
    let target = fixture::target();
    let plan = plan(context, text);
    let probe = match kstrobe_ebpf::check(plan.program(), &target) {
        Ok(probe) => probe,
        Err(wrong) => {
            return wrong.iter().map(|d| format!("error: {}", d.message)).collect::<Vec<_>>().join("; ");
        }
    };
    if let Err(refusal) = plan.compile(&target) {
        return format!("error: {}", refusal.diagnostics[0].message);
    }
    let measure = match &probe.shape {
        Shape::At(sites) => &sites[0].measures[0],
        Shape::Span { end, .. } => &end[0].measures[0],
        Shape::Poll { measures, .. } => &measures[0],
        Shape::Steps { .. } => unreachable!("no example has steps"),
    };
    let label = &measure.as_ref().expect("it has no condition").labels[0];
    // A pointer becomes its address where it is a label; `u64(x)` is the user's own conversion.
    let converted = matches!(lang::parse(text).map(|e| e.kind), Ok(ExprKind::Call(name, _)) if name.name == "u64");
    let expr = match &label.kind {
        Kind::Convert(inner) if matches!(inner.ty, Ty::Ptr { .. }) && !converted => inner,
        _ => label,
    };
    let duration = if expr.duration { ", a duration" } else { "" };
    format!("{}{}{duration}", describe(&target, expr.ty), value(expr))
}

fn value(expr: &Expr) -> String {
    match (&expr.kind, expr.ty) {
        (Kind::Const(bits), Ty::Bool) => format!(", {}", *bits == 1),
        (Kind::Const(bits), Ty::Int { signed: true, .. }) => format!(", {}", *bits as i64),
        (Kind::Const(bits), _) => format!(", {bits}"),
        _ => String::new(),
    }
}

/// The expression of a line, without what stands behind ` #`.
fn expression(line: &str) -> &str {
    line.rsplit_once(" # ").map_or(line, |(expression, _)| expression).trim()
}

fn lines<'p>(page: &'p Page, fence: &Fence) -> Vec<&'p str> {
    page.body(fence).lines().map(expression).collect()
}

fn context(fence: &Fence) -> &str {
    fence.info.strip_prefix("expr ").unwrap_or_default()
}

/// The probes that have the expressions of a block.
pub fn plans(page: &Page, fence: &Fence) -> Vec<ProbePlan> {
    lines(page, fence).into_iter().filter(|e| !e.is_empty()).map(|e| plan(context(fence), e)).collect()
}

#[test]
fn expressions_have_the_types_that_the_page_says() {
    let mut page = Page::read("docs/language.md");
    let blocks = page.of("expr");
    assert!(blocks.len() > 5, "only {} blocks of expressions found", blocks.len());
    for (fence, _) in blocks {
        let expressions = lines(&page, &fence);
        let width = expressions.iter().map(|e| e.chars().count()).max().unwrap_or(0);
        let line = |e: &&str| match e.is_empty() {
            true => "\n".to_owned(),
            false => format!("{e:<width$}  # {}\n", outcome(context(&fence), e)),
        };
        let found = expressions.iter().map(line).collect();
        page.expect(fence.body.clone(), &format!("line {}", fence.line), found);
    }
    page.finish();
}
