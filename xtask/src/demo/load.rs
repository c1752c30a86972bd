//! A small shop that keeps a node busy with a bit of everything: requests over loopback, files, locks, short processes. Its
//! pace is fixed and it ends by itself.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of an answer.
const ANSWER: usize = 2048;
/// Requests before a client connects anew.
const REQUESTS_A_CONNECTION: u32 = 20;

/// What runs.
pub struct Load {
    threads: Vec<JoinHandle<Result<()>>>,
    served: Arc<AtomicU64>,
}

/// Starts all of it for so long; files go below `folder`.
pub fn start(folder: &Path, time: Duration) -> Result<Load> {
    let end = Instant::now() + time;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let served = Arc::new(AtomicU64::new(0));
    let lock = Arc::new(Mutex::new(0u64));
    let mut load = Load { threads: Vec::new(), served: served.clone() };

    load.run("shop-db", move || serve(&listener, end))?;
    for _ in 0..3 {
        let served = served.clone();
        load.run("shop-web", move || ask(address, end, &served))?;
    }
    let file = folder.join("orders.log");
    load.run("shop-log", move || write(&file, end))?;
    for _ in 0..2 {
        let lock = lock.clone();
        load.run("shop-stock", move || count(&lock, end))?;
    }
    for name in ["shop-batch-a", "shop-batch-b", "shop-batch-c"] {
        load.run(name, move || compute(end))?;
    }
    load.run("shop-stats", move || datagrams(end))?;
    load.run("shop-cron", move || processes(end))?;
    load.run("shop-probe", move || refused(end))?;
    Ok(load)
}

impl Load {
    fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits for its end; how many requests were answered.
    pub fn wait(self) -> Result<u64> {
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the load has panicked"))??;
        }
        Ok(self.served.load(Ordering::Relaxed))
    }
}

/// Each connection has a thread of its own, as old databases do. Every tenth answer is slow, every hundredth very slow.
fn serve(listener: &TcpListener, end: Instant) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut sessions = Vec::new();
    while Instant::now() < end {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        stream.set_nonblocking(false)?;
        sessions.retain(|session: &JoinHandle<()>| !session.is_finished());
        sessions.push(thread::Builder::new().name("shop-db".to_owned()).spawn(move || session(stream))?);
    }
    for session in sessions {
        // Whatever a session met, the client saw it.
        let _ = session.join();
    }
    Ok(())
}

fn session(mut stream: TcpStream) {
    let mut request = [0u8; 8];
    while stream.read_exact(&mut request).is_ok() {
        let number = u64::from_le_bytes(request);
        let think = match number {
            n if n % 100 == 0 => 80,
            n if n % 10 == 0 => 15,
            n => 1 + n % 4,
        };
        thread::sleep(Duration::from_millis(think));
        if stream.write_all(&[7; ANSWER]).is_err() {
            return;
        }
    }
}

fn ask(address: SocketAddr, end: Instant, served: &AtomicU64) -> Result<()> {
    let mut number = 0u64;
    while Instant::now() < end {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        for _ in 0..REQUESTS_A_CONNECTION {
            number += 1;
            stream.write_all(&number.to_le_bytes())?;
            let mut answer = [0; ANSWER];
            stream.read_exact(&mut answer)?;
            served.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(3));
        }
    }
    Ok(())
}

/// A log that is put on disk before it is answered for, and read again.
fn write(path: &Path, end: Instant) -> Result<()> {
    while Instant::now() < end {
        let mut file = File::create(path)?;
        for _ in 0..40 {
            file.write_all(&[b'.'; 16 << 10])?;
            file.sync_data()?;
            thread::sleep(Duration::from_millis(25));
        }
        let mut again = Vec::new();
        File::open(path)?.read_to_end(&mut again)?;
        fs::remove_file(path)?;
    }
    Ok(())
}

fn count(lock: &Mutex<u64>, end: Instant) -> Result<()> {
    while Instant::now() < end {
        if let Ok(mut stock) = lock.lock() {
            *stock += 1;
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Bursts that meet on the CPUs, with fresh memory each.
fn compute(end: Instant) -> Result<()> {
    while Instant::now() < end {
        let begin = Instant::now();
        let mut table = vec![0u64; 256 << 10];
        let mut sum = 1u64;
        while begin.elapsed() < Duration::from_millis(8) {
            for cell in &mut table {
                sum = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *cell = sum;
            }
        }
        std::hint::black_box(&table);
        thread::sleep(Duration::from_millis(60));
    }
    Ok(())
}

fn datagrams(end: Instant) -> Result<()> {
    let to = UdpSocket::bind("127.0.0.1:0")?;
    let from = UdpSocket::bind("127.0.0.1:0")?;
    // A socket whose buffer is full drops what comes.
    to.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut datagram = [0; 512];
    while Instant::now() < end {
        for _ in 0..10 {
            from.send_to(&datagram, to.local_addr()?)?;
        }
        for _ in 0..10 {
            if to.recv_from(&mut datagram).is_err() {
                break;
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn processes(end: Instant) -> Result<()> {
    while Instant::now() < end {
        Command::new("true").stdout(Stdio::null()).status()?;
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// A check of a service that is down: each attempt is answered with a reset.
fn refused(end: Instant) -> Result<()> {
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    while Instant::now() < end {
        let _ = TcpStream::connect_timeout(&closed, Duration::from_secs(1));
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
