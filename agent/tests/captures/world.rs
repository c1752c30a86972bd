//! Snapshots, rules and captures made by hand.

use kstrobe::capture::Stop;
use kstrobe::capture::error::{Error, RequestError};
use kstrobe::capture::format::Format;
use kstrobe::capture::request::Request;
use kstrobe::capture::service::Engine;
use kstrobe::capture::store::Recorded;
use kstrobe_config::model::{Agent, SourceFile};
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_export::snapshot::{Descriptor, Family, Histograms, Kind, Number, Series, Values};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const MS: u64 = 1_000_000;

/// A folder that goes when it is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kstrobe-captures-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A configuration with the rules of `text` that keeps its captures in `folder`.
pub fn agent(folder: &Folder, captures: &str, text: &str) -> Agent {
    let text = format!("captures: {{ dir: {}, {captures} }}\n{text}", folder.0.join("captures").display());
    let file = Arc::new(SourceFile { name: "kstrobe.yaml".into(), text });
    let (agent, wrong) = kstrobe_config::agent(&file);
    assert!(wrong.is_empty(), "{}", kstrobe_config::render(&wrong));
    agent.unwrap()
}

/// Records a text: `events` names how, `quick` at once, `slow` until it is told to stop, anything else fails.
pub fn engine() -> Engine {
    let record = |request: &Request, folder: &Path, stop: &Stop| {
        let text = "trace ".repeat(100_000);
        std::fs::write(folder.join(Format::Dat.file()), &text)?;
        let how = request.events.first().map_or("", |event| event.pattern.as_str());
        let begun = Instant::now();
        while how == "slow" && !stop.is_stopped() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(2));
        }
        match how {
            "quick" | "slow" => Ok(Recorded { formats: vec![Format::Dat], records: 7, lost: 2, ..Recorded::default() }),
            other => Err(RequestError::NoEvent { pattern: other.to_owned(), similar: Vec::new() }.into()),
        }
    };
    let convert = |from: &Path, format: Format, to: &Path| match format {
        Format::Text => {
            let text = std::fs::read_to_string(from)?;
            Ok(std::fs::write(to, text.to_uppercase())?)
        }
        _ => Err(Error::Absent("nothing in it has stacks")),
    };
    Engine {
        record: Box::new(record),
        rescue: Box::new(|_| Err(Error::Absent("nothing is left"))),
        convert: Box::new(convert),
        on_finished: Box::new(|_, _, _| {}),
    }
}

/// Waits, but not for ever.
pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The buckets that latencies have by default, with classic bounds at 1, 10 and 100 ms.
pub fn scheme() -> Arc<Scheme> {
    let classic = ["0.001", "0.01", "0.1"].map(String::from).to_vec();
    let spec = BucketSpec { schema: 3, raw_per_unit: 1_000 * MS, min: 1000, max: 16_000 * MS, classic };
    Arc::new(Scheme::new(&spec).unwrap())
}

fn family(name: &str, kind: Kind, series: &[&[&str]], values: Values) -> Family {
    let seconds = name.contains("seconds");
    let about = Arc::new(Descriptor {
        name: name.into(),
        help: "Help.".into(),
        kind,
        unit: if seconds { "seconds".into() } else { String::new() },
        raw_per_unit: if seconds { 1_000 * MS } else { 1 },
        label_names: vec!["syscall".into(), "comm".into()],
    });
    let texts = |labels: &&[&str]| labels.iter().map(|text| Arc::from(*text)).collect();
    let series = series.iter().map(|labels| Series { labels: texts(labels), created: None }).collect();
    Family { about, columns: Arc::from([0, 1]), series, values }
}

/// A histogram of receiving calls: all observations of each series since the beginning, in nanoseconds.
pub fn histogram(scheme: &Arc<Scheme>, series: &[(&[&str], &[u64])]) -> Family {
    let labels: Vec<&[&str]> = series.iter().map(|(labels, _)| *labels).collect();
    let mut counts = vec![0; scheme.buckets() * series.len()];
    for (at, (_, observed)) in series.iter().enumerate() {
        for value in *observed {
            counts[at * scheme.buckets() + scheme.index(*value)] += 1;
        }
    }
    let sums = series.iter().map(|(_, observed)| observed.iter().sum()).collect();
    let values = Values::Histograms(Histograms { scheme: scheme.clone(), sums, counts });
    family("kstrobe_recv_wait_seconds", Kind::Histogram, &labels, values)
}

pub fn counter(name: &str, series: &[(&[&str], u64)]) -> Family {
    let labels: Vec<&[&str]> = series.iter().map(|(labels, _)| *labels).collect();
    family(name, Kind::Counter, &labels, Values::Counters(series.iter().map(|(_, n)| *n).collect()))
}

pub fn gauge(name: &str, series: &[(&[&str], Number)]) -> Family {
    let labels: Vec<&[&str]> = series.iter().map(|(labels, _)| *labels).collect();
    family(name, Kind::Gauge, &labels, Values::Gauges(series.iter().map(|(_, n)| *n).collect()))
}
