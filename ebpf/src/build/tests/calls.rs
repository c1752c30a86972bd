//! Spans of system calls, and the context switches between their ends.

use super::control::{observations, sampled, set, sums};
use super::*;
use crate::layout::MapId;

/// Address of a task that is not the first's.
const OTHER: u64 = 0xffff_8880_0123_4000;
const FIRST: u64 = 0xffff_8880_0765_8000;

/// Time off the CPU of system calls whose second argument is not 0.
fn waits() -> Probe {
    let mut probe = softirq(Keep::Last);
    probe.name = "waits".into();
    let Shape::Span { start, end, key, off_cpu, filtered, .. } = &mut probe.shape else { panic!("span") };
    (*key, *off_cpu, *filtered) = (SpanKey::Task, true, true);
    let call = |event: &str| Attach::TpBtf { event: event.into() };
    (start[0].attach, end[0].attach) = (call("sys_enter"), call("sys_exit"));
    start[0].by.clear();
    end[0].by.clear();
    let wanted = Kind::Cmp(Cmp::Ne, Box::new(arg(1)), Box::new(node(Kind::Const(0), Ty::U32)));
    start[0].filter = Some(node(wanted, Ty::Bool));
    first(&mut end[0].measures).value = node(Kind::OffCpu, Ty::U64);
    first(&mut end[0].measures).labels = vec![node(Kind::Const(0), Ty::U32)];
    probe
}

struct Tasks {
    module: Module,
    machine: Machine,
}

impl Tasks {
    fn new(module: Module) -> Tasks {
        Tasks { machine: machine(&module), module }
    }

    /// The task enters or leaves a call, a microsecond later.
    fn call(&mut self, task: u64, function: &str, wanted: u64) {
        self.machine.environment.task = task;
        self.machine.environment.now_ns += 1000;
        // Registers of a thread lie on its stack.
        run(&mut self.machine, &self.module, &format!("ks_waits_{function}"), &[task + 0x3f58, wanted]);
    }

    fn switch(&mut self, from: u64, to: u64) {
        self.machine.environment.now_ns += 1000;
        run(&mut self.machine, &self.module, "ks_waits_switch", &[0, from, to]);
    }

    fn map(&self, name: &str) -> MapId {
        let at = self.module.layout.maps.iter().position(|map| map.name == name).expect("map");
        MapId(at as u32)
    }

    /// Spans, and the sum of what was measured of them.
    fn measured(&self) -> (u64, u64) {
        (observations(&self.machine, &self.module), sums(&self.machine, &self.module))
    }

    /// Spans that are counted as open.
    fn open(&self) -> u64 {
        let bytes = self.machine.array(self.map("ks_open_tasks"));
        (0..bytes.len() / 8).map(|at| word(bytes, at)).sum()
    }
}

#[test]
fn time_off_the_cpu_is_that_between_switches() {
    let mut tasks = Tasks::new(compiled(waits(), &target(1)));
    tasks.call(FIRST, "start", 1);
    tasks.switch(FIRST, OTHER);
    tasks.call(OTHER, "start", 1);
    tasks.switch(OTHER, FIRST);
    tasks.call(FIRST, "end", 1);
    assert_eq!(tasks.measured(), (1, 2000));
    tasks.switch(FIRST, OTHER);
    tasks.call(OTHER, "end", 1);
    assert_eq!(tasks.measured(), (2, 4000));
}

#[test]
fn open_spans_of_tasks_are_counted_once() {
    for probe in [compiled(waits(), &target(1)), sampled(waits())] {
        let mut tasks = Tasks::new(probe);
        let mut open = |task, function: &str, wanted| {
            tasks.call(task, function, wanted);
            tasks.open()
        };
        assert_eq!(open(FIRST, "start", 0), 0, "its condition is not met");
        assert_eq!(open(FIRST, "end", 0), 0);
        assert_eq!([open(FIRST, "start", 1), open(OTHER, "start", 1)], [1, 2]);
        assert_eq!(open(FIRST, "start", 1), 2, "its end was not seen");
        assert_eq!([open(FIRST, "end", 1), open(FIRST, "end", 1), open(OTHER, "end", 1)], [1, 1, 0]);
    }
    let mut tasks = Tasks::new(sampled(waits()));
    tasks.call(FIRST, "start", 1);
    set(&mut tasks.machine, &tasks.module, 0, 9_000_000, 0);
    tasks.call(FIRST, "end", 1);
    assert_eq!((tasks.open(), tasks.measured().0), (0, 0), "from before the probe came back");
}

#[test]
fn spans_that_are_passed_over_are_not_open() {
    let mut probe = waits();
    let Shape::Span { start, end, .. } = &mut probe.shape else { panic!("span") };
    // At no system call, chance decides when the state of the last span is at hand.
    let at = |event: &str| Attach::TpBtf { event: event.into() };
    (start[0].attach, end[0].attach) = (at("sched_process_fork"), at("sched_process_exit"));
    let mut tasks = Tasks::new(sampled(probe));
    let taken = |tasks: &mut Tasks, left| set(&mut tasks.machine, &tasks.module, 3, 1, left);
    let mut step = |left, task, function: &str| {
        taken(&mut tasks, left);
        tasks.call(task, function, 1);
        tasks.open()
    };
    assert_eq!([step(0, FIRST, "start"), step(1, OTHER, "start")], [1, 1], "the second is passed over");
    assert_eq!([step(0, OTHER, "start"), step(1, OTHER, "end")], [2, 1]);
    assert_eq!([step(1, FIRST, "start"), step(0, FIRST, "end")], [0, 0], "in the place of one that was open");
    assert_eq!(tasks.measured().0, 4);
}

#[test]
fn chance_decides_before_the_condition_of_a_call() {
    let mut tasks = Tasks::new(sampled(waits()));
    set(&mut tasks.machine, &tasks.module, 3, 1, 2);
    // Two calls are passed over, whether they are wanted or not; the third stands for four.
    for wanted in [0, 1, 1] {
        tasks.call(FIRST, "start", wanted);
        tasks.call(FIRST, "end", wanted);
    }
    assert_eq!((tasks.measured().0, tasks.open()), (4, 0));
}

#[test]
fn threads_that_share_a_mark_lose_no_call() {
    // Their stacks are as far apart as the elements of the map.
    const SAME: u64 = FIRST + ((1 << 14) << 14);
    let mut tasks = Tasks::new(sampled(waits()));
    for task in [FIRST, SAME, FIRST, OTHER] {
        tasks.call(task, "start", 1);
    }
    for (task, ended) in [(SAME, 1), (FIRST, 2), (OTHER, 3)] {
        tasks.call(task, "end", 1);
        assert_eq!(tasks.measured().0, ended);
    }
    for task in [FIRST, SAME] {
        tasks.call(task, "start", 1);
        tasks.call(task, "end", 1);
    }
    assert_eq!((tasks.measured().0, tasks.open()), (5, 0));
}
