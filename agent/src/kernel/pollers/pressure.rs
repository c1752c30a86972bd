//! Pressure stall information, `/proc/pressure/*`: for how long tasks waited for a resource.

use super::{Rows, Source, io_error, number, read_file, text};
use procfs::parse_pressure_record;
use std::io;

pub const SOURCE: Source = Source {
    name: "pressure",
    summary: "time for which some or all tasks waited for a resource, in ns, of /proc/pressure; the share of the last 10 s in hundredths of a percent",
    columns: &[text("resource", 16), text("kind", 16), number("time"), number("share10")],
    open: || Box::new(read),
};

/// `irq` is there since 6.1 where interrupts are accounted for.
const RESOURCES: [&str; 4] = ["cpu", "memory", "io", "irq"];

fn read(rows: &mut Rows) -> io::Result<()> {
    let found = RESOURCES.map(|resource| (resource, read_file(&format!("/proc/pressure/{resource}"))));
    if let (_, Err(error)) = &found[0] {
        let hint = "pressure is recorded by kernels with CONFIG_PSI that were not booted with psi=0";
        return Err(io::Error::new(error.kind(), format!("{error}; {hint}")));
    }
    for (resource, text) in found {
        push(rows, resource, &text.unwrap_or_default())?;
    }
    Ok(())
}

/// Lines `some` and `full`; `cpu` has the second since 5.13, `irq` no first.
fn push(rows: &mut Rows, resource: &str, text: &str) -> io::Result<()> {
    for line in text.lines() {
        let record = parse_pressure_record(line).map_err(io_error)?;
        let kind = line.split(' ').next().unwrap_or_default();
        let share = (record.avg10 * 100.0).round() as u64;
        // The kernel counts microseconds.
        rows.push(&[resource.into(), kind.into(), (record.total * 1000).into(), share.into()]);
    }
    Ok(())
}
