//! What we write of `io.prometheus.write.v2`, by the numbers of its fields. What we never set is left out.
//!
//! The beginning of a series has two places: 2.0-rc.4 moved it from the series into its samples and histograms, which
//! Prometheus reads since 3.8, and reserved the old field, which older receivers read. Each reader skips the other one.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Texts, each once; the first is empty.
    #[prost(string, repeated, tag = "4")]
    pub symbols: Vec<String>,
    /// One per series.
    #[prost(message, repeated, tag = "5")]
    pub timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimeSeries {
    /// Symbols of names and values in turn, sorted by name.
    #[prost(uint32, repeated, tag = "1")]
    pub labels_refs: Vec<u32>,
    /// Of counters and gauges.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub histograms: Vec<Histogram>,
    /// Of histograms.
    #[prost(message, repeated, tag = "4")]
    pub exemplars: Vec<Exemplar>,
    /// What the metric is.
    #[prost(message, optional, tag = "5")]
    pub metadata: Option<Metadata>,
    /// Milliseconds since 1970, 0 when unknown: the place until 2.0-rc.3.
    #[prost(int64, tag = "6")]
    pub created_timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exemplar {
    /// Symbols of names and values in turn.
    #[prost(uint32, repeated, tag = "1")]
    pub labels_refs: Vec<u32>,
    /// The observation.
    #[prost(double, tag = "2")]
    pub value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "3")]
    pub timestamp: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Sample {
    /// In the exported unit.
    #[prost(double, tag = "1")]
    pub value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub timestamp: i64,
    /// When the series began, in milliseconds since 1970, 0 when unknown.
    #[prost(int64, tag = "3")]
    pub start_timestamp: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Metadata {
    /// 1 counter, 2 gauge, 3 histogram, 6 info.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Symbol.
    #[prost(uint32, tag = "3")]
    pub help_ref: u32,
    /// Symbol.
    #[prost(uint32, tag = "4")]
    pub unit_ref: u32,
}

/// `Histogram` of whole counts
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    /// Observations.
    #[prost(uint64, tag = "1")]
    pub count_int: u64,
    #[prost(double, tag = "3")]
    pub sum: f64,
    /// 2^schema buckets per power of two.
    #[prost(sint32, tag = "4")]
    pub schema: i32,
    /// End of the zero bucket.
    #[prost(double, tag = "5")]
    pub zero_threshold: f64,
    /// Observations in it.
    #[prost(uint64, tag = "6")]
    pub zero_count_int: u64,
    /// Runs of buckets.
    #[prost(message, repeated, tag = "11")]
    pub positive_spans: Vec<BucketSpan>,
    /// Each bucket's count less that of the one before.
    #[prost(sint64, repeated, tag = "12")]
    pub positive_deltas: Vec<i64>,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "15")]
    pub timestamp: i64,
    /// When the series began, in milliseconds since 1970, 0 when unknown.
    #[prost(int64, tag = "17")]
    pub start_timestamp: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct BucketSpan {
    /// From the end of the run before.
    #[prost(sint32, tag = "1")]
    pub offset: i32,
    /// Buckets.
    #[prost(uint32, tag = "2")]
    pub length: u32,
}
