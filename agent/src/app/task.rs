//! Background threads of the agent: one type, with one rule for panics.
//!
//! A thread is for work that blocks in the kernel or computes for long; what only waits runs on tokio.

use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Pause after a panic, which may repeat.
pub(super) const AFTER_A_PANIC: Duration = Duration::from_secs(5);

/// Work that a thread of its own repeats.
pub(super) trait Task {
    /// Of the thread, at most 15 bytes (`TASK_COMM_LEN`), and in the log.
    const NAME: &'static str;

    /// One pass. A panic in it is logged and does not end the task.
    fn run(&mut self);

    /// After a panic in [`Task::run`].
    fn panicked(&mut self) {
        thread::sleep(AFTER_A_PANIC);
    }

    /// Blocks until the next pass. `Break` ends the task.
    fn wait(&mut self) -> ControlFlow<()>;
}

/// A task that runs.
pub(super) struct Running {
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl Running {
    /// Waits for the end of a task that was asked to stop, and gives up after `time`.
    pub fn join(self, time: Duration) {
        let _ = self.ended.recv_timeout(time);
    }
}

/// Starts a task, which is made on its thread: some hold what may not change threads. Dropping the result leaves it running.
pub(super) fn spawn<T: Task>(make: impl FnOnce() -> T + Send + 'static) -> io::Result<Running> {
    let (end, ended) = channel::<()>();
    let repeat = move || {
        let mut task = make();
        loop {
            if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
                let name = T::NAME;
                tracing::error!(
                    task = name,
                    "panicked: this is an error in kstrobe, please report it with the lines above"
                );
                task.panicked();
            }
            if task.wait().is_break() {
                break;
            }
        }
        drop(end);
    };
    thread::Builder::new().name(T::NAME.into()).spawn(repeat)?;
    Ok(Running { ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    /// Panics in its first pass, and ends after the second.
    struct Flaky {
        passes: u32,
        log: Sender<&'static str>,
    }

    impl Task for Flaky {
        const NAME: &'static str = "flaky";

        fn run(&mut self) {
            self.passes += 1;
            self.log.send("run").unwrap();
            assert!(self.passes > 1, "the first pass");
        }

        fn panicked(&mut self) {
            self.log.send("panicked").unwrap();
        }

        fn wait(&mut self) -> ControlFlow<()> {
            self.log.send("wait").unwrap();
            if self.passes > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    #[test]
    fn a_panic_does_not_end_a_task() {
        let (log, passes) = channel();
        spawn(|| Flaky { passes: 0, log }).unwrap().join(Duration::from_secs(10));
        assert_eq!(passes.iter().collect::<Vec<_>>(), ["run", "panicked", "wait", "run", "wait"]);
    }
}
