//! Lines of a text, one by one, without what mail and web pages put around them.

use std::borrow::Cow;
use std::sync::Arc;

use super::body::{self, Body, Notes, Shape};
use super::columns::{self, Columns, Took};
use crate::calls::{NameId, Names, NotUnderstood, Task};

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// Blank, a header, a rule: nothing that is not known without it.
    Nothing,
    /// Not understood.
    Unknown,
    /// Records were lost here, at least so many.
    Lost {
        cpu: Option<u32>,
        count: u64,
    },
    /// From here on another task's records follow.
    Switch {
        cpu: u32,
        from: Task,
        to: Task,
    },
    /// The same, but between whom is missing.
    NoSwitch,
    Record(Record),
}

/// A line about a function or an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub time_ns: Option<u64>,
    pub cpu: Option<u32>,
    pub task: Option<Task>,
    pub duration_ns: Option<u64>,
    /// It was in a hard interrupt, if that is said.
    pub hard: Option<bool>,
    /// Callers above it, by the indentation.
    pub depth: Option<u32>,
    pub what: What,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A function was entered, and left at once when it is a leaf.
    Entry {
        function: Option<NameId>,
        module: Option<NameId>,
        arguments: Option<Arc<str>>,
        returned: Option<Arc<str>>,
        leaf: bool,
    },
    /// A function was left.
    Exit { function: Option<NameId>, module: Option<NameId>, returned: Option<Arc<str>> },
    /// Something else happened.
    Event { name: Arc<str>, text: Arc<str> },
    /// What follows was called by an interrupt.
    InterruptBegins,
    /// An interrupt is over.
    InterruptEnds,
}

/// Reads the lines of a text.
pub struct Reader<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    /// Names met so far.
    pub names: Names,
    /// Lines that were not understood: how many, and the first of them.
    pub not_understood: (u64, Vec<NotUnderstood>),
    /// The text has no columns at all: a line that begins with a function is a record.
    bare: bool,
    /// After the first of the two rules that the kernel writes around a switch: whether the switch has come.
    rule: Option<bool>,
}

/// Signs of a rule.
const RULE: usize = 42;

