//! RFC 3339 times of Kubernetes objects.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses `2026-11-20T08:15:32Z` into seconds since 1970.
pub fn from_text(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp)
}

/// Formats seconds since 1970 as `2026-11-20T08:15:32Z`.
pub fn to_text(seconds: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(seconds).ok()?.format(&Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        assert_eq!(from_text("1970-01-01T00:01:00Z"), Some(60));
        assert_eq!(from_text("2026-11-20T09:15:32.25+01:00"), from_text("2026-11-20T08:15:32Z"));
        assert_eq!(to_text(60).as_deref(), Some("1970-01-01T00:01:00Z"));
        assert_eq!((from_text("tomorrow"), to_text(i64::MAX)), (None, None));
    }
}
