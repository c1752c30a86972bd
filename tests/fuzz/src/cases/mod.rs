//! One function for each kind of bytes that may come from anywhere. They panic when something that always holds does not.
//!
//! `ftrace/tests/corpora.rs` has this module too, and gives it the kept cases.

mod kernel;
mod sound;
mod whole;

use kstrobe_ftrace::dat;
use kstrobe_ftrace::format::{EventFormat, PageFormat};
use kstrobe_ftrace::page::{self, Lost};
use kstrobe_ftrace::print::{self, Printer};
use kstrobe_ftrace::trace::Event;
use kstrobe_ftrace::{calls, symbols::Symbols, trace::CpuStats};

/// The text of a `format` or `header_page` file; behind its first NUL, if any, the bytes of a record.
pub fn format(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let record = bytes.get(end + 1..).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[..end]);
    if let Ok(format) = PageFormat::parse(&text) {
        assert_eq!(PageFormat::parse(&format.text).as_ref(), Ok(&format));
        if let Ok(page) = page::page(record, &format) {
            page.records.for_each(drop);
        }
    }
    CpuStats::parse(&text).lost();
    dat::texts::parse_printk_formats(&text);
    dat::texts::parse_cmdlines(&text);
    let symbols = Symbols::parse(&text);
    assert!(symbols.all().is_sorted_by_key(|symbol| symbol.address));
    let Ok(format) = EventFormat::parse("fuzz", &text) else { return };
    assert_eq!(EventFormat::parse("fuzz", &format.text).as_ref(), Ok(&format));
    // What it says comes before whether there is a record for it.
    let _ = print::understood(&format);
    for field in &format.fields {
        if let Some(value) = field.value(record) {
            std::hint::black_box((value.bits(), value.text(), value.elements().count()));
        }
    }
    kernel::with(0, |trace| {
        let format = Some(&format);
        let event = Event { buffer: 0, cpu: 0, time: 0, lost: Lost::Nothing, data: record, format };
        let (mut printer, mut text) = (Printer::new(trace), String::new());
        printer.print(&event, &mut text);
        printer.fields(&event, &mut text);
        whole::bounded(text.len() as u64, bytes.len());
    });
}

/// Pages of a known kernel: four bytes of choices, see [`kernel::filled`], then what the CPUs wrote.
pub fn page(bytes: &[u8]) {
    let Some((choices, pages)) = bytes.split_first_chunk::<4>() else { return };
    kernel::filled(*choices, pages, |trace| {
        whole::trace(trace, u16::from_le_bytes([choices[2], choices[3]]), pages.len())
    });
}

/// A trace.dat file; a byte of choices behind it.
pub fn dat(bytes: &[u8]) {
    let Some((choices, file)) = bytes.split_last() else { return };
    if let Ok(read) = dat::read(file) {
        whole::trace(&read.trace, u16::from_le_bytes([*choices; 2]), file.len());
    }
}

/// The text of the function_graph tracer.
pub fn text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let calls = calls::text::parse(&text);
    whole::calls(&calls, bytes.len());
    whole::reports(None, &calls, bytes.len());
}
