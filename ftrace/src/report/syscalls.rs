//! System calls: how often, how long, with which errors.

use super::text::{Table, head, not_recorded, time};
use super::{Activity, Asked, Happening};
use ::syscalls::{aarch64, x86_64};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// System calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Syscalls {
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// The most time first.
    pub rows: Vec<SyscallRow>,
    /// Entries without their exit, and the other way round.
    pub unpaired: u64,
}

/// One system call of all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyscallRow {
    /// Its name, or its number when no name is known.
    pub name: String,
    /// How often it was seen from entry to exit.
    pub count: u64,
    /// Time from entry to exit, waits included.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How often it returned an error.
    pub errors: u64,
    /// Errors by number.
    pub by_errno: Vec<Errno>,
}

/// How often a call returned an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Errno {
    /// The error's number, e.g. 11 for `EAGAIN`.
    pub errno: u16,
    /// How often.
    pub count: u64,
}

/// The largest number of an error that the kernel returns.
const MAX_ERRNO: i64 = 4095;

/// One system call of a thread, from entry to exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub pid: i32,
    pub name: &'a str,
    pub start_ns: u64,
    pub end_ns: u64,
    /// What it returned; `None` when the recording ended first.
    pub returned: Option<i64>,
    /// Where it ended.
    pub cpu: u32,
    /// From `raw_syscalls` events. Those of single calls tell of the same calls.
    pub is_raw: bool,
}

impl Span<'_> {
    /// The number of the error that it returned.
    pub fn errno(&self) -> Option<u16> {
        let returned = self.returned?;
        (-MAX_ERRNO..0).contains(&returned).then_some(returned.unsigned_abs() as u16)
    }
}

/// What was seen of one kind of events.
#[derive(Default)]
struct Open {
    by_pid: HashMap<i32, (String, u64)>,
    unpaired: u64,
    seen: bool,
}

/// Rows by name, each with its errors by number.
type Rows = HashMap<String, (SyscallRow, BTreeMap<u16, u64>)>;

/// How entries and exits fit together.
pub(super) struct Paired {
    /// Whether there were any events of system calls.
    pub seen: bool,
    /// Whether spans of `raw_syscalls` count, rather than those of single calls.
    pub is_raw: bool,
    /// Entries without their exit, and the other way round.
    pub unpaired: u64,
}

impl Open {
    fn enter(&mut self, pid: i32, name: String, time_ns: u64) {
        self.seen = true;
        // Calls that do not return (exit) have no exit either.
        self.unpaired += u64::from(self.by_pid.insert(pid, (name, time_ns)).is_some());
    }

    /// The name and start of the call that ends.
    fn exit(&mut self, pid: i32, name: Option<&str>) -> Option<(String, u64)> {
        self.seen = true;
        let entered = self.by_pid.remove(&pid).filter(|(entered, _)| name.is_none_or(|name| name == entered));
        self.unpaired += u64::from(entered.is_none());
        entered
    }
}

/// Calls with each system call of `raw_syscalls` events, and with each of the events of single calls, as it ends.
pub(super) fn pair<'a, 'n>(
    events: impl Iterator<Item = Happening<'a>>,
    names: impl Fn(u64) -> Option<&'n str>,
    mut each: impl FnMut(Span<'_>),
) -> Paired {
    let name_of = |number: u64| names(number).map_or_else(|| number.to_string(), str::to_owned);
    let (mut raw, mut single) = (Open::default(), Open::default());
    let mut last_ns = 0;
    for event in events {
        last_ns = event.time_ns.max(last_ns);
        if event.lost {
            for open in [&mut raw, &mut single] {
                open.unpaired += std::mem::take(&mut open.by_pid).len() as u64;
            }
        }
        let Some(pid) = event.pid else { continue };
        let (is_raw, ended) = match event.name() {
            "sys_enter" => {
                raw.enter(pid, name_of(event.number("id").unwrap_or(u64::MAX)), event.time_ns);
                continue;
            }
            "sys_exit" => {
                // A return from a signal handler has the number -1, whatever was entered.
                let name = event.number("id").filter(|id| *id != u64::MAX).map(name_of);
                (true, raw.exit(pid, name.as_deref()))
            }
            name => {
                if let Some(call) = name.strip_prefix("sys_enter_") {
                    single.enter(pid, call.to_owned(), event.time_ns);
                    continue;
                }
                let Some(call) = name.strip_prefix("sys_exit_") else { continue };
                (false, single.exit(pid, Some(call)))
            }
        };
        if let Some((name, start_ns)) = ended {
            let returned = Some(event.number("ret").unwrap_or_default() as i64);
            each(Span { pid, name: &name, start_ns, end_ns: event.time_ns, returned, cpu: event.cpu, is_raw });
        }
    }
    for (is_raw, open) in [(true, &raw), (false, &single)] {
        for (pid, (name, start_ns)) in &open.by_pid {
            each(Span { pid: *pid, name, start_ns: *start_ns, end_ns: last_ns, returned: None, cpu: 0, is_raw });
        }
    }
    let is_raw = raw.seen;
    let counted = if is_raw { raw } else { single };
    Paired { seen: counted.seen, is_raw, unpaired: counted.unpaired + counted.by_pid.len() as u64 }
}

/// Names of system calls by number on the machine that recorded, by its `uname -snrm`; on this one where the file does not
/// say. No names for architectures without a table here.
pub fn system_call_names(uname: &str) -> impl Fn(u64) -> Option<&'static str> + use<> {
    let machine = uname.split_ascii_whitespace().next_back().unwrap_or(std::env::consts::ARCH);
    let name: fn(usize) -> Option<&'static str> = match machine {
        "x86_64" => |number| x86_64::Sysno::new(number).map(|call| call.name()),
        "aarch64" => |number| aarch64::Sysno::new(number).map(|call| call.name()),
        _ => |_| None,
    };
    move |number| name(usize::try_from(number).ok()?)
}

