//! Memory of the kernel and of programs, and functions of the C library.

use super::{Made, Oracle, Row, compare, counts, load, named, sums, whole};

const TIMES: u32 = 25;

/// The C library maps each large allocation by itself.
fn maps(comm: &str) -> Made {
    const LARGE: usize = 64 << 20;
    named(comm, || (0..TIMES).for_each(|_| drop(std::hint::black_box(vec![0u8; LARGE]))));
    Made::events(TIMES)
}

fn faults(comm: &str) -> Made {
    named(comm, || assert!(load::touch_pages(200) >= 0, "faults are counted"));
    Made::events(0)
}

fn pages(comm: &str) -> Made {
    named(comm, || assert!(load::touch_pages(200) >= 0, "faults are counted"));
    Made::events(200)
}

fn threads(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|_| std::thread::spawn(|| ()).join().unwrap()));
    Made::events(TIMES)
}

pub(super) fn allocations(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|n| drop(std::hint::black_box(vec![1u8; 1000 + n as usize]))));
    Made::events(TIMES)
}

/// Asks the kernel to compact all memory.
fn compaction(comm: &str) -> Made {
    named(comm, || std::fs::write("/proc/sys/vm/compact_memory", "1").unwrap());
    Made::events(1)
}

fn nothing(_: &str) -> Made {
    Made::events(0)
}

fn one(_: &str) -> Made {
    Made::events(1)
}

const ROWS: &[Row] = &[
    Row {
        probe: "mmaps",
        metric: "mmaps_total",
        labels: &[("comm", "COMM"), ("file", "false")],
        exact: false,
        oracle: counts("tracepoint:syscalls:sys_exit_mmap /comm == \"COMM\"/"),
        load: maps,
    },
    Row {
        probe: "page_allocations",
        metric: "page_allocations_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:kmem:mm_page_alloc /comm == \"COMM\"/"),
        load: pages,
    },
    Row {
        probe: "page_fragmentation",
        metric: "page_fragmentation_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:kmem:mm_page_alloc_extfrag"),
        load: nothing,
    },
    Row {
        probe: "slab_allocations",
        metric: "slab_allocations_total",
        labels: &[],
        exact: false,
        oracle: whole("tracepoint:kmem:kmem_cache_alloc"),
        load: one,
    },
    Row {
        probe: "file_faults",
        metric: "file_faults_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:filemap:mm_filemap_fault /comm == \"COMM\"/"),
        load: faults,
    },
    Row { probe: "process_memory", metric: "processes", labels: &[], exact: false, oracle: Oracle::None, load: one },
    Row {
        probe: "compaction",
        metric: "compaction_duration_seconds_count",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:compaction:mm_compaction_begin /comm == \"COMM\"/"),
        load: compaction,
    },
    Row {
        probe: "page_migrations",
        metric: "page_migrations_total",
        labels: &[],
        exact: false,
        oracle: sums("tracepoint:migrate:mm_migrate_pages", "args->succeeded"),
        load: nothing,
    },
    Row {
        probe: "kswapd",
        metric: "kswapd_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:vmscan:mm_vmscan_kswapd_wake"),
        load: nothing,
    },
    Row {
        probe: "shrinkers",
        metric: "shrinker_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:vmscan:mm_shrink_slab_start"),
        load: nothing,
    },
    Row {
        probe: "thread_starts",
        metric: "thread_starts_total",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:task:task_newtask /comm == \"COMM\"/"),
        load: threads,
    },
    Row {
        probe: "allocations",
        metric: "allocation_bytes_count",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::None,
        load: allocations,
    },
];

#[test]
#[ignore = "needs root"]
fn root_memory_probes_count_what_bpftrace_and_loads_do() {
    compare("root_memory_probes_count_what_bpftrace_and_loads_do", ROWS);
}
