//! The API over a history that was recorded elsewhere: nothing is measured, and nothing can be changed.

use super::endpoints::{Captures, Endpoints, ProfileError, Reload, ReloadRefused};
use super::history::HistoryStore;
use crate::capture::access::{Access, Denied};
use crate::metrics::events::tail::Tail;
use crate::probe::status::{NodeStatus, Status};
use axum::Router;
use axum::http::StatusCode;
use kstrobe_export::reading::Reading;
use kstrobe_history::disk::Archive;
use kstrobe_web::ConfigWatcher;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What every request gets that is about something else.
const RECORDED: &str = "this is a recorded history: there is no agent that could do that";

/// Serves an archive until the process ends.
pub fn view(archive: Archive, listener: TcpListener, router: fn(Endpoints) -> Router) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let name = archive.path().display().to_string();
    let router = router(endpoints(name, HistoryStore::of(archive)));
    let server = kstrobe_web::Server {
        listeners: vec![listener],
        router,
        config: Arc::new(ConfigWatcher::plain(Arc::default())),
        limits: kstrobe_web::Limits::default(),
        hosts: kstrobe_web::Hosts::of_machine(Vec::new()),
        own_credentials: None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stop = runtime.block_on(async { super::stop_signal() })?;
    runtime.block_on(server.run(stop))
}

fn endpoints(name: String, history: HistoryStore) -> Endpoints {
    let nothing =
        || Reading { at: SystemTime::now(), took: Duration::ZERO, families: Vec::new(), exemplars: Vec::new() };
    let denied = || Denied { status: StatusCode::FORBIDDEN, message: RECORDED.to_owned() };
    let node = NodeStatus { name, cpus: 1, ..NodeStatus::default() };
    Endpoints {
        read: Box::new(nothing),
        write: Box::new(|exposition, send| {
            let form = kstrobe_export::Form { format: exposition.format, native_bucket_limit: 0 };
            kstrobe_export::write(exposition.reading, &[], form, None, send)
        }),
        status: Box::new(move || Status { node: node.clone(), ..Status::default() }),
        stacks: Box::new(Vec::new),
        profile: Box::new(|_| Err(ProfileError::NoSuch(RECORDED.to_owned()))),
        events: Arc::new(Tail::new(Vec::new(), 1)),
        history: Arc::new(history),
        captures: Box::new(move || Captures { rules: Err(denied()), access: Access::Off(RECORDED.to_owned()) }),
        other_nodes: None,
        reload: Reload { open: false, ask: Box::new(|| Err(ReloadRefused(RECORDED.to_owned()))) },
        version: env!("CARGO_PKG_VERSION").into(),
        telemetry_path: "/metrics".into(),
        most_requests: 1,
    }
}
