//! Selectors of fields and labels in queries.

use serde_json::Value;

/// Whether an object is selected, or the term that we do not know.
pub(crate) fn selects(labels: &str, fields: &str, object: &Value) -> Result<bool, String> {
    for term in terms(fields) {
        let (path, wanted, equal) = split(&term).ok_or(term.clone())?;
        let pointer = format!("/{}", path.replace('.', "/"));
        // As the API server: others are refused.
        if !["metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"].contains(&path) {
            return Err(term);
        }
        if (object.pointer(&pointer).and_then(Value::as_str).unwrap_or("") == wanted) != equal {
            return Ok(false);
        }
    }
    for term in terms(labels) {
        if !label(&term, object)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn label(term: &str, object: &Value) -> Result<bool, String> {
    let value = |key: &str| object["metadata"]["labels"][key.trim()].as_str();
    if let Some((key, set)) = term.split_once(" notin ") {
        let set = members(set).ok_or(term)?;
        return Ok(value(key).is_none_or(|value| !set.contains(&value)));
    }
    if let Some((key, set)) = term.split_once(" in ") {
        let set = members(set).ok_or(term)?;
        return Ok(value(key).is_some_and(|value| set.contains(&value)));
    }
    Ok(match split(term) {
        Some((key, wanted, true)) => value(key) == Some(wanted),
        Some((key, wanted, false)) => value(key) != Some(wanted),
        None => match term.strip_prefix('!') {
            Some(key) => value(key).is_none(),
            None => value(term).is_some(),
        },
    })
}

fn members(set: &str) -> Option<Vec<&str>> {
    let inside = set.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(inside.split(',').map(str::trim).collect())
}

/// At commas that are not in brackets.
fn terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = terms.last_mut() {
            last.push(c);
        }
    }
    terms.into_iter().map(|term| term.trim().to_owned()).filter(|term| !term.is_empty()).collect()
}

fn split(term: &str) -> Option<(&str, &str, bool)> {
    if let Some((key, value)) = term.split_once("!=") {
        return Some((key.trim(), value.trim(), false));
    }
    let (key, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((key.trim(), value.trim(), true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_select() {
        let pod = json!({"metadata": {"name": "a", "labels": {"app": "web", "tier": "x"}}, "spec": {"nodeName": "n1"}});
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=web", "spec.nodeName=n1", true),
            ("app==web,tier!=y", "spec.nodeName!=n2,metadata.name=a", true),
            ("app in (db, web),tier notin (y)", "", true),
            ("app in (db)", "", false),
            ("app,!other", "", true),
            ("!app", "", false),
            ("", "spec.nodeName=n2", false),
        ] {
            assert_eq!(selects(labels, fields, &pod), Ok(expected), "{labels} {fields}");
        }
        assert_eq!(selects("", "spec.color=red", &pod), Err("spec.color=red".to_owned()));
    }
}
