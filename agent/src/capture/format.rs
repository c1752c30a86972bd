//! File formats of a capture.

/// A file format of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `trace.dat` of trace-cmd and KernelShark. It is recorded; the other formats are converted from it.
    Dat,
    /// Perfetto's protobuf.
    Perfetto,
    /// Like the kernel's own `trace` file.
    Text,
    /// Folded stacks.
    Folded,
    /// pprof, gzipped.
    Pprof,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 5] = [Format::Dat, Format::Perfetto, Format::Text, Format::Folded, Format::Pprof];

    /// As `format=` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Dat => "dat",
            Format::Perfetto => "perfetto",
            Format::Text => "text",
            Format::Folded => "folded",
            Format::Pprof => "pprof",
        }
    }

    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Name of its file in a capture's folder.
    pub fn file(self) -> &'static str {
        match self {
            Format::Dat => "trace.dat",
            Format::Perfetto => "trace.perfetto-trace",
            Format::Text => "trace.txt",
            Format::Folded => "trace.folded",
            Format::Pprof => "trace.pb.gz",
        }
    }

    /// For HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Dat | Format::Perfetto | Format::Pprof => "application/octet-stream",
            Format::Text | Format::Folded => "text/plain; charset=utf-8",
        }
    }
}
