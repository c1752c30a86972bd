//! eBPF instructions.
