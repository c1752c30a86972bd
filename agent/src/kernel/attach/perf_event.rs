//! `profile:`, `software:`, `hardware:` and `interval:`: perf events that run a program, on each CPU or one (Linux 4.9;
//! perf_event_open(2); `hardware:` a counter of the processor).

use super::{AttachError, Link, ProgramType};
use crate::kernel::abilities::perf_refusal;
use crate::kernel::error::KernelError;
use crate::kernel::sys::perf;
use crate::kernel::sys::prog::kind;
use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::typed::{Every, PerfEvent, Sampling};
use std::io;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::PERF_EVENT, attach_type: 0, attach_btf_id: 0, attach_btf: None };

const NANOSECONDS: u64 = 1_000_000_000;

/// `enum perf_sw_ids`
const SOFTWARE: [(&str, u64); 11] = [
    ("cpu-clock", 0),
    ("task-clock", 1),
    ("page-faults", 2),
    ("context-switches", 3),
    ("cpu-migrations", 4),
    ("minor-faults", 5),
    ("major-faults", 6),
    ("alignment-faults", 7),
    ("emulation-faults", 8),
    ("dummy", 9),
    ("bpf-output", 10),
];
/// `enum perf_hw_id`
const HARDWARE: [(&str, u64); 10] = [
    ("cpu-cycles", 0),
    ("instructions", 1),
    ("cache-references", 2),
    ("cache-misses", 3),
    ("branch-instructions", 4),
    ("branch-misses", 5),
    ("bus-cycles", 6),
    ("frontend-stalls", 7),
    ("backend-stalls", 8),
    ("ref-cycles", 9),
];

/// Runs a program every `period_ns` on one CPU.
pub fn attach_interval(prog: BorrowedFd<'_>, period_ns: u64, cpu: u32) -> Result<Vec<Link>, AttachError> {
    let event = perf::attach_interval(prog, period_ns, cpu).map_err(KernelError::perf)?;
    Ok(vec![Link::Event(event)])
}

/// Attaches a program on each of these CPUs.
pub fn attach(prog: BorrowedFd<'_>, sampling: &Sampling, cpus: &[u32]) -> Result<Vec<Link>, AttachError> {
    let no_event = || AttachError::NoPerfEvent(name(&sampling.event).to_owned());
    let counter = number(&sampling.event).ok_or_else(no_event)?;
    let mut events = Vec::with_capacity(cpus.len());
    for cpu in cpus {
        match perf::attach_counter(prog, counter, period(sampling.every), *cpu) {
            Ok(event) => events.push(Link::Event(event)),
            // Went offline since the list was read.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) && cpus.len() > 1 && !is_hardware(sampling) => {}
            Err(error) => {
                let reason = refusal(sampling, &error);
                return Err(KernelError::new("perf_event_open", error, reason).into());
            }
        }
    }
    match events.is_empty() {
        true => Err(AttachError::NoCpu),
        false => Ok(events),
    }
}

/// Whether this machine counts a hardware event.
pub fn hardware(name: &str, cpu: u32) -> Ability {
    // The period does not matter: the event is never enabled.
    let sampling = Sampling { event: PerfEvent::Hardware(name.to_owned()), every: Every::Events(1_000_000) };
    let Some(counter) = number(&sampling.event) else { return Ability::No(format!("there is no event {name}")) };
    match perf::counter(counter, period(sampling.every), cpu) {
        Ok(_) => Ability::Yes,
        Err(error) => Ability::No(refusal(&sampling, &error)),
    }
}

/// Whether there is such an event at all, on whatever machine.
pub fn known(event: &PerfEvent) -> bool {
    number(event).is_some()
}

fn is_hardware(sampling: &Sampling) -> bool {
    matches!(sampling.event, PerfEvent::Hardware(_))
}

fn name(event: &PerfEvent) -> &str {
    match event {
        PerfEvent::CpuClock => "cpu-clock",
        PerfEvent::Software(name) | PerfEvent::Hardware(name) => name,
    }
}

/// Kind and number of an event, as perf_event_open(2) takes them.
fn number(event: &PerfEvent) -> Option<(u32, u64)> {
    let (kind, table): (u32, &[(&str, u64)]) = match event {
        PerfEvent::CpuClock | PerfEvent::Software(_) => (perf::SOFTWARE, &SOFTWARE),
        PerfEvent::Hardware(_) => (perf::HARDWARE, &HARDWARE),
    };
    let (_, number) = table.iter().find(|(known, _)| *known == name(event))?;
    Some((kind, *number))
}

/// Clocks count nanoseconds. The kernel itself turns a frequency of a clock into a period, once and for all.
fn period(every: Every) -> u64 {
    match every {
        Every::Hertz(hz) => NANOSECONDS / hz.clamp(1, NANOSECONDS),
        Every::Nanoseconds(n) | Every::Events(n) => n.max(1),
    }
}

fn refusal(sampling: &Sampling, error: &io::Error) -> String {
    let missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::ENXIO));
    match (&sampling.event, missing) {
        (PerfEvent::Hardware(name), true) => format!(
            "this machine has no hardware counter for {name}, as is usual in virtual machines; `profile:` and `software:` \
             need none ({error})"
        ),
        _ => perf_refusal(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_of_their_kind_are_known() {
        assert!(known(&PerfEvent::Software("page-faults".into())) && known(&PerfEvent::CpuClock));
        assert!(!known(&PerfEvent::Software("cpu-cycles".into())));
    }

    #[test]
    fn rates_become_periods() {
        assert_eq!(period(Every::Hertz(99)), 10_101_010);
        assert_eq!(period(Every::Nanoseconds(10_000_000)), 10_000_000);
        assert_eq!((period(Every::Events(0)), period(Every::Hertz(0))), (1, NANOSECONDS));
    }

    #[test]
    fn a_machine_without_counters_is_told_so() {
        let hardware = Sampling { event: PerfEvent::Hardware("cpu-cycles".into()), every: Every::Events(1) };
        let text = refusal(&hardware, &io::Error::from_raw_os_error(libc::ENOENT));
        assert!(text.contains("no hardware counter for cpu-cycles") && text.contains("`profile:`"), "{text}");
        let profile = Sampling { event: PerfEvent::CpuClock, every: Every::Hertz(99) };
        // What is missing depends on the rights of the tests.
        assert!(
            refusal(&profile, &io::Error::from_raw_os_error(libc::EACCES)).contains("perf_event_open is forbidden")
        );
    }
}
