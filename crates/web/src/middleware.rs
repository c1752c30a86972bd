//! Checks before the router: rate limit, credentials, `Host`, body size, concurrency.

use crate::body::{Turn, answering, arriving};
use crate::config_watcher::ConfigWatcher;
use crate::counts::{Refused, add};
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::load::Settings;
use crate::monitored_io::ConnectionMonitor;
use crate::passwords::{Passwords, Verdict};
use crate::rate::Bucket;
use crate::serve::Peer;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Semaphore;

/// Client identity, an extension of each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// User authenticated by password.
    pub user: Option<String>,
    /// Whether the client presented a verified certificate.
    pub certificate: bool,
    /// Whether [`OwnCredentials`] accepted the request.
    pub token: bool,
}

/// Checks other credentials in any header, such as a token; may block. Valid ones replace the password: a request has only one
/// `Authorization`.
pub type OwnCredentials = Arc<dyn Fn(&HeaderMap) -> bool + Send + Sync>;

impl Identity {
    /// Whether the client is authenticated.
    pub fn is_known(&self) -> bool {
        self.user.is_some() || self.certificate || self.token
    }
}

/// Response to a request with a foreign `Host`.
const FOREIGN: &str = "the Host of this request is no name of this agent: ask it by its address, as localhost or by its machine's name, \
                       start it with --web.allowed-host NAME, or send its token\n";

/// Request checks shared by all connections of a server.
pub struct Middleware {
    pub config: Arc<ConfigWatcher>,
    pub limits: Limits,
    router: TowerToHyperService<Router>,
    hosts: Hosts,
    /// Whether a foreign `Host` was logged.
    warned: AtomicBool,
    own_credentials: Option<OwnCredentials>,
    passwords: Arc<Passwords>,
    bucket: Mutex<Bucket>,
    started: Instant,
    places: Arc<Semaphore>,
}

/// Connection data of a request.
pub struct RequestOrigin {
    pub peer: Peer,
    pub certificate: bool,
    pub monitor: Arc<ConnectionMonitor>,
}

impl Middleware {
    pub fn new(
        router: Router,
        config: Arc<ConfigWatcher>,
        limits: Limits,
        hosts: Hosts,
        own_credentials: Option<OwnCredentials>,
    ) -> Middleware {
        let places = Arc::new(Semaphore::new(limits.requests));
        Middleware {
            config,
            limits,
            router: TowerToHyperService::new(router),
            hosts,
            warned: AtomicBool::default(),
            own_credentials,
            passwords: Arc::default(),
            bucket: Mutex::default(),
            started: Instant::now(),
            places,
        }
    }

    pub async fn answer(&self, request: Request<Incoming>, origin: &RequestOrigin) -> Response {
        let turn = Turn::begin(origin.monitor.clone());
        add(&self.config.counters().requests);
        // Connections are long-lived: changed settings apply from the next request.
        let settings = self.config.fresh().await;
        let (mut response, place) = match self.pass(request, origin, &settings).await {
            Ok((request, place)) => match self.router.call(request).await {
                Ok(response) => (response, Some(place)),
                Err(never) => match never {},
            },
            Err(refused) => {
                let (why, response) = *refused;
                self.config.counters().refused(why);
                (response, None)
            }
        };
        for (name, value) in &settings.headers {
            // The configuration has validated both.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(*name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        answering(response, turn, place)
    }

    async fn pass(
        &self,
        request: Request<Incoming>,
        origin: &RequestOrigin,
        settings: &Settings,
    ) -> Result<(Request<Body>, tokio::sync::OwnedSemaphorePermit), Box<(Refused, Response)>> {
        let refuse = |why, status: StatusCode, text: &'static str| Err(Box::new((why, (status, text).into_response())));
        if let Some(limit) = settings.rate_limit {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            if !bucket.take(limit, self.started.elapsed()) {
                return refuse(Refused::Rate, StatusCode::TOO_MANY_REQUESTS, "too many requests: ask again later\n");
            }
        }
        let mut identity = Identity { user: None, certificate: origin.certificate, token: false };
        if !settings.users.is_empty() {
            identity.token = self.has_own_credentials(request.headers()).await;
        }
        if !settings.users.is_empty() && !identity.token {
            let header = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
            match self.passwords.check(&settings.users, header).await {
                Verdict::Welcome(user) => identity.user = Some(user),
                Verdict::Wrong => {
                    tracing::debug!(client = %origin.peer.0, "no right name and password");
                    let scheme = [(header::WWW_AUTHENTICATE, "Basic realm=\"kstrobe\", charset=\"UTF-8\"")];
                    let answer = (StatusCode::UNAUTHORIZED, scheme, "a name and a password are needed\n");
                    return Err(Box::new((Refused::Unauthorized, answer.into_response())));
                }
                Verdict::Busy => {
                    let text = "too many passwords to look at: ask again later\n";
                    return refuse(Refused::AuthBusy, StatusCode::SERVICE_UNAVAILABLE, text);
                }
            }
        }
        // A page does not know the token, gets no passwords of another origin from the browser, and has no certificate for its
        // own name: only plain requests without credentials can come from such a page.
        if settings.tls.is_none() && !identity.is_known() && !self.is_ours(&request) {
            identity.token = self.has_own_credentials(request.headers()).await;
            if !identity.token {
                self.warn_once(&request, origin.peer);
                return refuse(Refused::Host, StatusCode::MISDIRECTED_REQUEST, FOREIGN);
            }
        }
        if request.body().size_hint().lower() > self.limits.body_bytes as u64 {
            return refuse(Refused::Body, StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n");
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let text = "too many requests at once: ask again later\n";
            return refuse(Refused::Busy, StatusCode::SERVICE_UNAVAILABLE, text);
        };
        let mut request = request.map(|body| arriving(body, &self.limits));
        // HTTP/2 sends `:authority` instead of `Host`; routes read the header.
        let authority = request.uri().authority().and_then(|name| HeaderValue::try_from(name.as_str()).ok());
        if let (Some(authority), false) = (authority, request.headers().contains_key(header::HOST)) {
            request.headers_mut().insert(header::HOST, authority);
        }
        request.extensions_mut().insert(origin.peer);
        request.extensions_mut().insert(identity);
        Ok((request, place))
    }

    /// Whether all host names of a request are ours. A request without any (HTTP/1.0) is not from a browser.
    fn is_ours(&self, request: &Request<Incoming>) -> bool {
        let headers = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        request
            .uri()
            .authority()
            .map(|name| name.as_str().as_bytes())
            .into_iter()
            .chain(headers)
            .all(|host| self.hosts.has(host))
    }

    fn warn_once(&self, request: &Request<Incoming>, peer: Peer) {
        if !self.warned.swap(true, Relaxed) {
            let host = request.headers().get(header::HOST);
            tracing::warn!(client = %peer.0, ?host, "refused a request for a foreign name: further ones are only counted");
        }
    }

    async fn has_own_credentials(&self, headers: &HeaderMap) -> bool {
        let Some(own) = self.own_credentials.clone() else { return false };
        let headers = headers.clone();
        // A panic counts as a failed check.
        tokio::task::spawn_blocking(move || own(&headers)).await.unwrap_or(false)
    }
}
