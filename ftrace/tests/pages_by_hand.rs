//! Every kind of record, whole, damaged and made up.

mod support;

use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::page::{Lost, PageError, page};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, Trace};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::made::{HEAD_BYTES, Page, page_format};

const BYTES: usize = 4080;

/// Times and bytes of a page's records, and what ended them.
fn read(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<PageError>) {
    let format = page_format(BYTES);
    let mut found = Vec::new();
    for record in page(bytes, &format).unwrap().records {
        match record {
            Ok(record) => found.push((record.time, record.data.to_vec())),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

fn records(made: &Page) -> Vec<(u64, Vec<u8>)> {
    let (whole, error) = read(&made.whole(&page_format(BYTES)));
    assert_eq!(error, None);
    // A page that ends with its records says the same.
    assert_eq!(read(&made.short()), (whole.clone(), None));
    whole
}

fn record(time: u64, bytes: &[u8]) -> (u64, Vec<u8>) {
    (time, bytes.to_vec())
}

#[test]
fn small_records_come_at_their_times() {
    let made = Page::at(1000).record(0, b"abcd").record(7, b"efghijkl").record((1 << 27) - 1, &[9; 112]);
    assert_eq!(records(&made), [record(1000, b"abcd"), record(1007, b"efghijkl"), record(134_218_734, &[9; 112])]);
}

#[test]
fn long_records_have_their_length() {
    let made = Page::at(0).long_record(1, &[7; 2000]).long_record(2, b"").record(3, b"last");
    assert_eq!(records(&made), [record(1, &[7; 2000]), record(3, b""), record(6, b"last")]);
}

#[test]
fn a_long_record_of_odd_length_ends_at_a_word() {
    let made = Page::at(0).long_record(1, b"seven..").record(3, b"next");
    assert_eq!(records(&made), [record(1, b"seven.."), record(4, b"next")]);
}

#[test]
fn empty_room_ends_a_page() {
    let made = Page::at(5).record(1, b"only").head(29, 0).raw(&[0xff; 40]);
    assert_eq!(records(&made), [record(6, b"only")]);
}

#[test]
fn discarded_records_are_passed_over_but_their_time_counts() {
    let made = Page::at(0).head(29, 50).word(12).raw(&[0xff; 8]).record(5, b"then");
    assert_eq!(records(&made), [record(55, b"then")]);
    // One stands for zero.
    let made = Page::at(0).head(29, 1).word(4).record(5, b"then");
    assert_eq!(records(&made), [record(5, b"then")]);
}

#[test]
fn time_extends_add_up() {
    let long = 5 << 27 | 3;
    let made = Page::at(10).extend(long).record(1, b"late").extend((1 << 59) - 1).record(0, b"more");
    let first = 10 + long + 1;
    assert_eq!(records(&made), [record(first, b"late"), record(first + (1 << 59) - 1, b"more")]);
}

#[test]
fn time_stamps_replace_the_time() {
    let made = Page::at(500).stamp(7000).record(0, b"then").stamp(600).record(2, b"back");
    assert_eq!(records(&made), [record(7000, b"then"), record(602, b"back")]);
}

#[test]
fn time_stamps_have_the_high_bits_of_the_time_before() {
    // The clock of a machine that has run for 20 years of nanoseconds, or one that counts cycles.
    let high = 3 << 59;
    let made = Page::at(high | 500).stamp(high | 7000).record(1, b"then");
    assert_eq!(records(&made), [record(high + 7001, b"then")]);
    // The low 59 bits overflowed between the page's begin and the stamp.
    let made = Page::at(high | ((1 << 59) - 5)).stamp(3).record(0, b"next");
    assert_eq!(records(&made), [record((4 << 59) + 3, b"next")]);
}

#[test]
fn lost_records_are_told() {
    let format = page_format(BYTES);
    let made = Page::at(0).record(0, b"data");
    let lost = |bytes: &[u8]| page(bytes, &format).unwrap().lost;
    assert_eq!(lost(&made.whole(&format)), Lost::Nothing);
    assert_eq!(lost(&made.clone().lost(None).whole(&format)), Lost::Unknown);
    assert_eq!(lost(&made.clone().lost(Some(1 << 40)).whole(&format)), Lost::Count(1 << 40));
    // The number itself is cut off.
    let bytes = made.clone().lost(Some(3)).short();
    assert_eq!(lost(&bytes[..bytes.len() - 1]), Lost::Unknown);
    // A filled page has no room for the number, and none for more records.
    let full = Page::at(0).long_record(0, &[1; BYTES - 8]).lost(None);
    assert_eq!(lost(&full.whole(&format)), Lost::Unknown);
    assert_eq!(read(&full.lost(Some(1)).short()).0.len(), 1);
}

#[test]
fn other_page_sizes_are_read() {
    for data_bytes in [1008, 4080, 8176, 65520, 1 << 20] {
        let format = page_format(data_bytes);
        let bytes = vec![1; data_bytes - 8];
        let whole = Page::at(1).long_record(1, &bytes).whole(&format);
        assert_eq!(whole.len(), data_bytes + HEAD_BYTES);
        let found: Vec<_> = page(&whole, &format).unwrap().records.map(Result::unwrap).collect();
        assert_eq!((found.len(), found[0].data.len()), (1, data_bytes - 8));
    }
    assert!(PageFormat::parse(&page_format(4080).text.replace("4080", "18446744073709551615")).is_err());
}

#[test]
fn damaged_pages_are_errors_at_their_place() {
    let format = page_format(BYTES);
    let head = |bytes: &[u8]| page(bytes, &format).map(|_| ()).map_err(|error| error.what);
    assert_eq!(head(&[]), Err("no room for a page's head"));
    assert_eq!(head(&[0; HEAD_BYTES - 1]), Err("no room for a page's head"));
    assert_eq!(head(&[0; HEAD_BYTES]), Ok(()));
    let made = Page::at(0).record(0, b"data").record(1, b"more");
    let short = made.short();
    assert_eq!(head(&short[..short.len() - 1]), Err("more bytes filled than the page has"));
    for (made, what) in [
        (Page::at(0).record(0, b"good").head(3, 0).raw(&[0; 8]), "a record that ends behind the page"),
        (Page::at(0).record(0, b"good").head(0, 0), "a long record without its length"),
        (Page::at(0).record(0, b"good").head(0, 0).word(3), "a long record without its length"),
        (Page::at(0).record(0, b"good").head(0, 0).word(u32::MAX), "a record that ends behind the page"),
        (Page::at(0).record(0, b"good").head(29, 1), "a discarded record without its length"),
        (Page::at(0).record(0, b"good").head(29, 1).word(u32::MAX), "a record that ends behind the page"),
        (Page::at(0).record(0, b"good").head(30, 1), "a record that ends behind the page"),
        (Page::at(0).record(0, b"good").head(31, 1), "a record that ends behind the page"),
    ] {
        let (found, error) = read(&made.whole(&format));
        assert_eq!(found, [record(0, b"good")], "{what}");
        assert_eq!(error, Some(PageError { at: 8, what }));
    }
}

#[test]
fn fewer_bytes_than_a_word_are_nothing() {
    assert_eq!(records(&Page::at(0).record(0, b"data").raw(&[1, 2, 3])), [record(0, b"data")]);
}

fn event(id: u16, pid: i32, more: &[u8]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(pid.to_le_bytes());
    bytes.extend(more);
    bytes
}

/// A trace of pages for each CPU.
fn trace_of(page: PageFormat, cpus: &[Vec<u8>]) -> Trace {
    let text = "name: known\nID: 5\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
                \tfield:u64 at;\toffset:8;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n";
    let mut formats = Formats::default();
    formats.add(EventFormat::parse("test", text).unwrap());
    let cpu = |(cpu, pages): (usize, &Vec<u8>)| CpuPages { cpu: cpu as u32, pages: pages.clone(), stats: None };
    Trace {
        page,
        header_event: String::new(),
        formats,
        symbols: Symbols::default(),
        printk: BTreeMap::new(),
        comms: BTreeMap::new(),
        tgids: BTreeMap::new(),
        buffers: vec![Buffer {
            name: String::new(),
            clock: "local".to_owned(),
            cpus: cpus.iter().enumerate().map(cpu).collect(),
        }],
        about: About::default(),
    }
}

#[test]
fn cpus_are_merged_by_time_and_losses_stay_with_their_cpu() {
    let format = page_format(BYTES);
    let known = |at: u64| event(5, 10, &at.to_le_bytes());
    let first = [
        Page::at(10).record(0, &known(10)).record(20, &known(30)).whole(&format),
        // Nothing but the news that something is missing.
        Page::at(31).lost(Some(4)).whole(&format),
        Page::at(40).record(0, &known(40)).lost(Some(2)).whole(&format),
    ];
    let second = [
        Page::at(20).record(0, &known(20)).record(10, &known(30)).head(3, 0).whole(&format),
        Page::at(50).record(0, &event(6, -1, b"?")).whole(&format),
        Page::at(60).record(0, &[5]).whole(&format)[..100].to_vec(),
    ];
    let trace = trace_of(format, &[first.concat(), second.concat()]);
    let mut events = trace.events();
    let found: Vec<_> = events.by_ref().map(|event| (event.time, event.cpu, event.number("at"), event.lost)).collect();
    let expected = [
        (10, 0, Some(10), Lost::Nothing),
        (20, 1, Some(20), Lost::Nothing),
        (30, 0, Some(30), Lost::Nothing),
        (30, 1, Some(30), Lost::Nothing),
        (40, 0, Some(40), Lost::Count(6)),
        (50, 1, None, Lost::Unknown),
        (60, 1, None, Lost::Nothing),
    ];
    assert_eq!(found, expected);
    let unreadable: Vec<_> = events.unreadable().iter().map(|place| (place.cpu, place.page, place.error.at)).collect();
    assert_eq!(unreadable, [(1, 0, 40)]);
}

fn any_page() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 0..600);
    // Records that make sense, so that what is behind them is reached.
    let part = prop_oneof![
        (0..32u32, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)),
        (1..9u32, 0..9u32, Just(vec![1; 16])),
    ];
    let likely = proptest::collection::vec(part, 0..40).prop_map(|parts| {
        let part = |page: Page, (kind, delta, bytes): (u32, u32, Vec<u8>)| page.head(kind, delta >> 5).raw(&bytes);
        parts.into_iter().fold(Page::at(u64::MAX - 9), part).lost(Some(1)).short()
    });
    prop_oneof![body, likely]
}

proptest! {
    #[test]
    fn any_page_is_read_to_its_end(bytes in any_page()) {
        if let Ok(page) = page(&bytes, &page_format(BYTES)) {
            let steps = page.records.clone().count();
            // Every step goes on by a word.
            prop_assert!(steps <= bytes.len() / 4);
            let mut records = page.records;
            while let Some(record) = records.next() {
                if record.is_err() {
                    prop_assert!(records.next().is_none());
                }
            }
        }
    }

    #[test]
    fn any_pages_are_a_trace(pages in proptest::collection::vec(any_page(), 0..4), room in 1..300usize) {
        let trace = trace_of(page_format(room), &pages);
        let bytes: usize = pages.iter().map(Vec::len).sum();
        let mut events = trace.events();
        let found = events.by_ref().inspect(|event| {
            let _ = (event.pid(), event.flags(), event.preempt_count(), event.number("at"), event.value("common_pid"));
        });
        prop_assert!(found.count() <= bytes / 4);
    }
}
