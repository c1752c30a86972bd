//! Executes one action: the request to an agent and the parsing of its response.

use super::{Agents, Body, Member, Run, SCOPES, lock, unix_ns};
use crate::clock::{self, Sample};
use crate::error::{Error, MAX_BYTES, TransportError};
use crate::hooks;
use crate::manifest::rfc3339;
use crate::node_session::{Action, CaptureStatus, Response};
use crate::target::Target;
use crate::views::one_line;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Clock samples per node: the shortest round trip has the smallest error.
const CLOCK_SAMPLES: usize = 4;
/// Maximum characters of an error message.
const MAX_REFUSAL_CHARACTERS: usize = 300;

const CAPTURES: &str = "/api/v1/captures";

impl<A: Agents> Run<A> {
    pub(super) async fn act(&self, member: &Mutex<Member>, action: Action) -> Result<Response, Error> {
        let (target, id) = {
            let member = lock(member);
            (member.target.clone(), member.session.id().unwrap_or_default().to_owned())
        };
        let of = |suffix: &str| format!("{CAPTURES}/{id}{suffix}");
        match action {
            Action::Hello => self.hello(member, &target).await,
            Action::Create => {
                let body = self.request(member);
                let created = self.ask(&target, Method::POST, CAPTURES, body.to_string().into()).await?;
                match created["id"].as_str() {
                    Some(id) if is_id(id) => Ok(Response::Created(id.to_owned())),
                    _ => Err(Error::NoId),
                }
            }
            Action::Look => {
                let answer = self.ask(&target, Method::GET, &of(""), Bytes::new()).await?;
                Ok(Response::Status(serde_json::from_value::<CaptureStatus>(answer)?))
            }
            Action::Cancel => match self.send(&target, Method::POST, &of("/cancel")).await? {
                // The capture has already ended.
                (StatusCode::CONFLICT, _) => Ok(Response::Cancelled),
                (status, _) if status.is_success() => Ok(Response::Cancelled),
                (status, body) => Err(explain(status, &body)),
            },
            Action::Fetch => {
                let _turn = self.downloads.acquire().await?;
                let file = lock(member).file.clone();
                let path = of("/download?format=dat");
                let fetch = self.fetch(&target, &path, &file);
                let late = |_| Error::DownloadTimeout(self.limits.fetch);
                tokio::time::timeout(self.limits.fetch, fetch).await.map_err(late)??;
                Ok(Response::Fetched)
            }
            Action::Remove => match self.send(&target, Method::DELETE, &of("")).await? {
                (StatusCode::NOT_FOUND, _) => Ok(Response::Removed),
                (status, _) if status.is_success() => Ok(Response::Removed),
                (status, body) => Err(explain(status, &body)),
            },
        }
    }

    /// Checks access, measures the clock of the agent, and reads the hooks of the probe.
    async fn hello(&self, member: &Mutex<Member>, target: &Target) -> Result<Response, Error> {
        let mut samples = Vec::new();
        for _ in 0..CLOCK_SAMPLES {
            // Waiting for the semaphore is not part of the round trip.
            let _turn = self.asks.acquire().await?;
            let sent = unix_ns();
            let asking = self.agents.ask(&target.agent, Method::GET, "/api/v1/captures/clock", Bytes::new());
            let answer = self.within(asking).await?;
            let received = unix_ns();
            let answer = read(answer).await?;
            let reported = answer["unix_ns"].as_i64().ok_or(Error::NoClock)?;
            samples.push(Sample { sent, reported, received });
        }
        let offset = clock::offset(&samples).ok_or(Error::ClockSet)?;
        let (of_probe, cannot) = match &self.spec.probe {
            None => (Value::Null, Vec::new()),
            Some(name) => {
                let answer = self.ask(target, Method::GET, "/api/v1/probes", Bytes::new()).await?;
                of_probe(name, &answer)?
            }
        };
        let mut member = lock(member);
        member.offset = Some(offset);
        member.of_probe = of_probe;
        if !cannot.is_empty() {
            member.notes.push(format!("ftrace cannot record these hooks of the probe: {}", cannot.join(", ")));
        }
        Ok(Response::Hello)
    }

