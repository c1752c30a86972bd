//! Labels by pod with containers of real runtimes, in groups like a kubelet's, and an API server that speaks the real protocol.
//! Each container's load reads in pieces of a size of its own, and the size is a label: a series that has one pod's load and
//! another one's name is seen at whichever scrape it is there.

mod support;

use kstrobe_fake_api::{End, FakeApi, objects};
use kstrobe_testing::groups::controller;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::agent::Agent;
use support::containers::{Container, Driver, Node, PODMAN, RUNC};
use support::metrics::Metrics;
use support::{pods, wait_for, witnesses};

const LIMIT: Duration = Duration::from_secs(60);

/// Sizes that nobody else of this name reads in.
const PROBES: &str = "\
probe: container_reads
summary: Reads of the loads of this test, by pod and size.
at: syscall:read:enter
where: comm == \"busybox\" && args.count > 7000 && args.count < 7100
metrics:
  container_reads_total:
    type: counter
    labels: { namespace: namespace, pod: pod, container: container, workload: workload, bytes: args.count }
---
probe: shop_reads
summary: The same in one namespace alone.
at: syscall:read:enter
where: namespace == \"shop\" && comm == \"busybox\" && args.count > 7000 && args.count < 7100
metrics:
  shop_reads_total: { type: counter, labels: { pod: pod, bytes: args.count } }
";

/// Columns of a series, and what they must be.
const COLUMNS: [&str; 4] = ["namespace", "pod", "container", "workload"];
type Name = [String; 4];

/// The reads of one size.
struct Load {
    name: Name,
    /// As many were or are being made.
    calls: f64,
    /// As many were seen at the last scrape that had them.
    seen: f64,
}

/// Holds all that is scraped against the loads that were begun until then.
struct Watch<'a> {
    agent: &'a Agent,
    loads: Mutex<BTreeMap<u64, Load>>,
}

impl Watch<'_> {
    fn new(agent: &Agent) -> Watch<'_> {
        Watch { agent, loads: Mutex::default() }
    }

    fn loads(&self) -> MutexGuard<'_, BTreeMap<u64, Load>> {
        self.loads.lock().expect("no scrape failed")
    }

    /// So many more reads of this size are about to be made in the container of this name. Returns what makes them.
    fn begin(&self, name: &Name, bytes: u64, calls: u32) -> String {
        let mut loads = self.loads();
        let load = loads.entry(bytes).or_insert_with(|| Load { name: name.clone(), calls: 0.0, seen: 0.0 });
        load.calls += f64::from(calls);
        format!("busybox dd if=/dev/zero of=/dev/null bs={bytes} count={calls} 2>&1")
    }

    /// Every series has the name of the pod whose load it is, no more than that made, and never less than before.
    fn scrape(&self) -> Metrics {
        // One scrape after the other: else an older one may be looked at after a newer.
        let mut loads = self.loads();
        let now = self.agent.scrape();
        for (labels, count) in now.series("kstrobe_container_reads_total", &[]) {
            let load = loads.get_mut(&size(&labels["bytes"])).unwrap_or_else(|| panic!("nobody reads so: {labels:?}"));
            assert_eq!(COLUMNS.map(|column| labels[column].clone()), load.name, "{labels:?}");
            assert!(
                (load.seen..=load.calls).contains(&count),
                "{labels:?}: {count} after {} of {}",
                load.seen,
                load.calls
            );
            load.seen = count;
        }
        for (labels, count) in now.series("kstrobe_shop_reads_total", &[]) {
            let load = &loads[&size(&labels["bytes"])];
            assert_eq!(("shop", &labels["pod"]), (&*load.name[0], &load.name[1]), "{labels:?}");
            assert!(count <= load.calls, "{labels:?}: {count} of {}", load.calls);
        }
        now
    }

    /// Waits until all reads of these sizes have been seen.
    fn counted(&self, sizes: &[u64]) {
        wait_for(&format!("all reads of {sizes:?} bytes"), LIMIT, || {
            self.scrape();
            let loads = self.loads();
            sizes.iter().all(|bytes| loads[bytes].seen == loads[bytes].calls).then_some(())
        });
    }

    /// Scrapes as fast as it can while something is done.
    fn during(&self, work: impl FnOnce()) {
        /// Also when the work fails, as the scope waits for all.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.scrape();
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let _over = Over(&over);
            work();
        });
    }
}

