//! Many nodes at once: who is asked, when they begin, what became of each, one file of all.
//!
//! ```text
//!  pods ──▶ target ──▶ course (one a node) ──▶ merge ──▶ archive
//!                         │    ▲                 ▲
//!                         ▼    │                 │
//!                      run: Agents          clock: whose wall clock is right
//! ```
//!
//! What is decided is pure and has no clock: [`clock`], [`course`], [`target`], [`hooks`], [`views`]. What is done is thin:
//! [`run`] asks agents by a door that it is given, [`merge`] and [`archive`] write files.
#![forbid(unsafe_code)]

pub mod archive;
pub mod clock;
pub mod course;
pub mod hooks;
pub mod manifest;
pub mod merge;
pub mod private;
pub mod route;
pub mod run;
pub mod target;
pub mod top;
pub mod views;
