//! A small kernel for the cases: a socket, a buffer, a task, and what the hooks need.

use crate::btf_bytes::BtfBytes;
use kstrobe_ebpf::kernel_target::{
    Abilities, Ability, Arch, Btf, Field, FieldType, Function, Syscall, SyscallArg, Target, TracepointFormat,
};

/// Integers every other type needs.
struct Ints {
    char: u32,
    u8: u32,
    u16: u32,
    u32: u32,
    int: u32,
    u64: u32,
    bool: u32,
}

fn ints(b: &mut BtfBytes) -> Ints {
    Ints {
        char: b.int("char", 1, 1),
        u8: b.int("unsigned char", 1, 0),
        u16: b.int("short unsigned int", 2, 0),
        u32: b.int("unsigned int", 4, 0),
        int: b.int("int", 4, 1),
        u64: b.int("long unsigned int", 8, 0),
        bool: b.int("_Bool", 1, 4),
    }
}

/// The shared head, `struct sock` with it, and the request socket that has the same head.
fn sockets(b: &mut BtfBytes, i: &Ints) -> (u32, u32, u32) {
    let bytes16 = b.array(i.u8, 16, i.u32);
    let in6 = b.structure("in6_addr", 16, &[("in6_u", bytes16, 0, 0)]);
    let (be16, be32) = (b.typedef("__be16", i.u16), b.typedef("__be32", i.u32));
    let common = b.structure(
        "sock_common",
        48,
        &[
            ("skc_daddr", be32, 0, 0),
            ("skc_num", i.u16, 32, 0),
            ("skc_dport", be16, 48, 0),
            ("skc_family", i.u16, 64, 0),
            ("skc_state", i.u8, 80, 0),
            ("skc_reuse", i.u8, 88, 4),
            ("skc_reuseport", i.u8, 92, 1),
            ("skc_v6_daddr", in6, 128, 0),
        ],
    );
    let name = b.array(i.char, 16, i.u32);
    let proto = b.structure("proto", 16, &[("name", name, 0, 0)]);
    let proto_ptr = b.ptr(proto);
    let other = b.union("", 8, &[("sk_prot_u", proto_ptr, 0, 0), ("sk_word", i.u64, 0, 0)]);
    let counters = b.array(i.u32, 4, i.u32);
    let protos = b.array(proto_ptr, 2, i.u32);
    let user = b.tag("user", i.char);
    let user_ptr = b.ptr(user);
    let int_ptr = b.ptr(i.int);
    let data = b.ptr(0);
    let cgroup = cgroup(b, i);
    let cgrp_data = b.structure("sock_cgroup_data", 8, &[("cgroup", cgroup, 0, 0)]);
    let sock = b.next_id();
    b.structure(
        "sock",
        192,
        &[
            ("__sk_common", common, 0, 0),
            ("sk_prot", proto_ptr, 384, 0),
            ("", other, 448, 0),
            ("sk_drops", i.int, 512, 0),
            ("sk_ack_backlog", i.u32, 544, 0),
            ("sk_counters", counters, 576, 0),
            ("sk_protos", protos, 704, 0),
            ("sk_user", user_ptr, 832, 0),
            ("sk_int", int_ptr, 896, 0),
            ("sk_user_data", data, 960, 0),
            ("sk_busy", i.bool, 1024, 0),
            ("sk_cgrp_data", cgrp_data, 1088, 0),
        ],
    );
    let request = b.structure("request_sock", 64, &[("__req_common", common, 0, 0)]);
    let inet_request = b.structure("inet_request_sock", 72, &[("req", request, 0, 0)]);
    (common, sock, inet_request)
}

/// A pointer to `struct cgroup`, made once.
fn cgroup(b: &mut BtfBytes, i: &Ints) -> u32 {
    let node = b.structure("kernfs_node", 16, &[("id", i.u64, 64, 0)]);
    let node = b.ptr(node);
    let cgroup = b.structure("cgroup", 16, &[("kn", node, 64, 0)]);
    b.ptr(cgroup)
}

