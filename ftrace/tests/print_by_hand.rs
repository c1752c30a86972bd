//! Text of what the recordings do not have: `trace_printk`, losses, options, damaged records.

mod print_fixtures;
mod support;

use kstrobe_ftrace::format::EventFormat;
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::text::{self, Options};
use kstrobe_ftrace::trace::{Buffer, CpuPages, Trace};
use proptest::prelude::*;
use support::made::{Page, page_format};

/// One CPU with these pages, formats of kernel 6.18.
fn trace(pages: &[Page]) -> Trace {
    let mut trace = print_fixtures::empty();
    trace.page = page_format(4080);
    print_fixtures::formats().into_iter().for_each(|format| trace.formats.add(format));
    trace.symbols = Symbols::parse("ffffffff81000000 t work\nffffffff81000100 t caller\n");
    trace.comms.insert(7, "task".to_owned());
    let pages = pages.iter().flat_map(|page| page.whole(&trace.page)).collect();
    let cpus = vec![CpuPages { cpu: 3, pages, stats: None }];
    trace.buffers.push(Buffer { name: String::new(), clock: "local".to_owned(), cpus });
    trace
}

/// A record of an event: the common fields, and its own bytes.
fn record(trace: &Trace, system: &str, name: &str, own: &[&[u8]]) -> Vec<u8> {
    let id = trace.formats.named(system, name).unwrap().id;
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend([1, 2]);
    bytes.extend(7i32.to_le_bytes());
    own.iter().for_each(|part| bytes.extend(*part));
    bytes
}

