//! A writer of small BTF, enough to describe the few kernel types that the cases use.

/// Types are numbered from 1 in the order they are added.
#[derive(Default)]
pub struct BtfBytes {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const CONST: u32 = 10;
const FUNC: u32 = 12;
const PROTO: u32 = 13;
const TAG: u32 = 18;

impl BtfBytes {
    pub fn new() -> Self {
        Self { strings: vec![0], ..Self::default() }
    }

    /// The id that the next type will have.
    pub fn next_id(&self) -> u32 {
        self.count + 1
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes());
        self.strings.push(0);
        at
    }

    fn header(&mut self, name: &str, kind: u32, flag: bool, count: usize, size_or_type: u32) -> u32 {
        let name = self.string(name);
        self.words(&[name, (u32::from(flag) << 31) | (kind << 24) | count as u32, size_or_type]);
        self.count += 1;
        self.count
    }

    /// `encoding`: 1 signed, 2 char, 4 bool.
    pub fn int(&mut self, name: &str, bytes: u32, encoding: u32) -> u32 {
        let id = self.header(name, INT, false, 0, bytes);
        self.words(&[(encoding << 24) | (bytes * 8)]);
        id
    }

    pub fn ptr(&mut self, to: u32) -> u32 {
        self.header("", PTR, false, 0, to)
    }

    pub fn array(&mut self, element: u32, count: u32, index: u32) -> u32 {
        let id = self.header("", ARRAY, false, 0, 0);
        self.words(&[element, index, count]);
        id
    }

    pub fn typedef(&mut self, name: &str, to: u32) -> u32 {
        self.header(name, TYPEDEF, false, 0, to)
    }

    pub fn constant(&mut self, to: u32) -> u32 {
        self.header("", CONST, false, 0, to)
    }

    pub fn tag(&mut self, name: &str, to: u32) -> u32 {
        self.header(name, TAG, false, 0, to)
    }

    pub fn enumeration(&mut self, name: &str, values: &[(&str, i32)]) -> u32 {
        let signed = values.iter().any(|(_, v)| *v < 0);
        let id = self.header(name, ENUM, signed, values.len(), 4);
        for (name, value) in values {
            let name = self.string(name);
            self.words(&[name, *value as u32]);
        }
        id
    }

    /// Members: name, type, first bit, bits of a bitfield or 0.
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32, u32)]) -> u32 {
        self.aggregate(STRUCT, name, bytes, members)
    }

    pub fn union(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32, u32)]) -> u32 {
        self.aggregate(UNION, name, bytes, members)
    }

    fn aggregate(&mut self, kind: u32, name: &str, bytes: u32, members: &[(&str, u32, u32, u32)]) -> u32 {
        let bitfields = members.iter().any(|m| m.3 > 0);
        let id = self.header(name, kind, bitfields, members.len(), bytes);
        for (name, ty, bit, width) in members {
            let name = self.string(name);
            self.words(&[name, *ty, (width << 24) | bit]);
        }
        id
    }

    /// A tracepoint: the typedef with its unnamed prototype, and the function that has the names.
    pub fn tracepoint(&mut self, event: &str, args: &[(&str, u32)]) {
        let data = self.ptr(0);
        for named in [false, true] {
            let proto = self.header("", PROTO, false, args.len() + 1, 0);
            for (name, ty) in [("__data", data)].iter().chain(args) {
                let name = if named { self.string(name) } else { 0 };
                self.words(&[name, *ty]);
            }
            if named {
                self.header(&format!("__traceiter_{event}"), FUNC, false, 0, proto);
            } else {
                let pointer = self.ptr(proto);
                self.typedef(&format!("btf_trace_{event}"), pointer);
            }
        }
    }

    pub fn function(&mut self, name: &str, params: &[(&str, u32)]) {
        let proto = self.header("", PROTO, false, params.len(), 0);
        for (name, ty) in params {
            let name = self.string(name);
            self.words(&[name, *ty]);
        }
        self.header(name, FUNC, false, 0, proto);
    }

    pub fn finish(self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            bytes.extend(u32::to_le_bytes(word));
        }
        bytes.extend(self.types);
        bytes.extend(self.strings);
        bytes
    }
}
