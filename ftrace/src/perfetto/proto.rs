//! The messages of Perfetto's trace format that are written here (`protos/perfetto/trace` in its source).
//!
//! All fields are optional and have a presence of their own, so zeros are written too: readers tell pid 0 from no pid.

use super::events::Kind;

/// `TracePacket.sequence_flags`: what was interned on this sequence before is void.
pub(super) const STATE_CLEARED: u32 = 1;
/// `TracePacket.sequence_flags`: the packet refers to what was interned.
pub(super) const NEEDS_STATE: u32 = 2;
/// `FtraceStats.Phase`: counted when the recording had ended.
pub(super) const END_OF_TRACE: i32 = 2;

/// A whole file, or a part of one: files may be joined end to end.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct File {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Packet {
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<Bundle>,
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "34")]
    pub ftrace_stats: Option<FtraceStats>,
    #[prost(message, optional, tag = "45")]
    pub system_info: Option<SystemInfo>,
    /// Which machine it is of; none for the first.
    #[prost(uint32, optional, tag = "98")]
    pub machine_id: Option<u32>,
    #[prost(message, optional, tag = "120")]
    pub thread_name: Option<ThreadName>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Bundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<Event>,
    #[prost(bool, optional, tag = "3")]
    pub lost_events: Option<bool>,
    #[prost(enumeration = "FtraceClock", optional, tag = "5")]
    pub ftrace_clock: Option<i32>,
    #[prost(int64, optional, tag = "6")]
    pub ftrace_timestamp: Option<i64>,
    #[prost(int64, optional, tag = "7")]
    pub boot_timestamp: Option<i64>,
}

/// What clock a bundle's events were timed with, unless it is `boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum FtraceClock {
    Unspecified = 0,
    Unknown = 1,
    Global = 2,
    Local = 3,
    MonoRaw = 4,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub common_flags: Option<u32>,
    #[prost(
        oneof = "Kind",
        tags = "3, 4, 11, 13, 17, 20, 24, 25, 26, 36, 37, 45, 114, 125, 126, 129, 235, 236, 237, 238, 239, 240, 242, 327, \
                329, 330, 353, 437, 438, 491, 546, 547"
    )]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "26")]
    pub kernel_symbols: Vec<InternedString>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct InternedString {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub str: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(enumeration = "ClockId", optional, tag = "2")]
    pub primary_trace_clock: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// Clocks as Perfetto numbers them (`BuiltinClock`); the first is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ClockId {
    Unknown = 0,
    Realtime = 1,
    Monotonic = 3,
    MonotonicRaw = 5,
    Boottime = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
    #[prost(bool, optional, tag = "9")]
    pub cmdline_is_comm: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub tgid: Option<i32>,
}

/// `GenericKernelTaskRenameEvent`: the name of a thread, and nothing about its process.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ThreadName {
    #[prost(int64, optional, tag = "1")]
    pub tid: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub comm: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
    #[prost(string, optional, tag = "4")]
    pub tracing_service_version: Option<String>,
    #[prost(uint32, optional, tag = "8")]
    pub num_cpus: Option<u32>,
    #[prost(string, optional, tag = "17")]
    pub machine_name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub sysname: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub version: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub release: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub machine: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FtraceStats {
    /// [`END_OF_TRACE`].
    #[prost(int32, optional, tag = "1")]
    pub phase: Option<i32>,
    #[prost(message, repeated, tag = "2")]
    pub cpu_stats: Vec<FtraceCpuStats>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct FtraceCpuStats {
    #[prost(uint64, optional, tag = "1")]
    pub cpu: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub entries: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub overrun: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub commit_overrun: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub bytes_read: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub dropped_events: Option<u64>,
    #[prost(uint64, optional, tag = "9")]
    pub read_events: Option<u64>,
}
