//! All that is done with traces and with calls.

use super::sound::sound;
use kstrobe_ftrace::calls::{self, Calls};
use kstrobe_ftrace::dat::{self, Compression, Version};
use kstrobe_ftrace::report::{self, Asked};
use kstrobe_ftrace::text::{self, graph};
use kstrobe_ftrace::trace::Trace;
use kstrobe_ftrace::{perfetto, select, timeline};
use std::io::{self, Cursor, Write};

/// Counts what is written.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fails when far more was made of a case than it has bytes. A record of 8 bytes may name a field of 64 KiB, and does so again and again.
pub fn bounded(made_bytes: u64, case_bytes: usize) {
    let most = (32 << 20) + 4096 * case_bytes as u64;
    assert!(made_bytes <= most, "{made_bytes} bytes made of a case of {case_bytes}");
}

/// Everything that can be done with a trace.
pub fn trace(trace: &Trace, choices: u16, case_bytes: usize) {
    let mut events = trace.events();
    let mut last = 0;
    let (mut count, mut buffers) = (0, vec![0_u64; trace.buffers.len()]);
    for event in events.by_ref() {
        last = event.time.max(last);
        count += 1;
        buffers[event.buffer] += 1;
        std::hint::black_box((event.pid(), event.flags(), event.preempt_count()));
    }
    let unreadable = events.unreadable().len();

    let bit = |number: u16| choices >> number & 1 == 1;
    let columns = graph::Options {
        buffer: 0,
        cpu: !bit(3),
        duration: !bit(4),
        overhead: !bit(5),
        abstime: bit(6),
        proc: bit(7),
        tail: bit(8),
    };
    let options = text::Options { nanoseconds: bit(0), raw: bit(1), no_flags: bit(2), delta: bit(15), graph: columns };
    let mut out = Counted(0);
    let written = text::write(trace, options, &mut out).expect("nothing is in the way");
    assert_eq!((written.events, written.unreadable.len()), (count, unreadable));
    bounded(out.0, case_bytes);

    let mut out = Counted(0);
    let written = perfetto::write(trace, &mut out).expect("nothing is in the way");
    assert_eq!((written.events(), written.bytes), (count, out.0));
    bounded(out.0, case_bytes);

    written_and_read(trace, choices, count);

    let part = select::part(trace, &select::Selection::default());
    assert_eq!((part.taken, part.of, part.unreadable), (count, count, unreadable));
    assert_eq!(part.trace.events().count() as u64, count);
    let built = calls::build::build(trace, calls::build::Options { marks: !bit(9) });
    calls(&built, case_bytes);
    reports(Some(trace), &built, case_bytes);
    calls(&calls::functions::nest(trace), case_bytes);
}

/// What is written can be read, and says the same. Slow, so it is a choice.
fn written_and_read(trace: &Trace, choices: u16, count: u64) {
    if choices >> 13 & 1 == 0 {
        return;
    }
    let form = [
        (Version::V6, Compression::None),
        (Version::V7, Compression::None),
        (Version::V7, Compression::Zlib),
        (Version::V7, Compression::Zstd),
    ];
    let (version, compression) = form[usize::from(choices >> 10 & 3)];
    let mut file = Cursor::new(Vec::new());
    let options = dat::Options { version, compression, wall_clock: choices >> 12 & 1 == 1 };
    // There are traces that the form has no place for.
    if dat::write(trace, &options, &mut file).is_err() {
        return;
    }
    let read = match dat::read(&file.into_inner()) {
        Ok(read) => read,
        Err(error) => panic!("{error} in what we wrote"),
    };
    // A page that is cut has zeros in a file, behind which its head does not reach.
    let page_bytes = trace.page.page_bytes();
    if trace.buffers.iter().flat_map(|buffer| &buffer.cpus).all(|cpu| cpu.pages.len().is_multiple_of(page_bytes)) {
        assert_eq!(read.trace.events().count() as u64, count);
    }
}

/// What holds for calls, and what is made of them alone.
pub fn calls(calls: &Calls, case_bytes: usize) {
    sound(calls);
    bounded(calls.outline().len() as u64, case_bytes);

    let mut out = Counted(0);
    let shown = timeline::write(calls, &timeline::Options::default(), &mut out).expect("nothing is in the way");
    assert_eq!(shown.bytes, out.0);
    bounded(out.0, case_bytes);
}

pub fn reports(trace: Option<&Trace>, calls: &Calls, case_bytes: usize) {
    let activity = match trace {
        Some(trace) => report::activity(report::of_trace(trace)),
        None => report::activity(report::of_marks(calls)),
    };
    let mut out = String::new();
    report::summary(trace, Some(calls)).render(&mut out);
    let first = calls.calls.iter().find_map(|call| call.function);
    let named = Asked { root: first.map(|name| calls.names[name].to_string()), ..Asked::default() };
    let syscall = Asked { root: Some("recvfrom".to_owned()), cpus: vec![0], ..Asked::default() };
    for asked in [Asked::default(), named, syscall] {
        let functions = report::functions(calls, &activity, &asked);
        let waits = report::waits(calls, &activity, &asked);
        functions.render(&mut out, 20);
        waits.render(&mut out);
        report::slowest(calls, &activity, &asked).render(&mut out);
        report::wakeups(&activity, &asked).render(&mut out);
        report::switches(&activity, &asked).render(&mut out, 20);
        bounded(report::folded(calls, &activity, &asked).iter().map(|(stack, _)| stack.len() as u64).sum(), case_bytes);
        let names = |number: u64| (number == 45).then_some("recvfrom");
        let syscalls = match trace {
            Some(trace) => {
                let events = || report::of_trace(trace);
                report::packets(events(), &activity, &asked).render(&mut out);
                report::blocks(events(), &asked).render(&mut out);
                report::interrupts(events(), &asked).render(&mut out);
                report::syscalls(events(), &activity, &asked, names)
            }
            None => {
                let events = || report::of_marks(calls);
                report::packets(events(), &activity, &asked).render(&mut out);
                report::blocks(events(), &asked).render(&mut out);
                report::interrupts(events(), &asked).render(&mut out);
                report::syscalls(events(), &activity, &asked, names)
            }
        };
        syscalls.render(&mut out);
        let side = (&functions, &waits, &syscalls);
        report::diff(side, side).render(&mut out, 20);
    }
    bounded(out.len() as u64, case_bytes);
}
