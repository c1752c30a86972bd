//! The block probes against the kernel's own counters of a device that only the test uses.

mod support;

use nix::fcntl::OFlag;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use support::agent::Setup;
use support::disk::Disk;
use support::{Agreement, emulated, wait_for};

const BLOCK_BYTES: usize = 4096;

/// Requests completed, sectors moved and milliseconds that the requests took: reads, then writes.
fn counters(disk: &Disk) -> [u64; 6] {
    let text = std::fs::read_to_string(format!("/sys/block/{}/stat", disk.name)).unwrap();
    let n: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    [n[0], n[2], n[3], n[4], n[6], n[7]]
}

/// Writes, then reads, so many blocks past the page cache, one request each.
fn use_it(disk: &Disk, writes: usize, reads: usize) {
    #[repr(align(4096))]
    struct Block([u8; BLOCK_BYTES]);
    let mut block = Block([7; BLOCK_BYTES]);
    let mut open = OpenOptions::new();
    let mut device =
        open.read(true).write(true).custom_flags(OFlag::O_DIRECT.bits()).open(disk.device()).expect("the disk opens");
    for _ in 0..writes {
        device.write_all(&block.0).unwrap();
    }
    let mut device = open.open(disk.device()).expect("the disk opens again");
    for _ in 0..reads {
        device.read_exact(&mut block.0).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn root_block_requests_and_bytes_are_those_of_the_disk() {
    let disk = Disk::new();
    std::fs::write(format!("/sys/block/{}/queue/scheduler", disk.name), "mq-deadline").unwrap();
    let agent = Setup { arguments: &["--enable", "block"], ..Setup::default() }.start();
    let (before, stat) = (agent.scrape(), counters(&disk));
    use_it(&disk, 120, 80);
    let of = |operation| [("disk", disk.name.clone()), ("operation", String::from(operation))];
    let name = "kstrobe_block_io_duration_seconds";
    let after = wait_for("all requests are complete", Duration::from_secs(10), || {
        let now = agent.scrape();
        let labels = of("read");
        let labels = labels.each_ref().map(|(k, v)| (*k, v.as_str()));
        let reads = now.histogram(name, &labels).since(&before.histogram(name, &labels)).count;
        (reads >= 80.0).then_some(now)
    });
    let now = counters(&disk);
    let moved: Vec<u64> = now.iter().zip(stat).map(|(now, then)| now - then).collect();
    for (operation, requests, sectors, ms) in
        [("read", moved[0], moved[1], moved[2]), ("write", moved[3], moved[4], moved[5])]
    {
        let labels = of(operation);
        let labels = labels.each_ref().map(|(k, v)| (*k, v.as_str()));
        let ours = after.histogram(name, &labels).since(&before.histogram(name, &labels));
        assert_eq!(ours.count, requests as f64, "{operation} requests");
        let counted =
            Agreement::new("block_io", "block_io_duration_seconds", "/sys/block", ours.count, requests as f64);
        counted.record();
        // The kernel's time begins before the request is issued and ends after its completion; each sum loses less than a ms.
        let (theirs, before_and_after) = (ms as f64 / 1e3, requests as f64 * if emulated() { 5e-3 } else { 1e-3 });
        assert!(ours.sum > 0.0 && ours.sum <= theirs + 1e-3, "{operation}: {ours:?}, the kernel says {theirs} s");
        assert!(ours.sum >= theirs - before_and_after, "{operation}: {ours:?}, the kernel says {theirs} s");
        if let Some(each) = disk.seconds_each() {
            // A burst of requests may go before the disk holds back the next ones.
            assert!(ours.sum >= 0.5 * requests as f64 * each, "{operation}: {ours:?}, each takes {each} s");
        }
        let bytes = |m: &support::metrics::Metrics| m.sum("kstrobe_block_io_bytes_total", &labels);
        assert_eq!(bytes(&after) - bytes(&before), (sectors * 512) as f64, "{operation} bytes");
    }
    // A request that goes straight to an idle device is never queued; none is queued twice.
    let queued =
        |m: &support::metrics::Metrics| m.histogram("kstrobe_block_queue_duration_seconds", &[("disk", &disk.name)]);
    let queued = queued(&after).since(&queued(&before));
    assert!((1.0..=(moved[0] + moved[3]) as f64).contains(&queued.count), "{queued:?}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_each_slow_block_request_is_a_record() {
    let disk = Disk::new();
    // As shipped, but every request is slow.
    let shipped = include_str!("../../probes/block/slow_block_io.yaml");
    let text = shipped.replace("elapsed > 100ms", "elapsed > 0ns").replace("enabled: false", "enabled: true");
    let text = text.replace("\nslow:\n", "\nslow:\n  max_per_second: 10000\n");
    let agent = Setup { probes: &[("slow_block_io", &text)], ..Setup::default() }.start();
    let before = counters(&disk);
    use_it(&disk, 40, 30);
    let records = |operation: &str| -> Vec<serde_json::Value> {
        let (_, body) = agent.get("/api/v1/events?probe=slow_block_io").expect("/api/v1/events answers");
        let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let events = document["events"].as_array().expect("events").clone();
        let ours = |fields: &serde_json::Value| fields["disk"] == *disk.name && fields["operation"] == operation;
        events.into_iter().map(|event| event["fields"].clone()).filter(ours).collect()
    };
    let reads =
        wait_for("all requests", Duration::from_secs(10), || Some(records("read")).filter(|reads| reads.len() >= 30));
    let (now, writes) = (counters(&disk), records("write"));
    for (records, requests, sectors) in
        [(&reads, now[0] - before[0], now[1] - before[1]), (&writes, now[3] - before[3], now[4] - before[4])]
    {
        assert_eq!(records.len() as u64, requests, "{records:#?}");
        let bytes: u64 = records.iter().filter_map(|fields| fields["bytes"].as_u64()).sum();
        assert_eq!(bytes, sectors * 512, "{records:#?}");
        for fields in records {
            assert!((0.0..5.0).contains(&fields["seconds"].as_f64().expect("seconds")), "{fields:#}");
            assert!(fields["comm"].as_str().is_some_and(|comm| !comm.is_empty()), "{fields:#}");
        }
    }
    let mut sectors: Vec<_> = writes.iter().filter_map(|fields| fields["sector"].as_u64()).collect();
    sectors.sort_unstable();
    let block = BLOCK_BYTES as u64 / 512;
    assert_eq!(sectors, (0..40).map(|i| i * block).collect::<Vec<_>>(), "one block after the other");
    agent.stop();
}
