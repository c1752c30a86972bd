//! Hooks whose programs come and go under load.

use super::objects::{Item, Prog, count, insn, map, object};
use crate::kernel::detect;
use crate::kernel::hooks::{Hooks, Slicing};
use crate::kernel::load::{Loaded, Loader, Program, load};
use kstrobe_ebpf::ir::{Calls, Duty, NumberAt};
use kstrobe_ebpf::layout::{ControlMap, Index, Layout, MapId, MapKind, Table};
use kstrobe_ebpf::typed::Attach;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Calls of getpgid(2), which nothing else makes here; other calls leave early.
fn counter() -> (Vec<u8>, Layout) {
    let maps = vec![
        map("counts", MapKind::Array { mmap: true }, 4, 8, 1),
        map("ks_control", MapKind::Array { mmap: false }, 4, ControlMap::BYTES, 1),
    ];
    let mut items: Vec<Item> = [
        insn(0x79, 2, 1, 8, 0),
        insn(0x15, 2, 0, 2, libc::SYS_getpgid as i32),
        insn(0xb7, 0, 0, 0, 0),
        insn(0x95, 0, 0, 0, 0),
    ]
    .map(Item::Insn)
    .into();
    items.extend(count("counts", 0));
    let bytes = object(&maps, &[Prog { name: "kt_pgid", section: "tp_btf/sys_enter", items }]);
    let (values, index) = (MapId(0), Index::Single);
    let table = Table { values, changes: None, shards: 1, slots: 1, overflow: None, index, key: vec![], cells: vec![] };
    let control = Some(ControlMap { map: MapId(1) });
    (bytes, Layout { cpus: 1, maps, tables: vec![table], control, ..Layout::default() })
}

/// As many programs of one kind as wanted at one hook; `calls` says whether the dispatcher's table has them.
struct Lab {
    loader: Loader,
    object: (Vec<u8>, Layout),
}

impl Lab {
    fn new() -> Lab {
        Lab { loader: Loader::new(), object: counter() }
    }

    fn hooks(&self) -> Arc<Hooks> {
        self.loader.shared().hooks.clone()
    }

    fn add(&mut self, narrow: bool) -> Loaded {
        self.add_one(narrow, Duty::Always)
    }

    fn add_weighted(&mut self) -> Loaded {
        self.add_one(true, Duty::Begins)
    }

    fn add_one(&mut self, narrow: bool, duty: Duty) -> Loaded {
        let numbers = vec![libc::SYS_getpgid as u32];
        let calls = narrow.then_some(Calls { number: NumberAt::Context(8), numbers });
        let program =
            Program { name: "kt_pgid".into(), attach: Attach::TpBtf { event: "sys_enter".into() }, calls, duty };
        let (bytes, layout) = &self.object;
        load(&mut self.loader, bytes, layout, [program]).unwrap()
    }
}

fn counted(loaded: &Loaded) -> u64 {
    loaded.maps().table(0).unwrap().values[0].load(Relaxed)
}

/// Events that the kernel did not run the program for, because it ran already on the CPU: a thread that is preempted in it keeps others
/// from it where tracepoints allow that. None before Linux 7.0, which does.
fn missed(loaded: &Loaded) -> u64 {
    if detect::version(&detect::release()).unwrap() < (7, 0) {
        return 0;
    }
    loaded.programs().unwrap().iter().map(|program| program.misses).sum()
}

/// Runs `work` beside three threads that call getpgid(2) all the time. Returns how many calls they made, at least 300.
fn beside_calls(work: impl FnOnce()) -> u64 {
    beside_bursts(Duration::ZERO, work)
}

