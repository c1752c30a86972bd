//! From the text of a `print fmt` to a [`Program`].

use super::lexer::{Token, tokens};
use super::program::{Conversion, Id, Integer, Node, Number, Operator, Piece, Program, Type, Width};
use super::{calls, conversion};
use crate::format::EventFormat;
use std::collections::HashMap;

/// Why a `print fmt` cannot be compiled.
pub(super) type Refused = String;

/// Brackets, signs and questions may nest this deep.
const MAX_NESTING: u32 = 100;

/// Compiles the print format of an event.
pub(super) fn compile(format: &EventFormat) -> Result<Program, Refused> {
    let tokens = tokens(&format.print)?;
    let mut parser = Parser { tokens, at: 0, format, program: Program::default(), locals: HashMap::new(), nesting: 0 };
    let pieces = conversion::pieces(&parser.literal()?)?;
    let mut wanted = pieces.iter().flat_map(Piece::arguments);
    while parser.take(",") {
        let argument = match wanted.next() {
            // An address by itself says the least of all: the rest stands without it.
            Some(Some(conversion)) if conversion.letter == b'p' && conversion.extension.is_empty() => {
                match parser.attempt() {
                    Some(argument) => argument,
                    None => parser.program.add(Node::Text(Box::from(*b"?")))?,
                }
            }
            _ => parser.expression()?,
        };
        parser.program.argument(argument)?;
    }
    if parser.at < parser.tokens.len() {
        return Err("something behind the last argument".into());
    }
    if wanted.next().is_some() {
        return Err("more conversions than arguments".into());
    }
    drop(wanted);
    parser.program.pieces = pieces;
    Ok(parser.program)
}

pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    pub(super) at: usize,
    pub(super) format: &'a EventFormat,
    pub(super) program: Program,
    /// Variables of `({ int x = ...; ... })`.
    locals: HashMap<&'a str, Id>,
    nesting: u32,
}