fn lines(trace: &Trace, options: Options) -> Vec<String> {
    let mut out = Vec::new();
    text::write(trace, options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// What stands behind the time of a single record.
fn said(change: impl FnOnce(&mut Trace), system: &str, name: &str, own: &[&[u8]]) -> String {
    let record = record(&trace(&[]), system, name, own);
    let mut trace = trace(&[Page::at(1_234_567_890).record(0, &record)]);
    change(&mut trace);
    let lines = lines(&trace, Options::default()).join("\n");
    let start = "            task-7       [003] d..2.     1.234568: ";
    lines.strip_prefix(start).unwrap_or_else(|| panic!("{lines:?}")).to_owned()
}

const WORK: u64 = 0xffff_ffff_8100_0010;
const FORMAT: u64 = 0xffff_ffff_8200_0000;

#[test]
fn trace_printk_shows_its_stored_arguments() {
    let ip = WORK.to_le_bytes();
    let fmt = FORMAT.to_le_bytes();
    let with = |format: &'static str| move |trace: &mut Trace| drop(trace.printk.insert(FORMAT, format.to_owned()));
    // `vbin_printf`: an int, a text, a long that begins at the next multiple of four, a char.
    let mut stored = Vec::new();
    stored.extend((-5i32).to_le_bytes());
    stored.extend(b"hello\0");
    stored.extend([0, 0]);
    stored.extend(0x1_0000_0001u64.to_le_bytes());
    stored.extend(b"x");
    stored.extend([0; 3]);
    stored.extend(WORK.to_le_bytes());
    stored.extend(b"10.0.0.1\0\0\0\0");
    let said_ = |format, stored: &[u8]| said(with(format), "ftrace", "bprint", &[&ip, &fmt, stored]);
    assert_eq!(
        said_("n=%d s=%-7s| l=%#lx c=%c f=%pS ip=%pI4 100%%\n", &stored),
        "work: n=-5 s=hello  | l=0x100000001 c=x f=work+0x10 ip=10.0.0.1 100%"
    );
    let stars = [7i32.to_le_bytes(), 2i32.to_le_bytes(), *b"abc\0"].concat();
    assert_eq!(said_("%*.*s|", &stars), "work:      ab|");
    assert_eq!(said_("no arguments", &[]), "work: no arguments");
    // Too few arguments: what there is, as it is.
    assert_eq!(said_("%d %lld", &stored[..4]), "work: -5 [format at 0xffffffff82000000, arguments fb ff ff ff]");
    assert_eq!(
        said(|_| {}, "ftrace", "bprint", &[&ip, &fmt, &stored[..4]]),
        "work: [format at 0xffffffff82000000, arguments fb ff ff ff]"
    );
    assert_eq!(said(with("plain\n"), "ftrace", "bputs", &[&ip, &fmt]), "work: plain");
    assert_eq!(said(|_| {}, "ftrace", "bputs", &[&ip, &fmt]), "work: [text at 0xffffffff82000000]");
}

#[test]
fn damaged_records_show_what_they_have() {
    // A function without its caller is shown by its fields, as far as they go.
    assert_eq!(
        said(|_| {}, "ftrace", "function", &[&WORK.to_le_bytes()]),
        "function: ip=0xffffffff81000010 parent_ip=? args=?"
    );
    assert_eq!(said(|_| {}, "ftrace", "kernel_stack", &[]), "kernel_stack: size=? caller=?");
    assert_eq!(said(|_| {}, "sched", "sched_wakeup", &[b"comm"]), "sched_wakeup: comm=comm pid=? prio=? target_cpu=?");
    // An event of which no format is known.
    let said = said(|trace| trace.formats = Default::default(), "ftrace", "function", &[&[1, 2]]);
    assert_eq!(said, "unknown event 1: 01 00 01 02 07 00 00 00 01 02 00 00");
}

#[test]
fn stacks_end_where_the_record_ends() {
    let addresses = |all: &[u64]| all.iter().flat_map(|address| address.to_le_bytes()).collect::<Vec<u8>>();
    let stack = addresses(&[WORK, 0xffff_ffff_8100_0104, i32::MAX as u64, u64::MAX, WORK]);
    assert_eq!(
        said(|_| {}, "ftrace", "kernel_stack", &[&[4, 0, 0, 0, 0, 0, 0, 0], &stack]),
        "<stack trace>\n => work\n => caller\n => [FTRACE TRAMPOLINE]"
    );
    let deep = addresses(&[WORK; 12]);
    let said_ = said(|_| {}, "ftrace", "kernel_stack", &[&[12, 0, 0, 0, 0, 0, 0, 0], &deep]);
    assert_eq!(said_.matches(" => work").count(), 12);
    // What lies far behind the last symbol is none of it.
    let unknown = addresses(&[0xffff_ffff_c000_0000, 0]);
    assert_eq!(
        said(|_| {}, "ftrace", "kernel_stack", &[&[2, 0, 0, 0, 0, 0, 0, 0], &unknown]),
        "<stack trace>\n => 0xffffffffc0000000\n => 0"
    );
}

#[test]
fn what_was_lost_stands_before_what_came_after() {
    let function = record(&trace(&[]), "ftrace", "function", &[&WORK.to_le_bytes(), &0u64.to_le_bytes()]);
    let pages = [
        Page::at(1_000).record(0, &function),
        Page::at(2_000).lost(Some(5)).record(0, &function),
        Page::at(3_000).lost(None).record(0, &function),
        // A record that ends behind its page: the next page says that something is missing.
        Page::at(4_000).head(28, 0),
        Page::at(5_000).record(0, &function),
    ];
    let trace = trace(&pages);
    let mut out = Vec::new();
    let written = text::write(&trace, Options::default(), &mut out).unwrap();
    assert_eq!((written.events, written.unreadable.len()), (4, 1));
    let text = String::from_utf8(out).unwrap();
    let line = |us: u64| format!("            task-7       [003] d..2.     0.{us:06}: work");
    let expected = [
        line(1),
        "CPU:3 [LOST 5 EVENTS]".into(),
        line(2),
        "CPU:3 [LOST EVENTS]".into(),
        line(3),
        "CPU:3 [LOST EVENTS]".into(),
        line(5),
    ];
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, expected);
    assert!(text.contains("# tracer: function\n#\n# entries-in-buffer/entries-written: 4/11   #P:4\n"), "{text}");
}

#[test]
fn options_change_the_columns() {
    let own: [&[u8]; 4] =
        [b"other\0\0\0\0\0\0\0\0\0\0\0", &8i32.to_le_bytes(), &120i32.to_le_bytes(), &1i32.to_le_bytes()];
    let record = record(&trace(&[]), "sched", "sched_wakeup", &own);
    let mut trace = trace(&[Page::at(1_234_567_890).record(0, &record)]);
    let line = |trace: &Trace, options| lines(trace, options).join("\n");
    let plain = Options::default();
    assert_eq!(
        line(&trace, plain),
        "            task-7       [003] d..2.     1.234568: sched_wakeup: comm=other pid=8 prio=120 target_cpu=001"
    );
    assert_eq!(
        line(&trace, Options { nanoseconds: true, no_flags: true, ..plain }),
        "            task-7       [003]      1.234567890: sched_wakeup: comm=other pid=8 prio=120 target_cpu=001"
    );
    assert_eq!(
        line(&trace, Options { raw: true, ..plain }),
        "            task-7       [003] d..2.     1.234568: sched_wakeup: comm=other pid=8 prio=120 target_cpu=1"
    );
    trace.buffers[0].clock = "counter".to_owned();
    trace.comms.clear();
    assert!(line(&trace, plain).starts_with("           <...>-7       [003] d..2.   1234567890: "));
}

#[test]
fn system_calls_show_what_they_were_given() {
    let format = "name: sys_enter_openat\nID: 3000\nformat:\n\
                  \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
                  \tfield:int dfd;\toffset:16;\tsize:8;\tsigned:0;\n\
                  \tfield:const char * filename;\toffset:24;\tsize:8;\tsigned:0;\n\
                  \tfield:__data_loc char[] __filename_val;\toffset:32;\tsize:4;\tsigned:0;\n\n\
                  print fmt: \"dfd: 0x%08lx, filename: 0x%08lx \\\"%s\\\"\", ((unsigned long)(REC->dfd)), \
                  ((unsigned long)(REC->filename)), __get_str(__filename_val)\n";
    let mut record = vec![0xb8, 0x0b, 1, 2, 7, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0];
    record.extend(0xffff_ff9cu64.to_le_bytes());
    record.extend(9u64.to_le_bytes());
    record.extend((36u32 | 5 << 16).to_le_bytes());
    record.extend(b"/etc\0\0\0\0");
    let mut trace = trace(&[Page::at(0).record(0, &record)]);
    trace.formats.add(EventFormat::parse("syscalls", format).unwrap());
    let line = |trace: &Trace| lines(trace, Options::default()).join("\n").split_off(51);
    assert_eq!(line(&trace), "sys_openat(dfd: 0xffffff9c, filename: 9 \"/etc\")");
    trace.about.uname = "Linux 6.12.1 x86_64".to_owned();
    assert_eq!(line(&trace), "sys_openat(dfd: ffffff9c, filename: 9 \"/etc\")");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Recordings with bytes of their pages changed.
    #[test]
    fn no_page_makes_the_text_fail(
        kernel in proptest::sample::select(&support::KERNELS[..]),
        scenario in proptest::sample::select(vec!["events", "stacks", "funcstack", "sched", "recvfrom"]),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..200),
        raw in any::<bool>(),
    ) {
        let mut trace = support::trace(kernel, scenario);
        for cpu in &mut trace.buffers[0].cpus {
            let length = cpu.pages.len();
            for (place, byte) in changes.iter().filter(|_| length > 0) {
                cpu.pages[place.index(length)] = *byte;
            }
        }
        let mut out = Vec::new();
        text::write(&trace, Options { raw, ..Options::default() }, &mut out).unwrap();
        prop_assert!(out.len() < 16 << 20);
        prop_assert!(std::str::from_utf8(&out).is_ok());
    }
}
