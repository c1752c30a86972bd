//! The meaning of a response: accepted, to be retried, or refused for good.

use crate::push::exporter::Kind;
use prost::Message;
use std::time::{Duration, SystemTime};

/// The result of sending a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver accepted it, but for `refused` points.
    Accepted {
        /// Points that the receiver refused.
        refused: u64,
        /// Its message about them.
        message: String,
    },
    /// The request may succeed later.
    Retryable {
        /// Label `reason` of metrics.
        reason: &'static str,
        /// From Retry-After or RetryInfo.
        after: Option<Duration>,
        /// For the log.
        message: String,
    },
    /// The same request would be refused again.
    Permanent {
        /// Points that the receiver wrote nevertheless.
        taken: u64,
        /// Label `reason` of metrics.
        reason: &'static str,
        /// For the log.
        message: String,
    },
}

/// Characters of a response body that an error message shows.
const MAX_MESSAGE_CHARACTERS: usize = 200;

/// Reads an HTTP response. `retry_after` is the value of that header, whose date is compared with `now`.
///
/// OTLP/HTTP retries 429, 502, 503 and 504 (its specification, "Failures"); remote write 2.0 retries 429 and every 5xx.
pub fn http(kind: Kind, status: u16, retry_after: Option<&str>, now: SystemTime, body: &[u8]) -> Outcome {
    let again = match kind {
        Kind::RemoteWrite => status == 429 || (500..600).contains(&status),
        Kind::OtlpGrpc | Kind::OtlpHttp => matches!(status, 429 | 502 | 503 | 504),
    };
    let message = || match readable(body) {
        text if text.is_empty() => format!("HTTP status {status}"),
        text => format!("HTTP status {status}: {text}"),
    };
    let reason = match status {
        401 | 403 => "unauthorized",
        404 => "not_found",
        413 => "too_large",
        415 => "unsupported",
        429 => "throttled",
        300..400 => "redirected",
        400..500 => "bad_request",
        _ => "server_error",
    };
    if (200..300).contains(&status) {
        let (refused, message) = match kind {
            Kind::RemoteWrite => (0, String::new()),
            Kind::OtlpGrpc | Kind::OtlpHttp => crate::otlp::refused(body),
        };
        Outcome::Accepted { refused, message: readable(message.as_bytes()) }
    } else if again {
        let after = retry_after.and_then(|text| self::retry_after(text, now));
        Outcome::Retryable { reason, after, message: message() }
    } else {
        Outcome::Permanent { taken: 0, reason, message: message() }
    }
}

/// Applies the headers `X-Prometheus-Remote-Write-*-Written` of remote write 2.0. A receiver that accepts a request without
/// them speaks another version; one that refuses a request for some points may have written the others.
pub fn written(answer: Outcome, written: Option<u64>, points: u64) -> Outcome {
    match (answer, written) {
        (Outcome::Accepted { .. }, None) => {
            let message = "the receiver does not speak remote write 2.0".into();
            Outcome::Permanent { taken: 0, reason: "unsupported", message }
        }
        (Outcome::Accepted { .. }, Some(written)) if written < points => {
            let message = format!("{written} of {points} points were written");
            Outcome::Accepted { refused: points - written, message }
        }
        (Outcome::Accepted { .. }, Some(_)) => Outcome::Accepted { refused: 0, message: String::new() },
        (Outcome::Permanent { reason, message, .. }, Some(written)) => {
            Outcome::Permanent { taken: written.min(points), reason, message }
        }
        // A retried request is counted when it succeeds.
        (answer @ (Outcome::Retryable { .. } | Outcome::Permanent { .. }), _) => answer,
    }
}

/// Retry-After: seconds or an HTTP date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(text).ok()?.duration_since(now).ok()
}

/// Reads a gRPC failure: code, message and details (an encoded `google.rpc.Status`) of its trailers.
pub fn grpc(code: i32, message: &str, details: &[u8]) -> Outcome {
    let after = retry_info(details);
    // The retryable codes of the OTLP specification; RESOURCE_EXHAUSTED only with RetryInfo.
    let again = matches!(code, 1 | 4 | 10 | 11 | 14 | 15) || (code == 8 && after.is_some());
    let (reason, name) = match code {
        1 => ("cancelled", "CANCELLED"),
        2 => ("server_error", "UNKNOWN"),
        3 => ("bad_request", "INVALID_ARGUMENT"),
        4 => ("timeout", "DEADLINE_EXCEEDED"),
        5 => ("not_found", "NOT_FOUND"),
        7 => ("unauthorized", "PERMISSION_DENIED"),
        8 if again => ("throttled", "RESOURCE_EXHAUSTED"),
        8 => ("too_large", "RESOURCE_EXHAUSTED"),
        10 => ("aborted", "ABORTED"),
        11 => ("out_of_range", "OUT_OF_RANGE"),
        12 => ("unsupported", "UNIMPLEMENTED"),
        13 => ("server_error", "INTERNAL"),
        14 => ("unavailable", "UNAVAILABLE"),
        15 => ("data_loss", "DATA_LOSS"),
        16 => ("unauthorized", "UNAUTHENTICATED"),
        _ => ("bad_request", "another code"),
    };
    let message = format!("gRPC status {code} ({name}): {}", readable(message.as_bytes()));
    if again { Outcome::Retryable { reason, after, message } } else { Outcome::Permanent { taken: 0, reason, message } }
}

