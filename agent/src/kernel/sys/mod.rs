//! System calls that have no safe wrapper elsewhere. Structures are the kernel's own UAPI, which only ever grows at the
//! end: the kernel takes a shorter one as if the rest were zero.

pub mod btf;
pub mod ethtool;
pub mod launch;
pub mod link;
pub mod map;
pub mod mount;
pub mod perf;
pub mod prog;
pub mod uprobe;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub use map::{Entries, KernelMap, MapSpec};
pub use prog::{ProgSpec, ProgStats};

/// Commands of bpf(2).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ProgTestRun = 10,
    InfoByFd = 15,
    RawTracepointOpen = 17,
    BtfLoad = 18,
    BtfFdById = 19,
    MapFreeze = 22,
    BtfNextId = 23,
    MapLookupBatch = 24,
    LinkCreate = 28,
    EnableStats = 32,
    IterCreate = 33,
}

/// bpf(2).
///
/// # Safety
/// `attr` must be the command's `#[repr(C)]` attribute structure, and each address in it must be valid for what the
/// command reads or writes there.
unsafe fn bpf<T>(command: Command, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is a live, exclusive reference of the size we pass; its contents are the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, attr as *mut T, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Fills the start of the kernel's information structure for a map or program.
///
/// # Safety
/// `T` must be a `#[repr(C)]` prefix of that structure in which every bit pattern is valid; addresses in `info` must be null
/// or valid for what the kernel writes there.
unsafe fn info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        fd: u32,
        len: u32,
        info: u64,
    }
    let mut attr = Attr { fd: fd.as_raw_fd() as u32, len: size_of::<T>() as u32, info: info as *mut T as u64 };
    // SAFETY: `info` is valid for `len` bytes and outlives the call; the rest is the caller's promise.
    unsafe { bpf(Command::InfoByFd, &mut attr) }.map(drop)
}

/// Takes ownership of a descriptor that a system call has just returned.
///
/// # Safety
/// `fd` must be open and have no other owner.
unsafe fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The name as maps and programs carry it: 15 bytes and a NUL.
fn object_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    bytes
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC) as u64
}

/// Differs after each start of the kernel.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Nanoseconds to add to times of one of tracefs' clocks for those since the Unix epoch; `None` for clocks that user programs
/// cannot read.
pub fn epoch_offset_ns(trace_clock: &str) -> Option<i64> {
    let clock = match trace_clock {
        "mono" => libc::CLOCK_MONOTONIC,
        "mono_raw" => libc::CLOCK_MONOTONIC_RAW,
        "boot" => libc::CLOCK_BOOTTIME,
        "tai" => libc::CLOCK_TAI,
        _ => return None,
    };
    /// The reading with the least time between is the best.
    const READINGS: u32 = 10;
    let read = |_| {
        let (before, wall, after) = (clock_ns(clock), clock_ns(libc::CLOCK_REALTIME), clock_ns(clock));
        (after - before, wall - before - (after - before) / 2)
    };
    (0..READINGS).map(read).min().map(|(_, offset)| offset)
}

fn clock_ns(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing; the clocks that are asked for always exist.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Lifts the soft limit of open files to the hard one: each probe holds a dozen descriptors, and 1024 is a usual limit.
pub fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Failure leaves the limit as it was, and the probe that has no room says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Descriptors that this process may still open: RLIMIT_NOFILE less those it has. Errors of /proc mean that none are known to be in use.
pub fn spare_descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit};
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
    limit.saturating_sub(open)
}

/// Lets SIGPIPE end the process, as C programs do. Rust starts with it ignored, and then printing into a closed pipe panics.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Returns when every program that was running at the call has finished.
///
/// Programs at tracepoints run with preemption or migration disabled under RCU, and `MEMBARRIER_CMD_GLOBAL` waits for an
/// RCU grace period. Kernels with `nohz_full` refuse it; then a pause far longer than any program has to do.
pub fn wait_for_running_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: the call takes plain numbers.
    if unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
