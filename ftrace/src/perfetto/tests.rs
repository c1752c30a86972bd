use super::events::{GenericValue, Kind, TABLE, TAGS};
use super::proto::{self, File, Packet};
use super::{BUNDLE_EVENTS, Machine, Summary, write, write_machine};
use crate::format::{EventFormat, Formats, PageFormat};
use crate::symbols::Symbols;
use crate::trace::{About, Buffer, CpuPages, CpuStats, Trace};
use prost::Message;

const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

/// The format of an event with fields `TYPE NAME SIZE`, side by side behind the common ones.
fn format(system: &str, name: &str, id: u16, fields: &[(&str, usize)]) -> EventFormat {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n");
    let mut offset = 8;
    for (declaration, size) in fields {
        let signed = u8::from(declaration.starts_with("int ") || declaration.starts_with("long "));
        text += &format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
        offset += size;
    }
    EventFormat::parse(system, &text).unwrap()
}

/// A record of a thread: its type and the bytes of its fields.
fn record(id: u16, pid: i32, fields: &[&[u8]]) -> Vec<u8> {
    let head = [&id.to_le_bytes()[..], &[0x10, 1], &pid.to_le_bytes()].concat();
    [head, fields.concat()].concat()
}

/// A page of records a microsecond apart; `lost` are its flags.
fn page(time: u64, lost: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut data = Vec::new();
    for (at, record) in records.iter().enumerate() {
        let delta = if at == 0 { 0u32 } else { 1000 };
        data.extend((delta << 5).to_le_bytes());
        data.extend((record.len() as u32 + 4).to_le_bytes());
        data.extend(record);
        data.resize(data.len().next_multiple_of(4), 0);
    }
    let mut page = [time.to_le_bytes(), (data.len() as u64 | lost).to_le_bytes()].concat();
    page.extend(data);
    page.resize(4096, 0);
    page
}

fn trace(clock: &str, cpus: Vec<(u32, Vec<u8>)>) -> Trace {
    let mut formats = Formats::default();
    formats.add(format("ftrace", "funcgraph_entry", 11, &[("unsigned long func", 8), ("int depth", 4)]));
    formats.add(format("ftrace", "print", 5, &[("unsigned long ip", 8), ("char buf[]", 0)]));
    formats.add(format("ftrace", "bputs", 14, &[("unsigned long ip", 8), ("const char * str", 8)]));
    formats.add(format("block", "block_rq_requeue", 40, &[("dev_t dev", 4), ("unsigned int nr_sector", 4)]));
    let tcp = [("__u8 saddr[4]", 4), ("int state", 4), ("__data_loc char[] name", 4), ("struct x y", 3)];
    formats.add(format("tcp", "tcp_thing", 41, &tcp));
    let cpus = cpus.into_iter().map(|(cpu, pages)| CpuPages { cpu, pages, stats: None }).collect();
    Trace {
        page: PageFormat::parse(HEADER).unwrap(),
        header_event: String::new(),
        formats,
        symbols: Symbols::parse("ffffffff81000000 t tcp_recvmsg\nffffffff81000100 t tcp_sendmsg\n"),
        printk: [(0xffff_ffff_8200_0000, "constant".to_owned())].into(),
        comms: Default::default(),
        tgids: Default::default(),
        buffers: vec![Buffer { name: String::new(), clock: clock.into(), cpus }],
        about: About::default(),
    }
}

fn written(trace: &Trace) -> (Summary, Vec<Packet>) {
    let mut out = Vec::new();
    let summary = write(trace, &mut out).unwrap();
    assert_eq!(summary.bytes, out.len() as u64);
    (summary, File::decode(&out[..]).unwrap().packet)
}

/// The packets with events.
fn bundles(packets: &[Packet]) -> Vec<&Packet> {
    packets.iter().filter(|packet| packet.ftrace_events.is_some()).collect()
}

fn kinds(packets: &[Packet]) -> Vec<Kind> {
    let events = bundles(packets).into_iter().flat_map(|packet| &packet.ftrace_events.as_ref().unwrap().event);
    events.map(|event| event.kind.clone().unwrap()).collect()
}

fn entry(address: u64, depth: i32) -> Vec<u8> {
    record(11, 7, &[&address.to_le_bytes(), &depth.to_le_bytes()])
}

#[test]
fn every_message_has_its_number_in_the_event() {
    for tag in TAGS {
        // An empty message of this number, read as the event of that kind and written again.
        let mut bytes = Vec::new();
        prost::encoding::encode_key(*tag, prost::encoding::WireType::LengthDelimited, &mut bytes);
        bytes.push(0);
        let event = proto::Event::decode(&bytes[..]).unwrap();
        assert!(event.kind.is_some(), "{tag}");
        assert_eq!(event.encode_to_vec(), bytes, "{tag}");
    }
}

