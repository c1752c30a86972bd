//! Names of groups over time: early and late pods, removals, reused names and ids.

use kstrobe_workloads::{
    Container, Counts, Difference, Field, Owner, Pod, Selector, Settings, Table, Term, Wanted, Workload,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);

/// Sixty-four digits of one kind.
fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn uid(digit: char) -> String {
    let part = |length| digit.to_string().repeat(length);
    [8, 4, 4, 4, 12].map(part).join("-")
}

fn path(pod: char, container: char) -> String {
    format!("/kubepods/burstable/pod{}/{}", uid(pod), id(container))
}

/// A pod of the Deployment `web` in `shop`, with these containers.
fn pod(digit: char, name: &str, containers: &[(char, &str)]) -> Pod {
    Pod {
        uid: uid(digit).into(),
        config_hash: None,
        namespace: "shop".into(),
        name: name.into(),
        node: Some("node-1".into()),
        owner: Some(Owner { kind: "Deployment".into(), name: "web".into() }),
        main: containers.first().map(|(_, name)| (*name).into()),
        containers: containers
            .iter()
            .map(|(digit, name)| Container { id: id(*digit).into(), name: (*name).into(), running: true })
            .collect(),
    }
}

/// A table and its clock.
struct Story {
    table: Table,
    now: Instant,
}

impl Story {
    fn begin() -> Story {
        let settings = Settings { node: Some("node-1".into()), grace: GRACE, patience: PATIENCE };
        Story { table: Table::new(settings), now: Instant::now() }
    }

    fn after(&mut self, time: Duration) -> Vec<u64> {
        self.now += time;
        self.table.tick(self.now)
    }

    fn seen(&mut self, id: u64, path: &str) {
        self.table.cgroup_seen(id, path, self.now);
    }

    fn gone(&mut self, id: u64) {
        self.table.cgroup_gone(id, self.now);
    }

    fn pod(&mut self, pod: Pod) {
        self.table.pod_seen(pod, self.now);
    }

    /// `NAMESPACE/POD/CONTAINER/UNIT`, `-` for what there is not; `waits`.
    #[track_caller]
    fn is(&self, id: u64, expected: &str) {
        assert_eq!(shown(self.table.get(id).map(|workload| &**workload)), expected, "group {id}");
    }

    fn counts(&self) -> Counts {
        self.table.counts()
    }
}

fn shown(workload: Option<&Workload>) -> String {
    let Some(workload) = workload else { return "waits".to_owned() };
    let fields = [Field::Namespace, Field::Pod, Field::Container, Field::Unit];
    fields.map(|field| workload.get(field).unwrap_or("-")).join("/")
}

#[test]
fn a_group_before_its_pod_waits_and_one_after_does_not() {
    let mut story = Story::begin();
    story.seen(1, &path('a', '1'));
    story.is(1, "waits");
    assert_eq!(story.table.waiting(), 1);
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.is(1, "shop/web-1/nginx/-");
    story.pod(pod('b', "web-2", &[('2', "nginx")]));
    story.seen(2, &path('b', '2'));
    story.is(2, "shop/web-2/nginx/-");
    assert_eq!(story.counts(), Counts::default());
    let workload = story.table.get(2).unwrap();
    assert_eq!(workload.get(Field::Workload), Some("web"));
    assert_eq!(workload.get(Field::WorkloadKind), Some("Deployment"));
    assert_eq!(workload.get(Field::Node), Some("node-1"));
}

#[test]
fn a_container_that_the_status_does_not_have_yet() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[]));
    story.seen(1, &path('a', '1'));
    story.is(1, "waits");
    story.after(PATIENCE / 2);
    story.is(1, "waits");
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.is(1, "shop/web-1/nginx/-");
    assert_eq!(story.counts(), Counts::default());
}

