//! Tasks, their lives, and what interrupts them.

use super::{Made, Oracle, Row, compare, counts, named, whole};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMES: u32 = 30;

pub(super) fn sleeps(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|_| std::thread::sleep(Duration::from_millis(1))));
    Made::events(TIMES)
}

/// From one CPU to another and back; with one CPU there is no move.
fn moves(comm: &str) -> Made {
    let cpus = std::thread::available_parallelism().unwrap().get();
    named(comm, || {
        for n in 0..TIMES as usize {
            let mut set = CpuSet::new();
            set.set(n % cpus.min(2)).unwrap();
            sched_setaffinity(Pid::from_raw(0), &set).unwrap();
        }
    });
    Made::events(if cpus > 1 { TIMES - 1 } else { 0 })
}

/// Programs of this name, made of one that ends at once.
fn programs(comm: &str, program: &str) -> Made {
    let folder = super::support::Folder::new();
    let path = folder.0.join(comm);
    std::fs::copy(super::support::program(program).expect("coreutils"), &path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    (0..TIMES).for_each(|_| assert!(Command::new(&path).status().unwrap().code().is_some(), "it ends by itself"));
    Made::events(TIMES)
}

fn execs(comm: &str) -> Made {
    programs(comm, "true")
}

fn failures(comm: &str) -> Made {
    programs(comm, "false")
}

fn threads(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|_| std::thread::spawn(|| ()).join().unwrap()));
    Made::events(TIMES)
}

/// A signal that is ignored unless a program asks for it.
fn signals(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|_| kill(Pid::this(), Signal::SIGURG).unwrap()));
    Made::events(TIMES)
}

fn busy(comm: &str) -> Made {
    named(comm, || {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) {
            std::hint::black_box(begin);
        }
    });
    // Others may have the CPU meanwhile: some of the half second is its own.
    Made::events(0.05)
}

fn a_second(_: &str) -> Made {
    std::thread::sleep(Duration::from_secs(1));
    Made::events(20)
}

/// Something to be written out, which a work item of the kernel does.
pub(super) fn a_moment(_: &str) -> Made {
    std::thread::sleep(Duration::from_millis(300));
    Made::events(0)
}

const ROWS: &[Row] = &[
    Row {
        probe: "oncpu",
        metric: "oncpu_turn_seconds_count",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:sched:sched_switch /args->prev_comm == \"COMM\"/"),
        load: sleeps,
    },
    Row {
        probe: "context_switches",
        metric: "context_switches_total",
        labels: &[("comm", "COMM"), ("why", "sleep")],
        exact: false,
        oracle: counts("tracepoint:sched:sched_switch /args->prev_comm == \"COMM\" && args->prev_state == 1/"),
        load: sleeps,
    },
    Row {
        probe: "preemptions",
        metric: "preemptions_total",
        labels: &[],
        exact: false,
        // `TASK_REPORT_MAX` (include/linux/sched.h) stands for a task that did not leave by itself.
        oracle: counts("tracepoint:sched:sched_switch /args->prev_pid != 0 && args->prev_state == 256/"),
        load: a_moment,
    },
    Row {
        probe: "migrations",
        metric: "migrations_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:sched:sched_migrate_task /str(args->comm) == \"COMM\"/"),
        load: moves,
    },
    Row {
        probe: "migration_latency",
        metric: "migration_latency_seconds_count",
        labels: &[],
        exact: false,
        oracle: whole("tracepoint:sched:sched_migrate_task"),
        load: a_moment,
    },
    Row {
        probe: "runqueue_slow",
        metric: "runqueue_slow_total",
        labels: &[],
        exact: false,
        oracle: whole("tracepoint:sched:sched_switch"),
        load: a_moment,
    },
    Row {
        probe: "runqueue_length",
        metric: "runqueue_length_tasks_count",
        labels: &[],
        exact: false,
        oracle: Oracle::None,
        load: a_second,
    },
    Row {
        probe: "cpu_usage",
        metric: "cpu_usage_seconds_total",
        labels: &[("comm", "COMM"), ("user", "true")],
        exact: false,
        oracle: Oracle::None,
        load: busy,
    },
    Row {
        probe: "execs",
        metric: "execs_total",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:sched:sched_process_exec /comm == \"COMM\"/"),
        load: execs,
    },
    Row {
        probe: "forks",
        metric: "forks_total",
        labels: &[("comm", "COMM"), ("thread", "true")],
        exact: true,
        oracle: counts("tracepoint:task:task_newtask /comm == \"COMM\"/"),
        load: threads,
    },
    Row {
        probe: "exits",
        metric: "exits_total",
        labels: &[("comm", "COMM"), ("signal", "none"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:sched:sched_process_exit /comm == \"COMM\"/"),
        load: failures,
    },
    Row {
        probe: "exits",
        metric: "process_lifetime_seconds_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:sched:sched_process_exit /comm == \"COMM\"/"),
        load: failures,
    },
    Row {
        probe: "signals",
        metric: "signals_total",
        labels: &[("signal", "SIGURG"), ("sender", "COMM")],
        exact: true,
        oracle: counts("tracepoint:signal:signal_generate /args->sig == 23 && comm == \"COMM\"/"),
        load: signals,
    },
    Row {
        probe: "workqueue_duration",
        metric: "workqueue_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:workqueue:workqueue_execute_start"),
        load: a_moment,
    },
    Row {
        probe: "workqueue_delay",
        metric: "workqueue_delay_seconds_count",
        labels: &[],
        exact: false,
        // Not those that run: `flush_work` queues an item of its own (`insert_wq_barrier`), which is never activated.
        oracle: counts("tracepoint:workqueue:workqueue_activate_work"),
        load: a_moment,
    },
    Row {
        probe: "lock_contention",
        metric: "kernel_lock_wait_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:lock:contention_begin"),
        load: a_moment,
    },
    Row {
        probe: "cpu_idle",
        metric: "cpu_idle_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:power:cpu_idle /args->state != 4294967295/"),
        load: a_moment,
    },
    Row {
        probe: "timers",
        metric: "timer_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:timer:timer_expire_entry"),
        load: a_moment,
    },
    Row {
        probe: "hrtimers",
        metric: "hrtimer_duration_seconds_count",
        labels: &[("function", "hrtimer_wakeup")],
        exact: false,
        oracle: counts("tracepoint:timer:hrtimer_expire_entry /args->function == kaddr(\"hrtimer_wakeup\")/"),
        load: sleeps,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "local_timer_interrupts",
        metric: "local_timer_interrupt_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:irq_vectors:local_timer_entry"),
        load: sleeps,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "interprocessor_interrupts",
        metric: "interprocessor_interrupt_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts(
            "tracepoint:irq_vectors:call_function_entry,tracepoint:irq_vectors:call_function_single_entry,tracepoint:irq_vectors:reschedule_entry",
        ),
        load: a_moment,
    },
    Row {
        probe: "interprocessor_sends",
        metric: "interprocessor_sends_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:ipi:ipi_send_cpu"),
        load: a_moment,
    },
    Row {
        probe: "tasklets",
        metric: "tasklet_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:irq:tasklet_entry"),
        load: a_moment,
    },
];

#[test]
#[ignore = "needs root"]
fn root_scheduler_probes_count_what_bpftrace_and_loads_do() {
    compare("root_scheduler_probes_count_what_bpftrace_and_loads_do", ROWS);
}
