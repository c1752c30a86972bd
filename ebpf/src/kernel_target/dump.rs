//! A [`Target`](super::Target) as text, for test fixtures and bug reports.
//!
//! The text is made to be compared: one fact a line, sorted, no ids. Of the types it has the named roots and what they hold
//! by value; a struct that is only pointed to becomes a forward declaration. Everything is a stream of tokens; line ends
//! and indentation mean nothing and `#` starts a comment.
//!
//! ```text
//! kstrobe_target 1
//! release "6.18.44"   arch x86_64   cpus 4
//! cache (0, 2); cache (1, 3);
//! ability batch yes
//! ability task_storage no "needs CAP_BPF and CAP_PERFMON (or root)"
//! tracepoint "sched:sched_switch" { @8 prev_comm: str 16; @24 prev_pid: i32; }
//! syscall recvfrom 45 (fd: "int", ubuf: "void *");
//! counter "cpu-cycles" no "this machine has no hardware counter for it"
//! usdt "/usr/bin/python3:python:gc__start" ("-4@112(%rsp)");
//! poll "softnet" { @0 cpu: u32; }
//! functions "vfs_*" { vfs_read traced; "vfs_x.isra.0" untraced; }
//! functions "veth:veth_open" { veth_open of veth traced; }
//! btf {
//!   int "unsigned int" size 4 unsigned;
//!   struct sock size 760 { @0 __sk_common: struct sock_common; @600.5/1 bit: int "unsigned int"; };
//!   typedef pid_t = int int;
//! }
//! module veth {
//!   func veth_open: proto (dev: ptr fwd struct net_device) -> int int;
//! }
//! ```
//!
//! A module's types stand for themselves here: what they need of the kernel's stands there again.
//!
//! A type is written as `void`, `ptr T`, `const T`, `volatile T`, `restrict T`, `tag "user" T`, `array N T`, `proto (a: T) -> T`,
//! a kind and a name (`struct sock`, `fwd struct sock`, `typedef pid_t`, `int "unsigned int"`), or an unnamed definition in
//! place (`union size 8 { ... }`). A name that has several definitions is followed by `~N` from the second on.

mod build;
mod error;
mod parse;
mod roots;
mod tokens;
mod write;

#[cfg(test)]
mod tests;

pub use error::ParseError;
pub use parse::parse;
pub use roots::roots;
pub use write::dump;

/// First token and version of the form.
const MAGIC: &str = "kstrobe_target";
const VERSION: &str = "1";

/// Unnamed types and pointers nest at most this deep.
const MAX_DEPTH: u32 = 48;
