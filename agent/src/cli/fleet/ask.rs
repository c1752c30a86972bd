//! Requests to agents that are answered with a short document.

use super::door::Door;
use bytes::Bytes;
use http::Method;
use kstrobe_fleet::Error;
use kstrobe_fleet::run::{Agents, explain, whole};
use kstrobe_fleet::target::{Pod, Target};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Agents asked at once: the API server has other clients.
const MAX_AT_ONCE: usize = 32;

/// The turns of requests that share a limit.
#[derive(Clone)]
pub struct Turns(Arc<Semaphore>);

impl Turns {
    pub fn new() -> Turns {
        Turns(Arc::new(Semaphore::new(MAX_AT_ONCE)))
    }
}

/// What `read` makes of the answer of each, in their order.
pub async fn each<T: Send + 'static>(
    door: &Door,
    turns: &Turns,
    targets: Vec<Target>,
    path: &str,
    limit: Duration,
    read: impl Fn(&[u8]) -> Result<T, serde_json::Error> + Clone + Send + 'static,
) -> Vec<(String, Result<T, Error>)> {
    let mut under_way = JoinSet::new();
    for (at, Target { node, agent, .. }) in targets.into_iter().enumerate() {
        let (door, turns, path, read) = (door.clone(), turns.clone(), path.to_owned(), read.clone());
        under_way.spawn(async move {
            let _turn = turns.0.acquire_owned().await;
            let answer = body(&door, &agent, &path, limit).await;
            (at, (node, answer.and_then(|body| Ok(read(&body)?))))
        });
    }
    let mut answers = Vec::new();
    while let Some(done) = under_way.join_next().await {
        // A panic is reported by its own message.
        answers.extend(done);
    }
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The body of an answer that comes whole within the limit.
async fn body(door: &Door, agent: &Pod, path: &str, limit: Duration) -> Result<Bytes, Error> {
    let asking = async {
        let answer = door.ask(agent, Method::GET, path, Bytes::new()).await?;
        let status = answer.status();
        let body = whole(answer).await?;
        if status.is_success() { Ok(body) } else { Err(explain(status, &body)) }
    };
    tokio::time::timeout(limit, asking).await.map_err(|_| Error::Timeout(limit))?
}
