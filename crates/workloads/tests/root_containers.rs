//! Containers of real runtimes in groups like a kubelet's: that a walk finds them, that their paths say which pod and container
//! they are, and that a table names them through starts, restarts and ends.

use kstrobe_testing::containers::{Driver, Node, PODMAN, RUNC, group_of};
use kstrobe_testing::groups::controller;
use kstrobe_testing::{wait_for, witnesses};
use kstrobe_workloads::cgroups::{Cgroup, Hierarchies, Walker};
use kstrobe_workloads::{Field, Pod, Runtime, Settings, Table, place};
use std::time::{Duration, Instant};

/// Command of an idle container.
const WAIT: &str = "busybox sleep 100";

fn walker() -> Walker {
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    Walker::new(found.unified.expect("cgroup2 is mounted"), 100_000)
}

/// The group with this path among those that came.
#[track_caller]
fn found<'a>(came: &'a [Cgroup], path: &str) -> &'a Cgroup {
    came.iter().find(|group| group.path == path).unwrap_or_else(|| panic!("no {path} among {came:#?}"))
}

#[test]
#[ignore = "needs root"]
fn root_containers_of_runc_are_found_by_their_paths() {
    if !witnesses("root_containers_of_runc_are_found_by_their_paths", RUNC) {
        return;
    }
    for (driver, runtime, named) in [
        (Driver::Systemd, "cri-containerd", Some(Runtime::Containerd)),
        (Driver::Systemd, "crio", Some(Runtime::CriO)),
        (Driver::Cgroupfs, "cri-containerd", None),
        (Driver::Cgroupfs, "crio", Some(Runtime::CriO)),
    ] {
        let node = Node::new();
        let mut walker = walker();
        walker.walk().unwrap();
        let (uid, id) = (Node::uid(), Node::id());
        let container = node.runc(&driver.container(&uid, runtime, &id), &id, WAIT);
        let walk = walker.walk().unwrap();
        assert!(walk.whole);
        // The process says where it is; the walk found this group, by the number of its folder.
        let group = found(&walk.came, &container.group);
        assert_eq!(group.id, container.cgroup_id());
        let place = place(&group.path);
        assert_eq!(
            (place.pod_uid.as_deref(), place.container_id.as_deref()),
            (Some(&*uid), Some(&*id)),
            "{}",
            group.path
        );
        assert_eq!(place.runtime, named);
        let gone = group.id;
        container.stop();
        assert_eq!(walker.walk().unwrap().gone, [gone], "{driver:?} {runtime}");
    }
}

#[test]
#[ignore = "needs root"]
fn root_containers_of_podman_are_found_by_their_paths() {
    let test = "root_containers_of_podman_are_found_by_their_paths";
    // Podman limits the number of processes.
    if !witnesses(test, PODMAN) || !controller(test, "pids") {
        return;
    }
    let node = Node::new();
    let mut walker = walker();
    walker.walk().unwrap();
    let uid = Node::uid();
    let in_pod = node.podman(&Driver::Cgroupfs.pod(&uid), WAIT);
    let plain = node.podman("machine", WAIT);
    let walk = walker.walk().unwrap();
    let of_pod = place(&found(&walk.came, &in_pod.group).path);
    assert_eq!((of_pod.pod_uid, of_pod.container_id), (Some(uid), Some(in_pod.id.clone())), "{}", in_pod.group);
    let of_host = place(&found(&walk.came, &plain.group).path);
    assert_eq!((of_host.pod_uid, of_host.container_id), (None, Some(plain.id.clone())), "{}", plain.group);
    assert_eq!([of_pod.runtime, of_host.runtime], [Some(Runtime::Podman); 2]);
    // No other group has the name of a container; conmon, the monitor, has none.
    for group in &walk.came {
        let container = place(&group.path).container_id;
        let inside = [&in_pod, &plain].into_iter().find(|known| group.path.starts_with(&known.group));
        assert_eq!(container.as_ref(), inside.map(|known| &known.id), "{}", group.path);
    }
}

#[test]
#[ignore = "needs root"]
fn root_what_is_nested_in_a_container_belongs_to_it() {
    if !witnesses("root_what_is_nested_in_a_container_belongs_to_it", RUNC) {
        return;
    }
    let node = Node::new();
    let (uid, id) = (Node::uid(), Node::id());
    let group = Driver::Systemd.container(&uid, "cri-containerd", &id);
    let container = node.runc(&group, &id, WAIT);
    let outer = place(&container.group);
    // As a system manager in a container does: a group of its own for who is there already; and one that lies.
    let inner = node.folder_of(&group).join("system.slice/nginx.service");
    let lie = node.folder_of(&group).join(Driver::Cgroupfs.container(&Node::uid(), "crio", &Node::id()));
    for folder in [&inner, &lie] {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("cgroup.procs"), container.pid.to_string()).unwrap();
        let path = group_of(container.pid);
        assert!(path.len() > container.group.len(), "{path}");
        assert_eq!(place(&path), outer, "{path}");
        let walk = walker().walk().unwrap();
        assert_eq!(place(&found(&walk.came, &path).path), outer);
    }
}

