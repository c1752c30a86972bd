//! Requests to agents that are answered with a short document.

use super::door::Door;
use bytes::Bytes;
use http::Method;
use kstrobe_fleet::run::{Agents, explain, whole};
use kstrobe_fleet::target::Pod;
use std::time::Duration;

/// Agents asked at once: the API server has other clients.
pub const MAX_AT_ONCE: usize = 32;

/// The body of an answer that comes whole within the limit.
pub async fn body(door: &Door, agent: &Pod, path: &str, limit: Duration) -> Result<Bytes, kstrobe_fleet::Error> {
    let asking = async {
        let answer = door.ask(agent, Method::GET, path, Bytes::new()).await?;
        let status = answer.status();
        let body = whole(answer).await?;
        if status.is_success() { Ok(body) } else { Err(explain(status, &body)) }
    };
    tokio::time::timeout(limit, asking).await.map_err(|_| kstrobe_fleet::Error::Timeout(limit))?
}
