//! Types in casts, in `sizeof` and before variables.

use super::lexer::Token;
use super::parse::{Parser, Refused};
use super::program::{Id, Integer, Node, Type};
use crate::format::Shape;

impl<'a> Parser<'a> {
    /// What stands behind `sizeof`.
    pub(super) fn size(&mut self) -> Result<Id, Refused> {
        if let Some(kind) = self.type_in_brackets()? {
            let bytes = match kind {
                Type::Integer(kind) => kind.bytes,
                Type::Bool => 1,
                Type::Pointer(_) => 8,
            };
            return self.number(Integer::UNSIGNED_LONG.of(u64::from(bytes)));
        }
        let operand = self.unary()?;
        match self.program.nodes[operand.0 as usize] {
            Node::Field(place) if !matches!(self.format.fields[place].shape, Shape::Located(_)) => {
                let bytes = self.format.fields[place].size;
                self.number(Integer::UNSIGNED_LONG.of(bytes as u64))
            }
            _ => Err("the size of an expression".into()),
        }
    }

    /// A cast's type and its brackets, when that is what stands here.
    pub(super) fn type_in_brackets(&mut self) -> Result<Option<Type>, Refused> {
        let before = self.at;
        if !self.take("(") {
            return Ok(None);
        }
        let kind = self.type_words();
        let closed = self.take(")");
        let operand = match self.tokens.get(self.at) {
            Some(Token::Name(_) | Token::Number(_) | Token::Text(_)) => true,
            Some(Token::Mark(mark)) => *mark == "(",
            None => false,
        };
        match kind {
            Some(Ok(kind)) if closed => Ok(Some(kind)),
            // `(name)(...)` and `(name)1` can be nothing but casts.
            Some(Err(name)) if closed && operand => Err(format!("a cast to `{name}`, whose size is not known")),
            _ => {
                self.at = before;
                Ok(None)
            }
        }
    }

    /// A type; `Err` has a name that is one only where a type must stand.
    pub(super) fn type_words(&mut self) -> Option<Result<Type, &'a str>> {
        let start = self.at;
        let (mut words, mut unknown) = (Vec::new(), None);
        let mut aggregate = false;
        while let Some(Token::Name(name)) = self.tokens.get(self.at) {
            match *name {
                "const" | "volatile" | "__user" | "__iomem" => {}
                "struct" | "union" | "enum" => {
                    aggregate |= *name != "enum";
                    if *name == "enum" {
                        words.push("int");
                    }
                    self.at += 1;
                }
                name if integer(&[name]).is_some() || matches!(name, "void" | "bool" | "_Bool" | "signed") => {
                    words.push(name);
                }
                // The variable of a declaration.
                _ if self.at > start && (aggregate || unknown.is_some() || !words.is_empty()) => break,
                "REC" => break,
                name => unknown = Some(name),
            }
            self.at += 1;
        }
        if self.at == start {
            return None;
        }
        let pointer = self.is("*");
        while self.take("*") || matches!(self.tokens.get(self.at), Some(Token::Name("const"))) && self.next().is_some()
        {
        }
        let element = match words[..] {
            ["void"] => Some(Integer { bytes: 1, signed: false }),
            ["bool" | "_Bool"] => Some(Integer { bytes: 1, signed: false }),
            _ if aggregate || unknown.is_some() => None,
            _ => integer(&words),
        };
        if pointer {
            return Some(Ok(Type::Pointer(element)));
        }
        Some(match (words.as_slice(), element, unknown) {
            (["bool" | "_Bool"], ..) => Ok(Type::Bool),
            (["void"], ..) => Err("void"),
            (_, Some(kind), _) => Ok(Type::Integer(kind)),
            (.., Some(name)) => Err(name),
            _ => Err("struct"),
        })
    }
}

/// The integer type that some words name, on the 64-bit kernels there are.
fn integer(words: &[&str]) -> Option<Integer> {
    let typedef = |bytes, signed| Some(Integer { bytes, signed });
    if let [word] = words {
        match *word {
            "u8" | "__u8" | "uint8_t" | "u_char" => return typedef(1, false),
            "s8" | "__s8" | "int8_t" => return typedef(1, true),
            "u16" | "__u16" | "uint16_t" | "__be16" | "__le16" | "umode_t" | "ushort" => return typedef(2, false),
            "s16" | "__s16" | "int16_t" => return typedef(2, true),
            "u32" | "__u32" | "uint32_t" | "__be32" | "__le32" | "uint" | "dev_t" | "gfp_t" | "uid_t" | "gid_t"
            | "blk_opf_t" | "fmode_t" | "qid_t" => return typedef(4, false),
            "s32" | "__s32" | "int32_t" | "pid_t" | "clockid_t" | "__kernel_rwf_t" | "rwf_t" => {
                return typedef(4, true);
            }
            "u64" | "__u64" | "uint64_t" | "__be64" | "__le64" | "size_t" | "ulong" | "sector_t" | "dma_addr_t"
            | "phys_addr_t" | "resource_size_t" | "ino_t" | "uintptr_t" | "blkcnt_t" => return typedef(8, false),
            "s64" | "__s64" | "int64_t" | "ssize_t" | "loff_t" | "off_t" | "time64_t" | "ktime_t" => {
                return typedef(8, true);
            }
            _ => {}
        }
    }
    let count = |wanted: &str| words.iter().filter(|word| **word == wanted).count();
    let basic = ["unsigned", "signed", "long", "int", "short", "char"];
    if words.is_empty() || words.iter().any(|word| !basic.contains(word)) {
        return None;
    }
    // Plain `char` has a sign on x86 and, in the kernel, none anywhere since 6.2: no format tells; bytes of text are below 128.
    let bytes = match (count("long"), count("short"), count("char")) {
        (1.., _, _) => 8,
        (_, 1.., _) => 2,
        (_, _, 1..) => 1,
        _ => 4,
    };
    Some(Integer { bytes, signed: count("unsigned") == 0 })
}
