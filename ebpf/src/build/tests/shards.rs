//! Which shard a CPU writes, as its program finds it.

use super::{compiled, counter, machine, run, target};
use crate::build::build;
use crate::ir::{Module, verify};
use crate::kernel_target::Target;
use crate::program::Limits;
use crate::typed::Probe;

/// A counter whose budget has room for four shards on eight CPUs.
fn four_shards(target: &Target) -> Module {
    let in_budget = |map_bytes: u64| {
        let probe = counter(100);
        let probe = Probe { limits: Limits { map_bytes, ..probe.limits }, ..probe };
        build(probe, target, &Default::default()).ok().filter(|(module, _)| module.layout.tables[0].shards == 4)
    };
    let (module, _) = (1..200).find_map(|n| in_budget(n << 8)).expect("some budget gives four shards");
    verify::verify(&module).unwrap_or_else(|e| panic!("{e:#?}"));
    module
}

/// By CPU, the shard that it wrote.
fn written(module: &Module) -> Vec<usize> {
    let table = &module.layout.tables[0];
    let of = |cpu| {
        let mut m = machine(module);
        m.environment.cpu = cpu;
        run(&mut m, module, &module.funcs[0].name, &[12, 1, 0, 0]);
        let words = m.array(table.values).as_chunks::<8>().0;
        let counted: Vec<usize> = (0..words.len()).filter(|at| words[*at] != [0; 8]).collect();
        assert_eq!(counted.len(), 1, "CPU {cpu}");
        counted[0] / table.slots as usize
    };
    (0..module.layout.cpus).map(of).collect()
}

#[test]
fn cpus_that_share_a_cache_write_one_shard() {
    let on = |caches: &[&[u32]]| Target { caches: caches.iter().map(|c| c.to_vec()).collect(), ..target(8) };
    assert_eq!(written(&four_shards(&target(8))), [0, 1, 2, 3, 0, 1, 2, 3]);
    let module = four_shards(&on(&[&[0, 1, 2, 3], &[4, 5, 6, 7]]));
    assert_eq!((written(&module), module.rodata.len()), (vec![0, 0, 1, 1, 2, 2, 3, 3], 0), "bits of the number say it");
    let module = four_shards(&on(&[&[0, 4, 1, 5], &[2, 6, 3, 7]]));
    assert_eq!((written(&module), module.rodata.len()), (vec![0, 1, 2, 3, 0, 1, 2, 3], 0));
    let module = four_shards(&on(&[&[0, 7, 1, 6], &[2, 5, 3, 4]]));
    assert_eq!((written(&module), module.rodata.len()), (vec![0, 1, 2, 3, 3, 2, 1, 0], 16), "a table says it");
    assert_eq!(module.layout.shard_of[&4], [0, 1, 2, 3, 3, 2, 1, 0]);
}

#[test]
fn as_many_shards_as_cpus_need_no_topology() {
    let with = Target { caches: vec![vec![1, 0]], ..target(2) };
    assert_eq!(compiled(counter(2), &with), compiled(counter(2), &target(2)));
}
