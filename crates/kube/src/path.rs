//! Paths of the API.

use std::fmt::Write;

/// A kind of object, as paths name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API's group; empty for the core.
    pub group: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The name in paths, in the plural.
    pub plural: &'static str,
}

/// Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };

impl Resource {
    /// All objects, of one namespace when there is one.
    pub fn all(&self, namespace: Option<&str>) -> String {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if let Some(namespace) = namespace {
            path.push_str("/namespaces/");
            path.push_str(&encode(namespace));
        }
        path.push('/');
        path.push_str(self.plural);
        path
    }

    /// One object.
    pub fn one(&self, namespace: Option<&str>, name: &str) -> String {
        format!("{}/{}", self.all(namespace), encode(name))
    }
}

/// A part of a path or of a query, with what has a meaning there as `%XX`.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A path with a query; empty values are left out.
pub(crate) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let mut out = path.to_owned();
    let mut separator = '?';
    for (key, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        out.push(separator);
        out.push_str(key);
        out.push('=');
        out.push_str(&encode(value));
        separator = '&';
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_as_kubernetes_has_them() {
        assert_eq!(PODS.all(None), "/api/v1/pods");
        let captures = Resource { group: "kstrobe.dev", version: "v1alpha1", plural: "captures" };
        assert_eq!(captures.one(Some("ops"), "a"), "/apis/kstrobe.dev/v1alpha1/namespaces/ops/captures/a");
        assert_eq!(PODS.one(Some("../x"), "a b/c"), "/api/v1/namespaces/..%2Fx/pods/a%20b%2Fc");
        let query = [("fieldSelector", "spec.nodeName=node-a"), ("labelSelector", ""), ("limit", "500")];
        assert_eq!(with_query("/p", &query), "/p?fieldSelector=spec.nodeName%3Dnode-a&limit=500");
    }
}