/// What lies behind a descriptor; a pointer to `struct files_struct`.
fn files(b: &mut BtfBytes, i: &Ints, sock_ptr: u32) -> u32 {
    let inode = b.structure("inode", 64, &[("i_mode", i.u16, 0, 0)]);
    let inode_ptr = b.ptr(inode);
    let data = b.ptr(0);
    let file = b.structure(
        "file",
        64,
        &[("f_pos", i.u64, 0, 0), ("f_inode", inode_ptr, 64, 0), ("private_data", data, 128, 0)],
    );
    b.structure("socket", 64, &[("sk", sock_ptr, 192, 0)]);
    let file_ptr = b.ptr(file);
    let array = b.ptr(file_ptr);
    let table = b.structure("fdtable", 64, &[("max_fds", i.u32, 0, 0), ("fd", array, 64, 0)]);
    let table_ptr = b.ptr(table);
    let files = b.structure("files_struct", 64, &[("fdt", table_ptr, 256, 0)]);
    b.ptr(files)
}

/// What a task's groups are found through; a pointer to `struct css_set`.
fn cgroups(b: &mut BtfBytes, i: &Ints, cgroup: u32) -> u32 {
    let state = b.structure("cgroup_subsys_state", 64, &[("cgroup", cgroup, 0, 0)]);
    let state = b.ptr(state);
    b.enumeration("cgroup_subsys_id", &[("cpuset_cgrp_id", 0), ("io_cgrp_id", 1), ("pids_cgrp_id", 2)]);
    let states = b.array(state, 3, i.u32);
    let set = b.structure("css_set", 128, &[("dfl_cgrp", cgroup, 64, 0), ("subsys", states, 128, 0)]);
    b.ptr(set)
}

/// Functions of the iterators, but for that over local sockets.
fn iterators(b: &mut BtfBytes, i: &Ints, (common, sock): (u32, u32), task: u32) {
    let inet = b.structure("inet_sock", 200, &[("sk", sock, 0, 0)]);
    let udp = b.structure("udp_sock", 208, &[("inet", inet, 0, 0), ("len", i.u16, 1600, 0)]);
    let meta = b.structure("bpf_iter_meta", 24, &[("session_id", i.u64, 64, 0)]);
    let [meta, task, common, udp] = [meta, task, common, udp].map(|ty| b.ptr(ty));
    b.function("bpf_iter_task", &[("meta", meta), ("task", task)]);
    b.function("bpf_iter_tcp", &[("meta", meta), ("sk_common", common), ("uid", i.u32)]);
    b.function("bpf_iter_udp", &[("meta", meta), ("udp_sk", udp), ("uid", i.u32), ("bucket", i.int)]);
}