/// Lines that one record may be spread over by a mail program.
const WRAPPED_LINES: usize = 4;
/// Where terminals break lines, inside of words.
const TERMINAL_COLUMNS: usize = 80;

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Reader<'a> {
        let columns = text.lines().any(|line| {
            let line = undress(line);
            let columns = columns::split(&line);
            let whole = || body::parse(columns.rest, Notes::Signs).is_some_and(|body| !body.cut());
            columns.base.is_some() && (columns.duration.is_some() || whole())
        });
        let lines = text.lines().enumerate();
        Reader { lines, names: Names::default(), not_understood: (0, Vec::new()), bare: !columns, rule: None }
    }

    /// The next line, with what is left of it on the lines after it when it was wrapped.
    pub fn next(&mut self) -> Option<Line> {
        let (at, raw) = self.lines.next()?;
        let line = undress(raw);
        if let Some(other) = self.other(&line) {
            return Some(if self.lacks_switch(&line, &other) { Line::NoSwitch } else { other });
        }
        self.rule = None;
        let Some(parts) = self.parts(&line) else {
            self.not_understood.0 += 1;
            if self.not_understood.1.len() < NotUnderstood::MAX {
                self.not_understood.1.push(NotUnderstood::new(at as u64 + 1, raw));
            }
            return Some(Line::Unknown);
        };
        if !parts.cut() {
            return Some(Line::Record(self.record(&parts)));
        }
        Some(self.wrapped(raw, line))
    }

    /// A line that is no record is the second of two rules between which no switch stands.
    fn lacks_switch(&mut self, line: &str, other: &Line) -> bool {
        let line = line.trim();
        let before = self.rule;
        if matches!(other, Line::Switch { .. }) {
            self.rule = Some(true);
        } else if line.len() == RULE && line.bytes().all(|letter| letter == b'-') {
            self.rule = if before.is_none() { Some(false) } else { None };
            return before == Some(false);
        }
        false
    }

    /// A record whose end is missing: the lines after it may hold it, if they say nothing of their own.
    fn wrapped(&mut self, raw: &str, line: Cow<str>) -> Line {
        let (mut blank, mut none) = (line.clone().into_owned(), line.clone().into_owned());
        let mut ahead = self.lines.clone();
        for taken in 1..WRAPPED_LINES {
            let Some((_, next)) = ahead.next() else { break };
            let next = undress(next);
            if next.trim().is_empty() || self.other(&next).is_some() || self.parts(&next).is_some() {
                break;
            }
            blank.push(' ');
            blank.push_str(next.trim());
            none.push_str(next.trim_end());
            let hard = raw.trim_end().chars().count() == TERMINAL_COLUMNS;
            let order = if hard { [&none, &blank] } else { [&blank, &none] };
            for joined in order {
                if let Some(parts) = self.parts(joined).filter(|parts| !parts.cut()) {
                    let record = self.record(&parts);
                    for _ in 0..taken {
                        self.lines.next();
                    }
                    return Line::Record(record);
                }
            }
        }
        match self.parts(&line) {
            Some(parts) => Line::Record(self.record(&parts)),
            None => Line::Unknown,
        }
    }

    /// Lines that are no records.
    fn other(&mut self, line: &str) -> Option<Line> {
        let line = line.trim();
        if line.is_empty() || line.starts_with("```") || line.starts_with("(Overruns:") {
            return Some(Line::Nothing);
        }
        // `#` is also the mark of a call that took long, where the CPU before it was cut off.
        if line.starts_with('#') && columns::split(line).duration.is_none() {
            return Some(Line::Nothing);
        }
        if line.bytes().all(|letter| letter == b'-') || line.starts_with("cpus=") || is_empty_cpu(line) {
            return Some(Line::Nothing);
        }
        lost(line).or_else(|| self.switch(line))
    }

    /// ` 0)    <idle>-0    =>    ping-324   `
    fn switch(&mut self, line: &str) -> Option<Line> {
        let line = line.trim_start_matches('|').trim_start();
        let (cpu, tasks) = line.split_once(')')?;
        let cpu = cpu.trim().parse().ok()?;
        // No task has a bar in it: most lines are known by that at once.
        let (from, _) = tasks[..tasks.find('|').unwrap_or(tasks.len())].split_once(" => ")?;
        let to = &tasks[from.len() + " => ".len()..];
        let (from, to) = (columns::task(from.trim())?, columns::task(to.trim()).or_else(|| noted_task(to))?);
        Some(Line::Switch { cpu, from: self.task(from), to: self.task(to) })
    }

    fn task(&mut self, (comm, pid): (&str, i32)) -> Task {
        Task { pid, comm: (!comm.is_empty()).then(|| self.names.id(comm)) }
    }

    fn parts<'l>(&self, line: &'l str) -> Option<Parts<'l>> {
        let columns = columns::split(line);
        if let (Some(event), None) = (columns.event, columns.duration) {
            return Some(Parts { columns, said: Said::Event { name: event, text: columns.rest.trim() } });
        }
        if columns.base.is_none() && !self.bare {
            return None;
        }
        let said = match columns.duration {
            Some(took @ (Took::InterruptBegins | Took::InterruptEnds)) => {
                Said::Interrupt { begins: took == Took::InterruptBegins }
            }
            took => {
                let notes = if took.is_some() { Notes::Any } else { Notes::Signs };
                Said::Body(body::parse(columns.rest, notes)?)
            }
        };
        // Behind no bar, words are functions only when they are whole.
        let parts = Parts { columns, said };
        (columns.duration.is_some() || columns.task.is_some() || !parts.cut()).then_some(parts)
    }

    fn record(&mut self, parts: &Parts) -> Record {
        let columns = &parts.columns;
        let duration_ns = match columns.duration {
            Some(Took::Ns(ns)) => Some(ns),
            _ => None,
        };
        let mut name = |name: Option<&str>| name.map(|name| self.names.id(name));
        let what = match parts.said {
            Said::Interrupt { begins: true } => What::InterruptBegins,
            Said::Interrupt { begins: false } => What::InterruptEnds,
            Said::Event { name, text } => What::Event { name: name.into(), text: text.into() },
            Said::Body(Body::Comment { text, .. }) => event(text),
            Said::Body(Body::Exit { name: function, module, returned, .. }) => {
                What::Exit { function: name(function), module: name(module), returned: returned.map(Into::into) }
            }
            Said::Body(Body::Call { name: function, module, arguments, returned, shape }) => What::Entry {
                function: name(function),
                module: name(module),
                arguments: arguments.map(Into::into),
                returned: returned.map(Into::into),
                leaf: shape == Shape::Leaf || (shape == Shape::Cut && duration_ns.is_some()),
            },
        };
        let task = columns.task.map(|task| self.task(task));
        Record {
            time_ns: columns.time_ns,
            cpu: columns.cpu,
            task,
            duration_ns,
            hard: columns.hard,
            depth: depth(columns),
            what,
        }
    }
}

