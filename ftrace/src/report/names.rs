//! What functions are by their names: waits, interrupts, system calls, layers. Names change between kernels; all of them stand here.

use std::sync::LazyLock;

/// Functions that give the CPU away.
const WAITS: &[&str] = &[
    "schedule",
    "__schedule",
    "schedule_timeout",
    "schedule_timeout_interruptible",
    "schedule_timeout_killable",
    "schedule_timeout_uninterruptible",
    "schedule_timeout_idle",
    "schedule_hrtimeout",
    "schedule_hrtimeout_range",
    "schedule_hrtimeout_range_clock",
    "schedule_preempt_disabled",
    "schedule_rtlock",
    "schedule_user",
    "rt_mutex_schedule",
    "io_schedule",
    "io_schedule_timeout",
    "preempt_schedule",
    "preempt_schedule_common",
    "preempt_schedule_irq",
    "preempt_schedule_notrace",
];

/// The first traced functions of interrupts on x86 and arm64. Most kernels do not mark where an interrupt begins.
const INTERRUPTS: &[&str] = &[
    "irq_enter",
    "irq_enter_rcu",
    "irq_exit",
    "irq_exit_rcu",
    "irqentry_exit_cond_resched",
    "raw_irqentry_exit_cond_resched",
    "__hrtimer_rearm_deferred",
    "do_IRQ",
    "common_interrupt",
    "__common_interrupt",
    "handle_irq",
    "smp_apic_timer_interrupt",
    "smp_reschedule_interrupt",
    "smp_call_function_single_interrupt",
    "smp_call_function_interrupt",
    "smp_irq_work_interrupt",
    "scheduler_ipi",
    "gic_handle_irq",
    "el1_interrupt",
    "el0_interrupt",
    "do_handle_IPI",
    "handle_IPI",
    "generic_handle_domain_irq",
    "do_nmi",
    "exc_nmi",
    "default_do_nmi",
];

/// Prefixes of the first traced functions of interrupts.
const INTERRUPT_PREFIXES: &[&str] = &["sysvec_", "__sysvec_", "xen_hvm_callback"];

