//! Series whose labels are names of cgroups: they wait, they end, and what was counted stays.

use super::tests::{at, counters, descriptor, field};
use super::*;
use crate::metrics::workload_names::Timeouts;
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_ebpf::layout::{Cell, CellKind, MapId};
use kstrobe_ebpf::typed::{CgroupName, Ty};
use kstrobe_export::snapshot::Number;
use kstrobe_workloads::Workload;

fn table(labels: &[CgroupName], kinds: Vec<CellKind>) -> Table {
    let key = labels.iter().map(|name| field(Ty::U64, 0, Decoder::Cgroup(*name))).collect();
    let columns: Vec<u32> = (0..labels.len() as u32).collect();
    let mut offset = 0;
    let cell = |(metric, kind): (usize, CellKind)| {
        let at = offset;
        offset += kind.bytes();
        Cell { metric: metric as u32, offset: at, kind, labels: columns.clone() }
    };
    let cells = kinds.into_iter().enumerate().map(cell).collect();
    let index = Index::Hash { map: MapId(1), free: MapId(2), key_bytes: 8, fresh: None };
    Table { values: MapId(0), changes: None, shards: 1, slots: 8, overflow: Some(0), index, key, cells }
}

/// A node whose cgroups a test names.
struct Node {
    born: Moment,
    series: TableSeries,
    names: Names,
    workload_names: Arc<WorkloadNames>,
    known: HashMap<u64, Option<Arc<Workload>>>,
}

