//! Programs at kernel functions: fentry and fexit by BTF, kprobe_multi links, kprobes; and iterators, which the kernel names by
//! a function as well.

use crate::kernel::abilities::perf_refusal;
use crate::kernel::detect::read_btf;
use crate::kernel::functions::read_module_btf;
use crate::kernel::raw_load::{self, Purpose};
use crate::kernel::sys::map::ENOTSUPP;
use crate::kernel::sys::prog::{self, Refused};
use crate::kernel::sys::{btf, link, perf};
use kstrobe_ebpf::target::Btf;
use kstrobe_ebpf::target::btf::{ITERATOR, Kind};
use kstrobe_ebpf::typed::Attach;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// What loading needs of the kernel's types again and again.
#[derive(Default)]
pub struct Types {
    kernel: Option<Btf>,
    /// Types of modules with the kernel's own handle of them.
    modules: BTreeMap<String, (Btf, OwnedFd)>,
}

/// Why a program could not be loaded.
pub enum NotLoaded {
    /// The kernel refuses it.
    Refused(Refused),
    /// What it attaches to cannot be had.
    Unavailable(String),
}

impl From<String> for NotLoaded {
    fn from(reason: String) -> NotLoaded {
        NotLoaded::Unavailable(reason)
    }
}

impl Types {
    fn kernel(&mut self) -> Result<&Btf, String> {
        if self.kernel.is_none() {
            self.kernel = Some(read_btf(None)?);
        }
        self.kernel.as_ref().ok_or_else(|| "the kernel's BTF cannot be read".into())
    }

    fn module(&mut self, name: &str) -> Result<&(Btf, OwnedFd), String> {
        if !self.modules.contains_key(name) {
            let types = read_module_btf(name, self.kernel()?)?;
            let handle = btf::of_module(name).map_err(|error| match error.raw_os_error() {
                Some(libc::ENOENT) => format!("the kernel has no BTF of module {name}"),
                Some(libc::EPERM) => "the kernel's handle of a module's BTF needs CAP_SYS_ADMIN".into(),
                _ => format!("the BTF of module {name} cannot be found: {error}"),
            })?;
            self.modules.insert(name.to_string(), (types, handle));
        }
        self.modules.get(name).ok_or_else(|| format!("no BTF of module {name}"))
    }
}

/// Whether a program is one of ours.
pub fn is_function_hook(attach: &Attach) -> bool {
    matches!(attach, Attach::Fentry { .. } | Attach::Fexit { .. } | Attach::Kprobe { .. } | Attach::Iter { .. })
}

/// Loads a program of an object.
pub fn load(
    types: &mut Types,
    object: &[u8],
    name: &str,
    attach: &Attach,
    map: impl Fn(&str) -> Option<RawFd>,
) -> Result<OwnedFd, NotLoaded> {
    let kprobe = Purpose { kind: prog::kind::KPROBE, ..Purpose::default() };
    let purpose = match attach {
        Attach::Fentry { function, module } => traced(types, function, module.as_deref(), prog::ATTACH_TRACE_FENTRY)?,
        Attach::Fexit { function, module } => traced(types, function, module.as_deref(), prog::ATTACH_TRACE_FEXIT)?,
        Attach::Iter { object } => traced(types, &format!("{ITERATOR}{object}"), None, prog::ATTACH_TRACE_ITER)?,
        Attach::Kprobe { multi: true, .. } => Purpose { attach_type: prog::ATTACH_KPROBE_MULTI, ..kprobe },
        _ => kprobe,
    };
    raw_load::load(object, name, &purpose, map).map_err(NotLoaded::Refused)
}

fn traced<'t>(types: &'t mut Types, function: &str, module: Option<&str>, edge: u32) -> Result<Purpose<'t>, String> {
    let (btf, handle) = match module {
        None => (types.kernel()?, None),
        Some(module) => {
            let (btf, handle) = types.module(module)?;
            (btf, Some(handle.as_fd()))
        }
    };
    let id = btf.find(function, Kind::Func).ok_or_else(|| format!("BTF does not describe the function {function}"))?;
    Ok(Purpose { kind: prog::kind::TRACING, attach_type: edge, attach_btf_id: id, attach_btf: handle })
}

/// Attaches a loaded program. It stays until all returned descriptors are closed.
pub fn attach(prog: BorrowedFd<'_>, attach: &Attach, cpu: u32) -> Result<Vec<OwnedFd>, String> {
    match attach {
        Attach::Kprobe { functions, ret, multi: true, .. } => {
            let symbols: Vec<&str> = functions.iter().map(|f| f.rsplit(':').next().unwrap_or(f)).collect();
            let link = link::attach_kprobe_multi(prog, &symbols, *ret);
            link.map(|link| vec![link]).map_err(|error| multi_refusal(&symbols, &error))
        }
        Attach::Kprobe { functions, offset, ret, multi: false } => {
            let kind = kprobe_events().map_err(|error| format!("this kernel has no perf kprobes: {error}"))?;
            let each = |function: &String| {
                let place = perf::Place::Symbol { name: function, offset: *offset };
                perf::attach_kprobe(prog, kind, place, *ret, cpu).map_err(|error| kprobe_refusal(function, &error))
            };
            let (mut hooked, mut refused) = (Vec::new(), Vec::new());
            for function in functions {
                match each(function) {
                    Ok(event) => hooked.push(event),
                    Err(reason) => refused.push(reason),
                }
            }
            if let [first, others @ ..] = &refused[..] {
                if hooked.is_empty() {
                    return Err(first.clone());
                }
                // Of a pattern's functions some may allow no kprobe.
                tracing::warn!(reason = first, others = others.len(), "some functions of a pattern are not hooked");
            }
            Ok(hooked)
        }
        _ => link::attach_tracing(prog).map(|link| vec![link]).map_err(|error| traced_refusal(attach, &error)),
    }
}

/// The number of the perf events that are kprobes.
pub fn kprobe_events() -> io::Result<u32> {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?;
    text.trim().parse().map_err(io::Error::other)
}

fn traced_refusal(attach: &Attach, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP | libc::EOPNOTSUPP) => format!("this kernel cannot trace functions by BTF ({attach})"),
        Some(libc::EBUSY) => format!("something else holds the entry of {attach}, such as a live patch"),
        _ => format!("{attach}: {error}"),
    }
}

fn multi_refusal(symbols: &[&str], error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "this kernel has no kprobe_multi (CONFIG_FPROBE)".into(),
        Some(libc::ESRCH) => format!("one of the functions cannot be traced, or is gone: {}", symbols.join(", ")),
        _ => format!("kprobe_multi: {error}"),
    }
}

fn kprobe_refusal(function: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => format!("this kernel has no function {function}"),
        Some(libc::EADDRNOTAVAIL) => format!("several functions have the name {function}"),
        Some(libc::EILSEQ) => format!("no instruction of {function} begins at this offset"),
        Some(libc::EINVAL) => format!("the kernel allows no kprobe in {function}, or none at this offset"),
        _ => format!("{function}: {}", perf_refusal(error)),
    }
}
