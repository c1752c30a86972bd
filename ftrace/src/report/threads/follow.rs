//! In which state each thread is, event by event.

use super::State;
use crate::report::Happening;
use crate::report::activity::{StateNames, Woken};
use std::collections::{HashMap, HashSet};

/// A time in which a thread was in one state.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub start_ns: u64,
    pub end_ns: u64,
    pub state: State,
    /// Where it ran.
    pub cpu: Option<u32>,
    /// How it was made runnable.
    pub woken: Option<Woken>,
    /// Whether it was seen to end.
    pub is_over: bool,
}

/// What is known of the whole capture.
#[derive(Default)]
pub(super) struct Followed {
    pub comms: HashMap<i32, String>,
    pub switches: bool,
    pub wakeups: bool,
    /// Last event before and first event after records that were lost.
    pub gaps: Vec<(u64, u64)>,
}

/// The state that a thread is in, since when.
struct Since {
    start_ns: u64,
    state: State,
    cpu: Option<u32>,
    woken: Option<Woken>,
}

/// A CPU: what runs on it, as far as it was seen, and its first and last event.
struct Cpu {
    running: Option<i32>,
    /// From here on all its events are known.
    whole_from_ns: u64,
    switched: bool,
    last_ns: u64,
}

/// Which threads were recorded at every switch. The kernel's filter by thread records a switch when one of the two passes, so that the
/// other one may come and leave unseen. Events of system calls pass it for the caller alone.
#[derive(Default)]
pub(super) struct Recorded {
    /// Those whose system calls were recorded.
    callers: HashSet<i32>,
    /// What runs on each CPU, as far as it was seen.
    running: HashMap<u32, i32>,
    /// The two of each switch.
    pairs: HashSet<(i32, i32)>,
    switches: HashMap<i32, Switches>,
}

#[derive(Default)]
struct Switches {
    all: u64,
    /// Before which it came, or left, unseen.
    unseen: u64,
}

impl Switches {
    /// Threads in scope were recorded but for the few switches that the kernel dropped.
    fn passing(&self) -> bool {
        self.unseen * 8 > self.all
    }
}

impl Recorded {
    pub fn take(&mut self, event: &Happening<'_>) {
        if event.lost {
            self.running.remove(&event.cpu);
        }
        if is_of_call(event) {
            self.callers.extend(event.pid);
        }
        if event.name() != "sched_switch" {
            return;
        }
        let (Some(prev), Some(next)) = (event.pid_in("prev_pid"), event.pid_in("next_pid")) else { return };
        for pid in [prev, next] {
            self.switches.entry(pid).or_default().all += 1;
        }
        if let Some(ran) = self.running.insert(event.cpu, next).filter(|ran| *ran != prev) {
            for pid in [ran, prev] {
                self.switches.entry(pid).or_default().unseen += 1;
            }
        }
        self.pairs.insert((prev, next));
    }

    /// The threads; `None` when all were recorded. A thread that switched with one that is not recorded is. Idle CPUs never pass a filter.
    pub fn end(self) -> Option<HashSet<i32>> {
        let is_passing = |pid: i32, switches: &Switches| switches.passing() && !self.callers.contains(&pid);
        if !self.switches.iter().any(|(pid, switches)| is_passing(*pid, switches)) {
            return self.of_all_switches().map(|pid| HashSet::from([pid]));
        }
        let passing =
            |pid: &i32| *pid == 0 || self.switches.get(pid).is_some_and(|switches| is_passing(*pid, switches));
        let both = self.pairs.iter().flat_map(|(prev, next)| [(prev, next), (next, prev)]);
        let beside = both.filter(|(pid, other)| passing(other) && !passing(pid)).map(|(pid, _)| *pid);
        Some(beside.chain(self.callers.iter().copied()).collect())
    }

