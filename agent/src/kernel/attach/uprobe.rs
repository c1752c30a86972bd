//! Uprobes as perf events: a breakpoint at a place of a file, one event each (Linux 4.17, CONFIG_UPROBE_EVENTS; since 6.1
//! always CAP_SYS_ADMIN; semaphores of static probe points 4.20).

use super::{AttachError, Link, Places, ProgramType};
use crate::kernel::abilities::perf_refusal;
use crate::kernel::detect::first_online_cpu;
use crate::kernel::error::KernelError;
use crate::kernel::sys::map::ENOTSUPP;
use crate::kernel::sys::prog::kind;
use crate::kernel::sys::uprobe::{self, EventKind};
use std::io;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::KPROBE, attach_type: 0, attach_btf_id: 0, attach_btf: None };

/// Where sysfs describes the kind of perf event.
const EVENT_KIND: &str = "/sys/bus/event_source/devices/uprobe";

/// Attaches a loaded program to places of one file.
pub fn attach(prog: BorrowedFd<'_>, places: &Places<'_>) -> Result<Vec<Link>, AttachError> {
    let (kind, cpu) = (event_kind()?, first_online_cpu());
    let one = |index| {
        let event = uprobe::attach_event(prog, kind, places, index, cpu);
        event.map(Link::Event).map_err(|error| refusal(error).into())
    };
    (0..places.offsets.len()).map(one).collect()
}

fn refusal(error: io::Error) -> KernelError {
    let reason = match error.raw_os_error() {
        // Linux 6.1 and later want CAP_SYS_ADMIN for these whatever kernel.perf_event_paranoid says.
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "{}; for uprobes newer kernels always want CAP_SYS_ADMIN, uprobe_multi needs neither",
                perf_refusal(&error)
            )
        }
        _ => place_refusal(&error).unwrap_or_else(|| perf_refusal(&error)),
    };
    KernelError::new("perf_event_open", error, reason)
}

/// What is wrong with the place, if that is it.
pub(super) fn place_refusal(error: &io::Error) -> Option<String> {
    let reason = match error.raw_os_error()? {
        ENOTSUPP | libc::EOPNOTSUPP => "the kernel cannot put a breakpoint on an instruction there",
        libc::EIO => "the file system of the file does not allow uprobes",
        libc::ESRCH => "the process is gone",
        libc::ENOENT => "the file is gone",
        libc::EMFILE | libc::ENFILE => "no file descriptors are left",
        _ => return None,
    };
    Some(format!("{reason} ({error})"))
}

/// How perf events of the kind `uprobe` are opened here.
fn event_kind() -> Result<EventKind, AttachError> {
    let read = |name: &str| std::fs::read_to_string(format!("{EVENT_KIND}/{name}"));
    let unreadable = |error| AttachError::EventKind { file: format!("{EVENT_KIND}/type"), error };
    let kind = read("type").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => AttachError::NoEventKind("this kernel has no uprobes (CONFIG_UPROBE_EVENTS)"),
        _ => unreadable(error),
    })?;
    let kind = kind.trim().parse().map_err(|error| unreadable(io::Error::other(error)))?;
    let bit = read("format/retprobe").unwrap_or_default();
    let return_bit = bit.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok()).unwrap_or(0);
    Ok(EventKind { kind, return_bit })
}
