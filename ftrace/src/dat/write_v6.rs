//! Version 6: everything in one fixed order.

use super::write::{self, BufferRef, Sink, missing};
use super::{FLYRECORD_V6, OPTIONS_V6, Options, id};
use crate::trace::Trace;
use std::io::{self, Seek, Write};

/// More than any kernel can be built for: a table has a row for each CPU from zero on.
const MAX_CPUS: u64 = 8192;

pub(super) fn write(trace: &Trace, options: &Options, out: &mut Sink<impl Write + Seek>) -> io::Result<()> {
    let (page_bytes, alignment) = write::page_and_alignment(trace)?;
    let buffers = write::buffers(trace)?;
    let numbers = buffers.iter().flat_map(|buffer| buffer.cpus).map(|cpu| u64::from(cpu.cpu) + 1);
    let cpus = numbers.max().unwrap_or(0).max(u64::from(trace.about.cpus));
    if cpus > MAX_CPUS {
        return Err(write::invalid(format!("CPU {} has no place in trace.dat version 6", cpus - 1)));
    }

    out.put(&write::head("6", page_bytes))?;
    for (section, _) in write::TEXT_SECTIONS {
        out.put(&write::text_section(trace, section)?)?;
    }
    out.put(&(cpus as u32).to_le_bytes())?;
    out.put(OPTIONS_V6)?;

    let mut all = write::common_options(trace, options);
    // It says above all that the clock stands behind each table, too.
    write::text_option(&mut all, id::TRACECLOCK, &format!("[{}]", buffers[0].clock));
    // All sizes are known, and so the places of instances before they are written.
    let option_bytes = |buffer: &BufferRef<'_>| 2 + 4 + 8 + buffer.name.len() + 1;
    let mut at = out.at + (all.len() + buffers[1..].iter().map(option_bytes).sum::<usize>() + 2) as u64;
    let mut tables = Vec::with_capacity(buffers.len());
    for buffer in &buffers {
        let table = Table::new(buffer, at, cpus as usize, page_bytes, alignment);
        at = table.end;
        tables.push(table);
    }
    for (buffer, table) in buffers.iter().zip(&tables).skip(1) {
        let mut contents = table.at.to_le_bytes().to_vec();
        write::c_text(&mut contents, buffer.name);
        write::option(&mut all, id::BUFFER, &contents);
    }
    all.extend(id::DONE.to_le_bytes());
    out.put(&all)?;

    for table in &tables {
        out.put(&table.head())?;
        for (offset, pages) in &table.rows {
            out.fill_up_to(*offset)?;
            out.put(pages)?;
            out.put(&vec![0; missing(pages, page_bytes)])?;
        }
        out.fill_up_to(table.end)?;
    }
    Ok(())
}

/// The table of one buffer and where its pages go.
struct Table<'a> {
    at: u64,
    clock: Vec<u8>,
    page_bytes: u64,
    /// For each CPU from zero on: offset and pages.
    rows: Vec<(u64, &'a [u8])>,
    /// Behind the last page.
    end: u64,
}

impl<'a> Table<'a> {
    fn new(buffer: &BufferRef<'a>, at: u64, cpus: usize, page_bytes: u64, alignment: u64) -> Table<'a> {
        let mut clock = Vec::new();
        write::long_text(&mut clock, &format!("[{}]", buffer.clock));
        let mut end = (at + (FLYRECORD_V6.len() + 16 * cpus + clock.len()) as u64).next_multiple_of(alignment);
        let mut rows: Vec<(u64, &[u8])> = vec![(0, &[]); cpus];
        buffer.cpus.iter().for_each(|cpu| rows[cpu.cpu as usize].1 = &cpu.pages);
        for (offset, pages) in &mut rows {
            *offset = end;
            end = (end + (pages.len() as u64).next_multiple_of(page_bytes)).next_multiple_of(alignment);
        }
        Table { at, clock, page_bytes, rows, end }
    }

    fn head(&self) -> Vec<u8> {
        let mut head = FLYRECORD_V6.to_vec();
        for (offset, pages) in &self.rows {
            head.extend(offset.to_le_bytes());
            head.extend((pages.len() as u64).next_multiple_of(self.page_bytes).to_le_bytes());
        }
        head.extend(&self.clock);
        head
    }
}