impl<'a> Parser<'a> {
    /// Goes on, from a place, to the next mark outside of brackets, or to what closes them.
    pub(super) fn skip(&mut self, from: usize, mark: &str) {
        self.at = from;
        let mut open = 0;
        while let Some(token) = self.tokens.get(self.at) {
            match token {
                Token::Mark(found) if open == 0 && *found == mark => return,
                Token::Mark("(" | "[" | "{") => open += 1,
                Token::Mark(")" | "]" | "}") if open == 0 => return,
                Token::Mark(")" | "]" | "}") => open -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }

    /// An expression that may not be understood: then what it says is unknown, and nothing else.
    pub(super) fn attempt(&mut self) -> Option<Id> {
        let (start, nesting) = (self.at, self.nesting);
        match self.expression() {
            Ok(id) => Some(id),
            Err(why) => {
                self.nesting = nesting;
                self.skip(start, ",");
                self.program.unknown.push(why);
                None
            }
        }
    }

    /// Literals side by side are one.
    pub(super) fn literal(&mut self) -> Result<Vec<u8>, Refused> {
        let mut text = match self.next() {
            Some(Token::Text(text)) => text,
            _ => return Err("no text where one belongs".into()),
        };
        while let Some(Token::Text(more)) = self.tokens.get(self.at) {
            text.extend_from_slice(more);
            self.at += 1;
        }
        Ok(text)
    }

    pub(super) fn expression(&mut self) -> Result<Id, Refused> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err("brackets too deep".into());
        }
        let condition = self.binary(0)?;
        let result = if self.take("?") {
            // `a ?: b` is an extension of the kernel's compilers.
            let one = if self.is(":") { condition } else { self.expression()? };
            self.expect(":")?;
            let other = self.expression()?;
            self.program.add(Node::Choose(condition, one, other))?
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(result)
    }

    /// Operands joined by operators that bind at least as strongly as asked.
    fn binary(&mut self, least: u8) -> Result<Id, Refused> {
        let mut left = self.unary()?;
        while let Some((strength, operator)) = self.operator().filter(|(strength, _)| *strength >= least) {
            self.at += 1;
            let right = self.binary(strength + 1)?;
            let (one, two) = self.scaled(operator, left, right)?;
            left = self.program.add(Node::Binary(operator, one, two))?;
        }
        Ok(left)
    }

    fn operator(&self) -> Option<(u8, Operator)> {
        let Some(Token::Mark(mark)) = self.tokens.get(self.at) else { return None };
        Some(match *mark {
            "||" => (1, Operator::Or),
            "&&" => (2, Operator::And),
            "|" => (3, Operator::BitOr),
            "^" => (4, Operator::BitXor),
            "&" => (5, Operator::BitAnd),
            "==" => (6, Operator::Equal),
            "!=" => (6, Operator::Unequal),
            "<" => (7, Operator::Less),
            "<=" => (7, Operator::LessOrEqual),
            ">" => (7, Operator::Greater),
            ">=" => (7, Operator::GreaterOrEqual),
            "<<" => (8, Operator::ShiftLeft),
            ">>" => (8, Operator::ShiftRight),
            "+" => (9, Operator::Add),
            "-" => (9, Operator::Subtract),
            "*" => (10, Operator::Multiply),
            "/" => (10, Operator::Divide),
            "%" => (10, Operator::Remainder),
            _ => return None,
        })
    }

    /// What is added to a pointer counts elements.
    fn scaled(&mut self, operator: Operator, left: Id, right: Id) -> Result<(Id, Id), Refused> {
        if !matches!(operator, Operator::Add | Operator::Subtract) {
            return Ok((left, right));
        }
        let pointer = |id: Id| match self.program.nodes[id.0 as usize] {
            Node::Cast(Type::Pointer(element), _) => Some(element),
            _ => None,
        };
        let (element, number) = match (pointer(left), pointer(right)) {
            (None, None) => return Ok((left, right)),
            (Some(element), None) => (element, right),
            (None, Some(element)) => (element, left),
            (Some(_), Some(_)) => return Err("a difference of pointers".into()),
        };
        let bytes = element.ok_or("a pointer to what has no known size, and a number")?.bytes;
        let bytes = self.number(Integer::UNSIGNED_LONG.of(u64::from(bytes)))?;
        let number = self.program.add(Node::Binary(Operator::Multiply, number, bytes))?;
        Ok(if pointer_first(&self.program, left) { (left, number) } else { (number, right) })
    }

    pub(super) fn unary(&mut self) -> Result<Id, Refused> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err("signs too deep".into());
        }
        let result = match self.tokens.get(self.at) {
            Some(Token::Mark(sign @ ("-" | "~" | "!"))) => {
                let sign = *sign;
                self.at += 1;
                let operand = self.unary()?;
                self.program.add(Node::Unary(char::from(sign.as_bytes()[0]), operand))?
            }
            Some(Token::Mark("+")) => {
                self.at += 1;
                self.unary()?
            }
            Some(Token::Mark("&")) => {
                self.at += 1;
                let operand = self.unary()?;
                self.program.add(Node::Address(operand))?
            }
            Some(Token::Mark("*")) => {
                self.at += 1;
                let operand = self.unary()?;
                let first = self.number(Integer::INT.of(0))?;
                self.program.add(Node::Element(operand, first))?
            }
            Some(Token::Mark("(")) => match self.type_in_brackets()? {
                Some(kind) => {
                    let operand = self.unary()?;
                    self.program.add(Node::Cast(kind, operand))?
                }
                None => self.postfix()?,
            },
            _ => self.postfix()?,
        };
        self.nesting -= 1;
        Ok(result)
    }

    fn postfix(&mut self) -> Result<Id, Refused> {
        let mut operand = self.primary()?;
        loop {
            if self.take("[") {
                let index = self.expression()?;
                self.expect("]")?;
                operand = self.program.add(Node::Element(operand, index))?;
            } else if self.is(".") || self.is("->") {
                return Err("a member of a structure".into());
            } else {
                return Ok(operand);
            }
        }
    }

    fn primary(&mut self) -> Result<Id, Refused> {
        match self.tokens.get(self.at) {
            Some(Token::Number(number)) => {
                let number = *number;
                self.at += 1;
                self.number(number)
            }
            Some(Token::Text(_)) => {
                let text = self.literal()?;
                Ok(self.program.add(Node::Text(text.into()))?)
            }
            Some(Token::Mark("(")) => {
                self.at += 1;
                if self.take("{") {
                    return self.statements();
                }
                if matches!(self.tokens.get(self.at..self.at + 2), Some([Token::Name("REC"), Token::Mark(")")])) {
                    self.at += 2;
                    return self.member();
                }
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Some(Token::Name(name)) => {
                let name = *name;
                self.at += 1;
                self.named(name)
            }
            _ => Err("no operand where one belongs".into()),
        }
    }

    fn named(&mut self, name: &'a str) -> Result<Id, Refused> {
        match name {
            "REC" => return self.member(),
            "true" => return self.number(Integer::INT.of(1)),
            "false" | "NULL" => return self.number(Integer::LONG.of(0)),
            "sizeof" => return self.size(),
            _ => {}
        }
        if let Some(local) = self.locals.get(name) {
            return Ok(*local);
        }
        if self.take("(") {
            let result = calls::call(self, name)?;
            self.expect(")")?;
            return Ok(result);
        }
        if let Some(value) = fixed(name) {
            return self.number(Integer::INT.of(value));
        }
        Err(format!("the name `{name}`, whose value the format does not tell"))
    }

    /// `->name` behind `REC`.
    fn member(&mut self) -> Result<Id, Refused> {
        self.expect("->")?;
        let field = self.field()?;
        Ok(self.program.add(Node::Field(field))?)
    }

    /// The name of a field, as its place.
    pub(super) fn field(&mut self) -> Result<usize, Refused> {
        let Some(Token::Name(name)) = self.next() else { return Err("no field's name where one belongs".into()) };
        let place = self.format.fields.iter().position(|field| field.name == name);
        place.ok_or_else(|| format!("no field `{name}`"))
    }

    /// `TYPE NAME = EXPRESSION; ... EXPRESSION; })`, behind `({`.
    fn statements(&mut self) -> Result<Id, Refused> {
        let mut last = None;
        while !self.take("}") {
            let before = self.at;
            if self.type_words().is_some_and(|kind| kind.is_ok())
                && let Some([Token::Name(name), Token::Mark("=")]) = self.tokens.get(self.at..self.at + 2)
            {
                let name = *name;
                self.at += 2;
                let value = self.expression()?;
                self.locals.insert(name, value);
            } else {
                self.at = before;
                last = Some(self.expression()?);
            }
            self.expect(";")?;
        }
        self.expect(")")?;
        last.ok_or_else(|| "statements without a value".into())
    }

    pub(super) fn number(&mut self, number: Number) -> Result<Id, Refused> {
        Ok(self.program.add(Node::Number(number))?)
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.tokens.get(self.at).cloned();
        self.at += usize::from(token.is_some());
        token
    }

    pub(super) fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at)
    }

    pub(super) fn is(&self, mark: &str) -> bool {
        matches!(self.tokens.get(self.at), Some(Token::Mark(found)) if *found == mark)
    }

    pub(super) fn take(&mut self, mark: &str) -> bool {
        let found = self.is(mark);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, mark: &str) -> Result<(), Refused> {
        if self.take(mark) { Ok(()) } else { Err(format!("no `{mark}` where one belongs")) }
    }
}

