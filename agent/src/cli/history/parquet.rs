//! A tidy table in Parquet: a row for each change of a counter or gauge, of a histogram's sum and of each of its buckets.

use super::HistoryError;
use super::contents::kind;
use super::export::Writer;
use ::parquet::basic::Compression;
use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use kstrobe_export::quotient;
use kstrobe_export::snapshot::Descriptor;
use kstrobe_history::disk::Replayed;
use kstrobe_history::{Change, Labels};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a row group; they wait in memory.
const GROUP_ROWS: usize = 256 << 10;

/// `time` is the beginning of the second, or of the last of `seconds` seconds. `field` is what `value` is: of a counter its
/// `increase`; of a gauge its `value`, null when it ends; of a histogram the increase of its `sum`, or of the count of the `bucket`
/// from above `lower` up to `upper`.
const SCHEMA: &str = "message history {
    REQUIRED INT64 time (TIMESTAMP(MILLIS, true));
    REQUIRED INT32 seconds;
    REQUIRED BYTE_ARRAY metric (STRING);
    REQUIRED BYTE_ARRAY type (STRING);
    REQUIRED BYTE_ARRAY labels (JSON);
    REQUIRED BYTE_ARRAY field (STRING);
    OPTIONAL DOUBLE lower;
    OPTIONAL DOUBLE upper;
    OPTIONAL DOUBLE value;
    REQUIRED BYTE_ARRAY unit (STRING);
    REQUIRED BYTE_ARRAY probe (STRING);
    REQUIRED BOOLEAN sampled;
}";

pub struct Table {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    rows: Rows,
    /// Texts that occur often, made once.
    texts: HashMap<String, ByteArray>,
    /// By metric.
    labels: HashMap<String, HashMap<Labels, ByteArray>>,
}

/// Columns of the rows that wait.
#[derive(Default)]
struct Rows {
    time: Vec<i64>,
    seconds: Vec<i32>,
    metric: Vec<ByteArray>,
    kind: Vec<ByteArray>,
    labels: Vec<ByteArray>,
    field: Vec<ByteArray>,
    lower: Optional,
    upper: Optional,
    value: Optional,
    unit: Vec<ByteArray>,
    probe: Vec<ByteArray>,
    sampled: Vec<bool>,
}

/// A column in which values may be missing.
#[derive(Default)]
struct Optional {
    values: Vec<f64>,
    /// 1 for each row that has a value.
    levels: Vec<i16>,
}

impl Optional {
    fn push(&mut self, value: Option<f64>) {
        self.values.extend(value);
        self.levels.push(i16::from(value.is_some()));
    }
}

/// A cell or several of a change.
struct Field {
    name: &'static str,
    bounds: Option<(f64, f64)>,
    value: Option<f64>,
}

impl Field {
    fn plain(name: &'static str, value: Option<f64>) -> Field {
        Field { name, bounds: None, value }
    }
}

/// The rows of a change.
fn fields(change: &Change, unit: u64, upper: &[u64]) -> Vec<Field> {
    match change {
        Change::Counter(increase) => vec![Field::plain("increase", Some(quotient(*increase, unit)))],
        Change::Gauge(value) => vec![Field::plain("value", value.map(|value| value.exported(unit)))],
        Change::Histogram { sum, buckets } => {
            let bound = |at: usize| upper.get(at).map_or(f64::INFINITY, |raw| quotient(*raw, unit));
            let bucket = |(bucket, count): &(u32, u64)| {
                let at = *bucket as usize;
                let bounds = (at.checked_sub(1).map_or(0.0, bound), bound(at));
                Field { name: "bucket", bounds: Some(bounds), value: Some(*count as f64) }
            };
            let sum = Field::plain("sum", Some(quotient(*sum, unit)));
            [sum].into_iter().chain(buckets.iter().map(bucket)).collect()
        }
    }
}

