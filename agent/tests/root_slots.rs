//! Slots of label sets: many CPUs that put keys in at the same time never give two keys one slot, and lose none.

use kstrobe::config::plan::{ProbePlan, plan};
use kstrobe::kernel::{Loaded, Loader, Wanted, detect, load};
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::{Artifact, Target};
use nix::unistd::{Pid, getpgid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};

/// Calls of threads of this name alone are counted.
const THREAD: &str = "ks-slots";
const SERIES: u32 = 3000;
const THREADS: u64 = 4;

const PROBE: &str = r#"
probe: slots
summary: Calls by their argument.
at: syscall:getpgid:enter
where: comm == "ks-slots"
metrics:
  slots_total: { type: counter, value: 1, labels: { pid: args.pid }, max_series: 3000 }
"#;

fn parsed() -> ProbePlan {
    let file = SourceFile { name: "slots.yaml".into(), text: PROBE.into() };
    let (mut probes, diagnostics) = kstrobe_config::probes(&[Arc::new(file)]);
    assert!(diagnostics.is_empty(), "{:?}", diagnostics.iter().map(|d| d.one_line()).collect::<Vec<_>>());
    plan(probes.remove(0))
}

fn attached(plan: &ProbePlan, target: &Target) -> (Artifact, Loaded) {
    let artifact = plan.compile(target).unwrap_or_else(|refusal| panic!("{}", refusal.reason()));
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    let loaded = load(&mut Loader::new(), &artifact.object, &artifact.module.layout, &programs).unwrap();
    (artifact, loaded)
}

/// Each thread makes one call with each argument, all at the same time.
fn call(arguments: std::ops::Range<i32>) {
    let barrier = Barrier::new(THREADS as usize);
    let calls = || {
        barrier.wait();
        arguments.clone().for_each(|pid| _ = getpgid(Some(Pid::from_raw(pid))));
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            std::thread::Builder::new().name(THREAD.into()).spawn_scoped(scope, calls).unwrap();
        }
    });
}

/// By argument, its slot and how many calls were counted in it; and the calls that found no slot.
fn counted(artifact: &Artifact, loaded: &Loaded) -> (BTreeMap<i32, (u32, u64)>, u64) {
    let table = &artifact.module.layout.tables[0];
    let view = loaded.maps().table(0).unwrap();
    let calls = |slot: u32| -> u64 {
        (0..table.shards).map(|shard| view.values[(shard * table.slots + slot) as usize].load(Relaxed)).sum()
    };
    let of = |(key, slot): &(Box<[u8]>, u32)| (i32::from_ne_bytes(*key.first_chunk().unwrap()), (*slot, calls(*slot)));
    (view.index.iter().map(of).collect(), calls(0))
}

fn slots_differ(keys: &BTreeMap<i32, (u32, u64)>) {
    let slots: BTreeSet<u32> = keys.values().map(|(slot, _)| *slot).collect();
    assert_eq!(slots.len(), keys.len(), "two keys have one slot");
    assert!(slots.iter().all(|slot| (1..=SERIES).contains(slot)), "{slots:?}");
}

fn keys_keep_apart(target: &Target) {
    let (artifact, loaded) = attached(&parsed(), target);
    call(1..2001);
    let (keys, merged) = counted(&artifact, &loaded);
    slots_differ(&keys);
    assert_eq!((keys.len(), merged), (2000, 0));
    assert!(keys.values().all(|(_, calls)| *calls == THREADS), "{keys:?}");
    // A third of them makes room for others.
    let victims: Vec<_> = loaded.maps().table(0).unwrap().index.into_iter().filter(|(_, slot)| slot % 3 == 0).collect();
    assert_eq!(loaded.maps().evict(0, &victims, |_, _| {}).unwrap(), victims.len());
    call(5001..8001);
    let (keys, merged) = counted(&artifact, &loaded);
    slots_differ(&keys);
    assert_eq!(keys.len(), SERIES as usize, "every slot is in use");
    let all: u64 = keys.values().map(|(_, calls)| calls).sum::<u64>() + merged;
    assert_eq!(all, THREADS * (2000 - victims.len() as u64 + 3000), "each call is counted once");
}

#[test]
#[ignore = "needs root"]
fn root_keys_that_come_at_once_get_slots_of_their_own() {
    let wanted = Wanted { syscalls: parsed().syscalls().into_iter().collect(), ..Wanted::default() };
    let mut target = detect(&wanted);
    if target.abilities.atomic_fetch.yes() {
        keys_keep_apart(&target);
    }
    // As on kernels that cannot.
    target.abilities.atomic_fetch = Ability::No("not in this test".into());
    keys_keep_apart(&target);
}
