//! Hooks at kernel functions: `function:[MODULE:]NAME:entry`, `fentry:`, `fexit:`, `kprobe:[MODULE:]NAME[+OFFSET]`,
//! `kretprobe:`.

use crate::model::{Edge, HookKind, Via};
use crate::names::suggestion;
use crate::report::Problem;

/// The kernel's symbols have at most 511 characters.
const MAX_SYMBOL: usize = 511;
/// Longer than any function.
const MAX_OFFSET: u64 = 1 << 20;

/// What follows `function:`.
pub(super) fn function(rest: &str) -> Result<HookKind, Problem> {
    let shape = |name: &str| format!("write `function:{}:entry`", if name.is_empty() { "NAME" } else { name });
    let Some((name, edge)) = rest.rsplit_once(':').filter(|(name, _)| !name.is_empty()) else {
        return Err(Problem::new("a function hook says `entry` or `return`").hint(shape(rest.trim_end_matches(':'))));
    };
    let edge = match edge {
        "entry" => Edge::Enter,
        "return" => Edge::Exit,
        _ => {
            let hint = match edge {
                "enter" | "start" | "begin" => "did you mean `entry`?".to_owned(),
                "exit" | "ret" | "end" => "did you mean `return`?".to_owned(),
                _ => suggestion(edge, &["entry", "return"]),
            };
            let here = name.len() + 1..rest.len();
            let message = format!("a function hook ends in `entry` or `return`, not in `{edge}`");
            return Err(Problem::new(message).at(here).hint(hint));
        }
    };
    let (module, name) = place(name, true)?;
    Ok(HookKind::Function { name, module, offset: 0, edge, via: Via::Best })
}

/// What follows `fentry:` or `fexit:`.
pub(super) fn traced(rest: &str, edge: Edge) -> Result<HookKind, Problem> {
    let (module, name) = place(rest, false)?;
    if let Some(at) = name.find('.') {
        let from = rest.len() - name.len() + at;
        let message = "`fentry:` and `fexit:` know a function by its BTF, which has no names such as this";
        let hint = format!(
            "write `kprobe:{rest}` or `function:{rest}:{}`",
            if edge == Edge::Exit { "return" } else { "entry" }
        );
        return Err(Problem::new(message).at(from..rest.len()).hint(hint));
    }
    Ok(HookKind::Function { name, module, offset: 0, edge, via: Via::Fentry })
}

/// What follows `kprobe:` or `kretprobe:`.
pub(super) fn kprobe(rest: &str, edge: Edge) -> Result<HookKind, Problem> {
    let (whole, offset) = match rest.split_once('+') {
        None => (rest, 0),
        Some((name, offset)) => (name, self::offset(offset, name.len() + 1)?),
    };
    let (module, name) = place(whole, true)?;
    if offset > 0 {
        let here = whole.len()..rest.len();
        if edge == Edge::Exit {
            return Err(Problem::new("a function returns as a whole").at(here).hint("leave the offset out"));
        }
        if is_pattern(&name) {
            let message = "an offset means something in one function only";
            return Err(Problem::new(message).at(here).hint("name the function, or leave the offset out"));
        }
    }
    Ok(HookKind::Function { name, module, offset, edge, via: Via::Kprobe })
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Decimal, or hexadecimal behind `0x`.
fn offset(text: &str, at: usize) -> Result<u64, Problem> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match number.filter(|n| *n <= MAX_OFFSET) {
        Some(number) => Ok(number),
        None => {
            let message = format!("`{text}` is no offset into a function");
            Err(Problem::new(message).at(at..at + text.len()).hint("write bytes, as in `+4` or `+0x10`"))
        }
    }
}

