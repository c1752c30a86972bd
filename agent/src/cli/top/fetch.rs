//! A thread that sends requests while they are wanted, so that the screen never waits for the network.

use super::request::Request;
use super::source::{Answered, Source};
use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Requests at once: agents have other clients.
const MAX_AT_ONCE: usize = 4;
/// Until a request is sent again that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Requests to agents in a second: those to many go through one API server, which has other clients, too.
const MAX_RATE: f64 = 100.0;

pub enum News<E> {
    Answer(Request, Box<Answered>),
    Failed(E),
    /// SIGTERM.
    Stop,
}

/// Sends what is wanted at its intervals, until the receiver of the news or the sender of the requests is gone.
pub async fn fetch<S: Source>(source: S, mut wanted: watch::Receiver<Vec<Request>>, news: Sender<News<S::Error>>) {
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
        let slower = slower(&requests, source.agents());
        let due: Vec<Request> = requests.iter().filter(is_due).take(free).cloned().collect();
        for request in due {
            next.insert(request.clone(), request.interval().map(|interval| now + interval.mul_f64(slower)));
            let source = source.clone();
            under_way.spawn(async move { (source.ask(&request).await, request) });
        }
        let wake = next.values().flatten().min().map_or(AFTER_FAILURE, |due| due.saturating_duration_since(now));
        let done = tokio::select! {
            changed = wanted.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            _ = stop.recv() => News::Stop,
            Some(done) = under_way.join_next() => match done {
                Ok((Ok(answer), request)) => News::Answer(request, Box::new(answer)),
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

/// By how much the intervals of these requests are longer, so that their agents get no more than [`MAX_RATE`].
fn slower(requests: &[Request], agents: usize) -> f64 {
    let each = requests.iter().filter_map(Request::interval).map(|interval| 1.0 / interval.as_secs_f64());
    (each.sum::<f64>() * agents as f64 / MAX_RATE).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_many_nodes_are_less_frequent() {
        // Each second and every three.
        let requests = [Request::History, Request::Probes];
        assert_eq!(slower(&requests, 1), 1.0);
        assert_eq!(slower(&requests, 75), 1.0);
        assert!((slower(&requests, 300) - 4.0).abs() < 1e-9);
        assert_eq!(slower(&[], 300), 1.0);
    }
}
