//! Runs a [`Reflector`] over HTTP.

use super::backoff::{Backoff, random};
use super::event::{self, Event, Unreadable};
use super::lines::Lines;
use super::reflector::{Failure, Next, Page, Reflector};
use super::store::Change;
use crate::answer::checked;
use crate::client::Client;
use crate::counters::Counters;
use crate::error::Error;
use crate::path::with_query;
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Maximum bytes of one event. etcd limits objects to 1.5 MB; as JSON they may be longer.
const MAX_LINE_BYTES: usize = 8 << 20;
/// `limit` of a list request.
const PAGE: &str = "500";

/// Parameters of a watch.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Path of the collection, such as `/api/v1/pods`.
    pub path: String,
    /// `fieldSelector`; empty for all objects.
    pub field_selector: String,
    /// `labelSelector`; empty for all objects.
    pub label_selector: String,
    /// Maximum objects in the store.
    pub limit: usize,
    /// `timeoutSeconds` of a watch, randomly reduced by up to a quarter.
    pub lasting: Duration,
    /// Backoff after failures.
    pub backoff: Backoff,
    /// Resource name in logs.
    pub name: &'static str,
}

impl Watched {
    /// Watches all objects of a collection.
    pub fn new(name: &'static str, path: String) -> Watched {
        Watched {
            path,
            field_selector: String::new(),
            label_selector: String::new(),
            limit: 10_000,
            lasting: Duration::from_secs(480),
            backoff: Backoff::default(),
            name,
        }
    }
}

/// Sends changes until the receiver is closed. `read` converts an object, or returns `None` to skip it. A slow receiver blocks
/// the watch.
pub async fn follow<T: Send>(
    client: Client,
    watched: Watched,
    read: fn(&Value) -> Option<T>,
    counters: Arc<Counters>,
    out: mpsc::Sender<Change<T>>,
) {
    let reflector = Reflector::new(watched.backoff, watched.limit);
    let following = Following { client, watched, read, counters, reflector, began: Instant::now(), said: None };
    let taken = out.clone();
    tokio::select! {
        () = following.run(out) => {}
        () = taken.closed() => {}
    }
}

struct Following<T> {
    client: Client,
    watched: Watched,
    read: fn(&Value) -> Option<T>,
    counters: Arc<Counters>,
    reflector: Reflector<T>,
    began: Instant,
    /// Last logged failure, to log repeats once.
    said: Option<(&'static str, &'static str)>,
}

/// The receiver was closed.
struct Closed;

