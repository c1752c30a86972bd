//! What a `print fmt` becomes: pieces of text and conversions, and the expressions that these show.

use super::eval::constant;

/// An expression of a [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(pub u32);

/// A compiled `print fmt`.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    /// Expressions; those that others use come before them.
    pub nodes: Vec<Node>,
    /// How deep each goes and how many steps it takes.
    costs: Vec<Cost>,
    /// Those of all arguments.
    steps: u32,
    /// The text in order.
    pub pieces: Vec<Piece>,
    /// What the conversions show, in order.
    pub arguments: Vec<Id>,
    /// What was not understood, and left out: names of numbers, and addresses.
    pub unknown: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    depth: u32,
    steps: u32,
}

/// An expression may be this deep: evaluation goes as deep on the stack.
const MAX_DEPTH: u32 = 200;
/// Steps of all arguments together; those of the kernel take some hundreds.
const MAX_STEPS: u32 = 20_000;

impl Program {
    /// Adds an expression; `Err` when it is too deep or takes too long.
    pub fn add(&mut self, node: Node) -> Result<Id, &'static str> {
        let mut cost = Cost { depth: 0, steps: 0 };
        node.uses(&mut |id| {
            let part = self.costs[id.0 as usize];
            cost.depth = cost.depth.max(part.depth);
            cost.steps = cost.steps.saturating_add(part.steps);
        });
        cost = Cost { depth: cost.depth + 1, steps: cost.steps.saturating_add(node.steps()) };
        if cost.depth > MAX_DEPTH || cost.steps > MAX_STEPS {
            return Err(TOO_BIG);
        }
        let mut of_numbers = matches!(node, Node::Binary(..) | Node::Unary(..) | Node::Cast(..));
        node.uses(&mut |id| of_numbers &= matches!(self.nodes[id.0 as usize], Node::Number(_)));
        self.nodes.push(node);
        self.costs.push(cost);
        // A format of four thousand million expressions does not fit in memory.
        let id = Id(self.nodes.len() as u32 - 1);
        // What is the same in every record is evaluated once: the kernel's masks are long sums.
        if let Some(number) = of_numbers.then(|| constant(self, id)).flatten() {
            self.nodes[id.0 as usize] = Node::Number(number);
            self.costs[id.0 as usize] = Cost { depth: 1, steps: 1 };
        }
        Ok(id)
    }

    /// Adds an argument.
    pub fn argument(&mut self, id: Id) -> Result<(), &'static str> {
        self.steps = self.steps.saturating_add(self.costs[id.0 as usize].steps);
        if self.steps > MAX_STEPS {
            return Err(TOO_BIG);
        }
        self.arguments.push(id);
        Ok(())
    }
}

const TOO_BIG: &str = "an expression that is too big";

/// One expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Number(Number),
    /// A literal.
    Text(Box<[u8]>),
    /// The field of this place in the format.
    Field(usize),
    /// The contents of a located field.
    Contents(usize),
    /// The length in bytes of a located field's contents.
    Length(usize),
    /// The address of a field.
    Address(Id),
    Cast(Type, Id),
    /// `-`, `~` or `!`.
    Unary(char, Id),
    /// Two operands.
    Binary(Operator, Id, Id),
    /// `condition ? one : other`.
    Choose(Id, Id, Id),
    /// `array[index]`.
    Element(Id, Id),
    /// `__print_flags`.
    Flags(Id, Box<[u8]>, Box<[Named]>),
    /// `__print_symbolic`.
    Symbolic(Id, Box<[Named]>),
    /// `__print_hex` (with spaces) and `__print_hex_str`.
    Hex {
        bytes: Id,
        /// How many.
        length: Id,
        /// Whether spaces stand between.
        spaces: bool,
    },
    /// `__print_array(array, count, element size)`.
    Array(Id, Id, Id),
    /// `__print_hex_dump`.
    Dump(Box<Dump>),
    /// `__get_bitmask`: hexadecimal, groups of 32 bits.
    Bitmask(Id),
}

/// A row of `__print_flags` or `__print_symbolic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Value or mask.
    pub value: u64,
    pub name: Box<[u8]>,
}

