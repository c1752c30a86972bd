//! Stored keys to label text.
//!
//! The kernel stores raw numbers; what they are called is decided here, once per key. An unknown number prints in decimal:
//! a label is never empty or guessed because a table is older than the kernel.

use super::functions::Functions;
use super::workload_names::{self, Status, WorkloadNames};
use crate::kernel::binaries::place_names;
use kstrobe_ebpf::typed::{Decoder, Ty};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syscalls::Sysno;

/// How long an interface name is believed. Interfaces are renamed at boot and indexes can be given again.
const INTERFACE_LIFE: Duration = Duration::from_secs(10);

/// The label text of every label of the series that takes what found no room of its own.
pub const OTHER: &str = "other";

/// What decoding has to look up outside, with a cache.
pub struct Names {
    interfaces: HashMap<u32, (Option<String>, Instant)>,
    resolve_interface: fn(u32) -> Option<String>,
    functions: Functions,
    workload_names: Arc<WorkloadNames>,
}

impl Names {
    /// Asks the kernel for its functions and for interface names in the agent's network namespace.
    pub fn new() -> Self {
        Self::with_interfaces(|index| {
            let name = nix::net::if_::if_indextoname(index).ok()?.into_string().ok()?;
            // nix takes the null of a failed if_indextoname(3) for success and returns an empty name.
            (!name.is_empty()).then_some(name)
        })
    }

    /// With another source of interface names.
    pub fn with_interfaces(resolve_interface: fn(u32) -> Option<String>) -> Self {
        let functions = Functions::new(|| std::fs::read_to_string("/proc/kallsyms").unwrap_or_default());
        Self { interfaces: HashMap::new(), resolve_interface, functions, workload_names: Arc::default() }
    }

    /// With what is known of cgroups.
    pub fn with_workload_names(self, workload_names: Arc<WorkloadNames>) -> Self {
        Self { workload_names, ..self }
    }

    /// What is known of cgroups.
    pub fn workload_names(&self) -> &WorkloadNames {
        &self.workload_names
    }

    /// The text of one stored value. `bytes` is the value as it lies in the key: little-endian for integers.
    pub fn text(&mut self, decoder: &Decoder, ty: Ty, bytes: &[u8], now: Instant) -> String {
        let unsigned = unsigned(bytes);
        let named = match decoder {
            Decoder::Unsigned | Decoder::Usym | Decoder::KernelStack | Decoder::UserStack | Decoder::Disk => None,
            Decoder::PlaceName => place_names::name(unsigned).map(|name| name.to_string()),
            Decoder::Ksym => return self.functions.name(unsigned, now),
            Decoder::Signed => return signed(bytes).to_string(),
            Decoder::Duration => return (unsigned as f64 / 1e9).to_string(),
            Decoder::Address => return format!("{unsigned:#x}"),
            Decoder::Bool => return if unsigned != 0 { "true" } else { "false" }.to_owned(),
            Decoder::Str => return string(bytes),
            Decoder::Ip => ip(bytes),
            // The first two bytes in memory, whatever the width the port was widened to.
            Decoder::PortBe => match bytes {
                [high, low, ..] => return u16::from_be_bytes([*high, *low]).to_string(),
                _ => None,
            },
            // Callers that may block have looked it up before, see `series`.
            Decoder::Cgroup(name) => {
                return match self.workload_names.status(unsigned) {
                    Status::Named(workload) => workload_names::text(&workload, *name).to_owned(),
                    Status::Unnamed | Status::Absent => String::new(),
                };
            }
            Decoder::Syscall => syscall(unsigned),
            Decoder::Errno => errno(unsigned),
            Decoder::TcpState => table_name(&TCP_STATES, unsigned),
            Decoder::AddressFamily => address_family(unsigned),
            Decoder::Softirq => table_name(&SOFTIRQS, unsigned),
            Decoder::Signal => signal(unsigned),
            Decoder::IfName => u32::try_from(unsigned).ok().and_then(|index| self.interface(index, now)),
            Decoder::Texts(of, texts, otherwise) => {
                let text = self.text(of, ty, bytes, now);
                let shown = texts.iter().find(|(pattern, _)| pattern.fits(&text)).map(|(_, shown)| shown);
                return shown.or(otherwise.as_ref()).cloned().unwrap_or(text);
            }
            Decoder::Enum(names) => return named_value(names, ty, bytes).unwrap_or_else(|| number(ty, bytes)),
            Decoder::Map(names, rest) => {
                let name = named_value(names, ty, bytes);
                return name.or_else(|| rest.clone()).unwrap_or_else(|| number(ty, bytes));
            }
        };
        named.unwrap_or_else(|| unsigned.to_string())
    }

