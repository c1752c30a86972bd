//! Histograms, bound by bound: each value or time that bpftrace has of the same events, sorted into the buckets of the probe.

use super::files::{disk_reads, locks, syncs};
use super::memory::allocations;
use super::network::{connects_anywhere, flow, local_connects, nothing_but_others};
use super::scheduler::{a_moment, sleeps as woken};
use super::syscalls::{ioctls, sleeps};
use super::{Made, Oracle, Row, compare, load, named, times, values};
use std::time::Duration;

const CALLS: u32 = 40;

fn receives(comm: &str) -> Made {
    let (address, server) = load::delayed_echo(Duration::from_millis(1));
    load::ask(address, CALLS, comm);
    server.join().unwrap();
    Made::events(CALLS)
}

fn waits(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| std::thread::park_timeout(Duration::from_millis(1))));
    Made::events(CALLS)
}

fn calls(comm: &str) -> Made {
    named(comm, || load::pselect_sleeps(CALLS, Duration::from_micros(300)));
    Made::events(CALLS)
}

/// Each raises a softirq: many more than a scrape's own packets.
fn datagrams(_: &str) -> Made {
    load::datagrams(10_000);
    Made::events(10_000)
}

/// Times that a thread of this name spends in a system call.
macro_rules! times_in {
    ($call:literal) => {
        times(
            concat!("tracepoint:syscalls:sys_enter_", $call, " /comm == \"COMM\"/"),
            concat!("tracepoint:syscalls:sys_exit_", $call, " /comm == \"COMM\"/"),
            "tid",
        )
    };
}

