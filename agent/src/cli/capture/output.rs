//! Where a recording goes, and in which form.

use crate::capture::Error;
use crate::capture::format;
use crate::capture::write::write;
use clap::ValueEnum;
use kstrobe_fleet::private;
use kstrobe_ftrace::dat::texts;
use kstrobe_ftrace::trace::Trace;
use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// trace.dat, version 7: trace-cmd and KernelShark open it.
    Dat,
    /// Perfetto's protobuf: ui.perfetto.dev opens it.
    Perfetto,
    /// Like the kernel's own `trace` file.
    Text,
    /// Time in calls by their callers, one line a stack.
    Folded,
    /// The same as pprof, gzipped.
    Pprof,
    /// A folder with raw pages, and the files of tracefs that are needed to read them.
    Pages,
}

impl Format {
    /// The form of its file; raw pages have a folder instead.
    fn stored_as(self) -> format::Format {
        match self {
            Format::Dat | Format::Pages => format::Format::Dat,
            Format::Perfetto => format::Format::Perfetto,
            Format::Text => format::Format::Text,
            Format::Folded => format::Format::Folded,
            Format::Pprof => format::Format::Pprof,
        }
    }

    fn of(path: &Path) -> Format {
        match path.extension().and_then(|end| end.to_str()) {
            Some("pages") => Format::Pages,
            Some("perfetto-trace" | "pftrace" | "perfetto") => Format::Perfetto,
            Some("txt") => Format::Text,
            Some("folded") => Format::Folded,
            Some("gz" | "pprof") => Format::Pprof,
            _ => Format::Dat,
        }
    }
}

/// Where it goes. Until all is written it has another name, which is given up when something fails.
#[derive(Debug)]
pub struct Target {
    format: Format,
    path: PathBuf,
    part: PathBuf,
    file: Option<File>,
}

impl Target {
    /// Fails before anything is recorded when nothing can be written there.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Target, Error> {
        let format = format.unwrap_or_else(|| Format::of(path));
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".part-{}", std::process::id()));
        let part = PathBuf::from(part);
        let file = match format {
            Format::Pages => DirBuilder::new().mode(0o700).create(&part).map(|()| None),
            _ => private::create(&part).map(Some),
        };
        let file = file.map_err(|error| Error::Open { file: path.to_owned(), error })?;
        Ok(Target { format, path: path.to_owned(), part, file })
    }

    /// Writes it.
    pub fn write(mut self, trace: &Trace) -> io::Result<()> {
        match (self.format, self.file.take()) {
            (format, Some(file)) => write(trace, format.stored_as(), BufWriter::new(file))?,
            (_, None) => pages(trace, &self.part)?,
        }
        std::fs::rename(&self.part, &self.path)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // When it was written, there is nothing of that name.
        let _ = match self.format {
            Format::Pages => std::fs::remove_dir_all(&self.part),
            _ => std::fs::remove_file(&self.part),
        };
    }
}

fn pages(trace: &Trace, folder: &Path) -> io::Result<()> {
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes);
    write("header_page", trace.page.text.as_bytes())?;
    write("header_event", trace.header_event.as_bytes())?;
    write("kallsyms", texts::kallsyms(&trace.symbols).as_bytes())?;
    write("printk_formats", texts::printk_formats(&trace.printk).as_bytes())?;
    write("saved_cmdlines", texts::cmdlines(&trace.comms).as_bytes())?;
    write("uname", trace.about.uname.as_bytes())?;
    std::fs::create_dir(folder.join("formats"))?;
    for format in trace.formats.all() {
        write(&format!("formats/{}.{}", format.system, format.name), format.text.as_bytes())?;
    }
    for buffer in &trace.buffers {
        write("trace_clock", buffer.clock.as_bytes())?;
        for cpu in &buffer.cpus {
            write(&format!("cpu{}.raw", cpu.cpu), &cpu.pages)?;
            if let Some(stats) = &cpu.stats {
                write(&format!("cpu{}.stats", cpu.cpu), texts::cpu_stats(stats).as_bytes())?;
            }
        }
    }
    Ok(())
}
