//! By how much a figure without a sign may move when a line is deleted.

use kstrobe_ftrace::calls::{Call, Calls, Ends, text};
use kstrobe_ftrace::report::{Activity, Spell};

/// What a deleted line may move.
#[derive(Default)]
pub struct Line {
    /// Sums of all calls.
    pub sum_ns: u64,
    /// A row of a table, and the time of one call itself.
    pub row_ns: u64,
    /// The function whose call is not known without the line, or not by its name: the shortest, the longest and the mean call of it are then
    /// those of other calls. A call without its beginning is among those without a name.
    pub call: Option<(String, String)>,
}

/// The lines of a text, each of which says by itself what it is.
pub fn lines(name: &str, text: &str, whole: &Calls, seen: &Activity) -> Vec<Line> {
    let mut next = whole.calls.iter().peekable();
    let lines = text.lines().map(|line| of(line, whole, seen, &mut next)).collect();
    assert!(next.next().is_none(), "{name}: a call without a line");
    lines
}

/// What one line may move; `next` are the calls that begin with it or later, of calls without a beginning those that end there.
fn of<'a>(
    line: &str,
    whole: &Calls,
    seen: &Activity,
    next: &mut std::iter::Peekable<impl Iterator<Item = &'a Call>>,
) -> Line {
    let alone = text::parse(line);
    let Some(one) = alone.calls.first() else {
        // An event of the scheduler has the time off the CPU that begins or ends with it. One without a time says nothing of times.
        let at = alone.marks.first().and_then(|mark| mark.time_ns);
        let touched = seen.spells.iter().filter(|spell| at.is_some() && touches(spell, at));
        let ns = touched.filter_map(Spell::off_ns).max().unwrap_or(0);
        return Line { sum_ns: ns, row_ns: ns, call: None };
    };
    if one.ends == Ends::Exit {
        let same = |call: &&Call| call.ends == Ends::Exit && call.duration_ns.or(one.duration_ns) == one.duration_ns;
        return match next.next_if(same) {
            // The beginning is missing, too: nothing but this line says that there was a call, and its time is the line's.
            Some(call) => Line { call: Some(function_of(call, whole)), ..time_of(call, whole) },
            // What is missing is seen: each figure that it touches has a sign.
            None => Line::default(),
        };
    }
    let Some(call) = next.next() else { panic!("a line without a call: {line}") };
    let of_call = Line { call: Some(function_of(call, whole)), ..time_of(call, whole) };
    // Without its beginning a call has no name: so much may be in another row, and no more in the sum of all.
    if one.ends == Ends::Entry { Line { sum_ns: 0, ..of_call } } else { of_call }
}

fn time_of(call: &Call, whole: &Calls) -> Line {
    let ns = lasted(call, whole);
    Line { sum_ns: ns, row_ns: ns, call: None }
}

/// A call whose end is missing lasted as long as what it made at least: without its line, that belongs to another.
fn lasted(call: &Call, whole: &Calls) -> u64 {
    let made = || call.children.iter().map(|child| lasted(&whole[*child], whole)).sum();
    call.duration_ns.unwrap_or_else(made)
}

fn function_of(call: &Call, whole: &Calls) -> (String, String) {
    let name = |id| String::from(&*whole.names[id]);
    (call.function.map_or("(unknown)".into(), name), call.module.map_or("kernel".into(), name))
}

fn touches(spell: &Spell, at: Option<u64>) -> bool {
    let out = spell.out.as_ref().map(|out| out.time_ns);
    [out, spell.woken.as_ref().map(|woken| woken.time_ns), spell.back.map(|back| back.0)].contains(&at)
}
