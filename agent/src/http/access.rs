//! Which requests may start captures, and read events and stacks.

use super::routes::{Shared, internal};
use crate::capture::access::{Access, Denied};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kstrobe_web::{Identity, Peer};
use std::sync::Arc;

/// Passes requests that may use captures, before anything else of a request is read.
pub(super) async fn guard_captures(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    guard(shared, request, next, Access::check).await
}

/// Passes requests that may read events, stacks and the list of probes.
pub(super) async fn guard_reading(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    guard(shared, request, next, |access, headers, _| access.check_reading(headers)).await
}

async fn guard(
    shared: Arc<Shared>,
    mut request: Request,
    next: Next,
    check: fn(&Access, &HeaderMap, bool) -> Result<(), Denied>,
) -> Response {
    let peer = client(request.extensions().get::<Peer>());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let headers = request.headers().clone();
    let is_known = request.extensions().get::<Identity>().is_some_and(Identity::is_known);
    // A token is a file.
    let check = move || {
        let access = (shared.endpoints.captures)().access;
        // What has passed a check for a token has shown it.
        check(&access, &headers, is_known).map(|()| matches!(access, Access::Token(_)))
    };
    match tokio::task::spawn_blocking(check).await {
        Ok(Ok(has_token)) => {
            let extensions = request.extensions();
            let asker = Asker::of(extensions.get(), extensions.get(), has_token, request.headers());
            request.extensions_mut().insert(asker);
            next.run(request).await
        }
        Ok(Err(denied)) => {
            tracing::warn!(audit = true, client = peer, %method, path, status = denied.status.as_u16(), "denied");
            let mut response = (denied.status, denied.message + "\n").into_response();
            if denied.status == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer realm=\"kstrobe\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            response
        }
        Err(error) => internal(&error),
    }
}

/// Address of a client, for logs.
pub(super) fn client(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.0.to_string())
}

/// The sender of a request, among its extensions: for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker(pub String);

impl Asker {
    /// By what came with the request: a user's name, else the kind of what it showed; and from where. A request that came
    /// through the API server has only that server's address, and says whom it was forwarded for.
    pub fn of(peer: Option<&Peer>, identity: Option<&Identity>, has_token: bool, headers: &HeaderMap) -> Asker {
        let shown = match identity {
            Some(Identity { user: Some(user), .. }) => Some(format!("user `{}`", user.escape_debug())),
            _ if has_token => Some("the captures' token".to_owned()),
            Some(Identity { certificate: true, .. }) => Some("a client certificate".to_owned()),
            _ => None,
        };
        let mut text = shown.map_or_else(String::new, |shown| format!("{shown} at "));
        text += &client(peer);
        let forwarded = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        if let Some(forwarded) = forwarded {
            text += &format!(" for {:.100}", forwarded.escape_debug().to_string());
        }
        Asker(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_audit_log_names_who_asks() {
        let peer = Peer("10.1.0.1:4711".parse().unwrap());
        let of = |identity: Identity, has_token, pairs: &[(&'static str, &str)]| {
            Asker::of(Some(&peer), Some(&identity), has_token, &headers(pairs)).0
        };
        let alice = Identity { user: Some("alice".into()), ..Identity::default() };
        assert_eq!(of(alice, false, &[]), "user `alice` at 10.1.0.1:4711");
        let forwarded = [("x-forwarded-for", "192.0.2.7")];
        assert_eq!(of(Identity::default(), true, &forwarded), "the captures' token at 10.1.0.1:4711 for 192.0.2.7");
        let certified = Identity { certificate: true, ..Identity::default() };
        assert_eq!(of(certified, false, &[]), "a client certificate at 10.1.0.1:4711");
        assert_eq!(of(Identity::default(), false, &[]), "10.1.0.1:4711");
        assert_eq!(Asker::of(None, None, false, &headers(&[])).0, "unknown");
    }
}
