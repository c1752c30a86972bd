//! BTF that no compiler made: nothing in it may panic, hang or recurse without end.

use super::*;
use crate::target::btf_write::{Builder, IntKind, MemberDef};
use proptest::prelude::*;

/// Every query, on every type.
fn ask_everything(btf: &Btf) {
    for id in 0..btf.len().saturating_add(2) {
        let t = btf.ty(id);
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
