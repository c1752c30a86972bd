//! Random expressions with a second meaning: `eval` is the language page in Rust, over unbounded integers. Random bucket
//! schemes with the values where they turn. The kernel's own test takes this file too.

use kstrobe_ebpf::buckets::{BucketSpec, Scheme};

/// An integer type: bits, signed.
pub type Int = (u32, bool);

/// Arguments of the generated programs, one of each type.
pub const ARGS: [(&str, &str); 8] = [
    ("u8", "a0"),
    ("u16", "a1"),
    ("u32", "a2"),
    ("u64", "a3"),
    ("s8", "a4"),
    ("s16", "a5"),
    ("s32", "a6"),
    ("s64", "a7"),
];
const TYPES: [Int; 8] =
    [(8, false), (16, false), (32, false), (64, false), (8, true), (16, true), (32, true), (64, true)];

/// A typed expression; `bool`s have the type (1, false).
#[derive(Clone, Debug)]
pub struct Node {
    ty: Int,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With its type written out, or bare where the other side gives the type.
    Const(i128, bool),
    Arg(usize),
    Unary(char, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    Call(&'static str, Vec<Node>),
    Convert(Box<Node>),
    Choose(Box<[Node; 3]>),
    In(Box<Node>, Vec<i128>),
}

/// Numbers that decide what is generated; zeros once they have run out.
pub struct Numbers<'a>(pub std::slice::Iter<'a, u32>);

impl Numbers<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |number| *number as usize % n)
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// An expression of some integer type.
    pub fn expression(&mut self) -> Node {
        let ty = self.pick(&TYPES);
        self.int(ty, 5)
    }

    fn int(&mut self, ty: Int, depth: u32) -> Node {
        let node = |kind| Node { ty, kind };
        if depth == 0 || self.0.len() == 0 {
            return self.leaf(ty);
        }
        match self.below(16) {
            0 | 1 => self.leaf(ty),
            2..=7 => {
                let op = self.pick(&["+", "-", "*", "/", "%", "&", "|", "^"]);
                let left = self.int(ty, depth - 1);
                let right = self.right(ty, depth - 1, matches!(op, "/" | "%"));
                node(Kind::Binary(op, left.into(), right.into()))
            }
            8 => {
                let op = self.pick(&["<<", ">>"]);
                let left = self.int(ty, depth - 1);
                node(Kind::Binary(op, left.into(), self.count(ty).into()))
            }
            9 => {
                let op = if ty.1 { self.pick(&['-', '~']) } else { '~' };
                node(Kind::Unary(op, self.int(ty, depth - 1).into()))
            }
            10 | 11 => {
                let from = self.pick(&TYPES);
                node(Kind::Convert(self.int(from, depth - 1).into()))
            }
            12 => node(Kind::Convert(self.truth(depth - 1).into())),
            13 => {
                let sides = [self.truth(depth - 1), self.int(ty, depth - 1), self.int(ty, depth - 1)];
                node(Kind::Choose(sides.into()))
            }
            14 => {
                let name = self.pick(&["min", "max", "clamp"]);
                let mut args = vec![self.int(ty, depth - 1), self.right(ty, depth - 1, false)];
                if name == "clamp" {
                    args.push(self.right(ty, depth - 1, false));
                }
                node(Kind::Call(name, args))
            }
            _ => match ty {
                (16, false) => node(Kind::Call("ntohs", vec![self.int(ty, depth - 1)])),
                (32, false) if self.below(2) == 0 => node(Kind::Call("ntohl", vec![self.int(ty, depth - 1)])),
                (_, false) => node(Kind::Call("log2", vec![self.int(ty, depth - 1)])),
                _ => self.leaf(ty),
            },
        }
    }

    fn leaf(&mut self, ty: Int) -> Node {
        let kind = match self.below(3) {
            0 => Kind::Const(self.constant(ty), false),
            _ => Kind::Arg(TYPES.iter().position(|t| *t == ty).expect("one of them")),
        };
        Node { ty, kind }
    }

    fn constant(&mut self, ty: Int) -> i128 {
        let (least, most) = range(ty);
        let near = |n: i128| [n - 1, n, n + 1];
        let middle = [0, 7, 1 << 31, 1 << 32, 1 << (ty.0 - 1), -(1 << 31)];
        let edges = [near(least), near(most)].concat();
        let all: Vec<i128> =
            middle.into_iter().flat_map(near).chain(edges).filter(|c| (least..=most).contains(c)).collect();
        self.pick(&all)
    }

    /// A second operand: often a bare number.
    fn right(&mut self, ty: Int, depth: u32, divisor: bool) -> Node {
        match self.below(3) {
            0 => {
                let value = self.constant(ty);
                // The language refuses a constant division by zero.
                let value = if divisor && value == 0 { 1 } else { value };
                Node { ty, kind: Kind::Const(value, true) }
            }
            _ => self.int(ty, depth),
        }
    }

    /// A shift count: the language refuses constants past the width.
    fn count(&mut self, ty: Int) -> Node {
        match self.below(2) {
            0 => Node { ty, kind: Kind::Const(self.below(ty.0 as usize) as i128, true) },
            _ => Node { ty, kind: Kind::Arg(TYPES.iter().position(|t| *t == ty).expect("one of them")) },
        }
    }

    fn truth(&mut self, depth: u32) -> Node {
        let node = |kind| Node { ty: (1, false), kind };
        let depth = depth.saturating_sub(1);
        match if depth == 0 { 0 } else { self.below(8) } {
            0..=3 => {
                let ty = self.pick(&TYPES);
                let op = self.pick(&["==", "!=", "<", "<=", ">", ">="]);
                let left = self.int(ty, depth);
                node(Kind::Binary(op, left.into(), self.right(ty, depth, false).into()))
            }
            4 | 5 => {
                let op = self.pick(&["&&", "||", "==", "!="]);
                let left = self.truth(depth);
                node(Kind::Binary(op, left.into(), self.truth(depth).into()))
            }
            6 => node(Kind::Unary('!', self.truth(depth).into())),
            _ => {
                let ty = self.pick(&TYPES);
                let value = self.int(ty, depth);
                let count = self.pick(&[1, 2, 3, 12]);
                node(Kind::In(value.into(), (0..count).map(|_| self.constant(ty)).collect()))
            }
        }
    }
}

