use super::{dump, parse};
use crate::kernel_target::btf::{Btf, Kind};
use crate::kernel_target::btf_write::{Builder, IntKind, MemberDef};
use crate::kernel_target::{Ability, Arch, Field, FieldType, Function, Syscall, SyscallArg, Target, TracepointFormat};
use proptest::prelude::*;

fn sample_types() -> Builder {
    let mut b = Builder::new();
    let int = b.int("int", 4, IntKind::Signed);
    let uint = b.int("unsigned int", 4, IntKind::Unsigned);
    let flag = b.int("_Bool", 1, IntKind::Bool);
    b.float("double", 8);
    let list_id = b.next_id() + 1;
    let to_list = b.ptr(list_id);
    b.structure("list_head", 16, &[MemberDef::at(0, "next", to_list), MemberDef::at(8, "prev", to_list)]);
    let pid = b.typedef("pid_t", int);
    let hidden = b.structure("hidden", 8, &[MemberDef::at(0, "x", int)]);
    let const_hidden = b.qualifier(Kind::Const, hidden);
    let to_hidden = b.ptr(const_hidden);
    let user = b.type_tag("user", int);
    let to_user = b.ptr(user);
    let unnamed = b.structure("", 8, &[MemberDef::at(0, "a", int), MemberDef::at(4, "b", uint)]);
    let either = b.union("", 8, &[MemberDef::at(0, "", unnamed), MemberDef::at(0, "both", unnamed)]);
    let name = b.array(flag, int, 16);
    let bit = |name, bit_offset, bit_size| MemberDef { name, ty: uint, bit_offset, bit_size };
    let members = [
        MemberDef::at(0, "", either),
        MemberDef::at(8, "pid", pid),
        bit("one", 96, 1),
        bit("three", 97, 3),
        MemberDef::at(16, "list", list_id),
        MemberDef::at(32, "hidden", to_hidden),
        MemberDef::at(40, "user", to_user),
        MemberDef::at(48, "name", name),
    ];
    let task = b.structure("task_struct", 64, &members);
    b.enumeration("", 4, false, &[("TCP_ESTABLISHED", 1), ("TCP_SYN_SENT", 2)]);
    b.enumeration("sign", 4, true, &[("MINUS", -3)]);
    b.enumeration64("wide", 8, false, &[("HUGE", 1 << 40)]);
    let data = b.ptr(0);
    let to_task = b.ptr(task);
    let proto = b.func_proto(0, &[("", data), ("", to_task), ("", pid)]);
    let to_proto = b.ptr(proto);
    b.typedef("btf_trace_sched_switch", to_proto);
    let named = b.func_proto(int, &[("__data", data), ("next", to_task), ("pid", pid)]);
    b.func("__traceiter_sched_switch", named, false);
    // Two structs of one name, the second held by another.
    b.structure("twin", 4, &[MemberDef::at(0, "first", int)]);
    let second = b.structure("twin", 8, &[MemberDef::at(0, "second", int)]);
    b.structure("holder", 8, &[MemberDef::at(0, "twin", second)]);
    b
}

/// A function of a module with a struct of its own and one of the kernel's.
fn module_types(target: &Target) -> Vec<u8> {
    let base = target.btf.as_ref().unwrap();
    let task = base.find("task_struct", Kind::Struct).unwrap();
    let mut b = Builder::behind(base);
    let wait = b.structure("wait", 8, &[MemberDef::at(0, "list", base.find("list_head", Kind::Struct).unwrap())]);
    let (to_wait, to_task) = (b.ptr(wait), b.ptr(task));
    let proto = b.func_proto(to_wait, &[("waiter", to_wait), ("task", to_task)]);
    b.func("wake", proto, false);
    b.finish()
}

const ROOTS: [&str; 9] = [
    "task_struct",
    "TCP_SYN_SENT",
    "sign",
    "wide",
    "btf_trace_sched_switch",
    "__traceiter_sched_switch",
    "twin",
    "holder",
    "double",
];

