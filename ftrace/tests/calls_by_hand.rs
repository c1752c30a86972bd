//! Trees of calls from hand-made records: what recordings do not have, or not on purpose.

mod support;

use kstrobe_ftrace::calls::build::{Options, build};
use kstrobe_ftrace::calls::{Calls, Damage, Ends};
use proptest::prelude::*;
use support::graph::{Made, VETH, address, record};

fn built(made: &Made) -> Calls {
    build(&made.trace(), Options::default())
}

/// A line per call: indent, name, `{` without an exit, `}` without an entry, `!` of an interrupt, start, duration.
fn outline(calls: &Calls) -> Vec<String> {
    let mut lines = Vec::new();
    for root in &calls.roots {
        for (id, depth) in calls.tree(*root) {
            let call = &calls[id];
            let name = &calls.names[call.function.unwrap()];
            let ends = ["", " {", " }"][call.ends as usize];
            let interrupt = if call.interrupt { " !" } else { "" };
            let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
            let (start, duration) = (number(call.start_ns), number(call.duration_ns));
            lines.push(format!("{}{name}{ends}{interrupt} {start} {duration}", "  ".repeat(depth)));
        }
    }
    lines
}

#[test]
fn calls_nest_by_task_not_by_cpu() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b');
    // Another task on the same CPU, then the first on the other CPU.
    made.enter(0, 120, 8, 0, 'a').exit(0, 130, 8, 0, 'a', (119, 129));
    made.exit(1, 140, 7, 1, 'b', (109, 139)).exit(1, 150, 7, 0, 'a', (99, 149));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a 99 50", "  b 109 30", "a 119 10"]);
    assert_eq!(calls.damage, Damage::default());
    let comms: Vec<_> =
        calls.calls.iter().map(|call| call.task.unwrap().comm.map(|comm| &*calls.names[comm])).collect();
    assert_eq!(comms, [Some("seven"), Some("seven"), None]);
    assert_eq!(calls.calls.iter().map(|call| call.cpu.unwrap()).collect::<Vec<_>>(), [0, 0, 0]);
}

#[test]
fn idle_tasks_are_one_for_each_cpu() {
    let mut made = Made::new();
    made.enter(0, 100, 0, 0, 'a').enter(1, 110, 0, 0, 'b');
    made.exit(0, 120, 0, 0, 'a', (100, 120)).exit(1, 130, 0, 0, 'b', (110, 130));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a 100 20", "b 110 20"]);
    assert_eq!(calls.damage, Damage::default());
    assert_eq!(&*calls.names[calls.calls[1].task.unwrap().comm.unwrap()], "<idle>");
}

#[test]
fn exits_without_entries_have_what_lies_deeper_before_them() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 5, 'b').exit(0, 110, 7, 5, 'b', (100, 110));
    made.exit(0, 120, 7, 4, 'c', (90, 120));
    made.enter(0, 130, 7, 4, 'b').exit(0, 140, 7, 4, 'b', (130, 140));
    made.exit(0, 150, 7, 3, 'a', (80, 150));
    made.enter(0, 160, 7, 3, 'b').exit(0, 170, 7, 3, 'b', (160, 170));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a } 80 70", "  c } 90 30", "    b 100 10", "  b 130 10", "b 160 10"]);
    assert_eq!(calls.damage, Damage { no_entry: 2, ..Damage::default() });
}

#[test]
fn entries_without_exits_end_where_the_next_call_shows_it() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').enter(0, 120, 7, 2, 'c');
    // Both `c` and `b` are over.
    made.enter(0, 130, 7, 1, 'c').exit(0, 140, 7, 1, 'c', (130, 140));
    // Another function's exit at a depth where `b` is open.
    made.enter(0, 150, 7, 1, 'b').exit(0, 160, 7, 1, 'c', (155, 160));
    let calls = built(&made);
    assert_eq!(
        outline(&calls),
        ["a { 100 ?", "  b { 110 ?", "    c { 120 ?", "  c 130 10", "  b { 150 ?", "  c } 155 5"]
    );
    assert_eq!(calls.damage, Damage { no_exit: 3, no_entry: 1, open: 1, ..Damage::default() });
}