const ROWS: &[Row] = &[
    Row {
        probe: "syscalls",
        metric: "syscall_duration_seconds",
        labels: &[("syscall", "pselect6")],
        exact: false,
        oracle: times("tracepoint:syscalls:sys_enter_pselect6", "tracepoint:syscalls:sys_exit_pselect6", "tid"),
        load: calls,
    },
    Row {
        probe: "sleeps",
        metric: "sleep_duration_seconds",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: times_in!("clock_nanosleep"),
        load: sleeps,
    },
    Row {
        probe: "ioctls",
        metric: "ioctl_duration_seconds",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: times_in!("ioctl"),
        load: ioctls,
    },
    Row {
        probe: "futex",
        metric: "futex_wait_duration_seconds",
        labels: &[("comm", "COMM"), ("result", "timed_out")],
        exact: true,
        oracle: times_in!("futex"),
        load: waits,
    },
    Row {
        probe: "recvfrom",
        metric: "recv_duration_seconds",
        labels: &[("comm", "COMM"), ("syscall", "recvfrom")],
        exact: true,
        oracle: times_in!("recvfrom"),
        load: receives,
    },
    Row {
        probe: "unix_connect",
        metric: "unix_connect_duration_seconds",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: times_in!("connect"),
        load: local_connects,
    },
    Row {
        probe: "file_locks",
        metric: "file_lock_wait_seconds",
        labels: &[("comm", "COMM"), ("failed", "false")],
        exact: true,
        oracle: times(
            "tracepoint:syscalls:sys_enter_flock /comm == \"COMM\" && (args->cmd & 8) == 0/",
            "tracepoint:syscalls:sys_exit_flock /comm == \"COMM\"/",
            "tid",
        ),
        load: locks,
    },
    Row {
        probe: "syncs",
        metric: "sync_duration_seconds",
        labels: &[("comm", "COMM"), ("syscall", "fdatasync")],
        exact: true,
        oracle: times_in!("fdatasync"),
        load: syncs,
    },
    Row {
        probe: "oncpu",
        metric: "oncpu_turn_seconds",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:sched:sched_switch /args->next_pid != 0/",
            end: "tracepoint:sched:sched_switch /args->prev_comm == \"COMM\"/",
            keys: ["args->next_pid", "args->prev_pid"],
        },
        load: woken,
    },
    Row {
        probe: "softirq",
        metric: "softirq_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times("tracepoint:irq:softirq_entry", "tracepoint:irq:softirq_exit", "cpu"),
        load: datagrams,
    },
    Row {
        probe: "hardirqs",
        metric: "hardirq_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times("tracepoint:irq:irq_handler_entry", "tracepoint:irq:irq_handler_exit", "cpu"),
        load: disk_reads,
    },
    Row {
        probe: "timers",
        metric: "timer_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times("tracepoint:timer:timer_expire_entry", "tracepoint:timer:timer_expire_exit", "cpu"),
        load: a_moment,
    },
    Row {
        probe: "hrtimers",
        metric: "hrtimer_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times("tracepoint:timer:hrtimer_expire_entry", "tracepoint:timer:hrtimer_expire_exit", "args->hrtimer"),
        load: woken,
    },
    Row {
        probe: "workqueue_duration",
        metric: "workqueue_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times(
            "tracepoint:workqueue:workqueue_execute_start",
            "tracepoint:workqueue:workqueue_execute_end",
            "args->work",
        ),
        load: a_moment,
    },
    Row {
        probe: "workqueue_delay",
        metric: "workqueue_delay_seconds",
        labels: &[],
        exact: false,
        oracle: times(
            "tracepoint:workqueue:workqueue_activate_work",
            "tracepoint:workqueue:workqueue_execute_start",
            "args->work",
        ),
        load: a_moment,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "local_timer_interrupts",
        metric: "local_timer_interrupt_seconds",
        labels: &[],
        exact: false,
        oracle: times("tracepoint:irq_vectors:local_timer_entry", "tracepoint:irq_vectors:local_timer_exit", "cpu"),
        load: a_moment,
    },
    Row {
        probe: "cpu_idle",
        metric: "cpu_idle_seconds",
        labels: &[],
        exact: false,
        oracle: times(
            "tracepoint:power:cpu_idle /args->state != 4294967295/",
            "tracepoint:power:cpu_idle /args->state == 4294967295/",
            "cpu",
        ),
        load: a_moment,
    },
    Row {
        probe: "block_io",
        metric: "block_io_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times(
            "tracepoint:block:block_rq_issue",
            "tracepoint:block:block_rq_complete",
            "args->dev, args->sector",
        ),
        load: disk_reads,
    },
    Row {
        probe: "tcp_connect",
        metric: "tcp_connect_duration_seconds",
        labels: &[],
        exact: false,
        oracle: times(
            "tracepoint:sock:inet_sock_set_state /args->newstate == 2/",
            "tracepoint:sock:inet_sock_set_state /args->oldstate == 2/",
            "args->skaddr",
        ),
        load: connects_anywhere,
    },
    Row {
        probe: "socket_send_sizes",
        metric: "socket_send_size_bytes",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:sock:sock_send_length /args->ret > 0/", "args->ret", 1.0),
        load: flow,
    },
    Row {
        probe: "packets_received",
        metric: "received_packet_bytes",
        labels: &[("device", "lo")],
        exact: false,
        oracle: values("tracepoint:net:netif_receive_skb /str(args->name) == \"lo\"/", "args->len", 1.0),
        load: flow,
    },
    Row {
        probe: "packets_sent",
        metric: "sent_packet_bytes",
        labels: &[("device", "lo")],
        exact: false,
        oracle: values("tracepoint:net:net_dev_start_xmit /str(args->name) == \"lo\"/", "args->len", 1.0),
        load: flow,
    },
    Row {
        probe: "napi",
        metric: "napi_poll_packets",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:napi:napi_poll", "args->work", 1.0),
        load: nothing_but_others,
    },
    Row {
        probe: "tcp_rtt",
        metric: "tcp_rtt_seconds",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:tcp:tcp_probe", "args->srtt", 1e6),
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_window",
        metric: "tcp_congestion_window_segments",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:tcp:tcp_probe", "args->snd_cwnd", 1.0),
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_window",
        metric: "tcp_peer_window_bytes",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:tcp:tcp_probe", "args->snd_wnd", 1.0),
        load: connects_anywhere,
    },
    Row {
        probe: "block_sizes",
        metric: "block_request_size_bytes",
        labels: &[],
        exact: false,
        oracle: values("tracepoint:block:block_rq_issue /args->bytes != 0/", "args->bytes", 1.0),
        load: disk_reads,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "allocations",
        metric: "allocation_bytes",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: values("uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc /comm == \"COMM\"/", "arg0", 1.0),
        load: allocations,
    },
];

#[test]
#[ignore = "needs root"]
fn root_histograms_have_the_buckets_of_bpftraces_values() {
    compare("root_histograms_have_the_buckets_of_bpftraces_values", ROWS);
}
