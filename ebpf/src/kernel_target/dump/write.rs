//! Target -> text.

use super::{MAGIC, MAX_DEPTH, VERSION};
use crate::kernel_target::btf::{Btf, Kind, Type};
use crate::kernel_target::{Ability, Arch, Field, FieldType, Function, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Writes a target, with its types reduced to `roots` (structs, unions, typedefs, enums, enum constants, functions,
/// integers by name) and what they hold by value. A root that does not exist is noted in a comment.
pub fn dump(target: &Target, roots: &[&str]) -> String {
    let mut out = format!("{MAGIC} {VERSION}\nrelease {}\n", quoted(&target.release));
    let arch = match target.arch {
        Arch::X86_64 => "x86_64",
        Arch::Aarch64 => "aarch64",
    };
    let _ = writeln!(out, "arch {arch}\ncpus {}", target.cpus);
    for cache in &target.caches {
        let cpus: Vec<String> = cache.iter().map(u32::to_string).collect();
        let _ = writeln!(out, "cache ({});", cpus.join(", "));
    }
    if let Some(controller) = &target.cgroup_v1 {
        let _ = writeln!(out, "cgroup_v1 {}", word(controller));
    }
    let mut known = target.abilities.clone();
    for (name, ability) in known.by_name() {
        let _ = writeln!(out, "ability {name} {}", answer(ability));
    }
    for (name, ability) in &target.counters {
        let _ = writeln!(out, "counter {} {}", quoted(name), answer(ability));
    }
    for (name, format) in &target.tracepoints {
        record(&mut out, "tracepoint", name, &format.fields);
    }
    for (name, call) in &target.syscalls {
        let _ = write!(out, "syscall {} {}", word(name), call.number);
        if let Some(args) = &call.args {
            let args: Vec<String> = args.iter().map(|a| format!("{}: {}", word(&a.name), quoted(&a.ctype))).collect();
            let _ = write!(out, " ({})", args.join(", "));
        }
        out += ";\n";
    }
    for (name, places) in &target.usdts {
        let places: Vec<String> = places.iter().map(|p| quoted(p)).collect();
        let _ = writeln!(out, "usdt {} ({});", quoted(name), places.join(", "));
    }
    for (name, fields) in &target.polls {
        record(&mut out, "poll", name, fields);
    }
    for (pattern, functions) in &target.functions {
        let _ = write!(out, "functions {} {{", quoted(pattern));
        for Function { symbol, module, shared, traceable } in functions {
            let of = module.as_ref().map_or(String::new(), |m| format!(" of {}", word(m)));
            let shared = if *shared { " shared" } else { "" };
            let _ = write!(out, "\n  {}{of}{shared} {};", word(symbol), if *traceable { "traced" } else { "untraced" });
        }
        out += if functions.is_empty() { " }\n" } else { "\n}\n" };
    }
    if let Some(btf) = &target.btf {
        types(&mut out, "btf", btf, roots);
    }
    for (module, btf) in &target.modules {
        types(&mut out, &format!("module {}", word(module)), btf, roots);
    }
    out
}

fn answer(ability: &Ability) -> String {
    match ability {
        Ability::Yes => "yes".into(),
        Ability::No(reason) => format!("no {}", quoted(reason)),
        Ability::Unknown => "unknown".into(),
    }
}

fn record(out: &mut String, keyword: &str, name: &str, fields: &[Field]) {
    let _ = writeln!(out, "{keyword} {} {{", quoted(name));
    for field in fields {
        let ty = match field.ty {
            FieldType::Int { size, signed } => format!("{}{}", if signed { 'i' } else { 'u' }, u32::from(size) * 8),
            FieldType::Pointer => "pointer".into(),
            FieldType::Str(n) => format!("str {n}"),
            FieldType::Bytes(n) => format!("bytes {n}"),
            FieldType::DataLoc => "data_loc".into(),
        };
        let _ = writeln!(out, "  @{} {}: {ty};", field.offset, word(&field.name));
    }
    out.push_str("}\n");
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// A C identifier as it is, anything else in quotes.
pub(super) fn word(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = name.starts_with(|c: char| plain(c) && !c.is_ascii_digit());
    // `struct size ...` would read as an unnamed struct.
    if starts && name.chars().all(plain) && name != "size" { name.to_string() } else { quoted(name) }
}

/// What definitions are sorted by.
type Key = (u8, String);

struct Writer<'b> {
    btf: &'b Btf,
    roots: BTreeSet<u32>,
    /// Definitions to write: named types, and unnamed enums that hold a root constant.
    open: Vec<u32>,
    seen: BTreeSet<u32>,
    /// Position of a definition among those of the same kind and name, once all are known.
    ordinals: BTreeMap<u32, u32>,
    /// Members that may still be written; hostile data nests without end.
    budget: u32,
    /// Levels of indentation.
    indent: usize,
}

fn types(out: &mut String, heading: &str, btf: &Btf, roots: &[&str]) {
    let mut missing = Vec::new();
    let mut ids = BTreeSet::new();
    for root in roots {
        let found = root_ids(btf, root);
        if found.is_empty() {
            missing.push(*root);
        }
        ids.extend(found);
    }
    // Twice: the first round finds out which definitions there are, and so how to tell equal names apart.
    let mut ordinals = BTreeMap::new();
    let mut definitions = BTreeMap::new();
    for _ in 0..2 {
        let mut writer = Writer {
            btf,
            roots: ids.clone(),
            open: Vec::new(),
            seen: BTreeSet::new(),
            ordinals,
            budget: 1_000_000,
            indent: 1,
        };
        definitions = writer.definitions();
        ordinals = ordinals_of(&definitions);
    }
    let _ = writeln!(out, "{heading} {{");
    for name in missing {
        let _ = writeln!(out, "  # there is no {}", quoted(name));
    }
    definitions.values().flatten().for_each(|(_, text)| {
        let _ = writeln!(out, "  {text};");
    });
    out.push_str("}\n");
}

fn root_ids(btf: &Btf, name: &str) -> Vec<u32> {
    let kinds =
        [Kind::Struct, Kind::Union, Kind::Typedef, Kind::Enum, Kind::Enum64, Kind::Func, Kind::Int, Kind::Float];
    let mut ids: Vec<u32> = kinds.into_iter().filter_map(|kind| btf.find(name, kind)).collect();
    ids.extend(btf.constant(name).map(|(id, _)| id));
    ids
}

fn ordinals_of(definitions: &BTreeMap<Key, BTreeMap<u32, String>>) -> BTreeMap<u32, u32> {
    definitions.values().flat_map(|same| same.keys().enumerate().map(|(i, id)| (*id, i as u32 + 1))).collect()
}

/// Order of kinds in the text: small things first.
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Int => 0,
        Kind::Float => 1,
        Kind::Enum | Kind::Enum64 => 2,
        Kind::Typedef => 3,
        Kind::Struct => 4,
        Kind::Union => 5,
        _ => 6,
    }
}

