//! Who may ask for a reload, and what is answered.

use super::*;
use crate::app::{Captures, Reload, ReloadRefused};
use crate::capture::access::{Access, Denied};

fn status_and_body(server: &Server, method: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "{method} /-/reload HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn server(open: bool, access: Access, outcome: Result<String, String>) -> Server {
    let captures = move || Captures { rules: Err(Denied::off()), access: access.clone() };
    let reload = Reload { open, ask: Box::new(move || outcome.clone().map_err(ReloadRefused)) };
    Server::start(Endpoints { captures: Box::new(captures), reload, ..endpoints(vec![]) })
}

#[test]
fn who_may_ask() {
    let token = std::env::temp_dir().join(format!("kstrobe-reload-token-{}", std::process::id()));
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let (local, page) = ("Host: localhost\r\n", "Host: localhost\r\nOrigin: http://evil.example\r\n");
    let with_token = "Host: localhost\r\nOrigin: null\r\nAuthorization: Bearer 0123456789abcdef\r\n";
    for (open, access, method, headers, status, part) in [
        (false, Access::Local, "POST", local, 200, "reloaded"),
        (false, Access::Local, "PUT", local, 200, "reloaded"),
        (false, Access::Local, "GET", local, 405, ""),
        (false, Access::Local, "POST", page, 403, "web pages"),
        (false, Access::Off("-".into()), "POST", local, 403, "--web.enable-lifecycle"),
        (true, Access::Off("-".into()), "POST", local, 200, "reloaded"),
        (true, Access::Off("-".into()), "POST", page, 403, "web pages"),
        (true, Access::Token(token.clone()), "POST", page, 403, "web pages"),
        (true, Access::Token(token.clone()), "POST", with_token, 200, "reloaded"),
        (false, Access::Token(token.clone()), "POST", local, 401, "a token is needed"),
        (false, Access::Token(token.clone()), "POST", with_token, 200, "reloaded"),
    ] {
        let server = server(open, access.clone(), Ok("reloaded\n".into()));
        let (found, body) = status_and_body(&server, method, headers);
        assert!(found == status && body.contains(part), "{open} {access:?} {method} {headers:?}: {found} {body}");
    }
    std::fs::remove_file(token).unwrap();
}

#[test]
fn what_is_wrong_is_the_answer() {
    let server = server(false, Access::Local, Err("error: no\n".into()));
    assert_eq!(status_and_body(&server, "POST", "Host: localhost\r\n"), (500, "error: no\n".into()));
}
