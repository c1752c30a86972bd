//! Reader of BTF, the kernel's description of its own types.
//!
//! The bytes stay as they are; parsing finds where each type starts and checks that every record lies inside the data, so
//! that later reads cannot fail. Names are indexed on first use. Ids are those of the data: the kernel's own ids.
//!
//! A module's types continue those of the kernel: its ids and texts begin where the kernel's end, and a set of them shows
//! both.

mod access;

pub use access::Access;

use std::collections::HashMap;
use std::ffi::CStr;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, OnceLock};

/// What the name of the function begins with that an iterator's programs attach to, and whose parameters are what they get.
pub const ITERATOR: &str = "bpf_iter_";

/// A set of types. Cloning shares the bytes.
#[derive(Clone)]
pub struct Btf(Arc<Inner>);

struct Inner {
    raw: Vec<u8>,
    strings: std::ops::Range<usize>,
    /// Byte position of type `first + i`; for a set of its own, entry 0 stands for void.
    positions: Vec<u32>,
    /// What this set continues.
    base: Option<Btf>,
    /// Lowest id of its own, 0 without a base.
    first: u32,
    /// Lowest offset of its own strings, 0 without a base.
    first_text: u32,
    /// By hash of name and kind.
    names: OnceLock<HashMap<u64, u32, IsHash>>,
    constants: OnceLock<HashMap<u64, (u32, u32), IsHash>>,
}

/// Keys are hashes already: hashing them again took most of the time that the indexes took.
type IsHash = BuildHasherDefault<KeyItself>;

#[derive(Default)]
struct KeyItself(u64);

impl Hasher for KeyItself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(bytes);
    }
}

/// Why bytes are not BTF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    #[error("not valid BTF: cut short")]
    CutShort,
    #[error("not valid BTF: wrong magic number")]
    Magic,
    #[error("not valid BTF: section out of range")]
    Section,
    #[error("not valid BTF: string section does not end in NUL")]
    Strings,
    #[error("not valid BTF: unknown kind {0}")]
    Kind(u32),
    #[error("not valid BTF: a type runs past the end")]
    Type,
}

/// Kinds of type, numbered as in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Void,
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

const KINDS: [Kind; 20] = [
    Kind::Void,
    Kind::Int,
    Kind::Ptr,
    Kind::Array,
    Kind::Struct,
    Kind::Union,
    Kind::Enum,
    Kind::Fwd,
    Kind::Typedef,
    Kind::Volatile,
    Kind::Const,
    Kind::Restrict,
    Kind::Func,
    Kind::FuncProto,
    Kind::Var,
    Kind::Datasec,
    Kind::Float,
    Kind::DeclTag,
    Kind::TypeTag,
    Kind::Enum64,
];

/// Members looked at in one search: far more than any real struct has, so that anonymous structs within themselves (in
/// hostile data) end.
const MAX_MEMBERS: u32 = 100_000;

/// A type's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    pub id: u32,
    pub kind: Kind,
    /// Members, values or parameters it has.
    pub count: u32,
    /// Bytes (int, struct, union, enum) or the id it refers to (pointer, typedef, function...).
    pub size_or_type: u32,
    flag: bool,
    name: u32,
    body: usize,
}

/// A member of a struct or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name, empty for an anonymous struct or union.
    pub name: &'a str,
    /// Its type.
    pub ty: u32,
    /// Bits from the start of the struct asked for.
    pub bit_offset: u32,
    /// Bits of a bitfield; 0 for anything else.
    pub bit_size: u32,
}

impl Btf {
    /// Reads BTF; the bytes are checked once, here.
    pub fn parse(raw: Vec<u8>) -> Result<Btf, BtfError> {
        Btf::parse_behind(raw, None)
    }

    /// Reads a module's BTF, which continues `base`.
    pub fn parse_module(raw: Vec<u8>, base: &Btf) -> Result<Btf, BtfError> {
        Btf::parse_behind(raw, Some(base.clone()))
    }

