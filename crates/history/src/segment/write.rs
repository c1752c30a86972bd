//! Seconds to frames.

use super::body::{Defined, put_bytes, put_marks, put_texts};
use super::{FrameHeader, MAX_FRAME, SPAN, header};
use crate::cursor::{Change, MetricChanges};
use crate::mark::Mark;
use crate::record;
use crate::registry::Registry;
use crate::store::{ProbeChanges, Second};
use flate2::{Compress, Compression, FlushCompress};
use kstrobe_export::varint::put;

/// A second, to be appended to a segment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// With a segment's header, if it begins one.
    pub bytes: Vec<u8>,
    pub second: Second,
    /// Whether it begins a segment.
    pub is_first: bool,
}

/// Makes frames of seconds. A segment ends by itself when it is long enough.
#[derive(Debug)]
pub struct Encoder {
    /// Names of this segment, and the values of gauges now.
    registry: Registry,
    defined: Defined,
    stream: Compress,
    /// Of the segment's first second; `None` before the first frame of a segment.
    start: Option<u64>,
    /// Of the segment so far.
    bytes: usize,
    records: u64,
    /// The segment ends with the frame that reaches this.
    max_bytes: usize,
}

impl Encoder {
    pub fn new(max_bytes: usize) -> Encoder {
        Encoder {
            registry: Registry::default(),
            defined: Defined::default(),
            stream: stream(),
            start: None,
            bytes: 0,
            records: 0,
            max_bytes,
        }
    }

    /// The next frame begins a segment.
    pub fn end_segment(&mut self) {
        self.start = None;
    }

    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// A second and the marks that came since the one before it.
    pub fn encode(&mut self, second: Second, probes: &[ProbeChanges], marks: &[Mark]) -> Frame {
        let goes_on = |start: u64| (start..start + SPAN).contains(&second.start) && self.bytes < self.max_bytes;
        let is_first = !self.start.is_some_and(goes_on);
        let mut gauges = Box::default();
        if is_first {
            gauges = self.begin(second.start);
        }
        let record = self.registry.pack(self.records, probes);
        self.records += 1;
        let mut body = Vec::with_capacity(record.len() + 256);
        put(&mut body, second.start);
        put(&mut body, second.seconds);
        self.defined.write(&mut body, &self.registry);
        put_bytes(&mut body, &gauges);
        let sampled: Vec<&str> = probes.iter().filter(|probe| probe.sampled).map(|probe| &*probe.probe).collect();
        put_texts(&mut body, sampled.into_iter());
        put_bytes(&mut body, &record);
        put_marks(&mut body, marks);
        self.registry.settle(&record);

        let mut bytes = if is_first { header(second.start).to_vec() } else { Vec::new() };
        let packed = self.pack(&body);
        bytes.extend_from_slice(&FrameHeader::write(&packed, body.len()));
        bytes.extend_from_slice(&packed);
        self.bytes += bytes.len();
        if body.len() > MAX_FRAME {
            // It cannot be read, nor what follows it.
            self.end_segment();
        }
        Frame { bytes, second, is_first }
    }

    /// Begins a segment: only gauges that have a value are known in it from the start. Returns these.
    fn begin(&mut self, start: u64) -> Box<[u8]> {
        let before = std::mem::take(&mut self.registry);
        let mut gauges = Vec::new();
        for (_, metric) in before.iter() {
            let changes = MetricChanges { about: metric.about.clone(), scheme: None, rows: Vec::new() };
            for (value, entry) in metric.series().filter_map(|(_, entry)| Some((entry.base?, entry))) {
                let number = self.registry.metric(&metric.probe, &changes, 0);
                let series = self.registry.series(number, &entry.labels, 0, true);
                gauges.push((number, series, Change::Gauge(Some(value))));
            }
        }
        let gauges = record::pack(gauges.iter().map(|(metric, series, value)| (*metric, *series, value)));
        self.registry.settle(&gauges);
        (self.defined, self.stream, self.bytes) = (Defined::default(), stream(), 0);
        self.start = Some(start);
        gauges
    }

    fn pack(&mut self, body: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(body.len() / 2 + 1024);
        let mut rest = body;
        loop {
            let before = self.stream.total_in();
            // The only error is a wrong state of the stream, which this code cannot bring about.
            let _ = self.stream.compress_vec(rest, &mut packed, FlushCompress::Sync);
            rest = &rest[(self.stream.total_in() - before) as usize..];
            if rest.is_empty() && packed.len() < packed.capacity() {
                return packed;
            }
            packed.reserve(packed.capacity());
        }
    }
}

fn stream() -> Compress {
    Compress::new(Compression::default(), false)
}
