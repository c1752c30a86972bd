//! Block devices with their counters: `/proc/diskstats`, from which `iostat` makes utilisation and queue lengths.

use super::{Rows, Source, io_error, number, small, text};
use procfs::DiskStat;
use std::io;

pub const SOURCE: Source = Source {
    name: "disks",
    summary: "block devices and their partitions, of /proc/diskstats; times in ns",
    columns: &[
        small("major"),
        small("minor"),
        text("name", 32),
        number("reads"),
        number("reads_merged"),
        number("read_bytes"),
        number("read_time"),
        number("writes"),
        number("writes_merged"),
        number("write_bytes"),
        number("write_time"),
        number("discards"),
        number("discard_bytes"),
        number("flushes"),
        number("flush_time"),
        number("in_flight"),
        number("busy"),
        number("queued_time"),
    ],
    open: || Box::new(read),
};

/// Sectors have 512 bytes here whatever the device's own have.
const SECTOR_BYTES: u64 = 512;
/// The kernel counts milliseconds.
const NS_PER_MS: u64 = 1_000_000;

fn read(rows: &mut Rows) -> io::Result<()> {
    procfs::diskstats().map_err(io_error)?.iter().for_each(|disk| push(rows, disk));
    Ok(())
}

fn push(rows: &mut Rows, disk: &DiskStat) {
    rows.push(&[
        (disk.major as u32).into(),
        (disk.minor as u32).into(),
        disk.name.as_str().into(),
        disk.reads.into(),
        disk.merged.into(),
        (disk.sectors_read * SECTOR_BYTES).into(),
        (disk.time_reading * NS_PER_MS).into(),
        disk.writes.into(),
        disk.writes_merged.into(),
        (disk.sectors_written * SECTOR_BYTES).into(),
        (disk.time_writing * NS_PER_MS).into(),
        disk.discards.unwrap_or(0).into(),
        (disk.sectors_discarded.unwrap_or(0) * SECTOR_BYTES).into(),
        disk.flushes.unwrap_or(0).into(),
        (disk.time_flushing.unwrap_or(0) * NS_PER_MS).into(),
        disk.in_progress.into(),
        (disk.time_in_progress * NS_PER_MS).into(),
        (disk.weighted_time_in_progress * NS_PER_MS).into(),
    ]);
}
