//! Ids of groups on the running kernel: that the walk's are those that the kernel gives to programs.

use kstrobe_testing::{groups, not_run, output, witnesses};
use kstrobe_workloads::cgroups::{Cgroup, Hierarchies, Mode, Walker};
use kstrobe_workloads::{Field, Pod, Settings, Table};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A group of the test's own, gone at its end with those in it.
struct Group(PathBuf);

impl Group {
    fn new(mount_point: &Path, name: &str) -> Group {
        let group = Group(mount_point.join(format!("kstrobe-test-{}-{name}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        group
    }

    fn add(&self, name: &str) -> PathBuf {
        let folder = self.0.join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        groups::remove(&self.0);
    }
}

fn unified() -> kstrobe_workloads::cgroups::Hierarchy {
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    found.unified.expect("every kernel of ours has version 2, and this machine mounts it")
}

/// Runs a shell's script in a group.
fn inside(folder: &Path, script: &str) -> String {
    let script = format!("echo $$ > \"$GROUP/cgroup.procs\" && {script}");
    output(Command::new("sh").args(["-c", &script]).env("GROUP", folder))
}

#[test]
#[ignore = "needs root"]
fn root_ids_are_those_of_the_kernel() {
    if !witnesses("root_ids_are_those_of_the_kernel", &["bpftrace"]) {
        return;
    }
    let hierarchy = unified();
    let group = Group::new(&hierarchy.mount_point, "ids");
    let mut walker = Walker::new(hierarchy, 100_000);
    walker.walk().unwrap();
    let folders = ["a", "a/b", "kubepods/pod1"].map(|name| group.add(name));
    let walk = walker.walk().unwrap();
    let came: BTreeMap<&str, u64> = walk.came.iter().map(|group| (group.path.as_str(), group.id)).collect();
    for folder in folders {
        // The id of the process's own group by `bpf_get_current_cgroup_id`, of the folder by `name_to_handle_at`, and the
        // path by the kernel's text.
        let said = inside(
            &folder,
            "sed -n 's/^0:://p' /proc/self/cgroup && exec bpftrace -e \"\
             BEGIN { printf(\\\"ids %llu %llu\\n\\\", cgroup, cgroupid(\\\"$GROUP\\\")); exit(); }\"",
        );
        let path = said.lines().next().unwrap_or_default();
        let ids = said.lines().find_map(|line| line.strip_prefix("ids ")).unwrap_or_else(|| panic!("{said}"));
        let ids: Vec<u64> = ids.split(' ').map(|id| id.parse().unwrap()).collect();
        assert!(path.ends_with(folder.strip_prefix(group.0.parent().unwrap()).unwrap().to_str().unwrap()), "{said}");
        let found = came.get(path).unwrap_or_else(|| panic!("no {path} among {came:?}"));
        assert_eq!(ids, [*found; 2], "{path}");
    }
}

/// What programs read where version 1 is in use: through the controller's place in the task's set of groups.
#[test]
#[ignore = "needs root"]
fn root_ids_of_version_1_are_those_of_the_kernel() {
    if !witnesses("root_ids_of_version_1_are_those_of_the_kernel", &["bpftrace", "bpftool"]) {
        return;
    }
    // bpftrace knows neither members of this structure nor constants as indices.
    let types = output(Command::new("bpftool").args("btf dump file /sys/kernel/btf/vmlinux format raw".split(' ')));
    let node = types.split_once("STRUCT 'kernfs_node'").expect("kernfs_node").1;
    let after = |text: &str, what: &str| -> u64 {
        let rest = text.split_once(what).unwrap_or_else(|| panic!("no {what}")).1;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{what} without a number"))
    };
    let id = node.split_once("'id'").expect("kernfs_node.id").1;
    let id_offset = after(id, "bits_offset=") / 8;
    let number = |what: &str| after(&types, what);
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    let of_v1 = found.legacy.iter().filter(|hierarchy| !hierarchy.controllers[0].starts_with("name="));
    let mut asked = 0;
    for hierarchy in of_v1 {
        let controller = match hierarchy.controllers[0].as_str() {
            // A new cpuset group accepts no process before its CPUs are set.
            "cpuset" => continue,
            "blkio" => "io",
            other => other,
        };
        let group = Group::new(&hierarchy.mount_point, "v1");
        let folder = group.add("kubepods/pod1");
        let mut walker = Walker::new(hierarchy.clone(), 100_000);
        let walk = walker.walk().unwrap();
        let said = inside(
            &folder,
            &format!(
                "exec bpftrace -e 'BEGIN {{ $kn = (uint64)((struct task_struct *)curtask)->cgroups->subsys[{}]->cgroup->kn; \
                 printf(\"id %llu\\n\", *(uint64 *)($kn + {id_offset})); exit(); }}'",
                number(&format!("'{controller}_cgrp_id' val="))
            ),
        );
        let id = said.lines().find_map(|line| line.strip_prefix("id ")).unwrap_or_else(|| panic!("{said}"));
        let path = folder.strip_prefix(&hierarchy.mount_point).unwrap();
        let expected = Cgroup { id: id.parse().unwrap(), path: format!("/{}", path.display()) };
        assert!(walk.came.contains(&expected), "{controller}: {expected:?} {walk:?}");
        asked += 1;
    }
    if asked == 0 {
        not_run("root_ids_of_version_1_are_those_of_the_kernel", "no controller is in version 1");
    }
}

#[test]
#[ignore = "needs root"]
fn root_a_group_made_anew_has_another_id() {
    let hierarchy = unified();
    let group = Group::new(&hierarchy.mount_point, "anew");
    let mut walker = Walker::new(hierarchy, 100_000);
    let mut ids = Vec::new();
    for round in 0..20 {
        let folder = group.add("again");
        let walk = walker.walk().unwrap();
        let came: Vec<&Cgroup> = walk.came.iter().filter(|group| group.path.ends_with("/again")).collect();
        assert_eq!(came.len(), 1, "round {round}: {walk:?}");
        // The one of the round before went, though the path is the same.
        assert!(ids.last().is_none_or(|id| walk.gone.contains(id)), "round {round}: {walk:?}");
        ids.push(came[0].id);
        fs::remove_dir(folder).unwrap();
    }
    let mut different = ids.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), ids.len(), "{ids:?}");
}

/// The kernel counts all that it ever made, 64 bits far: an id is not given twice.
#[test]
#[ignore = "needs root"]
fn root_ids_only_ever_grow() {
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    for hierarchy in found.legacy.iter().take(1).chain(&found.unified) {
        let group = Group::new(&hierarchy.mount_point, "grow");
        let mut last = 0;
        for round in 0..10_000 {
            let folder = group.add("again");
            let id = fs::metadata(&folder).unwrap().ino();
            assert!(id > last, "{} round {round}: {id} after {last}", hierarchy.mount_point.display());
            last = id;
            fs::remove_dir(folder).unwrap();
        }
    }
}

/// Version 1 lets groups be renamed: the one way to an id of the kernel's that means one pod, and then another.
#[test]
#[ignore = "needs root"]
fn root_an_id_that_means_another_pod_has_no_name_of_the_first() {
    let test = "root_an_id_that_means_another_pod_has_no_name_of_the_first";
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    let Some(hierarchy) = found.legacy.into_iter().next() else { return not_run(test, "nothing is in version 1") };
    let (now, wait) = (Instant::now(), Duration::from_secs(60));
    let mut table = Table::new(Settings { node: None, grace: wait, patience: wait });
    let uids = ["1", "2"].map(|digit| [8, 4, 4, 4, 12].map(|length| digit.repeat(length)).join("-"));
    let pods = [&uids[0], &uids[1]].map(|uid| Pod {
        uid: (**uid).into(),
        config_hash: None,
        namespace: "shop".into(),
        name: format!("pod-{}", &uid[..1]).into(),
        node: None,
        owner: None,
        main: None,
        containers: Vec::new(),
    });
    let [first, second] = pods;
    table.pod_seen(first, now);
    let group = Group::new(&hierarchy.mount_point, "renamed");
    let mut walker = Walker::new(hierarchy, 100_000);
    let mut look = |table: &mut Table| {
        let walk = walker.walk().unwrap();
        walk.gone.iter().for_each(|id| table.cgroup_gone(*id, now));
        walk.came.iter().for_each(|group| table.cgroup_seen(group.id, &group.path, now));
    };
    let folder = group.add(&format!("kubepods/pod{}", uids[0]));
    let id = fs::metadata(&folder).unwrap().ino();
    let name = |table: &Table| table.get(id).and_then(|names| names.get(Field::Pod).map(str::to_owned));
    look(&mut table);
    assert_eq!(name(&table).as_deref(), Some("pod-1"));

    let renamed = folder.with_file_name(format!("pod{}", uids[1]));
    fs::rename(&folder, &renamed).unwrap();
    assert_eq!(fs::metadata(&renamed).unwrap().ino(), id);
    look(&mut table);
    assert_eq!((name(&table), table.counts().reused), (None, 1), "the second pod is not in the table");
    table.pod_seen(second, now);
    assert_eq!(name(&table).as_deref(), Some("pod-2"));
}

#[test]
#[ignore = "needs root"]
fn root_every_hierarchy_is_walked_whole() {
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    assert_ne!(found.mode(), Mode::None);
    for hierarchy in found.legacy.iter().chain(&found.unified) {
        let group = Group::new(&hierarchy.mount_point, "whole");
        let deep = group.add("x/y/z");
        let mut walker = Walker::new(hierarchy.clone(), 100_000);
        let walk = walker.walk().unwrap();
        // Others make and remove groups meanwhile, but not this one.
        let id = fs::metadata(&deep).unwrap().ino();
        let path = deep.strip_prefix(&hierarchy.mount_point).unwrap();
        let expected = Cgroup { id, path: format!("/{}", path.display()) };
        assert!(walk.whole && walk.came.contains(&expected), "{}: {walk:?}", hierarchy.mount_point.display());
        // The kernel's own list of folders has no more than the walk.
        let listed = output(Command::new("find").arg(&group.0).args(["-type", "d"]));
        let ours =
            walk.came.iter().filter(|cgroup| cgroup.path.contains(&*group.0.file_name().unwrap().to_string_lossy()));
        assert_eq!(listed.lines().count(), ours.count());
    }
}

/// How many folders this process watches by inotify, as the kernel says.
fn watches() -> usize {
    let files = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum()
}

#[test]
#[ignore = "needs root"]
fn root_the_kernel_tells_of_groups_that_come_and_go() {
    let found = Hierarchies::here(None).unwrap_or_else(|error| panic!("{error}"));
    for hierarchy in found.legacy.into_iter().take(1).chain(found.unified) {
        let group = Group::new(&hierarchy.mount_point, "told");
        let before = watches();
        let mut walker = Walker::new(hierarchy, 100_000);
        let alarm = walker.watch().unwrap();
        walker.walk().unwrap();
        assert_eq!(watches() - before, walker.groups());
        let deep = group.add("pod1/container/init.scope");
        assert!(alarm.wait(Duration::from_secs(10)).unwrap());
        let id = |folder: &Path| fs::metadata(folder).unwrap().ino();
        let ids = [&deep, deep.parent().unwrap(), deep.parent().unwrap().parent().unwrap()].map(id);
        let came = walker.changes().unwrap().came;
        // Others may come meanwhile.
        assert!(ids.iter().all(|id| came.iter().any(|group| group.id == *id)), "{ids:?} {came:?}");
        for folder in deep.ancestors().take(3) {
            fs::remove_dir(folder).unwrap();
        }
        assert!(alarm.wait(Duration::from_secs(10)).unwrap());
        let gone = walker.changes().unwrap().gone;
        assert!(ids.iter().all(|id| gone.contains(id)), "{ids:?} {gone:?}");
        // No watch is left on what is gone.
        assert_eq!(watches() - before, walker.groups());
        assert_eq!(walker.counts().walks, 1);
    }
}

/// In a cgroup namespace of its own, and a mount namespace in which all of version 2 is mounted beside its part, as in a pod
/// with the host's groups as a volume.
#[test]
#[ignore = "needs root"]
fn root_a_container_walks_the_whole_host() {
    if !witnesses("root_a_container_walks_the_whole_host", &["unshare"]) {
        return;
    }
    let hierarchy = unified();
    let group = Group::new(&hierarchy.mount_point, "host");
    let (own, other) = (group.add("own"), group.add("other"));
    let folder = kstrobe_testing::Folder::new();
    let [place, own_view] = ["host", "own"].map(|name| folder.0.join(name));
    [&place, &own_view].into_iter().for_each(|place| fs::create_dir(place).unwrap());
    let script = format!(
        "exec unshare --cgroup --mount --propagation private sh -c '\
         mount --bind {} {} && mount -t cgroup2 none {} && grep cgroup2 /proc/self/mountinfo'",
        hierarchy.mount_point.display(),
        place.display(),
        own_view.display()
    );
    let mountinfo = inside(&own, &script);
    let whole = Hierarchies::of(&mountinfo, Some(&place)).unified.unwrap_or_else(|| panic!("{mountinfo}"));
    assert!(whole.root.to_str().is_some_and(|root| root.starts_with("/..")), "{whole:?}");
    // Of all mounts, one that shows all.
    let chosen = Hierarchies::of(&mountinfo, None).unified.unwrap();
    assert_eq!(chosen.root, whole.root, "{mountinfo}");
    let part = Hierarchies::of(&mountinfo, Some(&own_view)).unified.unwrap_or_else(|| panic!("{mountinfo}"));
    assert_eq!(part.root, Path::new("/"));
    // Paths are the host's, whatever the way up is called.
    let outside = kstrobe_workloads::cgroups::Hierarchy { mount_point: hierarchy.mount_point, ..whole };
    let walk = Walker::new(outside, 100_000).walk().unwrap();
    let path = format!("/{}/other", group.0.file_name().unwrap().to_string_lossy());
    let expected = Cgroup { id: fs::metadata(&other).unwrap().ino(), path };
    assert!(walk.came.contains(&expected), "{walk:?}");
}
