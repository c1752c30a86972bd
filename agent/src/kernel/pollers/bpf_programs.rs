//! All BPF programs that the kernel has, those of other tools too, as `bpftool prog` lists them.

use super::{Reading, Rows, Source, number, text};
use crate::kernel::sys::prog;
use aya::programs::{ProgramError, ProgramInfo, loaded_programs};
use std::io;

pub const SOURCE: Source = Source {
    name: "bpf_programs",
    summary: "all BPF programs of the node, with their runs and run time in ns, which the kernel counts while this source is polled",
    columns: &[
        number("id"),
        text("name", 16),
        text("type", 32),
        number("runs"),
        number("run_time"),
        number("memory"),
        number("uid"),
    ],
    open,
};

fn open() -> Reading {
    // The kernel counts for as long as a descriptor of this kind is open.
    let mut counting = None;
    Box::new(move |rows| {
        if counting.is_none() {
            counting = Some(prog::enable_stats().map_err(|error| {
                let text = format!("asking the kernel to count runs of BPF programs: {error} (5.8, CAP_SYS_ADMIN)");
                io::Error::new(error.kind(), text)
            })?);
        }
        for program in loaded_programs() {
            match program {
                Ok(program) => push(rows, &program),
                // One that ended between its number and its description.
                Err(ProgramError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    })
}

fn push(rows: &mut Rows, program: &ProgramInfo) {
    let kind = format!("{:?}", program.program_type());
    rows.push(&[
        program.id().into(),
        String::from_utf8_lossy(program.name()).as_ref().into(),
        kind.trim_start_matches("BPF_PROG_TYPE_").to_lowercase().as_str().into(),
        program.run_count().into(),
        (program.run_time().as_nanos() as u64).into(),
        // As above, it may have ended.
        program.memory_locked().unwrap_or(0).into(),
        program.created_by_uid().unwrap_or(0).into(),
    ]);
}