/// A line in its parts.
struct Parts<'a> {
    columns: Columns<'a>,
    said: Said<'a>,
}

enum Said<'a> {
    Body(Body<'a>),
    Event { name: &'a str, text: &'a str },
    Interrupt { begins: bool },
}

impl Parts<'_> {
    /// The line ends before all was said.
    fn cut(&self) -> bool {
        matches!(
            self.said,
            Said::Body(
                Body::Call { shape: Shape::Cut, .. } | Body::Exit { cut: true, .. } | Body::Comment { cut: true, .. }
            )
        )
    }
}

/// The kernel indents by two blanks a level; blanks of another number are somebody else's and say nothing.
fn depth(columns: &Columns) -> Option<u32> {
    let blanks = columns.rest.bytes().take_while(|letter| *letter == b' ').count();
    let blanks = blanks.checked_sub(columns.base.unwrap_or(0))?;
    blanks.is_multiple_of(2).then(|| u32::try_from(blanks / 2).ok())?
}

/// `sched_switch: prev_comm=...`, or the text of a marker.
fn event(text: &str) -> What {
    let named = text.split_once(": ").filter(|(name, _)| {
        !name.is_empty()
            && name.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_')
    });
    let (name, text) = named.unwrap_or(("", text));
    What::Event { name: name.into(), text: text.trim().into() }
}

/// `CPU:1 [LOST 123 EVENTS]`, `CPU:1 [LOST EVENTS]`, trace-cmd's `CPU:1 [123 EVENTS DROPPED]`.
fn lost(line: &str) -> Option<Line> {
    let (cpu, rest) = line.strip_prefix("CPU:")?.split_once('[')?;
    let (words, _) = rest.split_once(']')?;
    if !words.contains("EVENTS") || !(words.contains("LOST") || words.contains("DROPPED")) {
        return None;
    }
    let count = words.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(1);
    Some(Line::Lost { cpu: cpu.trim().parse().ok(), count })
}

/// A task with a note behind it: `ping-324  <== here`.
fn noted_task(text: &str) -> Option<(&str, i32)> {
    let text = text.trim_start();
    text.match_indices('-').find_map(|(at, _)| {
        let digits = text[at + 1..].split(' ').next().unwrap_or_default();
        columns::task(&text[..at + 1 + digits.len()])
    })
}

/// trace-cmd's `CPU 1 is empty`.
fn is_empty_cpu(line: &str) -> bool {
    line.strip_prefix("CPU ")
        .and_then(|line| line.strip_suffix(" is empty"))
        .is_some_and(|cpu| cpu.parse::<u32>().is_ok())
}

/// A line without quote marks and the kernel log's time, its tabs as blanks.
fn undress(line: &str) -> Cow<'_, str> {
    let mut line = line.trim_end();
    // `> > text`, `>> text`: one blank belongs to each mark.
    while let Some(rest) = line.trim_start().strip_prefix('>') {
        line = rest.strip_prefix(' ').unwrap_or(rest);
    }
    line = kernel_log(line).unwrap_or(line);
    if !line.contains('\t') {
        return Cow::Borrowed(line);
    }
    let mut blanks = String::with_capacity(line.len() + 64);
    let mut column = 0;
    for letter in line.chars() {
        if letter == '\t' {
            let to = (column / TAB + 1) * TAB;
            blanks.extend(std::iter::repeat_n(' ', to - column));
            column = to;
        } else {
            blanks.push(letter);
            column += 1;
        }
    }
    Cow::Owned(blanks)
}

/// Columns from one tab stop to the next.
const TAB: usize = 8;

/// What follows `[   12.345678] `, as a kernel that dies dumps its trace.
fn kernel_log(line: &str) -> Option<&str> {
    let (time, rest) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    let (seconds, us) = time.trim().split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    (digits(seconds) && digits(us)).then(|| rest.strip_prefix(' ').unwrap_or(rest))
}
