//! Slow events as OTLP logs.

use super::{MOST_REQUEST_BYTES, NESTED_BYTES, Resource, attribute, resource, scope, text, unix_nanos};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
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
    pub attributes: Vec<(String, Value)>,
    /// All of it as one line.
    pub line: String,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// Another number.
    Float(f64),
    /// Truth.
    Truth(bool),
}

/// Requests (encoded `ExportLogsServiceRequest`) of bounded size, each with the number of its records.
pub fn requests(records: &[Record], from: &Resource) -> Vec<(Vec<u8>, u64)> {
    let (mut done, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
    for record in records {
        let record = log_record(record);
        let size = record.encoded_len() + NESTED_BYTES;
        if bytes + size > MOST_REQUEST_BYTES && !some.is_empty() {
            done.push(request(std::mem::take(&mut some), from));
            bytes = 0;
        }
        bytes += size;
        some.push(record);
    }
    if !some.is_empty() {
        done.push(request(some, from));
    }
    done
}

/// What a receiver says of a request it took: records it refused, and why.
pub fn refused(response: &[u8]) -> (u64, String) {
    let partial = ExportLogsServiceResponse::decode(response).ok().and_then(|response| response.partial_success);
    partial.map_or((0, String::new()), |partial| {
        (u64::try_from(partial.rejected_log_records).unwrap_or(0), partial.error_message)
    })
}

fn request(log_records: Vec<LogRecord>, from: &Resource) -> (Vec<u8>, u64) {
    let count = log_records.len() as u64;
    let scope_logs = vec![ScopeLogs { scope: Some(scope(from)), log_records, schema_url: String::new() }];
    let resource_logs = vec![ResourceLogs { resource: Some(resource(from)), scope_logs, schema_url: String::new() }];
    (ExportLogsServiceRequest { resource_logs }.encode_to_vec(), count)
}

fn log_record(record: &Record) -> LogRecord {
    LogRecord {
        time_unix_nano: unix_nanos(record.at),
        observed_time_unix_nano: unix_nanos(record.read),
        // It was slow, which is what somebody asked to be told, and no fault.
        severity_number: SeverityNumber::Info as i32,
        severity_text: "INFO".into(),
        body: Some(text(&record.line)),
        attributes: record.attributes.iter().map(|(name, value)| typed(name, value)).collect(),
        event_name: EVENT_NAME.into(),
        ..LogRecord::default()
    }
}

fn typed(name: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => return attribute(name, text),
        Value::Whole(number) => any_value::Value::IntValue(*number),
        Value::Float(number) => any_value::Value::DoubleValue(*number),
        Value::Truth(truth) => any_value::Value::BoolValue(*truth),
    };
    KeyValue { key: name.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn record(line: String) -> Record {
        let attributes = vec![
            ("probe".into(), Value::Text("p".into())),
            ("pid".into(), Value::Whole(-7)),
            ("wait".into(), Value::Float(0.25)),
            ("on".into(), Value::Truth(true)),
        ];
        Record { at: UNIX_EPOCH + Duration::from_nanos(5), read: UNIX_EPOCH + Duration::from_secs(1), attributes, line }
    }

    #[test]
    fn an_event_is_a_record_with_typed_attributes() {
        let from = Resource { attributes: vec![("service.name".into(), "kstrobe".into())], version: "1".into() };
        let requests = requests(&[record("{}".into())], &from);
        let [(body, 1)] = requests.as_slice() else { panic!("{requests:?}") };
        let request = ExportLogsServiceRequest::decode(body.as_slice()).unwrap();
        let resource = &request.resource_logs[0];
        assert_eq!(resource.resource.as_ref().unwrap().attributes, [attribute("service.name", "kstrobe")]);
        let record = &resource.scope_logs[0].log_records[0];
        assert_eq!((record.time_unix_nano, record.observed_time_unix_nano), (5, 1_000_000_000));
        assert_eq!((record.event_name.as_str(), &record.body), ("kstrobe.slow", &Some(text("{}"))));
        let values: Vec<_> = record.attributes.iter().map(|a| a.value.clone().unwrap().value.unwrap()).collect();
        let expected = [
            any_value::Value::StringValue("p".into()),
            any_value::Value::IntValue(-7),
            any_value::Value::DoubleValue(0.25),
            any_value::Value::BoolValue(true),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn many_large_records_make_several_requests() {
        let records: Vec<_> = (0..50).map(|_| record("x".repeat(100 << 10))).collect();
        let requests = requests(&records, &Resource::default());
        assert!(requests.len() >= 3 && requests.iter().all(|(body, _)| body.len() <= MOST_REQUEST_BYTES + 1024));
        assert_eq!(requests.iter().map(|(_, count)| count).sum::<u64>(), 50);
    }
}
