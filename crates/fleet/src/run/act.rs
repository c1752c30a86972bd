//! One question to one agent, and what its answer means.

use super::{Agents, Body, Member, Run, SCOPES, lock, unix_ns};
use crate::clock::{self, Sample};
use crate::course::{Action, Heard, Standing, Trouble};
use crate::hooks;
use crate::manifest::rfc3339;
use crate::target::Target;
use crate::views::one_line;
use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Questions for the time: the shortest round trip of several says most.
const CLOCK_QUESTIONS: usize = 4;
/// An answer that is no download: the probes of an agent take tens of kilobytes, its metrics megabytes.
const MOST_BYTES: usize = 64 << 20;
/// Of a refusal, what is shown.
const MOST_REFUSAL_CHARACTERS: usize = 300;

const CAPTURES: &str = "/api/v1/captures";

impl<A: Agents> Run<A> {
    pub(super) async fn act(&self, member: &Mutex<Member>, action: Action) -> Result<Heard, Trouble> {
        let (target, id) = {
            let member = lock(member);
            (member.target.clone(), member.course.id().unwrap_or_default().to_owned())
        };
        let of = |suffix: &str| format!("{CAPTURES}/{id}{suffix}");
        match action {
            Action::Greet => self.greet(member, &target).await,
            Action::Create => {
                let body = self.request(member);
                let created = self.ask(&target, Method::POST, CAPTURES, body.to_string().into()).await?;
                match created["id"].as_str() {
                    Some(id) if is_id(id) => Ok(Heard::Created(id.to_owned())),
                    _ => Err(lasting("the agent's answer has no id of a capture")),
                }
            }
            Action::Look => {
                let answer = self.ask(&target, Method::GET, &of(""), Bytes::new()).await?;
                let standing: Standing =
                    serde_json::from_value(answer).map_err(|e| passing(format!("no answer of an agent: {e}")))?;
                Ok(Heard::Stands(standing))
            }
            Action::Cancel => match self.send(&target, Method::POST, &of("/cancel")).await? {
                // It had ended already.
                (StatusCode::CONFLICT, _) => Ok(Heard::Cancelled),
                (status, _) if status.is_success() => Ok(Heard::Cancelled),
                (status, body) => Err(explain(status, &body)),
            },
            Action::Fetch => {
                let _turn = self.downloads.acquire().await.map_err(|e| lasting(&e.to_string()))?;
                let file = lock(member).file.clone();
                let path = of("/download?format=dat");
                let fetch = self.fetch(&target, &path, &file);
                let late = |_| passing(format!("no whole download within {} s", self.limits.fetch.as_secs()));
                tokio::time::timeout(self.limits.fetch, fetch).await.map_err(late)??;
                Ok(Heard::Fetched)
            }
            Action::Remove => match self.send(&target, Method::DELETE, &of("")).await? {
                (StatusCode::NOT_FOUND, _) => Ok(Heard::Removed),
                (status, _) if status.is_success() => Ok(Heard::Removed),
                (status, body) => Err(explain(status, &body)),
            },
        }
    }

    /// Whether it may be asked, its clock, and what the probe is there.
    async fn greet(&self, member: &Mutex<Member>, target: &Target) -> Result<Heard, Trouble> {
        let mut samples = Vec::new();
        for _ in 0..CLOCK_QUESTIONS {
            // Waiting for a turn is no part of a round trip.
            let _turn = self.asks.acquire().await.map_err(|e| lasting(&e.to_string()))?;
            let asked = unix_ns();
            let asking = self.agents.ask(&target.agent, Method::GET, "/api/v1/captures/clock", Bytes::new());
            let answer = self.within(asking).await?;
            let answered = unix_ns();
            let answer = read(answer).await?;
            let said =
                answer["unix_ns"].as_i64().ok_or_else(|| lasting("the agent does not tell its time: it is too old"))?;
            samples.push(Sample { asked, said, answered });
        }
        let offset = clock::offset(&samples).ok_or_else(|| passing("our own clock was set meanwhile".to_owned()))?;
        let (of_probe, cannot) = match &self.wish.probe {
            None => (Value::Null, Vec::new()),
            Some(name) => {
                let answer = self.ask(target, Method::GET, "/api/v1/probes", Bytes::new()).await?;
                of_probe(name, &answer).map_err(|reason| lasting(&reason))?
            }
        };
        let mut member = lock(member);
        member.offset = Some(offset);
        member.of_probe = of_probe;
        if !cannot.is_empty() {
            member.notes.push(format!("no trace has these hooks of the probe: {}", cannot.join(", ")));
        }
        Ok(Heard::Greeted)
    }

    /// What an agent is sent.
    fn request(&self, member: &Mutex<Member>) -> Value {
        let member = lock(member);
        let mut body = self.wish.request.clone();
        for (key, more) in member.of_probe.as_object().into_iter().flatten() {
            match (&mut body[key.as_str()], more) {
                (Value::Array(there), Value::Array(more)) => there.extend(more.iter().cloned()),
                (there @ Value::Null, more) => *there = more.clone(),
                // Who asked knows better than the probe.
                _ => {}
            }
        }
        let says_whose = SCOPES.iter().any(|key| !body[*key].is_null());
        if !member.target.pods.is_empty() && !self.wish.whole_nodes && !says_whose {
            body["pods"] = json!(member.target.pods);
        }
        body["duration"] = json!(format!("{}ms", self.wish.duration.as_millis()));
        body["start_at"] = json!(rfc3339(member.start_at));
        body
    }

