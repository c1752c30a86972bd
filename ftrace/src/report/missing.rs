//! What of a text or a trace is missing: at the head of every report, as any figure may be touched by it.

use super::text::head;
use crate::calls::{Calls, Damage, NotUnderstood};
use serde::Serialize;

/// What is missing, and what is not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Lines or records that say nothing that can be understood.
    pub not_understood: u64,
    /// The first of those lines.
    pub lines: Vec<NotUnderstood>,
    /// Exits whose call is not known to have been entered.
    pub no_entry: u64,
    /// Entries whose exit did not come before the call was known to be over.
    pub no_exit: u64,
    /// Lines whose task is a guess.
    pub guessed: u64,
}

pub fn missing(calls: &Calls) -> Missing {
    let Damage { not_understood, no_entry, no_exit, guessed, .. } = calls.damage;
    Missing { not_understood, lines: calls.not_understood.clone(), no_entry, no_exit, guessed }
}

impl Missing {
    /// Nothing is missing.
    pub fn is_empty(&self) -> bool {
        *self == Missing::default()
    }

    /// As text for a terminal: nothing when nothing is missing.
    pub fn render(&self, out: &mut String) {
        if self.not_understood > 0 {
            head(out, &format!("!!! lines or records not understood: {}", self.not_understood));
            for line in &self.lines {
                head(out, &format!("      line {}: {}", line.line, line.text));
            }
        }
        let ends = [("ends of calls without a beginning", self.no_entry), ("beginnings without an end", self.no_exit)];
        let ends: Vec<String> =
            ends.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what}: {count}")).collect();
        if !ends.is_empty() {
            let ends = ends.join(", ");
            head(out, &format!("!!! {ends}; figures that they touch are bounds (>=, <=) or uncertain (~)"));
        }
        if self.guessed > 0 {
            head(out, &format!("!!! lines whose task is a guess, as others are missing: {}", self.guessed));
            head(out, "      all times are uncertain (~)");
        }
    }
}