fn size(label: &str) -> u64 {
    label.parse().expect("a number of bytes")
}

/// A pod in the API, and the one of its containers that runs here.
struct Pod {
    object: Value,
    uid: String,
    name: Name,
}

impl Pod {
    fn deployed(namespace: &str, deployment: &str, number: u32) -> Pod {
        let uid = Node::uid();
        Pod::new(objects::deployed(namespace, deployment, number, &uid), uid, "app", deployment)
    }

    fn stateful(namespace: &str, set: &str) -> Pod {
        let uid = Node::uid();
        Pod::new(objects::stateful(namespace, set, &uid), uid, "mysql", set)
    }

    fn new(object: Value, uid: String, container: &str, workload: &str) -> Pod {
        let text = |key: &str| object["metadata"][key].as_str().expect("text").to_owned();
        let name = [text("namespace"), text("name"), container.to_owned(), workload.to_owned()];
        Pod { object, uid, name }
    }

    /// A container of it by runc, which begins with this.
    fn runc<'a>(&self, node: &'a Node, driver: Driver, runtime: &str, load: &str) -> Container<'a> {
        let id = Node::id();
        node.runc(&driver.container(&self.uid, runtime, &id), &id, &and_wait(load))
    }

    fn podman<'a>(&self, node: &'a Node, load: &str) -> Container<'a> {
        node.podman(&Driver::Cgroupfs.pod(&self.uid), &and_wait(load))
    }

    /// The kubelet tells of the container.
    fn tell(&mut self, api: &FakeApi, scheme: &str, container: &Container<'_>) {
        objects::runs(&mut self.object, &self.name[2], &format!("{scheme}://{}", container.id));
        api.put(self.object.clone());
    }
}

fn and_wait(load: &str) -> String {
    format!("{load}; busybox sleep 280")
}

/// Runs a load in a container that is there, and takes its word for what it did.
fn load(container: &Container<'_>, script: &str) {
    let calls = script.split_once("count=").and_then(|(_, rest)| rest.split(' ').next()).expect("a count");
    let said = container.run(script);
    assert!(said.contains(&format!("{calls}+0 records in")), "{said}");
}

/// Three pods of two namespaces, by runc as containerd and as CRI-O start it, and by Podman.
#[test]
#[ignore = "needs root"]
fn root_loads_in_containers_are_counted_under_their_own_pods() {
    let test = "root_loads_in_containers_are_counted_under_their_own_pods";
    // Podman limits the number of processes.
    if !witnesses(test, &[RUNC, PODMAN].concat()) || !controller(test, "pids") {
        return;
    }
    let (api, node) = (FakeApi::start(), Node::new());
    let (agent, _folder) = pods::agent(&api, PROBES, "60s");
    let watch = Watch::new(&agent);
    let mut web = Pod::deployed("shop", "web", 1);
    let mut ledger = Pod::stateful("bank", "ledger");
    let mut teller = Pod::deployed("bank", "teller", 2);
    for pod in [&web, &ledger, &teller] {
        api.put(pod.object.clone());
    }
    watch.during(|| {
        // Each begins to read before anybody has told of its container.
        let in_web = web.runc(&node, Driver::Systemd, "cri-containerd", &watch.begin(&web.name, 7001, 3000));
        let in_ledger = ledger.podman(&node, &watch.begin(&ledger.name, 7002, 5000));
        let in_teller = teller.runc(&node, Driver::Cgroupfs, "crio", &watch.begin(&teller.name, 7003, 700));
        web.tell(&api, "containerd", &in_web);
        ledger.tell(&api, "containerd", &in_ledger);
        teller.tell(&api, "cri-o", &in_teller);
        watch.counted(&[7001, 7002, 7003]);
        // All at once, each in its container.
        let loads =
            [(&in_web, &web, 7001, 40_000), (&in_ledger, &ledger, 7002, 30_000), (&in_teller, &teller, 7003, 20_000)]
                .map(|(container, pod, bytes, calls)| (container, watch.begin(&pod.name, bytes, calls)));
        std::thread::scope(|scope| {
            for (container, script) in &loads {
                scope.spawn(|| load(container, script));
            }
        });
        watch.counted(&[7001, 7002, 7003]);
        // The containers were there when these were made: what was meant passed, and nothing else.
        let now = watch.scrape();
        let of_shop = now.sum("kstrobe_shop_reads_total", &[("bytes", "7001")]);
        assert!((40_000.0..=43_000.0).contains(&of_shop), "{of_shop}");
        assert_eq!(now.sum("kstrobe_shop_reads_total", &[]), of_shop);
    });
    // Each request showed the token, over TLS.
    let asked = api.asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.known), "{asked:?}");
    agent.stop();
}

