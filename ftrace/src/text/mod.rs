//! Traces as text, like the kernel's own `trace` file.

pub mod graph;
