//! What the fuzzers run, see [`cases`], in a heap that ends.

use cap::Cap;
use std::alloc::System;

pub mod cases;

/// A case has at most 64 KiB: what makes more than this of it would fill a node's memory with a real file. Untouched memory counts,
/// which the fuzzer's own limit does not see.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, 256 << 20);
