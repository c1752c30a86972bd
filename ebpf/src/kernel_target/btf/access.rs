//! The type that the kernel's verifier gives to a load through a pointer whose BTF type it knows.
//!
//! It has an offset and a size, and no names: of members that overlap it takes the first, so that a member behind a union may be for it
//! a pointer, or part of one (`btf_struct_walk` in `kernel/bpf/btf.c`). Where kernels differ, this is the strictest of them.

use super::{Btf, Kind, Member, Type};

/// What a load gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A number.
    Scalar,
    /// A pointer to this struct or union.
    Pointer(u32),
    /// A pointer to anything else: a number to kernels before 6.17, and to later ones the address of memory of no known type.
    Address,
    /// Nothing: the program is refused.
    Refused,
}

/// Structs within structs that are looked into: more than any real one has.
const MAX_DEPTH: u32 = 64;

impl Btf {
    /// Whether the verifier of every kernel lets a BTF-typed program load an argument of this type (`btf_ctx_access`): of pointers
    /// those to structs, `void *`, and to characters. Numbers came with 5.17, `const void *` with 6.16; functions and pointers
    /// to pointers are refused in all, even as numbers.
    pub fn is_loadable_argument(&self, ty: u32) -> bool {
        let t = self.strip(ty);
        if t.kind != Kind::Ptr || t.size_or_type == 0 {
            return true;
        }
        if matches!(self.strip(t.size_or_type).kind, Kind::Struct | Kind::Union) {
            return true;
        }
        // Before 5.17 `is_string_ptr` looks behind one `const` and nothing else.
        let pointee = self.ty(t.size_or_type);
        let pointee = if pointee.kind == Kind::Const { self.ty(pointee.size_or_type) } else { pointee };
        pointee.kind == Kind::Int && pointee.size_or_type == 1
    }

    /// What the verifier finds in a struct at so many bytes.
    pub fn access(&self, aggregate: u32, offset: i32, size: u32) -> Access {
        let Ok(mut offset) = u32::try_from(offset) else { return Access::Refused };
        let mut t = self.strip(aggregate);
        for _ in 0..MAX_DEPTH {
            if !matches!(t.kind, Kind::Struct | Kind::Union) {
                return Access::Refused;
            }
            let found = match offset.checked_add(size) {
                Some(end) if end <= t.size_or_type => self.found(t, offset, size),
                _ => self.in_flexible_array(t, offset),
            };
            match found {
                Found::Access(access) => return access,
                Found::Within(inner, at) => (t, offset) = (inner, at),
            }
        }
        Access::Refused
    }

    /// The first member at the offset.
    fn found(&self, t: Type, offset: u32, size: u32) -> Found {
        for m in self.members(t) {
            let start = m.bit_offset / 8;
            if offset + size <= start {
                break;
            }
            if m.bit_size > 0 {
                let end = (m.bit_offset + m.bit_size).div_ceil(8);
                if offset <= start && end <= offset + size {
                    return Found::Access(Access::Scalar);
                }
                continue;
            }
            if offset < start {
                break;
            }
            // What has no size ends the verifier's search.
            let Some(bytes) = self.size(m.ty) else { break };
            if offset < start + bytes {
                return self.in_member(m, start, bytes, offset, size);
            }
        }
        Found::Access(Access::Refused)
    }

    fn in_member(&self, m: Member, start: u32, bytes: u32, offset: u32, size: u32) -> Found {
        let mut element = self.strip(m.ty);
        // As in `size`, an array of itself in hostile data ends.
        for _ in 0..32 {
            let Some((inner, _)) = self.array(element) else { break };
            element = self.strip(inner);
        }
        let stride = self.size(element.id).unwrap_or(bytes).max(1);
        let within = (offset - start) % stride;
        match element.kind {
            Kind::Struct | Kind::Union => Found::Within(element, within),
            Kind::Ptr if within != 0 || size != stride => Found::Access(Access::Refused),
            Kind::Ptr => Found::Access(self.pointer(element)),
            // An array of numbers may be read in other portions than its elements, but not beyond its end.
            _ if offset + size > start + bytes => Found::Access(Access::Refused),
            _ => Found::Access(Access::Scalar),
        }
    }

    fn pointer(&self, pointer: Type) -> Access {
        let pointee = self.strip(pointer.size_or_type);
        match pointee.kind {
            Kind::Struct | Kind::Union => Access::Pointer(pointee.id),
            _ => Access::Address,
        }
    }

    /// Behind the end of a struct there may be an array of no fixed length: the verifier follows one of structs.
    fn in_flexible_array(&self, t: Type, offset: u32) -> Found {
        let refused = Found::Access(Access::Refused);
        let Some(last) = self.members(t).last() else { return refused };
        let Some((element, 0)) = self.array(self.strip(last.ty)) else { return refused };
        let (element, start) = (self.strip(element), last.bit_offset / 8);
        match element.kind {
            Kind::Struct | Kind::Union if offset >= start && element.size_or_type > 0 => {
                Found::Within(element, (offset - start) % element.size_or_type)
            }
            _ => refused,
        }
    }
}

enum Found {
    Access(Access),
    /// Further in: a struct, and the offset in it.
    Within(Type, u32),
}
