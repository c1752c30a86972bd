//! The probes of memory against what the kernel itself says of the same load.

mod support;

use kstrobe_testing::groups::controller;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use support::agent::{Agent, Setup};
use support::disk::Disk;
use support::memory_group::{self, MemoryGroup};
use support::metrics::Metrics;
use support::trace_instance::TraceInstance;
use support::{Agreement, load, not_run, output};

const PAGE_BYTES: usize = 4096;
/// Pages that are touched for the first time.
const TOUCHED: usize = 3000;

/// Starts these shipped probes.
fn probes(names: &str) -> Agent {
    Setup { arguments: &["--enable", names], ..Setup::default() }.start()
}

/// Why a probe does not run; `None` if it does.
fn refusal(metrics: &Metrics, probe: &str) -> Option<String> {
    let labels = [("probe", probe)];
    let refused = metrics.series("kstrobe_probe_attached", &labels).find(|(_, value)| *value == 0.0);
    refused.map(|(labels, _)| labels["reason"].clone())
}

/// Whether two counts of faults agree: a thread also takes some for its own start and end.
#[track_caller]
fn assert_about(ours: f64, kernel: f64) {
    assert!(kernel >= TOUCHED as f64, "the kernel counts {kernel} faults of {TOUCHED} pages");
    assert!((ours - kernel).abs() <= kernel * 0.01 + 5.0, "{ours} faults, but the kernel counts {kernel}");
}

#[test]
#[ignore = "needs root"]
fn root_page_faults_are_those_of_getrusage() {
    let agent = probes("page_faults");
    let mut faults = 0;
    load::named("kst-faults", || faults = load::touch_pages(TOUCHED));
    let after = agent.scrape();
    // The kernel's own counter, which other processors have in place of x86's tracepoints, does not tell writes.
    let access = if cfg!(target_arch = "x86_64") { "write" } else { "unknown" };
    let labels = [("comm", "kst-faults"), ("mode", "user"), ("access", access)];
    let ours = after.sum("kstrobe_page_faults_total", &labels);
    assert_about(ours, faults as f64);
    Agreement::new("page_faults", "page_faults_total", "getrusage", ours, faults as f64).record();
    agent.stop();
}

/// A probe reads texts of user memory that is not there yet: these reads resolve nothing, and the kernel counts none of them.
#[test]
#[ignore = "needs root"]
fn root_reads_of_tracers_are_no_page_faults() {
    const LOOK: &str = "probe: look\nsummary: Looks at buffers before the kernel fills them.\nat: syscall:read:enter\n\
        where: comm == \"kst-faults\"\nmetrics:\n  looks_total:\n    help: Reads.\n    type: counter\n    \
        labels: { text: \"str(args.buf, 8)\" }\n";
    let agent =
        Setup { arguments: &["--enable", "page_faults"], probes: &[("look", LOOK)], ..Setup::default() }.start();
    let mut faults = 0;
    load::named("kst-faults", || faults = load::fill_pages(TOUCHED));
    let after = agent.scrape();
    assert_eq!(after.sum("kstrobe_looks_total", &[]), TOUCHED as f64);
    // The thread's own code takes some for its start and end.
    assert_about(after.sum("kstrobe_page_faults_total", &[("comm", "kst-faults")]), faults as f64);
    let kernel = after.sum("kstrobe_page_faults_total", &[("comm", "kst-faults"), ("mode", "kernel")]);
    if kernel > 0.0 {
        assert_about(kernel, faults as f64);
    } else {
        not_run("root_reads_of_tracers_are_no_page_faults", "this processor has no tracepoints of page faults");
    }
    agent.stop();
}