    fn parse_behind(raw: Vec<u8>, base: Option<Btf>) -> Result<Btf, BtfError> {
        let word = |at: usize| -> Result<u32, BtfError> {
            let bytes = raw.get(at..at + 4).ok_or(BtfError::CutShort)?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        if raw.get(..2) != Some(&[0x9f, 0xeb]) {
            return Err(BtfError::Magic);
        }
        let header = word(4)? as usize;
        let section = |offset: u32, len: u32| -> Result<std::ops::Range<usize>, BtfError> {
            let start = header.checked_add(offset as usize).ok_or(BtfError::Section)?;
            let end = start.checked_add(len as usize).filter(|end| *end <= raw.len()).ok_or(BtfError::Section)?;
            Ok(start..end)
        };
        let types = section(word(8)?, word(12)?)?;
        let strings = section(word(16)?, word(20)?)?;
        if strings.is_empty() || raw[strings.end - 1] != 0 {
            return Err(BtfError::Strings);
        }
        let mut positions = Vec::with_capacity(types.len() / 24 + 1);
        if base.is_none() {
            positions.push(0);
        }
        let mut at = types.start;
        while at < types.end {
            let info = word(at + 4)?;
            let count = (info & 0xffff) as usize;
            let body = match (info >> 24) & 0x1f {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                2 | 7..=12 | 16 | 18 => 0,
                kind => return Err(BtfError::Kind(kind)),
            };
            if at + 12 + body > types.end {
                return Err(BtfError::Type);
            }
            positions.push(at as u32);
            at += 12 + body;
        }
        let first = base.as_ref().map_or(0, Btf::len);
        let first_text = base.as_ref().map_or(0, Btf::text_bytes);
        let (names, constants) = Default::default();
        Ok(Btf(Arc::new(Inner { raw, strings, positions, base, first, first_text, names, constants })))
    }

    /// Number of ids, void included.
    #[allow(clippy::len_without_is_empty, reason = "void is always there")]
    pub fn len(&self) -> u32 {
        self.0.first + self.0.positions.len() as u32
    }

    /// The kernel's types that a module's continue; a set that stands for itself is its own base.
    pub(super) fn base(&self) -> &Btf {
        self.0.base.as_ref().unwrap_or(self)
    }

    /// Whether both are one set in memory.
    pub(super) fn same(&self, other: &Btf) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes of its texts, where those of a module begin.
    pub(super) fn text_bytes(&self) -> u32 {
        self.0.first_text + self.0.strings.len() as u32
    }

    /// Whether a type is the module's own, and none of the kernel's that the module's continue.
    pub fn is_of_module(&self, id: u32) -> bool {
        self.0.base.is_some() && id >= self.0.first
    }

    /// The set in which a type is written.
    fn home(&self, id: u32) -> &Btf {
        match &self.0.base {
            Some(base) if id < self.0.first => base.home(id),
            _ => self,
        }
    }

    fn word(&self, at: usize) -> u32 {
        // `parse` has checked every record; an id out of range was turned into void by `ty`.
        self.0.raw.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn bytes_at(&self, offset: u32) -> &[u8] {
        let Some(own) = offset.checked_sub(self.0.first_text) else {
            return self.0.base.as_ref().map_or(&[], |base| base.bytes_at(offset));
        };
        let strings = &self.0.raw[self.0.strings.clone()];
        let tail = strings.get(own as usize..).unwrap_or(&[]);
        CStr::from_bytes_until_nul(tail).map_or(tail, CStr::to_bytes)
    }

    fn text(&self, offset: u32) -> &str {
        std::str::from_utf8(self.bytes_at(offset)).unwrap_or("")
    }

    /// The type with this id; void when there is none.
    pub fn ty(&self, id: u32) -> Type {
        let void = Type { id: 0, kind: Kind::Void, count: 0, size_or_type: 0, flag: false, name: 0, body: 0 };
        let home = self.home(id);
        match home.0.positions.get((id - home.0.first) as usize) {
            None | Some(0) => void,
            Some(&at) => {
                let at = at as usize;
                let info = home.word(at + 4);
                Type {
                    id,
                    kind: KINDS[((info >> 24) & 0x1f) as usize],
                    count: info & 0xffff,
                    size_or_type: home.word(at + 8),
                    flag: info >> 31 == 1,
                    name: home.word(at),
                    body: at + 12,
                }
            }
        }
    }

    /// A type's name, empty when it has none.
    pub fn name(&self, t: Type) -> &str {
        self.text(t.name)
    }

    /// The id of a named type.
    pub fn find(&self, name: &str, kind: Kind) -> Option<u32> {
        let own = self.names().get(&named(name.as_bytes(), kind)).copied();
        let own = own.filter(|id| self.name(self.ty(*id)) == name);
        own.or_else(|| self.0.base.as_ref()?.find(name, kind))
    }

    /// Makes the index of names, so that the first search does not wait for it.
    pub fn prepare(&self) {
        self.names();
    }

    fn names(&self) -> &HashMap<u64, u32, IsHash> {
        self.0.names.get_or_init(|| {
            let mut map = HashMap::with_capacity_and_hasher(self.0.positions.len(), IsHash::default());
            for id in self.own_ids() {
                let t = self.ty(id);
                if t.name != 0 {
                    map.entry(named(self.bytes_at(t.name), t.kind)).or_insert(id);
                }
            }
            map
        })
    }

    fn own_ids(&self) -> std::ops::Range<u32> {
        self.0.first.max(1)..self.len()
    }

    /// The struct or union of this name.
    pub fn find_aggregate(&self, name: &str) -> Option<u32> {
        self.find(name, Kind::Struct).or_else(|| self.find(name, Kind::Union))
    }

    /// The type behind typedefs and qualifiers.
    pub fn strip(&self, mut id: u32) -> Type {
        // No real chain is longer; a cycle in hostile data ends as void.
        for _ in 0..32 {
            let t = self.ty(id);
            match t.kind {
                Kind::Typedef | Kind::Const | Kind::Volatile | Kind::Restrict | Kind::TypeTag => id = t.size_or_type,
                _ => return t,
            }
        }
        self.ty(0)
    }

    /// Whether a pointer type carries the `__user` tag on what it points to.
    pub fn is_user_pointer(&self, pointer: Type) -> bool {
        let mut id = pointer.size_or_type;
        for _ in 0..8 {
            let t = self.ty(id);
            match t.kind {
                Kind::TypeTag if self.name(t) == "user" => return true,
                Kind::TypeTag | Kind::Const | Kind::Volatile | Kind::Restrict => id = t.size_or_type,
                _ => return false,
            }
        }
        false
    }

    /// Direct members of a struct or union.
    pub fn members(&self, t: Type) -> impl Iterator<Item = Member<'_>> {
        let count = if matches!(t.kind, Kind::Struct | Kind::Union) { t.count } else { 0 };
        (0..count as usize).map(move |i| {
            let at = t.body + i * 12;
            let home = self.home(t.id);
            let offset = home.word(at + 8);
            let (bit_offset, bit_size) = if t.flag { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            Member { name: self.text(home.word(at)), ty: home.word(at + 4), bit_offset, bit_size }
        })
    }

    /// A member by name, looking through anonymous structs and unions; the offset is from `aggregate`'s start.
    pub fn member(&self, aggregate: u32, name: &str) -> Option<Member<'_>> {
        self.member_within(aggregate, name, 0, &mut { MAX_MEMBERS })
    }

    fn member_within(&self, aggregate: u32, name: &str, depth: u32, budget: &mut u32) -> Option<Member<'_>> {
        if depth > 16 {
            return None;
        }
        for m in self.members(self.strip(aggregate)) {
            *budget = budget.checked_sub(1)?;
            if m.name == name {
                return Some(m);
            }
            if m.name.is_empty()
                && let Some(inner) = self.member_within(m.ty, name, depth + 1, budget)
            {
                return Some(Member { bit_offset: inner.bit_offset.wrapping_add(m.bit_offset), ..inner });
            }
        }
        None
    }

