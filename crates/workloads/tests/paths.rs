//! Paths of real runtimes, drivers and versions, and where they say a group belongs: each line of `tests/cases/*.txt` that
//! begins with `/` is read, and the indented lines below are what comes of it. `BLESS=1` rewrites those.

use kstrobe_workloads::{Place, place};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

fn shown(place: &Place) -> String {
    let Place { pod_uid, container_id, runtime, unit } = place;
    let runtime = runtime.map_or(String::new(), |runtime| format!(" ({runtime:?})"));
    let lines = [
        pod_uid.as_ref().map(|uid| format!("    pod {uid}\n")),
        container_id.as_ref().map(|id| format!("    container {id}{runtime}\n")),
        unit.as_ref().map(|unit| format!("    unit {unit}\n")),
    ];
    let text: String = lines.into_iter().flatten().collect();
    if text.is_empty() { "    nothing\n".to_owned() } else { text }
}

#[test]
fn real_paths_are_read_as_recorded() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut read = 0;
    for file in cases() {
        let recorded = std::fs::read_to_string(&file).unwrap();
        let mut text = String::new();
        for line in recorded.lines().filter(|line| !line.starts_with(' ')) {
            text.push_str(line);
            text.push('\n');
            if line.starts_with('/') {
                text.push_str(&shown(&place(line)));
                read += 1;
            }
        }
        if bless {
            std::fs::write(&file, &text).unwrap();
        }
        assert!(text == recorded || bless, "{}: BLESS=1 rewrites it to\n{text}", file.display());
    }
    assert!(read > 90, "only {read} paths");
}

/// Names that mean something, or nearly.
const WORDS: &[&str] = &[
    "kubepods",
    "kubepods.slice",
    "burstable",
    "kubepods-burstable.slice",
    "kubepods-burstable-pod73dc8baf_43a0_413e_aac2_5eb0868f6c1a.slice",
    "kubepods-pod.slice",
    "pod58662905-8ccc-11e7-a695-c85b76cda386",
    "podb53dfa9e2dc9b890f7fadb2770857b03",
    "pod",
    "crio-1659f887a192f3515dd9b91a41d274abf29ca49de3d2330869131b2d93b45b94",
    "crio-conmon-1659f887a192f3515dd9b91a41d274abf29ca49de3d2330869131b2d93b45b94.scope",
    "cri-containerd-9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961.scope",
    "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d",
    "a.slice:cri-containerd:9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d",
    ".slice:cri-containerd:",
    "docker",
    "libpod_parent",
    "lxc",
    "lxc.payload.",
    "lxc.monitor.web",
    "machine.slice",
    "machine-\\x.scope",
    "garden",
    "be6bc1a0-90f5-4ab1-5c6b-2a0b",
    "system.slice",
    "nginx.service",
    "init.scope",
    "container",
    "..",
    ".",
    "",
    ".slice",
    ".scope",
    "-pod",
    " (deleted)",
];

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(WORDS).prop_map(str::to_owned),
        // Pieces of names, put together differently.
        1 => proptest::collection::vec(proptest::sample::select(WORDS), 2..4).prop_map(|words| words.concat()),
        1 => "[^/\n]{0,20}",
    ]
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(name(), 0..8).prop_map(|names| format!("/{}", names.join("/")))
}

/// A container's group in a pod, as some runtime and driver name it.
fn in_pod() -> impl Strategy<Value = (String, String, String)> {
    let hex = |digits: usize| proptest::string::string_regex(&format!("[0-9a-f]{{{digits}}}")).unwrap();
    let uid = (hex(8), hex(4), hex(4), hex(4), hex(12)).prop_map(|(a, b, c, d, e)| format!("{a}-{b}-{c}-{d}-{e}"));
    let uid = prop_oneof![3 => uid, 1 => hex(32)];
    let root = proptest::sample::select(vec!["", "/kubelet", "/docker", "/system.slice/containerd.service"]);
    let class = proptest::sample::select(vec!["", "burstable", "besteffort"]);
    let prefix = proptest::sample::select(vec!["cri-containerd-", "crio-", "docker-", "libpod-"]);
    (uid, hex(64), root, class, prefix, any::<bool>(), any::<bool>()).prop_map(
        |(uid, id, root, class, prefix, systemd, bare)| {
            let path = if systemd {
                let (slice, class) = match class {
                    "" => ("kubepods".to_owned(), String::new()),
                    class => (format!("kubepods-{class}"), format!("/kubepods-{class}.slice")),
                };
                format!("{root}/kubepods.slice{class}/{slice}-pod{}.slice/{prefix}{id}.scope", uid.replace('-', "_"))
            } else {
                let class = if class.is_empty() { String::new() } else { format!("/{class}") };
                format!("{root}/kubepods{class}/pod{uid}/{}{id}", if bare { "" } else { prefix })
            };
            (path, uid, id)
        },
    )
}

proptest! {
    #[test]
    fn no_path_panics(path in path(), raw in ".{0,80}") {
        let found = place(&path);
        // What it finds is never empty, and in a pod there is no unit.
        prop_assert!(found.pod_uid.as_deref() != Some("") && found.container_id.as_deref() != Some(""));
        prop_assert!(found.pod_uid.is_none() || found.unit.is_none(), "{path}: {found:?}");
        prop_assert!(found.container_id.is_some() || found.runtime.is_none(), "{path}: {found:?}");
        place(&raw);
    }

    #[test]
    fn all_drivers_and_runtimes_name_the_same((path, uid, id) in in_pod()) {
        let found = place(&path);
        prop_assert_eq!(found.pod_uid.as_deref(), Some(&*uid), "{}", path);
        prop_assert_eq!(found.container_id.as_deref(), Some(&*id), "{}", path);
    }

    /// Whatever a container makes below itself, also another pod's whole path.
    #[test]
    fn a_nested_group_belongs_to_its_container((outer, _, _) in in_pod(), (inner, _, _) in in_pod(), nested in path()) {
        prop_assert_eq!(place(&format!("{outer}{nested}")), place(&outer));
        prop_assert_eq!(place(&format!("{outer}{nested}{inner}")), place(&outer));
    }

    /// A reader in another cgroup namespace, and a group that is gone.
    #[test]
    fn the_way_there_does_not_matter(path in path(), ups in 0usize..4) {
        let found = place(&path);
        prop_assert_eq!(&place(&format!("{}{path}", "/..".repeat(ups))), &found);
        prop_assert_eq!(&place(&format!("{path} (deleted)")), &found);
    }

    /// One more group below a container of no pod is still that container, if it is no pod.
    #[test]
    fn nested_in_a_plain_container(id in "[0-9a-f]{64}", nested in path()) {
        let outer = format!("/system.slice/docker-{id}.scope");
        let found = place(&format!("{outer}{nested}"));
        prop_assert!(found.pod_uid.is_some() || found == place(&outer), "{nested}: {found:?}");
    }
}