    /// The only thread that took part in every switch: others that came before its first and after its last contradict nothing.
    fn of_all_switches(&self) -> Option<i32> {
        let (prev, next) = self.pairs.iter().next()?;
        let in_all = |pid: &i32| *pid != 0 && self.pairs.iter().all(|(prev, next)| pid == prev || pid == next);
        match (in_all(prev), in_all(next)) {
            (true, false) => Some(*prev),
            (false, true) => Some(*next),
            _ => None,
        }
    }
}

/// Calls with each piece as it is over.
pub(super) struct Follow<Each> {
    each: Each,
    all: Followed,
    threads: HashMap<i32, Since>,
    cpus: HashMap<u32, Cpu>,
    names: StateNames,
    end_ns: u64,
}

impl<Each: FnMut(i32, &str, Piece)> Follow<Each> {
    pub fn new(each: Each) -> Self {
        Follow {
            each,
            all: Followed::default(),
            threads: HashMap::new(),
            cpus: HashMap::new(),
            names: StateNames::default(),
            end_ns: 0,
        }
    }

    pub fn take(&mut self, event: &Happening<'_>) {
        let time_ns = event.time_ns;
        self.end_ns = self.end_ns.max(time_ns);
        if event.lost {
            self.lose(event);
        }
        let cpu = self.cpus.entry(event.cpu).or_insert(Cpu {
            running: None,
            whole_from_ns: time_ns,
            switched: false,
            last_ns: time_ns,
        });
        cpu.last_ns = time_ns;
        if let Some(pid) = event.pid
            && let Some(comm) = event.comm_of(pid)
            && !self.all.comms.contains_key(&pid)
        {
            self.all.comms.insert(pid, comm.to_owned());
        }
        match event.name() {
            "sched_switch" => self.switch(event),
            "sched_waking" | "sched_wakeup" | "sched_wakeup_new" => self.wake(event),
            _ if is_of_call(event) => self.call(event),
            _ => {}
        }
    }

    /// A thread that makes a system call runs. Where the switch to it is missing, it is taken to run from here on: Linux 6.18 was seen to
    /// record no switch from the idle thread of one CPU.
    fn call(&mut self, event: &Happening<'_>) {
        let Some(pid) = event.pid.filter(|pid| *pid != 0) else { return };
        let Some(cpu) = self.cpus.get_mut(&event.cpu).filter(|cpu| cpu.switched) else { return };
        let Some(ran) = cpu.running.replace(pid).filter(|ran| *ran != pid) else { return };
        self.threads.remove(&ran);
        // How long it had waited for the CPU by then is not known.
        self.leave(pid, event.time_ns, false);
        let since = Since { start_ns: event.time_ns, state: State::Running, cpu: Some(event.cpu), woken: None };
        self.threads.insert(pid, since);
    }

    /// Records of a CPU were lost: what ran there did so until the last event before, and waits may have ended unseen.
    fn lose(&mut self, event: &Happening<'_>) {
        let before = self.cpus.remove(&event.cpu);
        let last_ns = before.as_ref().map_or(event.time_ns, |cpu| cpu.last_ns);
        self.all.gaps.push((last_ns, event.time_ns));
        let ran_here = before.and_then(|cpu| cpu.running);
        let ended: Vec<i32> = self
            .threads
            .iter()
            .filter(|(pid, since)| since.state != State::Running || Some(**pid) == ran_here)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in ended {
            self.leave(pid, last_ns, false);
        }
    }

    fn named(&mut self, event: &Happening<'_>, pid: i32, field: &str) {
        if let Some(comm) = event.text(field)
            && self.all.comms.get(&pid).is_none_or(|known| *known != comm)
        {
            self.all.comms.insert(pid, comm.into_owned());
        }
    }

    /// Ends the state that a thread is in.
    fn leave(&mut self, pid: i32, end_ns: u64, is_over: bool) {
        let Some(Since { start_ns, state, cpu, woken }) = self.threads.remove(&pid) else { return };
        if end_ns > start_ns {
            let comm = self.all.comms.get(&pid).map_or("", String::as_str);
            (self.each)(pid, comm, Piece { start_ns, end_ns, state, cpu, woken, is_over });
        }
    }

