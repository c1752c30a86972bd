//! Which functions the kernel and its modules have, and which of them can be traced.
//!
//! tracefs lists what ftrace can hook (fentry, kprobe_multi); `/proc/kallsyms` has all symbols (kprobes). Both are long (some
//! 60,000 and 200,000 lines), so that they are read only when a probe names functions, and in one go for all of them.

use crate::kernel::error::BtfError;
use crate::kernel::tracefs::Tracefs;
use kstrobe_ebpf::kernel_target::{Btf, Function, plain_name};
use std::collections::{BTreeMap, BTreeSet, HashMap};

const KALLSYMS: &str = "/proc/kallsyms";
const MODULE_BTF: &str = "/sys/kernel/btf";
/// What users call the kernel itself where a module's name stands.
const KERNEL: &str = "vmlinux";
/// Code that is in kallsyms without being a function of the kernel's.
const NO_MODULES: [&str; 3] = ["bpf", "__builtin__ftrace", "__builtin__kprobes"];

/// All that the names and patterns (`name`, `module:name`) mean; a name that means nothing has an empty list.
pub fn find(wanted: &BTreeSet<String>, tracefs: Option<&Tracefs>) -> BTreeMap<String, Vec<Function>> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let traced = tracefs.and_then(|t| t.read("available_filter_functions").ok());
    let mut found = match &traced {
        Some(text) => collect(wanted, text.lines().filter_map(traced_line), true),
        None => wanted.iter().map(|w| (w.clone(), vec![])).collect(),
    };
    let missing: BTreeSet<String> = found
        .iter()
        .filter(|(name, list)| list.is_empty() && !(traced.is_some() && is_pattern(name)))
        .map(|(n, _)| n.clone())
        .collect();
    if !missing.is_empty()
        && let Ok(symbols) = std::fs::read_to_string(KALLSYMS)
    {
        found.append(&mut collect(&missing, symbols.lines().filter_map(symbol_line), false));
    }
    found
}

/// All functions whose name fits a pattern, for people.
pub fn list(pattern: &str, tracefs: Option<&Tracefs>) -> Vec<Function> {
    find(&BTreeSet::from([pattern.to_string()]), tracefs).remove(pattern).unwrap_or_default()
}

/// The types of the modules that functions lie in, as far as the kernel publishes them.
pub fn module_types(found: &BTreeMap<String, Vec<Function>>, kernel: Option<&Btf>) -> BTreeMap<String, Btf> {
    let modules: BTreeSet<&String> = found.values().flatten().filter_map(|f| f.module.as_ref()).collect();
    let Some(kernel) = kernel else { return BTreeMap::new() };
    modules.into_iter().filter_map(|m| Some((m.clone(), read_module_btf(m, kernel).ok()?))).collect()
}

/// A module's types, which continue the kernel's.
pub fn read_module_btf(module: &str, kernel: &Btf) -> Result<Btf, BtfError> {
    let bytes = std::fs::read(format!("{MODULE_BTF}/{module}"))
        .map_err(|error| BtfError::ReadModule { module: module.to_owned(), error })?;
    Btf::parse_module(bytes, kernel).map_err(|error| BtfError::ParseModule { module: module.to_owned(), error })
}

/// Names of the modules whose types the kernel publishes.
pub fn modules_with_types() -> Vec<String> {
    let entries = std::fs::read_dir(MODULE_BTF).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|name| name != KERNEL).collect()
}

/// A name in one of the lists, and its module.
type Symbol<'a> = (&'a str, Option<&'a str>);

/// `vfs_read` or `veth_xmit [veth]`
fn traced_line(line: &str) -> Option<Symbol<'_>> {
    let (name, module) = line.split_once(' ').map_or((line, None), |(name, module)| (name, Some(module)));
    // Functions of code that was thrown away after booting.
    (!name.starts_with("__ftrace_invalid_address__")).then(|| (name, module.map(|m| m.trim_matches(['[', ']', ' ']))))
}

/// `ffffffff81000000 T vfs_read` or `ffffffffc0000000 t veth_xmit\t[veth]`
fn symbol_line(line: &str) -> Option<Symbol<'_>> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, name, module) = (words.next()?, words.next()?, words.next());
    let module = module.map(|m| m.trim_matches(['[', ']']));
    let is_function = matches!(kind, "t" | "T" | "w" | "W") && !module.is_some_and(|m| NO_MODULES.contains(&m));
    // Labels at the padding before functions, and cold parts, are never called.
    (is_function && !name.starts_with("__pfx_") && !name.starts_with("__cfi_")).then_some((name, module))
}

