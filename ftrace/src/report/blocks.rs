//! Block requests: from insert to issue to completion.

use super::text::{Table, head, moment, not_recorded, time, time_or_dash};
use super::{Asked, Happening, Spread};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Block requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// By device and operation.
    pub groups: Vec<BlockGroup>,
    /// The slowest requests.
    pub worst: Vec<BlockRequest>,
    /// Completions of what was not seen to be issued.
    pub no_issue: u64,
    /// Requests that were not seen to complete.
    pub open: u64,
    /// Requests that went back to the queue.
    pub requeued: u64,
    /// Events whose fields cannot be read: those of text.
    pub not_understood: u64,
}

/// Requests of one operation on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockGroup {
    /// Major and minor number, `:` between them.
    pub device: String,
    /// `read`, `write`, `discard`, `flush` or the kernel's letters.
    pub operation: String,
    /// Bytes issued.
    pub bytes: u64,
    /// From insert into the scheduler to issue, of those that were inserted.
    pub queued: Spread,
    /// From issue to completion.
    pub served: Spread,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockRequest {
    /// Major and minor number, `:` between them.
    pub device: String,
    /// The kernel's letters of the operation.
    pub operation: String,
    /// The first sector.
    pub sector: u64,
    /// Bytes issued.
    pub bytes: u64,
    /// The thread that issued it.
    pub pid: Option<i32>,
    /// When it was inserted into the scheduler, nanoseconds of the trace's clock.
    pub inserted_ns: Option<u64>,
    /// When it was issued to the device.
    pub issued_ns: u64,
    /// When it completed.
    pub completed_ns: u64,
}

struct Issued {
    request: BlockRequest,
    left: u64,
}

/// Requests of one operation on one device.
#[derive(Default)]
struct Times {
    bytes: u64,
    queued_ns: Vec<u64>,
    served_ns: Vec<u64>,
}

/// Block requests (`block:block_rq_*`).
pub fn blocks<'a>(events: impl Iterator<Item = Happening<'a>>, asked: &Asked) -> Blocks {
    let mut report = Blocks::default();
    let mut inserted: HashMap<(u64, u64), u64> = HashMap::new();
    let mut issued: HashMap<(u64, u64), VecDeque<Issued>> = HashMap::new();
    let mut times: BTreeMap<(String, String), Times> = BTreeMap::new();
    let mut seen = [false; 2];
    for event in events {
        if event.lost {
            report.open += issued.values().map(|queue| queue.len() as u64).sum::<u64>();
            issued.clear();
            inserted.clear();
        }
        let name = event.name();
        if !matches!(name, "block_rq_insert" | "block_rq_issue" | "block_rq_complete" | "block_rq_requeue") {
            continue;
        }
        let (Some(device), Some(sector), Some(sectors)) =
            (event.number("dev"), event.number("sector"), event.number("nr_sector"))
        else {
            report.not_understood += 1;
            continue;
        };
        // A flush alone has no sector: 0 when it is issued, the last there is when it completes.
        let flush = sectors == 0 && event.text("rwbs").is_some_and(|letters| letters.starts_with('F'));
        let key = (device, if flush { u64::MAX } else { sector });
        match name {
            "block_rq_insert" => {
                inserted.insert(key, event.time_ns);
            }
            "block_rq_issue" => {
                seen[0] = true;
                let request = BlockRequest {
                    // The kernel's dev_t has 20 bits of minor number.
                    device: format!("{}:{}", device >> 20, device & 0xf_ffff),
                    operation: event.text("rwbs").unwrap_or_default().into_owned(),
                    sector,
                    bytes: event.number("bytes").unwrap_or(sectors.saturating_mul(512)),
                    pid: event.pid,
                    inserted_ns: inserted.remove(&key),
                    issued_ns: event.time_ns,
                    completed_ns: 0,
                };
                issued.entry(key).or_default().push_back(Issued { request, left: sectors });
            }
            "block_rq_requeue" => {
                report.requeued += 1;
                take(&mut issued, key);
            }
            _ => {
                seen[1] = true;
                let Some(mut done) = take(&mut issued, key) else {
                    report.no_issue += 1;
                    continue;
                };
                // A part of a request completes at its beginning: the rest goes on from there.
                if sectors > 0 && sectors < done.left {
                    done.left -= sectors;
                    issued.entry((device, sector.saturating_add(sectors))).or_default().push_back(done);
                    continue;
                }
                done.request.completed_ns = event.time_ns;
                let request = done.request;
                if !asked.pids.is_empty() && !request.pid.is_some_and(|pid| asked.pids.contains(&pid)) {
                    continue;
                }
                let group = times.entry((request.device.clone(), operation(&request.operation))).or_default();
                group.bytes = group.bytes.saturating_add(request.bytes);
                group
                    .queued_ns
                    .extend(request.inserted_ns.map(|inserted_ns| request.issued_ns.saturating_sub(inserted_ns)));
                group.served_ns.push(served_ns(&request));
                report.worst.push(request);
                if report.worst.len() > 2 * asked.slowest + 1000 {
                    keep_worst(&mut report.worst, asked.slowest);
                }
            }
        }
    }
    keep_worst(&mut report.worst, asked.slowest);
    report.open += issued.values().map(|queue| queue.len() as u64).sum::<u64>();
    let names = ["block_rq_issue", "block_rq_complete"];
    report.not_recorded =
        names.into_iter().zip(seen).filter(|(_, seen)| !seen).map(|(name, _)| name.to_owned()).collect();
    let group = |((device, operation), times): ((String, String), Times)| BlockGroup {
        device,
        operation,
        bytes: times.bytes,
        queued: Spread::of(times.queued_ns),
        served: Spread::of(times.served_ns),
    };
    report.groups = times.into_iter().map(group).collect();
    report
}