/// The labels as an object of JSON, in the order of the metric.
fn json(about: &Descriptor, labels: &Labels) -> String {
    let pairs = about.label_names.iter().zip(labels).map(|(name, value)| {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        format!("{}:{}", text(name), text(value))
    });
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

impl Table {
    pub fn create(path: &Path) -> Result<Table, HistoryError> {
        let file = File::create(path).map_err(HistoryError::at(path))?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let schema = parse_message_type(SCHEMA).map(Arc::new);
        let file = schema.and_then(|schema| SerializedFileWriter::new(file, schema, Arc::new(properties)));
        let path = path.to_owned();
        let file = file.map_err(|error| HistoryError::Parquet { path: path.clone(), error })?;
        Ok(Table { path, file, rows: Rows::default(), texts: HashMap::new(), labels: HashMap::new() })
    }

    fn text(&mut self, text: &str) -> ByteArray {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let made = ByteArray::from(text);
        self.texts.insert(text.to_owned(), made.clone());
        made
    }

    fn labels(&mut self, about: &Descriptor, labels: &Labels) -> ByteArray {
        let known = self.labels.entry(about.name.clone()).or_default();
        known.entry(labels.clone()).or_insert_with(|| ByteArray::from(json(about, labels).as_str())).clone()
    }

    fn add(&mut self, replayed: &Replayed) {
        let second = replayed.second;
        for of_probe in &replayed.probes {
            let probe = self.text(&of_probe.probe);
            for changes in &of_probe.metrics {
                let about = &changes.about;
                let [metric, unit, kind] =
                    [about.name.as_str(), about.unit.as_str(), kind(about.kind)].map(|text| self.text(text));
                let upper = changes.scheme.as_ref().map_or(&[][..], |scheme| &scheme.upper);
                for row in &changes.rows {
                    let labels = self.labels(about, &row.labels);
                    for field in fields(&row.change, about.raw_per_unit, upper) {
                        let name = self.text(field.name);
                        let rows = &mut self.rows;
                        rows.time.push((second.start * 1000).cast_signed());
                        rows.seconds.push(i32::try_from(second.seconds).unwrap_or(i32::MAX));
                        rows.metric.push(metric.clone());
                        rows.kind.push(kind.clone());
                        rows.labels.push(labels.clone());
                        rows.field.push(name);
                        rows.lower.push(field.bounds.map(|(lower, _)| lower));
                        rows.upper.push(field.bounds.map(|(_, upper)| upper));
                        rows.value.push(field.value);
                        rows.unit.push(unit.clone());
                        rows.probe.push(probe.clone());
                        rows.sampled.push(of_probe.sampled);
                    }
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.file.next_row_group()?;
        let out = &mut group;
        put::<Int64Type>(out, &rows.time, None)?;
        put::<Int32Type>(out, &rows.seconds, None)?;
        for texts in [&rows.metric, &rows.kind, &rows.labels, &rows.field] {
            put::<ByteArrayType>(out, texts, None)?;
        }
        for numbers in [&rows.lower, &rows.upper, &rows.value] {
            put::<DoubleType>(out, &numbers.values, Some(&numbers.levels))?;
        }
        for texts in [&rows.unit, &rows.probe] {
            put::<ByteArrayType>(out, texts, None)?;
        }
        put::<BoolType>(out, &rows.sampled, None)?;
        group.close()?;
        Ok(())
    }
}

/// Writes the next column of the schema.
fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let column = group.next_column()?;
    let mut column = column.ok_or_else(|| ParquetError::General("the schema has fewer columns".to_owned()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

impl Writer for Table {
    fn second(&mut self, replayed: &Replayed) -> Result<(), HistoryError> {
        self.add(replayed);
        if self.rows.time.len() < GROUP_ROWS {
            return Ok(());
        }
        self.flush().map_err(|error| HistoryError::Parquet { path: self.path.clone(), error })
    }

    fn end(mut self: Box<Self>) -> Result<Vec<String>, HistoryError> {
        let path = self.path.clone();
        let closed = self.flush().and_then(|()| self.file.close().map(drop));
        closed.map_err(|error| HistoryError::Parquet { path, error })?;
        Ok(Vec::new())
    }
}