#[test]
fn callers_that_are_missing_leave_the_call_to_the_nearest() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 3, 'c').exit(0, 120, 7, 3, 'c', (110, 120));
    made.exit(0, 130, 7, 0, 'a', (100, 130));
    assert_eq!(outline(&built(&made)), ["a 100 30", "  c 110 10"]);
}

#[test]
fn after_a_loss_only_the_kernels_times_pair_an_exit() {
    // The exit is of the very call, as it began before the entry was recorded.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').lose(0, Some(9)).exit(0, 500, 7, 0, 'a', (99, 499));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a 99 400"]);
    assert_eq!(calls.damage, Damage { lost: 9, ..Damage::default() });
    // The exit is of another call of the same function.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').lose(0, None).exit(0, 500, 7, 0, 'a', (450, 499));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a { 100 ?", "a } 450 49"]);
    assert_eq!(calls.damage, Damage { lost: 1, no_exit: 1, no_entry: 1, ..Damage::default() });
    // Nobody can tell.
    let mut made = Made::new_kernel();
    made.enter(0, 100, 7, 0, 'a').lose(0, None).new_exit(0, 500, 7, 0, 'a', 0);
    assert_eq!(outline(&built(&made)), ["a { 100 ?", "a } ? ?"]);
}

#[test]
fn what_came_after_a_loss_is_not_in_calls_that_ended_there() {
    // `c` is in the call of `v`, of which only the end was recorded; times or the place of the loss tell.
    let expected = ["a { 100 ?", "  b 110 10", "veth_xmit } 200 200", "  c 300 10"];
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').exit(0, 120, 7, 1, 'b', (110, 120)).lose(0, None);
    made.enter(0, 300, 7, 1, 'c').exit(0, 310, 7, 1, 'c', (300, 310)).exit(0, 400, 7, 0, 'v', (200, 400));
    assert_eq!(outline(&built(&made)), expected);
    let mut made = Made::new_kernel();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').new_exit(0, 120, 7, 1, 'b', 0).lose(0, None);
    made.enter(0, 300, 7, 1, 'c').new_exit(0, 310, 7, 1, 'c', 0).new_exit(0, 400, 7, 0, 'v', 0);
    assert_eq!(outline(&built(&made)), [expected[0], expected[1], "veth_xmit } ? ?", expected[3]]);
    // Two open calls that ended there; nobody knows who called `c`.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').lose(0, None);
    made.enter(0, 300, 7, 2, 'c').exit(0, 310, 7, 2, 'c', (300, 310));
    made.enter(0, 400, 7, 0, 'a').exit(0, 410, 7, 0, 'a', (400, 410));
    assert_eq!(outline(&built(&made)), ["a { 100 ?", "  b { 110 ?", "c 300 10", "a 400 10"]);
    // A call that is seen to have been open all the time vouches for its callers.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').lose(0, None).enter(0, 300, 7, 2, 'c');
    made.exit(0, 310, 7, 2, 'c', (300, 310)).exit(0, 400, 7, 1, 'b', (110, 400)).exit(0, 500, 7, 0, 'a', (100, 500));
    assert_eq!(outline(&built(&made)), ["a 100 400", "  b 110 290", "    c 300 10"]);
}

#[test]
fn a_loss_on_another_cpu_is_one_when_the_task_was_there() {
    let mut made = Made::new_kernel();
    // CPU 1 lost records while the task stayed on CPU 0.
    made.enter(0, 100, 7, 0, 'a').lose(1, Some(5)).enter(1, 200, 8, 0, 'b').new_exit(1, 210, 8, 0, 'b', 0);
    made.new_exit(0, 300, 7, 0, 'a', 0);
    assert_eq!(outline(&built(&made)), ["a 100 200", "b 200 10"]);
    // It came to CPU 1 after that.
    let mut made = Made::new_kernel();
    made.enter(0, 100, 7, 0, 'a').lose(1, Some(5)).enter(1, 200, 8, 0, 'b').new_exit(1, 210, 8, 0, 'b', 0);
    made.new_exit(1, 300, 7, 0, 'a', 0);
    assert_eq!(outline(&built(&made)), ["a { 100 ?", "b 200 10", "a } ? ?"]);
    // CPU 1 overwrote what was before its first record.
    let mut made = Made::new_kernel();
    made.stats[1].overrun = 40;
    made.enter(0, 100, 7, 0, 'a').new_exit(1, 300, 7, 0, 'a', 0);
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a { 100 ?", "a } ? ?"]);
    assert_eq!(calls.damage.lost, 40);
}

