//! Sources that the agent reads in user space for `poll:` probes: each gives rows of a fixed shape.
//!
//! A row is bytes that [`Source::fields`] describe, so that the same expressions and the same checks serve for rows and
//! for kernel events. All sources see the agent's own network and mount namespaces. A source is one file with its `SOURCE`, and a line of
//! [`sources`].

mod bpf_programs;
mod cgroups;
mod cpu_time;
mod disks;
mod ethtool;
mod interfaces;
mod interrupts;
mod memory;
mod mounts;
mod netlink;
mod netstat;
mod pressure;
mod qdiscs;
mod routes;
mod sock_diag;
mod softnet;
mod tcp_listen;
mod tcp_sockets;
mod threads;

pub use interrupts::softirqs;

use kstrobe_ebpf::kernel_target::{Field, FieldType};
use procfs::ProcError;
use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// Every source there is, by name.
pub fn sources() -> &'static [Source] {
    static SOURCES: [Source; 23] = [
        bpf_programs::SOURCE,
        cgroups::SOURCE,
        cpu_time::TIMES,
        disks::SOURCE,
        ethtool::STATISTICS,
        ethtool::DRIVERS,
        mounts::FILESYSTEMS,
        interfaces::SOURCE,
        interrupts::INTERRUPTS,
        memory::MEMORY,
        mounts::MOUNTS,
        netstat::SOURCE,
        pressure::SOURCE,
        qdiscs::SOURCE,
        routes::SOURCE,
        cpu_time::SCHEDULER,
        memory::SLABS,
        interrupts::SOFTIRQS,
        softnet::SOURCE,
        tcp_listen::SOURCE,
        tcp_sockets::SOURCE,
        threads::SOURCE,
        memory::VMSTAT,
    ];
    &SOURCES
}

pub fn source(name: &str) -> Option<&'static Source> {
    sources().iter().find(|source| source.name == name)
}

/// Row types by source name, as [`kstrobe_ebpf::Target::polls`] wants them.
pub fn row_types() -> BTreeMap<String, Vec<Field>> {
    sources().iter().map(|source| (source.name.to_owned(), source.fields())).collect()
}

#[derive(Debug)]
pub struct Source {
    /// As in `poll: { source: NAME }`.
    pub name: &'static str,
    /// What it reads, for lists.
    pub summary: &'static str,
    columns: &'static [Column],
    open: fn() -> Reading,
}

/// Appends all rows of this moment; keeps what has to last from one reading to the next.
type Reading = Box<dyn FnMut(&mut Rows) -> io::Result<()> + Send>;

/// A column takes whole words of 8 bytes.
#[derive(Debug)]
struct Column {
    name: &'static str,
    ty: FieldType,
}

const fn number(name: &'static str) -> Column {
    Column { name, ty: FieldType::Int { size: 8, signed: false } }
}

/// A number that never has more than 32 bits.
const fn small(name: &'static str) -> Column {
    Column { name, ty: FieldType::Int { size: 4, signed: false } }
}

/// Room for a text with its NUL. The language has texts of at most 64 bytes.
const fn text(name: &'static str, bytes: usize) -> Column {
    assert!(bytes > 0 && bytes <= 64 && bytes.is_multiple_of(8));
    Column { name, ty: FieldType::Str(bytes as u16) }
}

impl Column {
    fn bytes(&self) -> usize {
        match self.ty {
            FieldType::Str(bytes) => bytes.into(),
            _ => 8,
        }
    }
}

impl Source {
    /// The fields of a row.
    pub fn fields(&self) -> Vec<Field> {
        let mut offset = 0;
        let field = |column: &Column| {
            let field = Field { name: column.name.to_owned(), offset, ty: column.ty };
            offset += column.bytes() as u32;
            field
        };
        self.columns.iter().map(field).collect()
    }

    pub fn row_bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// A reader of its own for one probe.
    pub fn open(&'static self) -> Reader {
        Reader { source: self, reading: (self.open)() }
    }
}

/// A source being read.
pub struct Reader {
    source: &'static Source,
    reading: Reading,
}

impl Reader {
    /// Reads all rows now.
    pub fn read(&mut self) -> io::Result<Rows> {
        let mut rows = Rows::of(self.source);
        (self.reading)(&mut rows)?;
        Ok(rows)
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("source", &self.source.name).finish_non_exhaustive()
    }
}

/// The rows of one reading.
#[derive(Debug)]
pub struct Rows {
    columns: &'static [Column],
    row_bytes: usize,
    bytes: Vec<u8>,
}

/// What stands in a column.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

impl Rows {
    fn of(source: &Source) -> Rows {
        Rows { columns: source.columns, row_bytes: source.row_bytes(), bytes: Vec::new() }
    }

