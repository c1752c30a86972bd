//! Slow events as OTLP logs.

use super::bundle::bundle;
use super::value::{self, Attributes, typed};
use super::{Resource, resource, scope, text, unix_nanos};
use crate::part::Part;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use prost::Message;
use std::time::SystemTime;

/// Name of these events.
pub const EVENT_NAME: &str = "kstrobe.slow";

/// A single event.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When it was.
    pub at: SystemTime,
    /// When the agent read it.
    pub read: SystemTime,
    /// What is said of it, in this order.
    pub attributes: Attributes,
    pub line: String,
}

impl Record {
    /// About as many bytes as it takes.
    pub fn bytes(&self) -> usize {
        self.line.len() + value::bytes(&self.attributes) + 64
    }
}

/// Requests (`ExportLogsServiceRequest`) of bounded size; the points of each are its records.
pub fn requests(records: &[Record], from: &Resource) -> Vec<Part> {
    let envelope = request(Vec::new(), from).len();
    bundle(records.iter().map(log_record), envelope, |records| request(records, from))
}

fn request(log_records: Vec<LogRecord>, from: &Resource) -> Vec<u8> {
    let scope_logs = vec![ScopeLogs { scope: Some(scope(from)), log_records, schema_url: String::new() }];
    let resource_logs = vec![ResourceLogs { resource: Some(resource(from)), scope_logs, schema_url: String::new() }];
    ExportLogsServiceRequest { resource_logs }.encode_to_vec()
}

fn log_record(record: &Record) -> LogRecord {
    LogRecord {
        time_unix_nano: unix_nanos(record.at),
        observed_time_unix_nano: unix_nanos(record.read),
        // A slow event is no error: it passed a threshold of the probe.
        severity_number: SeverityNumber::Info as i32,
        severity_text: "INFO".into(),
        body: Some(text(&record.line)),
        attributes: typed(&record.attributes),
        event_name: EVENT_NAME.into(),
        ..LogRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_REQUEST_BYTES, Value, attribute};
    use super::*;
    use opentelemetry_proto::tonic::common::v1::any_value;
    use std::time::{Duration, UNIX_EPOCH};

    fn record(line: String) -> Record {
        let attributes = vec![
            ("probe".into(), Value::Text("p".into())),
            ("pid".into(), Value::Whole(-7)),
            ("wait".into(), Value::Float(0.25)),
            ("on".into(), Value::Truth(true)),
            ("stack".into(), Value::Texts(vec!["leaf".into(), "root".into()])),
        ];
        Record { at: UNIX_EPOCH + Duration::from_nanos(5), read: UNIX_EPOCH + Duration::from_secs(1), attributes, line }
    }

    #[test]
    fn an_event_is_a_record_with_typed_attributes() {
        let from = Resource { attributes: vec![("service.name".into(), "kstrobe".into())], version: "1".into() };
        let requests = requests(&[record("{}".into())], &from);
        let [Part { body, points: 1, .. }] = requests.as_slice() else { panic!("{requests:?}") };
        let request = ExportLogsServiceRequest::decode(body.as_slice()).unwrap();
        let resource = &request.resource_logs[0];
        assert_eq!(resource.resource.as_ref().unwrap().attributes, [attribute("service.name", "kstrobe")]);
        let record = &resource.scope_logs[0].log_records[0];
        assert_eq!((record.time_unix_nano, record.observed_time_unix_nano), (5, 1_000_000_000));
        assert_eq!((record.event_name.as_str(), &record.body), ("kstrobe.slow", &Some(text("{}"))));
        let values: Vec<_> = record.attributes.iter().map(|a| a.value.clone().unwrap().value.unwrap()).collect();
        let [probe, pid, wait, on, any_value::Value::ArrayValue(stack)] = values.as_slice() else {
            panic!("{values:?}")
        };
        assert_eq!(*probe, any_value::Value::StringValue("p".into()));
        assert_eq!((pid, wait), (&any_value::Value::IntValue(-7), &any_value::Value::DoubleValue(0.25)));
        assert_eq!(
            (on, stack.values.as_slice()),
            (&any_value::Value::BoolValue(true), &[text("leaf"), text("root")][..])
        );
    }

    #[test]
    fn many_large_records_make_several_requests() {
        let records: Vec<_> = (0..50).map(|_| record("x".repeat(100 << 10))).collect();
        let requests = requests(&records, &Resource::default());
        assert!(requests.len() >= 3 && requests.iter().all(|part| part.body.len() <= MAX_REQUEST_BYTES));
        assert_eq!(requests.iter().map(|part| part.points).sum::<u64>(), 50);
        let encoded: usize = requests.iter().map(|part| part.body.len()).sum();
        let estimated: usize = records.iter().map(Record::bytes).sum();
        assert!(estimated * 9 / 10 < encoded && encoded < estimated * 11 / 10, "{estimated} for {encoded}");
    }
}