/// The same with a pause after each hundred calls.
fn beside_bursts(pause: Duration, work: impl FnOnce()) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calls = || {
            let mut made = 0;
            loop {
                (0..100).for_each(|_| assert!(nix::unistd::getpgid(None).is_ok()));
                made += 100;
                // After the calls: work may end before a thread begins.
                if stop.load(Relaxed) {
                    return made;
                }
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(calls)).collect();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        let made = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        result.map(|()| made).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
#[ignore = "needs root"]
fn root_the_alarm_is_given_for_many_events_in_a_short_time() {
    let mut lab = Lab::new();
    let _probe = lab.add(false);
    let hooks = lab.hooks();
    let alarm = hooks.alarm().unwrap();
    let mut reader = alarm.reader().unwrap();
    // Calls of the whole machine count as well.
    let hour = Duration::from_secs(3600);
    let mut records_of = |events: u64, within: Duration| {
        alarm.set(events, within);
        let before = hooks.events();
        beside_calls(|| {
            while hooks.events() < before + 4.0 * events as f64 {
                std::thread::yield_now();
            }
        });
        let mut records = 0;
        reader.drain(|_| records += 1);
        records
    };
    // Two CPUs may give it at once.
    assert!((1..=2).contains(&records_of(20_000, hour)));
    assert_eq!(records_of(20_000, Duration::ZERO), 0, "events in a longer time");
    assert!((1..=2).contains(&records_of(20_000, hour)), "set again");
    alarm.clear();
    beside_calls(|| ());
    reader.drain(|_| panic!("not set"));
}

#[test]
#[ignore = "needs root"]
fn root_programs_that_come_and_go_cost_others_no_event() {
    let mut lab = Lab::new();
    let canaries = [lab.add(false), lab.add(true)];
    let changes = if std::env::var_os("KSTROBE_LAB").is_some() { 100 } else { 1000 };
    let (mut others, mut state) = (Vec::new(), 1u32);
    let hooks = lab.hooks();
    let made = beside_calls(|| {
        for _ in 0..changes {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (what, which) = (state >> 30, (state >> 8) as usize);
            match (what, others.len()) {
                (0 | 1, 0..8) | (_, 0) => others.push(lab.add(what == 0)),
                (2, n) => drop(others.swap_remove(which % n)),
                (_, n) => {
                    // Several changes at once.
                    let batch = hooks.batch();
                    drop(others.swap_remove(which % n));
                    others.push(lab.add(true));
                    drop(batch);
                }
            }
            if which % 4 == 0 {
                hooks.measure();
            }
        }
    });
    for canary in &canaries {
        let (counted, missed) = (counted(canary), missed(canary));
        let programs = others.len() + 2;
        assert!((made - missed..=made).contains(&counted), "{counted} of {made}, {missed} missed, {programs} programs");
    }
    assert_eq!(lab.hooks().sizes(), [("tp_btf:sys_enter".to_owned(), others.len() + 2)], "one entry");
    drop((canaries, others));
    assert_eq!(lab.hooks().sizes(), [], "nothing is left");
}

#[test]
#[ignore = "needs root"]
fn root_a_suspended_program_leaves_others_running() {
    let mut lab = Lab::new();
    let call = |times: u64| (0..times).for_each(|_| assert!(nix::unistd::getpgid(None).is_ok()));
    let (mut first, second) = (lab.add(true), lab.add(true));
    call(10);
    first.detach();
    call(10);
    assert_eq!([counted(&first), counted(&second)], [10, 20]);
    first.attach(&mut crate::kernel::attach::Attacher::new()).unwrap();
    call(10);
    drop(second);
    call(10);
    assert_eq!(counted(&first), 30, "alone at its hook now");
    first.detach();
    call(10);
    assert_eq!(counted(&first), 30, "suspended while alone");
    let third = lab.add(false);
    call(10);
    assert_eq!([counted(&first), counted(&third)], [30, 10]);
}

#[test]
#[ignore = "needs root"]
fn root_a_hook_that_rests_misses_nothing_that_must_be_seen() {
    let mut lab = Lab::new();
    let (wanting, tolerant) = (lab.add_weighted(), lab.add_weighted());
    let times = |loaded: &Loaded| loaded.maps().control().unwrap().times();
    let part_of = |made: u64, before: u64| (counted(&wanting) - before) as f64 / made as f64;
    let seconds = |seconds| move || std::thread::sleep(Duration::from_secs(seconds));
    // A load that goes as fast as it can is slower while it is looked at.
    let bursts = |length| beside_bursts(Duration::from_millis(1), seconds(length));
    let most = if std::env::var_os("KSTROBE_LAB").is_some() { 0.75 } else { 0.25 };
    let is_eighth = |part: f64| (part * 8.0 - 1.0).abs() < most;
    wanting.slice(Slicing::Wanted);
    assert_eq!([times(&wanting), times(&tolerant)], [8, 1], "the other has not said that it may");
    let made = bursts(8);
    assert!(is_eighth(part_of(made, 0)), "{} of {made} calls", counted(&wanting));
    assert_eq!(counted(&tolerant), made, "the hook does not rest for one of its programs");
    tolerant.slice(Slicing::Tolerated);
    assert_eq!([times(&wanting), times(&tolerant)], [8, 8]);
    let before = [&wanting, &tolerant].map(counted);
    let part = part_of(bursts(8), before[0]);
    assert!(is_eighth(part), "{part} of the calls, which are not equally many in each slice");
    assert_eq!(counted(&wanting) - before[0], counted(&tolerant) - before[1]);
    // One that must see all events comes and goes.
    let (mut canaries, mut all) = (Vec::new(), 0);
    for _ in 0..20 {
        let canary = lab.add(true);
        assert_eq!([times(&wanting), times(&tolerant)], [8, 1]);
        let (before, made) = (counted(&tolerant), beside_calls(|| ()));
        assert_eq!((counted(&canary), counted(&tolerant) - before), (made, made));
        all += made;
        drop(canary);
        assert_eq!(times(&wanting), 8);
        canaries.push(made);
    }
    assert!(all > 0 && canaries.len() == 20);
    let before = counted(&wanting);
    let part = part_of(bursts(3), before);
    assert!(part > 0.0 && part < 0.5, "slices go on, with {part} of the calls");
    // A pause, whose end finds the hook at rest.
    let mut canary = lab.add(true);
    canary.detach();
    assert_eq!(times(&wanting), 8, "what is suspended sees nothing anyway");
    canary.attach(&mut crate::kernel::attach::Attacher::new()).unwrap();
    assert_eq!(beside_calls(seconds(1)), counted(&canary));
    drop(canary);
    wanting.slice(Slicing::Tolerated);
    assert_eq!([times(&wanting), times(&tolerant)], [1, 1]);
    let before = counted(&wanting);
    assert_eq!(part_of(beside_calls(seconds(1)), before), 1.0);
    drop((wanting, tolerant));
    assert_eq!(lab.hooks().sizes(), []);
}

#[test]
#[ignore = "needs root"]
fn root_more_programs_than_fit_together_follow_one_another() {
    let mut lab = Lab::new();
    let call = |times: u64| (0..times).for_each(|_| assert!(nix::unistd::getpgid(None).is_ok()));
    // With a map each, of which a dispatcher takes 60. The one in the middle wants all calls, the others one.
    let mut all: Vec<Loaded> = (0..130).map(|at| lab.add(at != 65)).collect();
    let hook = || "tp_btf:sys_enter".to_owned();
    assert_eq!(lab.hooks().sizes(), [60, 60, 10].map(|programs| (hook(), programs)));
    let (canaries, hooks) = ([lab.add(true), lab.add(false)], lab.hooks());
    let made = beside_calls(|| {
        // Those in the middle, those at the hook itself, those at the end, and back again.
        for range in [60..120, 0..60, 0..10] {
            drop(all.drain(range));
            hooks.measure();
        }
        all.extend((0..130).map(|at| lab.add(at % 2 == 0)));
        hooks.measure();
    });
    assert_eq!(canaries.each_ref().map(counted), [made; 2], "each event once");
    let before: Vec<u64> = all.iter().map(counted).collect();
    call(100);
    let counts: Vec<u64> = all.iter().zip(before).map(|(loaded, before)| counted(loaded) - before).collect();
    assert_eq!(counts, vec![100; 130]);
    drop((all, canaries));
    assert_eq!(lab.hooks().sizes(), [], "nothing is left");
}

#[test]
#[ignore = "needs root"]
fn root_a_refused_program_leaves_nine_at_its_hook() {
    let mut lab = Lab::new();
    let good: Vec<Loaded> = (0..9).map(|_| lab.add(true)).collect();
    let maps = counter().1.maps;
    // Reads behind a pointer that the verifier does not know.
    let items = [insn(0x79, 2, 1, 8, 0), insn(0x79, 0, 2, 0, 0), insn(0x95, 0, 0, 0, 0)].map(Item::Insn).into();
    let bad = object(&maps, &[Prog { name: "kt_bad", section: "tp_btf/sys_enter", items }]);
    let attach = Attach::TpBtf { event: "sys_enter".into() };
    let refused = load(&mut lab.loader, &bad, &counter().1, &[("kt_bad".into(), attach)]);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("the kernel refuses program kt_bad"), "{error}");
    (0..100).for_each(|_| assert!(nix::unistd::getpgid(None).is_ok()));
    assert_eq!(good.iter().map(counted).collect::<Vec<_>>(), [100; 9]);
    assert_eq!(lab.hooks().sizes(), [("tp_btf:sys_enter".to_owned(), 9)], "one entry for all");
}

#[test]
#[ignore = "needs root"]
fn root_costs_go_on_when_the_dispatcher_changes() {
    let mut lab = Lab::new();
    let (first, hooks) = (lab.add(true), lab.hooks());
    let used = || first.used().next().map(|(_, _, used)| (used.runs, used.run_ns, used.events));
    let call = || (0..100_000).for_each(|_| assert!(nix::unistd::getpgid(None).is_ok()));
    assert_eq!(used(), None, "its times are not taken yet");
    hooks.measure();
    call();
    let (mut before, mut others) = (used().unwrap(), Vec::new());
    assert!(before.0 > 50_000.0, "{before:?}");
    for change in 0..6 {
        match change % 3 {
            2 => others.clear(),
            n => others.push(lab.add(n == 0)),
        }
        for measured in [false, true] {
            if measured {
                hooks.measure();
                call();
            }
            let now = used().expect("what was counted is there");
            assert!(now.0 >= before.0 && now.1 >= before.1 && now.2 >= before.2, "{change}: {now:?} after {before:?}");
            before = now;
        }
    }
    // One measurement may be below what reading the clock costs, and is 0 then.
    assert!(before.0 > 6.0 * 90_000.0 && before.1 > 0.0, "{before:?}");
}
