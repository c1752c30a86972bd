//! Keys: what finds a span or a state again at another hook.

use super::access::convert;
use super::expr::{Env, Value, describe};
use super::label::key_domain;
use super::report::{Checked, Report, Reported, whole};
use super::scope::Scope;
use super::{Input, MAX_KEY_BYTES};
use crate::ast::ExprKind;
use crate::diag::{Diagnostic, Place};
use crate::source::SpannedStr;
use crate::typed::{Expr, Kind, Ty};

/// A key's values at one site, with the number of possible values of each when small and known.
pub(super) type SiteKey = Vec<(Expr, Option<u32>)>;

pub(super) fn key_parts(input: Input, by: &[SpannedStr], scope: &Scope, report: &mut Report) -> Checked<SiteKey> {
    let part = |text: &SpannedStr| {
        let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
        let mut env = Env { target: input.target, scope, text, report };
        let (value, domain) = match &ast.kind {
            ExprKind::Call(name, args) if key_domain(&name.name).is_some() => {
                env.arity(&name.name, args, 1, &format!("{}(x)", name.name), ast.span)?;
                let value = env.value(&args[0])?;
                (Value::Typed(env.integer(value)?), key_domain(&name.name))
            }
            ExprKind::Name(name) if name == "func" => match env.hooked_function(ast.span) {
                Some(found) => (Value::Typed(found?.0), None),
                None => (env.value(ast)?, None),
            },
            ExprKind::Name(name) if name == "syscall" => (env.value(ast)?, key_domain(name)),
            _ => (env.value(ast)?, None),
        };
        let expr = env.typed(value)?;
        let domain = match (&expr.kind, expr.ty) {
            (Kind::Cpu, _) => Some(input.target.cpus.max(1)),
            (_, Ty::Bool) => Some(2),
            _ => domain,
        };
        // An address is only a number to a key, however it was got.
        let ty = if let Ty::Ptr { .. } = expr.ty { Ty::U64 } else { expr.ty };
        Ok((convert(expr, ty), domain))
    };
    let parts: Vec<_> = by.iter().map(part).collect();
    parts.into_iter().collect()
}

/// How many parts a key has, for people.
pub(super) fn parts(by: &[SpannedStr]) -> String {
    format!("{} part{}", by.len(), if by.len() == 1 { "" } else { "s" })
}

/// Refuses a key whose parts differ in type from site to site.
pub(super) fn same_types(input: Input, texts: &[&SpannedStr], sites: &[&SiteKey], report: &mut Report) -> Checked<()> {
    let Some((first, others)) = sites.split_first() else { return Err(Reported) };
    for (i, (expr, _)) in first.iter().enumerate() {
        let mut parts = others.iter().filter_map(|site| Some(&site.get(i)?.0));
        if let Some(other) = parts.find(|e| e.ty != expr.ty) {
            let name = |ty| describe(input.target, ty);
            let message = format!("the key is {} at one hook and {} at another", name(expr.ty), name(other.ty));
            let at = texts.iter().find(|text| text.id == other.place.text).map_or(other.place, |text| whole(text));
            return Err(report.add(Diagnostic::user(at, message).hint("convert it to one type, as in `u64(x)`")));
        }
    }
    Ok(())
}

/// Types of a key of any values, which a hash finds.
pub(super) fn hash_key(site: &SiteKey, at: Option<&SpannedStr>, report: &mut Report) -> Checked<Vec<Ty>> {
    let types: Vec<Ty> = site.iter().map(|(expr, _)| expr.ty).collect();
    let bytes: u32 = types.iter().map(|ty| ty.bytes()).sum();
    if bytes <= MAX_KEY_BYTES {
        return Ok(types);
    }
    let message = format!("the key takes {bytes} bytes, at most {MAX_KEY_BYTES} are possible");
    Err(report.add(Diagnostic::limit(at.map_or(Place::default(), whole), message)))
}
