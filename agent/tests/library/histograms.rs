//! Histograms, bound by bound: each value or time that bpftrace has of the same events, sorted into the buckets of the probe.

use super::files::{disk_reads, locks, syncs};
use super::memory::allocations;
use super::network::{connects_anywhere, flow, local_connects, nothing_but_others};
use super::scheduler::{a_moment, sleeps as woken};
use super::syscalls::{ioctls, sleeps};
use super::{Made, Oracle, Row, compare, load, named};
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
        Oracle::Times {
            start: concat!("tracepoint:syscalls:sys_enter_", $call, " /comm == \"COMM\"/"),
            end: concat!("tracepoint:syscalls:sys_exit_", $call, " /comm == \"COMM\"/"),
            keys: ["tid", "tid"],
        }
    };
}

const ROWS: &[Row] = &[
    Row {
        probe: "syscalls",
        metric: "syscall_duration_seconds",
        labels: &[("syscall", "pselect6")],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:syscalls:sys_enter_pselect6",
            end: "tracepoint:syscalls:sys_exit_pselect6",
            keys: ["tid", "tid"],
        },
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
        oracle: Oracle::Times {
            start: "tracepoint:syscalls:sys_enter_flock /comm == \"COMM\" && (args->cmd & 8) == 0/",
            end: "tracepoint:syscalls:sys_exit_flock /comm == \"COMM\"/",
            keys: ["tid", "tid"],
        },
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
        oracle: Oracle::Times {
            start: "tracepoint:irq:softirq_entry",
            end: "tracepoint:irq:softirq_exit",
            keys: ["cpu", "cpu"],
        },
        load: datagrams,
    },
    Row {
        probe: "hardirqs",
        metric: "hardirq_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:irq:irq_handler_entry",
            end: "tracepoint:irq:irq_handler_exit",
            keys: ["cpu", "cpu"],
        },
        load: disk_reads,
    },
    Row {
        probe: "timers",
        metric: "timer_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:timer:timer_expire_entry",
            end: "tracepoint:timer:timer_expire_exit",
            keys: ["cpu", "cpu"],
        },
        load: a_moment,
    },
    Row {
        probe: "hrtimers",
        metric: "hrtimer_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:timer:hrtimer_expire_entry",
            end: "tracepoint:timer:hrtimer_expire_exit",
            keys: ["args->hrtimer", "args->hrtimer"],
        },
        load: woken,
    },
    Row {
        probe: "workqueue_duration",
        metric: "workqueue_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:workqueue:workqueue_execute_start",
            end: "tracepoint:workqueue:workqueue_execute_end",
            keys: ["args->work", "args->work"],
        },
        load: a_moment,
    },
    Row {
        probe: "workqueue_delay",
        metric: "workqueue_delay_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:workqueue:workqueue_activate_work",
            end: "tracepoint:workqueue:workqueue_execute_start",
            keys: ["args->work", "args->work"],
        },
        load: a_moment,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "local_timer_interrupts",
        metric: "local_timer_interrupt_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:irq_vectors:local_timer_entry",
            end: "tracepoint:irq_vectors:local_timer_exit",
            keys: ["cpu", "cpu"],
        },
        load: a_moment,
    },
    Row {
        probe: "cpu_idle",
        metric: "cpu_idle_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:power:cpu_idle /args->state != 4294967295/",
            end: "tracepoint:power:cpu_idle /args->state == 4294967295/",
            keys: ["cpu", "cpu"],
        },
        load: a_moment,
    },
    Row {
        probe: "block_io",
        metric: "block_io_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:block:block_rq_issue",
            end: "tracepoint:block:block_rq_complete",
            keys: ["args->dev, args->sector", "args->dev, args->sector"],
        },
        load: disk_reads,
    },
    Row {
        probe: "tcp_connect",
        metric: "tcp_connect_duration_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Times {
            start: "tracepoint:sock:inet_sock_set_state /args->newstate == 2/",
            end: "tracepoint:sock:inet_sock_set_state /args->oldstate == 2/",
            keys: ["args->skaddr", "args->skaddr"],
        },
        load: connects_anywhere,
    },
    Row {
        probe: "socket_send_sizes",
        metric: "socket_send_size_bytes",
        labels: &[],
        exact: false,
        oracle: Oracle::Values { at: "tracepoint:sock:sock_send_length /args->ret > 0/", value: "args->ret", per: 1.0 },
        load: flow,
    },
    Row {
        probe: "packets_received",
        metric: "received_packet_bytes",
        labels: &[("device", "lo")],
        exact: false,
        oracle: Oracle::Values {
            at: "tracepoint:net:netif_receive_skb /str(args->name) == \"lo\"/",
            value: "args->len",
            per: 1.0,
        },
        load: flow,
    },
    Row {
        probe: "packets_sent",
        metric: "sent_packet_bytes",
        labels: &[("device", "lo")],
        exact: false,
        oracle: Oracle::Values {
            at: "tracepoint:net:net_dev_start_xmit /str(args->name) == \"lo\"/",
            value: "args->len",
            per: 1.0,
        },
        load: flow,
    },
    Row {
        probe: "napi",
        metric: "napi_poll_packets",
        labels: &[],
        exact: false,
        oracle: Oracle::Values { at: "tracepoint:napi:napi_poll", value: "args->work", per: 1.0 },
        load: nothing_but_others,
    },
    Row {
        probe: "tcp_rtt",
        metric: "tcp_rtt_seconds",
        labels: &[],
        exact: false,
        oracle: Oracle::Values { at: "tracepoint:tcp:tcp_probe", value: "args->srtt", per: 1e6 },
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_window",
        metric: "tcp_congestion_window_segments",
        labels: &[],
        exact: false,
        oracle: Oracle::Values { at: "tracepoint:tcp:tcp_probe", value: "args->snd_cwnd", per: 1.0 },
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_window",
        metric: "tcp_peer_window_bytes",
        labels: &[],
        exact: false,
        oracle: Oracle::Values { at: "tracepoint:tcp:tcp_probe", value: "args->snd_wnd", per: 1.0 },
        load: connects_anywhere,
    },
    Row {
        probe: "block_sizes",
        metric: "block_request_size_bytes",
        labels: &[],
        exact: false,
        oracle: Oracle::Values {
            at: "tracepoint:block:block_rq_issue /args->bytes != 0/",
            value: "args->bytes",
            per: 1.0,
        },
        load: disk_reads,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "allocations",
        metric: "allocation_bytes",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::Values {
            at: "uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc /comm == \"COMM\"/",
            value: "arg0",
            per: 1.0,
        },
        load: allocations,
    },
];

#[test]
#[ignore = "needs root"]
fn root_histograms_have_the_buckets_of_bpftraces_values() {
    compare("root_histograms_have_the_buckets_of_bpftraces_values", ROWS);
}
