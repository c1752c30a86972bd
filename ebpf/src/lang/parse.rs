//! Tokens to AST: a Pratt parser.
//!
//! Two bounds keep later recursive stages off the end of the stack: the tree is at most [`MAX_DEPTH`] nodes deep, long
//! left-leaning chains included, and the parser itself nests at most [`MAX_NESTING`] calls (brackets add no nodes).

use super::lex::{Token, lex};
use crate::ast::{BinaryOp, Expr, ExprKind, Ident, TypeKind, UnaryOp};
use crate::diag::Span;

/// Nodes on the longest path of a tree.
pub const MAX_DEPTH: u32 = 64;
/// Words that no name is.
pub const KEYWORDS: [&str; 8] = ["in", "not", "and", "or", "struct", "union", "enum", "_"];
/// A printed tree of full depth has at most one pair of brackets per node, so what prints also parses.
const MAX_NESTING: u32 = 2 * MAX_DEPTH + 8;
/// Bytes of one expression.
pub const MAX_BYTES: usize = 1 << 16;
/// Binds tighter than every infix operator.
const UNARY: u8 = 13;
const IN: u8 = 9;

/// Why text is no expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Where.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl SyntaxError {
    pub(super) fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

type Parsed<T> = Result<T, SyntaxError>;

/// A node and the depth of its tree.
struct Tree {
    expr: Expr,
    depth: u32,
}

/// Parses one expression.
pub fn parse(text: &str) -> Result<Expr, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(SyntaxError::new(Span::new(0, 0), "expression longer than 64 KiB"));
    }
    let mut parser = Parser { tokens: lex(text)?, at: 0, nesting: 0 };
    let tree = parser.expression(0)?;
    match parser.peek() {
        Token::End => Ok(tree.expr),
        _ => Err(parser.unexpected("an operator or the end of the expression")),
    }
}

/// Binding power (loosest first) of the infix operators that take two expressions.
pub(super) fn infix(op: &str) -> Option<(u8, BinaryOp)> {
    Some(match op {
        "||" => (2, BinaryOp::Or),
        "&&" => (3, BinaryOp::And),
        "|" => (4, BinaryOp::BitOr),
        "^" => (5, BinaryOp::BitXor),
        "&" => (6, BinaryOp::BitAnd),
        "==" => (7, BinaryOp::Eq),
        "!=" => (7, BinaryOp::Ne),
        "<" => (8, BinaryOp::Lt),
        "<=" => (8, BinaryOp::Le),
        ">" => (8, BinaryOp::Gt),
        ">=" => (8, BinaryOp::Ge),
        "<<" => (10, BinaryOp::Shl),
        ">>" => (10, BinaryOp::Shr),
        "+" => (11, BinaryOp::Add),
        "-" => (11, BinaryOp::Sub),
        "*" => (12, BinaryOp::Mul),
        "/" => (12, BinaryOp::Div),
        "%" => (12, BinaryOp::Rem),
        _ => return None,
    })
}

fn no_arms(list: &[Expr]) -> Parsed<()> {
    match list.iter().find(|e| matches!(e.kind, ExprKind::Arm(..))) {
        Some(arm) => Err(SyntaxError::new(arm.span, "`=>` stands only inside `map(..)`")),
        None => Ok(()),
    }
}

