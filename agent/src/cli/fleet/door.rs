//! Agents, through the API server.

use super::error::Error;
use crate::capture::access::TOKEN_HEADER;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header};
use http_body_util::BodyExt;
use kstrobe_fleet::TransportError;
use kstrobe_fleet::run::{Agents, Body};
use kstrobe_fleet::target::Pod;
use kstrobe_kube::crd::CAPTURES;
use kstrobe_kube::crd::capture::{self, Capture};
use kstrobe_kube::{Client, Config, Env, PodPort, Wanted};
use serde_json::Value;
use std::collections::BTreeSet;

/// The API server and the credentials for agents.
#[derive(Clone)]
pub struct Door {
    client: Client,
    port: String,
    https: bool,
    token: Option<HeaderValue>,
}

impl Door {
    /// Nothing is connected yet.
    pub fn open(wanted: &Wanted, port: &str, https: bool, token: Option<&str>) -> Result<Door, Error> {
        let config = Config::find(wanted, &Env::own())?;
        let client = Client::new(config, crate::USER_AGENT)?;
        let token = token.map(|token| {
            let mut value = HeaderValue::from_str(token)?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        Ok(Door { client, port: port.to_owned(), https, token: token.transpose()? })
    }

    /// A `Capture` object, in the first of these namespaces that has one of the name.
    pub async fn capture(&self, namespaces: &BTreeSet<&str>, name: &str) -> Result<Capture, Error> {
        for namespace in namespaces {
            match self.client.get::<Value>(&CAPTURES.one(Some(namespace), name)).await {
                Ok(object) => return capture::read(&object).ok_or_else(|| Error::NotACapture(name.to_owned())),
                Err(error) if error.is(404) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let namespaces = namespaces.iter().copied().collect::<Vec<_>>().join(", ");
        Err(Error::NoCapture { name: name.to_owned(), namespaces })
    }

    /// Pods with these labels, of all namespaces or of one, which `option` names.
    pub async fn pods(&self, namespace: Option<&str>, option: &'static str, selector: &str) -> Result<Vec<Pod>, Error> {
        let objects = self.client.pods(namespace, selector, "").await.map_err(|error| match namespace {
            None if error.is(403) => Error::AllNamespaces { error, option },
            _ => error.into(),
        })?;
        Ok(objects.iter().filter_map(Pod::from_object).collect())
    }
}

impl Agents for Door {
    async fn ask(
        &self,
        agent: &Pod,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Body>, TransportError> {
        let to = PodPort {
            namespace: agent.namespace.clone(),
            pod: agent.name.clone(),
            port: self.port.clone(),
            https: self.https,
        };
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            headers.insert(TOKEN_HEADER, token.clone());
        }
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let answer = self.client.pod_proxy(&to, method, path, headers, body).await.map_err(TransportError::new)?;
        Ok(answer.map(|body| body.map_err(TransportError::new).boxed_unsync()))
    }
}
