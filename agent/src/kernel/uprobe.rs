//! Programs at places in programs and libraries: the best way this kernel has, tried out on a file of our own.

use crate::kernel::abilities::{explain, perf_refusal};
use crate::kernel::detect::first_online_cpu;
use crate::kernel::raw_load::Purpose;
use crate::kernel::sys::map::ENOTSUPP;
use crate::kernel::sys::prog::{self, ProgSpec, kind};
use crate::kernel::sys::uprobe::{self, ATTACH_UPROBE_MULTI, EventKind};
use kstrobe_ebpf::target::Ability;
use kstrobe_ebpf::typed::Attach;
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

pub use crate::kernel::sys::uprobe::Places;

/// Where sysfs describes the kind of perf event.
const EVENT_KIND: &str = "/sys/bus/event_source/devices/uprobe";

/// How a program at such a place is loaded and attached; `None` for other hooks.
pub fn way(attach: &Attach) -> Option<Way> {
    match attach {
        Attach::Uprobe { ret, multi, .. } => Some(Way { at_return: *ret, multi: *multi }),
        Attach::Usdt { multi, .. } => Some(Way { at_return: false, multi: *multi }),
        _ => None,
    }
}

/// See [`way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Where functions return.
    pub at_return: bool,
    /// One link for all places of a file.
    pub multi: bool,
}

impl Way {
    /// How its program is loaded.
    pub fn purpose(self) -> Purpose<'static> {
        let attach_type = if self.multi { ATTACH_UPROBE_MULTI } else { 0 };
        Purpose { kind: kind::KPROBE, attach_type, ..Purpose::default() }
    }
}

/// Attaches a loaded program to places of one file; it stays until all that is returned is closed. The error is for people.
pub fn attach(prog: BorrowedFd<'_>, multi: bool, places: &Places<'_>) -> Result<Vec<OwnedFd>, String> {
    if multi {
        return uprobe::attach_multi(prog, places).map(|link| vec![link]).map_err(|error| link_refusal(&error));
    }
    let kind = event_kind()?;
    let cpu = first_online_cpu();
    let one = |index| uprobe::attach_event(prog, kind, places, index, cpu).map_err(|error| event_refusal(&error));
    (0..places.offsets.len()).map(one).collect()
}

fn link_refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => explain(error),
        _ => place_refusal(error).unwrap_or_else(|| error.to_string()),
    }
}

fn event_refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        // Linux 6.1 and later want CAP_SYS_ADMIN for these whatever kernel.perf_event_paranoid says.
        Some(libc::EPERM | libc::EACCES) => {
            format!(
                "{}; for uprobes newer kernels always want CAP_SYS_ADMIN, uprobe_multi needs neither",
                perf_refusal(error)
            )
        }
        _ => place_refusal(error).unwrap_or_else(|| perf_refusal(error)),
    }
}

/// What is wrong with the place, if that is it.
fn place_refusal(error: &io::Error) -> Option<String> {
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
fn event_kind() -> Result<EventKind, String> {
    static KIND: OnceLock<Result<EventKind, String>> = OnceLock::new();
    KIND.get_or_init(read_event_kind).clone()
}

fn read_event_kind() -> Result<EventKind, String> {
    let read = |name: &str| fs::read_to_string(format!("{EVENT_KIND}/{name}"));
    let kind = read("type").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "this kernel has no uprobes (CONFIG_UPROBE_EVENTS)".to_string(),
        _ => format!("{EVENT_KIND} cannot be read: {error}"),
    })?;
    let kind = kind.trim().parse().map_err(|_| format!("{EVENT_KIND}/type is no number"))?;
    let bit = read("format/retprobe").unwrap_or_default();
    let return_bit = bit.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok()).unwrap_or(0);
    Ok(EventKind { kind, return_bit })
}

/// Tries both ways, each with a program at a place in a file that nothing runs: perf events and links.
pub fn try_both() -> (Ability, Ability) {
    let ability = |result: Result<(), String>| result.map_or_else(Ability::No, |()| Ability::Yes);
    (ability(attempt(false)), ability(attempt(true)))
}

fn attempt(multi: bool) -> Result<(), String> {
    // r0 = 0; exit
    let insns = [0xb7, 0x95];
    let Purpose { kind, attach_type, .. } = Way { at_return: false, multi }.purpose();
    let spec = ProgSpec { kind, attach_type, insns: &insns, name: "kstrobe_try", ..ProgSpec::default() };
    let prog = prog::load(&spec).map_err(|refused| match (refused.error.raw_os_error(), multi) {
        (Some(libc::EINVAL | libc::E2BIG), true) => "this kernel has no uprobe_multi links (Linux 6.6 has them)".into(),
        _ => explain(&refused.error),
    })?;
    let file = memory_file().map_err(|error| format!("no file to try it on: {error}"))?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|error| error.to_string())?;
    let places = Places { path: &path, offsets: &[0], semaphores: &[], at_return: false, pid: None };
    match attach(prog.as_fd(), multi, &places) {
        Ok(_) => Ok(()),
        // The number for links to uprobes is known to the program but not to the attaching: no uprobes at all.
        Err(reason) if multi && reason.contains("(os error 95)") => {
            Err("this kernel was built without uprobes (CONFIG_UPROBES)".into())
        }
        // A program loads as one for such links where the kernel does not look at what it is for.
        Err(reason) if multi && reason.contains("(os error 22)") => {
            Err("this kernel has no uprobe_multi links (Linux 6.6 has them)".into())
        }
        Err(reason) => Err(reason),
    }
}

/// A file in memory, in which there is code that never runs: no process maps it, so that no breakpoint is ever set.
fn memory_file() -> io::Result<fs::File> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let mut file = fs::File::from(memfd_create(c"kstrobe_try", MFdFlags::MFD_CLOEXEC)?);
    // `nop` on amd64 is a byte, on arm64 a word; anything else would be refused.
    let nop: &[u8] = if cfg!(target_arch = "aarch64") { &[0x1f, 0x20, 0x03, 0xd5] } else { &[0x90] };
    file.write_all(&nop.repeat(4096 / nop.len()))?;
    Ok(file)
}
