//! What goes wrong with a probe that runs.

use std::io;
use std::sync::Arc;

use kstrobe_ebpf::ir::interp::Trap;
use thiserror::Error;

use crate::kernel::load::LoadError;
use crate::metrics::fold::FoldError;

/// A part of a probe that a scrape or a sweep cannot read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The records of a table.
    #[error("cannot read table {table}: {error}")]
    Table {
        /// Its place in the layout.
        table: usize,
        /// Of bpf(2).
        error: io::Error,
    },
    /// Records that are not what the layout says.
    #[error("cannot read table {table}: {error}")]
    Series {
        /// The table's place in the layout.
        table: usize,
        /// What is wrong.
        error: FoldError,
    },
    /// Keys of a table could not be removed.
    #[error("cannot give back keys of table {table}: {error}")]
    Evict {
        /// The table's place in the layout.
        table: usize,
        /// Of bpf(2).
        error: io::Error,
    },
    /// Sums by stack could not be taken out.
    #[error("cannot empty table {table} of stacks: {error}")]
    Drain {
        /// The table's place in the layout.
        table: usize,
        /// Why.
        error: DrainError,
    },
    /// Before a walk over objects.
    #[error("cannot clear table {table}: {error}")]
    Clear {
        /// The table's place in the layout.
        table: usize,
        /// Of bpf(2).
        error: io::Error,
    },
    /// A walk over objects.
    #[error("cannot read the iterator: {0}")]
    Iterator(io::Error),
    /// The error of the last read, which each scrape shows until the next one.
    #[error(transparent)]
    Last(Arc<ReadError>),
    /// Spans without an end.
    #[error("cannot sweep open spans: {0}")]
    Spans(io::Error),
    /// Stacks that nothing refers to.
    #[error("cannot sweep call stacks: {0}")]
    Stacks(io::Error),
    /// Keys of stacks.
    #[error("cannot read which processes have stacks: {0}")]
    Processes(io::Error),
    /// Statistics of programs.
    #[error("cannot read what its programs cost: {0}")]
    Cost(io::Error),
    /// Entries of maps.
    #[error("cannot read how full its maps are: {0}")]
    Fill(io::Error),
    /// Counts of losses.
    #[error("cannot read what was lost: {0}")]
    Losses(io::Error),
    /// The ring buffer of a session.
    #[error("the ftrace session cannot be read: {0}")]
    Session(io::Error),
    /// Statistics of the ring buffer.
    #[error("cannot read what the ftrace session lost: {0}")]
    SessionLosses(io::Error),
}

/// Why sums by stack stay in the kernel.
#[derive(Debug, Error)]
pub enum DrainError {
    /// Of bpf(2).
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Records that are not what the layout says.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// The frames of a stack.
    #[error("stack {id}: {error}")]
    Stack {
        /// The kernel's id of the stack.
        id: i32,
        /// Of bpf(2).
        error: io::Error,
    },
}

/// Why a source was not polled.
#[derive(Debug, Error)]
pub enum PollError {
    /// The source cannot be read.
    #[error("source {source_name}: {error}")]
    Source {
        /// As in `poll.source`.
        source_name: &'static str,
        /// Of the file or socket.
        error: io::Error,
    },
    /// The interpreter has no room for the maps.
    #[error(transparent)]
    Maps(Trap),
    /// The program fails on a row.
    #[error("row program: {0}")]
    Row(Trap),
    /// Records that are not what the layout says.
    #[error(transparent)]
    Fold(#[from] FoldError),
}

/// Why a probe cannot be sampled, or attached again.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The programs do not learn of it.
    #[error("its control map cannot be written: {0}")]
    Control(io::Error),
    /// Spans from before the pause would be measured.
    #[error("old spans cannot be forgotten: {0}")]
    Spans(io::Error),
    /// A hook is refused.
    #[error(transparent)]
    Attach(#[from] LoadError),
}

/// Why a probe does not record an ftrace session.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The interpreter has no room for the maps.
    #[error(transparent)]
    Maps(#[from] Trap),
    /// A session records events of tracefs only.
    #[error("program {0} is no event's")]
    NoEvent(String),
    /// tracefs gives no session.
    #[error("no ftrace session: {0}")]
    Session(io::Error),
}

/// Why a probe has no programs at events; the reason, for people.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct NotAttached(pub String);
