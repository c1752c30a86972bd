//! `POST` and `PUT /-/reload`: read the configuration again.

use super::access::client;
use super::routes::{Shared, internal};
use crate::app::Reload;
use crate::capture::access::{Access, Denied, no_page};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use kstrobe_web::{Identity, Peer};
use std::sync::Arc;

/// Prometheus answers with these statuses as well.
pub(super) async fn reload(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    identity: Option<Extension<Identity>>,
    headers: HeaderMap,
) -> Response {
    let peer = client(peer.as_deref());
    let is_known = identity.is_some_and(|identity| identity.is_known());
    // A token is a file, and a reload reads more of them.
    let done = tokio::task::spawn_blocking(move || {
        let Reload { open, ask } = &shared.endpoints.reload;
        may(*open, &(shared.endpoints.captures)().access, &headers, is_known).map(|()| ask())
    });
    match done.await {
        Ok(Ok(Ok(summary))) => summary.into_response(),
        Ok(Ok(Err(reason))) => (StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()).into_response(),
        Ok(Err(Denied { status, message })) => {
            tracing::warn!(audit = true, client = peer, status = status.as_u16(), "a reload is denied");
            (status, message + "\n").into_response()
        }
        Err(error) => internal(&error),
    }
}

fn may(open: bool, access: &Access, headers: &HeaderMap, is_known: bool) -> Result<(), Denied> {
    if open {
        return if access.is_token(headers) { Ok(()) } else { no_page(headers) };
    }
    access.check(headers, is_known).map_err(|denied| {
        let message = match access {
            Access::Off(_) if !is_known => {
                "reloading by HTTP is off: others can reach the agent, and it asks for no token; set \
                                  `captures.token_file`, start it with --web.enable-lifecycle, or send it SIGHUP"
            }
            _ => return denied,
        };
        Denied { message: message.to_owned(), ..denied }
    })
}