#[test]
fn calls_name_their_functions_once_and_before_they_are_used() {
    let records: Vec<_> = (0..200).map(|at| entry(0xffff_ffff_8100_0000 + 0x100 * (at % 2), at as i32)).collect();
    let halves = [page(5_000, 0, &records[..100]), page(9_000_000, 0, &records[100..])].concat();
    let (summary, packets) = written(&trace("local", vec![(0, halves), (3, page(6_000, 0, &[entry(0x10, 0)]))]));
    assert_eq!((summary.typed, summary.generic, summary.bundles), (201, 0, 3));
    let mut names = std::collections::HashMap::new();
    for packet in bundles(&packets) {
        for symbol in packet.interned_data.iter().flat_map(|data| &data.kernel_symbols) {
            assert_eq!(names.insert(symbol.iid.unwrap(), symbol.str.clone().unwrap()), None);
        }
        let bundle = packet.ftrace_events.as_ref().unwrap();
        assert!(bundle.event.len() <= BUNDLE_EVENTS);
        for event in &bundle.event {
            let Some(Kind::FuncgraphEntry(call)) = &event.kind else { panic!("{event:?}") };
            let expected = match (bundle.cpu.unwrap(), call.depth.unwrap() % 2) {
                (0, 0) => "tcp_recvmsg",
                (0, _) => "tcp_sendmsg",
                // Not in the symbols: its address.
                _ => "0x10",
            };
            assert_eq!(names[&call.func.unwrap()], expected.as_bytes());
        }
    }
    let flags: Vec<_> = bundles(&packets).iter().map(|packet| packet.sequence_flags.unwrap()).collect();
    assert_eq!(flags, [3, 2, 2]);
    let first = &bundles(&packets)[0].ftrace_events.as_ref().unwrap().event[0];
    assert_eq!((first.timestamp, first.pid, first.common_flags), (Some(5_000), Some(7), Some(0x10)));
}

#[test]
fn what_is_lost_is_lost_before_a_bundle() {
    let once = page(1_000, 0, &[entry(1, 0)]);
    let counted = {
        let mut page = page(2_000, 1 << 31 | 1 << 30, &[entry(1, 0)]);
        let filled = 16 + 8 + entry(1, 0).len();
        page[filled..filled + 8].copy_from_slice(&77u64.to_le_bytes());
        page
    };
    let uncounted = page(3_000, 1 << 31, &[entry(1, 0)]);
    let (summary, packets) = written(&trace("boot", vec![(0, [once, counted, uncounted].concat())]));
    let lost: Vec<_> =
        bundles(&packets).iter().map(|packet| packet.ftrace_events.as_ref().unwrap().lost_events).collect();
    assert_eq!(lost, [None, Some(true), Some(true)]);
    assert_eq!(summary.lost, 78);
}

#[test]
fn clocks_are_those_that_perfetto_knows() {
    for (clock, expected, known) in [
        ("boot", None, vec![6]),
        ("mono", None, vec![6, 3]),
        ("mono_raw", Some(4), vec![6, 5]),
        ("local", Some(3), vec![6]),
        ("global", Some(2), vec![6]),
        ("x86-tsc", Some(3), vec![6]),
        ("something else", Some(2), vec![6]),
    ] {
        let mut trace = trace(clock, vec![(0, page(4_000, 0, &[entry(1, 0)]))]);
        trace.about.epoch_offset_ns = Some(-1_000);
        let (summary, packets) = written(&trace);
        let bundle = bundles(&packets)[0].ftrace_events.clone().unwrap();
        assert_eq!(bundle.ftrace_clock, expected, "{clock}");
        let pair = expected.map(|_| 4_000);
        assert_eq!((bundle.ftrace_timestamp, bundle.boot_timestamp), (pair, pair), "{clock}");
        let snapshot = packets.iter().find_map(|packet| packet.clock_snapshot.clone()).unwrap();
        let clocks: Vec<_> =
            snapshot.clocks.iter().map(|clock| (clock.clock_id.unwrap(), clock.timestamp.unwrap())).collect();
        let expected: Vec<_> = known.iter().map(|id| (*id, 4_000)).chain([(1, 3_000)]).collect();
        assert_eq!(clocks, expected, "{clock}");
        assert_eq!(summary.ticking_buffers, u64::from(clock == "x86-tsc"), "{clock}");
    }
    // A wall clock before its epoch, and no event at all.
    let mut empty = trace("local", Vec::new());
    empty.about.epoch_offset_ns = Some(-1);
    let (summary, packets) = written(&empty);
    assert_eq!((summary.events(), bundles(&packets).len()), (0, 0));
    assert_eq!(packets.iter().find_map(|packet| packet.clock_snapshot.clone()).unwrap().clocks.len(), 1);
}

