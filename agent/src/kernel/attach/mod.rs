//! Ways to attach a program, one file each: what the kernel needs for it, how its program is loaded and how it is attached.

pub mod fentry;
pub mod iter;
pub mod kprobe;
pub mod kprobe_multi;
pub mod perf_event;
pub mod raw_tracepoint;
pub mod tp_btf;
pub mod tracepoint;
pub mod uprobe;
pub mod uprobe_multi;

use crate::kernel::detect::{first_online_cpu, online_cpus};
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::kernel_types::KernelTypes;
use crate::kernel::sys::link::Iterator;
use crate::kernel::sys::perf;
use crate::kernel::tracefs::Tracefs;
use kstrobe_ebpf::typed::Attach;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use thiserror::Error;

pub use crate::kernel::sys::uprobe::Places;

/// What BPF_PROG_LOAD has to know of a program's hook.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramType<'a> {
    /// `BPF_PROG_TYPE_*`
    pub kind: u32,
    /// `enum bpf_attach_type`, where the type needs it.
    pub attach_type: u32,
    /// BTF id of what a tracing program attaches to.
    pub attach_btf_id: u32,
    /// The module whose types have this id; `None` for the kernel itself.
    pub attach_btf: Option<BorrowedFd<'a>>,
}

impl<'a> ProgramType<'a> {
    /// Whether its code may lie in a section that is read as one for programs of this type.
    pub fn fits(&self, section: Option<u32>) -> bool {
        section == Some(self.kind)
    }

    /// How the program of a hook is loaded.
    pub fn of(attach: &Attach, types: &'a mut KernelTypes) -> Result<ProgramType<'a>, BtfError> {
        Ok(match attach {
            Attach::TpBtf { event } => tp_btf::program(types, event)?,
            Attach::RawTp { .. } => raw_tracepoint::PROGRAM,
            Attach::Tracepoint { .. } => tracepoint::PROGRAM,
            Attach::Interval { .. } | Attach::Sample(_) => perf_event::PROGRAM,
            Attach::Fentry { function, module } => fentry::at_entry(types, function, module.as_deref())?,
            Attach::Fexit { function, module } => fentry::at_exit(types, function, module.as_deref())?,
            Attach::Kprobe { multi: true, .. } => kprobe_multi::PROGRAM,
            Attach::Kprobe { multi: false, .. } => kprobe::PROGRAM,
            Attach::Uprobe { multi: true, .. } | Attach::Usdt { multi: true, .. } => uprobe_multi::PROGRAM,
            Attach::Uprobe { multi: false, .. } | Attach::Usdt { multi: false, .. } => uprobe::PROGRAM,
            Attach::Iter { object } => iter::program(types, object)?,
        })
    }
}

/// Whether the places of a hook are found and found again in files of user space, while the probe runs.
pub fn is_user_hook(attach: &Attach) -> bool {
    matches!(attach, Attach::Uprobe { .. } | Attach::Usdt { .. })
}

/// Why a program is not attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel's types do not have the hook.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// tracefs cannot be opened.
    #[error(transparent)]
    Tracefs(io::Error),
    /// There is no such tracepoint.
    #[error("this kernel has no tracepoint {0}")]
    NoTracepoint(String),
    /// The number of a tracepoint is unknown.
    #[error("the id of {event} cannot be read from tracefs: {error}")]
    TracepointId {
        /// `system:event`
        event: String,
        /// Of the file `id`.
        error: io::Error,
    },
    /// The name cannot be passed to the kernel.
    #[error("the tracepoint's name holds a NUL byte")]
    NulInName,
    /// Neither perf's list nor the kernel's has the event.
    #[error("there is no event {0}")]
    NoPerfEvent(String),
    /// sysfs lists no CPU.
    #[error("no CPU is online")]
    NoCpu,
    /// The kernel was built without perf events of this kind.
    #[error("{0}")]
    NoEventKind(&'static str),
    /// sysfs does not say the number of a kind of perf events.
    #[error("{file} cannot be read: {error}")]
    EventKind {
        /// In sysfs.
        file: String,
        /// Of open(2), read(2), or what does not parse.
        error: io::Error,
    },
    /// The program is of a probe whose hook takes no places in files.
    #[error("{0} is for another kind of hook")]
    OtherHook(String),
    /// The probe has no program of this name.
    #[error("no program {0}")]
    NoProgram(String),
}

impl AttachError {
    /// The number of the kernel's error, where it was a system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            AttachError::Kernel(error) | AttachError::Btf(BtfError::Handle(error)) => error.errno(),
            _ => None,
        }
    }
}

/// What keeps a program attached until it is dropped.
#[derive(Debug)]
pub enum Link {
    /// A BPF link, or a raw tracepoint.
    Bpf {
        /// Closing it detaches.
        _fd: OwnedFd,
    },
    /// A perf event.
    Event(OwnedFd),
    /// An iterator, whose program runs when it is read.
    Iterator(Iterator),
}

impl Link {
    fn bpf(fd: OwnedFd) -> Vec<Link> {
        vec![Link::Bpf { _fd: fd }]
    }

    /// How long a perf event has been enabled; `None` for other links.
    pub fn enabled_for(&self) -> Option<io::Result<Duration>> {
        match self {
            Link::Event(event) => Some(perf::enabled_for(event)),
            Link::Bpf { .. } | Link::Iterator(_) => None,
        }
    }
}

/// What attaching needs again and again.
pub struct Attacher {
    tracefs: Option<Tracefs>,
    /// Where a perf event is opened that is of one CPU, or of any.
    cpu: u32,
}

impl Default for Attacher {
    fn default() -> Self {
        Self::new()
    }
}

impl Attacher {
    /// Ready to attach. Opens tracefs only for a program that needs it.
    pub fn new() -> Attacher {
        Attacher { tracefs: None, cpu: first_online_cpu() }
    }

    /// Attaches a loaded program until all links are dropped. Programs at places in files are attached by
    /// [`Loaded::attach_user`](crate::kernel::Loaded::attach_user), and here have no links.
    pub fn attach(&mut self, prog: BorrowedFd<'_>, attach: &Attach) -> Result<Vec<Link>, AttachError> {
        let cpu = self.cpu;
        match attach {
            Attach::TpBtf { event } => tp_btf::attach(prog, event),
            Attach::RawTp { event } => raw_tracepoint::attach(prog, event),
            Attach::Tracepoint { system, event } => tracepoint::attach(prog, system, event, self.tracefs()?, cpu),
            Attach::Interval { period_ns } => perf_event::attach_interval(prog, *period_ns, cpu),
            Attach::Sample(sampling) => perf_event::attach(prog, sampling, &online_cpus()),
            Attach::Fentry { .. } | Attach::Fexit { .. } => fentry::attach(prog, attach),
            Attach::Kprobe { functions, ret, multi: true, .. } => kprobe_multi::attach(prog, functions, *ret),
            Attach::Kprobe { functions, offset, ret, multi: false } => {
                kprobe::attach(prog, functions, *offset, *ret, cpu)
            }
            Attach::Iter { object } => iter::attach(prog, object),
            Attach::Uprobe { .. } | Attach::Usdt { .. } => Ok(Vec::new()),
        }
    }

    fn tracefs(&mut self) -> Result<&Tracefs, AttachError> {
        match &mut self.tracefs {
            Some(tracefs) => Ok(tracefs),
            empty => Ok(empty.insert(Tracefs::open().map_err(AttachError::Tracefs)?)),
        }
    }
}
