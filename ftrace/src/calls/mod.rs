//! Calls of kernel functions as trees, from the records or the text of the function_graph tracer.
//!
//! A trace may begin and end anywhere and may have lost records in between: what is not known is `None`, never zero.

pub mod build;
pub mod functions;
mod marks;
mod naming;
pub mod outline;
mod pair;
pub mod text;

use std::collections::HashMap;
use std::sync::Arc;

/// All calls of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// Calls in the order in which they were entered; those whose entry was not recorded stand where their exit was.
    pub calls: Vec<Call>,
    /// Calls without a caller in the trace, in the same order.
    pub roots: Vec<CallId>,
    /// Events between the calls, in the order of the trace.
    pub marks: Vec<Mark>,
    /// Function and module names.
    pub names: Names,
    /// What the trace did not tell.
    pub damage: Damage,
    /// The first lines of a text that were not understood, [`NotUnderstood::MAX`] at most.
    pub not_understood: Vec<NotUnderstood>,
}

/// A line of a text that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NotUnderstood {
    /// Its number in the text, from 1.
    pub line: u64,
    /// What stands there, cut after 120 letters.
    pub text: String,
}

impl NotUnderstood {
    /// Lines that are kept: enough to see what kind of text it is.
    pub const MAX: usize = 3;
    /// Letters of a line that are kept: what a terminal shows in one or two lines.
    const MAX_LETTERS: usize = 120;

    /// A line and its number from 1; control characters become blanks, as reports print it.
    pub fn new(line: u64, text: &str) -> NotUnderstood {
        let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
        NotUnderstood { line, text: text.trim().chars().take(NotUnderstood::MAX_LETTERS).map(plain).collect() }
    }
}

/// Index into [`Calls::calls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u32);

/// One call of one function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function; `None` when only its end was recorded, and without a name.
    pub function: Option<NameId>,
    /// The module that the function lies in; `None` for the kernel itself, or when it is not known.
    pub module: Option<NameId>,
    /// Who was running; `None` when the trace does not say.
    pub task: Option<Task>,
    /// The CPU of the entry, or of the exit when there is no entry.
    pub cpu: Option<u32>,
    /// When it was entered, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// From entry to exit in nanoseconds, time off the CPU included.
    pub duration_ns: Option<u64>,
    /// The caller, or what was interrupted.
    pub parent: Option<CallId>,
    /// Calls it made, in order.
    pub children: Vec<CallId>,
    /// Which ends were recorded.
    pub ends: Ends,
    /// An interrupt began it: the caller is what was interrupted.
    pub interrupt: bool,
    /// Arguments as the trace shows them, without parentheses.
    pub arguments: Option<Arc<str>>,
    /// The returned value as the trace shows it.
    pub returned: Option<Arc<str>>,
}

/// Which ends of a call were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Entry and exit.
    Both,
    /// Only the entry: it was still running at the end of the trace, or its exit was lost.
    Entry,
    /// Only the exit: it was running when the trace began, or its entry was lost.
    Exit,
}

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Thread id.
    pub pid: i32,
    /// Its name when it was recorded.
    pub comm: Option<NameId>,
}

/// An event between calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The innermost call that was open on its task.
    pub call: Option<CallId>,
    /// When, nanoseconds of the trace's clock.
    pub time_ns: Option<u64>,
    /// Where.
    pub cpu: Option<u32>,
    /// Event name, e.g. `sched_switch`; empty for plain comments (`trace_printk`, markers).
    pub event: Arc<str>,
    /// The rest as the trace shows it.
    pub text: Arc<str>,
}

/// What a trace did not tell. All zero: every line or record was understood and paired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Records that the kernel says it lost; those it lost without a count are one each.
    pub lost: u64,
    /// Lines or records that say nothing that can be understood.
    pub not_understood: u64,
    /// The same line or record twice: counted once.
    pub repeated: u64,
    /// Exits whose call is not known to have been entered.
    pub no_entry: u64,
    /// Entries whose exit did not come before the trace showed that the call was over.
    pub no_exit: u64,
    /// Calls that were still running at the end.
    pub open: u64,
    /// Lines of a damaged text whose task is a guess, as only their indentation shows it: any call may be another task's.
    pub guessed: u64,
}

/// Index into [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Names, each once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, NameId>,
}

impl Names {
    /// The id of a name, which is new or was there.
    pub fn id(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        // Names are functions, modules and tasks: four thousand million of them do not fit in a trace.
        let id = NameId(self.texts.len() as u32);
        let text: Arc<str> = name.into();
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    /// The id of a name that is there.
    pub fn find(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.texts == other.texts
    }
}

impl std::ops::Index<NameId> for Names {
    type Output = Arc<str>;

    fn index(&self, id: NameId) -> &Arc<str> {
        &self.texts[id.0 as usize]
    }
}

impl std::ops::Index<CallId> for Calls {
    type Output = Call;

    fn index(&self, id: CallId) -> &Call {
        &self.calls[id.0 as usize]
    }
}

impl Calls {
    /// A call and all that it made, callers first, with their depth below it.
    pub fn tree(&self, root: CallId) -> impl Iterator<Item = (CallId, usize)> + '_ {
        let mut open = vec![(root, 0)];
        std::iter::from_fn(move || {
            let (id, depth) = open.pop()?;
            open.extend(self[id].children.iter().rev().map(|child| (*child, depth + 1)));
            Some((id, depth))
        })
    }
}
