//! A thread that sends requests while they are wanted, so that the screen never waits for the network.

use super::request::{Answer, Request};
use crate::cli::client::{Client, Error};
use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Requests at once: the agent has other clients.
const MAX_AT_ONCE: usize = 4;
/// Until a request is sent again that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

pub enum News {
    Answer(Request, Answer),
    Failed(Error),
    /// SIGTERM.
    Stop,
}

/// Sends what is wanted at its intervals, until the receiver of the news or the sender of the requests is gone.
pub async fn fetch(client: Client, mut wanted: watch::Receiver<Vec<Request>>, news: Sender<News>) {
    let mut under_way = JoinSet::new();
    // When a request was sent last, and when it is due again; never where an answer stays.
    let mut next: HashMap<Request, Option<Instant>> = HashMap::new();
    let Ok(mut stop) = signal(SignalKind::terminate()) else { return };
    loop {
        let requests = wanted.borrow_and_update().clone();
        next.retain(|request, _| requests.contains(request));
        let now = Instant::now();
        let is_due = |request: &&Request| next.get(*request).is_none_or(|due| due.is_some_and(|due| due <= now));
        let free = MAX_AT_ONCE.saturating_sub(under_way.len());
        let due: Vec<Request> = requests.iter().filter(is_due).take(free).cloned().collect();
        for request in due {
            next.insert(request.clone(), request.interval().map(|interval| now + interval));
            let client = client.clone();
            under_way.spawn(async move { (request.ask(&client).await, request) });
        }
        let wake = next.values().flatten().min().map_or(AFTER_FAILURE, |due| due.saturating_duration_since(now));
        let done = tokio::select! {
            changed = wanted.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            _ = stop.recv() => News::Stop,
            Some(done) = under_way.join_next() => match done {
                Ok((Ok(answer), request)) => News::Answer(request, answer),
                Ok((Err(error), request)) => {
                    next.insert(request, Some(Instant::now() + AFTER_FAILURE));
                    News::Failed(error)
                }
                // A panic is reported by its own message.
                Err(_) => continue,
            },
            () = tokio::time::sleep(wake), if under_way.len() < MAX_AT_ONCE => continue,
        };
        if news.send(done).is_err() {
            return;
        }
    }
}