    fn switch(&mut self, event: &Happening<'_>) {
        let (Some(prev), Some(next)) = (event.pid_in("prev_pid"), event.pid_in("next_pid")) else { return };
        let (time_ns, number) = (event.time_ns, event.cpu);
        self.all.switches = true;
        self.named(event, prev, "prev_comm");
        self.named(event, next, "next_comm");
        let Some(cpu) = self.cpus.get_mut(&number) else { return };
        let (ran, first) = (cpu.running.replace(next), !std::mem::replace(&mut cpu.switched, true));
        let whole_from_ns = cpu.whole_from_ns;
        if let Some(ran) = ran.filter(|ran| *ran != prev) {
            // Another one came in between.
            self.threads.remove(&ran);
        }
        // Pid 0 is another thread on each CPU, and never waits.
        if prev != 0 {
            let runs = |since: &Since| since.state == State::Running && since.cpu == Some(number);
            if first {
                self.threads.remove(&prev);
                let cpu = Some(number);
                self.threads.insert(prev, Since { start_ns: whole_from_ns, state: State::Running, cpu, woken: None });
            } else if !self.threads.get(&prev).is_some_and(runs) {
                self.threads.remove(&prev);
            }
            self.leave(prev, time_ns, true);
            if let Some(state) = waiting(&self.names.of(event)) {
                self.threads.insert(prev, Since { start_ns: time_ns, state, cpu: None, woken: None });
            }
        }
        if next != 0 {
            if self.threads.get(&next).is_some_and(|since| since.state == State::Running) {
                self.threads.remove(&next);
            }
            self.leave(next, time_ns, true);
            let cpu = Some(number);
            self.threads.insert(next, Since { start_ns: time_ns, state: State::Running, cpu, woken: None });
        }
    }

    fn wake(&mut self, event: &Happening<'_>) {
        let Some(pid) = event.pid_in("pid") else { return };
        self.all.wakeups = true;
        self.named(event, pid, "comm");
        // `sched_wakeup` follows `sched_waking`, perhaps on another CPU: the first tells which thread did it.
        if self.threads.get(&pid).is_some_and(|since| matches!(since.state, State::Running | State::Runnable)) {
            return;
        }
        self.leave(pid, event.time_ns, true);
        let by = event.pid.or_else(|| self.cpus.get(&event.cpu).and_then(|cpu| cpu.running));
        let woken = Some(Woken { time_ns: event.time_ns, by, cpu: event.cpu });
        self.threads.insert(pid, Since { start_ns: event.time_ns, state: State::Runnable, cpu: None, woken });
    }

    pub fn end(mut self) -> Followed {
        let open: Vec<(i32, u64)> = self
            .threads
            .iter()
            .map(|(pid, since)| {
                // One that runs may have left after the last event of its CPU.
                let last_ns = since.cpu.and_then(|cpu| self.cpus.get(&cpu)).map(|cpu| cpu.last_ns);
                (*pid, last_ns.unwrap_or(self.end_ns))
            })
            .collect();
        for (pid, end_ns) in open {
            self.leave(pid, end_ns, false);
        }
        self.all
    }
}

/// Whether it is an event of a system call, which the caller makes on its CPU.
fn is_of_call(event: &Happening<'_>) -> bool {
    event.name().starts_with("sys_enter") || event.name().starts_with("sys_exit")
}

/// The state of a thread that left a CPU, by the kernel's letters; none when it has ended.
fn waiting(letters: &str) -> Option<State> {
    match letters.chars().next() {
        Some('R') => Some(State::Runnable),
        Some('D') => Some(State::Blocked),
        Some('X' | 'Z' | 'x') => None,
        _ => Some(State::Sleeping),
    }
}