#[test]
fn the_pods_own_group_and_its_sandbox_have_no_container() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &format!("/kubepods/burstable/pod{}", uid('a')));
    story.is(1, "shop/web-1/-/-");
    // The sandbox: an id that no status has.
    story.seen(2, &path('a', '0'));
    story.is(2, "waits");
    story.after(PATIENCE);
    story.is(2, "shop/web-1/-/-");
    assert_eq!(story.counts(), Counts::default());
    // CRI-O's sandbox and monitor can be told by their names.
    let slice = format!("/kubepods.slice/kubepods-pod{}.slice", uid('a').replace('-', "_"));
    story.seen(3, &format!("{slice}/crio-{}", id('0')));
    story.seen(4, &format!("{slice}/crio-conmon-{}.scope", id('1')));
    story.is(3, "shop/web-1/-/-");
    story.is(4, "shop/web-1/-/-");
}

#[test]
fn a_group_over_its_time_limit_is_shown_and_named_when_the_pod_comes() {
    let mut story = Story::begin();
    story.seen(1, &path('a', '1'));
    story.after(PATIENCE);
    story.is(1, "-/-/-/-");
    assert_eq!(story.table.get(1).unwrap().get(Field::Node), Some("node-1"));
    assert_eq!(story.table.waiting(), 0);
    assert_eq!(story.counts(), Counts { unresolved: 1, ..Counts::default() });
    story.after(PATIENCE);
    assert_eq!(story.counts().unresolved, 1, "counted once");
    // The pod comes without the container, then with it.
    story.pod(pod('a', "web-1", &[]));
    story.is(1, "shop/web-1/-/-");
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.is(1, "shop/web-1/nginx/-");
    assert_eq!(story.counts(), Counts { unresolved: 1, late: 2, ..Counts::default() });
}

#[test]
fn names_are_given_once() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &path('a', '1'));
    let before = story.table.get(1).unwrap().clone();
    // The owner changed, and the pod is deleted.
    story.pod(Pod { owner: None, ..pod('a', "web-1", &[('1', "nginx")]) });
    assert!(Arc::ptr_eq(&before, story.table.get(1).unwrap()));
    story.table.pod_gone(&uid('a'), story.now);
    story.after(GRACE * 2);
    assert!(Arc::ptr_eq(&before, story.table.get(1).unwrap()));
    story.seen(1, &path('a', '1'));
    assert!(Arc::ptr_eq(&before, story.table.get(1).unwrap()));
}

#[test]
fn a_group_keeps_its_names_for_the_grace_period() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &path('a', '1'));
    story.gone(1);
    story.table.pod_gone(&uid('a'), story.now);
    assert_eq!(story.after(GRACE - Duration::from_nanos(1)), [0; 0]);
    story.is(1, "shop/web-1/nginx/-");
    // A repeated removal changes nothing.
    story.gone(1);
    assert_eq!(story.after(Duration::from_nanos(1)), [1]);
    assert_eq!(story.table.get(1), None);
    assert_eq!(story.counts(), Counts { expired: 1, ..Counts::default() });
    assert_eq!((story.table.pods(), story.table.groups().count()), (0, 0));
}

#[test]
fn a_group_that_a_walk_missed_goes_on() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &path('a', '1'));
    story.gone(1);
    story.after(GRACE / 2);
    story.seen(1, &path('a', '1'));
    assert_eq!(story.after(GRACE), [0; 0]);
    story.is(1, "shop/web-1/nginx/-");
    assert_eq!(story.counts(), Counts::default());
}

#[test]
fn an_id_that_is_reused_never_has_the_old_name() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &path('a', '1'));
    story.is(1, "shop/web-1/nginx/-");
    story.gone(1);
    // In the grace period, while the new pod is unknown.
    story.seen(1, &path('b', '2'));
    story.is(1, "waits");
    story.pod(pod('b', "pay-1", &[('2', "app")]));
    story.is(1, "shop/pay-1/app/-");
    // Without a removal event; a host service needs no pod.
    story.seen(1, "/system.slice/ssh.service");
    story.is(1, "-/-/-/ssh.service");
    // The old ends count no more.
    assert_eq!(story.after(GRACE * 2), [0; 0]);
    assert_eq!(story.counts(), Counts { reused: 2, ..Counts::default() });
}

