//! Types of the kernel and its modules for loading: a tracing program names its hook by a BTF id.

use crate::kernel::detect::read_btf;
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::functions::read_module_btf;
use crate::kernel::sys::btf;
use kstrobe_ebpf::kernel_target::Btf;
use kstrobe_ebpf::kernel_target::btf::Kind;
use kstrobe_ebpf::unwind::Facts;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Read when the first program needs them, and kept for the next: some 6 MB for a kernel of 130,000 types.
#[derive(Default)]
pub struct KernelTypes {
    kernel: Option<Btf>,
    /// With the kernel's own handle of each.
    modules: BTreeMap<String, (Btf, OwnedFd)>,
}

impl KernelTypes {
    /// With the kernel's own types, if they were read before.
    pub fn of(kernel: Option<Btf>) -> KernelTypes {
        KernelTypes { kernel, modules: BTreeMap::new() }
    }

    fn kernel(&mut self) -> Result<&Btf, BtfError> {
        match &mut self.kernel {
            Some(types) => Ok(types),
            empty => Ok(empty.insert(read_btf(None)?)),
        }
    }

    fn module(&mut self, name: &str) -> Result<&(Btf, OwnedFd), BtfError> {
        self.kernel()?;
        let KernelTypes { kernel, modules } = self;
        match (modules.entry(name.to_owned()), kernel) {
            (Entry::Occupied(known), _) => Ok(known.into_mut()),
            (Entry::Vacant(_), None) => Err(BtfError::Absent),
            (Entry::Vacant(new), Some(kernel)) => {
                let types = read_module_btf(name, kernel)?;
                let handle = btf::of_module(name).map_err(|error| BtfError::Handle(handle_refused(name, error)))?;
                Ok(new.insert((types, handle)))
            }
        }
    }

    /// The id of a function, and of the module whose types have it.
    pub fn function(
        &mut self,
        function: &str,
        module: Option<&str>,
    ) -> Result<(u32, Option<BorrowedFd<'_>>), BtfError> {
        let (types, handle) = match module {
            None => (self.kernel()?, None),
            Some(module) => {
                let (types, handle) = self.module(module)?;
                (types, Some(handle.as_fd()))
            }
        };
        let id = types.find(function, Kind::Func).ok_or_else(|| BtfError::NoFunction(function.to_owned()))?;
        Ok((id, handle))
    }

    /// Where walks of user stacks begin; `None` where the types are not those of x86-64.
    pub fn unwind_facts(&mut self) -> Option<Facts> {
        Facts::of(self.kernel().ok()?)
    }

    /// The id of the type of a tracepoint's arguments.
    pub fn tracepoint(&mut self, event: &str) -> Result<u32, BtfError> {
        let id = self.kernel()?.find(&format!("btf_trace_{event}"), Kind::Typedef);
        id.ok_or_else(|| BtfError::NoTracepoint(event.to_owned()))
    }
}

fn handle_refused(module: &str, error: std::io::Error) -> KernelError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) => format!("the kernel has no BTF of module {module}"),
        Some(libc::EPERM) => "the kernel's handle of a module's BTF needs CAP_SYS_ADMIN".into(),
        _ => format!("the BTF of module {module} cannot be found: {error}"),
    };
    KernelError::new("bpf(BPF_BTF_GET_FD_BY_ID)", error, reason)
}