/// Layers and the prefixes of their functions, spaces between them. The longest prefix counts; a function without one belongs to its caller's layer.
const LAYERS: &[(&str, &str)] = &[
    (
        "syscall",
        "__x64_sys_ __ia32_sys_ __arm64_sys_ __se_sys_ __do_sys_ __sys_ SyS_ sys_ ksys_ do_syscall syscall_ \
         x64_sys_call fdget __fdget sockfd_lookup import_iovec import_single_range import_ubuf",
    ),
    ("security", "security_ selinux_ apparmor_ aa_ bpf_lsm_ smack_ tomoyo_ landlock_ cap_ avc_ label_"),
    (
        "socket",
        "sock_ __sock_ sk_ __sk_ lock_sock release_sock __release_sock inet_recvmsg inet_sendmsg inet6_recvmsg \
         inet6_sendmsg inet_csk skb_ __skb_ kfree_skb __kfree_skb consume_skb alloc_skb __alloc_skb build_skb \
         __build_skb napi_build_skb unix_ netlink_ move_addr_to_",
    ),
    (
        "tcp/udp",
        "tcp_ __tcp_ udp_ __udp_ udpv6_ udp4_ udp6_ tcp4_ tcp6_ bictcp cubictcp bbr_ sctp_ mptcp_ raw_ ping_ icmp",
    ),
    ("ip", "ip_ __ip_ ip6 ipv4_ ipv6_ fib_ fib6_ rt6_ rt_ inet_ arp_ neigh_ dst_ xfrm ndisc_ __inet_"),
    ("netfilter", "nf_ __nf_ ipt_ ip6t_ nft_ iptable_ ip6table_ xt_ br_nf_ nfnetlink_ conntrack_"),
    (
        "device",
        "dev_ __dev_ netif_ __netif_ napi_ __napi_ net_rx_ net_tx_ process_backlog enqueue_to_backlog qdisc_ __qdisc_ \
         sch_ fq_ pfifo_ netem_ tc_ tcf_ validate_xmit_ eth_ virtnet_ virtqueue_ vring_ vp_ start_xmit veth_ e1000_ \
         igb_ ixgbe_ mlx5 br_ loopback_ bond_ macvlan_ tun_ vhost_ netdev_ gro_ dma_ pci_ swiotlb_",
    ),
    (
        "scheduler",
        "schedule __schedule io_schedule preempt_schedule sched_ __sched_ try_to_wake_up ttwu_ wake_up_ __wake_up wake_ \
         default_wake_ autoremove_wake_ wait_woken woken_wake_ pick_next_ put_prev_ set_next_ enqueue_task dequeue_task \
         enqueue_entity dequeue_entit dequeue_entity activate_task deactivate_task select_task_rq select_idle_ \
         check_preempt_ wakeup_preempt update_curr update_rq_ update_load_avg __update_load_avg update_cfs_ update_min_ \
         reweight_ place_entity newidle_ load_balance finish_task_switch prepare_task_switch __switch_to switch_mm \
         resched_ __cond_resched _cond_resched cpuacct_ psi_ avg_vruntime ttwu dl_server_ prepare_to_wait finish_wait \
         add_wait_queue remove_wait_queue __traceiter_sched_ trace_event_raw_event_sched_ scheduler_ task_tick_ \
         calc_global_load kick_process rebalance_",
    ),
    (
        "locking",
        "_raw_spin_ _raw_read_ _raw_write_ native_queued_spin_ __pv_queued_spin_ queued_spin_ mutex_ __mutex_ down_ up_ \
         __down __up_ rwsem_ rt_mutex_ rt_spin_ futex_ do_futex osq_ percpu_down percpu_up __rcu_read_ rcu_read_ \
         lock_page unlock_page",
    ),
    ("rcu", "rcu_ __rcu_ call_rcu __call_rcu invoke_rcu_ note_gp_changes synchronize_rcu srcu_"),
    (
        "memory",
        "kmem_cache_ kmalloc __kmalloc kfree __kfree kvmalloc kvfree vmalloc vfree __slab_ ___slab_ slab_ alloc_pages \
         __alloc_pages __alloc_frozen_pages alloc_frozen_pages free_pages __free_pages free_unref_ free_frozen_ __free_ \
         get_page_from_ page_frag_ page_pool_ skb_page_frag_ mem_cgroup_ __mem_cgroup_ memcg_ __memcg_ obj_cgroup_ \
         charge_memcg try_charge refill_ rmqueue prep_new_page clear_page exc_page_fault do_page_fault __do_page_fault \
         do_user_addr_fault handle_mm_fault __handle_mm_fault handle_pte_fault do_anonymous_page do_wp_page do_fault \
         filemap_fault lru_ folio_add_ folio_batch_ add_to_page_ find_vma lock_vma_ mmap_ do_mmap vma_ unmap_ zap_ tlb_ \
         flush_tlb_ shrink_ try_to_free_pages kswapd compact_ pcpu_ __might_fault should_failslab kmemleak_",
    ),
    (
        "copy",
        "copy_ _copy_ __copy_ csum_ __check_object_size __check_heap_object check_stack_object simple_copy_ rep_movs \
         skb_copy_datagram_ __skb_datagram_iter skb_copy_bits",
    ),
    (
        "timer",
        "hrtimer_ __hrtimer_ ktime_ timer_ mod_timer __mod_timer add_timer del_timer try_to_del_timer run_timer_ \
         call_timer_fn expire_timers tick_ __tick_ clockevents_ timekeeping_ read_tsc lock_timer_base \
         internal_add_timer enqueue_timer get_next_timer_ lapic_next_ update_process_times update_wall_time tmigr_ \
         sk_reset_timer sk_stop_timer do_nanosleep posix_cpu_",
    ),
    (
        "filesystem",
        "vfs_ __vfs_ do_sys_open do_filp_open path_ link_path_ lookup_ __lookup d_ __d_ dput dget mntput mntget \
         generic_file_ __generic_file_ generic_perform_ filemap_ __filemap_ iomap_ ext4_ __ext4_ jbd2_ __jbd2_ xfs_ \
         btrfs_ nfs_ fuse_ ovl_ shmem_ proc_ seq_ kernfs_ inode_ iput iget fput __fput new_sync_ rw_verify_area file_ \
         touch_atime atime_ notify_change fsnotify __fsnotify do_iter_ pipe_ anon_pipe_ eventfd_ ep_ do_epoll_ ep_poll \
         do_poll do_sys_poll do_select core_sys_select wait_on_page_ folio_wait_ writeback_ wb_ mark_buffer_dirty \
         block_write_ block_read_",
    ),
    (
        "block",
        "blk_ __blk_ submit_bio __submit_bio submit_bh bio_ __bio_ elv_ dd_ bfq_ kyber_ scsi_ __scsi_ sd_ nvme_ \
         virtblk_ virtio_queue_ dm_ __dm_ md_ raid nullb_ null_ loop_ sbitmap_ __sbitmap_ disk_ part_ rq_qos_ wbt_ ata_",
    ),
    (
        "interrupt",
        "irq_ __irq_ handle_irq handle_edge_ handle_fasteoi_ handle_softirqs do_softirq __do_softirq __local_bh_ \
         local_bh_ raise_softirq __raise_softirq tasklet_ ksoftirqd run_ksoftirqd apic_ native_apic_ x2apic_ __x2apic_ \
         native_smp_ sysvec_ __sysvec_ smp_",
    ),
    ("bpf", "bpf_ __bpf_ __cgroup_bpf_ trace_call_bpf"),
    ("tracing", "trace_ __trace_ ring_buffer_ rb_ ftrace_ perf_ __perf_ __traceiter_ kprobe_"),
];

