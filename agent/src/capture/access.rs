//! Which requests may start captures, and read events and stacks.

use axum::http::{HeaderMap, StatusCode, header};
use std::hint::black_box;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Bytes of a token file that are read.
const MAX_TOKEN_BYTES: u64 = 4096;
/// A token that is shorter can be found by trying.
const MIN_TOKEN_BYTES: usize = 16;
/// Carries the token through Kubernetes' API server, which consumes `Authorization` and does not forward it.
pub const TOKEN_HEADER: &str = "x-kstrobe-token";

/// Credentials that captures require. With `web-config.yml` the server has authenticated the client before, which is enough
/// without a token. With a token, captures require it; it then also replaces the password of the server, since a request has
/// only one `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// No credentials: all addresses are loopback ones.
    Local,
    /// The token in this file, which is read for each request, so that it can be rotated.
    Token(PathBuf),
    /// Only authenticated clients; the reason for the others.
    Off(String),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// For HTTP.
    pub status: StatusCode,
    /// The message of the answer.
    pub message: String,
}

impl Denied {
    /// There is no `captures` in the configuration.
    pub fn off() -> Denied {
        let message = "captures are off: write `captures: {}` into the agent's configuration".to_owned();
        Denied { status: StatusCode::FORBIDDEN, message }
    }

    /// Captures cannot be stored.
    pub fn broken(reason: &std::io::Error) -> Denied {
        Denied { status: StatusCode::SERVICE_UNAVAILABLE, message: format!("captures cannot be stored: {reason}") }
    }
}

impl Access {
    /// Of an agent that listens on these addresses.
    pub fn new(addresses: &[SocketAddr], token_file: Option<PathBuf>) -> Access {
        if let Some(file) = token_file {
            return Access::Token(file);
        }
        match addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
            None => Access::Local,
            Some(address) => Access::Off(format!(
                "captures are off: the agent listens on {address}, which others can reach, and asks for no token; \
                 set `captures.token_file`, use passwords or client certificates (--web.config.file), or listen on \
                 127.0.0.1 only"
            )),
        }
    }

    /// Whether a request has the token, where one is configured.
    pub fn is_token(&self, headers: &HeaderMap) -> bool {
        matches!(self, Access::Token(_)) && given(headers).is_some() && self.check(headers, false).is_ok()
    }

    /// Whether a request may read events, stacks and the list of probes: with the token where there is one.
    pub fn check_reading(&self, headers: &HeaderMap) -> Result<(), Denied> {
        if matches!(self, Access::Token(_)) { self.check(headers, false) } else { Ok(()) }
    }

    /// Whether a request is allowed. `is_known`: the server has authenticated the client.
    pub fn check(&self, headers: &HeaderMap, is_known: bool) -> Result<(), Denied> {
        match self {
            Access::Off(_) | Access::Local if is_known => no_page(headers),
            Access::Off(message) => Err(Denied { status: StatusCode::FORBIDDEN, message: message.clone() }),
            Access::Local => no_page(headers),
            Access::Token(file) => {
                let wanted = token(file).map_err(|error| {
                    tracing::error!(file = %file.display(), reason = %error, "captures are off: the token cannot be read");
                    let message = "captures are off: the agent cannot read its token, see its log".to_owned();
                    Denied { status: StatusCode::SERVICE_UNAVAILABLE, message }
                })?;
                let given = given(headers);
                if given.is_some_and(|given| same(given, wanted.as_bytes())) {
                    return Ok(());
                }
                let what = if given.is_none() { "a token is needed" } else { "the token is wrong" };
                let message =
                    format!("{what}: send `Authorization: Bearer TOKEN` with the text of `captures.token_file`");
                Err(Denied { status: StatusCode::UNAUTHORIZED, message })
            }
        }
    }
}

/// The token that a request shows.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
    });
    bearer.or_else(|| headers.get(TOKEN_HEADER).map(|value| value.as_bytes().trim_ascii()))
}

/// Refuses web pages other than the agent's own, which a browser names. It reaches what its user reaches, loopback addresses too, and sends
/// a password or a certificate that it knows with every request, also with those of a foreign page. The server has refused foreign names
/// before, so that a page of the host that is asked is the agent's.
pub fn no_page(headers: &HeaderMap) -> Result<(), Denied> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host_of = |origin: &str| origin.split_once("://").map(|(_, host)| host.to_owned());
    let origin = origin.to_str().ok().and_then(host_of);
    let asked = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if origin.is_some_and(|origin| asked.is_some_and(|asked| origin.eq_ignore_ascii_case(asked))) {
        return Ok(());
    }
    let message =
        "requests from other web pages are refused unless they bring the token of `captures.token_file`".to_owned();
    Err(Denied { status: StatusCode::FORBIDDEN, message })
}

