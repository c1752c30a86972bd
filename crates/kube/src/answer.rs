//! HTTP responses: size-limited bodies, and error responses as Kubernetes `Status`.

use crate::error::Error;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use std::time::Duration;

/// Bytes read of an error body; the rest is ignored.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Maximum characters of an error message.
const MAX_MESSAGE_CHARACTERS: usize = 500;
/// Maximum honoured `Retry-After`.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// A Kubernetes `Status`, or its best equivalent built from an HTTP response of a proxy or pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code; equals the `code` of the object.
    pub code: u16,
    /// `NotFound`, `Conflict`, `Expired` and so on; empty if the response is not from Kubernetes.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// `metadata.continue`: replacement token for a list whose own token expired.
    pub continue_token: Option<String>,
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Reads a `Status` object; `None` for any other kind.
    pub fn of_object(object: &Value) -> Option<Status> {
        if object["kind"] != "Status" {
            return None;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
        let token = text(&object["metadata"]["continue"]);
        Some(Status {
            code: object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
            reason: text(&object["reason"]),
            message: text(&object["message"]),
            continue_token: (!token.is_empty()).then_some(token),
            retry_after: object["details"]["retryAfterSeconds"].as_u64().and_then(pause),
        })
    }

    /// Builds the status of an unsuccessful response.
    pub fn of_answer(code: u16, headers: &HeaderMap, body: &[u8]) -> Status {
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let object = serde_json::from_slice::<Value>(body).ok();
        let mut status = object
            .as_ref()
            .and_then(Status::of_object)
            .unwrap_or_else(|| Status { message: readable(&String::from_utf8_lossy(body)), ..Status::default() });
        status.code = code;
        status.retry_after = status.retry_after.or(header.and_then(pause));
        status
    }

    /// Whether the requested `resourceVersion` or token has expired (410).
    pub fn is_gone(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }

    /// Whether the API server sent this error, as opposed to a pod behind its proxy.
    pub fn is_kubernetes(&self) -> bool {
        !self.reason.is_empty()
    }

    pub(crate) fn word(&self) -> &'static str {
        match self.code {
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_found",
            409 => "conflict",
            410 => "gone",
            422 => "invalid",
            429 => "throttled",
            300..400 => "redirected",
            400..500 => "bad_request",
            _ => "server_error",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP status {}", self.code)?;
        match self.message.as_str() {
            "" => Ok(()),
            message => write!(f, ": {}", readable(message)),
        }
    }
}

fn pause(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds).min(MAX_PAUSE))
}

/// Joins the text into one line without control characters, which could disturb a terminal.
fn readable(text: &str) -> String {
    let shown: String =
        text.chars().take(MAX_MESSAGE_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a successful response; converts any other into [`Error::Status`].
pub async fn checked(response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    if response.status().is_success() {
        return Ok(response);
    }
    let (Parts { status, headers, .. }, body) = response.into_parts();
    // The status code suffices: a truncated, endless or slow body adds nothing.
    let body = tokio::time::timeout(Duration::from_secs(10), Limited::new(body, MAX_REFUSAL_BYTES).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    Err(Error::Status(Box::new(Status::of_answer(status.as_u16(), &headers, &body))))
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn whole(response: Response<Incoming>, limit: usize, to: &str) -> Result<Bytes, Error> {
    match Limited::new(response.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::TooLarge { to: to.to_owned(), limit }),
        Err(error) => Err(Error::Body { to: to.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn refusals_of_kubernetes_and_of_others() {
        let status = |code, body: &str| Status::of_answer(code, &HeaderMap::new(), body.as_bytes());
        let forbidden = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "pods is forbidden: User \"system:serviceaccount:kstrobe:kstrobe\" cannot list resource \"pods\"",
        });
        let refused = status(403, &forbidden.to_string());
        assert_eq!(
            (refused.reason.as_str(), refused.word(), refused.is_kubernetes()),
            ("Forbidden", "forbidden", true)
        );
        assert!(refused.to_string().starts_with("HTTP status 403: pods is forbidden"));
        let plain = status(401, "Unauthorized\n\u{1b}[31m");
        assert_eq!((plain.to_string().as_str(), plain.is_kubernetes()), ("HTTP status 401: Unauthorized [31m", false));
        assert_eq!(status(502, "").to_string(), "HTTP status 502");
        let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "metadata": {"continue": "again"}});
        let expired = status(410, &expired.to_string());
        assert_eq!((expired.is_gone(), expired.continue_token.as_deref()), (true, Some("again")));
    }

    #[test]
    fn a_server_says_when_to_come_again() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "3".parse().unwrap());
        assert_eq!(Status::of_answer(429, &headers, b"").retry_after, Some(Duration::from_secs(3)));
        headers.insert(RETRY_AFTER, "99999999".parse().unwrap());
        assert_eq!(Status::of_answer(429, &headers, b"").retry_after, Some(MAX_PAUSE));
        let body = json!({"kind": "Status", "code": 429, "details": {"retryAfterSeconds": 1}}).to_string();
        assert_eq!(Status::of_answer(429, &headers, body.as_bytes()).retry_after, Some(Duration::from_secs(1)));
    }
}