    fn interface(&mut self, index: u32, now: Instant) -> Option<String> {
        let fresh = |asked: &Instant| now.saturating_duration_since(*asked) < INTERFACE_LIFE;
        if let Some((name, asked)) = self.interfaces.get(&index)
            && fresh(asked)
        {
            return name.clone();
        }
        self.interfaces.retain(|_, (_, asked)| fresh(asked));
        let name = (self.resolve_interface)(index);
        self.interfaces.insert(index, (name.clone(), now));
        name
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |value, &byte| (value << 8) | u64::from(byte))
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    ((unsigned(bytes) << unused) as i64) >> unused
}

/// The value with the sign its type says.
fn number(ty: Ty, bytes: &[u8]) -> String {
    match ty {
        Ty::Int { signed: true, .. } => signed(bytes).to_string(),
        _ => unsigned(bytes).to_string(),
    }
}

/// An enumerator may be written with either sign in its definition, so a stored bit pattern matches on both readings.
fn named_value(names: &[(i64, String)], ty: Ty, bytes: &[u8]) -> Option<String> {
    let (plain, extended) = (unsigned(bytes) as i64, signed(bytes));
    let matches = |value: i64| match ty {
        Ty::Int { signed: true, .. } => value == extended,
        _ => value == plain || (value < 0 && value == extended),
    };
    names.iter().find(|(value, _)| matches(*value)).map(|(_, name)| name.clone())
}

fn string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn ip(bytes: &[u8]) -> Option<String> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).to_string());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).to_string())
}

fn syscall(number: u64) -> Option<String> {
    Sysno::new(usize::try_from(number).ok()?).map(|call| call.name().to_owned())
}

fn table_name(names: &[&str], number: u64) -> Option<String> {
    names.get(usize::try_from(number).ok()?).filter(|name| !name.is_empty()).map(|&name| name.to_owned())
}

/// Codes that never reach user space but are seen at the exit of a system call, before the signal code turns them into
/// a restart or EINTR (include/linux/errno.h).
const KERNEL_ERRNOS: [(u64, &str); 17] = [
    (512, "ERESTARTSYS"),
    (513, "ERESTARTNOINTR"),
    (514, "ERESTARTNOHAND"),
    (515, "ENOIOCTLCMD"),
    (516, "ERESTART_RESTARTBLOCK"),
    (517, "EPROBE_DEFER"),
    (518, "EOPENSTALE"),
    (519, "ENOPARAM"),
    (521, "EBADHANDLE"),
    (522, "ENOTSYNC"),
    (523, "EBADCOOKIE"),
    (524, "ENOTSUPP"),
    (525, "ETOOSMALL"),
    (526, "ESERVERFAULT"),
    (527, "EBADTYPE"),
    (528, "EJUKEBOX"),
    (529, "EIOCBQUEUED"),
];

fn errno(number: u64) -> Option<String> {
    if let Some((_, name)) = KERNEL_ERRNOS.iter().find(|(value, _)| *value == number) {
        return Some((*name).to_owned());
    }
    match Errno::from_raw(i32::try_from(number).ok()?) {
        Errno::UnknownErrno => None,
        known => Some(format!("{known:?}")),
    }
}

fn signal(number: u64) -> Option<String> {
    Signal::try_from(i32::try_from(number).ok()?).ok().map(|signal| signal.as_str().to_owned())
}

