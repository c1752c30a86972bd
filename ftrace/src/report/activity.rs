//! When threads were off the CPU, why, and who woke them: from scheduler events.

use super::happening::Happening;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the scheduler's events say.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// Times off the CPU, in the order in which they were over; those that were not over come last.
    pub spells: Vec<Spell>,
    /// Names of threads.
    pub comms: BTreeMap<i32, String>,
    /// Where records were lost, by time and without overlap: what is known of threads begins anew after each.
    pub gaps: Vec<Gap>,
    /// Stacks that [`Out::stack`] points to, the innermost function first.
    pub stacks: Vec<Vec<Arc<str>>>,
    /// Whether there was any `sched_switch`.
    pub switches: bool,
    /// Whether there was any `sched_waking` or `sched_wakeup`.
    pub wakeups: bool,
    /// Times off the CPU that were given up, as records were lost while they lasted.
    pub given_up: u64,
    /// Threads that were woken and went on without being off the CPU.
    pub woken_while_running: u64,
    /// The time of the last event.
    pub end_ns: u64,
    by_pid: HashMap<i32, Vec<usize>>,
}

/// A time in which a thread was off the CPU, or was new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spell {
    /// The thread.
    pub pid: i32,
    /// When it left the CPU; `None` when that was not recorded.
    pub out: Option<Out>,
    /// When it was made runnable; `None` when it was runnable all the time, or that was not recorded.
    pub woken: Option<Woken>,
    /// When it ran again, and on which CPU; `None` when that was not recorded.
    pub back: Option<(u64, u32)>,
}

/// How a thread left the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// When, nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// Which CPU it left.
    pub cpu: u32,
    /// Its state then, in the kernel's letters.
    pub state: Arc<str>,
    /// Index into [`Activity::stacks`].
    pub stack: Option<usize>,
}

/// How a thread was woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Woken {
    /// When, nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The thread that did it, or that an interrupt came upon; `None` when it is not known.
    pub by: Option<i32>,
    /// The CPU that did it.
    pub cpu: u32,
}

/// A time in which records of a CPU were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last event before, nanoseconds of the trace's clock.
    pub from_ns: u64,
    /// The first event after.
    pub to_ns: u64,
}

impl Spell {
    /// The first that was seen of it.
    pub fn begin_ns(&self) -> u64 {
        let out_ns = self.out.as_ref().map(|out| out.time_ns);
        out_ns.or_else(|| self.woken.as_ref().map(|woken| woken.time_ns)).unwrap_or_default()
    }

    /// How long it lasted.
    pub fn off_ns(&self) -> Option<u64> {
        Some(self.back?.0.saturating_sub(self.out.as_ref()?.time_ns))
    }

    /// From being made runnable to running.
    pub fn delay_ns(&self) -> Option<u64> {
        Some(self.back?.0.saturating_sub(self.woken.as_ref()?.time_ns))
    }
}

impl Activity {
    /// Times off the CPU of a thread, by time.
    pub fn of(&self, pid: i32) -> impl Iterator<Item = &Spell> + '_ {
        self.by_pid.get(&pid).into_iter().flatten().map(|at| &self.spells[*at])
    }

    /// Times off the CPU of a thread that may overlap a range, by time.
    pub fn of_within(&self, pid: i32, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &Spell> + '_ {
        let all = self.by_pid.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let later = all.partition_point(|at| self.spells[*at].begin_ns() <= from_ns);
        // They do not overlap one another: only the last that began before can reach into the range.
        let spells = all[later.saturating_sub(1)..].iter().map(|at| &self.spells[*at]);
        spells.take_while(move |spell| spell.begin_ns() < to_ns)
    }

    /// Whether records were lost somewhere in a range.
    pub fn gap_within(&self, from_ns: u64, to_ns: u64) -> bool {
        let first = self.gaps.partition_point(|gap| gap.to_ns <= from_ns);
        self.gaps.get(first).is_some_and(|gap| gap.from_ns < to_ns)
    }

    /// The name of a thread.
    pub fn comm(&self, pid: i32) -> Option<&str> {
        self.comms.get(&pid).map(String::as_str)
    }
}