#[test]
fn a_pod_that_is_replaced_under_its_name() {
    // A StatefulSet: the same name, another uid, another container.
    let mut story = Story::begin();
    story.pod(pod('a', "db-0", &[('1', "db")]));
    story.seen(1, &path('a', '1'));
    story.gone(1);
    story.table.pod_gone(&uid('a'), story.now);
    story.seen(2, &path('b', '2'));
    story.is(2, "waits");
    story.pod(pod('b', "db-0", &[('2', "db")]));
    story.is(1, "shop/db-0/db/-");
    story.is(2, "shop/db-0/db/-");
    assert_eq!(story.after(GRACE), [1]);
    story.is(2, "shop/db-0/db/-");
}

#[test]
fn a_container_that_is_restarted() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx"), ('2', "proxy")]));
    story.seen(1, &path('a', '1'));
    story.gone(1);
    story.seen(3, &path('a', '3'));
    story.is(3, "waits");
    // The status has the new one, and the old one as its last state.
    story.pod(pod('a', "web-1", &[('3', "nginx"), ('1', "nginx"), ('2', "proxy")]));
    story.is(1, "shop/web-1/nginx/-");
    story.is(3, "shop/web-1/nginx/-");
}

#[test]
fn static_pods_are_found_by_the_hash_of_their_configuration() {
    let hash = |digit: char| -> Arc<str> { digit.to_string().repeat(32).into() };
    let mirror = |digit, hash: Arc<str>| Pod { config_hash: Some(hash), ..pod(digit, "etcd", &[('1', "etcd")]) };
    let path = |hash: &str| format!("/kubepods/pod{hash}/{}", id('1'));
    let mut story = Story::begin();
    story.seen(1, &path(&hash('e')));
    story.is(1, "waits");
    story.pod(mirror('a', hash('e')));
    story.is(1, "shop/etcd/etcd/-");
    // The mirror is made anew; the news of its predecessor's end comes last.
    story.pod(mirror('b', hash('e')));
    story.table.pod_gone(&uid('a'), story.now);
    story.after(GRACE * 2);
    story.seen(2, &path(&hash('e')));
    story.is(2, "shop/etcd/etcd/-");
    // The configuration changes: the old hash means nothing any more.
    story.pod(mirror('b', hash('f')));
    story.seen(3, &path(&hash('f')));
    story.is(3, "shop/etcd/etcd/-");
    story.seen(4, &format!("{}/x", path(&hash('e'))));
    story.is(4, "waits");
}

#[test]
fn uids_with_dashes_and_without() {
    let mut story = Story::begin();
    story.pod(Pod { uid: "my_static-pod".into(), ..pod('a', "p", &[('1', "c")]) });
    let scope = format!("cri-containerd-{}.scope", id('1'));
    story.seen(1, &format!("/kubepods.slice/kubepods-podmy_static_pod.slice/{scope}"));
    story.seen(2, &format!("/kubepods/podmy_static-pod/{}", id('1')));
    story.is(1, "shop/p/c/-");
    story.is(2, "shop/p/c/-");
    story.table.pod_gone("my_static-pod", story.now);
    story.gone(1);
    story.gone(2);
    story.after(GRACE);
    assert_eq!(story.table.pods(), 0);
}

#[test]
fn a_force_deleted_pod_names_its_new_containers() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.seen(1, &path('a', '1'));
    story.table.pod_gone(&uid('a'), story.now);
    story.after(GRACE * 3);
    story.seen(2, &format!("{}/worker", path('a', '1')));
    story.is(2, "shop/web-1/nginx/-");
    story.gone(1);
    story.gone(2);
    story.after(GRACE);
    story.seen(3, &path('a', '1'));
    story.is(3, "waits");
}

