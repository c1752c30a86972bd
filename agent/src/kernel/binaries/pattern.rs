//! Patterns with `*` (any text) and `?` (one character).

/// Whether a text is a pattern rather than a plain name.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether the whole of `text` fits the pattern. Takes time in proportion to the product of the lengths at worst.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last `*` does not fit: that star, and the text it takes so far.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(c) if *c == text[t] => {
                (p, t) = (p + 1, t + 1);
            }
            Some(b'?') => {
                // One character, not one byte of one.
                t += 1;
                while text.get(t).is_some_and(|b| b & 0xc0 == 0x80) {
                    t += 1;
                }
                p += 1;
            }
            _ => {
                let Some((star, taken)) = retry else { return false };
                retry = Some((star, taken + 1));
                (p, t) = (star + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, yes, no) in [
            ("exec_*", &["exec_", "exec_simple_query"][..], &["exec", "xexec_"][..]),
            ("*", &["", "a"], &[]),
            ("a?c", &["abc", "a?c", "aéc"], &["ac", "abbc"]),
            ("*b*b", &["abab", "bb", "xbyyb"], &["b", "aba"]),
            ("read", &["read"], &["reads", "rea", ""]),
            ("", &[""], &["a"]),
            ("a*?", &["ab", "abc"], &["a"]),
            ("core::fmt::*", &["core::fmt::write"], &["core::fmt"]),
        ] {
            for text in yes {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in no {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        }
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
    }
}
