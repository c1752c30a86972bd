//! Why a file has no place for a hook, or a user's words mean no file.

use kstrobe_ebpf::typed::Attach;
use std::io;
use thiserror::Error;

/// What a file lacks. The text follows the file's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// It is something else.
    #[error("it is no ELF file")]
    NoElf,
    /// Registers and system calls of 32-bit programs differ from those that values are read from.
    #[error("it is a 32-bit program, which is not supported")]
    Bits32,
    /// It begins with `#!`.
    #[error("it is a script: hook its interpreter")]
    Script,
    /// Its headers make no sense.
    #[error("it is a damaged ELF file: {0}")]
    Damaged(object::Error),
    /// Its code does not run here.
    #[error("it is made for another processor")]
    OtherProcessor,
    /// An object file or a core dump.
    #[error("it is an ELF file, but neither a program nor a shared library")]
    NoProgram,
    /// `0x` without digits behind it.
    #[error("`{0}` is no address")]
    NoAddress(String),
    /// An address outside of its code.
    #[error("it has no code at {0}")]
    NoCode(String),
    /// It has no names of functions.
    #[error("it has no symbols (it is stripped)")]
    Stripped,
    /// No function has the name, or fits the pattern.
    #[error("it has no function `{wanted}`{}", did_you_mean(near))]
    NoFunction {
        /// As the user wrote it.
        wanted: String,
        /// A function with a similar name.
        near: Option<String>,
    },
    /// The dynamic linker chooses one of several functions.
    #[error("the code of `{0}` is chosen when a program starts (IFUNC): hook the variant in use")]
    Indirect(String),
    /// An offset behind the function's end.
    #[error("`{function}` has only {bytes} bytes of code")]
    BehindEnd {
        function: String,
        /// Of its code.
        bytes: u64,
    },
    /// A symbol of a function that names no code.
    #[error("`{0}` does not lie in the file's code")]
    OutsideCode(String),
    /// A pattern that was not meant so.
    #[error("`{wanted}` fits {found} {things}, at most {max} are hooked")]
    TooMany {
        /// As the user wrote it.
        wanted: String,
        /// How many fit.
        found: usize,
        /// `functions` or `places`.
        things: &'static str,
        /// The limit.
        max: usize,
    },
    /// It has none at all.
    #[error("it has no static probe points (USDT)")]
    NoProbePoints,
    /// None of its static probe points fits.
    #[error("it has no static probe point `{wanted}`{}", did_you_mean(near))]
    NoProbePoint {
        /// `provider:name`
        wanted: String,
        /// A similar one.
        near: Option<String>,
    },
    /// The hook is one of the kernel.
    #[error("{0} is not a hook in a program or library")]
    OtherHook(Attach),
}

fn did_you_mean(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// Why a user's words mean no file.
#[derive(Debug, Error)]
pub enum FindError {
    /// Of a hook in one process.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// Nothing fits, with the reason.
    #[error("{0}")]
    Nothing(String),
    /// A pattern that was not meant so.
    #[error("`{words}` fits more than {max} files and folders")]
    TooMany {
        /// As the user wrote it.
        words: String,
        /// The limit.
        max: usize,
    },
    /// A file is there and cannot be opened.
    #[error("{file} cannot be opened: {error}")]
    Open {
        /// With the process whose root it lies below.
        file: String,
        /// Of openat2(2).
        error: nix::errno::Errno,
    },
    /// A file is there and cannot be read.
    #[error("{file} cannot be read: {error}")]
    Read {
        /// With the process whose root it lies below.
        file: String,
        /// Of fstat(2).
        error: io::Error,
    },
    /// A folder or a device.
    #[error("{0} is no regular file")]
    NotRegular(String),
}
