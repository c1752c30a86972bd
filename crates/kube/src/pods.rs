//! Pods of a node: from the API server or from the kubelet, with what they were made for.

mod kubelet;
pub mod object;
pub mod owners;
mod source;

pub use kubelet::Kubelet;
pub use object::{NodePod, pod};
pub use source::{Source, run};
