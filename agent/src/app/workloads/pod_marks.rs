//! Pods and containers that begin and end, as marks on the time line of the history.

use kstrobe_workloads::Pod;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The pods of the node. Those of the first listing have begun before.
#[derive(Debug, Default)]
pub(super) struct PodMarks {
    is_listed: bool,
    /// By uid.
    pods: HashMap<Arc<str>, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// `namespace/name`
    name: String,
    containers: HashSet<Arc<str>>,
}

impl PodMarks {
    /// The first listing is complete.
    pub fn listed(&mut self) {
        self.is_listed = true;
    }

    /// The texts of the marks of a pod that is new, or has new containers.
    pub fn seen(&mut self, pod: &Pod) -> Vec<String> {
        let is_new = !self.pods.contains_key(&pod.uid);
        let known = self.pods.entry(pod.uid.clone()).or_default();
        known.name = format!("{}/{}", pod.namespace, pod.name);
        let mut texts = Vec::new();
        if is_new {
            texts.push(format!("pod {} begins", known.name));
        }
        for container in &pod.containers {
            if known.containers.insert(container.id.clone()) {
                texts.push(format!("container {} of pod {} begins", container.name, known.name));
            }
        }
        // An id of a container that was replaced is in the status once more, as `lastState`, and then in none.
        known.containers.retain(|id| pod.containers.iter().any(|container| container.id == *id));
        if self.is_listed { texts } else { Vec::new() }
    }

    pub fn gone(&mut self, uid: &str) -> Option<String> {
        self.pods.remove(uid).map(|known| format!("pod {} ends", known.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_workloads::Container;

    fn pod(containers: &[&str]) -> Pod {
        let container = |id: &&str| Container { id: (*id).into(), name: "nginx".into(), running: true };
        Pod {
            uid: "u".into(),
            config_hash: None,
            namespace: "shop".into(),
            name: "web".into(),
            node: None,
            owner: None,
            main: None,
            containers: containers.iter().map(container).collect(),
        }
    }

    #[test]
    fn pods_of_the_first_listing_make_no_mark() {
        let mut marks = PodMarks::default();
        assert_eq!(marks.seen(&pod(&["a"])), [""; 0]);
        marks.listed();
        assert_eq!(marks.seen(&pod(&["a"])), [""; 0], "it was listed again");
        assert_eq!(marks.gone("u").as_deref(), Some("pod shop/web ends"));
        assert_eq!(marks.gone("u"), None);
    }

    #[test]
    fn a_restarted_container_makes_one_mark() {
        let mut marks = PodMarks::default();
        marks.listed();
        assert_eq!(marks.seen(&pod(&[])), ["pod shop/web begins"]);
        assert_eq!(marks.seen(&pod(&["a"])).len(), 1);
        assert_eq!(marks.seen(&pod(&["a", "b"])).len(), 1);
        assert_eq!(marks.seen(&pod(&["b"])), [""; 0]);
    }
}
