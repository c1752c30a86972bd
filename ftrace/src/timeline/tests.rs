use super::{END_UNKNOWN, INTERRUPT, Options, START_UNKNOWN, Summary, WAIT, write};
use crate::calls::{Call, CallId, Calls, Ends, Task};
use serde_json::{Value, json};

/// Calls by hand: parent, name, pid, start, duration.
#[derive(Default)]
struct Made(Calls);

impl Made {
    fn call(
        &mut self,
        parent: Option<CallId>,
        name: &str,
        pid: i32,
        start: Option<u64>,
        duration: Option<u64>,
    ) -> CallId {
        let id = CallId(self.0.calls.len() as u32);
        let comm = Some(self.0.names.id("</script><script>alert('&')</script>"));
        self.0.calls.push(Call {
            function: Some(self.0.names.id(name)),
            module: None,
            task: Some(Task { pid, comm }),
            cpu: Some(1),
            start_ns: start,
            duration_ns: duration,
            parent,
            children: Vec::new(),
            ends: if duration.is_some() { Ends::Both } else { Ends::Entry },
            interrupt: false,
            arguments: None,
            returned: None,
        });
        match parent {
            Some(parent) => self.0.calls[parent.0 as usize].children.push(id),
            None => self.0.roots.push(id),
        }
        id
    }
}

fn page(calls: &Calls, most_calls: usize) -> (Summary, String) {
    let mut out = Vec::new();
    let options = Options { title: "</title><b>\"a & b\"", most_calls, ..Options::default() };
    let summary = write(calls, &options, &mut out).unwrap();
    assert_eq!(summary.bytes, out.len() as u64);
    (summary, String::from_utf8(out).unwrap())
}

/// What the script of a page reads: up to the first end of a script element, as a browser takes it.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// The calls of a row by name: depth, start, duration, own time, flags.
fn row(data: &Value, row: usize) -> Vec<(String, u64, u64, u64, u64, u64)> {
    let calls = data["rows"][row]["calls"].as_array().unwrap().iter();
    let number = |call: &Value, at: usize| call[at].as_u64().unwrap();
    let named = |call: &Value| data["names"][number(call, 0) as usize].as_str().unwrap().to_owned();
    calls
        .map(|call| (named(call), number(call, 2), number(call, 3), number(call, 4), number(call, 5), number(call, 6)))
        .collect()
}

fn of(name: &str, depth: u64, start: u64, duration: u64, own: u64, flags: u8) -> (String, u64, u64, u64, u64, u64) {
    (name.into(), depth, start, duration, own, flags.into())
}

/// Two threads: one waits for most of its time, the other has calls without a time.
fn two_threads() -> Calls {
    let mut made = Made::default();
    let recv = made.call(None, "tcp_recvmsg", 7, Some(1_000_000), Some(500));
    let wait = made.call(Some(recv), "schedule", 7, Some(1_000_100), Some(300));
    made.call(Some(wait), "__schedule", 7, Some(1_000_110), Some(250));
    let tick = made.call(Some(recv), "tick", 7, Some(1_000_420), Some(20));
    made.0.calls[tick.0 as usize].interrupt = true;
    let veth = made.0.names.id("veth");
    let send = made.call(None, "veth_xmit", 8, Some(1_000_050), None);
    made.0.calls[send.0 as usize].module = Some(veth);
    made.call(Some(send), "kmalloc", 8, Some(1_000_060), Some(5));
    made.call(Some(send), "memcpy", 8, None, Some(7));
    made.call(Some(send), "kfree", 8, None, Some(2));
    made.0
}

#[test]
fn the_page_holds_the_numbers_of_the_calls() {
    let (summary, page) = page(&two_threads(), 100);
    assert_eq!((summary.shown, summary.left_out), (8, 0));
    let data = data(&page);
    assert_eq!((&data["origin_ns"], &data["end_ns"]), (&json!("1000000"), &json!(500)));
    assert_eq!(
        row(&data, 0),
        [
            of("tcp_recvmsg", 0, 0, 500, 180, 0),
            of("schedule", 1, 100, 300, 50, WAIT),
            of("__schedule", 2, 110, 250, 250, WAIT),
            of("tick", 1, 420, 20, 20, INTERRUPT),
        ]
    );
    // A call that did not end lasted at least as long as what it called; calls without a time follow those before them.
    assert_eq!(
        row(&data, 1),
        [
            of("veth_xmit", 0, 50, 15, 0, END_UNKNOWN),
            of("kmalloc", 1, 60, 5, 5, 0),
            of("memcpy", 1, 65, 7, 7, START_UNKNOWN),
            of("kfree", 1, 72, 2, 2, START_UNKNOWN),
        ]
    );
    assert_eq!(data["rows"][0]["name"], "</script><script>alert('&')</script> 7");
    assert_eq!(data["groups"], json!(["tcp", "veth", "kmalloc", "memcpy", "kfree", "schedule", "tick"]));
}

