//! The fenced blocks of a page.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held while a page is looked at: tests run at the same time, and with `BLESS=1` several of them change one page.
static READING: Mutex<()> = Mutex::new(());

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Fence {
    /// 1-based line of the text's first line, for messages.
    pub line: usize,
    /// What stands behind the opening back ticks.
    pub info: String,
    /// Where the text lies in the page.
    pub body: Range<usize>,
}

/// A page, and what is to be changed in it.
pub struct Page {
    path: PathBuf,
    pub text: String,
    pub fences: Vec<Fence>,
    wrong: Vec<String>,
    edits: Vec<(Range<usize>, String)>,
    _reading: MutexGuard<'static, ()>,
}

impl Page {
    /// Reads a page by its path from the workspace's root; nobody else reads one until it is dropped.
    pub fn read(name: &str) -> Page {
        let reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let fences = fences(&text);
        Page { path, text, fences, wrong: Vec::new(), edits: Vec::new(), _reading: reading }
    }

    /// The text of a fence.
    pub fn body(&self, fence: &Fence) -> &str {
        &self.text[fence.body.clone()]
    }

    /// The fences whose info begins with these words, each with the fence after it.
    pub fn of(&self, info: &str) -> Vec<(Fence, Option<Fence>)> {
        let next = |i: usize| self.fences.get(i + 1).cloned();
        let begins = |f: &Fence| f.info == info || f.info.strip_prefix(info).is_some_and(|rest| rest.starts_with(' '));
        self.fences.iter().enumerate().filter(|(_, f)| begins(f)).map(|(i, f)| (f.clone(), next(i))).collect()
    }

    /// The part of the page must read so; `BLESS=1` makes it.
    pub fn expect(&mut self, part: Range<usize>, what: &str, found: String) {
        let written = &self.text[part.clone()];
        if *written != found {
            self.wrong.push(format!("{what}\n--- the page\n{written}--- found\n{found}"));
            self.edits.push((part, found));
        }
    }

    /// Something that only a person can put right.
    pub fn complain(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// Ends a test of the page.
    pub fn finish(mut self) {
        let only_edits = self.wrong.len() == self.edits.len();
        if std::env::var_os("BLESS").is_some() && only_edits {
            self.edits.sort_by_key(|(part, _)| std::cmp::Reverse(part.start));
            for (part, found) in &self.edits {
                self.text.replace_range(part.clone(), found);
            }
            std::fs::write(&self.path, &self.text).unwrap();
            return;
        }
        let name = self.path.display();
        assert!(self.wrong.is_empty(), "{name}:\n{}\nBLESS=1 rewrites recorded text", self.wrong.join("\n"));
    }
}

fn fences(text: &str) -> Vec<Fence> {
    let mut fences: Vec<Fence> = Vec::new();
    let mut open = false;
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let end = at + line.len();
        if let Some(info) = line.strip_prefix("```") {
            match fences.last_mut().filter(|_| open) {
                Some(fence) => fence.body.end = at,
                None => fences.push(Fence { line: number + 2, info: info.trim().to_owned(), body: end..end }),
            }
            open = !open;
        }
        at = end;
    }
    assert!(!open, "a fence is never closed");
    fences
}

#[test]
fn blocks_are_found_with_their_lines() {
    let text = "a\n```yaml error\nx: 1\n```\n\n```text\n```\n";
    let found: Vec<_> = fences(text).into_iter().map(|f| (f.line, f.info, text[f.body].to_owned())).collect();
    assert_eq!(found, [(3, "yaml error".into(), "x: 1\n".into()), (7, "text".into(), String::new())]);
}