fn sample() -> Target {
    let field = |name: &str, offset, ty| Field { name: name.into(), offset, ty };
    let mut target = Target {
        release: "6.18.0-\"odd\"\n\u{7f}é".into(),
        arch: Arch::Aarch64,
        cpus: 256,
        cgroup_v1: Some("pids".into()),
        btf: Some(Btf::parse(sample_types().finish()).unwrap()),
        ..Target::default()
    };
    let fields = vec![
        field("comm", 8, FieldType::Str(16)),
        field("state", 24, FieldType::Int { size: 8, signed: true }),
        field("skaddr", 32, FieldType::Pointer),
        field("saddr", 40, FieldType::Bytes(28)),
        field("name", 68, FieldType::DataLoc),
    ];
    target.tracepoints.insert("sched:sched_switch".into(), TracepointFormat { fields });
    let args = vec![SyscallArg { name: "ubuf".into(), ctype: "void *".into() }];
    target.syscalls.insert("recvfrom".into(), Syscall { number: 45, args: Some(args) });
    target.syscalls.insert("getpid".into(), Syscall { number: 39, args: Some(vec![]) });
    target.syscalls.insert("read".into(), Syscall { number: 0, args: None });
    target.counters.insert("cpu-cycles".into(), Ability::No("no \"counter\"".into()));
    target.counters.insert("instructions".into(), Ability::Yes);
    target.usdts.insert("/bin/x:p:n".into(), vec!["".into(), "-4@%edi 8@$\"q\"".into()]);
    target.polls.insert("softnet".into(), vec![field("cpu", 0, FieldType::Int { size: 4, signed: false })]);
    let function = |symbol: &str, module: Option<&str>, traceable| Function {
        symbol: symbol.into(),
        module: module.map(String::from),
        shared: module.is_some(),
        traceable,
    };
    let wakes = vec![function("wake_up", None, true), function("wake.isra.0", Some("of"), false)];
    target.functions.insert("wake*".into(), wakes);
    target.functions.insert("of:none".into(), vec![]);
    target.modules.insert("of".into(), Btf::parse_module(module_types(&target), target.btf.as_ref().unwrap()).unwrap());
    target.caches = vec![vec![0, 2], vec![1]];
    target.abilities.tp_btf = Ability::Yes;
    target.abilities.rdonly_cast = Ability::No("this kernel has \"none\"".into());
    target
}

#[test]
fn what_was_written_is_read_back() {
    let target = sample();
    let text = dump(&target, &ROOTS);
    let back = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(back.release, target.release);
    assert_eq!((back.arch, back.cpus, &back.cgroup_v1), (target.arch, target.cpus, &target.cgroup_v1));
    assert_eq!(back.caches, target.caches);
    assert_eq!(back.tracepoints, target.tracepoints);
    assert_eq!(back.syscalls, target.syscalls);
    assert_eq!(back.polls, target.polls);
    assert_eq!(back.counters, target.counters);
    assert_eq!(back.usdts, target.usdts);
    assert_eq!(back.abilities, target.abilities);
    assert_eq!(back.functions, target.functions);
    assert_eq!(dump(&back, &ROOTS), text, "writing it again gives the same text");
}

#[test]
fn types_keep_what_programs_need() {
    let original = sample();
    let back = parse(&dump(&original, &ROOTS)).unwrap();
    let (old, new) = (original.btf.unwrap(), back.btf.unwrap());
    let task = |btf: &Btf| btf.find("task_struct", Kind::Struct).unwrap();
    for name in ["a", "b", "both", "pid", "one", "three", "list", "hidden", "user", "name"] {
        let (x, y) = (old.member(task(&old), name).unwrap(), new.member(task(&new), name).unwrap());
        assert_eq!((x.bit_offset, x.bit_size, old.size(x.ty)), (y.bit_offset, y.bit_size, new.size(y.ty)), "{name}");
        assert_eq!(old.describe(x.ty), new.describe(y.ty), "{name}");
        assert_eq!(old.is_signed(old.strip(x.ty)), new.is_signed(new.strip(y.ty)), "{name}");
    }
    let user = new.member(task(&new), "user").unwrap();
    assert!(new.is_user_pointer(new.strip(user.ty)));
    let value = |btf: &Btf, name: &str| btf.constant(name).map(|c| c.1);
    for name in ["TCP_ESTABLISHED", "MINUS", "HUGE"] {
        assert_eq!(value(&old, name), value(&new, name), "{name}");
        assert!(value(&new, name).is_some(), "{name}");
    }
    let args = |btf: &Btf| -> Vec<(String, String)> {
        let args = btf.tracepoint_args("sched_switch").unwrap();
        args.into_iter().map(|(name, ty)| (name, btf.describe(ty))).collect()
    };
    assert_eq!(args(&old), args(&new));
    assert_eq!(args(&new)[0], ("next".to_string(), "struct task_struct *".to_string()));
    let first = new.find("twin", Kind::Struct).unwrap();
    assert!(new.member(first, "first").is_some(), "the first of two equal names stays the first");
    let holder = new.find("holder", Kind::Struct).unwrap();
    let twin = new.member(holder, "twin").unwrap();
    assert!(new.member(twin.ty, "second").is_some(), "and the second stays the second");
}

#[test]
fn pointed_to_structs_are_only_declared_unless_they_are_roots() {
    let target = sample();
    let declared = |roots: &[&str]| {
        let btf = parse(&dump(&target, roots)).unwrap().btf.unwrap();
        btf.find_aggregate("hidden").is_some()
    };
    assert!(!declared(&["task_struct"]));
    assert!(declared(&["task_struct", "hidden"]));
    let text = dump(&target, &["task_struct", "no_such_type"]);
    assert!(text.contains("@32 hidden: ptr const fwd struct hidden;"), "{text}");
    assert!(text.contains("# there is no \"no_such_type\""));
    assert!(!text.contains("TCP_ESTABLISHED"), "{text}");
}