#[test]
fn without_any_time_calls_follow_one_another() {
    let mut made = Made::default();
    for _ in 0..2 {
        let root = made.call(None, "outer", 1, None, Some(10));
        made.call(Some(root), "first", 1, None, Some(4));
        made.call(Some(root), "second", 1, None, Some(3));
    }
    let (_, page) = page(&made.0, 100);
    let starts: Vec<_> = row(&data(&page), 0).iter().map(|call| (call.0.clone(), call.2)).collect();
    let expected = [("outer", 0), ("first", 0), ("second", 4), ("outer", 10), ("first", 10), ("second", 14)];
    assert_eq!(starts, expected.map(|(name, start)| (name.to_owned(), start)));
}

#[test]
fn a_call_of_which_only_the_end_is_known_ends_with_its_last_call() {
    let mut made = Made::default();
    let root = made.call(None, "outer", 1, None, Some(100));
    made.0.calls[0].ends = Ends::Exit;
    made.call(Some(root), "inner", 1, Some(1_050), Some(10));
    let (_, page) = page(&made.0, 100);
    let data = data(&page);
    assert_eq!(data["origin_ns"], "960");
    assert_eq!(row(&data, 0), [of("outer", 0, 0, 100, 90, START_UNKNOWN), of("inner", 1, 90, 10, 10, 0)]);
}

#[test]
fn the_longest_calls_stay_and_the_rest_is_told() {
    let (summary, page) = page(&two_threads(), 3);
    assert_eq!((summary.shown, summary.left_out, summary.longest_left_out_ns), (3, 5, 20));
    let data = data(&page);
    let names: Vec<_> = row(&data, 0).into_iter().map(|call| call.0).collect();
    assert_eq!(names, ["tcp_recvmsg", "schedule", "__schedule"]);
    assert_eq!(
        (&data["rows"].as_array().unwrap().len(), &data["left_out"], &data["longest_left_out_ns"]),
        (&1, &json!(5), &json!(20))
    );
}

#[test]
fn deep_calls_are_left_out_and_no_calls_are_a_page() {
    let mut made = Made::default();
    let mut parent = None;
    for _ in 0..5_000 {
        parent = Some(made.call(parent, "again", 0, Some(5), Some(1)));
    }
    let (summary, deep) = page(&made.0, 100_000);
    assert_eq!((summary.shown, summary.left_out), (128, 4_872));
    // Of the idle task there is one on each CPU.
    assert!(data(&deep)["rows"][0]["name"].as_str().unwrap().ends_with(" 0 CPU 1"));
    let (summary, none) = page(&Calls::default(), 10);
    assert_eq!((summary.shown, summary.left_out, data(&none)["rows"].as_array().unwrap().len()), (0, 0, 0));
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    let (_, page) = page(&two_threads(), 100);
    assert!(page.contains("<title>&lt;/title&gt;&lt;b&gt;&quot;a &amp; b&quot;</title>"));
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
    for outside in ["http:", "https:", "src=", "href=", "import", "fetch", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    // Elements that HTML never closes are closed, and what scripts hold is no markup.
    let mut markup = String::new();
    for part in page.split("<script") {
        let rest = if markup.is_empty() { part } else { part.split_once("</script>").unwrap().1 };
        markup.push_str(rest);
    }
    let mut reader = quick_xml::Reader::from_str(&markup);
    let mut depth = 0;
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(_) => depth += 1,
            quick_xml::events::Event::End(_) => depth -= 1,
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
}

#[test]
#[ignore = "needs node"]
fn oracle_node_the_script_draws_and_tells_what_is_under_the_mouse() {
    let mut calls = two_threads();
    calls.damage.lost = 3;
    let (_, page) = page(&calls, 7);
    let file = std::env::temp_dir().join(format!("kstrobe-timeline-{}.html", std::process::id()));
    std::fs::write(&file, page).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/timeline.js");
    let output = std::process::Command::new("node").arg(script).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let texts = |frame: &str| {
        shown[frame].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = texts("first");
    for expected in
        ["</script><script>alert('&')</script> 7", "tcp_recvmsg", "schedule", "__schedule", "0 ns", "300 ns"]
    {
        assert!(first.iter().any(|text| text == expected), "{expected} of {first:?}");
    }
    let tips = [
        json!("tcp_recvmsg\ntook 500 ns, in itself 180 ns\nbegan at 0 ns\nof tcp"),
        json!("schedule\ntook 300 ns, in itself 50 ns\nbegan at 100 ns\nof schedule\nthe thread waits, off its CPU"),
        Value::Null,
        Value::Null,
    ];
    assert_eq!(shown["tips"], json!(tips));
    assert!(!texts("zoomed").contains(&"tick".to_owned()), "the call that was clicked fills the picture");
    assert_eq!((texts("out"), texts("again")), (first.clone(), first), "no way out of the whole trace");
    assert!(texts("closest").contains(&"schedule".to_owned()));
    assert_eq!(
        shown["said"],
        "7 calls, 500 ns from 1000000 ns on; 1 calls left out, none above 2 ns; 3 records lost by the kernel"
    );
    assert_eq!(shown["legend"][0], "tcp 180 ns");
}
