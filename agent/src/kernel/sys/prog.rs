//! Programs and BTF by descriptor: loading the tiny ones that find out abilities, and reading statistics.

use super::{Command, bpf, object_name, owned};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `BPF_PROG_TYPE_*` numbers.
pub mod kind {
    pub const SOCKET_FILTER: u32 = 1;
    /// kprobe, uprobe, USDT.
    pub const KPROBE: u32 = 2;
    /// Perf tracepoint.
    pub const TRACEPOINT: u32 = 5;
    pub const PERF_EVENT: u32 = 7;
    pub const RAW_TRACEPOINT: u32 = 17;
    /// Tracing by BTF.
    pub const TRACING: u32 = 26;
}

/// `BPF_TRACE_RAW_TP`: a tracing program at a tracepoint.
pub const ATTACH_TRACE_RAW_TP: u32 = 23;
/// `BPF_TRACE_FENTRY`: a tracing program at a function's entry.
pub const ATTACH_TRACE_FENTRY: u32 = 24;
/// `BPF_TRACE_FEXIT`: a tracing program at a function's exit.
pub const ATTACH_TRACE_FEXIT: u32 = 25;
/// `BPF_TRACE_ITER`: a tracing program that runs once per object of a kind, when somebody reads (5.8).
pub const ATTACH_TRACE_ITER: u32 = 28;
/// `BPF_TRACE_KPROBE_MULTI`: a kprobe program at any number of functions (5.18).
pub const ATTACH_KPROBE_MULTI: u32 = 42;
/// `BPF_TRACE_UPROBE_MULTI`: a uprobe program at any number of places of a file (6.6).
pub const ATTACH_UPROBE_MULTI: u32 = 48;

/// What to load.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgSpec<'a> {
    pub kind: u32,
    /// `enum bpf_attach_type`, where the kind needs it.
    pub attach_type: u32,
    /// BTF id of what a tracing program attaches to.
    pub attach_btf_id: u32,
    /// The module's BTF that this id is from; `None` for the kernel's own.
    pub attach_btf: Option<BorrowedFd<'a>>,
    /// What the verifier quotes the program's source from.
    pub lines: Option<Lines<'a>>,
    /// Instructions.
    pub insns: &'a [u64],
    /// At most 15 bytes are kept.
    pub name: &'a str,
}

/// A program's functions and source lines, as the kernel takes them.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// The types and texts that the records name.
    pub btf: BorrowedFd<'a>,
    /// `struct bpf_func_info`: instruction, type.
    pub functions: &'a [[u32; 2]],
    /// `struct bpf_line_info`: instruction, file, text, line and column.
    pub lines: &'a [[u32; 4]],
}

/// Why a load failed.
#[derive(Debug)]
pub struct Refused {
    /// The system call's error.
    pub error: io::Error,
    /// What the kernel wrote about it, often empty.
    pub log: String,
}

/// What the kernel knows of a loaded program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgStats {
    /// Kernel's id, as `bpftool prog` shows it.
    pub id: u32,
    /// At most 15 bytes.
    pub name: String,
    /// Machine code, 0 when interpreted or not allowed to see.
    pub jited_bytes: u32,
    /// Instructions after the verifier's rewriting, in bytes.
    pub xlated_bytes: u32,
    /// Runs left out because the program was already running on that CPU (5.12).
    pub recursion_misses: u64,
    /// Instructions the verifier walked (5.16), a measure of load cost.
    pub verified_insns: u32,
}

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kern_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
    btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_btf_fd: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_in_bytes: u32,
    ctx_out_bytes: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct BtfAttr {
    btf: u64,
    log: u64,
    bytes: u32,
    log_bytes: u32,
    log_level: u32,
    pad: u32,
}

/// `struct bpf_prog_info` up to `verified_insns`. All addresses in it stay null, so the kernel copies no arrays.
#[repr(C)]
#[derive(Default)]
struct RawInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_bytes: u32,
    xlated_bytes: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    uid: u32,
    map_count: u32,
    maps: u64,
    name: [u8; 16],
    ifindex: u32,
    gpl: u32,
    netns_dev: u64,
    netns_ino: u64,
    ksym_count: u32,
    func_len_count: u32,
    ksyms: u64,
    func_lens: u64,
    btf_id: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_count: u32,
    line_info: u64,
    jited_line_info: u64,
    jited_line_info_count: u32,
    line_info_rec_size: u32,
    jited_line_info_rec_size: u32,
    tag_count: u32,
    tags: u64,
    run_time_ns: u64,
    run_cnt: u64,
    recursion_misses: u64,
    verified_insns: u32,
    pad: u32,
}

