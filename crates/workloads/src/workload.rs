//! Names of cgroups.

use std::fmt;
use std::sync::Arc;

/// Names of a cgroup; absent ones are `None`: a host service has no pod, the own group of a pod no container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Workload {
    /// Namespace of the pod.
    pub namespace: Option<Arc<str>>,
    /// Name of the pod.
    pub pod: Option<Arc<str>>,
    /// Name of the container in its pod. Without a pod, the first 12 digits of its id, as `docker ps` shows it, or the name of
    /// the machine.
    pub container: Option<Arc<str>>,
    /// Owner of the pod: Deployment, StatefulSet, DaemonSet, CronJob and so on; the name of the pod if it has no owner.
    pub workload: Option<Arc<str>>,
    /// Kind of the owner: `Deployment`, ..., `Pod`.
    pub workload_kind: Option<Arc<str>>,
    /// Systemd unit, of groups that are no pod's: `nginx.service`.
    pub unit: Option<Arc<str>>,
    /// Path of the cgroup itself below the mount of its hierarchy, as in /proc/PID/cgroup.
    pub cgroup_path: Option<Arc<str>>,
    /// Node name, also for groups outside of pods.
    pub node: Option<Arc<str>>,
}

/// One of a [`Workload`]'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    Namespace,
    Pod,
    Container,
    Workload,
    WorkloadKind,
    Unit,
    CgroupPath,
    Node,
}

impl Field {
    pub const ALL: [Field; 8] = [
        Field::Namespace,
        Field::Pod,
        Field::Container,
        Field::Workload,
        Field::WorkloadKind,
        Field::Unit,
        Field::CgroupPath,
        Field::Node,
    ];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Field::Namespace => "namespace",
            Field::Pod => "pod",
            Field::Container => "container",
            Field::Workload => "workload",
            Field::WorkloadKind => "workload_kind",
            Field::Unit => "unit",
            Field::CgroupPath => "cgroup_path",
            Field::Node => "node",
        }
    }

    /// Parses a name of the configuration.
    pub fn named(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Workload {
    /// Value of a field, if present.
    pub fn get(&self, field: Field) -> Option<&str> {
        let name = match field {
            Field::Namespace => &self.namespace,
            Field::Pod => &self.pod,
            Field::Container => &self.container,
            Field::Workload => &self.workload,
            Field::WorkloadKind => &self.workload_kind,
            Field::Unit => &self.unit,
            Field::CgroupPath => &self.cgroup_path,
            Field::Node => &self.node,
        };
        name.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_own_name_and_place() {
        for field in Field::ALL {
            assert_eq!(Field::named(field.name()), Some(field));
            let name: Option<Arc<str>> = Some(field.name().into());
            let mut workload = Workload::default();
            match field {
                Field::Namespace => workload.namespace = name,
                Field::Pod => workload.pod = name,
                Field::Container => workload.container = name,
                Field::Workload => workload.workload = name,
                Field::WorkloadKind => workload.workload_kind = name,
                Field::Unit => workload.unit = name,
                Field::CgroupPath => workload.cgroup_path = name,
                Field::Node => workload.node = name,
            }
            let others = Field::ALL.into_iter().filter(|other| *other != field);
            assert_eq!(workload.get(field), Some(field.name()));
            assert_eq!(others.filter_map(|other| workload.get(other)).count(), 0, "{field}");
        }
        assert_eq!(Field::named("Pod"), None);
    }
}
