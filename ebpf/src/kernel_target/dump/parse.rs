//! Text -> Target.

use super::ParseError;
use super::build::{Ast, AstMember, Body, Definition, build};
use super::tokens::{Token, tokens};
use super::{MAGIC, MAX_DEPTH, VERSION};
use crate::kernel_target::btf::{Btf, Kind};
use crate::kernel_target::btf_write::IntKind;
use crate::kernel_target::{Ability, Arch, Field, FieldType, Function, Syscall, SyscallArg, Target, TracepointFormat};

/// Reads what [`super::dump`] wrote, perhaps edited by hand.
pub fn parse(text: &str) -> Result<Target, ParseError> {
    let mut p = Parser { tokens: tokens(text)?, at: 0 };
    let mut target = Target::default();
    p.expect(MAGIC)?;
    p.expect(VERSION)?;
    while let Some(token) = p.peek() {
        match token {
            "release" => target.release = p.after_keyword(Parser::string)?,
            "arch" => target.arch = p.after_keyword(Parser::arch)?,
            "cpus" => target.cpus = p.after_keyword(Parser::number)?,
            "cache" => target.caches.push(p.after_keyword(Parser::cache)?),
            "cgroup_v1" => target.cgroup_v1 = Some(p.after_keyword(Parser::name)?),
            "ability" => p.after_keyword(|p| p.ability(&mut target))?,
            "counter" => {
                let (name, ability) = p.after_keyword(|p| Ok((p.string()?, p.answer()?)))?;
                target.counters.insert(name, ability);
            }
            "tracepoint" => {
                let (name, fields) = p.after_keyword(Parser::record)?;
                target.tracepoints.insert(name, TracepointFormat { fields });
            }
            "syscall" => {
                let (name, call) = p.after_keyword(Parser::syscall)?;
                target.syscalls.insert(name, call);
            }
            "usdt" => {
                let (name, places) = p.after_keyword(Parser::usdt)?;
                target.usdts.insert(name, places);
            }
            "poll" => {
                let (name, fields) = p.after_keyword(Parser::record)?;
                target.polls.insert(name, fields);
            }
            "functions" => {
                let (pattern, functions) = p.after_keyword(Parser::functions)?;
                target.functions.insert(pattern, functions);
            }
            "btf" => target.btf = Some(p.after_keyword(Parser::btf)?),
            "module" => {
                let (name, types) = p.after_keyword(|p| Ok((p.name()?, p.btf()?)))?;
                target.modules.insert(name, types);
            }
            _ => {
                let known = "release, arch, cpus, cache, cgroup_v1, ability, counter, tracepoint, syscall, usdt, poll, \
                             functions, btf or module";
                return p.fail(known);
            }
        }
    }
    Ok(target)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).filter(|t| !t.is_string).map(|t| t.text.as_str())
    }

    fn fail<T>(&self, wanted: &str) -> Result<T, ParseError> {
        match self.tokens.get(self.at) {
            Some(token) => {
                Err(ParseError::Unexpected { line: token.line, wanted: wanted.to_owned(), found: token.text.clone() })
            }
            None => Err(ParseError::End(wanted.to_owned())),
        }
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = self.peek() == Some(mark);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), ParseError> {
        if self.take(mark) { Ok(()) } else { self.fail(&format!("{mark:?}")) }
    }

    fn after_keyword<T>(&mut self, read: impl FnOnce(&mut Parser) -> Result<T, ParseError>) -> Result<T, ParseError> {
        self.at += 1;
        read(self)
    }

    fn string(&mut self) -> Result<String, ParseError> {
        match self.tokens.get(self.at) {
            Some(token) if token.is_string => {
                self.at += 1;
                Ok(token.text.clone())
            }
            _ => self.fail("a string in quotes"),
        }
    }

    /// A word or a string.
    fn name(&mut self) -> Result<String, ParseError> {
        let is_name = |t: &&Token| t.is_string || t.text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        match self.tokens.get(self.at).filter(is_name) {
            Some(token) => {
                self.at += 1;
                Ok(token.text.clone())
            }
            None => self.fail("a name"),
        }
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, ParseError> {
        let negative = self.take("-");
        let text = self.peek().unwrap_or("");
        let parsed = if negative { format!("-{text}").parse() } else { text.parse() };
        match parsed {
            Ok(number) => {
                self.at += 1;
                Ok(number)
            }
            Err(_) => self.fail("a number"),
        }
    }

    fn arch(&mut self) -> Result<Arch, ParseError> {
        if self.take("x86_64") {
            Ok(Arch::X86_64)
        } else if self.take("aarch64") {
            Ok(Arch::Aarch64)
        } else {
            self.fail("x86_64 or aarch64")
        }
    }

    fn ability(&mut self, target: &mut Target) -> Result<(), ParseError> {
        let name = self.peek().unwrap_or("");
        let found = target.abilities.by_name().into_iter().find(|(known, _)| *known == name);
        let Some((_, ability)) = found else { return self.fail("the name of an ability") };
        self.at += 1;
        *ability = self.answer()?;
        Ok(())
    }

    fn answer(&mut self) -> Result<Ability, ParseError> {
        match self.name()?.as_str() {
            "yes" => Ok(Ability::Yes),
            "no" => Ok(Ability::No(self.string()?)),
            "unknown" => Ok(Ability::Unknown),
            _ => {
                self.at -= 1;
                self.fail("yes, no or unknown")
            }
        }
    }

    /// `(0, 2);`
    fn cache(&mut self) -> Result<Vec<u32>, ParseError> {
        let mut cpus = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            cpus.push(self.number()?);
            self.take(",");
        }
        self.expect(";")?;
        Ok(cpus)
    }

    fn record(&mut self) -> Result<(String, Vec<Field>), ParseError> {
        let name = self.string()?;
        let mut fields = Vec::new();
        self.expect("{")?;
        while !self.take("}") {
            self.expect("@")?;
            let offset = self.number()?;
            let name = self.name()?;
            self.expect(":")?;
            let ty = self.field_type()?;
            self.expect(";")?;
            fields.push(Field { name, offset, ty });
        }
        Ok((name, fields))
    }

    fn field_type(&mut self) -> Result<FieldType, ParseError> {
        const INTS: [(&str, u8, bool); 8] = [
            ("i8", 1, true),
            ("u8", 1, false),
            ("i16", 2, true),
            ("u16", 2, false),
            ("i32", 4, true),
            ("u32", 4, false),
            ("i64", 8, true),
            ("u64", 8, false),
        ];
        let word = self.name()?;
        match word.as_str() {
            "pointer" => Ok(FieldType::Pointer),
            "str" => Ok(FieldType::Str(self.number()?)),
            "bytes" => Ok(FieldType::Bytes(self.number()?)),
            "data_loc" => Ok(FieldType::DataLoc),
            word => match INTS.iter().find(|(name, ..)| *name == word) {
                Some(&(_, size, signed)) => Ok(FieldType::Int { size, signed }),
                None => {
                    self.at -= 1;
                    self.fail("i8 to u64, pointer, str, bytes or data_loc")
                }
            },
        }
    }

    fn functions(&mut self) -> Result<(String, Vec<Function>), ParseError> {
        let pattern = self.string()?;
        let mut functions = Vec::new();
        self.expect("{")?;
        while !self.take("}") {
            let symbol = self.name()?;
            let module = if self.take("of") { Some(self.name()?) } else { None };
            let shared = self.take("shared");
            let traceable = self.take("traced");
            if !traceable {
                self.expect("untraced")?;
            }
            self.expect(";")?;
            functions.push(Function { symbol, module, shared, traceable });
        }
        Ok((pattern, functions))
    }

    fn syscall(&mut self) -> Result<(String, Syscall), ParseError> {
        let name = self.name()?;
        let number = self.number()?;
        let mut args = None;
        if self.take("(") {
            args = Some(self.list(|p| {
                let name = p.name()?;
                p.expect(":")?;
                Ok(SyscallArg { name, ctype: p.string()? })
            })?);
        }
        self.expect(";")?;
        Ok((name, Syscall { number, args }))
    }

    fn usdt(&mut self) -> Result<(String, Vec<String>), ParseError> {
        let name = self.string()?;
        self.expect("(")?;
        let places = self.list(Parser::string)?;
        self.expect(";")?;
        Ok((name, places))
    }

    /// `a, b)`
    fn list<T>(&mut self, mut item: impl FnMut(&mut Parser) -> Result<T, ParseError>) -> Result<Vec<T>, ParseError> {
        let mut items = Vec::new();
        if self.take(")") {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(")") {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    fn btf(&mut self) -> Result<Btf, ParseError> {
        self.expect("{")?;
        let mut definitions = Vec::new();
        while !self.take("}") {
            let Some(kind) = self.kind() else { return self.fail("the kind of a type") };
            let name = self.name()?;
            let definition = match kind {
                Kind::Int => self.int()?,
                Kind::Float => {
                    self.expect("size")?;
                    Definition::Float(self.number()?)
                }
                Kind::Typedef => {
                    self.expect("=")?;
                    Definition::Alias(self.ty(0)?)
                }
                Kind::Func => {
                    self.expect(":")?;
                    Definition::Function(self.ty(0)?)
                }
                _ => Definition::Body(self.body(kind, 0)?),
            };
            self.expect(";")?;
            definitions.push((kind, name, definition));
        }
        build(definitions)
    }

    fn kind(&mut self) -> Option<Kind> {
        let kind = match self.peek()? {
            "int" => Kind::Int,
            "float" => Kind::Float,
            "enum" => Kind::Enum,
            "enum64" => Kind::Enum64,
            "typedef" => Kind::Typedef,
            "struct" => Kind::Struct,
            "union" => Kind::Union,
            "func" => Kind::Func,
            _ => return None,
        };
        self.at += 1;
        Some(kind)
    }

    fn int(&mut self) -> Result<Definition, ParseError> {
        self.expect("size")?;
        let bytes = self.number()?;
        let kind = if self.take("bool") {
            IntKind::Bool
        } else if self.take("signed") {
            IntKind::Signed
        } else {
            self.expect("unsigned")?;
            IntKind::Unsigned
        };
        Ok(Definition::Int(bytes, kind))
    }

    fn body(&mut self, kind: Kind, depth: u32) -> Result<Body, ParseError> {
        self.expect("size")?;
        let mut body = Body { bytes: self.number()?, members: Vec::new(), signed: false, values: Vec::new() };
        if matches!(kind, Kind::Enum | Kind::Enum64) {
            body.signed = self.take("signed");
            if !body.signed {
                self.expect("unsigned")?;
            }
            self.expect("{")?;
            while !self.take("}") {
                let name = self.name()?;
                self.expect("=")?;
                body.values.push((name, self.number()?));
                self.expect(";")?;
            }
            return Ok(body);
        }
        self.expect("{")?;
        while !self.take("}") {
            body.members.push(self.member(depth)?);
            self.expect(";")?;
        }
        Ok(body)
    }

    fn member(&mut self, depth: u32) -> Result<AstMember, ParseError> {
        self.expect("@")?;
        let bytes: u32 = self.number()?;
        let bits: u32 = if self.take(".") { self.number()? } else { 0 };
        let bit_size: u32 = if self.take("/") { self.number()? } else { 0 };
        let bit_offset = bytes.checked_mul(8).and_then(|b| b.checked_add(bits));
        let (Some(bit_offset), 0..=255) = (bit_offset, bit_size) else { return self.fail("a smaller offset or size") };
        let name = if self.peek() == Some(":") { String::new() } else { self.name()? };
        self.expect(":")?;
        Ok(AstMember { name, bit_offset, bit_size, ty: self.ty(depth + 1)? })
    }

    fn ty(&mut self, depth: u32) -> Result<Ast, ParseError> {
        if depth > MAX_DEPTH {
            return self.fail("types that nest less deep");
        }
        let line = self.tokens.get(self.at).map_or(0, |t| t.line);
        let inner = |p: &mut Parser| p.ty(depth + 1).map(Box::new);
        if let Some(kind) = self.kind() {
            if self.peek() == Some("size") {
                return Ok(Ast::Inline(kind, self.body(kind, depth)?));
            }
            let name = self.name()?;
            let ordinal = if self.take("~") { self.number()? } else { 1 };
            return Ok(Ast::Named(kind, name, ordinal, line));
        }
        let word = self.peek().unwrap_or("").to_string();
        self.at += 1;
        match word.as_str() {
            "void" => Ok(Ast::Void),
            "ptr" => Ok(Ast::Wrap(Kind::Ptr, inner(self)?)),
            "const" => Ok(Ast::Wrap(Kind::Const, inner(self)?)),
            "volatile" => Ok(Ast::Wrap(Kind::Volatile, inner(self)?)),
            "restrict" => Ok(Ast::Wrap(Kind::Restrict, inner(self)?)),
            "tag" => Ok(Ast::Tag(self.string()?, inner(self)?)),
            "array" => Ok(Ast::Array(self.number()?, inner(self)?)),
            "proto" => {
                self.expect("(")?;
                let params = self.list(|p| {
                    let name = p.name()?;
                    p.expect(":")?;
                    Ok((name, p.ty(depth + 1)?))
                })?;
                self.expect("->")?;
                Ok(Ast::Proto(params, inner(self)?))
            }
            "fwd" => {
                let is_union = self.take("union");
                if !is_union {
                    self.expect("struct")?;
                }
                Ok(Ast::Forward(is_union, self.name()?))
            }
            _ => {
                self.at -= 1;
                self.fail("a type")
            }
        }
    }
}
