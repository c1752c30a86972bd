//! The forms a capture can be had in.

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `trace.dat`, as trace-cmd and KernelShark open it: what is recorded, from which the others can be made.
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

impl Form {
    /// All of them.
    pub const ALL: [Form; 5] = [Form::Dat, Form::Perfetto, Form::Text, Form::Folded, Form::Pprof];

    /// As `format=` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Form::Dat => "dat",
            Form::Perfetto => "perfetto",
            Form::Text => "text",
            Form::Folded => "folded",
            Form::Pprof => "pprof",
        }
    }

    /// The form of a name.
    pub fn named(name: &str) -> Option<Form> {
        Form::ALL.into_iter().find(|form| form.name() == name)
    }

    /// Name of its file in a capture's folder.
    pub fn file(self) -> &'static str {
        match self {
            Form::Dat => "trace.dat",
            Form::Perfetto => "trace.perfetto-trace",
            Form::Text => "trace.txt",
            Form::Folded => "trace.folded",
            Form::Pprof => "trace.pb.gz",
        }
    }

    /// For HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::Dat | Form::Perfetto | Form::Pprof => "application/octet-stream",
            Form::Text | Form::Folded => "text/plain; charset=utf-8",
        }
    }
}