#[test]
fn a_pod_list_replaces_earlier_pods() {
    let mut story = Story::begin();
    story.table.pods_are(vec![pod('a', "a", &[('1', "c")]), pod('b', "b", &[('2', "c")])], story.now);
    assert_eq!(story.table.pods(), 2);
    story.after(GRACE);
    story.table.pods_are(vec![pod('b', "b", &[('2', "c")]), pod('c', "c", &[('3', "c")])], story.now);
    story.seen(1, &path('a', '1'));
    story.is(1, "shop/a/c/-");
    story.gone(1);
    story.after(GRACE);
    assert_eq!(story.table.pods(), 2);
    story.seen(3, &path('c', '3'));
    story.is(3, "shop/c/c/-");
    // It is there again.
    story.table.pods_are(vec![], story.now);
    story.table.pods_are(vec![pod('c', "c", &[('3', "c")])], story.now);
    story.after(GRACE);
    assert_eq!(story.table.pods(), 1);
}

#[test]
fn hosts_have_units_and_containers_without_pods() {
    let mut story = Story::begin();
    story.seen(1, "/");
    story.seen(2, "/system.slice/ssh.service");
    let docker = format!("/system.slice/docker-{}.scope/init.scope", id('d'));
    story.seen(3, &docker);
    story.seen(4, "/lxc.payload.web-1");
    story.seen(5, &format!("/system.slice/web.service/libpod-payload-{}", id('e')));
    story.seen(6, &format!("/ecs/{0}/{0}-1234567890", "f".repeat(32)));
    story.is(1, "-/-/-/-");
    story.is(2, "-/-/-/ssh.service");
    story.is(4, "-/-/web-1/-");
    story.is(6, &format!("-/-/{}-1234567890/-", "f".repeat(32)));
    // These may still turn out to be a pod's.
    story.is(3, "waits");
    story.after(PATIENCE);
    story.is(3, "-/-/dddddddddddd/-");
    story.is(5, "-/-/eeeeeeeeeeee/web.service");
    assert_eq!((story.table.waiting(), story.counts()), (0, Counts::default()));
}

#[test]
fn a_kubelet_without_groups_for_pods() {
    // `cgroupsPerQOS: false`: containers lie where the runtime puts them by itself.
    let mut story = Story::begin();
    story.seen(1, &format!("/system.slice/docker-{}.scope", id('1')));
    story.is(1, "waits");
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    story.is(1, "shop/web-1/nginx/-");
    // The pod lives as long as its groups, and its containers lead nowhere afterwards.
    story.table.pod_gone(&uid('a'), story.now);
    story.after(GRACE * 2);
    story.seen(2, &format!("/system.slice/docker-{}.scope/x", id('1')));
    story.is(2, "shop/web-1/nginx/-");
    story.gone(1);
    story.gone(2);
    story.after(GRACE);
    story.seen(3, &format!("/system.slice/docker-{}.scope", id('1')));
    story.is(3, "waits");
    assert_eq!(story.table.pods(), 0);
}

#[test]
fn without_a_source_of_pods_groups_are_named_at_once() {
    let settings = Settings { node: None, grace: GRACE, patience: Duration::ZERO };
    let mut story = Story { table: Table::new(settings), now: Instant::now() };
    story.seen(1, &path('a', '1'));
    story.is(1, "-/-/-/-");
    story.seen(2, &format!("/docker/{}", id('d')));
    story.is(2, "-/-/dddddddddddd/-");
}

fn term(field: Field, values: &[&str], negated: bool) -> Term {
    Term { field, wanted: Wanted::OneOf(values.iter().map(|value| (*value).into()).collect()), negated }
}

fn begins(field: Field, prefix: &str, negated: bool) -> Term {
    Term { field, wanted: Wanted::Begin(prefix.into()), negated }
}

fn selector(terms: Vec<Term>) -> Selector {
    Selector { terms }
}