#[test]
fn interrupts_are_called_by_what_they_interrupt() {
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'i').exit(0, 120, 7, 1, 'i', (110, 120));
    let hard = |id: u16, depth: u64, more: &[u64]| {
        let more: Vec<u8> = [depth].iter().chain(more).flat_map(|word| word.to_le_bytes()).collect();
        record(id, 8, 7, address(if depth == 1 { 'b' } else { 'c' }), &more)
    };
    made.put(0, 130, &hard(11, 1, &[])).put(0, 140, &hard(11, 2, &[]));
    made.put(0, 150, &hard(10, 2, &[140, 150])).put(0, 160, &hard(10, 1, &[130, 160]));
    made.exit(0, 170, 7, 0, 'a', (100, 170));
    assert_eq!(outline(&built(&made)), ["a 100 70", "  irq_enter_rcu ! 110 10", "  b ! 130 30", "    c 140 10"]);
}

#[test]
fn interrupts_at_the_edge_of_a_call_are_where_their_times_say() {
    // Recorded before the entry of what they interrupt.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 120, 7, 2, 'c').exit(0, 130, 7, 2, 'c', (120, 130));
    made.enter(0, 140, 7, 1, 'b').exit(0, 150, 7, 1, 'b', (110, 150)).exit(0, 160, 7, 0, 'a', (100, 160));
    let calls = built(&made);
    assert_eq!(outline(&calls), ["a 100 60", "  b 110 40", "    c ! 120 10"]);
    assert_eq!(calls.damage, Damage::default());
    // Recorded before the exit of a call that was over.
    let mut made = Made::new();
    made.enter(0, 100, 7, 0, 'a').enter(0, 110, 7, 1, 'b').enter(0, 130, 7, 2, 'c').exit(0, 140, 7, 2, 'c', (130, 140));
    made.exit(0, 150, 7, 1, 'b', (110, 120)).exit(0, 160, 7, 0, 'a', (100, 160));
    assert_eq!(outline(&built(&made)), ["a 100 60", "  b 110 10", "  c ! 130 10"]);
}

#[test]
fn new_kernels_have_arguments_and_results_but_no_times() {
    let mut made = Made::new_kernel();
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    made.put(0, 100, &record(11, 0, 7, VETH, &words(&[0, 1, 0xffff_8880_0000_0000])));
    made.put(0, 110, &record(20, 0, 7, address('b'), &words(&[1, 0x1234])));
    made.new_exit(0, 120, 7, 1, 'b', 0xffff_fff5).new_exit(0, 140, 7, 0, 'v', 0x1f);
    let calls = built(&made);
    assert_eq!(outline(&calls), ["veth_xmit 100 40", "  b 110 10"]);
    assert_eq!(calls.calls[0].arguments.as_deref(), Some("0x1, 0xffff888000000000"));
    assert_eq!(calls.calls[0].module.map(|module| &*calls.names[module]), Some("veth"));
    assert_eq!((calls.calls[1].arguments.as_deref(), calls.calls[1].module), (None, None));
    assert_eq!(calls.calls[0].returned.as_deref(), Some("0x1f"));
    assert_eq!(calls.calls[1].returned.as_deref(), Some("-11"));
}