/// Whether a function gives the CPU away.
pub fn waits(function: &str) -> bool {
    WAITS.contains(&function)
}

/// Whether a function is the first that is seen of an interrupt.
pub fn begins_interrupt(function: &str) -> bool {
    INTERRUPTS.contains(&function) || INTERRUPT_PREFIXES.iter().any(|prefix| function.starts_with(prefix))
}

/// The system call that a function is the entry of.
pub fn system_call(function: &str) -> Option<&str> {
    let prefixes = ["__x64_sys_", "__ia32_sys_", "__arm64_sys_", "__arm64_compat_sys_", "__se_sys_", "SyS_", "sys_"];
    prefixes.iter().find_map(|prefix| function.strip_prefix(prefix))
}

/// The layer that a function's name tells; `None` when it tells none.
pub fn layer(function: &str) -> Option<&'static str> {
    static SORTED: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
        let mut sorted: Vec<(&str, &str)> = prefixes().map(|(layer, prefix)| (prefix, layer)).collect();
        sorted.sort_unstable();
        sorted
    });
    let mut begin = function;
    loop {
        let after = SORTED.partition_point(|(prefix, _)| *prefix <= begin);
        let (prefix, layer) = SORTED[after.checked_sub(1)?];
        if function.starts_with(prefix) {
            return Some(layer);
        }
        // What is sorted between a prefix of the function and the function begins with that prefix: it is in what both have in common.
        let common = prefix.bytes().zip(begin.bytes()).take_while(|(one, two)| one == two).count();
        begin = function.get(..common)?;
    }
}

/// Layers with each of their prefixes.
fn prefixes() -> impl Iterator<Item = (&'static str, &'static str)> {
    LAYERS.iter().flat_map(|(layer, prefixes)| prefixes.split_ascii_whitespace().map(|prefix| (*layer, prefix)))
}

/// What a letter of a task's state at a switch means.
pub fn state(letters: &str) -> &'static str {
    match letters {
        "R+" => "preempted",
        state if state.starts_with('R') => "runnable: yielded or its time was over",
        state if state.starts_with('S') => "sleeping, can be interrupted by signals",
        state if state.starts_with('D') => "sleeping, not to be interrupted (disk, locks)",
        state if state.starts_with('T') => "stopped",
        state if state.starts_with('t') => "stopped by a debugger",
        state if state.starts_with('I') => "idle kernel thread",
        state if state.starts_with('P') => "parked kernel thread",
        state if state.starts_with('X') || state.starts_with('Z') || state.starts_with('x') => "ended",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_tells_the_layer() {
        for (function, expected) in [
            ("__x64_sys_recvfrom", Some("syscall")),
            ("security_socket_recvmsg", Some("security")),
            ("sock_recvmsg", Some("socket")),
            ("tcp_recvmsg_locked", Some("tcp/udp")),
            ("skb_copy_datagram_iter", Some("copy")),
            ("skb_release_data", Some("socket")),
            ("ip_queue_xmit", Some("ip")),
            ("sk_reset_timer", Some("timer")),
            ("__sk_flush_backlog", Some("socket")),
            ("_raw_spin_lock_bh", Some("locking")),
            ("schedule_timeout", Some("scheduler")),
            ("rcu_sched_clock_irq", Some("rcu")),
            ("kmem_cache_free", Some("memory")),
            ("blk_mq_submit_bio", Some("block")),
            ("vfs_read", Some("filesystem")),
            ("memcpy", None),
        ] {
            assert_eq!(layer(function), expected, "{function}");
        }
    }

    #[test]
    fn a_layer_found_by_halving_is_that_of_all_prefixes() {
        let all: Vec<&str> = prefixes().map(|(_, prefix)| prefix).collect();
        let names = all.iter().flat_map(|prefix| ["", "a", "_", "~", "sk_x"].map(|tail| format!("{prefix}{tail}")));
        let cut = all.iter().map(|prefix| prefix[..prefix.len() - 1].to_owned());
        for name in names.chain(cut).chain(["".into(), "\u{1}".into(), "é".into(), "__é".into()]) {
            let longest = prefixes().filter(|(_, prefix)| name.starts_with(prefix)).max_by_key(|(_, p)| p.len());
            assert_eq!(layer(&name), longest.map(|(layer, _)| layer), "{name}");
        }
    }

    #[test]
    fn no_prefix_is_in_two_layers() {
        let mut prefixes: Vec<&str> = prefixes().map(|(_, prefix)| prefix).collect();
        let all = prefixes.len();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), all);
    }

    #[test]
    fn system_calls_have_one_name_on_all_kernels() {
        for function in ["SyS_recvfrom", "sys_recvfrom", "__x64_sys_recvfrom", "__arm64_sys_recvfrom"] {
            assert_eq!(system_call(function), Some("recvfrom"));
        }
        assert_eq!(system_call("tcp_recvmsg"), None);
    }
}
