//! Programs and libraries: what can be hooked in them, and which files a user's name for one means.
//!
//! | file | question it answers | reads |
//! |---|---|---|
//! | `elf` | is this an ELF file of this machine, and where in the file does an address lie? | bytes |
//! | `symbols` | which functions does a name or pattern mean? | bytes |
//! | `usdt` | which static probe points does it have? | bytes |
//! | `pattern` | does `*` and `?` match? | nothing |
//! | `file` | is this the file that was hooked before? | files |
//! | `find` | which files does a path, a pattern or a library's name mean, in which mount namespaces? | /proc, files |
//! | `place_names` | which name belongs to the id of a place? | nothing |
//! | `open` | the above together: from a user's words to places in files | files |

pub mod elf;
pub mod error;
pub mod file;
pub mod find;
pub mod open;
pub mod pattern;
pub mod place_names;
pub mod symbols;
pub mod usdt;

pub use error::{FileError, FindError};
pub use file::File;
pub use find::named;
pub use open::{Places, all_functions, all_probes, functions, places, probes};