/// System calls, from `raw_syscalls` events, else from those of single calls. `names` tells the name of a number.
pub fn syscalls<'a, 'n>(
    events: impl Iterator<Item = Happening<'a>>,
    activity: &Activity,
    asked: &Asked,
    names: impl Fn(u64) -> Option<&'n str>,
) -> Syscalls {
    let mut kinds: [Rows; 2] = Default::default();
    let paired = pair(events, names, |span| {
        if span.returned.is_none() || !asked.keeps(Some(span.pid), activity.comm(span.pid), Some(span.cpu)) {
            return;
        }
        let (row, errors) = kinds[usize::from(span.is_raw)].entry(span.name.to_owned()).or_default();
        let lasted_ns = span.end_ns.saturating_sub(span.start_ns);
        row.count += 1;
        row.total_ns = row.total_ns.saturating_add(lasted_ns);
        row.max_ns = row.max_ns.max(lasted_ns);
        if let Some(errno) = span.errno() {
            row.errors += 1;
            *errors.entry(errno).or_default() += 1;
        }
    });
    let mut report = Syscalls { unpaired: paired.unpaired, ..Syscalls::default() };
    if !paired.seen {
        report.not_recorded.push("raw_syscalls:* or syscalls:*".to_owned());
    }
    let row = |(name, (row, errors)): (String, (SyscallRow, BTreeMap<u16, u64>))| {
        let by_errno = errors.into_iter().map(|(errno, count)| Errno { errno, count }).collect();
        SyscallRow { name, by_errno, ..row }
    };
    report.rows = std::mem::take(&mut kinds[usize::from(paired.is_raw)]).into_iter().map(row).collect();
    report.rows.sort_by(|one, two| two.total_ns.cmp(&one.total_ns).then_with(|| one.name.cmp(&two.name)));
    report
}

impl Syscalls {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, "System calls");
        if not_recorded(out, &self.not_recorded) {
            return;
        }
        let mut table = Table::new(&["call", ">count", ">total", ">mean", ">max", ">errors", "by number"]);
        for row in &self.rows {
            let mean_ns = row.total_ns.checked_div(row.count).unwrap_or_default();
            let errors: Vec<String> = row.by_errno.iter().map(|one| format!("{} x{}", one.errno, one.count)).collect();
            let mut cells = vec![row.name.clone(), row.count.to_string()];
            cells.extend([row.total_ns, mean_ns, row.max_ns].map(time));
            cells.extend([row.errors.to_string(), errors.join(", ")]);
            table.row(cells);
        }
        table.render(out);
        if self.unpaired > 0 {
            head(out, &format!("  {} entries or exits without the other", self.unpaired));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::system_call_names;

    #[test]
    fn system_calls_have_the_names_of_the_machine_that_recorded() {
        let name = |uname: &str, number| system_call_names(uname)(number);
        assert_eq!(name("Linux node 6.12.0 aarch64", 63), Some("read"));
        assert_eq!(name("Linux node 6.12.0 x86_64", 0), Some("read"));
        assert_eq!(name("Linux node 6.12.0 s390x", 3), None);
        assert_eq!(name("", if cfg!(target_arch = "aarch64") { 63 } else { 0 }), Some("read"));
        assert_eq!(name("", u64::MAX), None);
    }
}