/// What other processors get, which have no tracepoints of page faults.
#[test]
#[ignore = "needs root"]
fn root_page_faults_are_the_same_by_the_kernels_counter() {
    let text = include_str!("../../probes/memory/page_faults.yaml");
    let text = text.split("---").next().unwrap().replace("rawtracepoint:page_fault_", "rawtracepoint:no_such_fault_");
    let text = text.replace("enabled: false", "enabled: true");
    let agent = Agent::start_with(&[], &[("page_faults", &text)]);
    let mut faults = 0;
    load::named("kst-faults", || faults = load::touch_pages(TOUCHED));
    let after = agent.scrape();
    let labels = [("comm", "kst-faults"), ("mode", "user"), ("access", "unknown")];
    assert_about(after.sum("kstrobe_page_faults_total", &labels), faults as f64);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_the_time_of_page_faults_is_of_as_many_as_getrusage_says() {
    let test = "root_the_time_of_page_faults_is_of_as_many_as_getrusage_says";
    let agent = probes("page_fault_duration");
    if let Some(reason) = refusal(&agent.scrape(), "page_fault_duration") {
        return not_run(test, &reason);
    }
    let (mut faults, begin) = (0, std::time::Instant::now());
    load::named("kst-faults", || faults = load::touch_pages(TOUCHED));
    let limit = begin.elapsed().as_secs_f64();
    let labels = [("comm", "kst-faults"), ("kind", "minor"), ("memory", "anonymous")];
    let after = agent.scrape();
    let ours = after.histogram("kstrobe_page_fault_duration_seconds", &labels);
    assert_about(ours.count, faults as f64);
    assert!(ours.sum > 0.0 && ours.sum < limit, "{ours:?} in {limit} s");
    agent.stop();
}

/// Pages read: so few that no probe has time to get beyond its budget, not even on an emulated processor.
const READ: usize = 1024;

/// Reads the last so many pages of a file, one at a time. Nothing is read ahead beyond the end.
fn read_last(pages: usize, path: &Path) {
    let mut file = File::open(path).unwrap();
    file.seek(SeekFrom::End(-((pages * PAGE_BYTES) as i64))).unwrap();
    let mut page = [0; PAGE_BYTES];
    while file.read(&mut page).unwrap() > 0 {}
}

#[test]
#[ignore = "needs root"]
fn root_pages_are_added_to_the_cache_once_and_used_at_every_read() {
    let test = "root_pages_are_added_to_the_cache_once_and_used_at_every_read";
    let disk = Disk::new();
    let pages = READ as f64;
    let agent = probes("page_cache_additions,page_cache_accesses");
    let before = agent.scrape();
    // What looks for file systems on a new disk leaves some of its pages in the cache.
    let device = File::open(disk.device()).unwrap();
    posix_fadvise(&device, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    load::named("kst-cold", || read_last(READ, &disk.device()));
    load::named("kst-warm", || read_last(READ, &disk.device()));
    let after = agent.scrape();
    let added = |comm| after.sum("kstrobe_page_cache_additions_total", &[("comm", comm)]);
    assert_eq!(refusal(&before, "page_cache_additions"), None);
    assert_eq!((added("kst-cold"), added("kst-warm")), (pages, 0.0), "{pages} pages were read");
    if let Some(reason) = refusal(&before, "page_cache_accesses") {
        return not_run(test, &reason);
    }
    // The newest kernel reads disks into large folios, of at most 512 pages, each of which is used once when read in order.
    let least = if support::lab().as_deref() == Some("sid") { pages / 512.0 } else { pages };
    for comm in ["kst-cold", "kst-warm"] {
        let used = after.sum("kstrobe_page_cache_accesses_total", &[("comm", comm)]);
        // The thread's own code and stack are pages too.
        assert!((least..pages * 1.01 + 50.0).contains(&used), "{comm}: {used} uses of {pages} pages");
    }
    agent.stop();
}

const READER: &str = "kst-reclaim";

#[test]
#[ignore = "a process that other tests start"]
fn child_reads_a_file() {
    if let Some(path) = memory_group::enter(READER) {
        load::named(READER, || (0..4).for_each(|_| read_last(4 * READ, Path::new(&path))));
    }
}

/// Runs `load`, whose threads named [`READER`] have to free memory, and compares a probe of it, `memcg` or `direct`, with
/// the kernel's own trace.
fn reclaim_is_that_of_the_trace(kind: &str, load: impl FnOnce()) {
    let probe = format!("{kind}_reclaim");
    let agent = probes(&probe);
    assert_eq!(refusal(&agent.scrape(), &probe), None);
    let [begin, end] = ["begin", "end"].map(|edge| format!("vmscan/mm_vmscan_{kind}_reclaim_{edge}"));
    let trace = TraceInstance::new(&[&begin, &end]);
    load();
    let after = agent.scrape();
    let (mut times, mut pages, mut began) = (Vec::new(), 0.0, BTreeMap::new());
    for traced in trace.of(READER) {
        if traced.event.ends_with("_begin") {
            began.insert(traced.tid, traced.seconds);
            continue;
        }
        times.push(traced.seconds - began.remove(&traced.tid).unwrap());
        // Newer kernels say more behind it.
        let reclaimed = traced.text.strip_prefix("nr_reclaimed=").unwrap().split_whitespace().next().unwrap();
        pages += reclaimed.parse::<f64>().unwrap();
    }
    let ends = times.len() as f64;
    assert!(ends >= 10.0, "the kernel reclaimed only {ends} times");
    let comm = [("comm", READER)];
    let ours = after.histogram(&format!("kstrobe_{kind}_reclaim_duration_seconds"), &comm);
    let our_pages = after.sum(&format!("kstrobe_{kind}_reclaimed_pages_total"), &comm);
    // From 7.0 on a task may lose the CPU within a program, which the next one there misses.
    let missed = after.sum("kstrobe_program_missed_total", &[("probe", &probe)]);
    if missed == 0.0 {
        assert_eq!((ours.count, our_pages), (ends, pages));
        let metric = format!("{kind}_reclaim_duration_seconds");
        let plain = Agreement::new(&probe, &metric, "ftrace", ours.count, ends);
        Agreement { bounds: ours.buckets.len(), ..plain }.record();
    }
    assert!(missed <= 0.05 * ends, "{missed} of {ends} missed");
    assert!((ends - missed..=ends).contains(&ours.count), "{} of {ends} times, {missed} missed", ours.count);
    assert!(our_pages <= pages && our_pages >= 0.5 * pages, "{our_pages} of {pages} pages, {missed} missed");
    // A CPU may stand still between the program and the trace's event of the same edge, so that single times differ.
    let odd = missed + 1.0 + ends * if support::emulated() { 0.1 } else { 0.02 };
    for (le, at_most) in &ours.buckets {
        let below = |limit: f64| times.iter().filter(|time| **time <= limit).count() as f64;
        let range = below(le / 1.25 - 20e-6) - odd..=below(le * 1.25 + 20e-6) + odd;
        assert!(range.contains(at_most), "le={le}: {at_most}, the trace has {range:?} of {ends}");
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_reclaim_in_a_cgroup_is_that_of_the_kernels_trace() {
    if !controller("root_reclaim_in_a_cgroup_is_that_of_the_kernels_trace", "memory") {
        return;
    }
    let disk = Disk::new();
    let device = File::open(disk.device()).unwrap();
    reclaim_is_that_of_the_trace("memcg", || {
        posix_fadvise(&device, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let group = MemoryGroup::new("reclaim", 8 << 20);
        let status = group.run("child_reads_a_file", disk.device().to_str().unwrap());
        assert!(status.success(), "{status}");
    });
}

/// The machine keeps so much memory free that none is left for others, and its thread that frees memory runs only when
/// nobody else does, until this is dropped.
struct NoneFree {
    before: String,
}

impl NoneFree {
    const SETTING: &str = "/proc/sys/vm/min_free_kbytes";

    fn new() -> NoneFree {
        let before = std::fs::read_to_string(NoneFree::SETTING).unwrap();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
        let free = memory.lines().find_map(|line| line.strip_prefix("MemFree:")?.trim().strip_suffix(" kB")).unwrap();
        let kept = free.parse::<u64>().unwrap() - (8 << 10);
        std::fs::write(NoneFree::SETTING, kept.to_string()).unwrap();
        let none = NoneFree { before };
        assert!(NoneFree::kswapd("--idle"));
        none
    }

    fn kswapd(policy: &str) -> bool {
        let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let mut kswapd =
            all.filter(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == "kswapd0\n"));
        let pid = kswapd.next().unwrap();
        let mut chrt = Command::new("chrt");
        chrt.args([policy, "-p", "0"]).arg(pid.file_name().unwrap());
        chrt.status().is_ok_and(|status| status.success())
    }
}

impl Drop for NoneFree {
    fn drop(&mut self) {
        let _ = std::fs::write(NoneFree::SETTING, &self.before);
        NoneFree::kswapd("--other");
    }
}

#[test]
#[ignore = "needs root"]
fn root_reclaim_of_the_machine_is_that_of_the_kernels_trace() {
    if support::lab().is_none() {
        let test = "root_reclaim_of_the_machine_is_that_of_the_kernels_trace";
        return not_run(test, "it takes the memory of a machine that nobody else needs");
    }
    // A disk that answers at once with nothing: what is read fills the cache faster than the kernel's own thread frees it.
    output(Command::new("modprobe").args(["null_blk", "gb=1", "nr_devices=1"]));
    const EACH: usize = 64 << 20;
    reclaim_is_that_of_the_trace("direct", || {
        let _none = NoneFree::new();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let read = move || {
                    let mut file = File::open("/dev/nullb0").unwrap();
                    file.seek(SeekFrom::Start((part * EACH) as u64)).unwrap();
                    std::io::copy(&mut file.take(EACH as u64), &mut std::io::sink()).unwrap();
                };
                std::thread::Builder::new().name(READER.to_owned()).spawn_scoped(scope, read).unwrap();
            }
        });
    });
}

const VICTIM: &str = "kst-victim";

#[test]
#[ignore = "a process that other tests start"]
fn child_takes_memory() {
    if let Some(bytes) = memory_group::enter(VICTIM) {
        std::hint::black_box(vec![1u8; bytes.parse().unwrap()]);
    }
}

#[test]
#[ignore = "needs root"]
fn root_oom_kills_are_those_of_the_cgroup() {
    use std::os::unix::process::ExitStatusExt;
    if !controller("root_oom_kills_are_those_of_the_cgroup", "memory") {
        return;
    }
    let agent = probes("oom_kills");
    assert_eq!(refusal(&agent.scrape(), "oom_kills"), None);
    let group = MemoryGroup::new("oom", 16 << 20);
    for _ in 0..3 {
        let status = group.run("child_takes_memory", &(64 << 20).to_string());
        assert_eq!(status.signal(), Some(9), "{status}");
    }
    assert_eq!(group.oom_kills(), 3);
    // Killed by a person, not by the kernel.
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    let after = agent.scrape();
    assert_eq!(after.sum("kstrobe_oom_kills_total", &[("comm", VICTIM)]), 3.0);
    assert!(!after.has("kstrobe_oom_kills_total", &[("comm", "sleep")]));
    agent.stop();
}
