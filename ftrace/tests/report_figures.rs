//! Reports of trees with published figures, and of trees made so that each rule shows.

mod support;

use kstrobe_ftrace::calls::{Calls, text};
use kstrobe_ftrace::report::{Activity, Asked, Functions, Source, Spread, Waits};
use kstrobe_ftrace::report::{activity, folded, functions, of_marks, slowest, waits};
use support::tree::{ns, tree};

fn asked(root: &str) -> Asked {
    Asked { root: Some(root.to_owned()), ..Asked::default() }
}

fn waits_of(text: &str, root: &str) -> Waits {
    waits(&tree(text, 2000, "client", 1_000_000), &Activity::default(), &asked(root))
}

fn functions_of(text: &str) -> Functions {
    functions(&tree(text, 2000, "client", 0), &Activity::default(), &Asked::default())
}

/// `recvfrom` of a TCP client that waits for its server, as published.
const TCP: &str = "
SyS_recvfrom 6114.798
  tcp_recvmsg 6110.776
    sk_wait_data 6035.833
      schedule_timeout 6026.480
        schedule 6025.900
          __schedule 6025.261
            deactivate_task 8.647
    tcp_prequeue_process 66.997
      tcp_v4_do_rcv 65.568
        tcp_rcv_established 64.584
          __tcp_ack_snd_check 43.640
            tcp_send_ack 43.063
              tcp_transmit_skb 39.282
                ip_queue_xmit 35.114
                  __ip_local_out_sk 3.058
                    nf_hook_slow 2.616
                  ip_output 28.301
                    dev_queue_xmit 25.151
                      sch_direct_xmit 20.085
                        start_xmit[virtio_net] 17.381
                          virtqueue_kick[virtio_ring] 6.904
                            vp_notify[virtio_pci] 5.866
    release_sock 2.347
";