impl<T: Send> Following<T> {
    async fn run(mut self, out: mpsc::Sender<Change<T>>) {
        loop {
            let now = self.began.elapsed();
            let done = match self.reflector.next(now) {
                Next::Wait(until) => {
                    tokio::time::sleep(until.saturating_sub(now)).await;
                    Ok(())
                }
                Next::List { version, token } => {
                    let path = self.list_path(version, token);
                    self.list(&path, &out).await
                }
                Next::Watch { version } => {
                    let path = self.watch_path(version);
                    self.watch(&path, &out).await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn list_path(&self, version: &str, token: &str) -> String {
        let Watched { path, field_selector, label_selector, .. } = &self.watched;
        let query = [
            ("fieldSelector", field_selector.as_str()),
            ("labelSelector", label_selector),
            ("limit", PAGE),
            ("resourceVersion", version),
            ("continue", token),
        ];
        with_query(path, &query)
    }

    fn watch_path(&self, version: &str) -> String {
        let Watched { path, field_selector, label_selector, lasting, .. } = &self.watched;
        let seconds = (lasting.mul_f64(1.0 - random() / 4.0)).as_secs().max(1).to_string();
        let query = [
            ("fieldSelector", field_selector.as_str()),
            ("labelSelector", label_selector),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
            ("resourceVersion", version),
        ];
        with_query(path, &query)
    }

    async fn list(&mut self, path: &str, out: &mpsc::Sender<Change<T>>) -> Result<(), Closed> {
        self.counters.event("list_requests");
        let page = self.client.get::<Value>(path).await.and_then(|list| self.page(&list));
        match page {
            Ok(page) => {
                let changes = self.reflector.page(page);
                if !changes.is_empty() {
                    self.counters.event("lists");
                    self.recovered("list");
                }
                self.count_over_limit();
                for change in changes {
                    out.send(change).await.map_err(|_| Closed)?;
                }
            }
            Err(error) => self.failed("list", &error, Failure::of_error(&error)),
        }
        Ok(())
    }

    fn page(&self, list: &Value) -> Result<Page<T>, Error> {
        let missing = |member| Error::Incomplete { list: format!("a list of {}", self.watched.name), member };
        let items = list["items"].as_array().ok_or_else(|| missing("items"))?;
        let version = list["metadata"]["resourceVersion"].as_str().ok_or_else(|| missing("resourceVersion"))?;
        let objects: Vec<_> = items.iter().filter_map(|item| event::object(item, self.read)).collect();
        self.counters.events("objects_unreadable", (items.len() - objects.len()) as u64);
        let token = list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
        Ok(Page { version: version.to_owned(), token, objects })
    }

    async fn watch(&mut self, path: &str, out: &mpsc::Sender<Change<T>>) -> Result<(), Closed> {
        self.counters.event("watch_requests");
        let opened = match self.client.send(Method::GET, path, HeaderMap::new(), Bytes::new()).await {
            Ok(answer) => checked(answer).await,
            Err(error) => Err(error),
        };
        let mut body = match opened {
            Ok(answer) => answer.into_body(),
            Err(error) => {
                self.failed("watch", &error, Failure::of_error(&error));
                return Ok(());
            }
        };
        // The server may fail to end the watch, or a middlebox may drop the connection silently.
        let at_latest =
            tokio::time::Instant::now() + self.watched.lasting + Duration::from_secs(30).min(self.watched.lasting);
        let opened = Instant::now();
        let mut lines = Lines::new(MAX_LINE_BYTES);
        loop {
            match tokio::time::timeout_at(at_latest, body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Some(piece) = frame.data_ref() {
                        lines.push(piece);
                    }
                }
                Ok(None) if lines.is_within() => {
                    self.failed("watch", &Error::PartialLine, Failure::Again(None));
                    return Ok(());
                }
                Ok(None) => {
                    self.counters.event("watches_ended");
                    self.reflector.ended(self.began.elapsed(), opened.elapsed(), random());
                    return Ok(());
                }
                Ok(Some(Err(error))) => {
                    self.failed("watch", &Error::Watch(error), Failure::Again(None));
                    return Ok(());
                }
                Err(_) => {
                    let error = Error::Timeout { from: self.client.server().to_string(), after: opened.elapsed() };
                    self.failed("watch", &error, Failure::Again(None));
                    return Ok(());
                }
            }
            loop {
                let line = match lines.next_line() {
                    Ok(Some(line)) => line,
                    Ok(None) => break,
                    Err(_) => {
                        let error = Error::TooLarge { to: path.to_owned(), limit: MAX_LINE_BYTES };
                        self.failed("watch", &error, Failure::Lost);
                        return Ok(());
                    }
                };
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                if !self.line(&line, out).await? {
                    return Ok(());
                }
            }
        }
    }

    /// Handles one line; returns whether the watch continues.
    async fn line(&mut self, line: &[u8], out: &mpsc::Sender<Change<T>>) -> Result<bool, Closed> {
        match event::parse(line, self.read) {
            Ok(Event::Error(status)) => {
                let failure = Failure::of(&status);
                self.failed("watch", &Error::Status(Box::new(status)), failure);
                return Ok(false);
            }
            Ok(event) => {
                self.counters.event(if matches!(event, Event::Version(_)) { "bookmarks" } else { "events" });
                self.recovered("watch");
                if let Some(change) = self.reflector.event(event) {
                    out.send(change).await.map_err(|_| Closed)?;
                }
                self.count_over_limit();
            }
            Err((Unreadable::Object, version)) => {
                self.counters.event("objects_unreadable");
                if let Some(version) = version {
                    self.reflector.event(Event::Version(version));
                }
            }
            Err((Unreadable::Line, _)) => {
                self.failed("watch", &Error::NoEvent(self.watched.name), Failure::Lost);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn count_over_limit(&mut self) {
        let over = self.reflector.store().take_over_limit();
        self.counters.events("objects_over_limit", over);
    }

    fn failed(&mut self, of: &'static str, error: &Error, failure: Failure) {
        self.counters.failure(of, error);
        let reason = error.reason();
        // An expired version is normal operation and not logged.
        if failure != Failure::Gone && self.said != Some((of, reason)) {
            tracing::warn!(of, kind = self.watched.name, reason, %error, "Kubernetes request failed, retrying");
            self.said = Some((of, reason));
        }
        self.reflector.failed(self.began.elapsed(), failure, random());
    }

    /// Logs the recovery of the operation that failed last.
    fn recovered(&mut self, of: &'static str) {
        if self.said.is_some_and(|(what, _)| what == of) {
            tracing::info!(of, kind = self.watched.name, "Kubernetes requests succeed again");
            self.said = None;
        }
    }
}
