//! One line of a watch.

use super::known::Object;
use crate::answer::Status;
use serde_json::Value;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// `ADDED`, `MODIFIED`
    Changed(Object<T>),
    /// `DELETED`: the object's uid, and the version of the deletion.
    Deleted(String, String),
    /// `BOOKMARK`, and whatever else has a version and nothing that we read: how far the server is.
    Version(String),
    /// `ERROR`: the end of this watch.
    Error(Status),
}

/// Why a line is no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is not the protocol: what it was to say is lost.
    Line,
    /// The object says nothing to us; nothing is lost but that.
    Object,
}

/// Reads a line, and the version it is of. `read` makes something of an object.
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

/// An object of a list or an event.
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