    /// The rows, each [`Source::row_bytes`] long.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.row_bytes)
    }

    /// A row, with a value for each column. A u32 column is the low half of its word: rows are little-endian, as the kernel's are.
    fn push(&mut self, values: &[Value<'_>]) {
        assert_eq!(values.len(), self.columns.len(), "a value for each column");
        for (column, value) in self.columns.iter().zip(values) {
            let end = self.bytes.len() + column.bytes();
            match (value, column.ty) {
                (Value::Text(text), FieldType::Str(bytes)) => {
                    self.bytes.extend_from_slice(fitting(text, usize::from(bytes) - 1).as_bytes());
                }
                (Value::Number(number), FieldType::Int { .. }) => self.bytes.extend(number.to_le_bytes()),
                (value, _) => unreachable!("{value:?} in {}", column.name),
            }
            self.bytes.resize(end, 0);
        }
    }
}

/// A text that is too long loses its beginning, since the end of a path says more, and shows that by three dots.
fn fitting(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    const DOTS: &str = "...";
    let at = text.len() - bytes + DOTS.len();
    let from = (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{DOTS}{}", &text[from..])
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl From<$number> for Value<'_> {
            fn from(number: $number) -> Self {
                Value::Number(number.into())
            }
        })*
    };
}

numbers! { bool u8 u16 u32 u64 }

fn read_file(path: &str) -> io::Result<String> {
    std::fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("cannot read {path}: {error}")))
}

/// With the file, which an error of the library names.
fn io_error(error: ProcError) -> io::Error {
    let kind = match &error {
        ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied,
        ProcError::NotFound(_) => io::ErrorKind::NotFound,
        ProcError::Io(error, _) => error.kind(),
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn word(row: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(row[offset..offset + 8].try_into().unwrap())
    }

    pub fn text_at(row: &[u8], offset: usize) -> String {
        let end = row[offset..].iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(row[offset..offset + end].to_vec()).unwrap()
    }

    #[test]
    fn texts_that_are_too_long_keep_their_end() {
        assert_eq!(fitting("/var/lib", 15), "/var/lib");
        assert_eq!(fitting("/var/lib/kubelet", 15), ".../lib/kubelet");
        assert_eq!(fitting("/var/lib/k\u{e4}\u{e4}\u{e4}", 9), "...\u{e4}\u{e4}\u{e4}");
    }

    #[test]
    fn columns_lie_inside_their_rows_and_do_not_overlap() {
        for source in sources() {
            let mut end = 0;
            for field in source.fields() {
                let bytes = match field.ty {
                    FieldType::Int { size, .. } => u32::from(size),
                    FieldType::Str(n) => u32::from(n),
                    other => panic!("{other:?}"),
                };
                assert!(field.offset >= end, "{}.{}", source.name, field.name);
                end = field.offset + bytes;
            }
            assert!(end as usize <= source.row_bytes());
            assert!(std::ptr::eq(super::source(source.name).unwrap(), source));
            assert_eq!(row_types()[source.name], source.fields());
        }
    }

    #[test]
    fn every_source_reads_on_this_machine() {
        for source in sources() {
            let name = source.name;
            match source.open().read() {
                Ok(rows) => {
                    assert_eq!(rows.bytes.len() % source.row_bytes(), 0);
                    // Machines need not have programs or groups, nor an interface with a driver that counts.
                    let may_be_empty =
                        ["bpf_programs", "cgroups", "ethtool_statistics", "ethtool_drivers"].contains(&name);
                    assert!(!rows.bytes.is_empty() || may_be_empty, "{name}");
                }
                Err(error) => {
                    let excuse = match name {
                        "bpf_programs" | "slabs" => io::ErrorKind::PermissionDenied,
                        "pressure" | "cgroups" => io::ErrorKind::NotFound,
                        _ => panic!("{name}: {error}"),
                    };
                    assert_eq!(error.kind(), excuse, "{name}: {error}");
                }
            }
        }
        let softnet = source("softnet").unwrap().open().read().unwrap();
        let cpus = std::thread::available_parallelism().unwrap().get();
        assert!(softnet.iter().count() >= cpus);
    }

    /// The kernel's own counter, read before and after.
    #[test]
    fn netstat_rows_agree_with_procfs() {
        let in_segments = || {
            let text = std::fs::read_to_string("/proc/net/snmp").unwrap();
            let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
            let at = lines.next().unwrap().split(' ').position(|name| name == "InSegs").unwrap();
            lines.next().unwrap().split(' ').nth(at).unwrap().parse::<u64>().unwrap()
        };
        let before = in_segments();
        let rows = source("netstat").unwrap().open().read().unwrap();
        let row = rows.iter().find(|row| row.starts_with(b"TcpInSegs\0")).unwrap();
        assert!((before..=in_segments()).contains(&word(row, 48)));
    }

    #[test]
    fn a_listener_is_seen_with_its_queue() {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let rows = source("tcp_listen").unwrap().open().read().unwrap();
        let row = rows.iter().find(|row| word(row, 0) == u64::from(address.port())).expect("our listener");
        assert_eq!(word(row, 8), 3, "depth");
        let most: u64 = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
        assert!((1..=most).contains(&word(row, 16)), "limit {}", word(row, 16));
        assert_eq!(word(row, 24), 0, "syn");
    }
}
