//! Spans: what took time, within what.

use super::bundle::bundle;
use super::value::{self, Attributes, typed};
use super::{Resource, resource, scope, unix_nanos};
use crate::part::Part;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as SpanMessage, Status, status};
use prost::Message;
use std::time::SystemTime;

/// Which trace; never all zero.
pub type TraceId = [u8; 16];
/// Which span of it; never all zero.
pub type SpanId = [u8; 8];

#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace it belongs to.
    pub trace: TraceId,
    pub id: SpanId,
    /// What it is a part of.
    pub parent: Option<SpanId>,
    /// What was done.
    pub name: String,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// What is said of it, in this order.
    pub attributes: Attributes,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Span {
    /// About as many bytes as it takes.
    pub fn bytes(&self) -> usize {
        self.name.len() + value::bytes(&self.attributes) + self.error.as_ref().map_or(0, String::len) + 96
    }
}

/// Requests (`ExportTraceServiceRequest`) of bounded size; the points of each are its spans.
pub fn requests(spans: &[Span], from: &Resource) -> Vec<Part> {
    let envelope = request(Vec::new(), from).len();
    bundle(spans.iter().map(span), envelope, |spans| request(spans, from))
}

fn request(spans: Vec<SpanMessage>, from: &Resource) -> Vec<u8> {
    let scope_spans = vec![ScopeSpans { scope: Some(scope(from)), spans, schema_url: String::new() }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource(from)), scope_spans, schema_url: String::new() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn span(span: &Span) -> SpanMessage {
    // No status is set: OpenTelemetry leaves `Ok` to the application.
    let status =
        span.error.as_ref().map(|message| Status { code: status::StatusCode::Error as i32, message: message.clone() });
    SpanMessage {
        trace_id: span.trace.to_vec(),
        span_id: span.id.to_vec(),
        parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
        name: span.name.clone(),
        kind: SpanKind::Internal as i32,
        start_time_unix_nano: unix_nanos(span.start),
        end_time_unix_nano: unix_nanos(span.end),
        attributes: typed(&span.attributes),
        status,
        ..SpanMessage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MAX_REQUEST_BYTES, Value};
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn one(number: u64, parent: Option<SpanId>, error: Option<&str>) -> Span {
        let at = |ns| UNIX_EPOCH + Duration::from_nanos(ns);
        Span {
            trace: [7; 16],
            id: number.to_be_bytes(),
            parent,
            name: format!("call {number}"),
            start: at(number),
            end: at(number + 10),
            attributes: vec![("thread.id".into(), Value::Whole(3))],
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn spans_are_told_with_their_place_in_the_trace() {
        let spans = [one(1, None, None), one(2, Some(1u64.to_be_bytes()), Some("interrupted"))];
        let parts = requests(&spans, &Resource { attributes: vec![], version: "1".into() });
        let [Part { body, points: 2, .. }] = parts.as_slice() else { panic!("{parts:?}") };
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        let scope = &request.resource_spans[0].scope_spans[0];
        assert_eq!(scope.scope.as_ref().map(|scope| scope.name.as_str()), Some("kstrobe"));
        let [root, child] = scope.spans.as_slice() else { panic!("{scope:?}") };
        assert!(root.parent_span_id.is_empty() && root.status.is_none() && root.kind == SpanKind::Internal as i32);
        assert_eq!((child.trace_id.as_slice(), &child.parent_span_id), ([7; 16].as_slice(), &root.span_id));
        assert_eq!((child.start_time_unix_nano, child.end_time_unix_nano), (2, 12));
        let status = child.status.as_ref().unwrap();
        assert_eq!((status.code, status.message.as_str()), (2, "interrupted"));
        assert_eq!(child.attributes[0].key, "thread.id");
    }

    #[test]
    fn very_many_make_several_requests() {
        let spans: Vec<_> = (1..=40_000).map(|number| one(number, None, None)).collect();
        let parts = requests(&spans, &Resource::default());
        assert!(parts.len() > 1 && parts.iter().all(|part| part.body.len() <= MAX_REQUEST_BYTES));
        assert_eq!(parts.iter().map(|part| part.points).sum::<u64>(), 40_000);
    }
}