/// Follows all threads through the events of a capture.
pub fn activity<'a>(events: impl Iterator<Item = Happening<'a>>) -> Activity {
    let mut follow = Follow::default();
    events.for_each(|event| follow.take(&event));
    follow.end()
}

#[derive(Default)]
struct Follow {
    all: Activity,
    /// Per thread the time off the CPU that is not over, in the order of its number.
    open: BTreeMap<i32, Spell>,
    /// What runs on each CPU, and when its last event was.
    running: HashMap<u32, i32>,
    last_ns: HashMap<u32, u64>,
    /// Per CPU the thread whose switch was its last event: a stack may follow.
    switched: HashMap<u32, i32>,
    stacks: HashMap<Vec<Arc<str>>, usize>,
    states: StateNames,
}

impl Follow {
    fn take(&mut self, event: &Happening<'_>) {
        let (time_ns, cpu) = (event.time_ns, event.cpu);
        let before = self.last_ns.insert(cpu, time_ns);
        self.all.end_ns = self.all.end_ns.max(time_ns);
        if event.lost {
            self.all.gaps.push(Gap { from_ns: before.unwrap_or_default(), to_ns: time_ns });
            self.all.given_up += self.open.values().filter(|spell| spell.out.is_some()).count() as u64;
            self.open.clear();
            self.running.remove(&cpu);
        }
        let switched = self.switched.remove(&cpu);
        if let Some(pid) = event.pid
            && let Some(comm) = event.comm_of(pid)
            && !self.all.comms.contains_key(&pid)
        {
            self.all.comms.insert(pid, comm.to_owned());
        }
        match event.name() {
            "sched_switch" => self.switch(event),
            "sched_waking" | "sched_wakeup" | "sched_wakeup_new" => self.wake(event),
            "kernel_stack" => {
                let out = switched.and_then(|pid| self.open.get_mut(&pid)?.out.as_mut());
                if let Some(out) = out {
                    let stack = event.stack();
                    let next = self.stacks.len();
                    let id = *self.stacks.entry(stack).or_insert(next);
                    out.stack = Some(id);
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, event: &Happening<'_>, pid: i32, field: &str) {
        if let Some(comm) = event.text(field)
            && self.all.comms.get(&pid).is_none_or(|known| *known != comm)
        {
            self.all.comms.insert(pid, comm.into_owned());
        }
    }

    fn switch(&mut self, event: &Happening<'_>) {
        let (Some(prev), Some(next)) = (event.pid_in("prev_pid"), event.pid_in("next_pid")) else { return };
        let (time_ns, cpu) = (event.time_ns, event.cpu);
        self.all.switches = true;
        self.running.insert(cpu, next);
        self.switched.insert(cpu, prev);
        self.named(event, prev, "prev_comm");
        self.named(event, next, "next_comm");
        // Pid 0 is another thread on each CPU, and never waits.
        if prev != 0 {
            let state = self.states.of(event);
            let out = Some(Out { time_ns, cpu, state, stack: None });
            match self.open.insert(prev, Spell { pid: prev, out, woken: None, back: None }) {
                // It ran in between, unrecorded: events of other threads were filtered out.
                Some(spell) if spell.out.is_some() => self.close(spell),
                Some(_) => self.all.woken_while_running += 1,
                None => {}
            }
        }
        if next != 0
            && let Some(mut spell) = self.open.remove(&next)
        {
            spell.back = Some((time_ns, cpu));
            self.close(spell);
        }
    }

    fn wake(&mut self, event: &Happening<'_>) {
        let Some(pid) = event.pid_in("pid") else { return };
        self.all.wakeups = true;
        self.named(event, pid, "comm");
        let by = event.pid.or_else(|| self.running.get(&event.cpu).copied());
        let woken = Woken { time_ns: event.time_ns, by, cpu: event.cpu };
        let spell = self.open.entry(pid).or_insert(Spell { pid, out: None, woken: None, back: None });
        // `sched_wakeup` follows `sched_waking`, perhaps on another CPU: the first tells who did it.
        spell.woken.get_or_insert(woken);
    }

    fn close(&mut self, spell: Spell) {
        self.all.by_pid.entry(spell.pid).or_default().push(self.all.spells.len());
        self.all.spells.push(spell);
    }

    fn end(mut self) -> Activity {
        for (_, spell) in std::mem::take(&mut self.open) {
            self.close(spell);
        }
        // CPUs lose records at the same time: what overlaps is one gap.
        self.all.gaps.sort_by_key(|gap| gap.from_ns);
        let gaps = std::mem::take(&mut self.all.gaps);
        for gap in gaps {
            match self.all.gaps.last_mut() {
                Some(last) if last.to_ns >= gap.from_ns => last.to_ns = last.to_ns.max(gap.to_ns),
                _ => self.all.gaps.push(gap),
            }
        }
        let mut stacks: Vec<(Vec<Arc<str>>, usize)> = self.stacks.into_iter().collect();
        stacks.sort_by_key(|(_, id)| *id);
        self.all.stacks = stacks.into_iter().map(|(stack, _)| stack).collect();
        self.all
    }
}

/// In which state a thread left the CPU, in the kernel's letters.
#[derive(Default)]
pub(super) struct StateNames(Option<States>);

impl StateNames {
    /// Of a `sched_switch`.
    pub fn of(&mut self, event: &Happening<'_>) -> Arc<str> {
        // The kernel's text has the letters, records have the bits.
        match event.text("prev_state").filter(|text| text.starts_with(char::is_alphabetic)) {
            Some(letters) => Arc::from(&*letters),
            None => {
                let states = self.0.get_or_insert_with(|| States::of(event.print()));
                states.letters(event.number("prev_state").unwrap_or_default())
            }
        }
    }
}

/// The letters of a kernel's task states, from how it prints them: they changed with 4.14.
struct States {
    letters: Vec<(u64, String)>,
}

impl States {
    fn of(print: &str) -> States {
        let pair = |text: &str| {
            let (number, letter) = text.split('}').next()?.split_once(',')?;
            let number = number
                .trim()
                .strip_prefix("0x")
                .map_or_else(|| number.trim().parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())?;
            Some((number, letter.trim().trim_matches('"').to_owned()))
        };
        let mut letters: Vec<(u64, String)> =
            print.split('{').skip(1).filter_map(pair).filter(|(bit, _)| bit.is_power_of_two()).collect();
        if letters.is_empty() {
            letters = "SDTtXZPI".chars().enumerate().map(|(bit, letter)| (1 << bit, letter.to_string())).collect();
        }
        States { letters }
    }

    fn letters(&self, state: u64) -> Arc<str> {
        let set: Vec<&str> =
            self.letters.iter().filter(|(bit, _)| state & bit != 0).map(|(_, letter)| letter.as_str()).collect();
        let last = self.letters.iter().map(|(bit, _)| *bit).max().unwrap_or_default();
        // The bit above all states: the thread did not want to leave.
        let preempted = if last << 1 & state != 0 { "+" } else { "" };
        let name = if set.is_empty() { "R".to_owned() } else { set.join("|") };
        (name + preempted).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_the_kernel_that_recorded() {
        let new = States::of("");
        for (state, letters) in [(0, "R"), (1, "S"), (2, "D"), (0x80, "I"), (0x100, "R+"), (0x20, "Z"), (3, "S|D")] {
            assert_eq!(&*new.letters(state), letters);
        }
        let old = States::of(
            "\"%s\", __print_flags(REC->prev_state & (2048-1), \"|\", { 1, \"S\"} , { 2, \"D\" }, { 64, \"x\" }, { 1024, \"N\" }) : \"R\", REC->prev_state & 2048 ? \"+\" : \"\"",
        );
        assert_eq!(&*old.letters(2048), "R+");
        assert_eq!(&*old.letters(64), "x");
        assert_eq!(&*old.letters(256), "R");
    }
}