fn collect<'t>(
    wanted: &BTreeSet<String>,
    symbols: impl Iterator<Item = Symbol<'t>>,
    traceable: bool,
) -> BTreeMap<String, Vec<Function>> {
    let mut found: BTreeMap<String, Vec<Function>> = wanted.iter().map(|w| (w.clone(), vec![])).collect();
    // A name may be wanted of several modules. There are 200,000 symbols: one look-up for each, but for patterns.
    let (mut by_name, mut patterns) = (HashMap::<&str, Vec<Name<'_>>>::new(), Vec::new());
    for wanted in wanted {
        let (module, name) =
            wanted.split_once(':').map_or((None, wanted.as_str()), |(module, name)| (Some(module), name));
        let of_name = Name { wanted, module, name };
        match is_pattern(name) {
            true => patterns.push(of_name),
            false => by_name.entry(name).or_default().push(of_name),
        }
    }
    let mut times: HashMap<&str, u32> = HashMap::new();
    for (symbol, module) in symbols {
        let named = by_name.get(symbol).into_iter().chain(match plain_name(symbol) {
            plain if plain != symbol => by_name.get(plain),
            _ => None,
        });
        let fitting = named.flatten().chain(patterns.iter().filter(|pattern| fits(pattern.name, symbol)));
        let mut is_wanted = false;
        for Name { wanted, module: wanted_module, .. } in fitting {
            is_wanted = true;
            if wanted_module.is_none_or(|m| m == module.unwrap_or(KERNEL)) && !symbol.contains(".cold") {
                let module = module.map(str::to_string);
                let function = Function { symbol: symbol.into(), module, shared: false, traceable };
                found.entry((*wanted).clone()).or_default().push(function);
            }
        }
        if is_wanted {
            *times.entry(symbol).or_default() += 1;
        }
    }
    for list in found.values_mut() {
        list.iter_mut().for_each(|f| f.shared = times.get(f.symbol.as_str()).is_some_and(|times| *times > 1));
        list.sort_by(|a, b| (&a.module, &a.symbol).cmp(&(&b.module, &b.symbol)));
    }
    found
}

/// What is asked for: a name or pattern, of one module or of any.
struct Name<'w> {
    wanted: &'w String,
    module: Option<&'w str>,
    name: &'w str,
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether the whole of a name fits a pattern: `*` is any text, `?` one character.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` does not fit: behind that star, and how much it takes so far.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                retry = Some((p, n));
            }
            Some(c) if *c == b'?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((behind, taken)) = retry else { return false };
                retry = Some((behind, taken + 1));
                (p, n) = (behind, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACED: &str = "vfs_read\nvfs_write\nfinish_task_switch.isra.0\n__ftrace_invalid_address___48\nveth_open [veth]\n\
                          vfs_open\nopen_part.part.0\nvfs_read.cold\nsame\nsame\nsame [veth]\n";
    const SYMBOLS: &str = "0000000000000000 T vfs_read\n0000000000000000 D vfs_data\n0000000000000000 t __pfx_hidden\n\
                           0000000000000000 t hidden\n0000000000000000 t hidden.cold\n\
                           0000000000000000 t bpf_prog_123_hidden\t[bpf]\n0000000000000000 t veth_close\t[veth]\n";

    fn names(text: &str, line: fn(&str) -> Option<Symbol<'_>>, wanted: &str) -> String {
        let found = collect(&BTreeSet::from([wanted.to_string()]), text.lines().filter_map(line), true);
        let show = |f: &Function| {
            let module = f.module.as_ref().map_or(String::new(), |m| format!("{m}:"));
            format!("{module}{}{}", f.symbol, if f.shared { "!" } else { "" })
        };
        found[wanted].iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn names_and_patterns_find_their_symbols() {
        let traced = |wanted| names(TRACED, traced_line, wanted);
        assert_eq!(traced("vfs_read"), "vfs_read", "cold parts are no functions");
        assert_eq!(traced("vfs_*"), "vfs_open vfs_read vfs_write");
        assert_eq!(traced("finish_task_switch"), "finish_task_switch.isra.0");
        assert_eq!(traced("finish_task_switch.isra.0"), "finish_task_switch.isra.0");
        assert_eq!(traced("open_part"), "open_part.part.0");
        assert_eq!(
            (traced("veth_open"), traced("veth:*")),
            ("veth:veth_open".into(), "veth:same! veth:veth_open".into())
        );
        assert_eq!((traced("vmlinux:same"), traced("same")), ("same! same!".into(), "same! same! veth:same!".into()));
        assert_eq!(traced("nothing"), "");
    }

    #[test]
    fn symbols_that_are_functions() {
        let all = |wanted| names(SYMBOLS, symbol_line, wanted);
        assert_eq!(all("*"), "hidden vfs_read veth:veth_close");
        assert_eq!(
            (all("hidden"), all("vfs_data"), all("__pfx_hidden")),
            ("hidden".into(), String::new(), String::new())
        );
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, wanted) in [
            ("vfs_*", "vfs_", true),
            ("vfs_*", "xvfs_", false),
            ("*b*b", "abab", true),
            ("*b*b", "aba", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abcd", false),
            ("**", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
        assert!(!fits(&"*a".repeat(200), &"a".repeat(199)));
    }
}