#[test]
fn no_types_at_all() {
    let target = Target { btf: None, ..sample() };
    assert!(parse(&dump(&target, &ROOTS)).unwrap().btf.is_none());
}

#[test]
fn mistakes_are_shown_at_their_line() {
    let cases = [
        ("", "the end: expected \"kstrobe_target\""),
        ("kstrobe_target 2", "line 1: expected \"1\", found \"2\""),
        ("kstrobe_target 1\nrelase \"x\"", "line 2: expected release, arch"),
        ("kstrobe_target 1\nrelease \"x", "line 2: a string that does not end"),
        ("kstrobe_target 1\n\narch sparc", "line 3: expected x86_64 or aarch64, found \"sparc\""),
        ("kstrobe_target 1\nability fly yes", "line 2: expected the name of an ability, found \"fly\""),
        ("kstrobe_target 1\ntracepoint \"a:b\" { @8 x: i24; }", "line 2: expected i8 to u64"),
        ("kstrobe_target 1\nbtf { typedef x = struct gone;\n}", "line 2: struct gone is not defined"),
        ("kstrobe_target 1\ncpus many", "line 2: expected a number, found \"many\""),
    ];
    for (text, want) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(want), "{text:?}: {error}");
    }
    let deep = format!("kstrobe_target 1 btf {{ typedef x = {}void; }}", "ptr ".repeat(100_000));
    assert!(parse(&deep).unwrap_err().to_string().contains("nest less deep"));
}

proptest! {
    #[test]
    fn mutated_text_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), "[a-z0-9@{}:;\"~/.#\\\\é -]{0,3}"), 1..6)
    ) {
        let mut text: Vec<char> = dump(&sample(), &ROOTS).chars().collect();
        for (at, with) in changes {
            let at = at.index(text.len());
            text.splice(at..at + 1, with.chars());
        }
        if let Ok(target) = parse(&text.into_iter().collect::<String>()) {
            dump(&target, &ROOTS);
        }
    }

    #[test]
    fn any_text_never_panics(text in "kstrobe_target 1 (btf|struct|\\{|\\}|@1|: |size 4|ptr |[a-z]|;|\"|~|é| ){0,40}") {
        let _ = parse(&text);
    }

    #[test]
    fn mutated_types_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut raw = sample_types().finish();
        for (at, byte) in changes {
            let at = at.index(raw.len());
            raw[at] = byte;
        }
        if let Ok(btf) = Btf::parse(raw) {
            let text = dump(&Target { btf: Some(btf), ..Target::default() }, &ROOTS);
            // What hostile types turn into may not be readable, but reading it must end.
            let _ = parse(&text);
        }
    }
}

#[test]
fn roots_are_what_the_texts_can_come_to_read() {
    let target = sample();
    let found = |event: &[&str], texts: &[&str]| {
        super::roots(&target, event.iter().copied(), [], [], texts.iter().copied()).join(" ")
    };
    let event = ["sched_switch"];
    assert_eq!(found(&[], &["1"]), "bpf_rdonly_cast");
    let named = "__traceiter_sched_switch bpf_rdonly_cast btf_trace_sched_switch";
    assert_eq!(found(&event, &["args.pid"]), named);
    // `list_head` has a member `next` too: too much is better than too little.
    assert_eq!(found(&event, &["args.next.pid"]), format!("{named} list_head task_struct"));
    // A pointer is followed where its name is read, and not otherwise.
    assert_eq!(found(&event, &["args.next.hidden.x"]), format!("{named} hidden list_head task_struct"));
    assert_eq!(found(&[], &["cast(struct twin, nsecs) == TCP_SYN_SENT"]), "TCP_SYN_SENT bpf_rdonly_cast twin");
    let roots = super::roots(&target, event, [], [], ["args.next.hidden.x"]);
    let back = parse(&dump(&target, &roots.iter().map(String::as_str).collect::<Vec<_>>())).unwrap().btf.unwrap();
    assert!(back.find_aggregate("hidden").is_some());
}

#[test]
fn functions_bring_the_types_of_what_texts_read_of_them() {
    let target = sample();
    let of = |texts: &[&str]| super::roots(&target, [], [], ["wake*"], texts.iter().copied());
    assert_eq!(of(&["1"]), ["bpf_rdonly_cast", "wake"], "names of symbols without what the compiler appended");
    assert_eq!(of(&["args.waiter.list"]), ["bpf_rdonly_cast", "wait", "wake"]);
    assert_eq!(of(&["args.task.pid"]), ["bpf_rdonly_cast", "task_struct", "wake"]);
    let roots = of(&["retval.list.next", "args.task.pid"]);
    let back = parse(&dump(&target, &roots.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    let types = &back.modules["of"];
    let (params, result) = types.function("wake").unwrap();
    assert_eq!(
        (types.describe(params[1].1), types.describe(result)),
        ("struct task_struct *".into(), "struct wait *".into())
    );
    let task = types.strip(types.strip(params[1].1).size_or_type);
    assert!(types.member(task.id, "pid").is_some(), "the kernel's types stand there as well");
}