/// Arguments of `__print_hex_dump`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dump {
    pub prefix: Box<[u8]>,
    /// 0 nothing, 1 the address, 2 the offset stands before each row.
    pub prefix_kind: u64,
    /// Bytes in a row: 16 or 32.
    pub row: usize,
    /// Bytes in a group: 1, 2, 4 or 8.
    pub group: usize,
    pub bytes: Id,
    pub length: Id,
    pub ascii: bool,
}

impl Node {
    /// What it takes by itself.
    fn steps(&self) -> u32 {
        match self {
            Node::Flags(_, _, rows) | Node::Symbolic(_, rows) => rows.len() as u32 + 1,
            // As long as a record.
            Node::Hex { .. } | Node::Array(..) | Node::Dump(_) | Node::Bitmask(_) => 500,
            _ => 1,
        }
    }

    /// The expressions it is made of.
    fn uses(&self, of: &mut dyn FnMut(Id)) {
        match self {
            Node::Number(_) | Node::Text(_) | Node::Field(_) | Node::Contents(_) | Node::Length(_) => {}
            Node::Address(id) | Node::Cast(_, id) | Node::Unary(_, id) | Node::Bitmask(id) => of(*id),
            Node::Flags(id, ..) | Node::Symbolic(id, _) => of(*id),
            Node::Binary(_, one, two) | Node::Element(one, two) => [one, two].into_iter().for_each(|id| of(*id)),
            Node::Hex { bytes, length, .. } => [bytes, length].into_iter().for_each(|id| of(*id)),
            Node::Choose(one, two, three) | Node::Array(one, two, three) => {
                [one, two, three].into_iter().for_each(|id| of(*id))
            }
            Node::Dump(dump) => [dump.bytes, dump.length].into_iter().for_each(of),
        }
    }
}

/// A C integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    /// Its value; negative ones and those shorter than eight bytes are extended as their type wants it.
    pub bits: u64,
    /// Its type.
    pub kind: Integer,
}

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer {
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether it has a sign.
    pub signed: bool,
}

impl Integer {
    pub const INT: Integer = Integer { bytes: 4, signed: true };
    pub const LONG: Integer = Integer { bytes: 8, signed: true };
    pub const UNSIGNED_LONG: Integer = Integer { bytes: 8, signed: false };

    /// A number of this type from the low bits of another.
    pub fn of(self, bits: u64) -> Number {
        let unused = 64 - 8 * u32::from(self.bytes.clamp(1, 8));
        let bits = if self.signed { ((bits << unused) as i64 >> unused) as u64 } else { bits << unused >> unused };
        Number { bits, kind: self }
    }

    /// The type that two operands are brought to.
    pub fn common(self, other: Integer) -> Integer {
        let (one, two) = (self.promoted(), other.promoted());
        match one.bytes.cmp(&two.bytes) {
            std::cmp::Ordering::Greater => one,
            std::cmp::Ordering::Less => two,
            std::cmp::Ordering::Equal => Integer { bytes: one.bytes, signed: one.signed && two.signed },
        }
    }

    /// What is shorter than an `int` becomes one.
    pub fn promoted(self) -> Integer {
        if self.bytes < 4 { Integer::INT } else { self }
    }
}

/// What a cast makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Integer(Integer),
    /// `bool`: 0 or 1.
    Bool,
    /// A pointer to elements of this type; `None` when their size is not known.
    Pointer(Option<Integer>),
}

/// An operator with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    ShiftLeft,
    ShiftRight,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Box<str>),
    /// The next argument.
    Conversion(Conversion),
}

/// `%` and what follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conversion {
    /// `-`
    pub left: bool,
    /// `+`
    pub plus: bool,
    pub space: bool,
    /// `#`
    pub special: bool,
    /// `0`
    pub zero: bool,
    /// The least number of characters.
    pub width: Width,
    /// Characters of a text, or the least number of digits.
    pub precision: Width,
    /// Bytes of the argument, of numbers.
    pub bytes: u8,
    pub letter: u8,
    /// What follows a `p`.
    pub extension: Box<str>,
}

/// A width or a precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Width {
    /// Not given.
    #[default]
    None,
    /// A number.
    Fixed(u32),
    /// `*`: the next argument.
    Argument,
}
