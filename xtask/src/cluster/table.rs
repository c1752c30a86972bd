//! Results of the tests.

use std::fmt::Write;
use std::time::Duration;

/// Result of a test.
pub enum Outcome {
    /// With what was seen.
    Passed(String),
    /// Why.
    Failed(String),
    /// What it needs.
    NotRun(String),
}

/// All tests so far.
#[derive(Default)]
pub struct Table(Vec<(&'static str, Outcome, Duration)>);

impl Table {
    /// Adds one, and prints its line.
    pub fn add(&mut self, name: &'static str, outcome: Outcome, time: Duration) {
        println!("{}", line(name, &outcome, time));
        self.0.push((name, outcome, time));
    }

    /// Tests that failed.
    pub fn failed(&self) -> usize {
        self.0.iter().filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_))).count()
    }

    /// In Markdown.
    pub fn text(&self) -> String {
        let mut text = String::from("| test | result | seconds | what was seen |\n|---|---|---:|---|\n");
        for (name, outcome, time) in &self.0 {
            let (result, what) = words(outcome);
            let what = what.replace('\n', " ").replace('|', "\\|");
            let _ = writeln!(text, "| {name} | {result} | {:.1} | {what} |", time.as_secs_f64());
        }
        text
    }
}

fn words(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed(what) => ("passed", what),
        Outcome::Failed(why) => ("FAILED", why),
        Outcome::NotRun(why) => ("not run", why),
    }
}

fn line(name: &str, outcome: &Outcome, time: Duration) -> String {
    let (result, what) = words(outcome);
    format!("{result:8} {:6.1} s  {name}: {what}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_run_fails_nothing_and_has_a_line() {
        let mut table = Table::default();
        table.add("one", Outcome::Passed("2 pods".to_owned()), Duration::from_secs(1));
        table.add("two", Outcome::NotRun("1.28 or newer".to_owned()), Duration::ZERO);
        assert_eq!(table.failed(), 0);
        table.add("three", Outcome::Failed("a|b\nc".to_owned()), Duration::ZERO);
        assert_eq!(table.failed(), 1);
        let text = table.text();
        assert!(text.contains("| two | not run | 0.0 | 1.28 or newer |"), "{text}");
        assert!(text.contains("| three | FAILED | 0.0 | a\\|b c |"), "{text}");
    }
}