struct Parser {
    tokens: Vec<(Token, Span)>,
    at: usize,
    nesting: u32,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn peek_second(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|(token, _)| token)
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    /// Takes the current token; the end stays where it is.
    fn next(&mut self) -> (Token, Span) {
        let taken = self.tokens[self.at].clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        taken
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    fn eat(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    fn unexpected(&self, wanted: &str) -> SyntaxError {
        let error = SyntaxError::new(self.span(), format!("expected {wanted}, found {}", self.peek().describe()));
        match self.peek() {
            Token::Op("=") => error.hint("use `==` to compare"),
            Token::Word(w) if w == "and" => error.hint("write `&&`"),
            Token::Word(w) if w == "or" => error.hint("write `||`"),
            Token::Word(w) if w == "not" => error.hint("write `!x`, or `x not in [..]`"),
            _ => error,
        }
    }

    /// Takes the closing bracket; the message points at the bracket that was left open.
    fn close(&mut self, closing: &'static str, opening: &str, open: Span) -> Parsed<Span> {
        if self.is_op(closing) {
            return Ok(self.next().1);
        }
        let found = self.unexpected("it");
        let message = format!("expected `{closing}` to close this `{opening}`");
        let hint = found.hint.unwrap_or_else(|| format!("found {} instead", self.peek().describe()));
        Err(SyntaxError::new(open, message).hint(hint))
    }

    fn node(&self, kind: ExprKind, span: Span, depth: u32) -> Parsed<Tree> {
        if depth > MAX_DEPTH {
            let error = SyntaxError::new(span, format!("expression nested too deeply (limit {MAX_DEPTH})"));
            return Err(error.hint("use `in [..]` for long alternatives, or several metrics"));
        }
        Ok(Tree { expr: Expr { kind, span }, depth })
    }

    fn expression(&mut self, min: u8) -> Parsed<Tree> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(SyntaxError::new(self.span(), format!("brackets nested too deeply (limit {MAX_NESTING})")));
        }
        let mut left = self.prefix()?;
        loop {
            left = match self.peek().clone() {
                Token::Op("?") if min <= 1 => self.conditional(left)?,
                Token::Word(w) if (w == "in" || w == "not") && IN >= min => self.set(left)?,
                Token::Op(op) => match infix(op) {
                    Some((power, op)) if power >= min => {
                        self.next();
                        // Left associative: the right side takes only what binds tighter.
                        let right = self.expression(power + 1)?;
                        let span = left.expr.span.to(right.expr.span);
                        let depth = left.depth.max(right.depth) + 1;
                        self.node(ExprKind::Binary(op, Box::new(left.expr), Box::new(right.expr)), span, depth)?
                    }
                    _ => break,
                },
                _ => break,
            };
        }
        self.nesting -= 1;
        Ok(left)
    }

    fn conditional(&mut self, condition: Tree) -> Parsed<Tree> {
        let question = self.next().1;
        let yes = self.expression(0)?;
        if !self.eat(":") {
            let hint = format!("found {} instead", self.peek().describe());
            return Err(SyntaxError::new(question, "expected `:` and a second value for this `?`").hint(hint));
        }
        let no = self.expression(1)?;
        let span = condition.expr.span.to(no.expr.span);
        let depth = condition.depth.max(yes.depth).max(no.depth) + 1;
        self.node(ExprKind::Cond(Box::new(condition.expr), Box::new(yes.expr), Box::new(no.expr)), span, depth)
    }

    fn set(&mut self, value: Tree) -> Parsed<Tree> {
        let negated = self.next().0 == Token::Word("not".into());
        if negated && !matches!(self.peek(), Token::Word(w) if w == "in") {
            return Err(self.unexpected("`in` after `not`"));
        }
        if negated {
            self.next();
        }
        if !self.is_op("[") {
            return Err(self.unexpected("`[` and the elements of a set"));
        }
        let (elements, end, depth) = self.list("[", "]")?;
        let span = value.expr.span.to(end);
        if elements.is_empty() {
            return Err(SyntaxError::new(end, "a set needs at least one element"));
        }
        no_arms(&elements)?;
        self.node(ExprKind::In(Box::new(value.expr), elements, negated), span, depth.max(value.depth) + 1)
    }

    /// `open a, b close`: the elements, the closing bracket and the greatest depth.
    fn list(&mut self, opening: &str, closing: &'static str) -> Parsed<(Vec<Expr>, Span, u32)> {
        let open = self.next().1;
        let (mut elements, mut depth) = (Vec::new(), 0);
        while !self.is_op(closing) {
            let element = self.element()?;
            depth = depth.max(element.depth);
            elements.push(element.expr);
            if !self.eat(",") {
                break;
            }
        }
        let end = self.close(closing, opening, open)?;
        Ok((elements, end, depth))
    }