/// include/net/tcp_states.h, the kernel's own names in lower case.
const TCP_STATES: [&str; 14] = [
    "",
    "established",
    "syn_sent",
    "syn_recv",
    "fin_wait1",
    "fin_wait2",
    "time_wait",
    "close",
    "close_wait",
    "last_ack",
    "listen",
    "closing",
    "new_syn_recv",
    "bound_inactive",
];

/// include/linux/interrupt.h, as `/proc/softirqs` and the tracepoints name them, in lower case.
const SOFTIRQS: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

/// include/linux/socket.h, those that a Linux node really sees.
fn address_family(number: u64) -> Option<String> {
    let name = match number {
        0 => "unspec",
        1 => "unix",
        2 => "ipv4",
        10 => "ipv6",
        15 => "key",
        16 => "netlink",
        17 => "packet",
        29 => "can",
        31 => "bluetooth",
        38 => "alg",
        40 => "vsock",
        43 => "smc",
        44 => "xdp",
        45 => "mctp",
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::typed::TextPattern;

    const U16: Ty = Ty::Int { bits: 16, signed: false };

    fn text(decoder: &Decoder, ty: Ty, bytes: &[u8]) -> String {
        Names::new().text(decoder, ty, bytes, Instant::now())
    }

    fn number_text(decoder: &Decoder, value: u32) -> String {
        text(decoder, Ty::U32, &value.to_le_bytes())
    }

    #[test]
    fn numbers_follow_width_and_sign() {
        assert_eq!(text(&Decoder::Unsigned, Ty::U64, &u64::MAX.to_le_bytes()), "18446744073709551615");
        assert_eq!(text(&Decoder::Unsigned, U16, &[0xff, 0xff]), "65535");
        assert_eq!(text(&Decoder::Signed, Ty::S32, &(-2i32).to_le_bytes()), "-2");
        assert_eq!(text(&Decoder::Signed, Ty::S64, &i64::MIN.to_le_bytes()), "-9223372036854775808");
        assert_eq!(text(&Decoder::Signed, Ty::Int { bits: 8, signed: true }, &[0x80]), "-128");
        assert_eq!(text(&Decoder::Bool, Ty::Bool, &[0]), "false");
        assert_eq!(text(&Decoder::Bool, Ty::Bool, &[1]), "true");
    }

    #[test]
    fn kernel_numbers_have_their_names_and_unknown_ones_print() {
        for (decoder, value, expected) in [
            (Decoder::Errno, 2, "ENOENT"),
            (Decoder::Errno, 11, "EAGAIN"),
            (Decoder::Errno, 512, "ERESTARTSYS"),
            (Decoder::Errno, 4000, "4000"),
            (Decoder::Errno, 0, "0"),
            (Decoder::TcpState, 1, "established"),
            (Decoder::TcpState, 10, "listen"),
            (Decoder::TcpState, 0, "0"),
            (Decoder::TcpState, 14, "14"),
            (Decoder::AddressFamily, 2, "ipv4"),
            (Decoder::AddressFamily, 10, "ipv6"),
            (Decoder::AddressFamily, 999, "999"),
            (Decoder::Softirq, 3, "net_rx"),
            (Decoder::Softirq, 9, "rcu"),
            (Decoder::Softirq, 10, "10"),
            (Decoder::Signal, 9, "SIGKILL"),
            (Decoder::Signal, 0, "0"),
            (Decoder::Signal, 40, "40"),
            (Decoder::Syscall, Sysno::recvfrom.id() as u32, "recvfrom"),
            (Decoder::Syscall, 100_000, "100000"),
        ] {
            assert_eq!(number_text(&decoder, value), expected, "{decoder:?} of {value}");
        }
    }

    #[test]
    fn softirq_names_are_the_kernels() {
        let listed = std::fs::read_to_string("/proc/softirqs").unwrap();
        let names: Vec<_> =
            listed.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0.trim().to_lowercase())).collect();
        assert_eq!(names, SOFTIRQS);
    }

    #[test]
    fn text_ends_at_nul_and_is_made_valid() {
        assert_eq!(text(&Decoder::Str, Ty::Str(16), b"nginx\0garbage\0\0\0"), "nginx");
        assert_eq!(text(&Decoder::Str, Ty::Str(4), b"full"), "full");
        assert_eq!(text(&Decoder::Str, Ty::Str(4), b"a\xff\"\n"), "a\u{fffd}\"\n");
    }

    #[test]
    fn addresses_and_ports_are_in_network_order() {
        assert_eq!(text(&Decoder::Ip, Ty::U32, &[127, 0, 0, 1]), "127.0.0.1");
        let mut loopback = [0; 16];
        loopback[15] = 1;
        assert_eq!(text(&Decoder::Ip, Ty::Bytes(16), &loopback), "::1");
        assert_eq!(text(&Decoder::PortBe, U16, &9779u16.to_be_bytes()), "9779");
        assert_eq!(text(&Decoder::PortBe, Ty::U32, &[0x26, 0x33, 0, 0]), "9779");
    }

    #[test]
    fn short_keys_do_not_panic() {
        for decoder in [Decoder::Ip, Decoder::PortBe, Decoder::Signed, Decoder::Str, Decoder::Syscall, Decoder::IfName]
        {
            text(&decoder, Ty::U32, &[]);
        }
    }

    #[test]
    fn enums_and_maps() {
        let names = vec![(-1, "all".to_owned()), (1, "one".to_owned())];
        let named = Decoder::Enum(names.clone());
        assert_eq!(number_text(&named, 1), "one");
        assert_eq!(number_text(&named, u32::MAX), "all", "an enumerator of -1 in an unsigned field");
        assert_eq!(number_text(&named, 7), "7");
        assert_eq!(text(&named, Ty::S32, &(-7i32).to_le_bytes()), "-7");
        assert_eq!(number_text(&Decoder::Map(names.clone(), Some("many".to_owned())), 7), "many");
        assert_eq!(number_text(&Decoder::Map(names, None), 7), "7");
    }

    #[test]
    fn texts_are_chosen_by_the_first_that_fits() {
        let arm = |pattern, shown: &str| (pattern, shown.to_owned());
        let arms = vec![
            arm(TextPattern::Is("nginx".into()), "web"),
            arm(TextPattern::Begins("ng".into()), "other ng"),
            arm(TextPattern::Begins("kworker/".into()), "kworker"),
        ];
        let of = |otherwise: Option<&str>, comm: &[u8]| {
            let decoder = Decoder::Texts(Box::new(Decoder::Str), arms.clone(), otherwise.map(str::to_owned));
            text(&decoder, Ty::Str(16), comm)
        };
        assert_eq!(of(None, b"nginx\0"), "web");
        assert_eq!(of(None, b"nginx2\0"), "other ng");
        assert_eq!(of(None, b"kworker/0:1\0"), "kworker");
        assert_eq!(of(None, b"bash\0"), "bash");
        assert_eq!(of(Some("rest"), b"bash\0"), "rest");
    }

    #[test]
    fn hexadecimal_numbers_begin_with_0x() {
        assert_eq!(number_text(&Decoder::Address, 0xbeef), "0xbeef");
    }

    #[test]
    fn interfaces_have_names_for_a_while() {
        assert_eq!(number_text(&Decoder::IfName, nix::net::if_::if_nametoindex("lo").unwrap()), "lo");
        assert_eq!(number_text(&Decoder::IfName, u32::MAX), u32::MAX.to_string());

        use std::sync::atomic::{AtomicU32, Ordering};
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let mut names =
            Names::with_interfaces(|index| Some(format!("eth{index}.{}", ASKED.fetch_add(1, Ordering::Relaxed))));
        let start = Instant::now();
        let mut at =
            |seconds| names.text(&Decoder::IfName, Ty::U32, &[2, 0, 0, 0], start + Duration::from_secs(seconds));
        assert_eq!((at(0), at(9), at(10)), ("eth2.0".into(), "eth2.0".into(), "eth2.1".into()));
    }
}
