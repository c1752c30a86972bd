//! `start_at` of the API: parsed and written.

use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Bound of the wait: a waiting capture counts for `captures.max_concurrent`.
const MAX_AHEAD: Duration = Duration::from_secs(300);

/// What is wrong with a `start_at`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("write a time as 2026-11-21T12:36:26.5Z, or nanoseconds since 1970")]
    NotATime,
    #[error("{} was {:.3} s ago by this node's clock, where it is {}", show(*at), ago.as_secs_f64(), show(*now))]
    Past { at: SystemTime, now: SystemTime, ago: Duration },
    #[error(
        "{} is {} s from now by this node's clock, and at most {} s are allowed",
        show(*at), left.as_secs(), MAX_AHEAD.as_secs()
    )]
    TooFar { at: SystemTime, left: Duration },
}

/// A time in RFC 3339, or in nanoseconds since the Unix epoch, that is soon.
pub(super) fn parse(value: &Value, now: SystemTime) -> Result<SystemTime, StartError> {
    let at = match value {
        Value::String(text) => {
            let at = OffsetDateTime::parse(text.trim(), &Rfc3339).map_err(|_| StartError::NotATime)?;
            SystemTime::from(at)
        }
        Value::Number(number) => UNIX_EPOCH + Duration::from_nanos(number.as_u64().ok_or(StartError::NotATime)?),
        _ => return Err(StartError::NotATime),
    };
    if let Ok(ago) = now.duration_since(at)
        && !ago.is_zero()
    {
        return Err(StartError::Past { at, now, ago });
    }
    match at.duration_since(now) {
        Ok(left) if left > MAX_AHEAD => Err(StartError::TooFar { at, left }),
        _ => Ok(at),
    }
}

/// In RFC 3339, to the nanosecond.
pub(super) fn show(at: SystemTime) -> String {
    // Every time that was parsed can be written.
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_that_are_soon() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_264_586);
        let said = |value: Value| parse(&value, now);
        let later = |ms| Ok(now + Duration::from_millis(ms));
        assert_eq!(said(json!("2026-11-21T12:36:26.500Z")), later(500));
        assert_eq!(said(json!("2026-11-21T13:36:27+01:00")), later(1000));
        assert_eq!(said(json!(1_795_264_588_000_000_000_u64)), later(2000));
        assert_eq!(said(json!("2026-11-21T12:36:26Z")), later(0), "now is soon enough");
        assert_eq!(show(now + Duration::from_nanos(1)), "2026-11-21T12:36:26.000000001Z");
        for (wrong, part) in [
            (json!("2026-11-21T12:36:25Z"), "was 1.000 s ago by this node's clock, where it is 2026-11-21T12:36:26Z"),
            (json!("2026-11-21T12:41:27Z"), "is 301 s from now by this node's clock, and at most 300 s"),
            // Seconds, where nanoseconds are meant.
            (json!(1_795_264_588), "was 1795264584.205 s ago"),
            (json!(-1), "write a time as"),
            (json!(1.5), "write a time as"),
            (json!("12:36"), "write a time as"),
            (json!(null), "write a time as"),
            (json!(["2026-11-21T12:36:26Z"]), "write a time as"),
            (json!(u64::MAX), "s from now"),
            (json!("9999-12-31T23:59:59Z"), "s from now"),
            (json!("0000-01-01T00:00:00Z"), "s ago"),
        ] {
            let message = said(wrong.clone()).unwrap_err().to_string();
            assert!(message.contains(part), "{wrong}: {message}");
        }
    }
}