/// Why a file has no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("the token has {0} bytes, and at least {MIN_TOKEN_BYTES} are needed")]
    TooShort(usize),
}

/// The token in a file, without blanks around it.
pub fn token(file: &std::path::Path) -> Result<String, TokenError> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() < MIN_TOKEN_BYTES {
        return Err(TokenError::TooShort(token.len()));
    }
    Ok(token.to_owned())
}

/// Compares in constant time for texts of one length.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differs = a.iter().zip(b).fold(a.len() ^ b.len(), |differs, (a, b)| black_box(differs | usize::from(a ^ b)));
    black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn without_a_token_only_loopback_addresses() {
        let local = [address("127.0.0.1:1"), address("[::1]:1"), address("[::ffff:127.0.0.1]:1")];
        assert_eq!(Access::new(&local, None), Access::Local);
        for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let access = Access::new(&[address("127.0.0.1:1"), address(open)], None);
            let denied = access.check(&HeaderMap::new(), false).unwrap_err();
            assert_eq!(denied.status, StatusCode::FORBIDDEN);
            assert_eq!(access.check(&HeaderMap::new(), true), Ok(()), "an authenticated client may");
            assert!(denied.message.contains(open) && denied.message.contains("captures.token_file"), "{denied:?}");
        }
        assert!(matches!(Access::new(&[address("0.0.0.0:1")], Some("/x".into())), Access::Token(_)));
    }

    #[test]
    fn web_pages_may_not_but_the_agents_own() {
        for (pairs, may) in [
            (&[][..], true),
            (&[("host", "localhost:9779")], true),
            (&[("host", "localhost:9779"), ("origin", "http://localhost:9779")], true),
            (&[("host", "localhost:9779"), ("origin", "http://localhost:3000")], false),
            (&[("host", "localhost:9779"), ("origin", "http://evil.example")], false),
            (&[("origin", "http://localhost")], false),
            (&[("host", "localhost"), ("origin", "null")], false),
        ] {
            // A browser sends passwords along.
            for (access, is_known) in [(Access::Local, false), (Access::Local, true), (Access::Off("why".into()), true)]
            {
                assert_eq!(access.check(&headers(pairs), is_known).is_ok(), may, "{pairs:?}");
            }
        }
    }

    #[test]
    fn reading_asks_for_the_token_only_where_there_is_one() {
        let page = headers(&[("origin", "http://evil.example")]);
        for access in [Access::Local, Access::Off("why".into())] {
            assert_eq!(access.check_reading(&page), Ok(()), "another origin may not read the answer");
        }
        let access = Access::Token("/no/such/file".into());
        assert_eq!(access.check_reading(&page).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn tokens() {
        let file = std::env::temp_dir().join(format!("kstrobe-token-{}", std::process::id()));
        std::fs::write(&file, "  0123456789abcdef\n").unwrap();
        let access = Access::Token(file.clone());
        let status =
            |pairs: &[(&'static str, &str)]| access.check(&headers(pairs), false).map_err(|denied| denied.status);
        assert_eq!(status(&[("authorization", "Bearer 0123456789abcdef")]), Ok(()));
        assert_eq!(status(&[("authorization", "bearer  0123456789abcdef ")]), Ok(()));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef"]
        {
            assert_eq!(status(&[("authorization", wrong)]), Err(StatusCode::UNAUTHORIZED), "{wrong}");
        }
        assert_eq!(status(&[]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&[("x-kstrobe-token", " 0123456789abcdef ")]), Ok(()));
        // A proxy's password is none of ours.
        assert_eq!(status(&[("authorization", "Basic eA=="), ("x-kstrobe-token", "0123456789abcdef")]), Ok(()));
        assert_eq!(status(&[("x-kstrobe-token", "0123456789abcde")]), Err(StatusCode::UNAUTHORIZED));
        assert_eq!(
            status(&[("authorization", "Bearer wrong"), ("x-kstrobe-token", "0123456789abcdef")]),
            Err(StatusCode::UNAUTHORIZED),
            "one token is shown, not several tried"
        );
        assert!(access.is_token(&headers(&[("x-kstrobe-token", "0123456789abcdef")])));
        assert!(!access.is_token(&headers(&[("authorization", "Basic eA==")])));
        assert!(access.check(&headers(&[]), true).is_err(), "a password is no token");
        std::fs::write(&file, "short\n").unwrap();
        assert_eq!(status(&[("authorization", "Bearer short")]), Err(StatusCode::SERVICE_UNAVAILABLE));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status(&[("authorization", "Bearer ")]), Err(StatusCode::SERVICE_UNAVAILABLE));
        assert!(same(b"", b"") && !same(b"a", b"") && !same(b"ab", b"ac") && same(b"ab", b"ab"));
    }
}
