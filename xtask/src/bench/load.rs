//! Loads on one CPU, in real time priority so that a busy machine is not measured with them.

use anyhow::{Context, Result, anyhow};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, getppid};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// System calls between two looks at the clock: 2-20 ms, short enough that some chunks see no interrupt storm.
pub const CHUNK: u32 = 10_000;

/// Nanoseconds per call of the fastest chunk.
pub fn fastest_call_ns(cpu: usize, calls: u32) -> Result<f64> {
    on_cpu(cpu, move || {
        fastest(calls, CHUNK, || {
            getppid();
            Ok(())
        })
    })
}

/// `recvfrom` on a socket that has nothing to read: nanoseconds of the fastest chunk, per call.
pub fn fastest_empty_receive_ns(cpu: usize, calls: u32) -> Result<f64> {
    on_cpu(cpu, move || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        let mut byte = [0];
        fastest(calls, CHUNK, || match socket.recv_from(&mut byte) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            received => Err(anyhow!("{received:?} on a socket that has nothing to read")),
        })
    })
}

/// What of a load's chunks is its time.
#[derive(Clone, Copy, Debug)]
pub enum Take {
    /// The fastest of so many operations.
    Fastest(u32),
    /// The median of those of [`MEASURED`], after [`SETTLING`] of the same load, by when budgets have acted.
    Settled,
}

/// How long budgets have to act, which look at windows of some seconds.
pub const SETTLING: Duration = Duration::from_secs(20);
pub const MEASURED: Duration = Duration::from_secs(10);

/// [`pipe_round_trip_ns`] of the fastest chunk.
pub fn fastest_pipe_round_trip_ns(cpu: usize, trips: u32) -> Result<f64> {
    pipe_round_trip_ns(cpu, Take::Fastest(trips))
}

/// [`tcp_round_trip_ns`] of the fastest chunk.
pub fn fastest_tcp_round_trip_ns(cpu: usize, trips: u32) -> Result<f64> {
    tcp_round_trip_ns(cpu, Take::Fastest(trips))
}

/// A byte to another thread on the same CPU and back, by two pipes: two context switches.
pub fn pipe_round_trip_ns(cpu: usize, take: Take) -> Result<f64> {
    let (request, asked) = std::io::pipe().map(|(read, write)| (write, read))?;
    let (answered, answer) = std::io::pipe()?;
    round_trips(cpu, take, (answered, request), (asked, answer))
}

/// A byte to another thread on the same CPU and back, by a TCP connection on loopback.
pub fn tcp_round_trip_ns(cpu: usize, take: Take) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // A lost end of the connection ends the load, not the benchmark's patience.
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    round_trips(cpu, take, (client.try_clone()?, client), (server.try_clone()?, server))
}

/// The client's ends (to read, to write) and the server's.
fn round_trips<CR, CW, SR, SW>(cpu: usize, take: Take, client: (CR, CW), server: (SR, SW)) -> Result<f64>
where
    CR: Read + Send + 'static,
    CW: Write + Send + 'static,
    SR: Read + Send + 'static,
    SW: Write + Send + 'static,
{
    let echo = std::thread::spawn(move || {
        on_cpu(cpu, move || {
            let (mut from, mut to) = server;
            let mut byte = [0];
            while from.read(&mut byte)? > 0 {
                to.write_all(&byte)?;
            }
            Ok(())
        })
    });
    let best = on_cpu(cpu, move || {
        let (mut from, mut to) = client;
        let mut byte = [0];
        let trip = || {
            to.write_all(&byte)?;
            Ok(from.read_exact(&mut byte)?)
        };
        match take {
            Take::Fastest(trips) => fastest(trips, CHUNK / 10, trip),
            Take::Settled => settled(CHUNK / 10, trip),
        }
    })?;
    echo.join().map_err(|_| anyhow!("the echo's thread panicked"))??;
    Ok(best)
}

/// Nanoseconds of one `step`, of the fastest chunk.
fn fastest(steps: u32, chunk: u32, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..steps.div_ceil(chunk) {
        let begin = Instant::now();
        for _ in 0..chunk {
            step()?;
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(chunk));
    }
    Ok(best)
}

/// Nanoseconds of one `step`, of the median chunk of [`MEASURED`] after [`SETTLING`].
fn settled(chunk: u32, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let (start, mut chunks) = (Instant::now(), Vec::new());
    while start.elapsed() < SETTLING + MEASURED {
        let begin = Instant::now();
        (0..chunk).try_for_each(|_| step())?;
        if start.elapsed() > SETTLING {
            chunks.push(begin.elapsed().as_nanos() as f64 / f64::from(chunk));
        }
    }
    chunks.sort_by(f64::total_cmp);
    chunks.get(chunks.len() / 2).copied().context("no chunk of the load came to its end")
}

/// Makes one call under each of these names of the thread.
pub fn call_under_names(cpu: usize, names: Vec<u32>) -> Result<()> {
    on_cpu(cpu, move || {
        for n in names {
            // Writing `comm` is prctl(PR_SET_NAME) without an unsafe call.
            fs::write("/proc/thread-self/comm", format!("name{n:05}")).context("renaming the load's thread")?;
            getppid();
        }
        Ok(())
    })
}

/// Runs `work` in a new thread that owns a CPU. The thread is new each time so that no state of an earlier variant (task
/// storage) is met.
fn on_cpu<T: Send + 'static>(cpu: usize, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu).with_context(|| format!("no such CPU: {cpu}"))?;
        sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning the load to CPU {cpu}"))?;
        real_time()?;
        work()
    });
    thread.join().map_err(|_| anyhow!("the load's thread panicked"))?
}

/// Gives the calling thread the lowest real time priority: above everything else that runs here, below the kernel's own.
fn real_time() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread, and the pointer is to a live, initialised sched_param.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("real time priority for the load") }
}
