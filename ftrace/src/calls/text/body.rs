//! The last column: `name [module](arguments) {`, `name();`, `} /* name */`, `/* event: ... */`.

/// What a line says after its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A function was entered; `leaf` when it returned in the same line, `cut` when the line ends before it says.
    Call {
        /// `None` when the line was cut inside the name.
        name: Option<&'a str>,
        module: Option<&'a str>,
        arguments: Option<&'a str>,
        returned: Option<&'a str>,
        shape: Shape,
    },
    /// A function returned; `cut` when the line ends inside of its comment.
    Exit { name: Option<&'a str>, module: Option<&'a str>, returned: Option<&'a str>, cut: bool },
    /// An event between them; `cut` when its end is missing.
    Comment { text: &'a str, cut: bool },
}

impl Body<'_> {
    /// The line ends before all was said.
    pub fn cut(&self) -> bool {
        matches!(
            self,
            Body::Call { shape: Shape::Cut, .. } | Body::Exit { cut: true, .. } | Body::Comment { cut: true, .. }
        )
    }
}

/// How a call ends in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{`
    Opens,
    /// `;`
    Leaf,
    /// Neither: the line was cut.
    Cut,
}

/// Which notes of readers may follow the tracer's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    /// Any: the columns say that the line is the tracer's.
    Any,
    /// Only those that begin with a sign (`<== here`, `// slow`): with a word, it may be a line of prose or of a program.
    Signs,
}

impl Notes {
    fn allow(self, tail: &str) -> bool {
        let tail = tail.trim_start();
        self == Notes::Any || !tail.starts_with(|letter: char| letter.is_alphanumeric() || letter == '{')
    }
}

/// Reads what follows the columns, without its indentation.
pub fn parse(text: &str, notes: Notes) -> Option<Body<'_>> {
    let text = text.trim();
    if let Some(comment) = text.strip_prefix("/*") {
        return Some(match comment.rsplit_once("*/").filter(|(_, tail)| notes.allow(tail)) {
            Some((whole, _)) => Body::Comment { text: whole.trim(), cut: false },
            None => Body::Comment { text: comment.trim(), cut: true },
        });
    }
    if let Some(tail) = text.strip_prefix('}') {
        return exit(tail, notes);
    }
    call(text, notes)
}

fn exit(tail: &str, notes: Notes) -> Option<Body<'_>> {
    let tail = tail.trim();
    let nothing = |cut| Body::Exit { name: None, module: None, returned: None, cut };
    let Some(comment) = tail.strip_prefix("/*") else {
        // trace-cmd can add the depth or the returned value in parentheses.
        return notes.allow(tail).then_some(nothing(tail == "/"));
    };
    // Cut inside of the comment: its name may not be whole.
    let Some((comment, _)) = comment.split_once("*/") else { return Some(nothing(true)) };
    let said = Said::of(comment);
    Some(Body::Exit { name: said.name, module: said.module, returned: said.returned, cut: false })
}

fn call(text: &str, notes: Notes) -> Option<Body<'_>> {
    let (name, module, rest) = function(text)?;
    let cut = |name| Body::Call { name, module, arguments: None, returned: None, shape: Shape::Cut };
    let Some(inside) = rest.strip_prefix('(') else { return rest.is_empty().then_some(cut(None)) };
    let Some(close) = closing(inside) else { return Some(cut(Some(name))) };
    let arguments = Some(inside[..close].trim()).filter(|arguments| !arguments.is_empty());
    let rest = inside[close + 1..].trim_start();
    let (shape, rest) = match rest.as_bytes().first() {
        None => (Shape::Cut, ""),
        Some(b'{') => (Shape::Opens, &rest[1..]),
        Some(b';') => (Shape::Leaf, &rest[1..]),
        Some(_) => return None,
    };
    let rest = rest.trim();
    let comment = rest.strip_prefix("/*").and_then(|comment| comment.split_once("*/"));
    let returned = comment.and_then(|(comment, _)| Said::of(comment).returned);
    if !notes.allow(rest) {
        return None;
    }
    Some(Body::Call { name: Some(name), module, arguments, returned, shape })
}

/// A function's name, its module, and what follows.
fn function(text: &str) -> Option<(&str, Option<&str>, &str)> {
    // No letter of a name has more than one byte.
    let end = text.bytes().position(|letter| !in_name(letter.into())).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    // No symbol begins with a digit, but addresses without a symbol do.
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || matches!(letter, '_' | '.' | '$'));
    if !begins && !name.starts_with("0x") {
        return None;
    }
    let Some(module) = rest.trim_start().strip_prefix('[') else { return Some((name, None, rest)) };
    // Cut inside of the module.
    let Some((module, rest)) = module.split_once(']') else { return Some((name, None, "(")) };
    // With build ids: `[veth 0123abcd]`.
    let module = module.split_whitespace().next()?;
    module.chars().all(|letter| in_name(letter) || letter == '-').then_some((name, Some(module), rest))
}

fn in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '$' | '+' | '/' | '@' | ':')
}

