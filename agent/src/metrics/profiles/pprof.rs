//! pprof's `profile.proto`, gzipped: what `go tool pprof`, Pyroscope and Grafana read.

use super::{Frame, Resolved, Unit};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

/// `perftools.profiles`, as `github.com/google/pprof/proto/profile.proto` numbers it.
pub mod proto {
    /// The file.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        /// What each value of a sample means.
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        /// Sums.
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        /// Files.
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        /// Places.
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        /// All texts; the first is empty.
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        /// Start, nanoseconds since the Unix epoch.
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        /// Length.
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        /// What `period` counts.
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        /// Between two samples.
        #[prost(int64, tag = "12")]
        pub period: i64,
        /// Text of the value type shown first.
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    /// What a value means: indices of texts.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        /// `samples`
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        /// `count`
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    /// One stack and its sums.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        /// Ids of places, the leaf first.
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        /// One per value type.
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    /// A label: indices of texts, or a number.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        /// Name.
        #[prost(int64, tag = "1")]
        pub key: i64,
        /// Text, or 0.
        #[prost(int64, tag = "2")]
        pub str: i64,
        /// Number.
        #[prost(int64, tag = "3")]
        pub num: i64,
    }

    /// A file that code comes from.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        /// Not 0.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Index of its path.
        #[prost(int64, tag = "5")]
        pub filename: i64,
        /// Its locations already have their functions.
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
    }

    /// A place in code.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        /// Not 0.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Which file.
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        /// Its function.
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    /// A function at a location.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        /// Not 0.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Index of its name.
        #[prost(int64, tag = "2")]
        pub name: i64,
        /// Index of its name in the file.
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        /// Index of the source file's name.
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// The gzipped file.
pub fn write(profile: &Resolved) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&message(profile).encode_to_vec())?;
    gzip.finish()
}

/// The profile as pprof's message.
///
/// The value type is named after the unit (`samples`, `time`, `space`); a timer's samples also count as CPU time, as Go's
/// own profiles do, so that pprof shows seconds.
pub fn message(profile: &Resolved) -> proto::Profile {
    let mut texts = Texts::default();
    texts.index("");
    let mut types = vec![match profile.unit {
        Unit::Count => texts.value_type("samples", "count"),
        Unit::Nanoseconds => texts.value_type("time", "nanoseconds"),
        Unit::Bytes => texts.value_type("space", "bytes"),
    }];
    let period = profile.period_ns.filter(|_| profile.unit == Unit::Count);
    if period.is_some() {
        types.push(texts.value_type("cpu", "nanoseconds"));
    }
    let (mapping, mapping_of) = mappings(&profile.frames, &mut texts);
    let (function, function_of) = functions(&profile.frames, &mut texts);
    let location = profile.frames.iter().enumerate().map(|(i, frame)| proto::Location {
        id: i as u64 + 1,
        mapping_id: frame.module.as_deref().map_or(0, |m| mapping_of[m]),
        address: frame.address,
        line: vec![proto::Line { function_id: function_of[&key(frame)] }],
    });
    let location = location.collect();
    let sample = profile.samples.iter().filter(|s| s.value > 0).map(|s| {
        let mut label: Vec<_> = s.labels.iter().map(|(name, text)| texts.label(name, text)).collect();
        if s.pid != 0 {
            label.push(proto::Label { key: texts.index("pid"), str: 0, num: i64::from(s.pid) });
        }
        let mut value = vec![signed(s.value)];
        value.extend(period.map(|ns| signed(s.value.saturating_mul(ns))));
        proto::Sample { location_id: s.frames.iter().map(|f| u64::from(*f) + 1).collect(), value, label }
    });
    let sample = sample.collect();
    proto::Profile {
        default_sample_type: types.last().map_or(0, |t| t.r#type),
        period_type: period.map(|_| texts.value_type("cpu", "nanoseconds")),
        period: period.map_or(0, signed),
        sample_type: types,
        sample,
        mapping,
        location,
        function,
        time_nanos: signed(profile.start_unix_ns),
        duration_nanos: signed(profile.duration_ns),
        string_table: texts.all,
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn mappings<'a>(frames: &'a [Frame], texts: &mut Texts) -> (Vec<proto::Mapping>, HashMap<&'a str, u64>) {
    let mut all = Vec::new();
    let mut of = HashMap::new();
    for module in frames.iter().filter_map(|f| f.module.as_deref()) {
        of.entry(module).or_insert_with(|| {
            let id = all.len() as u64 + 1;
            all.push(proto::Mapping { id, filename: texts.index(module), has_functions: true });
            id
        });
    }
    (all, of)
}

/// A function is its name in its file.
fn key(frame: &Frame) -> (&str, Option<&str>) {
    (&frame.name, frame.module.as_deref())
}

type FunctionIds<'a> = HashMap<(&'a str, Option<&'a str>), u64>;

fn functions<'a>(frames: &'a [Frame], texts: &mut Texts) -> (Vec<proto::Function>, FunctionIds<'a>) {
    let mut all = Vec::new();
    let mut of = HashMap::new();
    for frame in frames {
        of.entry(key(frame)).or_insert_with(|| {
            let id = all.len() as u64 + 1;
            let name = texts.index(&frame.name);
            all.push(proto::Function { id, name, system_name: name, filename: 0 });
            id
        });
    }
    (all, of)
}

/// The table of texts under construction.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    of: HashMap<String, i64>,
}

