//! Pods of a node, from the API server or the kubelet, with their owners.

mod kubelet;
pub mod object;
pub mod owners;
mod source;

pub use kubelet::Kubelet;
pub use object::{NodePod, pod};
pub use source::{Source, run};
