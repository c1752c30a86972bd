//! The only room that talks to the kernel about tracing: abilities, programs, maps, tracefs.
//!
//! `unsafe` lies in [`sys`] and [`mmap`] alone; everything else here is safe code over them. From the compiler this room
//! takes only data: [`kstrobe_ebpf::Target`], [`kstrobe_ebpf::Layout`] and [`kstrobe_ebpf::typed::Attach`].

pub mod abilities;
pub mod attach;
pub mod binaries;
pub mod control;
pub mod detect;
pub mod error;
pub mod event_stream;
pub mod events;
pub mod formats;
pub mod functions;
pub mod groups;
pub mod hooks;
pub mod instance;
pub mod kernel_types;
pub mod load;
pub mod log;
#[allow(unsafe_code, reason = "maps kernel memory; every block says why it is sound")]
pub mod mmap;
pub mod object;
pub mod parallel;
pub mod pollers;
pub mod privileges;
pub mod process_maps;
pub mod procfs;
pub mod read;
pub mod stacks;
#[allow(unsafe_code, reason = "raw system calls; every block says why it is sound")]
pub mod sys;
pub mod topology;
pub mod tracefs;
pub mod unwind;
pub mod verifier_log;

#[cfg(test)]
mod root_tests;

pub use detect::{Wanted, detect};
pub use load::{LoadError, Loaded, Loader, ProgInfo, load, load_unattached};
pub use read::{ProbeMaps, TableView};
