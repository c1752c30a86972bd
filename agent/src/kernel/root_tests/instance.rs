//! Instances of tracefs against the kernel.

use crate::kernel::event_stream::{EventStream, Wanted};
use crate::kernel::instance::{Instance, sweep};
use crate::kernel::tracefs::Tracefs;
use kstrobe_ftrace::format::PageFormat;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::time::Duration;

const CALLS: usize = 20_000;

/// What is recorded comes out of the pages, spliced and read, and the kernel's own count is the same.
#[test]
#[ignore = "needs root"]
fn root_instance_gives_every_record_and_goes_away() {
    let tracefs = Arc::new(Tracefs::open().unwrap());
    let instance = Instance::create(&tracefs).unwrap();
    let name = instance.name().to_owned();
    let page = PageFormat::parse(&tracefs.read("events/header_page").unwrap()).unwrap();
    assert!(instance.events().unwrap().contains(&("sched".into(), "sched_switch".into())));
    instance.set_clock("mono").unwrap();
    assert_eq!(instance.clock().unwrap(), "mono");
    instance.set_buffer_kib(4096).unwrap();
    instance.write("set_event_pid", &nix::unistd::gettid().to_string()).unwrap();
    instance.write("events/syscalls/sys_enter_getppid/enable", "1").unwrap();

    let cpus = instance.cpus().unwrap();
    let mut readers: Vec<_> = cpus.iter().map(|cpu| instance.reader(*cpu, page.page_bytes()).unwrap()).collect();
    assert!(!readers[0].wait(Duration::ZERO).unwrap(), "nothing is recorded yet");
    instance.set_on(true).unwrap();
    (0..CALLS).for_each(|_| {
        nix::unistd::getppid();
    });
    instance.set_on(false).unwrap();

    let mut pages = Vec::new();
    let mut spliced = 0;
    for reader in &mut readers {
        let mut file = tempfile();
        while let bytes @ 1.. = reader.splice_pages(&file, usize::MAX).unwrap() {
            spliced += bytes;
        }
        file.rewind().unwrap();
        file.read_to_end(&mut pages).unwrap();
        let mut last = vec![0; page.page_bytes()];
        while reader.read_page(&mut last).unwrap() {
            pages.extend_from_slice(&last);
        }
    }
    let records = |bytes| kstrobe_ftrace::page::page(bytes, &page).unwrap().records.map(|record| record.unwrap());
    assert_eq!(pages.chunks(page.page_bytes()).flat_map(records).count(), CALLS);
    assert!(spliced > 0, "full pages are spliced");
    let stats: Vec<_> = cpus.iter().map(|cpu| instance.stats(*cpu).unwrap()).collect();
    assert_eq!(stats.iter().map(|s| s.read_events).sum::<u64>(), CALLS as u64);
    assert_eq!(stats.iter().map(|s| s.lost() + s.entries).sum::<u64>(), 0);

    // Its owner lives, so that it stays; then it goes with it.
    let swept = sweep(&tracefs).unwrap();
    assert!(swept.iter().all(|swept| !swept.what.contains(&name)), "{swept:?}");
    assert!(tracefs.exists(&format!("instances/{name}")));
    drop(readers);
    drop(instance);
    assert!(!tracefs.exists(&format!("instances/{name}")));
}

/// Options of the top-level buffer, put back when the test ends, however it ends.
struct TopOptions {
    tracefs: Arc<Tracefs>,
    found: Vec<(String, String)>,
}

impl TopOptions {
    fn set(tracefs: &Arc<Tracefs>, options: &[(&str, &str)]) -> TopOptions {
        let mut top = TopOptions { tracefs: tracefs.clone(), found: Vec::new() };
        for (option, value) in options {
            let file = format!("options/{option}");
            // Not every kernel has each.
            let Ok(found) = tracefs.read(&file) else { continue };
            top.found.push((file.clone(), found.trim().to_owned()));
            tracefs.write(&file, value).unwrap();
        }
        top
    }
}

impl Drop for TopOptions {
    fn drop(&mut self) {
        for (file, found) in self.found.drain(..).rev() {
            self.tracefs.write(&file, &found).unwrap();
        }
    }
}

/// Another user of the top-level buffer, who records stacks there.
const ODD_OPTIONS: [(&str, &str); 7] = [
    ("stacktrace", "1"),
    ("userstacktrace", "1"),
    ("overwrite", "0"),
    ("record-cmd", "0"),
    ("markers", "0"),
    ("func_stack_trace", "1"),
    ("funcgraph-irqs", "0"),
];

#[test]
#[ignore = "needs root"]
fn root_options_of_the_top_buffer_change_no_record() {
    let tracefs = Arc::new(Tracefs::open().unwrap());
    let top = TopOptions::set(&tracefs, &ODD_OPTIONS);
    assert!(top.found.iter().any(|(file, _)| file == "options/stacktrace"));

    // A capture's buffer: each call is one record, as the kernel counts them.
    let instance = Instance::create(&tracefs).unwrap();
    instance.write("set_event_pid", &nix::unistd::gettid().to_string()).unwrap();
    instance.write("events/syscalls/sys_enter_getppid/enable", "1").unwrap();
    // Where no function can be traced, the tracer is listed all the same.
    let functions = tracefs.read("available_filter_functions").is_ok_and(|names| !names.is_empty());
    if functions && instance.has_tracer("function").unwrap() {
        instance.set_tracer("function").unwrap();
        assert_eq!(instance.read("options/func_stack_trace").unwrap().trim(), "0");
        instance.set_tracer("nop").unwrap();
        instance.write("trace", "").unwrap();
    }
    instance.set_on(true).unwrap();
    (0..1000).for_each(|_| {
        nix::unistd::getppid();
    });
    instance.set_on(false).unwrap();
    let stats: Vec<_> = instance.cpus().unwrap().into_iter().map(|cpu| instance.stats(cpu).unwrap()).collect();
    assert_eq!(stats.iter().map(|stats| stats.entries).sum::<u64>(), 1000);
    drop(instance);

    // A session's.
    let event = Wanted { system: "syscalls".into(), event: "sys_enter_getppid".into(), filter: None };
    let mut session = EventStream::open(&[event]).unwrap();
    (0..1000).for_each(|_| {
        nix::unistd::getppid();
    });
    let taken = session.drain().unwrap();
    assert!(taken.len() >= 1000, "{}", taken.len());
    let id = session.ids()[0];
    assert!(taken.iter().all(|taken| u16::from_ne_bytes([taken.record[0], taken.record[1]]) == id));
    drop(session);

    // The owner of the top-level buffer finds it as it was.
    for (file, _) in &top.found {
        let (_, odd) = ODD_OPTIONS.iter().find(|(option, _)| file.ends_with(&format!("/{option}"))).unwrap();
        assert_eq!(tracefs.read(file).unwrap().trim(), *odd, "{file}");
    }
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("kstrobe-pages-{}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}