    /// Builds the body of the capture request.
    fn request(&self, member: &Mutex<Member>) -> Value {
        let member = lock(member);
        let mut body = self.spec.request.clone();
        for (key, more) in member.of_probe.as_object().into_iter().flatten() {
            match (&mut body[key.as_str()], more) {
                (Value::Array(there), Value::Array(more)) => there.extend(more.iter().cloned()),
                (there @ Value::Null, more) => *there = more.clone(),
                // Values of the user take precedence over those of the probe.
                _ => {}
            }
        }
        let says_whose = SCOPES.iter().any(|key| !body[*key].is_null());
        if !member.target.pods.is_empty() && !self.spec.whole_nodes && !says_whose {
            body["pods"] = json!(member.target.pods);
        }
        body["duration"] = json!(format!("{}ms", self.spec.duration.as_millis()));
        body["start_at"] = json!(rfc3339(member.start_at));
        body
    }

    /// Sends a request and parses the JSON of a successful response.
    async fn ask(&self, target: &Target, method: Method, path: &str, body: Bytes) -> Result<Value, Error> {
        let _turn = self.asks.acquire().await?;
        let asking = async {
            let answer = self.agents.ask(&target.agent, method, path, body).await?;
            read(answer).await
        };
        let late = |_| Error::Timeout(self.limits.call);
        tokio::time::timeout(self.limits.call, asking).await.map_err(late)?
    }

    /// Sends a request and returns status and body.
    async fn send(&self, target: &Target, method: Method, path: &str) -> Result<(StatusCode, Bytes), Error> {
        let _turn = self.asks.acquire().await?;
        let answer = self.within(self.agents.ask(&target.agent, method, path, Bytes::new())).await?;
        let status = answer.status();
        Ok((status, whole(answer).await?))
    }

    async fn within(
        &self,
        asking: impl Future<Output = Result<http::Response<Body>, TransportError>> + Send,
    ) -> Result<http::Response<Body>, Error> {
        let late = |_| Error::Timeout(self.limits.call);
        tokio::time::timeout(self.limits.call, asking).await.map_err(late)?.map_err(Error::Transport)
    }

    /// Streams a download into the file of the node.
    async fn fetch(&self, target: &Target, path: &str, to: &Path) -> Result<(), Error> {
        let answer = self.within(self.agents.ask(&target.agent, Method::GET, path, Bytes::new())).await?;
        store(answer, to).await
    }
}

/// Streams the body of a successful response into a file.
pub async fn store(answer: http::Response<Body>, to: &Path) -> Result<(), Error> {
    let status = answer.status();
    if !status.is_success() {
        return Err(explain(status, &whole(answer).await?));
    }
    let mut file = crate::private::create(to).map_err(Error::Store)?;
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        // Blocking writes are acceptable here: chunks are small and the disk is local.
        if let Ok(data) = frame.map_err(Error::Download)?.into_data() {
            file.write_all(&data).map_err(Error::Store)?;
        }
    }
    file.flush().map_err(Error::Store)
}

/// Request members for a probe in `/api/v1/probes`, and its hooks that cannot be recorded.
fn of_probe(name: &str, answer: &Value) -> Result<(Value, Vec<String>), Error> {
    let probes = || answer["probes"].as_array().into_iter().flatten();
    let Some(probe) = probes().find(|probe| probe["name"] == name) else {
        let there = probes().filter_map(|probe| probe["name"].as_str().map(str::to_owned)).collect();
        return Err(Error::NoProbe { name: name.to_owned(), there });
    };
    let hooks = probe["hooks"].as_array().into_iter().flatten();
    let hooks: Result<Vec<hooks::Hook>, _> = hooks.map(hooks::Hook::deserialize).collect();
    hooks::request(name, hooks?)
}

/// Validates a capture id, which becomes part of paths.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Parses the JSON body of a successful response.
async fn read(answer: http::Response<Body>) -> Result<Value, Error> {
    let status = answer.status();
    let body = whole(answer).await?;
    if !status.is_success() {
        return Err(explain(status, &body));
    }
    Ok(serde_json::from_slice(&body)?)
}

/// Reads a body of at most `MAX_BYTES` within 60 s.
pub async fn whole(answer: http::Response<Body>) -> Result<Bytes, Error> {
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect();
    let body = tokio::time::timeout(Duration::from_secs(60), body).await;
    match body {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Error::Body(error)),
        Err(_) => Err(Error::Endless),
    }
}

/// Converts an error response of the agent or the API server.
pub fn explain(status: StatusCode, body: &[u8]) -> Error {
    let object: Option<Value> = serde_json::from_slice(body).ok();
    // The API server's word, and the agent's.
    let said = ["message", "error"].into_iter().find_map(|key| object.as_ref()?[key].as_str()).map(str::to_owned);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let message = one_line(said.trim()).chars().take(MAX_REFUSAL_CHARACTERS).collect();
    Error::Refused { status, message }
}