#[test]
fn buffers_are_sequences_of_their_own() {
    let mut trace = trace("local", vec![(0, page(4_000, 0, &[entry(0xffff_ffff_8100_0000, 0)]))]);
    trace.buffers.push(Buffer { name: "second".into(), ..trace.buffers[0].clone() });
    trace.buffers[1].cpus[0].stats = Some(CpuStats { overrun: 5, ..CpuStats::default() });
    let (_, packets) = written(&trace);
    let sequences: Vec<_> = bundles(&packets).iter().map(|packet| packet.trusted_packet_sequence_id.unwrap()).collect();
    assert_eq!(sequences, [2, 3]);
    let starts: Vec<_> =
        bundles(&packets).iter().map(|packet| packet.ftrace_events.as_ref().unwrap().ftrace_timestamp).collect();
    assert_eq!(starts, [Some(4_000), Some(4_001)]);
    assert!(bundles(&packets).iter().all(|packet| packet.interned_data.is_some() && packet.sequence_flags == Some(3)));
    let stats = packets.last().unwrap().ftrace_stats.clone().unwrap();
    assert_eq!((stats.phase, stats.cpu_stats.len(), stats.cpu_stats[0].overrun), (Some(2), 1, Some(5)));
}

#[test]
fn machines_lie_on_one_timeline_and_keep_apart() {
    // The same moments by clocks that began at different times.
    let mut out = Vec::new();
    let offsets = [1_000_000_i64, 1_000_700, 999_000];
    for (number, offset) in offsets.into_iter().enumerate() {
        let begin = (1_010_000 + 10 * number as i64 - offset) as u64;
        let mut trace = trace("mono", vec![(0, page(begin, 0, &[entry(0xffff_ffff_8100_0000, 0), entry(2, 1)]))]);
        trace.about = About { hostname: "localhost".into(), epoch_offset_ns: Some(offset), ..About::default() };
        trace.comms = [(7, format!("worker-{number}"))].into();
        let name = format!("n{number}");
        write_machine(&trace, Machine::beside(number as u32, &name, offset, offsets[0]), &mut out).unwrap();
    }
    let packets = File::decode(&out[..]).unwrap().packet;
    let mut sequences = std::collections::HashMap::new();
    for number in 0..3 {
        let id = (number > 0).then_some(number);
        let own: Vec<Packet> = packets.iter().filter(|packet| packet.machine_id == id).cloned().collect();
        for packet in &own {
            let sequence = packet.trusted_packet_sequence_id.unwrap();
            assert_eq!(*sequences.entry(sequence).or_insert(number), number, "a sequence is of one machine");
        }
        let system = own.iter().find_map(|packet| packet.system_info.clone()).unwrap();
        assert_eq!(system.machine_name, Some(format!("n{number}")));
        let snapshot = own.iter().find_map(|packet| packet.clock_snapshot.clone()).unwrap();
        assert_eq!(snapshot.primary_trace_clock.is_some(), number == 0);
        let at = |id| snapshot.clocks.iter().find(|clock| clock.clock_id == Some(id)).unwrap().timestamp.unwrap();
        let wall = 1_010_000 + 10 * u64::from(number);
        assert_eq!((at(1), at(6)), (wall, wall - 1_000_000), "the same clock for all");
        assert_eq!(at(3) as i64, wall as i64 - offsets[number as usize], "its own one as it was");
        let times: Vec<_> =
            bundles(&own)[0].ftrace_events.as_ref().unwrap().event.iter().map(|e| e.timestamp).collect();
        assert_eq!(times, [Some(wall - 1_000_000), Some(wall - 999_000)]);
        let name = own.iter().find_map(|packet| packet.thread_name.clone()).unwrap();
        assert_eq!(name.comm, Some(format!("worker-{number}")));
    }
    // Before the first machine's clock began.
    assert_eq!(Machine { shift_ns: -10, ..Machine::default() }.time(3), 0);
}

