//! Paths of the Kubernetes API.

use std::fmt::Write;

/// Group, version and resource of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural resource name, as in paths.
    pub plural: &'static str,
}

/// The core `pods` resource.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };

impl Resource {
    /// Path of the collection, optionally in one namespace.
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

    /// Path of one object.
    pub fn one(&self, namespace: Option<&str>, name: &str) -> String {
        format!("{}/{}", self.all(namespace), encode(name))
    }
}

/// Percent-encodes a path segment or query value.
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

/// Appends a query; empty values are omitted.
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