/// Long enough for what the kernel says of a program of a dozen instructions.
const LOG_BYTES: usize = 16 << 10;
/// Most that kernels before 5.20 take. Untouched pages of it cost nothing, and a log that does not fit hides the reason.
const LONG_LOG_BYTES: usize = (16 << 20) - 1;

fn log_text(log: &[u8]) -> String {
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}

/// Loads a program; on failure once more to get the kernel's log.
pub fn load(spec: &ProgSpec<'_>) -> Result<OwnedFd, Refused> {
    let attempt = |log: &mut [u8]| {
        let mut attr = LoadAttr {
            kind: spec.kind,
            insn_count: spec.insns.len() as u32,
            insns: spec.insns.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            name: object_name(spec.name),
            attach_type: spec.attach_type,
            attach_btf_id: spec.attach_btf_id,
            attach_btf_fd: spec.attach_btf.map_or(0, |fd| fd.as_raw_fd() as u32),
            ..LoadAttr::default()
        };
        if let Some(Lines { btf, functions, lines }) = spec.lines {
            attr.btf_fd = btf.as_raw_fd() as u32;
            attr.func_info_rec_size = size_of::<[u32; 2]>() as u32;
            attr.func_info = functions.as_ptr() as u64;
            attr.func_info_cnt = functions.len() as u32;
            attr.line_info_rec_size = size_of::<[u32; 4]>() as u32;
            attr.line_info = lines.as_ptr() as u64;
            attr.line_info_cnt = lines.len() as u32;
        }
        // SAFETY: instructions, licence, log and the records of functions and lines outlive the call and have the lengths
        // given; the result is a new descriptor.
        unsafe { bpf(Command::ProgLoad, &mut attr).map(|fd| owned(fd)) }
    };
    attempt(&mut []).or_else(|_| {
        let mut log = vec![0; if spec.lines.is_some() { LONG_LOG_BYTES } else { LOG_BYTES }];
        attempt(&mut log).map_err(|error| Refused { error, log: log_text(&log) })
    })
}

/// Hands BTF to the kernel, with its log when it refuses.
pub fn load_btf(btf: &[u8]) -> Result<OwnedFd, Refused> {
    let attempt = |log: &mut [u8]| {
        let mut attr = BtfAttr {
            btf: btf.as_ptr() as u64,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            bytes: btf.len() as u32,
            log_bytes: log.len() as u32,
            log_level: u32::from(!log.is_empty()),
            pad: 0,
        };
        // SAFETY: both slices outlive the call and have the lengths given; the result is a new descriptor.
        unsafe { bpf(Command::BtfLoad, &mut attr).map(|fd| owned(fd)) }
    };
    attempt(&mut []).or_else(|_| {
        let mut log = vec![0; LOG_BYTES << 4];
        attempt(&mut log).map_err(|error| Refused { error, log: log_text(&log) })
    })
}

/// Runs a raw tracepoint program once on this CPU, with `args` as its context (5.10).
pub fn test_run(prog: BorrowedFd<'_>, args: &[u64]) -> io::Result<()> {
    let mut attr = TestRunAttr {
        prog_fd: prog.as_raw_fd() as u32,
        ctx_in_bytes: size_of_val(args) as u32,
        // No bytes at an address are refused.
        ctx_in: if args.is_empty() { 0 } else { args.as_ptr() as u64 },
        ..TestRunAttr::default()
    };
    // SAFETY: the kernel copies `ctx_in_bytes` from `args`, which has as many; all other addresses are null.
    unsafe { bpf(Command::ProgTestRun, &mut attr).map(drop) }
}

/// A program's statistics.
pub fn stats(prog: BorrowedFd<'_>) -> io::Result<ProgStats> {
    let mut info = RawInfo::default();
    // SAFETY: plain numbers; the addresses are null.
    unsafe { super::info(prog, &mut info)? };
    Ok(ProgStats {
        id: info.id,
        name: log_text(&info.name),
        jited_bytes: info.jited_bytes,
        xlated_bytes: info.xlated_bytes,
        recursion_misses: info.recursion_misses,
        verified_insns: info.verified_insns,
    })
}

/// Turns run-time statistics of all programs on, until the returned descriptor is closed (5.8, `CAP_SYS_ADMIN`). Costs two
/// clock reads per run of any program.
pub fn enable_stats() -> io::Result<OwnedFd> {
    const BPF_STATS_RUN_TIME: u32 = 0;
    let mut attr = BPF_STATS_RUN_TIME;
    // SAFETY: the attribute is one number; the result is a new descriptor.
    unsafe { bpf(Command::EnableStats, &mut attr).map(|fd| owned(fd)) }
}
