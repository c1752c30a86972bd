//! Expressions over what an event knows.

use super::{Kernel, Numbers, Root};
use kstrobe_ebpf::kernel_target::btf::{Btf, Kind, Type};

/// What a path ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Int {
        bits: u32,
        signed: bool,
    },
    Bool,
    Pointer,
    Text,
    /// A struct, a union or an array.
    Place,
    /// Only the check knows.
    Unknown,
}

/// Members of a path, pointers followed on the way.
const MAX_STEPS: usize = 6;

/// Writes expressions for one hook.
pub struct Writer<'k, 'n, 'a> {
    pub kernel: &'k Kernel,
    pub numbers: &'n mut Numbers<'a>,
    pub roots: Vec<Root>,
    /// Whether there is a current task that means something.
    pub of_task: bool,
    /// Whether a state is at hand.
    pub state: bool,
}

impl Writer<'_, '_, '_> {
    pub fn condition(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 6 } else { 13 };
        match self.numbers.below(kinds) {
            0 | 1 => {
                let (path, class) = self.path();
                self.test(path, class)
            }
            2 => {
                let op = *self.numbers.pick(&["==", "!=", "<", ">=", ">"]);
                let (left, right) = (self.number(depth), self.numbers.below(1000));
                format!("{left} {op} {right}")
            }
            3 if self.of_task => "comm == \"nginx\"".into(),
            4 if self.state => "has(state)".into(),
            5 => {
                let (path, _) = self.path();
                if path.starts_with("args.") { format!("has({path})") } else { "true".into() }
            }
            6 | 7 => format!("{} && {}", self.condition(depth - 1), self.condition(depth - 1)),
            8 => format!("({} || {})", self.condition(depth - 1), self.condition(depth - 1)),
            9 => format!("!({})", self.condition(depth - 1)),
            10 => {
                let op = *self.numbers.pick(&["==", "<", ">="]);
                let (left, right) = (self.number(depth - 1), self.number(depth - 1));
                format!("{left} {op} {right}")
            }
            11 => {
                let (c, a, b) = (self.condition(depth - 1), self.number(depth - 1), self.number(depth - 1));
                format!("({c} ? {a} : {b}) != 3")
            }
            12 => {
                let (path, _) = self.path();
                format!("u64({path}) in [1, 2, 3, 77]")
            }
            _ => "true".into(),
        }
    }

    fn test(&mut self, path: String, class: Class) -> String {
        match class {
            Class::Int { signed: true, .. } => format!("{path} < {}", self.numbers.below(100)),
            Class::Int { .. } | Class::Unknown => {
                let op = *self.numbers.pick(&["==", "!=", ">", "<="]);
                format!("{path} {op} {}", self.numbers.below(100))
            }
            Class::Bool | Class::Pointer => match self.numbers.below(3) {
                0 => path,
                1 => format!("!{path}"),
                _ => format!("u64({path}) % 2 == 1"),
            },
            Class::Text => match self.numbers.below(3) {
                0 => format!("{path} == \"abc\""),
                1 => format!("starts_with({path}, \"ab\")"),
                _ => format!("glob({path}, \"a*\")"),
            },
            Class::Place => "true".into(),
        }
    }

    /// A number of 64 bits without a sign.
    pub fn number(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 4 } else { 12 };
        match self.numbers.below(kinds) {
            0..=2 => {
                let (path, class) = self.path();
                match class {
                    Class::Int { bits: 16, signed: false } if self.numbers.one_of(3) => format!("u64(ntohs({path}))"),
                    Class::Int { bits: 32, signed: false } if self.numbers.one_of(4) => format!("u64(ntohl({path}))"),
                    Class::Text | Class::Place => "u64(7)".into(),
                    _ => format!("u64({path})"),
                }
            }
            3 => {
                let of_task = ["u64(pid)", "u64(tid)", "u64(uid)", "u64(cpu)", "cgroup"];
                if self.of_task { (*self.numbers.pick(&of_task)).into() } else { "u64(1)".into() }
            }
            4..=6 => {
                let op = *self.numbers.pick(&["+", "-", "*", "&", "|", "^"]);
                format!("({} {op} {})", self.number(depth - 1), self.number(depth - 1))
            }
            7 => {
                let (op, right) = *self.numbers.pick(&[("%", 7), ("/", 3), (">>", 12), ("<<", 3), ("&", 255)]);
                format!("({} {op} {right})", self.number(depth - 1))
            }
            8 => {
                let (c, a, b) = (self.condition(depth - 1), self.number(depth - 1), self.number(depth - 1));
                format!("({c} ? {a} : {b})")
            }
            9 => format!("min({}, {})", self.number(depth - 1), self.number(depth - 1)),
            10 => format!("log2({})", self.number(depth - 1)),
            _ => format!("({} % {})", self.number(depth - 1), self.number(depth - 1)),
        }
    }

    /// What a label may be.
    pub fn label(&mut self) -> String {
        match self.numbers.below(9) {
            0..=2 => {
                let (path, class) = self.path();
                match class {
                    Class::Place => format!("u64({}) % 8", self.number(0)),
                    Class::Pointer => match self.numbers.below(3) {
                        0 => format!("ksym(u64({path}))"),
                        1 => format!("str({path}, {})", 1 + self.numbers.below(40)),
                        _ => format!("u64({path}) & 0xff"),
                    },
                    _ => path,
                }
            }
            3 => format!("{} % 8", self.number(1)),
            4 => format!("map({} % 4, 0 => \"a\", 1 => \"b\", _ => \"many\")", self.number(1)),
            5 if self.of_task => "comm".into(),
            6 if self.of_task => "cpu".into(),
            7 => {
                let (path, _) = self.path();
                format!("ip({path})")
            }
            _ => self.condition(1),
        }
    }

    /// A pointer, an integer or a text that can be saved.
    pub fn saved(&mut self) -> (String, Option<u32>) {
        let Some((path, ty)) = self.walk() else { return (self.number(1), None) };
        let btf = self.kernel.btf();
        match class(btf, ty) {
            Class::Place | Class::Unknown => (self.number(1), None),
            _ => (path, Some(ty)),
        }
    }

    fn path(&mut self) -> (String, Class) {
        match self.walk() {
            Some((text, ty)) => {
                let class = class(self.kernel.btf(), ty);
                (text, class)
            }
            None => match self.roots.is_empty() {
                true if self.of_task => ("tid".into(), Class::Int { bits: 32, signed: false }),
                true => ("u64(1)".into(), Class::Int { bits: 64, signed: false }),
                false => (self.numbers.pick(&self.roots).text.clone(), Class::Unknown),
            },
        }
    }

    /// Members behind a root that has a type.
    fn walk(&mut self) -> Option<(String, u32)> {
        let btf = self.kernel.btf();
        let task = btf.find("task_struct", Kind::Struct);
        let mut typed: Vec<Root> = self.roots.iter().filter(|root| root.ty.is_some()).cloned().collect();
        if self.of_task && task.is_some() {
            typed.push(Root { text: "task".into(), ty: None });
        }
        if typed.is_empty() || self.roots.len() > typed.len() && self.numbers.one_of(2) {
            return None;
        }
        let root = self.numbers.pick(&typed).clone();
        // `task` is a pointer, whose type has no id of its own.
        let mut at = match root.ty {
            Some(ty) => (root.text, ty, false),
            None => (root.text, task?, true),
        };
        for _ in 0..MAX_STEPS {
            let stop = self.numbers.one_of(6);
            match self.step(at.clone(), stop) {
                Some(next) => at = next,
                None => break,
            }
        }
        // A pointer whose type has no id ends in its first number.
        (!at.2).then_some((at.0, at.1))
    }

    /// One step further in; `behind`: the text is a pointer to the type.
    fn step(&mut self, (text, ty, behind): (String, u32, bool), stop: bool) -> Option<(String, u32, bool)> {
        let btf = self.kernel.btf();
        let t = btf.strip(ty);
        match t.kind {
            Kind::Struct | Kind::Union => {
                let (name, member) = self.member(t)?;
                Some((format!("{text}.{name}"), member, false))
            }
            _ if behind => None,
            Kind::Ptr if stop => None,
            Kind::Ptr => {
                let pointee = btf.strip(t.size_or_type);
                match pointee.kind {
                    Kind::Struct | Kind::Union if self.numbers.one_of(5) => self.cast(&text),
                    Kind::Struct | Kind::Union if self.numbers.one_of(8) => {
                        Some((format!("{text}[0]"), pointee.id, false))
                    }
                    Kind::Struct | Kind::Union => Some((text, pointee.id, true)),
                    Kind::Int | Kind::Ptr | Kind::Enum => {
                        Some((format!("{text}[{}]", self.numbers.below(3)), pointee.id, false))
                    }
                    _ => self.cast(&text),
                }
            }
            Kind::Int if t.size_or_type == 8 && self.numbers.one_of(6) => self.cast(&text),
            Kind::Array => {
                let (element, count) = btf.array(t)?;
                if stop || count == 0 {
                    return None;
                }
                let index = match self.numbers.one_of(4) {
                    true => format!("u64({}) % {count}", self.number(0)),
                    false => self.numbers.below(count as usize).to_string(),
                };
                Some((format!("{text}[{index}]"), element, false))
            }
            _ => None,
        }
    }

    /// The same bytes as a struct of the kernel's.
    fn cast(&mut self, text: &str) -> Option<(String, u32, bool)> {
        let btf = self.kernel.btf();
        let id = *self.numbers.pick(&self.kernel.structs);
        let name = btf.name(btf.ty(id)).to_owned();
        if self.numbers.one_of(4) {
            let members: Vec<String> = btf.member_names(id).into_iter().map(str::to_owned).collect();
            let member = self.numbers.pick(&members).clone();
            return Some((format!("container_of({text}, struct {name}, {member})"), id, true));
        }
        Some((format!("cast(struct {name}, {text})"), id, true))
    }

    /// A member, by a name that finds it; of overlapping ones every second time.
    fn member(&mut self, t: Type) -> Option<(String, u32)> {
        let btf = self.kernel.btf();
        let (mut all, mut overlapping) = (Vec::new(), Vec::new());
        members(btf, t, false, 0, &mut all, &mut overlapping);
        let from = if !overlapping.is_empty() && self.numbers.one_of(2) { &overlapping } else { &all };
        (!from.is_empty()).then(|| self.numbers.pick(from).clone())
    }
}

