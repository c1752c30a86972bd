//! Which requests may read events, stacks and the list of probes.

use super::*;
use crate::app::Captures;
use crate::capture::access::{Access, Denied};

const READING: [&str; 4] = ["/api/v1/probes", "/api/v1/stacks", "/api/v1/stacks/cpu", "/api/v1/events"];

fn server(access: Access) -> Server {
    let captures = move || Captures { rules: Err(Denied::off()), access: access.clone() };
    Server::start(Endpoints { captures: Box::new(captures), ..endpoints(vec![]) })
}

#[test]
fn events_stacks_and_probes_ask_for_a_token_where_one_is_configured() {
    let token = std::env::temp_dir().join(format!("kstrobe-reading-token-{}", std::process::id()));
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let guarded = server(Access::Token(token.clone()));
    for path in READING {
        let (head, body) = guarded.text(path);
        assert!(head.starts_with("http/1.1 401") && head.contains("www-authenticate: bearer"), "{path}: {head}");
        assert!(body.contains("a token is needed"), "{path}: {body}");
        let wrong = guarded.get(path, "Authorization: Bearer 0123456789abcdeX\r\n").0;
        assert!(wrong.starts_with("http/1.1 401"), "{path}: {wrong}");
        for right in ["Authorization: Bearer 0123456789abcdef\r\n", "X-Kstrobe-Token: 0123456789abcdef\r\n"] {
            let (head, _) = guarded.get(path, right);
            assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        }
    }
    for open in ["/metrics", "/healthz", "/readyz", "/"] {
        assert!(guarded.text(open).0.starts_with("http/1.1 200"), "{open}");
    }
    let (local, anybody) = (server(Access::Local), server(Access::Off("-".into())));
    for path in READING {
        assert!(local.text(path).0.starts_with("http/1.1 200"), "{path}");
        assert!(anybody.text(path).0.starts_with("http/1.1 200"), "{path}");
    }
    std::fs::remove_file(token).unwrap();
}
