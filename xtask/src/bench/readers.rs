//! What open pages cost the agent: 5,000 series that change each second, and 50 browsers.

use super::agent::{self, Agent, Settings};
use super::scrapes::mib;
use super::{load, table};
use anyhow::Result;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

const SERIES: u32 = 5_000;
const BROWSERS: usize = 50;
/// What a metric's page shows.
const HISTORY: Duration = Duration::from_secs(300);
/// Time over which each row is measured.
const MEASURED: Duration = Duration::from_secs(30);
/// How often a page asks how the probes stand.
const STATUS: Duration = Duration::from_secs(3);
/// How often a metric's page asks for its heat map, and for its labels.
const MAP: Duration = Duration::from_secs(2);
const LABELS: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq)]
enum View {
    Overview,
    /// The last five minutes of it, in columns of a second.
    Metric,
}

/// Measures all and returns the report.
pub fn run(sources: &Path, build: &Path, binary: &Path, cpu: usize) -> Result<String> {
    let config = agent::only(build, "bench_series", Some(&sources.join("series.yaml")))?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    let end = AtomicBool::new(false);
    let rows = std::thread::scope(|scope| {
        let _ending = Ending(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let begun = Instant::now();
                load::call_under_names(cpu, (0..SERIES).collect()).expect("a load");
                std::thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
            }
        });
        // So that a metric's page has its five minutes.
        std::thread::sleep(HISTORY);
        let views = [
            (View::Overview, 0),
            (View::Overview, 1),
            (View::Overview, BROWSERS),
            (View::Metric, 1),
            (View::Metric, BROWSERS),
        ];
        views.into_iter().map(|(view, browsers)| measure(&agent, view, browsers)).collect::<Result<Vec<_>>>()
    });
    let rows = rows?;
    agent.stop()?;
    let text = format!("### Open pages\n\n{SERIES} series, each of which changes each second.\n\n");
    let head = ["browsers", "view", "answers a second", "agent CPU, % of one", "peak RSS, MiB"];
    Ok(text + &table::markdown(&head, rows.into_iter()))
}

fn measure(agent: &Agent, view: View, browsers: usize) -> Result<Vec<String>> {
    let (end, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ending = Ending(&end);
        let page = Page { address: agent.address(), end: &end, answers: &answers };
        (0..browsers).try_for_each(|_| page.open(scope, view))?;
        // The rest of what opening takes.
        std::thread::sleep(Duration::from_secs(3));
        let (before, came) = (agent.cpu_time()?, answers.load(Ordering::Relaxed));
        agent.forget_peak()?;
        std::thread::sleep(MEASURED);
        let of_a_second = |total: f64| total / MEASURED.as_secs_f64();
        let used = of_a_second(agent.cpu_time()?.saturating_sub(before).as_secs_f64());
        let came = of_a_second((answers.load(Ordering::Relaxed) - came) as f64);
        Ok(vec![
            browsers.to_string(),
            format!("{view:?}").to_lowercase(),
            format!("{came:.1}"),
            format!("{:.2}", used * 100.0),
            format!("{:.1}", mib(agent.peak_bytes()?)),
        ])
    })
}

/// Ends the threads when the measurement ends, also with an error.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn get(address: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    Ok(stream)
}

/// What a page asks, each answer of which is counted.
#[derive(Clone, Copy)]
struct Page<'a> {
    address: SocketAddr,
    end: &'a AtomicBool,
    answers: &'a AtomicU64,
}

impl Page<'_> {
    fn open<'scope>(self, scope: &'scope Scope<'scope, '_>, view: View) -> Result<()>
    where
        Self: 'scope,
    {
        scope.spawn(move || self.ask_each(STATUS, "/api/v1/probes"));
        match view {
            View::Overview => {
                let live = get(self.address, "/api/v1/live")?;
                scope.spawn(move || self.take(live));
            }
            View::Metric => {
                const METRIC: &str = "/api/v1/query?metric=bench_series_seconds&from=-300&to=0";
                scope.spawn(move || self.ask_each(MAP, METRIC));
                scope.spawn(move || self.ask_each(LABELS, &format!("{METRIC}&by=comm&top=10&sort=sum")));
            }
        }
        Ok(())
    }

    fn take(self, mut live: TcpStream) {
        let mut piece = vec![0; 256 << 10];
        while !self.end.load(Ordering::Relaxed) {
            let read = live.read(&mut piece).expect("a second");
            assert!(read > 0, "the agent ended an answer");
            let events = piece[..read].windows(13).filter(|part| part == b"event: second").count();
            self.answers.fetch_add(events as u64, Ordering::Relaxed);
        }
    }

    fn ask_each(self, pause: Duration, path: &str) {
        while !self.end.load(Ordering::Relaxed) {
            let mut answer = Vec::new();
            get(self.address, path).and_then(|mut stream| Ok(stream.read_to_end(&mut answer)?)).expect("an answer");
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&answer));
            self.answers.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(pause);
        }
    }
}