#[test]
fn other_clocks_pair_as_well() {
    let mut made = Made::new();
    made.clock = "mono";
    // The kernel's times are those of the local clock, far from this one.
    made.enter(0, 5_000_100, 7, 0, 'a').enter(0, 5_000_110, 7, 1, 'b');
    made.exit(0, 5_000_140, 7, 1, 'b', (109, 139)).exit(0, 5_000_150, 7, 0, 'a', (99, 149));
    assert_eq!(outline(&built(&made)), ["a 5000100 50", "  b 5000110 30"]);
}

#[test]
fn marks_stand_in_the_innermost_call_of_their_task() {
    let mut made = Made::new();
    let switch = record(300, 0, 7, 1, &[b"next task\0\0\0\0\0\0\0".as_slice(), &8i32.to_le_bytes()].concat());
    made.enter(0, 100, 7, 0, 'a').put(0, 110, &switch).put(0, 120, &record(5, 0, 8, 0, b"hello\n\0"));
    made.exit(0, 130, 7, 0, 'a', (100, 130)).put(0, 140, &switch);
    let calls = built(&made);
    let marks: Vec<_> = calls.marks.iter().map(|mark| (mark.call, &*mark.event, &*mark.text)).collect();
    let text = "func=1 next=next task to=8";
    assert_eq!(
        marks,
        [(Some(calls.roots[0]), "sched_switch", text), (None, "", "hello"), (None, "sched_switch", text)]
    );
    assert_eq!(calls.marks[0].time_ns, Some(110));
}

#[test]
fn what_cannot_be_understood_is_counted() {
    let mut made = Made::new();
    // A short entry, an unknown event.
    made.put(0, 100, &record(11, 0, 7, 1, &[])).put(0, 110, &record(9999, 0, 7, 1, &[])).enter(0, 120, 7, 0, 'a');
    let calls = built(&made);
    assert_eq!(calls.damage, Damage { not_understood: 2, open: 1, ..Damage::default() });
    // An address where no symbol is.
    let mut made = Made::new();
    made.put(0, 100, &record(11, 0, 7, 0x10, &0u64.to_le_bytes()));
    assert_eq!(outline(&built(&made)), ["0x10 { 100 ?"]);
}

/// Steps of two tasks on two CPUs: entries and exits with and without sense, losses.
fn any_steps() -> impl Strategy<Value = Vec<(u8, usize, i32, u32, usize)>> {
    proptest::collection::vec((0..9u8, 0..2usize, 0..3i32, 0..6u32, 0..4usize), 0..90)
}

proptest! {
    #[test]
    fn any_records_make_trees(steps in any_steps(), new in any::<bool>()) {
        let mut made = if new { Made::new_kernel() } else { Made::new() };
        let (mut entries, mut exits) = (0, 0);
        for (at, (kind, cpu, pid, depth, name)) in steps.into_iter().enumerate() {
            let (time, name) = (100 + 10 * at as u64, ['a', 'b', 'c', 'i'][name]);
            match kind {
                0 => { made.lose(cpu, Some(1)); }
                1..5 => { made.enter(cpu, time, pid, u64::from(depth), name); entries += 1; }
                5.. if new => { made.new_exit(cpu, time, pid, depth, name, 1); exits += 1; }
                _ => { made.exit(cpu, time, pid, depth, name, (time - u64::from(kind) * 7, time - 3)); exits += 1; }
            }
        }
        let calls = built(&made);
        let count = |wanted: Ends| calls.calls.iter().filter(|call| call.ends == wanted).count() as u64;
        // Every record is in one call, every call in one tree.
        prop_assert_eq!(count(Ends::Both) + count(Ends::Entry), entries);
        prop_assert_eq!(count(Ends::Both) + count(Ends::Exit), exits);
        prop_assert_eq!((calls.damage.no_exit + calls.damage.open, calls.damage.no_entry), (count(Ends::Entry), count(Ends::Exit)));
        let in_trees: usize = calls.roots.iter().map(|root| calls.tree(*root).count()).sum();
        prop_assert_eq!(in_trees, calls.calls.len());
        for (at, call) in calls.calls.iter().enumerate() {
            prop_assert!(call.children.iter().all(|child| calls[*child].parent.map(|parent| parent.0 as usize) == Some(at)));
        }
    }
}