    /// Names of all members, anonymous ones opened: for "did you mean".
    pub fn member_names(&self, aggregate: u32) -> Vec<&str> {
        let mut names = Vec::new();
        let mut open = vec![(aggregate, 0)];
        let mut budget = MAX_MEMBERS;
        while let Some((id, depth)) = open.pop() {
            for m in self.members(self.strip(id)) {
                budget -= 1;
                if budget == 0 {
                    return names;
                }
                if !m.name.is_empty() {
                    names.push(m.name);
                } else if depth < 16 {
                    open.push((m.ty, depth + 1));
                }
            }
        }
        names
    }

    /// Parameters of a function prototype: name and type.
    pub fn params(&self, t: Type) -> Vec<(&str, u32)> {
        let count = if t.kind == Kind::FuncProto { t.count } else { 0 };
        let word = |at| self.home(t.id).word(t.body + at);
        (0..count as usize).map(|i| (self.text(word(i * 8)), word(i * 8 + 4))).collect()
    }

    /// Element type and length of an array.
    pub fn array(&self, t: Type) -> Option<(u32, u32)> {
        let home = self.home(t.id);
        (t.kind == Kind::Array).then(|| (home.word(t.body), home.word(t.body + 8)))
    }

    /// Names and values of an enum.
    pub fn enum_values(&self, t: Type) -> Vec<(&str, i64)> {
        (0..t.count as usize).filter_map(|i| self.enum_value(t, i)).collect()
    }

