//! Call trees as plain text that does not change: for expected files, and for people.

use std::fmt::Write;

use super::{Call, CallId, Calls, Ends};

impl Calls {
    /// All trees: per call two blanks a level, its name, its module in brackets, its duration in nanoseconds.
    ///
    /// `?` stands where the trace does not say; `{` and `}` mark a call of which only the entry or only the exit was recorded, `!` one
    /// that an interrupt began.
    pub fn outline(&self) -> String {
        let mut text = String::new();
        for root in &self.roots {
            self.outline_of(*root, &mut text);
        }
        text
    }

    /// The tree of one call, in the form of [`Calls::outline`].
    pub fn outline_of(&self, root: CallId, text: &mut String) {
        for (id, depth) in self.tree(root) {
            let call = &self[id];
            // Depth is the text's own: a tree that is deeper than kernel stacks come must not make a text of its square.
            let indent = 2 * depth.min(DEPTH_SHOWN);
            let _ = write!(text, "{:indent$}{}", "", self.name_of(call));
            if let Some(module) = call.module {
                let _ = write!(text, " [{}]", self.names[module]);
            }
            match call.duration_ns {
                Some(ns) => {
                    let _ = write!(text, " {ns}");
                }
                None => text.push_str(" ?"),
            }
            text.push_str(match call.ends {
                Ends::Both => "",
                Ends::Entry => " {",
                Ends::Exit => " }",
            });
            text.push_str(if call.interrupt { " !\n" } else { "\n" });
        }
    }

    /// The name of a call's function; `?` when the trace does not say.
    pub fn name_of(&self, call: &Call) -> &str {
        call.function.map_or("?", |id| &self.names[id])
    }
}

/// Levels that are indented.
const DEPTH_SHOWN: usize = 128;