#[test]
fn a_tcp_receive_waits_for_its_server() {
    let report = waits_of(TCP, "recvfrom");
    assert_eq!((report.count, report.open), (1, 0));
    assert_eq!(report.total_ns, 6_114_798);
    assert_eq!(report.waited_ns, 6_025_261);
    assert_eq!(report.worked_ns, 89_537);
    let call = &report.calls[0];
    assert_eq!(call.waited_permille, 985);
    assert_eq!(call.source, Source::Calls);
    assert_eq!(report.causes[0].cause, "tcp_recvmsg > sk_wait_data");
    // All work is somewhere, and nowhere twice.
    for rows in [&report.layers, &report.modules, &report.functions] {
        assert_eq!(rows.iter().map(|row| row.self_ns).sum::<u64>(), 89_537);
    }
    let module = |name: &str| report.modules.iter().find(|row| row.name == name).unwrap().self_ns;
    assert_eq!(module("virtio_net"), ns("17.381") - ns("6.904"));
    assert_eq!(module("virtio_ring"), ns("6.904") - ns("5.866"));
    assert_eq!(module("virtio_pci"), ns("5.866"));
    let layer = |name: &str| report.layers.iter().find(|row| row.name == name).unwrap().self_ns;
    // ip_queue_xmit, __ip_local_out_sk and ip_output themselves.
    let ip_ns = ns("35.114") - ns("3.058") - ns("28.301") + ns("3.058") - ns("2.616") + ns("28.301") - ns("25.151");
    assert_eq!(layer("ip"), ip_ns);
    assert_eq!(layer("netfilter"), ns("2.616"));
    let mut text = String::new();
    report.render(&mut text);
    for line in
        ["total        6114.798 us  100.0 %", "waited       6025.261 us   98.5 %", "worked         89.537 us    1.5 %"]
    {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn a_udp_receive_waits_eleven_seconds() {
    let report = waits_of(
        "udp_recvmsg 11280507\n  __skb_wait_for_more_packets 11280460\n    schedule_timeout 11280430\n      __schedule 11280427\n",
        "udp_recvmsg",
    );
    assert_eq!(report.worked_ns, 80_000);
    assert_eq!(report.causes[0].cause, "__skb_wait_for_more_packets");
}

/// The receive softirq of a network card, as published.
const NET_RX: &str = "
net_rx_action 872.356
  e1000_clean[e1000] 866.912
    e1000_clean_rx_irq[e1000] 821.321
      netif_receive_skb 106.790
        __netif_receive_skb_core 101.755
          ip_rcv 99.118
            ip_local_deliver 78.743
              udp_rcv 76.260
                udp_queue_rcv_skb 68.290
                  sock_def_readable 53.066
                    try_to_wake_up 45.922
      e1000_alloc_rx_buffers[e1000] 687.078
";

#[test]
fn refilling_the_ring_is_most_of_a_receive_softirq() {
    let report = functions_of(NET_RX);
    let first = &report.functions[0];
    assert_eq!(
        (first.function.as_str(), first.module.as_str(), first.self_ns),
        ("e1000_alloc_rx_buffers", "e1000", 687_078)
    );
    assert_eq!(report.self_ns, 872_356);
    let module = report.modules.iter().find(|row| row.module == "e1000").unwrap();
    // From entry into the module on; what the kernel did for it is not its own.
    assert_eq!((module.count, module.total_ns, module.self_ns), (3, 866_912, 866_912 - 106_790));
    let mut text = String::new();
    report.render(&mut text, 3);
    assert!(text.contains("78.8 %"), "{text}");
    assert!(text.contains("and 9 more"), "{text}");
    let report = waits_of(NET_RX, "net_rx_action");
    assert_eq!((report.waited_ns, report.interrupted_ns, report.worked_ns), (0, 0, 872_356));
}

#[test]
fn a_page_fault_is_half_of_a_read() {
    let text = "
SyS_read 56.499
  vfs_read 55.277
    xfs_file_aio_read 41.959
      generic_file_aio_read 36.860
        file_read_actor 28.902
          do_page_fault 27.703
            handle_mm_fault 23.584
              alloc_pages_vma 10.248
";
    let report = waits_of(text, "read");
    let memory = report.layers.iter().find(|row| row.name == "memory").unwrap();
    assert_eq!(memory.self_ns, 27_703);
    assert_eq!(memory.self_ns * 100 / report.worked_ns, 49);
}

#[test]
fn times_of_one_function_are_summed() {
    let text = "SyS_open 4.743\nSyS_open 10.535\nSyS_open 8.337\n";
    let row = &functions_of(text).functions[0];
    assert_eq!((row.count, row.total_ns, row.avg_ns, row.min_ns, row.max_ns), (3, 23_615, 7_871, 4_743, 10_535));
    let spread = Spread::of(vec![129_886, 104_673]);
    assert_eq!((spread.total_ns, spread.avg_ns(), spread.max_ns, spread.min_ns), (234_559, 117_279, 129_886, 104_673));
}

#[test]
fn a_recursion_is_counted_once() {
    let report = functions_of("a 10\n  b 8\n    a 5\n      a 1\n  a 1\n");
    let row = |name: &str| report.functions.iter().find(|row| row.function == name).unwrap();
    assert_eq!((row("a").count, row("a").total_ns, row("a").self_ns), (4, 10_000, 7_000));
    assert_eq!((row("b").total_ns, row("b").self_ns), (8_000, 3_000));
}

#[test]
fn an_interrupt_is_neither_wait_nor_work() {
    let text = "
__x64_sys_recvfrom 1000
  tcp_recvmsg 900
    irq_enter_rcu 5
    __sysvec_apic_timer_interrupt 95
      hrtimer_interrupt 90
    handler[card] 50 !
    irq_exit_rcu 100
      schedule 60
    schedule 500
      sysvec_apic_timer_interrupt 40
      blk_flush_plug 30
        schedule 20
";
    let report = waits_of(text, "recvfrom");
    // The switch at an interrupt's end is a wait; the interrupt in a wait is part of it.
    assert_eq!(report.waited_ns, 560_000);
    assert_eq!(report.interrupted_ns, 190_000);
    assert_eq!(report.worked_ns, 250_000);
    let worked = |name: &str| report.functions.iter().find(|row| row.name == name).map(|row| row.self_ns);
    assert_eq!(worked("tcp_recvmsg"), Some(150_000));
    assert_eq!(worked("__x64_sys_recvfrom"), Some(100_000));
    assert_eq!(worked("handler [card]"), None);
    let causes: Vec<&str> = report.causes.iter().map(|row| row.cause.as_str()).collect();
    assert_eq!(causes, ["tcp_recvmsg", "tcp_recvmsg > irq_exit_rcu"]);
}

#[test]
fn a_call_without_an_end_is_a_lower_bound() {
    let mut calls = tree("first 100\nrecv {\n  look 10\n  schedule {\n", 7, "waiter", 0);
    // Another thread is the last that is seen.
    let last = tree("other 10\n", 8, "other", 5_000_000);
    let (function, mut call) = (calls.names.id("other"), last.calls[0].clone());
    (call.function, call.task) = (Some(function), None);
    calls.calls.push(call);
    let report = waits(&calls, &Activity::default(), &asked("recv"));
    assert_eq!((report.count, report.open), (1, 1));
    assert_eq!(report.total_ns, 5_010_000 - 100_000);
    assert_eq!(report.waited_ns, 5_010_000 - 110_000);
    assert_eq!(report.worked_ns, 10_000);
    let mut text = String::new();
    report.render(&mut text);
    assert!(text.contains(">= 4910.000 us"), "{text}");
    assert!(text.contains("1 of them did not end"), "{text}");
    // When records were lost, it may have ended unseen: only what was seen counts.
    calls.damage.lost = 1;
    let report = waits(&calls, &Activity::default(), &asked("recv"));
    assert_eq!((report.total_ns, report.waited_ns, report.open), (10_000, 0, 1));
}

/// Parts of a text in another order: the thread comes back before it left.
const BACKWARDS: &str = "
# tracer: function_graph
    1.000100 |   1)     sh-124     |               |  tcp_recvmsg() {
    1.000200 |   1)     sh-124     |               |    schedule() {
    1.000300 |   1)     sh-124     |               |      /* sched_switch: prev_comm=sh prev_pid=124 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120 */
    1.000150 |   1)    <idle>-0    |               |  /* sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=sh next_pid=124 next_prio=120 */
    1.000500 |   1)     sh-124     | ! 300.000 us  |    }
    1.000600 |   1)     sh-124     | ! 500.000 us  |  }