fn range((bits, signed): Int) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The value cut to its type.
fn wrap(value: i128, (bits, signed): Int) -> i128 {
    let low = value & ((1 << bits) - 1);
    if signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
}

fn name((bits, signed): Int) -> String {
    format!("{}{bits}", if signed { 's' } else { 'u' })
}

impl Node {
    /// As a user would write it, with all brackets.
    pub fn text(&self) -> String {
        match &self.kind {
            Kind::Const(value, true) => value.to_string(),
            Kind::Const(value, false) => format!("{}({value})", name(self.ty)),
            Kind::Arg(i) => format!("args.{}", ARGS[*i].1),
            Kind::Unary(op, a) => format!("{op}({})", a.text()),
            Kind::Binary(op, a, b) => format!("({} {op} {})", a.text(), b.text()),
            Kind::Call(name, args) => {
                format!("{name}({})", args.iter().map(Node::text).collect::<Vec<_>>().join(", "))
            }
            Kind::Convert(a) => format!("{}({})", name(self.ty), a.text()),
            Kind::Choose(sides) => {
                let [c, a, b] = sides.each_ref().map(Node::text);
                format!("({c} ? {a} : {b})")
            }
            Kind::In(a, values) => {
                let values: Vec<String> = values.iter().map(i128::to_string).collect();
                format!("({} in [{}])", a.text(), values.join(", "))
            }
        }
    }

    /// What it gives for these words of context, as a gauge stores it.
    pub fn stored(&self, ctx: &[u64]) -> u64 {
        self.eval(ctx) as u64
    }