/// `[MODULE:]NAME`
fn place(text: &str, patterns: bool) -> Result<(Option<String>, String), Problem> {
    let (module, name) = match text.split_once(':') {
        None => (None, text),
        Some((module, name)) => (Some(module), name),
    };
    let start = text.len() - name.len();
    let wrong = |message: String| Problem::new(message).at(start..text.len());
    if name.is_empty() {
        return Err(Problem::new("the function's name is missing").hint("`kstrobe list functions` shows what there is"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '*' | '?');
    if name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain) {
        let hint = "names are those of C, perhaps with `*` and `?`, or with what the compiler appends (`.isra.0`)";
        return Err(wrong(format!("`{name}` is not a function name")).hint(hint));
    }
    if name.len() > MAX_SYMBOL {
        return Err(wrong(format!("a function name has at most {MAX_SYMBOL} characters")));
    }
    if is_pattern(name) && !patterns {
        return Err(
            wrong("a BTF-typed hook is at one function".into()).hint("patterns are for `function:` and `kprobe:`")
        );
    }
    if is_pattern(name) && !name.contains(|c: char| c.is_ascii_alphanumeric()) {
        return Err(wrong("this pattern names every function".into()).hint("begin it with a few letters: `vfs_*`"));
    }
    match module {
        None => Ok((None, name.to_owned())),
        Some(module) => Ok((Some(module_name(module)?), name.to_owned())),
    }
}

/// Files of modules may have `-` where the kernel says `_`.
fn module_name(text: &str) -> Result<String, Problem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(plain) {
        true => Ok(text.replace('-', "_")),
        false => {
            let problem = Problem::new(format!("`{text}` is not a module's name")).at(0..text.len());
            Err(problem.hint("write `MODULE:FUNCTION`, as in `veth:veth_xmit`, or the function alone"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::hook::parse;

    fn hook(name: &str, module: Option<&str>, offset: u64, edge: Edge, via: Via) -> Result<HookKind, Problem> {
        Ok(HookKind::Function { name: name.into(), module: module.map(str::to_owned), offset, edge, via })
    }

    #[test]
    fn functions_of_all_kinds() {
        let cases = [
            ("function:vfs_read:entry", hook("vfs_read", None, 0, Edge::Enter, Via::Best)),
            (
                "function:nf_tables:nft_do_chain:return",
                hook("nft_do_chain", Some("nf_tables"), 0, Edge::Exit, Via::Best),
            ),
            ("function:vfs_*:entry", hook("vfs_*", None, 0, Edge::Enter, Via::Best)),
            (
                "function:finish_task_switch.isra.0:entry",
                hook("finish_task_switch.isra.0", None, 0, Edge::Enter, Via::Best),
            ),
            ("fentry:tcp_sendmsg", hook("tcp_sendmsg", None, 0, Edge::Enter, Via::Fentry)),
            ("fexit:veth:veth_xmit", hook("veth_xmit", Some("veth"), 0, Edge::Exit, Via::Fentry)),
            ("kprobe:tcp_sendmsg+16", hook("tcp_sendmsg", None, 16, Edge::Enter, Via::Kprobe)),
            ("kprobe:dm-mod:dm_submit_bio+0x1f", hook("dm_submit_bio", Some("dm_mod"), 31, Edge::Enter, Via::Kprobe)),
            ("kprobe:tcp_sendmsg+0", hook("tcp_sendmsg", None, 0, Edge::Enter, Via::Kprobe)),
            ("kretprobe:vfs_????", hook("vfs_????", None, 0, Edge::Exit, Via::Kprobe)),
        ];
        for (text, wanted) in cases {
            assert_eq!(parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn problems_point_at_the_part_that_is_wrong() {
        let cases = [
            ("function:vfs_read", "function:vfs_read", "write `function:vfs_read:entry`"),
            ("function:", "function:", "write `function:NAME:entry`"),
            ("function:vfs_read:exit", "exit", "did you mean `return`?"),
            ("function:vfs_read:enter", "enter", "did you mean `entry`?"),
            ("function:*:entry", "*", "begin it with a few letters: `vfs_*`"),
            ("fentry:vfs_*", "vfs_*", "patterns are for `function:` and `kprobe:`"),
            ("fexit:f.isra.0", ".isra.0", "write `kprobe:f.isra.0` or `function:f.isra.0:return`"),
            ("kprobe:vfs_read+x", "x", "write bytes, as in `+4` or `+0x10`"),
            ("kprobe:vfs_*+4", "+4", "name the function, or leave the offset out"),
            ("kretprobe:vfs_read+4", "+4", "leave the offset out"),
            ("kprobe:a b:f", "a b", "write `MODULE:FUNCTION`, as in `veth:veth_xmit`, or the function alone"),
            ("kprobe:m:", "kprobe:m:", "`kstrobe list functions` shows what there is"),
        ];
        for (text, part, hint) in cases {
            let problem = parse(text).expect_err(text);
            assert_eq!(&text[problem.range.unwrap_or(0..text.len())], part, "{text}");
            assert_eq!(problem.hint.as_deref(), Some(hint), "{text}");
        }
        assert!(parse("kprobe:vfs-read").is_err() && parse("kprobe:9p").is_err());
    }
}
