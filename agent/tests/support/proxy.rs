//! A reverse proxy that has the agent below a prefix, as an ingress or a dashboard does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// Passes requests below a prefix to an agent, and answers all others with 404, until the test ends.
pub fn below(prefix: &'static str, agent: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A browser hangs up in the middle of an answer whenever a view ends.
            std::thread::spawn(move || drop(pass(client, prefix, agent)));
        }
    });
    address
}

/// One request: the agent is asked to close the connection after its answer.
fn pass(client: TcpStream, prefix: &str, agent: SocketAddr) -> std::io::Result<()> {
    let mut from_client = BufReader::new(client.try_clone()?);
    let mut to_client = client;
    let mut first = String::new();
    from_client.read_line(&mut first)?;
    let Some((method, rest)) = first.split_once(' ') else { return Ok(()) };
    let Some(rest) = rest.strip_prefix(prefix) else {
        return to_client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let mut head = format!("{method} {rest}Connection: close\r\n");
    loop {
        let mut line = String::new();
        if from_client.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if !line.to_ascii_lowercase().starts_with("connection:") {
            head += &line;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut to_agent = TcpStream::connect(agent)?;
    to_agent.write_all(head.as_bytes())?;
    let mut from_agent = to_agent.try_clone()?;
    std::thread::spawn(move || {
        _ = std::io::copy(&mut from_client, &mut to_agent);
        // The browser has gone: the agent need not go on.
        to_agent.shutdown(Shutdown::Both)
    });
    let mut chunk = [0; 16 << 10];
    loop {
        let read = from_agent.read(&mut chunk)?;
        if read == 0 {
            return to_client.shutdown(Shutdown::Both);
        }
        to_client.write_all(&chunk[..read])?;
    }
}
