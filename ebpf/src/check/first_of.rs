//! Alternatives: of several hooks the first that this kernel has.

use super::hooks::resolve;
use super::report::{Checked, Report, whole};
use crate::diag::Diagnostic;
use crate::kernel_target::Target;
use crate::program::{Hook, HookKind};
use crate::typed::Choice;

/// The hooks of a list with each `first_of` replaced by what it comes to here. The second result tells whether all did.
pub(super) fn chosen<'a>(hooks: &'a [Hook], target: &Target, report: &mut Report) -> (Vec<&'a Hook>, Checked<()>) {
    let mut outcome = Ok(());
    let mut all = Vec::new();
    for hook in hooks {
        match &hook.kind {
            HookKind::FirstOf(alternatives) => match first(hook, alternatives, target, report) {
                Ok(one) => all.push(one),
                Err(reported) => outcome = Err(reported),
            },
            _ => all.push(hook),
        }
    }
    (all, outcome)
}

fn first<'a>(hook: &Hook, alternatives: &'a [Hook], target: &Target, report: &mut Report) -> Checked<&'a Hook> {
    let mut because = Vec::new();
    for alternative in alternatives {
        let mut trial = Report::default();
        let (points, outcome) = resolve(std::slice::from_ref(alternative), target, &mut trial);
        if outcome.is_ok() && trial.is_empty() && !points.is_empty() {
            report.choose(Choice { wanted: hook.text.value.clone(), got: alternative.text.value.clone(), because });
            return Ok(alternative);
        }
        because.extend(trial.finish().0.into_iter().map(reason));
    }
    let message = "this kernel has none of these hooks";
    // Each reason names its own hook or event.
    Err(report.add(Diagnostic::target(whole(&hook.text), message).hint(because.join("; "))))
}

/// Why not this one, on one line. What a kernel simply does not have needs no advice where another hook takes its place.
fn reason(Diagnostic { message, hint, absent, .. }: Diagnostic) -> String {
    match hint.filter(|_| !absent) {
        Some(hint) => format!("{message} ({hint})"),
        None => message,
    }
}
