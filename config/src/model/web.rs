//! `web-config.yml`, the file that exporters of Prometheus share.

use std::fmt;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// `tls_server_config:`; without it the server speaks plain HTTP.
    pub tls: Option<Tls>,
    /// `http2:` whether clients with TLS may use HTTP/2, default true.
    pub http2: bool,
    /// `headers:` of every answer, by name.
    pub headers: Vec<(&'static str, String)>,
    /// `basic_auth_users:`; without any, no password is required.
    pub users: Vec<User>,
    pub rate_limit: Option<RateLimit>,
}

/// Text that no log may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Where certificates or a key in PEM form are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pem {
    /// A file; a relative path begins at the folder of the configuration.
    File(String),
    /// The text itself.
    Text(Secret),
}

/// `tls_server_config:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// `cert_file:` or `cert:`, the server's certificate and those between it and its authority.
    pub cert: Pem,
    /// `key_file:` or `key:`
    pub key: Pem,
    /// `client_auth_type:`
    pub client_auth: ClientAuth,
    /// `client_ca_file:` or `client_ca:`
    pub client_ca: Option<Pem>,
    /// `client_allowed_sans:`; a client's certificate needs one of them. `None` when all may come.
    pub client_allowed_sans: Option<Vec<String>>,
    /// `min_version:`, default TLS 1.2.
    pub min_version: TlsVersion,
    /// `max_version:`, default TLS 1.3.
    pub max_version: TlsVersion,
    /// `cipher_suites:` for TLS 1.2, those that there are, best first. `None` for all.
    pub cipher_suites: Option<Vec<&'static str>>,
    /// `curve_preferences:`, best first. `None` for the default.
    pub curves: Option<Vec<Curve>>,
    /// `prefer_server_cipher_suites:` whether our order counts or the client's, default true.
    pub prefer_server_cipher_suites: bool,
}

/// What is asked of a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// There need be none.
    None,
    /// It is asked for, and neither needed nor checked.
    Request,
    /// There must be one; who signed it does not matter.
    RequireAny,
    /// There need be none, but one that is there must be signed by the authority.
    VerifyIfGiven,
    /// There must be one that the authority signed.
    RequireAndVerify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

/// A curve that keys are agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `CurveP256`
    P256,
    /// `CurveP384`
    P384,
    X25519,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    /// bcrypt's text of the password.
    pub hash: Secret,
}

/// `rate_limit:` of all requests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// `interval:` after which one more request may come, nanoseconds, not 0.
    pub interval_ns: u64,
    /// `burst:` requests that may come at once, not 0.
    pub burst: u32,
}