fn pointer_first(program: &Program, left: Id) -> bool {
    matches!(program.nodes[left.0 as usize], Node::Cast(Type::Pointer(_), _))
}

/// Enumerators that programs see too (`linux/tcp.h`, `linux/ioprio.h`): they are the same for ever.
fn fixed(name: &str) -> Option<u64> {
    const TCP: [&str; 13] = [
        "TCP_ESTABLISHED",
        "TCP_SYN_SENT",
        "TCP_SYN_RECV",
        "TCP_FIN_WAIT1",
        "TCP_FIN_WAIT2",
        "TCP_TIME_WAIT",
        "TCP_CLOSE",
        "TCP_CLOSE_WAIT",
        "TCP_LAST_ACK",
        "TCP_LISTEN",
        "TCP_CLOSING",
        "TCP_NEW_SYN_RECV",
        "TCP_BOUND_INACTIVE",
    ];
    const IOPRIO: [&str; 4] = ["IOPRIO_CLASS_NONE", "IOPRIO_CLASS_RT", "IOPRIO_CLASS_BE", "IOPRIO_CLASS_IDLE"];
    if name == "IOPRIO_CLASS_INVALID" {
        return Some(7);
    }
    let place = |names: &[&str]| names.iter().position(|known| *known == name);
    let place = place(&TCP).map(|place| place + 1).or_else(|| place(&IOPRIO));
    place.map(|place| place as u64)
}

impl Piece {
    /// The arguments it takes: `None` for a width or a precision.
    fn arguments(&self) -> impl Iterator<Item = Option<&Conversion>> {
        let conversion = match self {
            Piece::Text(_) => None,
            Piece::Conversion(conversion) => Some(conversion),
        };
        let stars = conversion
            .map_or(0, |it| usize::from(it.width == Width::Argument) + usize::from(it.precision == Width::Argument));
        std::iter::repeat_n(None, stars).chain(conversion.map(Some))
    }
}
