//! BTF that no compiler made: nothing in it may panic, hang or recurse without end.

use super::*;
use crate::kernel_target::btf_write::{Builder, IntKind, MemberDef};
use proptest::prelude::*;

/// Every query, on every type.
fn ask_everything(btf: &Btf) {
    for id in 0..btf.len().saturating_add(2) {
        let t = btf.ty(id);
        for offset in [-1, 0, 1, 4, 8, 64, i32::MAX] {
            for size in [1, 2, 4, 8] {
                btf.access(id, offset, size);
            }
        }
        btf.size(id);
        btf.strip(id);
        btf.describe(id);
        btf.is_user_pointer(t);
        btf.is_signed(t);
        btf.is_bool(t);
        btf.array(t);
        btf.params(t);
        btf.enum_values(t);
        btf.members(t).count();
        btf.member(id, "x");
        btf.member_names(id);
        btf.find(btf.name(t), t.kind);
    }
    btf.constant("X");
    btf.find_aggregate("s");
    btf.tracepoint_args("event");
    btf.tracepoints();
    btf.functions().filter_map(|name| btf.function(name)).count();
}

/// A kernel with a struct and a function, and a module whose struct holds the kernel's.
fn kernel_and_module() -> (Btf, Btf) {
    let mut b = Builder::new();
    let int = b.int("int", 4, IntKind::Signed);
    let s = b.structure("s", 8, &[MemberDef::at(0, "a", int), MemberDef::at(4, "b", int)]);
    let proto = b.func_proto(int, &[("x", int)]);
    b.func("f", proto, false);
    b.enumeration("e", 4, false, &[("BASE", 7)]);
    let base = Btf::parse(b.finish()).unwrap();
    let mut m = Builder::behind(&base);
    let own = m.structure("m", 16, &[MemberDef::at(0, "inner", s), MemberDef::at(8, "n", int)]);
    let ptr = m.ptr(own);
    let proto = m.func_proto(0, &[("m", ptr), ("flags", int)]);
    m.func("g", proto, false);
    let other = m.func_proto(s, &[]);
    m.func("f", other, false);
    m.enumeration("me", 4, false, &[("OWN", 9)]);
    let module = Btf::parse_module(m.finish(), &base).unwrap();
    (base, module)
}

#[test]
fn types_of_a_module_continue_the_kernels() {
    let (base, module) = kernel_and_module();
    let own = module.find("m", Kind::Struct).unwrap();
    assert!(own >= base.len() && module.is_of_module(own) && base.ty(own).kind == Kind::Void);
    let s = module.find("s", Kind::Struct).unwrap();
    assert!(s == base.find("s", Kind::Struct).unwrap() && !module.is_of_module(s) && !base.is_of_module(s));
    let inner = module.member(own, "inner").unwrap();
    assert_eq!((inner.ty, module.member(inner.ty, "b").unwrap().bit_offset), (s, 32));
    let (params, result) = module.function("g").unwrap();
    assert_eq!(params.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["m", "flags"]);
    assert_eq!(
        (module.describe(params[0].1), module.describe(params[1].1), result),
        ("struct m *".into(), "int".into(), 0)
    );
    assert_eq!(module.function("f").unwrap().1, s, "the module's own function, not the kernel's of that name");
    assert_eq!(module.describe(base.function("f").unwrap().1), "int");
    assert_eq!((module.constant("OWN").unwrap().1, module.constant("BASE").unwrap().1), (9, 7));
    assert_eq!(
        (base.constant("OWN"), module.find("nothing", Kind::Struct), module.name(module.ty(s))),
        (None, None, "s")
    );
    assert!(module.is_signed(module.ty(params[1].1)));
}

fn sample() -> Vec<u8> {
    let mut b = Builder::new();
    let int = b.int("int", 4, IntKind::Signed);
    let array = b.array(int, int, 4);
    let ptr = b.ptr(int);
    let inner = b.structure("", 8, &[MemberDef::at(0, "x", int), MemberDef::at(4, "y", int)]);
    let bit = MemberDef { name: "b", ty: int, bit_offset: 200, bit_size: 2 };
    b.structure("s", 32, &[MemberDef::at(0, "", inner), MemberDef::at(8, "a", array), bit]);
    b.enumeration("e", 4, false, &[("X", 1), ("Y", 2)]);
    b.enumeration64("f", 8, true, &[("Z", -1)]);
    let proto = b.func_proto(0, &[("__data", ptr), ("x", int)]);
    let to = b.ptr(proto);
    b.typedef("btf_trace_event", to);
    b.func("__traceiter_event", proto, false);
    let var = b.var("v", int);
    b.datasec(".data", 4, &[(var, 0, 4)]);
    b.finish()
}

