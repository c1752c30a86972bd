//! Watch events.

use super::store::Object;
use crate::answer::Status;
use serde_json::Value;

/// A watch event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// `ADDED`, `MODIFIED`
    Changed(Object<T>),
    /// `DELETED`: uid of the object, and `resourceVersion` of the deletion.
    Deleted(String, String),
    /// `BOOKMARK`, or an unknown type with a `resourceVersion`.
    Version(String),
    /// `ERROR`: ends this watch.
    Error(Status),
}

/// Why a line could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Invalid line: an event was lost.
    Line,
    /// Valid event with an unreadable object; only this object is lost.
    Object,
}

/// Parses a line; the error carries the `resourceVersion` if known. `read` converts an object.
pub(crate) fn parse<T>(
    line: &[u8],
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Event<T>, (Unreadable, Option<String>)> {
    let lost = (Unreadable::Line, None);
    let value: Value = serde_json::from_slice(line).map_err(|_| lost.clone())?;
    let object = &value["object"];
    let kind = value["type"].as_str().ok_or(lost.clone())?;
    if kind == "ERROR" {
        let unknown = Status { code: 500, message: "an ERROR without a status".into(), ..Status::default() };
        return Ok(Event::Error(Status::of_object(object).unwrap_or(unknown)));
    }
    let version = text(&object["metadata"]["resourceVersion"]).ok_or(lost)?;
    let not_ours = (Unreadable::Object, Some(version.clone()));
    match kind {
        "ADDED" | "MODIFIED" => self::object(object, read).map(Event::Changed).ok_or(not_ours),
        "DELETED" => Ok(Event::Deleted(text(&object["metadata"]["uid"]).ok_or(not_ours)?, version)),
        "BOOKMARK" => Ok(Event::Version(version)),
        _ => Err(not_ours),
    }
}

/// Converts an object of a list or an event.
pub(crate) fn object<T>(object: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Object<T>> {
    let metadata = &object["metadata"];
    let (uid, version) = (text(&metadata["uid"])?, text(&metadata["resourceVersion"])?);
    Some(Object { uid, version, value: read(object)? })
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn name(object: &Value) -> Option<String> {
        text(&object["metadata"]["name"])
    }

    #[test]
    fn lines_of_a_watch() {
        let of =
            |kind: &str, object: Value| parse(json!({"type": kind, "object": object}).to_string().as_bytes(), name);
        let pod = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}});
        let changed = Event::Changed(Object { uid: "u".into(), version: "7".into(), value: "a".to_owned() });
        assert_eq!(of("ADDED", pod.clone()), Ok(changed.clone()));
        assert_eq!(of("MODIFIED", pod.clone()), Ok(changed));
        assert_eq!(of("DELETED", pod.clone()), Ok(Event::Deleted("u".into(), "7".into())));
        let bookmark = json!({"kind": "Pod", "metadata": {"resourceVersion": "9"}});
        assert_eq!(of("BOOKMARK", bookmark), Ok(Event::Version("9".into())));
        assert_eq!(of("TELEPORTED", pod), Err((Unreadable::Object, Some("7".into()))));
        let nameless = json!({"metadata": {"uid": "u", "resourceVersion": "8"}});
        assert_eq!(of("ADDED", nameless), Err((Unreadable::Object, Some("8".into()))));
        assert_eq!(of("ADDED", json!({})), Err((Unreadable::Line, None)));
        let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
        assert!(matches!(of("ERROR", gone), Ok(Event::Error(status)) if status.is_gone()));
        assert!(matches!(of("ERROR", json!({})), Ok(Event::Error(status)) if status.code == 500));
    }

    proptest! {
        #[test]
        fn any_line_is_an_event_or_unreadable(line in "\\PC{0,60}") {
            let _ = parse(line.as_bytes(), name);
        }
    }
}
