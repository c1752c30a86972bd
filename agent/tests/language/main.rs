//! The language page and the README against the compiler: every example in them is compiled for a recorded kernel, every
//! mistake in them gives the text that stands below it. So are the shipped probes, also for kernels that can do less.
//!
//! `BLESS=1` rewrites what the tests know better than the page: diagnostics, types, generated tables.

mod choices;
mod examples;
mod expressions;
mod fences;
mod fixture;
mod folds;
mod never;
mod shipped;
mod tables;
