//! Loads whose results are known beforehand. All are bounded, and stay on loopback or in the test's own namespaces.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::select::pselect;
use nix::sys::time::TimeSpec;
use nix::unistd::{getppid, gettid};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls `getppid` so often.
pub fn getppid_calls(count: u32) {
    for _ in 0..count {
        getppid();
    }
}

/// How long a loop ran, as it sees itself: time that others took from it leaves a gap between two looks at the clock.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    last: Instant,
    /// Without the gaps.
    pub time: Duration,
    pub gaps: u32,
}

impl Ran {
    /// From now on.
    pub fn new() -> Ran {
        Ran { last: Instant::now(), time: Duration::ZERO, gaps: 0 }
    }

    /// To be called more often than each millisecond.
    pub fn look(&mut self) {
        let gap = self.last.elapsed();
        self.last += gap;
        if gap < Duration::from_millis(1) {
            self.time += gap;
        } else {
            self.gaps += 1;
        }
    }

    /// Most samples that a timer of so many a second can have taken of it. A CPU that a hypervisor takes away is off the
    /// clock of CPU time, while the timer goes on: one sample for each gap.
    pub fn most_samples(&self, hz: f64) -> f64 {
        self.time.as_secs_f64() * hz * 1.05 + f64::from(self.gaps) + 12.0
    }
}

/// Sleeps so often in `pselect6`, which little else on a machine calls.
pub fn pselect_sleeps(count: u32, each: Duration) {
    let time = TimeSpec::from(each);
    for _ in 0..count {
        pselect(None, None, None, None, Some(&time), None).unwrap();
    }
}

/// A server on loopback that answers each byte after a while, for one connection. The thread ends with the connection.
pub fn delayed_echo(delay: Duration) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 {
            std::thread::sleep(delay);
            stream.write_all(&byte).unwrap();
        }
    };
    (address, std::thread::Builder::new().name("kst-server".to_owned()).spawn(serve).unwrap())
}

/// Asks so often and waits for each answer in `recvfrom`, in a thread of this name (its `comm`: at most 15 bytes). Gives how
/// long each of these calls took by the thread's own clock.
pub fn ask(address: SocketAddr, count: u32, comm: &str) -> Vec<Duration> {
    let client = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [7];
        let mut one = || {
            stream.write_all(&byte).unwrap();
            let begin = Instant::now();
            // std reads a socket with recv(3), which is recvfrom(2).
            assert_eq!(stream.read(&mut byte).unwrap(), 1);
            begin.elapsed()
        };
        (0..count).map(|_| one()).collect()
    };
    std::thread::Builder::new().name(comm.to_owned()).spawn(client).unwrap().join().unwrap()
}

/// A client of [`delayed_echo`] that asks and waits in `recvfrom` until it is told to end.
pub struct Asking {
    /// Its thread.
    pub tid: i32,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Asking {
    /// Starts it in a thread of this name (its `comm`: at most 15 bytes); the server takes so long for each answer.
    pub fn start(delay: Duration, comm: &str) -> Asking {
        let (address, server) = delayed_echo(delay);
        let (tell, told) = mpsc::channel();
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let client = move || {
            tell.send(gettid().as_raw()).unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            let mut byte = [7];
            while !ended.load(Ordering::Relaxed) {
                stream.write_all(&byte).unwrap();
                assert_eq!(stream.read(&mut byte).unwrap(), 1);
            }
        };
        let client = std::thread::Builder::new().name(comm.to_owned()).spawn(client).unwrap();
        Asking { tid: told.recv().unwrap(), end, threads: vec![client, server] }
    }

    pub fn end(mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Asking {
    /// A test that fails leaves no load to the next one.
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Sends datagrams to itself over loopback: each is at least one NET_RX softirq's work.
pub fn datagrams(count: u32) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let own = socket.local_addr().unwrap();
    let mut buffer = [0; 64];
    for _ in 0..count {
        socket.send_to(&[1; 64], own).unwrap();
        socket.recv(&mut buffer).unwrap();
    }
}

/// Takes one connection and reads it to its end; returns the bytes read. For a thread inside a namespace.
pub fn receive_all(listener: &TcpListener) -> u64 {
    let (mut stream, _) = listener.accept().unwrap();
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
}

/// Sends bytes until there were enough or time is up; returns how many. For a thread inside a namespace.
pub fn send_bytes(address: SocketAddr, bytes: u64, limit: Duration) -> u64 {
    // A link that loses packets loses those that ask for the neighbour's address as well.
    let mut stream = super::wait_for("a connection", limit, || TcpStream::connect(address).ok());
    stream.set_write_timeout(Some(limit)).unwrap();
    let (begin, block, mut sent) = (Instant::now(), vec![1; 64 << 10], 0);
    while sent < bytes && begin.elapsed() < limit {
        // A write that timed out has sent nothing more: the limit is reached.
        sent += stream.write(&block).unwrap_or(0) as u64;
    }
    sent
}

/// Asks for the process group of a process, so often. The answer does not matter, so the number may be any.
pub fn getpgid_calls(pid: i32, count: u32) {
    for _ in 0..count {
        let _ = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid)));
    }
}

/// The same with getsid.
pub fn getsid_calls(pid: i32, count: u32) {
    for _ in 0..count {
        let _ = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid)));
    }
}

/// Calls of setpgid(2) that change nothing: no process group has a negative number.
pub fn setpgid_refusals(count: u32) {
    for _ in 0..count {
        let group = nix::unistd::Pid::from_raw(-1);
        assert_eq!(nix::unistd::setpgid(nix::unistd::Pid::this(), group), Err(nix::errno::Errno::EINVAL));
    }
}

/// Does something in a thread of this name (its `comm`: at most 15 bytes).
pub fn named<T: Send>(comm: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        std::thread::Builder::new().name(comm.to_owned()).spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

/// Waits so often in vain for a datagram: each wait ends by a timer of the kernel's wheel, which the TIMER softirq runs.
pub fn receive_timeouts(count: u32) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    for _ in 0..count {
        assert!(socket.recv(&mut [0]).is_err(), "nobody sends here");
    }
}

/// Writes to so many pages that were never touched, and returns how many page faults the kernel says this thread took for
/// it.
pub fn touch_pages(pages: usize) -> i64 {
    each_page(pages, |page| *std::hint::black_box(&mut page[0]) = 1)
}

/// The same where the kernel writes to them: a system call for each.
pub fn fill_pages(pages: usize) -> i64 {
    let mut zero = std::fs::File::open("/dev/zero").unwrap();
    each_page(pages, |page| assert_eq!(zero.read(&mut page[..8]).unwrap(), 8))
}

fn each_page(pages: usize, touch: impl FnMut(&mut [u8])) -> i64 {
    const PAGE_BYTES: usize = 4096;
    // Above 32 MiB glibc always maps fresh memory; below, it may give out what was touched and freed before.
    const ALWAYS_MAPPED_BYTES: usize = 33 << 20;
    // One fault of a huge page would stand for 512 of ours.
    nix::sys::prctl::set_thp_disable(true).unwrap();
    let faults = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().minor_page_faults();
    let before = faults();
    let mut memory = vec![0u8; (pages * PAGE_BYTES).max(ALWAYS_MAPPED_BYTES)];
    memory.chunks_mut(PAGE_BYTES).take(pages).for_each(touch);
    faults() - before
}
