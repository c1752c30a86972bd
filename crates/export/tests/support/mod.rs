//! Snapshots that grow, a receiver's settings, and waiting.
#![allow(dead_code, reason = "every test crate uses a part of it")]

use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_export::otlp::{Resource, Temporality};
use kstrobe_export::push::exporter::{Retry, Tls};
use kstrobe_export::push::{Exporter, Kind, Reading};
use kstrobe_export::snapshot::{Descriptor, Family, Histograms, Kind as MetricKind, Series, Snapshot, Values};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub const SECOND_NS: u64 = 1_000_000_000;

/// A source of snapshots: each that is read has counted one event more in `grown`, and one observation of 3 ms more in
/// `kstrobe_wait_seconds`.
pub struct Counting {
    pub grown: AtomicU64,
    began: SystemTime,
    scheme: Arc<Scheme>,
}

impl Counting {
    pub fn new() -> Arc<Counting> {
        let classic = ["0.001", "0.01"].map(String::from).to_vec();
        let spec = BucketSpec { schema: 3, raw_per_unit: SECOND_NS, min: 1000, max: 16 * SECOND_NS, classic };
        let scheme = Arc::new(Scheme::new(&spec).unwrap());
        Arc::new(Counting { grown: AtomicU64::new(0), began: SystemTime::now(), scheme })
    }

    pub fn read(&self) -> Reading {
        let count = self.grown.fetch_add(1, Ordering::SeqCst) + 1;
        Reading { snapshot: self.snapshot(count), exemplars: Vec::new(), native_bucket_limit: 0 }
    }

    pub fn snapshot(&self, count: u64) -> Snapshot {
        let series = || vec![Series { labels: Arc::from([Arc::from("a")]), created: Some(self.began) }];
        let about = |name: &str, kind, unit: &str| {
            Arc::new(Descriptor {
                name: name.into(),
                help: "For a test.".into(),
                kind,
                unit: unit.into(),
                raw_per_unit: if unit == "seconds" { SECOND_NS } else { 1 },
                label_names: vec!["l".into()],
            })
        };
        let mut counts = vec![0; self.scheme.buckets()];
        counts[self.scheme.index(3_000_000)] = count;
        let histograms = Histograms { scheme: self.scheme.clone(), sums: vec![count * 3_000_000], counts };
        let family = |about, values| Family { about, columns: Arc::from([0]), series: series(), values };
        Snapshot {
            at: SystemTime::now(),
            families: vec![
                family(about("kstrobe_grown_total", MetricKind::Counter, ""), Values::Counters(vec![count])),
                family(about("kstrobe_wait_seconds", MetricKind::Histogram, "seconds"), Values::Histograms(histograms)),
            ],
        }
    }
}

/// Reports every 100 ms and hurries to try again.
pub fn receiver(kind: Kind, url: &str, temporality: Temporality) -> Exporter {
    Exporter {
        name: "test".into(),
        kind,
        url: url.parse().unwrap(),
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(20),
        headers: vec![("X-Scope-OrgID".into(), "7".into())],
        headers_file: None,
        gzip: true,
        tls: Tls::default(),
        retry: Retry {
            initial: Duration::from_millis(50),
            max: Duration::from_millis(200),
            multiplier: 1.5,
            jitter: 0.5,
        },
        temporality,
        queue_bytes: 64 << 20,
        resource: Resource { attributes: vec![("service.name".into(), "kstrobe".into())], version: "0".into() },
        logs: false,
        traces: false,
    }
}

/// Waits for something that must come; a minute is the end of patience, not a measure.
pub async fn until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
