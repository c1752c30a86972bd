//! Types as written -> BTF.

use super::ParseError;
use crate::kernel_target::btf::{Btf, Kind};
use crate::kernel_target::btf_write::{Builder, IntKind, MemberDef};
use std::collections::HashMap;

/// A type as written; ids come later, so that definitions may stand in any order.
pub(super) enum Ast {
    Void,
    Wrap(Kind, Box<Ast>),
    Tag(String, Box<Ast>),
    Array(u32, Box<Ast>),
    Proto(Vec<(String, Ast)>, Box<Ast>),
    Named(Kind, String, u32, u32),
    Forward(bool, String),
    Inline(Kind, Body),
}

/// What stands in braces, with its size.
pub(super) struct Body {
    pub bytes: u32,
    pub members: Vec<AstMember>,
    pub signed: bool,
    pub values: Vec<(String, i64)>,
}

/// A member of a struct or union.
pub(super) struct AstMember {
    pub name: String,
    pub bit_offset: u32,
    pub bit_size: u32,
    pub ty: Ast,
}

/// What a name stands for.
pub(super) enum Definition {
    Int(u32, IntKind),
    Float(u32),
    Alias(Ast),
    Function(Ast),
    Body(Body),
}

/// Types by kind, name and ordinal, while the builder makes them.
struct Types {
    builder: Builder,
    /// Kind, name and ordinal of a definition -> id, known before any is built.
    ids: HashMap<(Kind, String, u32), u32>,
    forwards: HashMap<(bool, String), u32>,
}

/// Builds every type that others refer to by name after the ids of all of them are known: unnamed parts come before, so a first
/// round counts them.
pub(super) fn build(definitions: Vec<(Kind, String, Definition)>) -> Result<Btf, ParseError> {
    let mut types = Types { builder: Builder::new(), ids: HashMap::new(), forwards: HashMap::new() };
    for _ in 0..2 {
        types.builder = Builder::new();
        types.forwards.clear();
        let mut ordinals: HashMap<(Kind, &str), u32> = HashMap::new();
        let mut ids = HashMap::new();
        for (kind, name, definition) in &definitions {
            let ordinal = ordinals.entry((*kind, name)).or_default();
            *ordinal += 1;
            let id = types.define(*kind, name, definition)?;
            ids.insert((*kind, name.clone(), *ordinal), id);
        }
        types.check(&definitions, &ids)?;
        types.ids = ids;
    }
    Ok(Btf::parse(types.builder.finish())?)
}

impl Types {
    /// The first round has no ids to refer to; names that are still unknown after it are an error.
    fn check(
        &self,
        definitions: &[(Kind, String, Definition)],
        ids: &HashMap<(Kind, String, u32), u32>,
    ) -> Result<(), ParseError> {
        let visit = |ast: &Ast| unknown_name(ast, ids);
        let found = definitions.iter().find_map(|(_, _, definition)| match definition {
            Definition::Alias(ast) | Definition::Function(ast) => visit(ast),
            Definition::Body(body) => body.members.iter().find_map(|m| visit(&m.ty)),
            Definition::Int(..) | Definition::Float(_) => None,
        });
        found.map_or(Ok(()), Err)
    }

    fn define(&mut self, kind: Kind, name: &str, definition: &Definition) -> Result<u32, ParseError> {
        Ok(match definition {
            Definition::Int(bytes, int) => self.builder.int(name, *bytes, *int),
            Definition::Float(bytes) => self.builder.float(name, *bytes),
            Definition::Alias(ast) => {
                let of = self.ty(ast);
                self.builder.typedef(name, of)
            }
            Definition::Function(ast) => {
                let proto = self.ty(ast);
                self.builder.func(name, proto, false)
            }
            Definition::Body(body) => self.body(kind, name, body),
        })
    }

    fn body(&mut self, kind: Kind, name: &str, body: &Body) -> u32 {
        let types: Vec<u32> = body.members.iter().map(|m| self.ty(&m.ty)).collect();
        let members: Vec<MemberDef<'_>> = body
            .members
            .iter()
            .zip(types)
            .map(|(m, ty)| MemberDef { name: &m.name, ty, bit_offset: m.bit_offset, bit_size: m.bit_size })
            .collect();
        let values: Vec<(&str, i64)> = body.values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        match kind {
            Kind::Union => self.builder.union(name, body.bytes, &members),
            Kind::Enum => self.builder.enumeration(name, body.bytes, body.signed, &values),
            Kind::Enum64 => self.builder.enumeration64(name, body.bytes, body.signed, &values),
            _ => self.builder.structure(name, body.bytes, &members),
        }
    }

    fn ty(&mut self, ast: &Ast) -> u32 {
        match ast {
            Ast::Void => 0,
            Ast::Wrap(kind, inner) => {
                let of = self.ty(inner);
                if *kind == Kind::Ptr { self.builder.ptr(of) } else { self.builder.qualifier(*kind, of) }
            }
            Ast::Tag(tag, inner) => {
                let of = self.ty(inner);
                self.builder.type_tag(tag, of)
            }
            Ast::Array(length, element) => {
                let element = self.ty(element);
                // The index type says nothing; the element's own id keeps the fixture free of an int it does not have.
                self.builder.array(element, element, *length)
            }
            Ast::Proto(params, returns) => {
                let returns = self.ty(returns);
                let types: Vec<u32> = params.iter().map(|(_, ty)| self.ty(ty)).collect();
                let params: Vec<(&str, u32)> = params.iter().map(|(name, _)| name.as_str()).zip(types).collect();
                self.builder.func_proto(returns, &params)
            }
            Ast::Named(kind, name, ordinal, _) => {
                self.ids.get(&(*kind, name.clone(), *ordinal)).copied().unwrap_or_default()
            }
            Ast::Forward(is_union, name) => match self.forwards.get(&(*is_union, name.clone())) {
                Some(id) => *id,
                None => {
                    let id = self.builder.forward(name, *is_union);
                    self.forwards.insert((*is_union, name.clone()), id);
                    id
                }
            },
            Ast::Inline(kind, body) => self.body(*kind, "", body),
        }
    }
}

fn unknown_name(ast: &Ast, ids: &HashMap<(Kind, String, u32), u32>) -> Option<ParseError> {
    match ast {
        Ast::Named(kind, name, ordinal, line) if !ids.contains_key(&(*kind, name.clone(), *ordinal)) => {
            Some(ParseError::Undefined { line: *line, kind: super::write::keyword(*kind), name: name.clone() })
        }
        Ast::Wrap(_, inner) | Ast::Tag(_, inner) | Ast::Array(_, inner) => unknown_name(inner, ids),
        Ast::Proto(params, returns) => {
            params.iter().find_map(|(_, ty)| unknown_name(ty, ids)).or_else(|| unknown_name(returns, ids))
        }
        Ast::Inline(_, body) => body.members.iter().find_map(|m| unknown_name(&m.ty, ids)),
        _ => None,
    }
}