#[test]
fn texts_devices_and_fields_by_name() {
    let print = record(5, 1, &[&1u64.to_le_bytes(), b"hello\n\0"]);
    let constant = record(14, 1, &[&1u64.to_le_bytes(), &0xffff_ffff_8200_0000_u64.to_le_bytes()]);
    // Major 259, minor 300.
    let requeue = record(40, 1, &[&(259u32 << 20 | 300).to_le_bytes(), &8u32.to_le_bytes()]);
    let tcp = record(
        41,
        1,
        &[&[10, 0, 0, 1], &(-2i32).to_le_bytes(), &(4u32 << 16 | 23).to_le_bytes(), &[1, 2, 3], b"et\xff0"],
    );
    let short = record(41, 1, &[&[10, 0, 0, 1], &[9]]);
    let unknown = record(999, 1, &[]);
    let (summary, packets) =
        written(&trace("local", vec![(0, page(1, 0, &[print, constant, requeue, tcp, short, unknown, vec![1]]))]));
    assert_eq!((summary.typed, summary.generic, summary.unknown, summary.events()), (3, 2, 2, 7));
    let kinds = kinds(&packets);
    let texts: Vec<_> = kinds
        .iter()
        .filter_map(|kind| if let Kind::Print(print) = kind { print.buf.as_deref() } else { None })
        .collect();
    assert_eq!(texts, ["hello\n", "constant"]);
    let Kind::BlockRqRequeue(requeue) = &kinds[2] else { panic!("{:?}", kinds[2]) };
    // As glibc's `makedev` does it.
    assert_eq!(
        (requeue.dev, requeue.nr_sector, requeue.errors),
        (Some(259 << 8 | 300 & 0xff | (300 & !0xff) << 12), Some(8), None)
    );
    let values = |kind: &Kind| match kind {
        Kind::Generic(generic) => {
            generic.field.iter().map(|field| (field.name.clone().unwrap(), field.value.clone().unwrap())).collect()
        }
        other => panic!("{other:?}"),
    };
    let own: Vec<(String, GenericValue)> = values(&kinds[3]);
    let text = |text: &str| GenericValue::Text(text.into());
    let expected = [
        ("saddr", text("{0xa,0x0,0x0,0x1}")),
        ("state", GenericValue::Signed(-2)),
        ("name", text("et\u{fffd}0")),
        ("y", text("010203")),
    ];
    assert_eq!(own, expected.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(values(&kinds[4]).len(), 1, "the record is too short for the rest");
    assert_eq!(summary.unreadable_fields, 3);
    let names: Vec<_> = kinds
        .iter()
        .filter_map(|kind| if let Kind::Generic(it) = kind { it.event_name.as_deref() } else { None })
        .collect();
    assert_eq!(names, ["tcp_thing", "tcp_thing", "unknown_type_999", "unknown_type_0"]);
}

#[test]
fn the_machine_its_processes_and_threads() {
    let mut trace = trace("local", Vec::new());
    trace.comms = [(10, "server".to_owned()), (11, "worker".to_owned()), (20, "alone".to_owned())].into();
    trace.tgids = [(10, 10), (11, 10)].into();
    trace.about =
        About { uname: "Linux 6.1.0 #1 SMP some day aarch64".into(), hostname: "node".into(), ..About::default() };
    let (_, packets) = written(&trace);
    let tree = packets.iter().find_map(|packet| packet.process_tree.clone()).unwrap();
    assert_eq!((tree.processes.len(), tree.processes[0].pid, &*tree.processes[0].cmdline[0]), (1, Some(10), "server"));
    let threads: Vec<_> = tree
        .threads
        .iter()
        .map(|thread| (thread.tid.unwrap(), thread.tgid.unwrap(), &**thread.name.as_ref().unwrap()))
        .collect();
    assert_eq!(threads, [(10, 10, "server"), (11, 10, "worker")]);
    let alone: Vec<_> = packets.iter().filter_map(|packet| packet.thread_name.clone()).collect();
    assert_eq!((alone.len(), alone[0].tid, alone[0].comm.as_deref()), (1, Some(20), Some("alone")));
    let system = packets.iter().find_map(|packet| packet.system_info.clone()).unwrap();
    let utsname = system.utsname.unwrap();
    let words = [utsname.sysname, utsname.release, utsname.version, utsname.machine].map(Option::unwrap);
    assert_eq!(words, ["Linux", "6.1.0", "#1 SMP some day", "aarch64"]);
    assert_eq!((system.machine_name.as_deref(), system.num_cpus), (Some("node"), None));
}

#[test]
fn damaged_pages_are_counted_and_what_follows_is_written() {
    let broken = [7u64.to_le_bytes(), 5000u64.to_le_bytes()].concat();
    let mut broken = broken;
    broken.resize(4096, 0xff);
    let (summary, packets) = written(&trace("local", vec![(0, [broken, page(9, 0, &[entry(1, 0)])].concat())]));
    assert_eq!((summary.unreadable_pages, summary.typed, summary.lost), (1, 1, 1));
    assert_eq!(bundles(&packets)[0].ftrace_events.as_ref().unwrap().lost_events, Some(true));
}

#[test]
#[ignore = "needs the Python package perfetto"]
fn oracle_perfetto_has_these_numbers_and_types() {
    let python = std::env::var("KSTROBE_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/perfetto_numbers.py");
    let names = TABLE.iter().map(|(event, ..)| *event);
    let output = std::process::Command::new(python).arg(script).args(names).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (event, tag, fields) in TABLE {
        assert_eq!(theirs[event]["number"], *tag, "{event}");
        for (field, kind, number) in *fields {
            assert_eq!(theirs[event]["fields"][field], serde_json::json!([number, kind]), "{event}.{field}");
        }
    }
}