    /// Asks for an answer in JSON that is a success.
    async fn ask(&self, target: &Target, method: Method, path: &str, body: Bytes) -> Result<Value, Trouble> {
        let _turn = self.asks.acquire().await.map_err(|e| lasting(&e.to_string()))?;
        let asking = async { read(self.agents.ask(&target.agent, method, path, body).await.map_err(passing)?).await };
        let late = |_| passing(format!("no answer within {} s", self.limits.call.as_secs()));
        tokio::time::timeout(self.limits.call, asking).await.map_err(late)?
    }

    /// Asks for a status.
    async fn send(&self, target: &Target, method: Method, path: &str) -> Result<(StatusCode, Bytes), Trouble> {
        let _turn = self.asks.acquire().await.map_err(|e| lasting(&e.to_string()))?;
        let answer = self.within(self.agents.ask(&target.agent, method, path, Bytes::new())).await?;
        let status = answer.status();
        Ok((status, whole(answer).await.map_err(passing)?))
    }

    async fn within(
        &self,
        asking: impl Future<Output = Result<Response<Body>, String>> + Send,
    ) -> Result<Response<Body>, Trouble> {
        let late = |_| passing(format!("no answer within {} s", self.limits.call.as_secs()));
        tokio::time::timeout(self.limits.call, asking).await.map_err(late)?.map_err(passing)
    }

    /// Downloads into the node's file, piece by piece.
    async fn fetch(&self, target: &Target, path: &str, to: &Path) -> Result<(), Trouble> {
        let answer = self.within(self.agents.ask(&target.agent, Method::GET, path, Bytes::new())).await?;
        store(answer, to).await
    }
}

/// Writes the body of a success into a file, piece by piece.
pub async fn store(answer: Response<Body>, to: &Path) -> Result<(), Trouble> {
    let status = answer.status();
    if !status.is_success() {
        return Err(explain(status, &whole(answer).await.map_err(passing)?));
    }
    let stored = |error: std::io::Error| lasting(&format!("it cannot be stored here: {error}"));
    let mut file = crate::private::create(to).map_err(stored)?;
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        // The pieces are small, and the disk is our own: a write does not hold up others for long.
        if let Ok(data) = frame.map_err(|error| passing(format!("the download was cut off: {error}")))?.into_data() {
            file.write_all(&data).map_err(stored)?;
        }
    }
    file.flush().map_err(stored)
}

/// What a probe of an agent's `/api/v1/probes` adds to the request.
fn of_probe(name: &str, answer: &Value) -> Result<(Value, Vec<String>), String> {
    let probes = || answer["probes"].as_array().into_iter().flatten();
    let Some(probe) = probes().find(|probe| probe["name"] == name) else {
        let there: Vec<&str> = probes().filter_map(|probe| probe["name"].as_str()).collect();
        return Err(format!("it runs no probe `{name}`; there are {}", there.join(", ")));
    };
    let hooks = probe["hooks"].as_array().into_iter().flatten();
    let hooks: Vec<String> = hooks.filter_map(|hook| hook["hook"].as_str().map(str::to_owned)).collect();
    hooks::request(name, &hooks)
}

/// An id as agents give it out: it becomes a part of paths.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// All of a success, as JSON.
async fn read(answer: Response<Body>) -> Result<Value, Trouble> {
    let status = answer.status();
    let body = whole(answer).await.map_err(passing)?;
    if !status.is_success() {
        return Err(explain(status, &body));
    }
    serde_json::from_slice(&body).map_err(|error| passing(format!("no answer of an agent: {error}")))
}

/// All of an answer, which must not be endless.
pub async fn whole(answer: Response<Body>) -> Result<Bytes, String> {
    let compressed = answer.headers().get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect();
    let body = tokio::time::timeout(Duration::from_secs(60), body).await;
    match body {
        Ok(Ok(body)) if compressed => unpacked(&body.to_bytes()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(format!("the answer was cut off: {error}")),
        Err(_) => Err("the answer does not end".to_owned()),
    }
}

fn unpacked(packed: &[u8]) -> Result<Bytes, String> {
    let mut body = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    match flate2::read::MultiGzDecoder::new(packed).take(most).read_to_end(&mut body) {
        Err(error) => Err(format!("the answer cannot be unpacked: {error}")),
        Ok(_) if body.len() > MOST_BYTES => Err(format!("the answer is longer than {MOST_BYTES} bytes")),
        Ok(_) => Ok(body.into()),
    }
}

/// What a refusal means: of the agent, or of the API server in between.
pub fn explain(status: StatusCode, body: &[u8]) -> Trouble {
    let object: Option<Value> = serde_json::from_slice(body).ok();
    let said = object.as_ref().and_then(|object| object["message"].as_str()).map(str::to_owned);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let said: String = one_line(said.trim()).chars().take(MOST_REFUSAL_CHARACTERS).collect();
    let text = match said.as_str() {
        "" => format!("HTTP status {}", status.as_u16()),
        said => format!("{said} (HTTP status {})", status.as_u16()),
    };
    // Who is asked too often, or is not there yet, may be asked again.
    let passes =
        [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status) || status.is_server_error();
    Trouble { text, lasts: !passes }
}

fn lasting(text: &str) -> Trouble {
    Trouble { text: text.to_owned(), lasts: true }
}

fn passing(text: String) -> Trouble {
    Trouble { text, lasts: false }
}