fn btf() -> Btf {
    let mut b = BtfBytes::new();
    let i = ints(&mut b);
    let (common, sock, inet_request) = sockets(&mut b, &i);
    let cb = b.array(i.char, 48, i.u32);
    let sock_ptr = b.ptr(sock);
    let bytes = b.ptr(i.char);
    let skb = b.structure(
        "sk_buff",
        128,
        &[
            ("sk", sock_ptr, 0, 0),
            ("cb", cb, 320, 0),
            ("len", i.u32, 704, 0),
            ("transport_header", i.u16, 736, 0),
            ("network_header", i.u16, 752, 0),
            ("head", bytes, 768, 0),
        ],
    );
    b.structure("iphdr", 20, &[("daddr", i.u32, 128, 0)]);
    b.structure("tcphdr", 20, &[("source", i.u16, 0, 0), ("dest", i.u16, 16, 0)]);
    b.structure("tcp_skb_cb", 48, &[("seq", i.u32, 0, 0), ("tcp_gso_segs", i.u16, 32, 0), ("owner", sock_ptr, 64, 0)]);
    b.structure("tcp_sock", 256, &[("sk", sock, 0, 0), ("rtt_us", i.u32, 1536, 0)]);
    let ns = b.structure("ns_common", 16, &[("inum", i.u32, 64, 0)]);
    let net = b.structure("net", 64, &[("ns", ns, 128, 0)]);
    let net_ptr = b.ptr(net);
    let nsproxy = b.structure("nsproxy", 64, &[("net_ns", net_ptr, 320, 0)]);
    let nsproxy_ptr = b.ptr(nsproxy);
    let files_ptr = files(&mut b, &i, sock_ptr);
    let cgroup = cgroup(&mut b, &i);
    let cgroups_ptr = cgroups(&mut b, &i, cgroup);
    let task = b.next_id();
    let task_ptr = b.ptr(task + 1);
    b.structure(
        "task_struct",
        512,
        &[
            ("parent", task_ptr, 0, 0),
            ("nsproxy", nsproxy_ptr, 64, 0),
            ("tgid", i.int, 128, 0),
            ("files", files_ptr, 192, 0),
            ("cgroups", cgroups_ptr, 256, 0),
        ],
    );
    let regs = b.array(i.u64, 31, i.u32);
    let regs = b.structure(
        "pt_regs",
        168,
        &[
            // Those of arm64 lie among them: the cases need names and offsets only.
            ("regs", regs, 0, 0),
            ("orig_x0", i.u64, 1024, 0),
            ("syscallno", i.int, 1088, 0),
            ("r10", i.u64, 448, 0),
            ("r9", i.u64, 512, 0),
            ("r8", i.u64, 576, 0),
            ("dx", i.u64, 768, 0),
            ("si", i.u64, 832, 0),
            ("di", i.u64, 896, 0),
            ("orig_ax", i.u64, 960, 0),
        ],
    );
    b.enumeration("tcp_states", &[("TCP_ESTABLISHED", 1), ("TCP_CLOSE", 7)]);
    b.enumeration("oddity", &[("ODD_MINUS", -1)]);
    b.typedef("umode_t", i.u16);
    let const_sock = b.constant(sock);
    let const_sock_ptr = b.ptr(const_sock);
    let skb_ptr = b.ptr(skb);
    let request_ptr = b.ptr(inet_request);
    let char_ptr = b.ptr(i.char);
    let regs_ptr = b.ptr(regs);
    b.tracepoint("softirq_entry", &[("vec_nr", i.u32)]);
    b.tracepoint("softirq_exit", &[("vec_nr", i.u32)]);
    b.tracepoint("softirq_signed", &[("vec_nr", i.int)]);
    b.tracepoint("tcp_event", &[("sk", const_sock_ptr), ("skb", skb_ptr), ("req", request_ptr), ("n", i.int)]);
    b.tracepoint("inet_sock_set_state", &[("sk", const_sock_ptr), ("oldstate", i.int), ("newstate", i.int)]);
    let const_void = b.constant(0);
    let (const_void_ptr, void_ptr, char_ptr_ptr, int_ptr) =
        (b.ptr(const_void), b.ptr(0), b.ptr(char_ptr), b.ptr(i.int));
    b.tracepoint(
        "pointers",
        &[
            ("data", const_void_ptr),
            ("any", void_ptr),
            ("names", char_ptr_ptr),
            ("number", int_ptr),
            ("text", char_ptr),
        ],
    );
    b.tracepoint("named", &[("name", char_ptr), ("len", i.u64), ("full", i.bool)]);
    b.tracepoint("sys_enter", &[("regs", regs_ptr), ("id", i.u64)]);
    b.tracepoint("sys_exit", &[("regs", regs_ptr), ("ret", i.u64)]);
    iterators(&mut b, &i, (common, sock), task + 1);
    Btf::parse(b.finish()).expect("the writer makes valid BTF")
}

fn call(number: u32, args: &[(&str, &str)]) -> Syscall {
    let arg = |(name, ctype): &(&str, &str)| SyscallArg { name: name.to_string(), ctype: ctype.to_string() };
    Syscall { number, args: Some(args.iter().map(arg).collect()) }
}

fn field(name: &str, offset: u32, ty: FieldType) -> Field {
    Field { name: name.into(), offset, ty }
}

