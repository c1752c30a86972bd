//! A terminal that a test can read and press keys in.

use super::{output, program, wait_for};
use std::process::Command;
use std::time::Duration;

/// Until a screen is there.
const LIMIT: Duration = Duration::from_secs(20);

/// A server of tmux with one terminal, which ends with it.
pub struct Tmux(String);

impl Tmux {
    /// Runs a command in a terminal of 80x24 with these variables.
    pub fn start(name: &str, variables: &[&str], command: &str) -> Tmux {
        let tmux = Tmux(format!("kstrobe-{name}-{}", std::process::id()));
        let command = format!("env {} {command}; echo ended; sleep 60", variables.join(" "));
        tmux.ask(&["-f", "/dev/null", "-u", "new-session", "-d", "-x", "80", "-y", "24", &command]);
        tmux
    }

    pub fn ask(&self, arguments: &[&str]) -> String {
        let tmux = program("tmux").expect("tmux");
        output(Command::new(tmux).args(["-L", &self.0]).args(arguments))
    }

    pub fn press(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// The first screen of which this is true.
    #[track_caller]
    pub fn until(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        wait_for(what, LIMIT, || Some(self.screen()).filter(|screen| is_there(screen)))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.ask(&["kill-server"]);
    }
}
