//! Probes of shapes that the kernel's verifier looks at closely.

/// One document each.
pub const YAML: &str = include_str!("shapes.yaml");
