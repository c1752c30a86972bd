//! Warnings and errors of the kernel, as marks on the time line of the history.

use super::history::HistoryStore;
use super::task::{self, Task};
use crate::kernel::log::{KernelLog, Level, Message, Reading};
use kstrobe_history::MarkKind;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What comes within it after a message is counted in its mark: a trace of the kernel's stack is a message for each line.
const BURST: Duration = Duration::from_secs(1);
/// Characters of a message that a mark has.
const MAX_TEXT: usize = 200;

/// Starts the thread, which lives as long as the agent.
pub(super) fn start(history: Arc<HistoryStore>) -> io::Result<()> {
    let log = match KernelLog::open() {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(%error, "the history has no marks of the kernel's warnings: /dev/kmsg cannot be read");
            return Ok(());
        }
    };
    task::spawn(move || Follower { history, log, came: SystemTime::now() }).map(drop)
}

struct Follower {
    history: Arc<HistoryStore>,
    log: KernelLog,
    /// When the first record of a burst came.
    came: SystemTime,
}

impl Task for Follower {
    const NAME: &'static str = "kernel_log";

    fn run(&mut self) {
        match burst(|| self.log.read()) {
            Ok(text) => text.into_iter().for_each(|text| self.history.mark(MarkKind::Kernel, self.came, text, None)),
            Err(error) => tracing::error!(%error, "a record of /dev/kmsg cannot be read"),
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        if let Err(error) = self.log.wait() {
            tracing::error!(%error, "no more marks of the kernel's warnings: /dev/kmsg cannot be waited for");
            return ControlFlow::Break(());
        }
        self.came = SystemTime::now();
        std::thread::sleep(BURST);
        ControlFlow::Continue(())
    }
}

/// The first warning of those that wait, and how many come after it.
fn burst(mut read: impl FnMut() -> io::Result<Reading>) -> io::Result<Option<String>> {
    let (mut first, mut more, mut is_overwritten) = (None, 0, false);
    loop {
        match read() {
            Ok(Reading::Message(Message { level, text })) if level <= Level::WARNING => match first {
                None => first = Some(text.chars().take(MAX_TEXT).collect::<String>()),
                Some(_) => more += 1,
            },
            Ok(Reading::Message(_) | Reading::Other) => {}
            Ok(Reading::Overwritten) => is_overwritten = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let more = match (more, is_overwritten) {
        (0, false) => String::new(),
        (more, false) => format!(" (and {more} more)"),
        (more, true) => format!(" (and {more} more, and some that were overwritten before they were read)"),
    };
    Ok(first.map(|first| first + &more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_its_first_warning_and_a_count() {
        let record = |text: &str| Ok(Message::parse(text.as_bytes()).map_or(Reading::Other, Reading::Message));
        let of = |records: Vec<io::Result<Reading>>| {
            let mut records = records.into_iter();
            burst(|| records.next().unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))).unwrap()
        };
        let (oom, info) = ("3,1,2,-;Out of memory", "6,2,3,-;loop0: new");
        assert_eq!(of(vec![record(info)]), None);
        assert_eq!(of(vec![record(info), record(oom)]).as_deref(), Some("Out of memory"));
        let three = of(vec![record(oom), record(info), record(oom), record("12,1,2,-;a program's")]);
        assert_eq!(three.as_deref(), Some("Out of memory (and 1 more)"));
        assert!(of(vec![Ok(Reading::Overwritten), record(oom)]).unwrap().contains("overwritten"));
    }
}