#[test]
fn selectors_match_if_all_terms_match() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[('1', "nginx"), ('2', "istio-proxy")]));
    story.pod(Pod { namespace: "pay".into(), ..pod('b', "pay-1", &[('3', "app")]) });
    for (id, pod, container) in [(1, 'a', '1'), (2, 'a', '2'), (3, 'b', '3')] {
        story.seen(id, &path(pod, container));
    }
    story.seen(4, "/system.slice/ssh.service");
    story.seen(5, &path('c', '5'));
    for (terms, text, expected) in [
        (vec![], "", vec![1, 2, 3, 4]),
        (vec![term(Field::Namespace, &["shop"], false)], r#"namespace == "shop""#, vec![1, 2]),
        (vec![term(Field::Namespace, &["shop", "pay"], false)], r#"namespace in ["shop", "pay"]"#, vec![1, 2, 3]),
        (vec![term(Field::Namespace, &["shop"], true)], r#"namespace != "shop""#, vec![3, 4]),
        (vec![term(Field::Namespace, &["shop", "pay"], true)], r#"!(namespace in ["shop", "pay"])"#, vec![4]),
        (vec![term(Field::Pod, &[""], false)], r#"pod == """#, vec![4]),
        (vec![term(Field::Unit, &["ssh.service"], false)], r#"unit == "ssh.service""#, vec![4]),
        (
            vec![term(Field::CgroupPath, &["/system.slice/ssh.service"], false)],
            r#"cgroup_path == "/system.slice/ssh.service""#,
            vec![4],
        ),
        (
            vec![begins(Field::CgroupPath, "/kubepods", false)],
            r#"starts_with(cgroup_path, "/kubepods")"#,
            vec![1, 2, 3],
        ),
        (vec![term(Field::Workload, &["web"], false)], r#"workload == "web""#, vec![1, 2, 3]),
        (
            vec![term(Field::Workload, &["web"], false), term(Field::Container, &["istio-proxy"], true)],
            r#"workload == "web" && container != "istio-proxy""#,
            vec![1, 3],
        ),
        (vec![term(Field::Namespace, &[], false)], "namespace in []", vec![]),
        (vec![term(Field::Container, &["ngin"], false)], r#"container == "ngin""#, vec![]),
        (vec![begins(Field::Container, "ngin", false)], r#"starts_with(container, "ngin")"#, vec![1]),
        (vec![begins(Field::Container, "ngin", true)], r#"!starts_with(container, "ngin")"#, vec![2, 3, 4]),
    ] {
        let selector = selector(terms);
        assert_eq!(selector.to_string(), text);
        assert_eq!(story.table.decide(&selector).passes, BTreeSet::from_iter(expected), "{text}");
    }
}

#[test]
fn matches_change_with_pods_and_groups() {
    let mut story = Story::begin();
    let shop = selector(vec![term(Field::Namespace, &["shop"], false)]);
    let mut set = BTreeSet::new();
    let mut change = |story: &Story| {
        let new = story.table.decide(&shop).passes;
        let difference = Difference::between(&set, &new);
        assert_eq!(difference.is_empty(), set == new);
        set = new;
        (difference.added, difference.removed)
    };
    story.seen(1, &path('a', '1'));
    assert_eq!(change(&story), (vec![], vec![]));
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    assert_eq!(change(&story), (vec![1], vec![]));
    // Its last task has ended before it.
    story.gone(1);
    assert_eq!(change(&story), (vec![], vec![1]));
    story.pod(pod('b', "web-2", &[('2', "nginx")]));
    story.seen(2, &path('b', '2'));
    story.after(GRACE);
    assert_eq!(change(&story), (vec![2], vec![]));
    story.seen(2, "/system.slice/ssh.service");
    assert_eq!(change(&story), (vec![], vec![2]));
}

#[test]
fn a_container_without_its_name_is_decided_by_its_pod() {
    let mut story = Story::begin();
    story.pod(pod('a', "web-1", &[]));
    story.seen(1, &path('a', '1'));
    story.seen(2, &path('b', '2'));
    story.is(1, "waits");
    let decided = |story: &Story, terms| {
        let decided = story.table.decide(&selector(terms));
        (Vec::from_iter(decided.passes), Vec::from_iter(decided.undecided))
    };
    let shop = || term(Field::Namespace, &["shop"], false);
    assert_eq!(decided(&story, vec![shop()]), (vec![1], vec![2]), "a pod that is not known can be any");
    assert_eq!(decided(&story, vec![term(Field::Namespace, &["bank"], false)]), (vec![], vec![2]));
    let sidecars = || vec![shop(), term(Field::Container, &["istio-proxy"], true)];
    assert_eq!(decided(&story, sidecars()), (vec![], vec![1, 2]));
    story.pod(pod('a', "web-1", &[('1', "nginx")]));
    assert_eq!(decided(&story, sidecars()), (vec![1], vec![2]));
    story.gone(1);
    assert_eq!(decided(&story, sidecars()), (vec![], vec![2]));
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Seen { id: u64, pod: char },
    Gone { id: u64 },
    PodSeen { pod: char, listed: bool },
    PodGone { pod: char },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let pod = || proptest::sample::select(vec!['a', 'b', 'c']);
    prop_oneof![
        (1u64..5, pod()).prop_map(|(id, pod)| Step::Seen { id, pod }),
        (1u64..5).prop_map(|id| Step::Gone { id }),
        (pod(), any::<bool>()).prop_map(|(pod, listed)| Step::PodSeen { pod, listed }),
        pod().prop_map(|pod| Step::PodGone { pod }),
        (0u64..80).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    /// Whatever the order of events: a group never has another pod's names, and the table's parts agree.
    #[test]
    fn no_group_has_the_name_of_another_pod(steps in proptest::collection::vec(step(), 0..60)) {
        let mut story = Story::begin();
        let mut lies: BTreeMap<u64, char> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Seen { id, pod } => {
                    story.seen(id, &path(pod, pod));
                    lies.insert(id, pod);
                }
                Step::Gone { id } => story.gone(id),
                Step::PodSeen { pod: digit, listed } => {
                    let containers = [(digit, "c")];
                    story.pod(pod(digit, &digit.to_string(), if listed { &containers } else { &[] }));
                }
                Step::PodGone { pod } => story.table.pod_gone(&uid(pod), story.now),
                Step::Wait { seconds } => {
                    for id in story.after(Duration::from_secs(seconds)) {
                        lies.remove(&id);
                    }
                }
            }
            for id in 1..5 {
                let name = story.table.get(id).and_then(|workload| workload.get(Field::Pod).map(str::to_owned));
                prop_assert!(name.is_none() || name == lies.get(&id).map(char::to_string), "{id} is {name:?}");
            }
            let all: BTreeSet<u64> = story.table.groups().map(|group| group.id).collect();
            prop_assert_eq!(&all, &lies.keys().copied().collect());
            let named = story.table.groups().filter(|group| group.workload.is_some()).count();
            prop_assert_eq!(named + story.table.waiting(), all.len());
            let decided = story.table.decide(&Selector::default());
            let living: BTreeSet<u64> = story.table.groups().filter(|group| !group.ended).map(|group| group.id).collect();
            let said = decided.passes.iter().chain(&decided.undecided).copied();
            prop_assert_eq!(&said.collect::<BTreeSet<_>>(), &living);
            // A group with its names is decided, and without a condition it passes.
            let named = story.table.groups().filter(|group| !group.ended && group.workload.is_some());
            let passes: BTreeSet<u64> = decided.passes.iter().copied().collect();
            prop_assert!(named.map(|group| group.id).collect::<BTreeSet<_>>().is_subset(&passes));
        }
        // In the end nothing is left behind.
        for id in 1..5 {
            story.gone(id);
        }
        story.table.pods_are(Vec::new(), story.now);
        story.after(GRACE);
        prop_assert_eq!((story.table.groups().count(), story.table.pods(), story.table.waiting()), (0, 0, 0));
    }
}
