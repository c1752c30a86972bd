//! Requests to servers of tests, as plain as can be.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Its status line and headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header, named in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Asks; `None` when there is no connection.
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    // HTTP/1.0: the end of the stream is the end of the answer.
    let mut request = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?.to_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head, body: answer.split_off(end + 4) })
}

/// Status and body of a page; `None` when there is no connection or no text.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let answer = ask(address, "GET", path, &[], "")?;
    Some((answer.status, String::from_utf8(answer.body).ok()?))
}

/// For the query of a URL.
pub fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    text.bytes().map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
