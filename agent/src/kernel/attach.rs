//! Attaching loaded programs to their hooks, and what keeps them there.

use crate::kernel::abilities::perf_refusal;
use crate::kernel::detect::{first_online_cpu, online_cpus};
use crate::kernel::function_hooks;
use crate::kernel::load::{LoadError, program_error};
use crate::kernel::sampling;
use crate::kernel::sys::{link, perf};
use crate::kernel::tracefs::Tracefs;
use aya::programs::{Program, ProgramError};
use kstrobe_ebpf::typed::Attach;
use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A link or an event: dropping it detaches the program.
pub type Held = Box<dyn Any + Send + Sync>;

/// What attaching needs again and again.
pub struct Attacher {
    tracefs: Option<Tracefs>,
    /// Where a hook runs on one CPU only, or on whichever.
    cpu: u32,
}

impl Default for Attacher {
    fn default() -> Self {
        Self::new()
    }
}

impl Attacher {
    /// Ready to attach.
    pub fn new() -> Attacher {
        Attacher { tracefs: None, cpu: first_online_cpu() }
    }

    /// Attaches one program; it stays until all that is returned is dropped.
    pub fn attach(&mut self, program: &mut Program, name: &str, attach: &Attach) -> Result<Vec<Held>, LoadError> {
        let failed = |reason: String| LoadError::Attach { program: name.to_string(), reason };
        let refused = |error: ProgramError| program_error(name, attach, error);
        if let Program::BtfTracePoint(p) = program {
            let link = p.attach().and_then(|link| p.take_link(link)).map_err(refused)?;
            return Ok(vec![Box::new(link)]);
        }
        if let (Attach::RawTp { event }, Program::RawTracePoint(p)) = (attach, &mut *program) {
            if event.contains('\0') {
                return Err(failed("the tracepoint's name holds a NUL byte".into()));
            }
            let link = p.attach(event).and_then(|link| p.take_link(link)).map_err(refused)?;
            return Ok(vec![Box::new(link)]);
        }
        let fd = program.fd().map_err(refused)?;
        let events = self.perf_events(fd.as_fd(), attach).map_err(failed)?;
        Ok(events.into_iter().map(|event| Box::new(event) as Held).collect())
    }

    /// The same for a program at kernel functions, which aya does not know.
    pub fn attach_function(&self, prog: BorrowedFd<'_>, name: &str, attach: &Attach) -> Result<Vec<Held>, LoadError> {
        if let Attach::Iter { object } = attach {
            let link = link::attach_iterator(prog).map_err(|error| LoadError::Attach {
                program: name.to_string(),
                reason: format!("this kernel gives no iterator over {object}: {error}"),
            })?;
            return Ok(vec![Box::new(link)]);
        }
        let links = function_hooks::attach(prog, attach, self.cpu);
        let links = links.map_err(|reason| LoadError::Attach { program: name.to_string(), reason })?;
        Ok(links.into_iter().map(|link| Box::new(link) as Held).collect())
    }

    fn perf_events(&mut self, fd: BorrowedFd<'_>, attach: &Attach) -> Result<Vec<OwnedFd>, String> {
        let event = match attach {
            Attach::Sample(sampling) => return sampling::attach(fd, sampling, &online_cpus()),
            Attach::Tracepoint { system, event } => {
                let id = self.event_id(system, event)?;
                perf::attach_tracepoint(fd, id, self.cpu).map_err(|error| perf_refusal(&error))
            }
            Attach::Interval { period_ns } => {
                perf::attach_interval(fd, *period_ns, self.cpu).map_err(|error| perf_refusal(&error))
            }
            _ => Err("it is no perf event".into()),
        };
        event.map(|event| vec![event])
    }

    fn event_id(&mut self, system: &str, event: &str) -> Result<u64, String> {
        if self.tracefs.is_none() {
            self.tracefs = Some(Tracefs::open().map_err(|error| error.to_string())?);
        }
        let tracefs = self.tracefs.as_ref().ok_or("tracefs cannot be opened")?;
        tracefs.event_id(system, event).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("this kernel has no tracepoint {system}:{event}"),
            _ => format!("the id of {system}:{event} cannot be read from tracefs: {error}"),
        })
    }
}