impl Node {
    fn new(table: Table) -> Node {
        let born = Moment::now();
        let names = ["kstrobe_x_total", "kstrobe_y", "kstrobe_z"];
        let texts: Vec<String> = table.key.iter().map(|field| format!("{:?}", field.decoder)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let about = names[..table.cells.len()].iter().map(|name| descriptor(name, &texts)).collect();
        let timeouts = Timeouts { wait: Duration::from_secs(30), grace: Duration::from_secs(60) };
        let workload_names = Arc::new(WorkloadNames::new(timeouts));
        let names = Names::new().with_workload_names(workload_names.clone());
        let series = TableSeries::new(table, about, Duration::from_secs(900), born);
        Node { born, series, names, workload_names, known: HashMap::new() }
    }

    fn tell(&mut self, seconds: u64) {
        self.workload_names.publish(self.known.clone(), Some(at(self.born, seconds).mono));
    }

    fn named(&mut self, id: u64, pod: &str, seconds: u64) {
        let (pod, namespace) = (Some(pod.into()), Some("shop".into()));
        self.known.insert(id, Some(Arc::new(Workload { pod, namespace, ..Workload::default() })));
        self.tell(seconds);
    }

    fn unnamed(&mut self, id: u64, seconds: u64) {
        self.known.insert(id, None);
        self.tell(seconds);
    }

    fn forgotten(&mut self, id: u64, seconds: u64) {
        self.known.remove(&id);
        self.tell(seconds);
    }

    /// Reads `(cgroup, slot)` with these words.
    fn read(&mut self, words: &[u64], index: &[(u64, u32)], seconds: u64) -> Vec<Family> {
        let keys: Vec<_> = index.iter().map(|(id, slot)| (id.to_le_bytes(), *slot)).collect();
        let index = keys.iter().map(|(key, slot)| (key.as_slice(), *slot));
        self.series.read(words, index, &mut self.names, at(self.born, seconds)).unwrap()
    }

    fn ended(&self, seconds: u64) -> Vec<u32> {
        self.series.ended(&self.names, at(self.born, seconds).mono).into_iter().map(|e| e.slot).collect()
    }
}

fn text(families: &[Family]) -> String {
    let row = |(labels, value): (Vec<&str>, u64)| format!("{}={value}", labels.join("/"));
    counters(&families[0]).into_iter().map(row).collect::<Vec<_>>().join(" ")
}

fn words(values: &[u64]) -> Vec<u64> {
    let mut words = vec![0; 8];
    words[..values.len()].copy_from_slice(values);
    words
}

#[test]
fn a_series_waits_for_its_name_but_not_for_ever() {
    let mut node = Node::new(table(&[CgroupName::Pod], vec![CellKind::Counter]));
    let (counts, index) = (words(&[0, 5, 7]), [(10, 1), (11, 2)]);
    node.named(10, "web-0", 0);
    node.unnamed(11, 0);
    assert_eq!(text(&node.read(&counts, &index, 1)), "web-0=5");
    assert_eq!(node.series.waiting(), 1);
    assert_eq!(text(&node.read(&counts, &index, 30)), "web-0=5", "29 seconds");
    assert_eq!(text(&node.read(&counts, &index, 31)), "=7 web-0=5", "shown without");
    assert_eq!((node.series.waiting(), node.ended(32)), (0, vec![]));
    // What it counts from now on has the name: the key is given back, and comes again.
    node.named(11, "web-1", 33);
    assert_eq!(node.ended(33), [2]);
    node.series.evict(&[2], counts.as_slice());
    assert_eq!(text(&node.read(&words(&[0, 5, 2]), &[(10, 1), (11, 2)], 34)), "=7 web-0=5 web-1=2");
}

#[test]
fn a_name_that_comes_in_time_is_the_only_one_that_is_shown() {
    let mut node = Node::new(table(&[CgroupName::Namespace, CgroupName::Pod], vec![CellKind::Counter]));
    node.unnamed(10, 0);
    assert_eq!(text(&node.read(&words(&[0, 5]), &[(10, 1)], 1)), "");
    node.named(10, "web-0", 2);
    let families = node.read(&words(&[0, 9]), &[(10, 1)], 3);
    assert_eq!(text(&families), "shop/web-0=9");
    assert_eq!(families[0].series[0].created, Some(at(node.born, 1).wall), "it counted since it was seen");
}

#[test]
fn what_nobody_saw_is_shown_without_a_name_and_goes() {
    let mut node = Node::new(table(&[CgroupName::Pod], vec![CellKind::Counter]));
    node.tell(0);
    let (counts, index) = (words(&[0, 5]), [(99, 1)]);
    assert_eq!(text(&node.read(&counts, &index, 1)), "", "it may be new");
    node.tell(2);
    assert_eq!(text(&node.read(&counts, &index, 3)), "=5", "somebody has looked: it is gone");
    assert_eq!(node.ended(70), Vec::<u32>::new(), "no walk since");
    node.tell(63);
    assert_eq!(node.ended(70), [1]);
    // It may only not be seen from here: what it counts goes on.
    node.series.evict(&[1], counts.as_slice());
    assert_eq!(text(&node.read(&words(&[]), &[], 71)), "=5");
    node.tell(72);
    node.read(&words(&[0, 2]), &index, 71);
    assert_eq!(text(&node.read(&words(&[0, 2]), &index, 73)), "=7");
    node.series.evict(&[1], words(&[0, 2]).as_slice());
    assert_eq!(text(&node.read(&words(&[]), &[], 900)), "=7");
    assert_eq!(text(&node.read(&words(&[]), &[], 971)), "=7", "shown once more");
    assert_eq!(text(&node.read(&words(&[]), &[], 972)), "", "as long as any series that does not change");
}

#[test]
fn what_belongs_to_no_cgroup_neither_waits_nor_ends() {
    let mut node = Node::new(table(&[CgroupName::Pod], vec![CellKind::Counter]));
    assert_eq!(text(&node.read(&words(&[0, 5]), &[(0, 1)], 1)), "=5");
    node.tell(1000);
    assert_eq!(node.ended(1001), Vec::<u32>::new());
}

#[test]
fn counts_of_cgroups_that_end_stay_while_others_have_their_series() {
    let mut node = Node::new(table(&[CgroupName::Namespace], vec![CellKind::Counter]));
    for id in [10, 11] {
        node.named(id, "web", 0);
    }
    let mut index = vec![(10, 1), (11, 2)];
    assert_eq!(text(&node.read(&words(&[0, 100, 20]), &index, 1)), "shop=120");
    node.forgotten(10, 70);
    assert_eq!(node.ended(70), [1]);
    // Three more came between the last reading and its end.
    node.series.evict(&[1], words(&[0, 103, 20]).as_slice());
    index.remove(0);
    assert_eq!(text(&node.read(&words(&[0, 0, 21]), &index, 71)), "shop=124");
    // A new one gets the slot of the old.
    node.named(12, "web", 72);
    index.push((12, 1));
    assert_eq!(text(&node.read(&words(&[0, 1, 21]), &index, 73)), "shop=125");
    for id in [11, 12] {
        node.forgotten(id, 140);
    }
    assert_eq!(node.ended(140), [1, 2]);
    node.series.evict(&[1, 2], words(&[0, 1, 21]).as_slice());
    assert!(node.read(&words(&[]), &[], 141)[0].is_empty(), "a series that no cgroup has is gone");
    assert_eq!((node.series.keys(), node.series.evicted()), (0, 3));
}

#[test]
fn an_idle_rest_goes_with_its_series() {
    let mut node = Node::new(table(&[CgroupName::Namespace], vec![CellKind::Counter]));
    node.named(10, "a", 0);
    node.named(11, "b", 0);
    node.read(&words(&[0, 1, 2]), &[(10, 1), (11, 2)], 1);
    node.series.evict(&[1], words(&[0, 1, 2]).as_slice());
    node.read(&words(&[0, 0, 2]), &[(11, 2)], 2);
    let idle: Vec<u32> = node.series.tick(at(node.born, 901).mono).into_iter().map(|e| e.slot).collect();
    assert_eq!(idle, [2], "moving counts into the rest is no change");
    node.series.evict(&[2], words(&[0, 0, 2]).as_slice());
    assert!(node.read(&words(&[]), &[], 902)[0].is_empty());
}

#[test]
fn histograms_keep_their_buckets_and_gauges_nothing() {
    let spec = BucketSpec { schema: 0, raw_per_unit: 1, min: 1, max: 2, classic: vec![] };
    let scheme = Arc::new(Scheme::new(&spec).unwrap());
    let buckets = scheme.buckets();
    let kinds = vec![CellKind::Counter, CellKind::Histogram(scheme), CellKind::Gauge { signed: false }];
    let table = table(&[CgroupName::Namespace], kinds);
    let stride = fold::record_words(&table);
    let mut node = Node::new(table);
    node.named(10, "a", 0);
    node.named(11, "b", 0);
    let mut words = vec![0u64; 8 * stride];
    for (slot, n) in [(1, 3), (2, 5)] {
        let record = &mut words[slot * stride..][..stride];
        record[0] = n;
        record[1] = 10 * n;
        record[2..2 + buckets].fill(n);
        record[2 + buckets] = n;
        record[3 + buckets] = 1;
    }
    let both = node.read(&words, &[(10, 1), (11, 2)], 1);
    node.series.evict(&[2], words.as_slice());
    words[2 * stride..3 * stride].fill(0);
    let rest = node.read(&words, &[(10, 1)], 2);
    assert_eq!((&both[0].values, &both[1].values), (&rest[0].values, &rest[1].values));
    let Values::Histograms(histograms) = &rest[1].values else { panic!("histograms") };
    assert_eq!((histograms.sums[0], histograms.counts_of(0)), (80, vec![8; buckets].as_slice()));
    assert_eq!(both[2].values, Values::Gauges(vec![Number::Unsigned(5)]));
    assert_eq!(rest[2].values, Values::Gauges(vec![Number::Unsigned(3)]), "a last value ends with its cgroup");
}

#[test]
fn an_id_that_is_another_cgroups_now_does_not_keep_its_name() {
    let mut node = Node::new(table(&[CgroupName::Pod], vec![CellKind::Counter]));
    node.named(10, "old", 0);
    assert_eq!(text(&node.read(&words(&[0, 5]), &[(10, 1)], 1)), "old=5");
    node.named(10, "new", 2);
    assert_eq!(node.ended(2), [1]);
    node.series.evict(&[1], words(&[0, 5]).as_slice());
    assert_eq!(text(&node.read(&words(&[0, 1]), &[(10, 1)], 3)), "new=1");
}

#[test]
fn an_id_that_waits_for_other_names_is_given_back_before_they_come() {
    let mut node = Node::new(table(&[CgroupName::Namespace, CgroupName::Unit], vec![CellKind::Counter]));
    node.named(10, "old", 0);
    node.unnamed(11, 0);
    assert_eq!(text(&node.read(&words(&[0, 5]), &[(10, 1), (11, 2)], 1)), "shop/=5");
    assert_eq!(node.ended(1), Vec::<u32>::new(), "that it has no unit is no reason");
    // The group is gone, and another one with its id is there, which no walk has found yet.
    node.unnamed(10, 2);
    assert_eq!(node.ended(2), [1]);
    node.series.evict(&[1], words(&[0, 5]).as_slice());
    assert_eq!(text(&node.read(&words(&[0, 2]), &[(10, 1)], 3)), "", "absent is neither the old nor the new");
    node.named(10, "new", 4);
    assert_eq!(text(&node.read(&words(&[0, 3]), &[(10, 1)], 5)), "shop/=3");
}

#[test]
fn a_reading_that_nothing_lasts_after_waits_for_nothing() {
    let table = table(&[CgroupName::Pod], vec![CellKind::Sum { signed: false }]);
    let now = Moment::now();
    let mut once = TableSeries::once(table, vec![descriptor("kstrobe_x", &["pod"])], now);
    let mut words = vec![0u64; 16];
    (words[2], words[3]) = (4, 1);
    let key = 10u64.to_le_bytes();
    let read = once.read(words.as_slice(), [(key.as_slice(), 1)], &mut Names::new(), now).unwrap();
    assert_eq!(read[0].values, Values::Gauges(vec![Number::Unsigned(4)]));
}
