//! Pictures and figures for terminals: pure functions from numbers to characters.

pub mod figures;
pub mod heat;

/// Cut to a width in characters, with two dots where something is left out. Names of processes go to a terminal: control
/// characters are shown as such.
pub fn fit(text: &str, width: usize) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(2)).chain("..".chars()).take(width).collect(),
        false => text,
    }
}