    fn eval(&self, ctx: &[u64]) -> i128 {
        match &self.kind {
            Kind::Const(value, _) => *value,
            Kind::Arg(i) => wrap(ctx[*i].into(), self.ty),
            Kind::Unary(op, a) => {
                let a = a.eval(ctx);
                match op {
                    '-' => wrap(-a, self.ty),
                    '~' => wrap(!a, self.ty),
                    _ => 1 - a,
                }
            }
            Kind::Binary(op, a, b) => self.binary(op, a.eval(ctx), b.eval(ctx)),
            Kind::Call(name, args) => {
                let args: Vec<i128> = args.iter().map(|a| a.eval(ctx)).collect();
                match (*name, args.as_slice()) {
                    ("min", [a, b]) => *a.min(b),
                    ("max", [a, b]) => *a.max(b),
                    ("clamp", [x, low, high]) => *x.max(low).min(high),
                    ("ntohs", [a]) => (*a as u16).swap_bytes().into(),
                    ("ntohl", [a]) => (*a as u32).swap_bytes().into(),
                    ("log2", [a]) => a.checked_ilog2().unwrap_or(0).into(),
                    other => panic!("no meaning for {other:?}"),
                }
            }
            Kind::Convert(a) => wrap(a.eval(ctx), self.ty),
            Kind::Choose(sides) => {
                let [c, a, b] = sides.as_ref();
                if c.eval(ctx) == 1 { a.eval(ctx) } else { b.eval(ctx) }
            }
            Kind::In(a, values) => values.contains(&a.eval(ctx)).into(),
        }
    }

    fn binary(&self, op: &str, a: i128, b: i128) -> i128 {
        let count = (b & i128::from(self.ty.0 - 1)) as u32;
        let value = match op {
            "+" => a + b,
            "-" => a - b,
            "*" => a.wrapping_mul(b),
            "/" => a.checked_div(b).unwrap_or(0),
            "%" => a.checked_rem(b).unwrap_or(0),
            "&" => a & b,
            "|" => a | b,
            "^" => a ^ b,
            "<<" => a << count,
            ">>" => a >> count,
            "==" => (a == b).into(),
            "!=" => (a != b).into(),
            "<" => (a < b).into(),
            "<=" => (a <= b).into(),
            ">" => (a > b).into(),
            ">=" => (a >= b).into(),
            "&&" => a & b,
            "||" => a | b,
            _ => panic!("no meaning for {op}"),
        };
        wrap(value, self.ty)
    }
}

/// A context word: edges of all widths, with anything above them.
pub fn word(a: u32, b: u32) -> u64 {
    let edges = [0, 1, 2, 7, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 32];
    let wide = u64::from(a) << 32 | u64::from(b);
    match a % 4 {
        0 => wide,
        1 => edges[b as usize % edges.len()],
        2 => 0u64.wrapping_sub(edges[b as usize % edges.len()]),
        _ => edges[b as usize % edges.len()] | wide << 32,
    }
}

/// A bucket scheme, if the numbers describe a possible one.
pub fn scheme(numbers: &[u32]) -> Option<Scheme> {
    let mut n = Numbers(numbers.iter());
    let raw_per_unit = n.pick(&[1, 1000, 1_000_000, 1_000_000_000, 1024, 3]);
    let schema = n.below(6) as u8;
    let (low, high) = (n.below(63), n.below(63));
    let at = |bits: usize, more: usize| (1u64 << bits) + (more as u64) % (1u64 << bits);
    let (a, b) = (at(low, n.below(usize::MAX)), at(high, n.below(usize::MAX)));
    let (min, max) = (a.min(b).saturating_sub(n.below(2) as u64), a.max(b).min(1 << 62));
    let mut classic: Vec<(f64, String)> = Vec::new();
    for _ in 0..n.below(12) {
        let text = format!("{}e{}", 1 + n.below(99), n.below(19) as i32 - 9);
        classic.push((text.parse().expect("a number"), text));
    }
    classic.sort_by(|a, b| a.0.total_cmp(&b.0));
    classic.dedup_by(|a, b| a.0 == b.0);
    // Bounds inside the zero bucket are refused; the others of such a list are still a list.
    let least = min as f64 / raw_per_unit as f64;
    let mut classic: Vec<String> = classic.into_iter().filter(|c| c.0 >= least).map(|c| c.1).collect();
    if n.below(4) == 0 {
        classic.insert(0, "0".into());
    }
    Scheme::new(&BucketSpec { schema, raw_per_unit, min, max, classic }).ok()
}

/// Every bound and its neighbours, the ends, and some values between.
pub fn values(scheme: &Scheme, numbers: &[u32]) -> Vec<u64> {
    let edges = scheme.upper.iter().flat_map(|u| [u.wrapping_sub(1), *u, u + 1]);
    let ends = [0, 1, 2, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 62, (1 << 62) + 1];
    let between = numbers.windows(2).map(|w| (u64::from(w[0]) << 32 | u64::from(w[1])) >> (w[1] % 64));
    edges.chain(ends).chain(between).collect()
}