#[test]
fn an_array_of_itself_has_no_size() {
    let mut b = Builder::new();
    let me = b.next_id();
    assert_eq!(b.array(me, me, 2), me);
    let other = b.next_id();
    b.array(other + 1, me, 3);
    b.array(other, me, 3);
    let btf = Btf::parse(b.finish()).unwrap();
    assert_eq!(btf.size(me), None);
    assert_eq!(btf.size(other), None);
    ask_everything(&btf);
}

#[test]
fn an_array_too_large_has_no_size() {
    let mut b = Builder::new();
    let int = b.int("int", 4, IntKind::Signed);
    let big = b.array(int, int, 1 << 31);
    assert_eq!(Btf::parse(b.finish()).unwrap().size(big), None);
}

#[test]
fn anonymous_structs_within_themselves_end() {
    let mut b = Builder::new();
    let me = b.next_id();
    let members: Vec<MemberDef<'_>> = (0..200).map(|i| MemberDef::at(i * 4, "", me)).collect();
    b.structure("", u32::MAX, &members);
    let shifted = MemberDef { name: "", ty: me + 1, bit_offset: u32::MAX, bit_size: 0 };
    let x = MemberDef { name: "x", ..shifted.clone() };
    b.structure("s", 8, &[shifted.clone(), shifted, x]);
    ask_everything(&Btf::parse(b.finish()).unwrap());
}

proptest! {
    #[test]
    fn random_bytes(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(btf) = Btf::parse(raw) {
            ask_everything(&btf);
        }
    }

    #[test]
    fn mutated_btf(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut raw = sample();
        for (at, byte) in changes {
            let at = at.index(raw.len());
            raw[at] = byte;
        }
        if let Ok(btf) = Btf::parse(raw) {
            ask_everything(&btf);
        }
    }
}

/// What overlaps, what is part of something, what lies in holes and behind ends.
#[test]
fn the_verifier_takes_the_first_member_at_an_offset() {
    let mut b = Builder::new();
    let [byte, int] = [("u8", 1), ("u32", 4)].map(|(name, size)| b.int(name, size, IntKind::Unsigned));
    let long = b.int("u64", 8, IntKind::Unsigned);
    let node = b.structure("node", 16, &[MemberDef::at(0, "a", int), MemberDef::at(8, "b", long)]);
    let (to_node, to_long) = (b.ptr(node), b.ptr(long));
    let (nodes, pointers, bytes) = (b.array(node, int, 2), b.array(to_node, int, 2), b.array(byte, int, 5));
    let flexible = b.array(node, int, 0);
    let first =
        b.union("", 8, &[MemberDef::at(0, "p", to_node), MemberDef::at(0, "n", long), MemberDef::at(0, "i", int)]);
    let second = b.union("", 8, &[MemberDef::at(0, "i", int), MemberDef::at(0, "n", long)]);
    let bit = |at: u32, name, width| MemberDef { bit_offset: at, bit_size: width, ..MemberDef::at(0, name, int) };
    let s = b.structure(
        "s",
        128,
        &[
            MemberDef::at(0, "", first),
            MemberDef::at(8, "", second),
            MemberDef::at(16, "q", to_long),
            MemberDef::at(24, "nodes", nodes),
            MemberDef::at(56, "pointers", pointers),
            MemberDef::at(72, "bytes", bytes),
            bit(640, "low", 3),
            bit(643, "high", 10),
            MemberDef::at(96, "last", int),
            MemberDef::at(128, "flexible", flexible),
        ],
    );
    let btf = Btf::parse(b.finish()).unwrap();
    let node = btf.find("node", Kind::Struct).unwrap();
    let cases = [
        ((0, 8), Access::Pointer(node)),
        ((0, 4), Access::Refused),
        ((8, 4), Access::Scalar),
        ((8, 8), Access::Refused),
        ((16, 8), Access::Address),
        ((16, 1), Access::Refused),
        ((40, 4), Access::Scalar),
        ((44, 4), Access::Refused),
        ((48, 8), Access::Scalar),
        ((64, 8), Access::Pointer(node)),
        ((60, 8), Access::Refused),
        ((72, 4), Access::Scalar),
        ((74, 2), Access::Scalar),
        ((74, 4), Access::Refused),
        ((80, 1), Access::Scalar),
        ((80, 2), Access::Scalar),
        ((84, 4), Access::Refused),
        ((96, 4), Access::Scalar),
        ((100, 1), Access::Refused),
        ((128 + 16 + 8, 8), Access::Scalar),
        ((128 + 4, 4), Access::Refused),
        ((-8, 8), Access::Refused),
    ];
    for ((offset, size), expected) in cases {
        assert_eq!(btf.access(s, offset, size), expected, "{size} bytes at {offset}");
    }
    assert_eq!(btf.access(int, 0, 4), Access::Refused, "no struct");
}