/// Life of a pod with a restarted container; walks and pod events update a table.
#[test]
#[ignore = "needs root"]
fn root_a_table_names_containers_through_restarts() {
    if !witnesses("root_a_table_names_containers_through_restarts", RUNC) {
        return;
    }
    let grace = Duration::from_secs(60);
    let node = Node::new();
    let mut walker = walker();
    let mut table = Table::new(Settings { node: None, grace, patience: grace });
    let mut now = Instant::now();
    let mut look = |table: &mut Table, now: Instant| {
        let walk = walker.walk().unwrap();
        for id in walk.gone {
            table.cgroup_gone(id, now);
        }
        for group in walk.came {
            table.cgroup_seen(group.id, &group.path, now);
        }
        assert!(walk.whole);
    };
    let name = |table: &Table, id: u64| {
        let names = table.get(id)?;
        Some([Field::Namespace, Field::Pod, Field::Container].map(|field| names.get(field).unwrap_or("-")).join("/"))
    };
    let pod = |uid: &str, name: &str, ids: &[&str]| Pod {
        uid: uid.into(),
        config_hash: None,
        namespace: "shop".into(),
        name: name.into(),
        node: None,
        owner: None,
        main: None,
        containers: ids
            .iter()
            .map(|id| kstrobe_workloads::Container { id: (*id).into(), name: "app".into(), running: true })
            .collect(),
    };

    let (uid, first, second) = (Node::uid(), Node::id(), Node::id());
    let path = |id: &str| Driver::Systemd.container(&uid, "cri-containerd", id);
    let container = node.runc(&path(&first), &first, WAIT);
    let id = container.cgroup_id();
    look(&mut table, now);
    assert_eq!(name(&table, id), None, "the pod is not in the table");
    table.pod_seen(pod(&uid, "web-0", &[&first]), now);
    assert_eq!(name(&table, id).as_deref(), Some("shop/web-0/app"));

    // The container is restarted: another id of the runtime's, another group.
    container.stop();
    let container = node.runc(&path(&second), &second, WAIT);
    let restarted = container.cgroup_id();
    look(&mut table, now);
    table.pod_seen(pod(&uid, "web-0", &[&second, &first]), now);
    assert_ne!(id, restarted);
    assert_eq!(name(&table, id).as_deref(), Some("shop/web-0/app"), "in its grace period");
    assert_eq!(name(&table, restarted).as_deref(), Some("shop/web-0/app"));

    // The pod is replaced by one of the same name, as a StatefulSet does; meanwhile another one starts.
    container.stop();
    table.pod_gone(&uid, now);
    let (uid, other, third, fourth) = (Node::uid(), Node::uid(), Node::id(), Node::id());
    let replaced = node.runc(&Driver::Systemd.container(&uid, "cri-containerd", &third), &third, WAIT);
    let another = node.runc(&Driver::Systemd.container(&other, "cri-containerd", &fourth), &fourth, WAIT);
    table.pod_seen(pod(&other, "pay-0", &[&fourth]), now);
    look(&mut table, now);
    assert_eq!(name(&table, replaced.cgroup_id()), None);
    assert_eq!(name(&table, another.cgroup_id()).as_deref(), Some("shop/pay-0/app"));
    table.pod_seen(pod(&uid, "web-0", &[&third]), now);
    assert_eq!(name(&table, replaced.cgroup_id()).as_deref(), Some("shop/web-0/app"));

    now += grace;
    let expired = table.tick(now);
    assert!(expired.contains(&id) && expired.contains(&restarted), "{expired:?}");
    assert_eq!(name(&table, another.cgroup_id()).as_deref(), Some("shop/pay-0/app"));
}

/// A container that ends before the walk: an init container, a job.
#[test]
#[ignore = "needs root"]
fn root_a_container_that_lives_for_a_moment_is_found() {
    if !witnesses("root_a_container_that_lives_for_a_moment_is_found", RUNC) {
        return;
    }
    let node = Node::new();
    let mut walker = walker();
    let alarm = walker.watch().unwrap();
    walker.walk().unwrap();
    let (uid, id) = (Node::uid(), Node::id());
    let group = Driver::Systemd.container(&uid, "cri-containerd", &id);
    let (mut came, mut gone) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let short = scope.spawn(|| node.runc(&group, &id, "exit").stop());
        while !short.is_finished() {
            if alarm.wait(Duration::from_millis(100)).unwrap() {
                let changes = walker.changes().unwrap();
                came.extend(changes.came);
                gone.extend(changes.gone);
            }
        }
    });
    gone.extend(walker.changes().unwrap().gone);
    let found = found(&came, &format!("/{}/{group}", node.name));
    let place = place(&found.path);
    assert_eq!((place.pod_uid, place.container_id), (Some(uid), Some(id)));
    assert!(gone.contains(&found.id), "{gone:?}");
    assert_eq!(walker.counts().walks, 1);
}

/// A container that ends by itself, as all do in the end: its group stays until somebody removes it, and is the same.
#[test]
#[ignore = "needs root"]
fn root_containers_end_and_leave_nothing_behind() {
    if !witnesses("root_containers_end_and_leave_nothing_behind", RUNC) {
        return;
    }
    let node = Node::new();
    let (uid, id) = (Node::uid(), Node::id());
    let container = node.runc(&Driver::Cgroupfs.container(&uid, "cri-containerd", &id), &id, "exit 3");
    assert_eq!(place(&container.group).container_id.as_deref(), Some(&*id));
    let pid = container.pid;
    wait_for("the container's end", Duration::from_secs(10), || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    let name = node.name.clone();
    container.stop();
    // A failure amid a test must clean up as well.
    let failed = std::thread::spawn(move || {
        let id = Node::id();
        let _container = node.runc(&Driver::Cgroupfs.container(&Node::uid(), "crio", &id), &id, WAIT);
        panic!("as a failing test does");
    });
    assert!(failed.join().is_err());
    let left: Vec<_> = walkdir("/sys/fs/cgroup").into_iter().filter(|path| path.contains(&name)).collect();
    assert_eq!(left, [""; 0]);
}

/// All folders below one, of all hierarchies.
fn walkdir(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut ahead = vec![std::path::PathBuf::from(folder)];
    while let Some(folder) = ahead.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path().display().to_string());
                ahead.push(entry.path());
            }
        }
    }
    found
}