    /// An argument, or an arm `1 => "one"` of `map`.
    fn element(&mut self) -> Parsed<Tree> {
        let left = self.expression(0)?;
        if !self.eat("=>") {
            return Ok(left);
        }
        let right = self.expression(0)?;
        let span = left.expr.span.to(right.expr.span);
        let depth = left.depth.max(right.depth) + 1;
        let pattern = match left.expr.kind {
            ExprKind::Name(name) if name == "_" => None,
            _ => Some(Box::new(left.expr)),
        };
        self.node(ExprKind::Arm(pattern, Box::new(right.expr)), span, depth)
    }

    fn prefix(&mut self) -> Parsed<Tree> {
        let op = match self.peek() {
            Token::Op("-") => Some(UnaryOp::Neg),
            Token::Op("!") => Some(UnaryOp::Not),
            Token::Op("~") => Some(UnaryOp::Invert),
            _ => None,
        };
        if let Some(op) = op {
            let start = self.next().1;
            let operand = self.expression(UNARY)?;
            let span = start.to(operand.expr.span);
            return self.node(ExprKind::Unary(op, Box::new(operand.expr)), span, operand.depth + 1);
        }
        let primary = self.primary()?;
        self.postfix(primary)
    }

    fn primary(&mut self) -> Parsed<Tree> {
        let span = self.span();
        let kind = match self.peek().clone() {
            Token::Int(v) => ExprKind::Int(v),
            Token::Duration(v) => ExprKind::Duration(v),
            Token::Size(v) => ExprKind::Size(v),
            Token::Str(v) => ExprKind::Str(v),
            Token::Word(word) => return self.word(word),
            Token::Op("(") => {
                self.next();
                let inner = self.expression(0)?;
                self.close(")", "(", span)?;
                return Ok(inner);
            }
            Token::Op("*") => {
                return Err(self.unexpected("a value").hint("`.` follows pointers by itself; `p[0]` reads behind one"));
            }
            Token::Op("[") => {
                return Err(self.unexpected("a value").hint("a set stands only after `in`"));
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.next();
        self.node(kind, span, 1)
    }

    fn word(&mut self, word: String) -> Parsed<Tree> {
        let type_kind = match word.as_str() {
            "struct" => Some(TypeKind::Struct),
            "union" => Some(TypeKind::Union),
            "enum" => Some(TypeKind::Enum),
            "in" | "not" | "and" | "or" => return Err(self.unexpected("a value")),
            _ => None,
        };
        let is_call = self.peek_second() == Some(&Token::Op("("));
        let span = self.span();
        if let (Some(kind), false) = (type_kind, is_call) {
            self.next();
            let Token::Word(name) = self.peek().clone() else {
                return Err(self.unexpected(&format!("a name after `{word}`")));
            };
            let end = self.next().1;
            return self.node(ExprKind::TypeName(kind, name), span.to(end), 1);
        }
        self.next();
        if !is_call {
            let kind = match word.as_str() {
                "true" => ExprKind::Bool(true),
                "false" => ExprKind::Bool(false),
                _ => ExprKind::Name(word),
            };
            return self.node(kind, span, 1);
        }
        let (args, end, depth) = self.list("(", ")")?;
        if word != "map" {
            no_arms(&args)?;
        }
        self.node(ExprKind::Call(Ident { name: word, span }, args), span.to(end), depth + 1)
    }

    fn postfix(&mut self, mut base: Tree) -> Parsed<Tree> {
        loop {
            let start = base.expr.span;
            if self.eat(".") {
                let Token::Word(name) = self.peek().clone() else {
                    return Err(self.unexpected("a field name after `.`"));
                };
                let span = self.next().1;
                let kind = ExprKind::Field(Box::new(base.expr), Ident { name, span });
                base = self.node(kind, start.to(span), base.depth + 1)?;
            } else if self.is_op("[") {
                let open = self.next().1;
                let index = self.expression(0)?;
                let end = self.close("]", "[", open)?;
                let depth = base.depth.max(index.depth) + 1;
                base = self.node(ExprKind::Index(Box::new(base.expr), Box::new(index.expr)), start.to(end), depth)?;
            } else {
                return Ok(base);
            }
        }
    }
}
