//! Makes the tables by which programs walk user stacks, for processes that they run in.

use super::App;
use super::task::{self, Task};
use crate::kernel::unwind::{Size, Tables, Unwinder};
use crate::metrics::telemetry::UnwindUse;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Starts the threads, which live as long as the agent.
pub(super) fn start(app: &Arc<App>) -> std::io::Result<()> {
    let unwinder = app.shared.unwinder.clone();
    let files = UnwindFiles(unwinder.clone());
    task::spawn(move || files)?;
    task::spawn(move || Unwind(unwinder)).map(drop)
}

/// Reads large files, so that other processes need not wait for them.
struct UnwindFiles(Arc<Unwinder>);

impl Task for UnwindFiles {
    const NAME: &'static str = "unwind-files";

    fn run(&mut self) {
        // While it reads, it holds no tables that programs no longer use.
        while let Some(opened) = self.0.current().and_then(|tables| tables.next_large()) {
            let identity = opened.identity();
            let image = opened.read();
            if let Some(tables) = self.0.current() {
                tables.add_large(identity, image);
            }
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        self.0.wait();
        ControlFlow::Continue(())
    }
}

/// For the agent's own metrics.
pub(super) fn used(tables: &Tables) -> UnwindUse {
    let Size { processes, files, rows, no_room } = tables.size();
    UnwindUse {
        walks: tables.walks().map(|(outcome, n)| (outcome.name(), n)).to_vec(),
        processes: processes as u64,
        files: files as u64,
        rows: u64::from(rows),
        no_room,
    }
}

struct Unwind(Arc<Unwinder>);

impl Task for Unwind {
    const NAME: &'static str = "unwind";

    fn run(&mut self) {
        if let Some(tables) = self.0.current()
            && let Err(error) = tables.serve()
        {
            tracing::error!(%error, "tables of user stacks");
        }
    }

    fn wait(&mut self) -> ControlFlow<()> {
        self.0.wait();
        ControlFlow::Continue(())
    }
}