impl Texts {
    fn index(&mut self, text: &str) -> i64 {
        if let Some(i) = self.of.get(text) {
            return *i;
        }
        let i = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.of.insert(text.to_owned(), i);
        i
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> proto::ValueType {
        proto::ValueType { r#type: self.index(kind), unit: self.index(unit) }
    }

    fn label(&mut self, name: &str, text: &str) -> proto::Label {
        proto::Label { key: self.index(name), str: self.index(text), num: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::profiles::folded::tests::profile;
    use std::io::Read;

    fn read_back(bytes: &[u8]) -> proto::Profile {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
        proto::Profile::decode(plain.as_slice()).unwrap()
    }

    /// The stacks of a decoded profile, as a reader of the format finds them.
    fn stacks(p: &proto::Profile) -> Vec<(Vec<&str>, Vec<i64>)> {
        let text = |i: i64| p.string_table[i as usize].as_str();
        let name = |id: &u64| {
            let location = p.location.iter().find(|l| l.id == *id).unwrap();
            let function = p.function.iter().find(|f| f.id == location.line[0].function_id).unwrap();
            text(function.name)
        };
        p.sample.iter().map(|s| (s.location_id.iter().map(name).collect(), s.value.clone())).collect()
    }

    #[test]
    fn decodes_to_what_was_written() {
        let p = read_back(&write(&profile()).unwrap());
        let text = |i: i64| p.string_table[i as usize].as_str();
        assert_eq!(text(0), "");
        assert_eq!((text(p.sample_type[0].r#type), text(p.sample_type[0].unit)), ("time", "nanoseconds"));
        let nap = vec!["schedule", "do_nanosleep", "nap(&[u8; 4])", "main"];
        assert_eq!(stacks(&p), [(nap.clone(), vec![500]), (nap, vec![70]), (vec!["schedule"], vec![3])]);
        let labels: Vec<_> = p.sample[1].label.iter().map(|l| (text(l.key), text(l.str), l.num)).collect();
        assert_eq!(labels, [("comm", "app", 0), ("pid", "", 11)]);
        let files: Vec<_> = p.mapping.iter().map(|m| text(m.filename)).collect();
        assert_eq!(files, ["[kernel.kallsyms]", "/usr/bin/app"]);
        assert_eq!((p.location[0].address, p.location[0].mapping_id), (0xffff_ffff_8100_0010, 1));
        assert_eq!((p.time_nanos, p.duration_nanos), (1_700_000_000_000_000_000, 10_000_000_000));
    }

    #[test]
    fn timer_samples_are_also_cpu_time() {
        let timed = Resolved { unit: Unit::Count, period_ns: Some(10_101_010), ..profile() };
        let p = read_back(&write(&timed).unwrap());
        let text = |i: i64| p.string_table[i as usize].as_str();
        let types: Vec<_> = p.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!(p.sample[0].value, [500, 5_050_505_000]);
        assert_eq!((p.period, text(p.default_sample_type)), (10_101_010, "cpu"));
    }

    #[test]
    fn an_empty_profile_is_valid() {
        let p = read_back(&write(&Resolved::default()).unwrap());
        assert_eq!((p.sample.len(), p.string_table[0].as_str(), p.sample_type.len()), (0, "", 1));
    }
}