pub(super) fn keyword(kind: Kind) -> &'static str {
    match kind {
        Kind::Int => "int",
        Kind::Float => "float",
        Kind::Enum => "enum",
        Kind::Enum64 => "enum64",
        Kind::Typedef => "typedef",
        Kind::Struct => "struct",
        Kind::Union => "union",
        Kind::Func => "func",
        Kind::Const => "const",
        Kind::Volatile => "volatile",
        Kind::Restrict => "restrict",
        _ => "void",
    }
}

impl Writer<'_> {
    fn definitions(&mut self) -> BTreeMap<Key, BTreeMap<u32, String>> {
        let mut done: BTreeMap<Key, BTreeMap<u32, String>> = BTreeMap::new();
        self.open = self.roots.iter().copied().collect();
        self.seen = self.roots.clone();
        while let Some(id) = self.open.pop() {
            let t = self.btf.ty(id);
            let mut text = String::new();
            self.definition(t, &mut text);
            // An unnamed enum has only its constants to be sorted by.
            let name = match self.btf.name(t) {
                "" => self.btf.enum_values(t).first().map_or(String::new(), |(name, _)| name.to_string()),
                name => name.to_string(),
            };
            done.entry((rank(t.kind), name)).or_default().insert(id, text);
        }
        done
    }

    fn definition(&mut self, t: Type, out: &mut String) {
        let name = word(self.btf.name(t));
        let _ = write!(out, "{} {name}", keyword(t.kind));
        match t.kind {
            Kind::Int => {
                let kind = match (self.btf.is_bool(t), self.btf.is_signed(t)) {
                    (true, _) => "bool",
                    (_, true) => "signed",
                    _ => "unsigned",
                };
                let _ = write!(out, " size {} {kind}", t.size_or_type);
            }
            Kind::Float => {
                let _ = write!(out, " size {}", t.size_or_type);
            }
            Kind::Typedef => {
                out.push_str(" = ");
                self.ty(t.size_or_type, false, 0, out);
            }
            Kind::Func => {
                out.push_str(": ");
                self.ty(t.size_or_type, false, 0, out);
            }
            _ => self.body(t, 0, out),
        }
    }

    /// Size and contents of a struct, union or enum.
    fn body(&mut self, t: Type, depth: u32, out: &mut String) {
        let _ = write!(out, " size {}", t.size_or_type);
        self.indent += 1;
        let indent = "  ".repeat(self.indent);
        if matches!(t.kind, Kind::Enum | Kind::Enum64) {
            let _ = write!(out, " {} {{", if self.btf.is_signed(t) { "signed" } else { "unsigned" });
            for (name, value) in self.btf.enum_values(t) {
                let _ = write!(out, "\n{indent}{} = {value};", word(name));
            }
        } else {
            out.push_str(" {");
            for m in self.btf.members(t) {
                let Some(left) = self.budget.checked_sub(1) else { break };
                self.budget = left;
                let _ = write!(out, "\n{indent}@{}", m.bit_offset / 8);
                if m.bit_offset % 8 != 0 {
                    let _ = write!(out, ".{}", m.bit_offset % 8);
                }
                if m.bit_size != 0 {
                    let _ = write!(out, "/{}", m.bit_size);
                }
                let _ = match m.name {
                    "" => write!(out, ": "),
                    name => write!(out, " {}: ", word(name)),
                };
                self.ty(m.ty, false, depth + 1, out);
                out.push(';');
            }
        }
        self.indent -= 1;
        let _ = write!(out, "\n{}}}", "  ".repeat(self.indent));
    }

    /// A type where it is used. `behind` says that it is only pointed to.
    fn ty(&mut self, id: u32, behind: bool, depth: u32, out: &mut String) {
        let t = self.btf.ty(id);
        if depth > MAX_DEPTH - 8 {
            out.push_str("void");
            return;
        }
        match t.kind {
            Kind::Ptr => {
                out.push_str("ptr ");
                self.ty(t.size_or_type, true, depth + 1, out);
            }
            Kind::Const | Kind::Volatile | Kind::Restrict => {
                let _ = write!(out, "{} ", keyword(t.kind));
                self.ty(t.size_or_type, behind, depth + 1, out);
            }
            Kind::TypeTag => {
                let _ = write!(out, "tag {} ", quoted(self.btf.name(t)));
                self.ty(t.size_or_type, behind, depth + 1, out);
            }
            Kind::Array => {
                let (element, n) = self.btf.array(t).unwrap_or_default();
                let _ = write!(out, "array {n} ");
                self.ty(element, behind, depth + 1, out);
            }
            Kind::FuncProto => self.prototype(t, depth, out),
            Kind::Int | Kind::Float => self.reference(t, out),
            Kind::Fwd => {
                let kind = if self.btf.is_union_forward(t) { "union" } else { "struct" };
                let _ = write!(out, "fwd {kind} {}", word(self.btf.name(t)));
            }
            Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Typedef => {
                self.named(t, behind, depth, out);
            }
            Kind::Void | Kind::Func | Kind::Var | Kind::Datasec | Kind::DeclTag => out.push_str("void"),
        }
    }

    fn named(&mut self, t: Type, behind: bool, depth: u32, out: &mut String) {
        let forward = behind && !self.roots.contains(&t.id) && self.holds_members(t);
        match (self.btf.name(t), forward) {
            // Members of an unnamed struct are not needed when it is only pointed to.
            ("", true) => out.push_str("void"),
            ("", false) => {
                out.push_str(keyword(t.kind));
                self.body(t, depth + 1, out);
            }
            (_, true) if t.kind == Kind::Typedef => self.ty(t.size_or_type, true, depth + 1, out),
            (name, true) => {
                let _ = write!(out, "fwd {} {}", keyword(t.kind), word(name));
            }
            (_, false) => self.reference(t, out),
        }
    }

    /// Whether a type is, or is another name of, a struct or union.
    fn holds_members(&self, t: Type) -> bool {
        matches!(self.btf.strip(t.id).kind, Kind::Struct | Kind::Union)
    }

    fn prototype(&mut self, t: Type, depth: u32, out: &mut String) {
        out.push_str("proto (");
        for (i, (name, ty)) in self.btf.params(t).into_iter().enumerate() {
            let Some(left) = self.budget.checked_sub(1) else { break };
            self.budget = left;
            let _ = write!(out, "{}{}: ", if i > 0 { ", " } else { "" }, word(name));
            self.ty(ty, false, depth + 1, out);
        }
        out.push_str(") -> ");
        self.ty(t.size_or_type, false, depth + 1, out);
    }

    fn reference(&mut self, t: Type, out: &mut String) {
        if self.seen.insert(t.id) {
            self.open.push(t.id);
        }
        let _ = write!(out, "{} {}", keyword(t.kind), word(self.btf.name(t)));
        if let Some(ordinal) = self.ordinals.get(&t.id).filter(|n| **n > 1) {
            let _ = write!(out, "~{ordinal}");
        }
    }
}