fn members(
    btf: &Btf,
    t: Type,
    within_union: bool,
    depth: usize,
    all: &mut Vec<(String, u32)>,
    overlapping: &mut Vec<(String, u32)>,
) {
    let within_union = within_union || t.kind == Kind::Union;
    for m in btf.members(t) {
        if m.name.is_empty() {
            if depth < 8 {
                members(btf, btf.strip(m.ty), within_union, depth + 1, all, overlapping);
            }
            continue;
        }
        all.push((m.name.to_owned(), m.ty));
        if within_union || m.bit_size > 0 || btf.strip(m.ty).kind == Kind::Union {
            overlapping.push((m.name.to_owned(), m.ty));
        }
    }
}

fn class(btf: &Btf, ty: u32) -> Class {
    let t = btf.strip(ty);
    match t.kind {
        Kind::Int if btf.is_bool(t) => Class::Bool,
        Kind::Int | Kind::Enum | Kind::Enum64 => Class::Int { bits: t.size_or_type * 8, signed: btf.is_signed(t) },
        Kind::Ptr => Class::Pointer,
        Kind::Array => {
            let text = btf.array(t).is_some_and(|(element, _)| {
                let element = btf.strip(element);
                element.kind == Kind::Int && btf.name(element) == "char"
            });
            if text { Class::Text } else { Class::Place }
        }
        Kind::Struct | Kind::Union => Class::Place,
        _ => Class::Unknown,
    }
}
