//! Names of threads, for records that only have their ids.

use std::collections::HashMap;

/// More than this are forgotten at once: threads come and go, and their ids come again.
const MAX_THREADS: usize = 16_384;

/// Names and processes of threads, looked up once in each batch of records.
#[derive(Default)]
pub(super) struct Threads {
    known: HashMap<u32, Thread>,
    batch: u64,
}

struct Thread {
    comm: [u8; 16],
    process: u32,
    batch: u64,
}

impl Threads {
    /// Starts a batch: names of live threads are read again, as they may change. Ended threads keep the last name.
    pub fn begin(&mut self) {
        self.batch += 1;
        if self.known.len() > MAX_THREADS {
            self.known.clear();
        }
    }

    /// A thread's name, NUL-padded; empty for one that ended before it was read.
    pub fn comm(&mut self, tid: u32, cpu: u32) -> [u8; 16] {
        if tid == 0 {
            // Each CPU's idle task has the id 0.
            return padded(&format!("swapper/{cpu}"));
        }
        self.thread(tid).comm
    }

    /// The id of its process; its own id for a thread that ended before it was read.
    pub fn process(&mut self, tid: u32) -> u32 {
        self.thread(tid).process
    }

    fn thread(&mut self, tid: u32) -> &Thread {
        let batch = self.batch;
        let known = self.known.entry(tid).or_insert(Thread { comm: [0; 16], process: tid, batch: 0 });
        if known.batch != batch {
            known.batch = batch;
            look(tid, known);
        }
        known
    }
}

fn look(tid: u32, thread: &mut Thread) {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else { return };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if let Some(name) = field("Name:") {
        thread.comm = padded(name);
    }
    if let Some(process) = field("Tgid:").and_then(|text| text.parse().ok()) {
        thread.process = process;
    }
}

fn padded(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    // The last byte stays NUL.
    comm.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    comm
}
