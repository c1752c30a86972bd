//! System calls that the kernel refuses: the call, its errno, and what a person can do about it.

use crate::kernel::abilities::{explain, perf_refusal};
use crate::kernel::detect::KERNEL_BTF;
use kstrobe_ebpf::kernel_target::btf::BtfError as ParseError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A system call that failed.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct KernelError {
    /// The call, with its command: `bpf(BPF_LINK_CREATE)`.
    pub call: &'static str,
    /// Its errno.
    pub error: io::Error,
    /// For people.
    reason: String,
}

impl KernelError {
    /// With a reason that the caller knows better than errno says.
    pub fn new(call: &'static str, error: io::Error, reason: impl Into<String>) -> KernelError {
        KernelError { call, error, reason: reason.into() }
    }

    /// Of bpf(2).
    pub fn bpf(call: &'static str, error: io::Error) -> KernelError {
        let reason = explain(&error);
        KernelError { call, error, reason }
    }

    /// Of perf_event_open(2).
    pub fn perf(error: io::Error) -> KernelError {
        let reason = perf_refusal(&error);
        KernelError { call: "perf_event_open", error, reason }
    }

    /// The number of the error; `None` where it did not come from the kernel.
    pub fn errno(&self) -> Option<i32> {
        self.error.raw_os_error()
    }
}

/// Why types of the kernel or of a module cannot be used.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The kernel was built without them.
    #[error("this kernel publishes no BTF: there is no {KERNEL_BTF}, which CONFIG_DEBUG_INFO_BTF gives")]
    Absent,
    /// The file is there and cannot be read.
    #[error("the BTF of {} cannot be read: {error}", file.display())]
    Read {
        file: PathBuf,
        /// Of open(2) or read(2).
        error: io::Error,
    },
    /// The file is not BTF.
    #[error("{} holds no BTF that can be used: {error}", file.display())]
    Parse {
        file: PathBuf,
        /// What is wrong with it.
        error: ParseError,
    },
    /// A module's types cannot be read.
    #[error("the types of module {module} cannot be read: {error}")]
    ReadModule {
        module: String,
        /// Of open(2) or read(2).
        error: io::Error,
    },
    /// A module's types are not BTF that continues the kernel's.
    #[error("the types of module {module} are broken: {error}")]
    ParseModule {
        module: String,
        /// What is wrong with them.
        error: ParseError,
    },
    /// The kernel gives no handle of a module's types.
    #[error(transparent)]
    Handle(KernelError),
    /// The types do not describe a function.
    #[error("BTF does not describe the function {0}")]
    NoFunction(String),
    /// The types do not describe a tracepoint.
    #[error("this kernel's BTF describes no tracepoint {0}")]
    NoTracepoint(String),
}