/// A container is restarted, a pod replaced by one of the same name, and one starts while nobody can tell of it.
#[test]
#[ignore = "needs root"]
fn root_counts_stay_right_through_restarts_of_containers_and_pods() {
    let test = "root_counts_stay_right_through_restarts_of_containers_and_pods";
    // Podman limits the number of processes.
    if !witnesses(test, &[RUNC, PODMAN].concat()) || !controller(test, "pids") {
        return;
    }
    let (api, node) = (FakeApi::start(), Node::new());
    let (agent, _folder) = pods::agent(&api, PROBES, "60s");
    let watch = Watch::new(&agent);
    let mut web = Pod::deployed("shop", "web", 1);
    let mut ledger = Pod::stateful("bank", "ledger");
    let runc = |pod: &Pod, bytes, calls| {
        pod.runc(&node, Driver::Systemd, "cri-containerd", &watch.begin(&pod.name, bytes, calls))
    };
    let podman = |pod: &Pod, bytes, calls| pod.podman(&node, &watch.begin(&pod.name, bytes, calls));
    watch.during(|| {
        let first = runc(&web, 7011, 3000);
        let in_ledger = podman(&ledger, 7021, 5000);
        web.tell(&api, "containerd", &first);
        ledger.tell(&api, "containerd", &in_ledger);
        watch.counted(&[7011, 7021]);

        // Another container of the same pod.
        first.stop();
        let second = runc(&web, 7012, 900);
        web.tell(&api, "containerd", &second);
        watch.counted(&[7012]);

        // Another pod of the same name, by the other runtime; the old one's last calls come at its very end.
        load(&in_ledger, &watch.begin(&ledger.name, 7021, 77));
        in_ledger.stop();
        api.remove(&ledger.object);
        let old = std::mem::replace(&mut ledger, Pod::stateful("bank", "ledger"));
        assert_eq!((&old.name, old.uid == ledger.uid), (&ledger.name, false));
        api.put(ledger.object.clone());
        let in_ledger = runc(&ledger, 7022, 1100);
        ledger.tell(&api, "containerd", &in_ledger);
        watch.counted(&[7021, 7022]);

        // While the API server is away, and has forgotten when it is back what happened meanwhile, a pod starts and one ends.
        api.end_watches(End::Cut);
        api.set_down(true);
        second.stop();
        api.remove(&web.object);
        let mut teller = Pod::deployed("bank", "teller", 2);
        api.put(teller.object.clone());
        let in_teller = podman(&teller, 7031, 600);
        teller.tell(&api, "containerd", &in_teller);
        load(&in_ledger, &watch.begin(&ledger.name, 7022, 200));
        watch.counted(&[7022]);
        let waiting = [("probe", "container_reads")];
        assert!(watch.scrape().sum("kstrobe_series_waiting", &waiting) >= 1.0, "nobody has told of it");
        api.compact();
        api.set_down(false);
        watch.counted(&[7031]);
        load(&in_teller, &watch.begin(&teller.name, 7031, 300));
        watch.counted(&[7031]);
        let gone = watch.scrape().sum("kstrobe_kubernetes_failures_total", &[("reason", "gone")]);
        assert!(gone >= 1.0, "the server said 410");

        // What has ended goes, with all that it had counted; what has not stays.
        wait_for("the end of the old series", LIMIT, || {
            let now = watch.scrape();
            let there = |bytes: &str| now.has("kstrobe_container_reads_total", &[("bytes", bytes)]);
            assert!(there("7022") && there("7031"));
            (!["7011", "7012", "7021"].into_iter().any(there)).then_some(())
        });
    });
    agent.stop();
}
