//! Sources that the agent reads in user space for `poll:` probes: each gives rows of a fixed shape.
//!
//! A row is bytes that [`Source::fields`] describe, so that the same expressions and the same checks serve for rows and
//! for kernel events. All sources see the agent's own network namespace.

mod netstat;
mod softnet;
mod tcp_listen;

use kstrobe_ebpf::kernel_target::{Field, FieldType};
use std::collections::BTreeMap;
use std::io;

#[derive(Debug)]
pub struct Source {
    /// As in `poll: { source: NAME }`.
    pub name: &'static str,
    /// What it reads, for lists.
    pub summary: &'static str,
    columns: &'static [Column],
    row_bytes: usize,
    open: fn() -> State,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    offset: u32,
    ty: FieldType,
}

const U32: FieldType = FieldType::Int { size: 4, signed: false };
const U64: FieldType = FieldType::Int { size: 8, signed: false };

const fn column(name: &'static str, offset: u32, ty: FieldType) -> Column {
    Column { name, offset, ty }
}

/// Every source there is, by name.
pub fn sources() -> &'static [Source] {
    &SOURCES
}

pub fn source(name: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| source.name == name)
}

/// Row types by source name, as [`kstrobe_ebpf::Target::polls`] wants them.
pub fn row_types() -> BTreeMap<String, Vec<Field>> {
    SOURCES.iter().map(|source| (source.name.to_owned(), source.fields())).collect()
}

static SOURCES: [Source; 3] = [
    Source {
        name: "netstat",
        summary: "counters of /proc/net/snmp and /proc/net/netstat, named as nstat does",
        columns: &[column("name", 0, FieldType::Str(netstat::NAME_BYTES as u16)), column("value", 48, U64)],
        row_bytes: 56,
        open: || State::Netstat,
    },
    Source {
        name: "softnet",
        summary: "per-CPU packet backlog of /proc/net/softnet_stat",
        columns: &[
            column("cpu", 0, U32),
            column("processed", 8, U64),
            column("dropped", 16, U64),
            column("squeezed", 24, U64),
            column("backlog", 32, U64),
        ],
        row_bytes: 40,
        open: || State::Softnet(softnet::Totals::default()),
    },
    Source {
        name: "tcp_listen",
        summary: "listening TCP sockets by port, from sock_diag",
        columns: &[column("port", 0, U32), column("depth", 8, U64), column("limit", 16, U64), column("syn", 24, U64)],
        row_bytes: 32,
        open: || State::TcpListen,
    },
];

impl Source {
    /// The fields of a row.
    pub fn fields(&self) -> Vec<Field> {
        let field = |column: &Column| Field { name: column.name.to_owned(), offset: column.offset, ty: column.ty };
        self.columns.iter().map(field).collect()
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// A reader of its own for one probe.
    pub fn open(&self) -> Reader {
        Reader { row_bytes: self.row_bytes, state: (self.open)() }
    }
}

/// A source being read; keeps what has to last from one reading to the next.
#[derive(Debug)]
pub struct Reader {
    row_bytes: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Netstat,
    Softnet(softnet::Totals),
    TcpListen,
}

/// The rows of one reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl Rows {
    /// The rows, each [`Source::row_bytes`] long.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.row_bytes)
    }

    /// A row of u64 words; a u32 column is the low half of its word (rows are little-endian, as the kernel's are).
    fn push_words(&mut self, words: &[u64]) {
        self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
}

impl Reader {
    /// Reads all rows now.
    pub fn read(&mut self) -> io::Result<Rows> {
        let mut rows = Rows { row_bytes: self.row_bytes, bytes: Vec::new() };
        match &mut self.state {
            State::Netstat => {
                netstat::parse(&read("/proc/net/snmp")?, &mut rows);
                netstat::parse(&read("/proc/net/netstat")?, &mut rows);
            }
            State::Softnet(totals) => {
                for cpu in totals.update(&softnet::parse(&read("/proc/net/softnet_stat")?)?) {
                    rows.push_words(&[u64::from(cpu.cpu), cpu.processed, cpu.dropped, cpu.squeezed, cpu.backlog]);
                }
            }
            State::TcpListen => {
                for (port, queue) in tcp_listen::read()? {
                    rows.push_words(&[u64::from(port), queue.depth, queue.limit, queue.syn]);
                }
            }
        }
        Ok(rows)
    }
}

fn read(path: &str) -> io::Result<String> {
    std::fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("cannot read {path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(row: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(row[offset..offset + 8].try_into().unwrap())
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
            let rows = source.open().read().unwrap();
            assert_eq!(rows.bytes.len() % source.row_bytes(), 0);
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
