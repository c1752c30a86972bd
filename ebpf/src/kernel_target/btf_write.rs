//! Builder of BTF bytes: for the objects we emit, for test fixtures and for [`super::dump`].
//!
//! Ids are given in the order of the calls, from 1; references may point forward. Nothing is checked here but lengths: the
//! kernel, and [`super::Btf::parse`], check the rest.

use super::btf::{Btf, Kind};
use std::collections::HashMap;

/// Types under construction.
#[derive(Clone, Debug)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    interned: HashMap<String, u32>,
    count: u32,
    /// Offset of the first own string.
    first_text: u32,
}

/// Kinds of integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntKind {
    Unsigned,
    /// Two's complement.
    Signed,
    /// A character: kernels mark `char` as plain signed or unsigned integers, so this is seldom met.
    Char,
    Bool,
}

/// A member of a struct or union to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDef<'a> {
    /// Empty for an anonymous struct or union.
    pub name: &'a str,
    /// Its type.
    pub ty: u32,
    /// Bits from the struct's start.
    pub bit_offset: u32,
    /// Bits of a bitfield; 0 for anything else.
    pub bit_size: u32,
}

impl<'a> MemberDef<'a> {
    /// An ordinary member at a byte offset.
    pub fn at(byte_offset: u32, name: &'a str, ty: u32) -> MemberDef<'a> {
        MemberDef { name, ty, bit_offset: byte_offset * 8, bit_size: 0 }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// No types yet.
    pub fn new() -> Builder {
        Builder { types: Vec::new(), strings: vec![0], interned: HashMap::new(), count: 0, first_text: 0 }
    }

    /// Types of a module, which continue those of `base`: its ids may be referred to.
    pub fn behind(base: &Btf) -> Builder {
        Builder { count: base.len() - 1, first_text: base.text_bytes(), ..Builder::new() }
    }

    /// The id that the next type will get.
    pub fn next_id(&self) -> u32 {
        self.count + 1
    }

    /// Offset of a string in the string section. What follows a NUL is cut off.
    pub fn string(&mut self, text: &str) -> u32 {
        let text = text.split('\0').next().unwrap_or("");
        if text.is_empty() {
            return 0;
        }
        if let Some(&at) = self.interned.get(text) {
            return at;
        }
        let at = self.first_text + self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        self.interned.insert(text.to_string(), at);
        at
    }

    fn word(&mut self, word: u32) {
        self.types.extend_from_slice(&word.to_le_bytes());
    }

    fn header(&mut self, kind: Kind, name: &str, count: usize, flag: bool, size_or_type: u32) -> u32 {
        let name = self.string(name);
        self.word(name);
        // The format has 16 bits for the count; callers cut what they write to the same length.
        self.word(u32::from(flag) << 31 | (kind as u32) << 24 | count.min(MAX_COUNT) as u32);
        self.word(size_or_type);
        self.count += 1;
        self.count
    }

    /// An integer of whole bytes.
    pub fn int(&mut self, name: &str, bytes: u32, kind: IntKind) -> u32 {
        let id = self.header(Kind::Int, name, 0, false, bytes);
        let encoding = match kind {
            IntKind::Unsigned => 0,
            IntKind::Signed => 1,
            IntKind::Char => 2,
            IntKind::Bool => 4,
        };
        self.word(encoding << 24 | (bytes.wrapping_mul(8) & 0xff));
        id
    }

    /// A floating-point number.
    pub fn float(&mut self, name: &str, bytes: u32) -> u32 {
        self.header(Kind::Float, name, 0, false, bytes)
    }

    /// A pointer (0 is void).
    pub fn ptr(&mut self, to: u32) -> u32 {
        self.header(Kind::Ptr, "", 0, false, to)
    }

    /// `const`, `volatile` or `restrict`; anything else is taken as `const`.
    pub fn qualifier(&mut self, kind: Kind, of: u32) -> u32 {
        let kind = if matches!(kind, Kind::Volatile | Kind::Restrict) { kind } else { Kind::Const };
        self.header(kind, "", 0, false, of)
    }

    /// A tag on what a pointer points to, e.g. `user`.
    pub fn type_tag(&mut self, tag: &str, of: u32) -> u32 {
        self.header(Kind::TypeTag, tag, 0, false, of)
    }

    pub fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.header(Kind::Typedef, name, 0, false, of)
    }

    /// An array; `index` is the type of its index, some 32-bit integer.
    pub fn array(&mut self, element: u32, index: u32, length: u32) -> u32 {
        let id = self.header(Kind::Array, "", 0, false, 0);
        [element, index, length].into_iter().for_each(|word| self.word(word));
        id
    }

    /// A struct.
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[MemberDef<'_>]) -> u32 {
        self.aggregate(Kind::Struct, name, bytes, members)
    }

    pub fn union(&mut self, name: &str, bytes: u32, members: &[MemberDef<'_>]) -> u32 {
        self.aggregate(Kind::Union, name, bytes, members)
    }

    fn aggregate(&mut self, kind: Kind, name: &str, bytes: u32, members: &[MemberDef<'_>]) -> u32 {
        let members = &members[..members.len().min(MAX_COUNT)];
        let bitfields = members.iter().any(|m| m.bit_size != 0);
        let id = self.header(kind, name, members.len(), bitfields, bytes);
        for member in members {
            let name = self.string(member.name);
            self.word(name);
            self.word(member.ty);
            self.word(if bitfields {
                member.bit_size << 24 | member.bit_offset & 0xff_ffff
            } else {
                member.bit_offset
            });
        }
        id
    }

    /// A struct (or union) that is only declared.
    pub fn forward(&mut self, name: &str, is_union: bool) -> u32 {
        self.header(Kind::Fwd, name, 0, is_union, 0)
    }

    /// An enum of at most 4 bytes.
    pub fn enumeration(&mut self, name: &str, bytes: u32, signed: bool, values: &[(&str, i64)]) -> u32 {
        let values = &values[..values.len().min(MAX_COUNT)];
        let id = self.header(Kind::Enum, name, values.len(), signed, bytes);
        for (name, value) in values {
            let name = self.string(name);
            self.word(name);
            self.word(*value as u32);
        }
        id
    }

    /// An enum of 8 bytes.
    pub fn enumeration64(&mut self, name: &str, bytes: u32, signed: bool, values: &[(&str, i64)]) -> u32 {
        let values = &values[..values.len().min(MAX_COUNT)];
        let id = self.header(Kind::Enum64, name, values.len(), signed, bytes);
        for (name, value) in values {
            let name = self.string(name);
            self.word(name);
            self.word(*value as u32);
            self.word((*value >> 32) as u32);
        }
        id
    }

    /// A function's type (return type 0 is void).
    pub fn func_proto(&mut self, returns: u32, params: &[(&str, u32)]) -> u32 {
        let params = &params[..params.len().min(MAX_COUNT)];
        let id = self.header(Kind::FuncProto, "", params.len(), false, returns);
        for (name, ty) in params {
            let name = self.string(name);
            self.word(name);
            self.word(*ty);
        }
        id
    }

    /// A function. `global` functions are checked on their own by the kernel; programs are global, subprograms static.
    pub fn func(&mut self, name: &str, proto: u32, global: bool) -> u32 {
        self.header(Kind::Func, name, usize::from(global), false, proto)
    }

    /// A global variable.
    pub fn var(&mut self, name: &str, ty: u32) -> u32 {
        let id = self.header(Kind::Var, name, 0, false, ty);
        const GLOBAL_ALLOCATED: u32 = 1;
        self.word(GLOBAL_ALLOCATED);
        id
    }

    /// A section of variables: (variable, offset, bytes) each.
    pub fn datasec(&mut self, name: &str, bytes: u32, vars: &[(u32, u32, u32)]) -> u32 {
        let vars = &vars[..vars.len().min(MAX_COUNT)];
        let id = self.header(Kind::Datasec, name, vars.len(), false, bytes);
        for (var, offset, bytes) in vars {
            [*var, *offset, *bytes].into_iter().for_each(|word| self.word(word));
        }
        id
    }

    /// The bytes.
    pub fn finish(&self) -> Vec<u8> {
        const HEADER_BYTES: u32 = 24;
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [HEADER_BYTES, 0, types, types, strings] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.types);
        out.extend_from_slice(&self.strings);
        out
    }
}

/// Members, values and parameters a type can have.
const MAX_COUNT: usize = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_finds_what_was_built() {
        let mut b = Builder::new();
        let int = b.int("int", 4, IntKind::Signed);
        let flag = b.int("_Bool", 1, IntKind::Bool);
        let user = b.type_tag("user", int);
        let user_ptr = b.ptr(user);
        let list = b.array(int, int, 3);
        let inner = b.union("", 4, &[MemberDef::at(0, "x", int), MemberDef::at(0, "y", int)]);
        let bit = MemberDef { name: "bit", ty: int, bit_offset: 161, bit_size: 3 };
        let members = [
            MemberDef::at(0, "", inner),
            MemberDef::at(4, "list", list),
            MemberDef::at(16, "flag", flag),
            bit,
            MemberDef::at(24, "p", user_ptr),
        ];
        let s = b.structure("s", 32, &members);
        let e = b.enumeration("e", 4, true, &[("MINUS", -1), ("TWO", 2)]);
        let e64 = b.enumeration64("big", 8, false, &[("HUGE", 1 << 40)]);
        let proto = b.func_proto(int, &[("a", s), ("", int)]);
        let f = b.func("f", proto, true);
        let btf = Btf::parse(b.finish()).unwrap();
        assert_eq!(btf.find("s", Kind::Struct), Some(s));
        assert_eq!(btf.size(s), Some(32));
        assert_eq!(btf.size(list), Some(12));
        let y = btf.member(s, "y").unwrap();
        assert_eq!((y.bit_offset, y.ty), (0, int));
        let bit = btf.member(s, "bit").unwrap();
        assert_eq!((bit.bit_offset, bit.bit_size), (161, 3));
        assert!(btf.is_signed(btf.ty(int)) && !btf.is_signed(btf.ty(flag)) && btf.is_bool(btf.ty(flag)));
        assert!(btf.is_user_pointer(btf.ty(user_ptr)));
        assert_eq!(btf.constant("MINUS"), Some((e, -1)));
        assert_eq!(btf.constant("HUGE"), Some((e64, 1 << 40)));
        assert_eq!(btf.find("f", Kind::Func), Some(f));
        assert_eq!(btf.params(btf.ty(proto)), [("a", s), ("", int)]);
        assert_eq!(btf.describe(user_ptr), "int *");
    }

    #[test]
    fn strings_are_shared_and_cut_at_nul() {
        let mut b = Builder::new();
        assert_eq!(b.string("abc"), b.string("abc\0def"));
        assert_eq!(b.string(""), 0);
        assert_eq!(b.string("\0x"), 0);
    }
}
