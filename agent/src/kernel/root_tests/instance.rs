//! Instances of tracefs against the kernel.

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

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("kstrobe-pages-{}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}