/// Where the parenthesis that is open is closed.
fn closing(text: &str) -> Option<usize> {
    let mut open = 1;
    for (at, letter) in text.bytes().enumerate() {
        match letter {
            b'(' => open += 1,
            b')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

/// What a comment behind a call or an exit says: `name [module]`, `name = 0x0`, `name ret=0x0`, `<-caller ret=-11`.
struct Said<'a> {
    name: Option<&'a str>,
    module: Option<&'a str>,
    returned: Option<&'a str>,
}

impl<'a> Said<'a> {
    fn of(comment: &'a str) -> Said<'a> {
        let mut said = Said { name: None, module: None, returned: None };
        let mut words = comment.split_whitespace();
        while let Some(word) = words.next() {
            if let Some(value) = word.strip_prefix("ret=") {
                said.returned = Some(value);
            } else if word == "=" {
                said.returned = words.next();
            } else if let Some(module) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
                said.module = said.name.map(|_| module);
            } else if said.name.is_none() && !word.starts_with("<-") && word.chars().all(in_name) {
                said.name = Some(word);
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls() {
        let call =
            |name, module, arguments, returned, shape| Some(Body::Call { name, module, arguments, returned, shape });
        for (text, expected) in [
            ("tcp_recvmsg() {", call(Some("tcp_recvmsg"), None, None, None, Shape::Opens)),
            ("fget.part.0();", call(Some("fget.part.0"), None, None, None, Shape::Leaf)),
            ("veth_xmit [veth]();", call(Some("veth_xmit"), Some("veth"), None, None, Shape::Leaf)),
            (
                "x_y [nf-x 01ab](a=1, b=f(2)) {",
                call(Some("x_y"), Some("nf-x"), Some("a=1, b=f(2)"), None, Shape::Opens),
            ),
            ("fget(fd=3); /* = 0xffff1 */", call(Some("fget"), None, Some("fd=3"), Some("0xffff1"), Shape::Leaf)),
            ("fget(); /* ret=-9 */", call(Some("fget"), None, None, Some("-9"), Shape::Leaf)),
            ("fget(); /* <-sys_read+0x1/0x20 ret=0x0 */", call(Some("fget"), None, None, Some("0x0"), Shape::Leaf)),
            ("fget() { /* <-sys_read+0x1/0x20 */", call(Some("fget"), None, None, None, Shape::Opens)),
            ("fget(); (3)", call(Some("fget"), None, None, None, Shape::Leaf)),
            ("0xffffffffc0123456();", call(Some("0xffffffffc0123456"), None, None, None, Shape::Leaf)),
            ("fget()", call(Some("fget"), None, None, None, Shape::Cut)),
            ("fget(fd=", call(Some("fget"), None, None, None, Shape::Cut)),
            ("fget [ve", call(Some("fget"), None, None, None, Shape::Cut)),
            ("fge", call(None, None, None, None, Shape::Cut)),
            ("1.09", None),
            ("some words", None),
            ("fget() or so", None),
            ("fget(); and more", None),
            ("", None),
            ("(", None),
        ] {
            assert_eq!(parse(text, Notes::Signs), expected, "{text}");
        }
    }

    #[test]
    fn exits() {
        let exit = |name, module, returned| Some(Body::Exit { name, module, returned, cut: false });
        let cut = Some(Body::Exit { name: None, module: None, returned: None, cut: true });
        for (text, expected) in [
            ("}", exit(None, None, None)),
            ("} /* fget */", exit(Some("fget"), None, None)),
            ("} /* veth_xmit [veth] */", exit(Some("veth_xmit"), Some("veth"), None)),
            ("} /* fget = 0x0 */", exit(Some("fget"), None, Some("0x0"))),
            ("} /* veth_xmit [veth] ret=-11 */", exit(Some("veth_xmit"), Some("veth"), Some("-11"))),
            ("} /* = 0 */", exit(None, None, Some("0"))),
            ("} /* ret=0x1 */", exit(None, None, Some("0x1"))),
            ("} (2)", exit(None, None, None)),
            ("} /* fge", cut),
            ("} /", cut),
            ("} else {", None),
        ] {
            assert_eq!(parse(text, Notes::Signs), expected, "{text}");
        }
    }

    #[test]
    fn comments() {
        assert_eq!(
            parse("/* sched_switch: a|b */", Notes::Signs),
            Some(Body::Comment { text: "sched_switch: a|b", cut: false })
        );
        assert_eq!(parse("/* sched_swi", Notes::Signs), Some(Body::Comment { text: "sched_swi", cut: true }));
    }
    /// Texts in bug reports have notes behind the tracer's lines.
    #[test]
    fn notes_change_nothing() {
        let words = ["<== here", "// 6 ms", "# slow", "-- 99 % of it", "(why?)", "!!!", "\u{2190} this", "* look"];
        for text in ["fget(fd=3);", "x_y [nf-x](a=1) {", "}", "} /* fget */", "/* sched_switch: a|b */"] {
            for note in words {
                let noted = format!("{text}   {note}");
                assert_eq!(parse(&noted, Notes::Signs), parse(text, Notes::Signs), "{noted}");
            }
            let noted = format!("{text} this one");
            assert_eq!(parse(&noted, Notes::Any), parse(text, Notes::Any), "{noted}");
        }
    }
}
