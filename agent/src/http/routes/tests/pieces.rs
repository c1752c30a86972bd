//! Expositions that are written while they are sent.

use super::*;

fn server(write: impl Fn(&mut kstrobe_export::Send<'_>) -> Result<(), Gone> + Send + Sync + 'static) -> Server {
    Server::start(Endpoints { write: Box::new(move |_, send| write(send)), ..endpoints(vec![]) })
}

fn ask(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

#[test]
fn a_failure_in_the_middle_does_not_look_complete() {
    let (received, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let server = server(move |send| {
        send(Bytes::from_static(b"kstrobe_x 1\n"))?;
        // A failure before the first piece is sent resets the connection without a head.
        wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
        panic!("on purpose")
    });
    let mut client = ask(&server);
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"kstrobe_x 1\n\r\n") {
        let read = client.read(&mut piece).unwrap();
        assert!(read > 0, "the first piece did not arrive: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..read]);
    }
    received.send(()).unwrap();
    // Cut off or reset.
    _ = client.read_to_end(&mut answer);
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer[end..].windows(11).any(|part| part == b"kstrobe_x 1"));
    assert_eq!(whole(&answer[end + 4..]), None);
}

#[test]
fn a_client_that_takes_its_time_holds_up_no_other() {
    let slow = AtomicUsize::new(0);
    let server = server(move |send| {
        let pieces = if slow.fetch_add(1, Ordering::SeqCst) == 0 { usize::MAX } else { 1 };
        (0..pieces).try_for_each(|_| send(vec![b'#'; 64 << 10].into()))
    });
    let mut first = ask(&server);
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    assert_eq!(server.get("/metrics", "").1.len(), 64 << 10);
    drop(first);
}

#[test]
fn a_client_that_hangs_up_ends_the_writing() {
    let (ended, wait) = std::sync::mpsc::channel();
    let server = server(move |send| {
        let gone = std::iter::repeat_with(|| send(vec![b'#'; 64 << 10].into())).find_map(Result::err);
        ended.send(gone).unwrap();
        Err(Gone)
    });
    let mut client = ask(&server);
    client.read_exact(&mut [0]).unwrap();
    drop(client);
    assert_eq!(wait.recv_timeout(Duration::from_secs(20)), Ok(Some(Gone)));
}