    fn enum_value(&self, t: Type, i: usize) -> Option<(&str, i64)> {
        let home = self.home(t.id);
        match t.kind {
            Kind::Enum => {
                let at = t.body + i * 8;
                let value = home.word(at + 4);
                Some((self.text(home.word(at)), if t.flag { i64::from(value as i32) } else { i64::from(value) }))
            }
            Kind::Enum64 => {
                let at = t.body + i * 12;
                let value = u64::from(home.word(at + 4)) | u64::from(home.word(at + 8)) << 32;
                Some((self.text(home.word(at)), value as i64))
            }
            _ => None,
        }
    }

    /// An enum constant by name: its enum's id and its value.
    pub fn constant(&self, name: &str) -> Option<(u32, i64)> {
        let index = self.0.constants.get_or_init(|| {
            let mut map = HashMap::with_hasher(IsHash::default());
            for id in self.own_ids() {
                let t = self.ty(id);
                // Bytes of a value: its name comes first.
                let stride = match t.kind {
                    Kind::Enum => 8,
                    Kind::Enum64 => 12,
                    _ => continue,
                };
                for i in 0..t.count {
                    let name = self.bytes_at(self.word(t.body + i as usize * stride));
                    map.entry(hash(name)).or_insert((id, i));
                }
            }
            map
        });
        let own = index.get(&hash(name.as_bytes())).and_then(|&(id, i)| {
            let (found, value) = self.enum_value(self.ty(id), i as usize)?;
            (found == name).then_some((id, value))
        });
        own.or_else(|| self.0.base.as_ref()?.constant(name))
    }

    /// Bytes a value of this type takes; `None` for functions, void and incomplete types.
    pub fn size(&self, id: u32) -> Option<u32> {
        let mut t = self.strip(id);
        let mut elements = 1u32;
        // C has no array of more dimensions; an array of itself in hostile data ends as unknown.
        for _ in 0..32 {
            match t.kind {
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => {
                    return t.size_or_type.checked_mul(elements);
                }
                Kind::Ptr => return elements.checked_mul(8),
                _ => {}
            }
            let (element, n) = self.array(t)?;
            elements = elements.checked_mul(n)?;
            t = self.strip(element);
        }
        None
    }

    /// Whether an integer or enum is signed.
    pub fn is_signed(&self, t: Type) -> bool {
        match t.kind {
            Kind::Int => self.home(t.id).word(t.body) >> 24 & 1 == 1,
            Kind::Enum | Kind::Enum64 => t.flag,
            _ => false,
        }
    }

    /// Whether an integer is C's `_Bool`.
    pub fn is_bool(&self, t: Type) -> bool {
        t.kind == Kind::Int && self.home(t.id).word(t.body) >> 24 & 4 == 4
    }

    /// Whether a forward declaration is of a union, not of a struct.
    pub fn is_union_forward(&self, t: Type) -> bool {
        t.kind == Kind::Fwd && t.flag
    }