";

#[test]
fn switches_of_a_disordered_text_are_not_believed() {
    let calls = text::parse(BACKWARDS);
    let seen = activity(of_marks(&calls));
    assert!(seen.spells.iter().any(|spell| spell.back.unwrap().0 < spell.begin_ns()), "{:?}", seen.spells);
    let report = waits(&calls, &seen, &asked("tcp_recvmsg"));
    assert_eq!((report.count, report.waited_ns, report.worked_ns), (1, 300_000, 200_000));
    assert_eq!(report.calls[0].source, Source::Calls);
}

#[test]
fn without_the_root_nothing_is_said() {
    let mut text = String::new();
    waits_of(TCP, "no_such_function").render(&mut text);
    assert_eq!(text, "Wait against work: 0 calls of no_such_function\n  no such call was recorded\n");
    text.clear();
    waits(&Calls::default(), &Activity::default(), &Asked::default()).render(&mut text);
    assert_eq!(text, "Wait against work: 0 calls of all outermost functions\n  no such call was recorded\n");
}

#[test]
fn trees_have_limits() {
    let report = slowest(&tree(TCP, 7, "client", 0), &Activity::default(), &Asked { depth: 2, ..asked("recvfrom") });
    let shown: Vec<&str> = report.calls[0].tree.iter().map(|line| line.function.as_str()).collect();
    assert_eq!(shown, ["SyS_recvfrom", "tcp_recvmsg", "sk_wait_data", "tcp_prequeue_process", "release_sock"]);
    assert_eq!(report.calls[0].left_out, 18);
    // A tree as deep as nobody's: nothing recurses.
    let mut deep = Calls::default();
    let line = tree("f 1\n", 1, "deep", 0);
    for at in 0..200_000_u32 {
        let mut call = line.calls[0].clone();
        call.function = Some(deep.names.id("f"));
        call.task = None;
        call.parent = at.checked_sub(1).map(kstrobe_ftrace::calls::CallId);
        call.children = if at + 1 < 200_000 { vec![kstrobe_ftrace::calls::CallId(at + 1)] } else { Vec::new() };
        deep.calls.push(call);
    }
    deep.roots.push(kstrobe_ftrace::calls::CallId(0));
    let report = waits(&deep, &Activity::default(), &Asked::default());
    assert_eq!((report.count, report.total_ns, report.worked_ns), (1, 1000, 1000));
    let stacks = folded(&deep, &Activity::default(), &Asked::default());
    assert_eq!((stacks.len(), stacks[0].0.len(), stacks[0].1), (1, 512, 1000));
}

#[test]
fn stacks_hold_all_time_once() {
    let stacks = folded(&tree(TCP, 7, "client", 0), &Activity::default(), &Asked::default());
    assert_eq!(stacks.iter().map(|(_, ns)| ns).sum::<u64>(), 6_114_798);
    let wait = stacks.iter().find(|(stack, _)| stack.last().is_some_and(|name| &**name == "__schedule")).unwrap();
    assert_eq!(
        wait.0.iter().map(|name| &**name).collect::<Vec<_>>().join(";"),
        "SyS_recvfrom;tcp_recvmsg;sk_wait_data;schedule_timeout;schedule;__schedule"
    );
    assert_eq!(wait.1, 6_025_261 - 8_647);
}
