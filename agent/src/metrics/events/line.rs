//! An event as a line of JSON.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An event with all its names.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its own name.
    pub id: String,
    /// When it was.
    pub at: SystemTime,
    pub probe: Arc<str>,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Names and values, in the user's order.
    pub fields: Vec<(String, Value)>,
}

impl Event {
    /// `{"time":..,"id":..,"probe":..,"pid":..,"tid":..,"fields":{..}}`, without a newline.
    pub fn line(&self) -> String {
        // Its keys are text and its values JSON: nothing in it can fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("time", &rfc3339(self.at))?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("probe", &*self.probe)?;
        map.serialize_entry("pid", &self.pid)?;
        map.serialize_entry("tid", &self.tid)?;
        map.serialize_entry("fields", &InOrder(&self.fields))?;
        map.end()
    }
}

struct InOrder<'a>(&'a [(String, Value)]);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The wall clock's time of an instant of `CLOCK_MONOTONIC`, both clocks being read now.
pub fn wall_time(at_ns: u64, now_ns: u64, now: SystemTime) -> SystemTime {
    let ago = Duration::from_nanos(now_ns.saturating_sub(at_ns));
    now.checked_sub(ago).filter(|at| *at > UNIX_EPOCH).unwrap_or(UNIX_EPOCH)
}

/// `2026-02-28T23:59:59.000001Z`: UTC, to the microsecond, which is about what two clocks can be compared to.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Date of a day since 1970-01-01 in the Gregorian calendar. Years begin in March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date_1() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_772_323_199, "2026-02-28T23:59:59.000000Z"),
            (1_772_323_200, "2026-03-01T00:00:00.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_nanos(1_999)), "1970-01-01T00:00:00.000001Z");
    }

    #[test]
    fn the_wall_clock_goes_back_by_the_age() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(wall_time(3_000, 5_000, now), now - Duration::from_nanos(2_000));
        assert_eq!(wall_time(6_000, 5_000, now), now, "never in the future");
        assert_eq!(wall_time(0, u64::MAX, now), UNIX_EPOCH);
    }

    #[test]
    fn fields_keep_their_order_and_are_quoted() {
        let fields = vec![("z".to_owned(), 1.into()), ("a".to_owned(), "quo\"te\n".into())];
        let event = Event { id: "a0".into(), at: UNIX_EPOCH, probe: "p".into(), pid: 1, tid: 2, fields };
        let time = "1970-01-01T00:00:00.000000Z";
        let expected =
            format!(r#"{{"time":"{time}","id":"a0","probe":"p","pid":1,"tid":2,"fields":{{"z":1,"a":"quo\"te\n"}}}}"#);
        assert_eq!(event.line(), expected);
    }
}
