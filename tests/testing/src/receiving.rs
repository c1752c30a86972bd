//! An HTTP receiver that keeps requests and answers as a test sets.

use flate2::read::GzDecoder;
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came, its body decompressed.
#[derive(Clone, Debug)]
pub struct Came {
    /// Its path and query.
    pub path: String,
    /// By names in small letters.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    pub answer: String,
}

/// On loopback, as long as the test's process.
#[derive(Debug)]
pub struct Receiving {
    /// Where it listens.
    pub address: SocketAddr,
    came: Arc<Mutex<Vec<Came>>>,
}

impl Receiving {
    /// Answers one after another, then 200. They are status lines with headers: `503 Down\r\nRetry-After: 1`.
    pub fn start(answers: &[&str]) -> Receiving {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(Mutex::new(Vec::new()));
        let answers: VecDeque<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let (list, answers) = (came.clone(), Arc::new(Mutex::new(answers)));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (list, answers) = (list.clone(), answers.clone());
                std::thread::spawn(move || serve(stream, &list, &answers));
            }
        });
        Receiving { address, came }
    }

    /// All requests until now, in their order.
    pub fn came(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }
}

/// Until who asks is gone, which may be before he has asked for anything.
fn serve(mut stream: TcpStream, list: &Mutex<Vec<Came>>, answers: &Mutex<VecDeque<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut came = request(&mut reader)?;
        came.answer = answers.lock().unwrap().pop_front().unwrap_or_else(|| "200 OK".into());
        let answer = format!("HTTP/1.1 {}\r\nContent-Length: 0\r\n\r\n", came.answer);
        list.lock().unwrap().push(came);
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn request(reader: &mut impl BufRead) -> Option<Came> {
    let mut lines = reader.by_ref().lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let lines = lines.take_while(|line| !line.is_empty());
    let headers = lines.filter_map(|line| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())));
    let headers: HashMap<String, String> = headers.collect();
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    if headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
        let mut plain = Vec::new();
        GzDecoder::new(body.as_slice()).read_to_end(&mut plain).ok()?;
        body = plain;
    }
    Some(Came { path, headers, body, answer: String::new() })
}
