//! Requests to pods through the API server: its `proxy` subresource, which any network lets through that lets kubectl through.

use crate::client::Client;
use crate::error::Error;
use crate::path::{PODS, encode, with_query};
use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use hyper::body::Incoming;
use serde_json::Value;

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPort {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The port; a number, or the name that the pod gives it.
    pub port: String,
    /// Whether the pod speaks TLS there. The API server does not look at its certificate.
    pub https: bool,
}

impl PodPort {
    /// The path of the API server for a path (and query) of the pod.
    pub fn path(&self, path_and_query: &str) -> String {
        let scheme = if self.https { "https:" } else { "" };
        let rest = path_and_query.trim_start_matches('/');
        let (pods, pod, port) = (PODS.all(Some(&self.namespace)), encode(&self.pod), encode(&self.port));
        format!("{pods}/{scheme}{pod}:{port}/proxy/{rest}")
    }
}

impl Client {
    /// Asks a pod. The answer has the pod's status, or the API server's when it cannot reach the pod or does not want to:
    /// [`crate::checked`] tells one from the other. The body is read by the caller as it comes.
    ///
    /// The API server takes the header `Authorization` for itself: the pod never sees one. RBAC asks for `pods/proxy` and
    /// the verb that belongs to the method: `get`, `create` for POST, `delete`.
    pub async fn pod_proxy(
        &self,
        to: &PodPort,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        self.send(method, &to.path(path_and_query), headers, body).await
    }

    /// Pods as the API server has them, of all namespaces or of one; empty selectors select everything.
    pub async fn pods(
        &self,
        namespace: Option<&str>,
        label_selector: &str,
        field_selector: &str,
    ) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        let mut token = String::new();
        loop {
            let query = [
                ("labelSelector", label_selector),
                ("fieldSelector", field_selector),
                ("limit", "500"),
                ("continue", &token),
            ];
            let mut page: Value = self.get(&with_query(&PODS.all(namespace), &query)).await?;
            let Value::Array(items) = page["items"].take() else {
                return Err(Error::BadAnswer("a list of pods without `items`".into()));
            };
            found.extend(items);
            match page["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() && next != token => token = next.to_owned(),
                _ => return Ok(found),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_pods() {
        let mut to = PodPort { namespace: "ops".into(), pod: "kstrobe-x".into(), port: "9779".into(), https: false };
        let path = to.path("/api/v1/captures?x=1");
        assert_eq!(path, "/api/v1/namespaces/ops/pods/kstrobe-x:9779/proxy/api/v1/captures?x=1");
        to.https = true;
        assert_eq!(to.path(""), "/api/v1/namespaces/ops/pods/https:kstrobe-x:9779/proxy/");
        to.pod = "../../secrets".into();
        assert_eq!(to.path("m"), "/api/v1/namespaces/ops/pods/https:..%2F..%2Fsecrets:9779/proxy/m");
    }
}
