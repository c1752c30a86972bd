//! Pods that a request for a capture means, as control groups of this node.

use crate::capture::request::Request;
use crate::capture::scope::groups_in;
use crate::config::files::Kubernetes;
use crate::kubernetes::Error;
use kstrobe_workloads::cgroups::Hierarchies;
use kstrobe_workloads::{Pod, place};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For the pods of the node: a capture that takes longer to begin is not what was asked for.
const LIMIT: Duration = Duration::from_secs(15);

/// The request with the control groups of its pods in place of their names. The cluster is asked once; containers that come
/// later are in their pod's group.
pub fn located(request: &Request, cluster: &Kubernetes) -> Result<Request, Error> {
    let mut located = request.clone();
    let wanted = std::mem::take(&mut located.scope.pods);
    if !wanted.is_empty() {
        let pods = ask(cluster).map_err(|error| Error::Pods(Box::new(error)))?;
        let found = Hierarchies::here(None)?;
        let (hierarchy, _) = found.followed().ok_or(Error::NoHierarchy)?;
        located.scope.cgroups.extend(groups_of(&wanted, &pods, &hierarchy.mount_point)?);
    }
    Ok(located)
}

/// The pods of this node. Captures have a thread of their own, which may wait.
fn ask(cluster: &Kubernetes) -> Result<Vec<Pod>, Error> {
    let source = super::pods(cluster, &super::node_or_host(cluster))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asking = runtime.block_on(async { tokio::time::timeout(LIMIT, source.list()).await });
    let pods = asking.map_err(|_| Error::PodsTimeout(LIMIT))??;
    Ok(pods.into_iter().map(|pod| pod.pod).collect())
}

/// The groups below a folder of pods, `NAMESPACE/NAME` or `NAME`. A name alone means the pods of all namespaces.
fn groups_of<'a>(wanted: &[String], pods: &'a [Pod], folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut uids = Vec::new();
    for name in wanted {
        let is_meant = |pod: &&Pod| match name.split_once('/') {
            Some((namespace, name)) => (&*pod.namespace, &*pod.name) == (namespace, name),
            None => &*pod.name == name,
        };
        let before = uids.len();
        let uid = |pod: &'a Pod| &**pod.config_hash.as_ref().unwrap_or(&pod.uid);
        uids.extend(pods.iter().filter(is_meant).map(|pod| (name, uid(pod))));
        if uids.len() == before {
            return Err(Error::NoPod(name.clone()));
        }
    }
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    groups_in(folder, &mut |group| {
        let path = format!("/{}", group.strip_prefix(folder).unwrap_or(group).display());
        let meant = place(&path).pod_uid.filter(|uid| uids.iter().any(|(_, wanted)| wanted == uid));
        let Some(uid) = meant else { return true };
        found.push((uid, group.to_owned()));
        false
    });
    match uids.iter().find(|(_, uid)| found.iter().all(|(of, _)| of != uid)) {
        Some((name, _)) => Err(Error::NotRunning((*name).clone())),
        None => Ok(found.into_iter().map(|(_, group)| group).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, uid: &str, config_hash: Option<&str>) -> Pod {
        Pod {
            uid: uid.into(),
            config_hash: config_hash.map(Into::into),
            namespace: namespace.into(),
            name: name.into(),
            node: None,
            owner: None,
            main: None,
            containers: Vec::new(),
        }
    }

    #[test]
    fn pods_are_the_groups_that_have_their_uid() {
        let uid = |last: u32| format!("0f5b4d0e-1111-4222-8333-{last:012x}");
        let folder = std::env::temp_dir().join(format!("kstrobe-pods-{}", std::process::id()));
        let at = |last: u32| {
            let uid = uid(last).replace('-', "_");
            folder.join(format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"))
        };
        for last in 1..4 {
            std::fs::create_dir_all(at(last).join("cri-containerd-aaaa.scope")).unwrap();
        }
        let pods = [
            pod("shop", "web", &uid(1), None),
            pod("bank", "web", &uid(2), None),
            pod("kube-system", "etcd", "the-mirror", Some(&uid(3))),
            pod("shop", "new", &uid(9), None),
        ];
        let found = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let groups = groups_of(&names, &pods, &folder).map_err(|error| error.to_string());
            groups.map(|mut groups| {
                groups.sort();
                groups
            })
        };
        assert_eq!(found(&["shop/web"]), Ok(vec![at(1)]));
        assert_eq!(found(&["web"]), Ok(vec![at(1), at(2)]));
        assert_eq!(found(&["bank/web", "etcd"]), Ok(vec![at(2), at(3)]));
        assert_eq!(found(&["shop/web", "shop/none"]), Err("pod `shop/none` is not on this node".into()));
        assert_eq!(found(&["new"]), Err("pod `new` has no control group: it does not run".into()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