fn take(issued: &mut HashMap<(u64, u64), VecDeque<Issued>>, key: (u64, u64)) -> Option<Issued> {
    let queue = issued.get_mut(&key)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        issued.remove(&key);
    }
    first
}

fn served_ns(request: &BlockRequest) -> u64 {
    request.completed_ns.saturating_sub(request.issued_ns)
}

fn keep_worst(worst: &mut Vec<BlockRequest>, count: usize) {
    worst.sort_by_key(|request| (std::cmp::Reverse(served_ns(request)), request.issued_ns));
    worst.truncate(count);
}

/// The operation that the kernel's letters begin with; `F` before a write asks for a flush first.
fn operation(letters: &str) -> String {
    let word = match letters.as_bytes() {
        [b'F', b'W', ..] | [b'W', ..] => "write",
        [b'R', ..] => "read",
        [b'D', ..] => "discard",
        [b'F', ..] => "flush",
        _ => letters,
    };
    word.to_owned()
}

impl Blocks {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, "Block requests");
        if self.not_understood > 0 {
            head(out, &format!("  {} events cannot be read from text", self.not_understood));
        }
        if not_recorded(out, &self.not_recorded) {
            return;
        }
        let mut table = Table::new(&[
            "device",
            "operation",
            ">count",
            ">bytes",
            ">queued p50",
            ">queued max",
            ">served p50",
            ">p99",
            ">max",
            ">total",
        ]);
        for group in &self.groups {
            let mut cells = vec![
                group.device.clone(),
                group.operation.clone(),
                group.served.count.to_string(),
                group.bytes.to_string(),
            ];
            let queued = Some(&group.queued).filter(|queued| queued.count > 0);
            cells.extend([queued.map(|queued| queued.p50_ns), queued.map(|queued| queued.max_ns)].map(time_or_dash));
            let served = &group.served;
            cells.extend([served.p50_ns, served.p99_ns, served.max_ns, served.total_ns].map(time));
            table.row(cells);
        }
        table.render(out);
        for (count, what) in [
            (self.open, "requests were not seen to complete"),
            (self.no_issue, "completions of requests that were not seen to be issued"),
            (self.requeued, "requests went back to the queue"),
        ] {
            if count > 0 {
                head(out, &format!("  {count} {what}"));
            }
        }
        head(out, "The slowest requests");
        let mut table = Table::new(&[">issued s", "device", "operation", ">sector", ">bytes", ">queued", ">served"]);
        for request in &self.worst {
            let queued_ns = request.inserted_ns.map(|inserted_ns| request.issued_ns.saturating_sub(inserted_ns));
            let (sector, bytes) = (request.sector.to_string(), request.bytes.to_string());
            let (device, operation) = (request.device.clone(), request.operation.clone());
            let times = (time_or_dash(queued_ns), time(served_ns(request)));
            table.row(vec![moment(Some(request.issued_ns)), device, operation, sector, bytes, times.0, times.1]);
        }
        table.render(out);
    }
}