/// `google.rpc.Status`, in part.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = Status::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into())))
}

/// The beginning of a text in one line, without control characters.
fn readable(text: &[u8]) -> String {
    // A character has at most four bytes.
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_MESSAGE_CHARACTERS)]);
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(MAX_MESSAGE_CHARACTERS).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    /// `taken`, `later` or `never`, and the word.
    fn short(outcome: &Outcome) -> (&'static str, &'static str) {
        match outcome {
            Outcome::Accepted { .. } => ("taken", ""),
            Outcome::Retryable { reason, .. } => ("later", reason),
            Outcome::Permanent { reason, .. } => ("never", reason),
        }
    }

    #[test]
    fn codes_of_http() {
        for (status, otlp, remote_write) in [
            (200, ("taken", ""), ("taken", "")),
            (204, ("taken", ""), ("taken", "")),
            (307, ("never", "redirected"), ("never", "redirected")),
            (400, ("never", "bad_request"), ("never", "bad_request")),
            (401, ("never", "unauthorized"), ("never", "unauthorized")),
            (403, ("never", "unauthorized"), ("never", "unauthorized")),
            (404, ("never", "not_found"), ("never", "not_found")),
            (413, ("never", "too_large"), ("never", "too_large")),
            (415, ("never", "unsupported"), ("never", "unsupported")),
            (429, ("later", "throttled"), ("later", "throttled")),
            (500, ("never", "server_error"), ("later", "server_error")),
            (502, ("later", "server_error"), ("later", "server_error")),
            (503, ("later", "server_error"), ("later", "server_error")),
            (504, ("later", "server_error"), ("later", "server_error")),
            (505, ("never", "server_error"), ("later", "server_error")),
        ] {
            assert_eq!(short(&http(Kind::OtlpHttp, status, None, UNIX_EPOCH, b"")), otlp, "{status}");
            assert_eq!(short(&http(Kind::RemoteWrite, status, None, UNIX_EPOCH, b"")), remote_write, "{status}");
        }
    }

    #[test]
    fn a_receiver_of_remote_write_says_what_it_wrote() {
        let answer = |status, said| {
            let answer = http(Kind::RemoteWrite, status, None, UNIX_EPOCH, b"");
            match written(answer, said, 3) {
                Outcome::Accepted { refused, .. } => ("taken", 3 - refused),
                Outcome::Retryable { reason, .. } => (reason, 0),
                Outcome::Permanent { taken, reason, .. } => (reason, taken),
            }
        };
        for (status, said, expected) in [
            (204, Some(3), ("taken", 3)),
            (204, Some(2), ("taken", 2)),
            (204, None, ("unsupported", 0)),
            (400, Some(2), ("bad_request", 2)),
            (400, Some(9), ("bad_request", 3)),
            (400, None, ("bad_request", 0)),
            (500, Some(2), ("server_error", 0)),
        ] {
            assert_eq!(answer(status, said), expected, "{status} {said:?}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_700);
        for (text, expected) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(77)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", None),
            ("soon", None),
            ("-1", None),
        ] {
            let outcome = http(Kind::OtlpHttp, 503, Some(text), now, b"down\x1b[31m\r\nfor a while");
            let Outcome::Retryable { after, message, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(after, expected.map(Duration::from_secs), "{text}");
            assert_eq!(message, "HTTP status 503: down [31m  for a while");
        }
    }

    #[test]
    fn codes_of_grpc() {
        for (code, expected) in [
            (1, ("later", "cancelled")),
            (2, ("never", "server_error")),
            (3, ("never", "bad_request")),
            (4, ("later", "timeout")),
            (7, ("never", "unauthorized")),
            (8, ("never", "too_large")),
            (10, ("later", "aborted")),
            (11, ("later", "out_of_range")),
            (12, ("never", "unsupported")),
            (13, ("never", "server_error")),
            (14, ("later", "unavailable")),
            (15, ("later", "data_loss")),
            (16, ("never", "unauthorized")),
            (99, ("never", "bad_request")),
        ] {
            assert_eq!(short(&grpc(code, "", b"")), expected, "{code}");
        }
    }

    #[test]
    fn exhausted_resources_are_tried_again_when_the_receiver_says_when() {
        let delay = Delay { seconds: 7, nanos: 500_000_000 };
        let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
        let other = Any { type_url: "type.googleapis.com/google.rpc.DebugInfo".into(), value: vec![1] };
        let info = Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value };
        let details = Status { details: vec![other, info] }.encode_to_vec();
        let outcome = grpc(8, "full", &details);
        let Outcome::Retryable { reason, after, message } = outcome else { panic!("{outcome:?}") };
        assert_eq!((reason, after), ("throttled", Some(Duration::from_millis(7_500))));
        assert_eq!(message, "gRPC status 8 (RESOURCE_EXHAUSTED): full");
    }

    proptest! {
        #[test]
        fn hostile_answers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), code: i32, status: u16) {
            let text = String::from_utf8_lossy(&bytes);
            grpc(code, &text, &bytes);
            for kind in [Kind::OtlpHttp, Kind::RemoteWrite] {
                let outcome = http(kind, status, Some(&text), UNIX_EPOCH, &bytes);
                if let Outcome::Retryable { message, .. } | Outcome::Permanent { message, .. } = outcome {
                    prop_assert!(message.chars().count() <= 240);
                }
            }
        }
    }
}