    /// A function's parameters and the type of its result (0 for void). `None` when it has no BTF.
    pub fn function(&self, name: &str) -> Option<(Vec<(&str, u32)>, u32)> {
        let proto = self.ty(self.ty(self.find(name, Kind::Func)?).size_or_type);
        (proto.kind == Kind::FuncProto).then(|| (self.params(proto), proto.size_or_type))
    }

    /// Names of all functions that have BTF.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        (1..self.len()).map(|id| self.ty(id)).filter(|t| t.kind == Kind::Func).map(|t| self.name(t))
    }

    /// C arguments of a tracepoint, as `tp_btf` and `raw_tp` programs get them. Types come from `btf_trace_EVENT`; names
    /// from `__traceiter_EVENT`, as the typedef's prototype has none. `None` when there is no such tracepoint.
    pub fn tracepoint_args(&self, event: &str) -> Option<Vec<(String, u32)>> {
        let typedef = self.ty(self.find(&format!("btf_trace_{event}"), Kind::Typedef)?);
        let proto = self.strip(self.strip(typedef.size_or_type).size_or_type);
        let named = self
            .find(&format!("__traceiter_{event}"), Kind::Func)
            .map(|f| self.params(self.strip(self.ty(f).size_or_type)))
            .unwrap_or_default();
        // The first parameter of both is `void *__data`, which programs do not see.
        let args = self.params(proto).into_iter().enumerate().skip(1).map(|(i, (name, ty))| {
            let name = named.get(i).map_or(name, |(n, _)| n);
            (if name.is_empty() { format!("arg{}", i - 1) } else { name.to_string() }, ty)
        });
        Some(args.collect())
    }

    /// Names of all tracepoints that have BTF.
    pub fn tracepoints(&self) -> Vec<&str> {
        (1..self.len())
            .map(|id| self.ty(id))
            .filter(|t| t.kind == Kind::Typedef)
            .filter_map(|t| self.name(t).strip_prefix("btf_trace_"))
            .collect()
    }

    /// A type as C would write it, for messages.
    pub fn describe(&self, id: u32) -> String {
        self.describe_within(id, 0)
    }

    fn describe_within(&self, id: u32, depth: u32) -> String {
        let t = self.ty(id);
        if depth > 16 {
            return "...".into();
        }
        let named = |keyword: &str| match self.name(t) {
            "" => format!("{keyword} {{...}}"),
            name => format!("{keyword} {name}"),
        };
        match t.kind {
            Kind::Void => "void".into(),
            Kind::Ptr => format!("{} *", self.describe_within(t.size_or_type, depth + 1)),
            Kind::Const => format!("const {}", self.describe_within(t.size_or_type, depth + 1)),
            Kind::Volatile | Kind::Restrict | Kind::TypeTag => self.describe_within(t.size_or_type, depth + 1),
            Kind::Struct => named("struct"),
            Kind::Union => named("union"),
            Kind::Fwd => named(if t.flag { "union" } else { "struct" }),
            Kind::Enum | Kind::Enum64 => named("enum"),
            Kind::Array => {
                let (element, n) = self.array(t).unwrap_or_default();
                format!("{}[{n}]", self.describe_within(element, depth + 1))
            }
            Kind::FuncProto => "function".into(),
            _ => self.name(t).to_string(),
        }
    }
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Btf({} types)", self.len())
    }
}

/// The names of a kernel (about 130,000 types) are indexed by hash, so that the index holds no strings. Eight bytes at a time.
fn hash(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = bytes.chunks(8).map(|chunk| match chunk.first_chunk() {
        Some(whole) => u64::from_le_bytes(*whole),
        None => chunk.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)),
    });
    // Without the length names that end in NUL would be like those that do not.
    let mixed = words.fold(bytes.len() as u64, |h, word| (h.rotate_left(23) ^ word).wrapping_mul(ODD));
    mixed ^ mixed >> 32
}

fn named(name: &[u8], kind: Kind) -> u64 {
    hash(name) ^ (kind as u64).wrapping_mul(0x0101_0101_0101_0101)
}

#[cfg(test)]
mod tests;
