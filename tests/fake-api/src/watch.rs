//! Watches: lines of JSON for as long as somebody listens.

use crate::api::{State, Tell};
use crate::faults::End;
use crate::refusal::{status, too_old};
use crate::route::{Query, Target, gone, scope};
use crate::serve::{Answer, Body, answer};
use crate::store::Scope;
use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::Instant;

type Drip = Option<(usize, Duration)>;

/// Answers with a stream of events.
pub(crate) fn open(state: Arc<State>, target: &Target, query: &Query) -> Answer {
    let scope = scope(target, query);
    let knobs = state.knobs.lock().expect("no panic").clone();
    let (sender, channel) = Channel::<Bytes, io::Error>::new(1);
    let asked = query.get("resourceVersion").to_owned();
    let mut first = Vec::new();
    let version;
    {
        let store = state.store.lock().expect("no panic");
        match asked.parse::<u64>() {
            Ok(number) if number > 0 => {
                version = number;
                if number < store.floor() {
                    if knobs.gone_by_http {
                        return gone(&asked, store.floor());
                    }
                    let error = line("ERROR", &too_old(&asked, store.floor()));
                    return answer(200, "application/json", crate::serve::whole(error));
                }
            }
            // Without a version, or with 0, it begins with all that is there.
            _ => {
                version = store.version();
                first.extend(store.all(&scope).into_iter().map(|object| line("ADDED", &object)));
            }
        }
    }
    let timeout = query.get("timeoutSeconds").parse().unwrap_or(1800);
    let events = state.tell.subscribe();
    state.watches.fetch_add(1, Ordering::SeqCst);
    let open = Open {
        state,
        scope,
        version,
        kind: target.plural.clone(),
        bookmarks: query.is("allowWatchBookmarks"),
        until: Instant::now() + Duration::from_secs(timeout),
        drip: knobs.drip,
        sender,
    };
    tokio::spawn(open.run(first, events));
    answer(200, "application/json", channel.boxed_unsync())
}

struct Open {
    state: Arc<State>,
    scope: Scope,
    version: u64,
    kind: String,
    bookmarks: bool,
    until: Instant,
    drip: Drip,
    sender: Sender<Bytes, io::Error>,
}

impl Open {
    async fn run(mut self, first: Vec<Bytes>, mut events: broadcast::Receiver<Tell>) {
        let mut changed = self.state.changed.subscribe();
        for line in first {
            if !send(&mut self.sender, line, self.drip).await {
                return;
            }
        }
        let mut bookmark = false;
        loop {
            let mut lines = self.news();
            // After what it says is known.
            lines.extend(bookmark.then(|| self.bookmark()));
            bookmark = false;
            for line in lines {
                if !send(&mut self.sender, line, self.drip).await {
                    return;
                }
            }
            tokio::select! {
                more = changed.changed() => if more.is_err() { return },
                tell = events.recv() => match tell {
                    Ok(Tell::Bookmark) => bookmark = self.bookmarks,
                    Ok(Tell::End(how)) => return self.end(how).await,
                    _ => {}
                },
                () = tokio::time::sleep_until(self.until) => return,
            }
        }
    }

    fn news(&mut self) -> Vec<Bytes> {
        let store = self.state.store.lock().expect("no panic");
        let events = store.since(&self.scope, self.version);
        self.version = store.version();
        events.iter().map(|(kind, object)| line(kind, object)).collect()
    }

    /// How far it is, also when nothing came for this watch.
    fn bookmark(&self) -> Bytes {
        let version = self.version.to_string();
        line("BOOKMARK", &json!({"kind": self.kind, "apiVersion": "v1", "metadata": {"resourceVersion": version}}))
    }

    async fn end(mut self, how: End) {
        match how {
            End::Clean => {}
            End::Cut => {
                let half =
                    Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"na");
                send(&mut self.sender, half, None).await;
                // What was sent should have gone out before the connection breaks.
                tokio::time::sleep(Duration::from_millis(50)).await;
                self.sender.abort(io::Error::other("cut by the test"));
            }
            End::Error(code, reason) => {
                let error = line("ERROR", &status(code, reason, "ended by the test"));
                send(&mut self.sender, error, None).await;
            }
            End::Garbage => {
                send(&mut self.sender, Bytes::from_static(b"upstream connect error\n"), None).await;
                std::future::pending::<()>().await;
            }
            End::Silence => std::future::pending().await,
        }
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(json!({"type": kind, "object": object}).to_string() + "\n")
}

async fn send(sender: &mut Sender<Bytes, io::Error>, bytes: Bytes, drip: Drip) -> bool {
    let Some((size, pause)) = drip else { return sender.send_data(bytes).await.is_ok() };
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = rest.split_to(size.clamp(1, rest.len()));
        if sender.send_data(piece).await.is_err() {
            return false;
        }
        tokio::time::sleep(pause).await;
    }
    true
}

/// A body that comes in pieces.
pub(crate) fn dripping(bytes: Bytes, drip: (usize, Duration)) -> Body {
    let (mut sender, channel) = Channel::<Bytes, io::Error>::new(1);
    tokio::spawn(async move { send(&mut sender, bytes, Some(drip)).await });
    channel.boxed_unsync()
}