/// The kernel of the cases; `changes` are words such as `no_btf` that take something away.
pub fn target(changes: &str) -> Target {
    let yes = || Ability::Yes;
    let int = |size, signed| FieldType::Int { size, signed };
    let mut target = Target {
        release: "6.1-cases".into(),
        cpus: 4,
        btf: Some(btf()),
        abilities: Abilities {
            tp_btf: yes(),
            raw_tp: yes(),
            tracepoint: yes(),
            perf_event: yes(),
            task_storage: yes(),
            current_task_btf: yes(),
            probe_read_kernel: yes(),
            uprobe: yes(),
            uprobe_multi: yes(),
            iter: yes(),
            func_ip: yes(),
            kprobe_multi: yes(),
            kprobe: yes(),
            ..Abilities::default()
        },
        ..Target::default()
    };
    target.syscalls = [
        ("read", call(0, &[("fd", "unsigned int"), ("buf", "char *"), ("count", "size_t")])),
        ("chmod", call(90, &[("filename", "const char *"), ("mode", "umode_t")])),
        ("recvfrom", call(45, &[("fd", "int"), ("ubuf", "void *"), ("size", "size_t"), ("flags", "unsigned int")])),
        ("fchmodat", call(268, &[("dfd", "int"), ("filename", "const char *"), ("mode", "umode_t")])),
        (
            "getdents",
            call(78, &[("fd", "unsigned int"), ("dirent", "struct linux_dirent *"), ("count", "unsigned int")]),
        ),
        ("mystery", Syscall { number: 400, args: None }),
    ]
    .map(|(name, call)| (name.to_string(), call))
    .into();
    let fields = vec![
        field("skaddr", 8, FieldType::Pointer),
        field("newstate", 16, int(4, true)),
        field("sport", 20, int(2, false)),
        field("daddr", 22, FieldType::Bytes(4)),
        field("comm", 26, FieldType::Str(16)),
        field("path", 44, FieldType::DataLoc),
        field("call_site", 48, int(8, false)),
    ];
    target.tracepoints.insert("sock:inet_sock_set_state".into(), TracepointFormat { fields });
    let rows =
        vec![field("cpu", 0, int(4, false)), field("dropped", 8, int(8, false)), field("name", 16, FieldType::Str(32))];
    target.polls.insert("softnet".into(), rows);
    let usdt = |name: &str, places: &[&str]| (name.to_string(), places.iter().map(|p| p.to_string()).collect());
    target.usdts = [
        usdt("/usr/bin/db:db:query__start", &["8@%rdi -4@8(%rax,%rdx,4) 2@$7 8f@%xmm0"]),
        usdt("/usr/bin/db:db:row", &["-4@%esi 8@%rdi", "-4@112(%rsp) 8@%rdi"]),
        usdt("/usr/bin/db:db:odd", &["-4@%esi", "8@%rsi"]),
        usdt("/usr/bin/db:db:constant", &["4@$1", "4@$2"]),
        usdt("/usr/bin/db:db:query__done", &[""]),
        usdt("/usr/bin/arm:a:b", &["-4@x1 8@[sp, 16]"]),
    ]
    .into();
    let function = |symbol: &str| Function { symbol: symbol.into(), traceable: true, ..Function::default() };
    let functions = ["tcp_recv", "tcp_send"].map(function);
    for named in &functions {
        target.functions.insert(named.symbol.clone(), vec![named.clone()]);
    }
    target.functions.insert("tcp_*".into(), functions.into());
    for change in changes.split_whitespace() {
        let no = || Ability::No("this test says so".into());
        match change {
            "no_btf" => target.btf = None,
            "cgroup_v1" => target.cgroup_v1 = Some("pids".into()),
            "cgroup_v1_gone" => target.cgroup_v1 = Some("net_cls".into()),
            "no_tp_btf" => target.abilities.tp_btf = no(),
            "no_raw_tp" => target.abilities.raw_tp = no(),
            "no_tracepoint" => target.abilities.tracepoint = no(),
            "no_perf_event" => target.abilities.perf_event = no(),
            "no_uprobe_multi" => target.abilities.uprobe_multi = no(),
            "no_func_ip" => target.abilities.func_ip = no(),
            "no_iter" => target.abilities.iter = no(),
            "no_uprobe" => target.abilities.uprobe = no(),
            "no_task_storage" => target.abilities.task_storage = no(),
            "aarch64" => target.arch = Arch::Aarch64,
            "rdonly_cast" => target.abilities.rdonly_cast = yes(),
            other => panic!("unknown change `{other}` of the target"),
        }
    }
    target
}
