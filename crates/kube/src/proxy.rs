//! Requests to pods through the `proxy` subresource, which works wherever kubectl does.

use crate::client::Client;
use crate::error::Error;
use crate::path::{PODS, encode, with_query};
use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use hyper::body::Incoming;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPort {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Port number or name.
    pub port: String,
    /// Whether the port speaks TLS. The API server does not verify its certificate.
    pub https: bool,
}

impl PodPort {
    /// Proxy path for a path and query of the pod.
    pub fn path(&self, path_and_query: &str) -> String {
        let scheme = if self.https { "https:" } else { "" };
        let rest = path_and_query.trim_start_matches('/');
        let (pods, pod, port) = (PODS.all(Some(&self.namespace)), encode(&self.pod), encode(&self.port));
        format!("{pods}/{scheme}{pod}:{port}/proxy/{rest}")
    }
}

impl Client {
    /// Sends a request to a pod. The response is that of the pod, or an error of the API server: [`crate::checked`]
    /// distinguishes them. The caller reads the body as a stream.
    ///
    /// The API server consumes the `Authorization` header. RBAC: resource `pods/proxy` with the verb of the method: `get`,
    /// `create` for POST, `delete`.
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

    /// Lists pods of one or all namespaces; empty selectors match everything.
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
                return Err(Error::Incomplete { list: "a list of pods".to_owned(), member: "items" });
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
