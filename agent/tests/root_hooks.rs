//! Several hooks of one probe: which of them, and which function, an event is of. Each count is that of calls that the test makes.

mod support;

use std::hint::black_box;
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::metrics::Metrics;
use support::{emulated, load, wait_for};

const ONE: u64 = 30;
const TWO: u64 = 20;

#[inline(never)]
fn kst_call_one(value: u64) -> u64 {
    black_box(value) + 1
}

/// Calls the other: spans of the two lie within one another.
#[inline(never)]
fn kst_call_two(value: u64) -> u64 {
    black_box(kst_call_one(black_box(value))) + 1
}

/// A call of `two` is one of `one`, too.
fn calls() {
    for _ in 0..ONE - TWO {
        assert_eq!(kst_call_one(black_box(1)), 2);
    }
    for _ in 0..TWO {
        assert_eq!(kst_call_two(black_box(1)), 3);
    }
}

/// An agent with one probe, attached.
fn agent(name: &str, text: &str) -> Agent {
    let agent = Setup { probes: &[(name, text)], ..Setup::default() }.start();
    let limit = Duration::from_secs(if emulated() { 120 } else { 40 });
    wait_for("the probe's hooks", limit, || {
        let metrics = agent.scrape();
        let attached: Vec<f64> =
            metrics.series("kstrobe_probe_attached", &[("probe", name)]).map(|(_, on)| on).collect();
        (!attached.is_empty() && attached.iter().all(|on| *on == 1.0)).then_some(())
    });
    agent
}

fn own_program() -> String {
    std::env::current_exe().unwrap().display().to_string()
}

#[test]
#[ignore = "needs root"]
fn root_functions_of_a_pattern_are_counted_by_name() {
    let (program, pid) = (own_program(), std::process::id());
    let hook = |kind: &str| format!("{{ hook: \"{kind}:{program}:root_hooks::kst_call_*\", pid: {pid} }}");
    let text = format!(
        "probe: calls\nsummary: S.\nspan:\n  start: {}\n  end: {}\n  by: [tid, func]\nmetrics:\n  \
         calls_seconds: {{ type: histogram, value: elapsed, labels: {{ func: func }} }}\n",
        hook("uprobe"),
        hook("uretprobe"),
    );
    let agent = agent("calls", &text);
    calls();
    let metrics = agent.scrape();
    let count = |func: &str| metrics.histogram("kstrobe_calls_seconds", &[("func", func)]).count as u64;
    assert_eq!((count("root_hooks::kst_call_one"), count("root_hooks::kst_call_two")), (ONE, TWO));
    assert_eq!(metrics.sum("kstrobe_calls_seconds_count", &[]) as u64, ONE + TWO, "and no other function");
    let lost = metrics.sum("kstrobe_lost_total", &[("probe", "calls")]);
    assert_eq!(lost, 0.0, "calls within one another are pairs of their own");
}

#[test]
#[ignore = "needs root"]
fn root_hooks_of_a_list_are_counted_by_their_text() {
    let program = own_program();
    let text = format!(
        "probe: listed\nsummary: S.\nat:\n  - \"uprobe:{program}:[root_hooks::kst_call_one, root_hooks::kst_call_two]\"\n  \
         - syscall:getpgid:enter\n  - syscall:[getsid, setpgid]:enter\n  \
         - syscall:setsid:enter\nwhere: comm == \"kst-listed\"\nmetrics:\n  \
         listed_total: {{ type: counter, labels: {{ hook: hook }} }}\n"
    );
    let agent = agent("listed", &text);
    load::named("kst-listed", || {
        calls();
        load::getpgid_calls(7, 5);
        load::setpgid_refusals(4);
    });
    let metrics: Metrics = agent.scrape();
    let count = |hook: &str| metrics.sum("kstrobe_listed_total", &[("hook", hook)]) as u64;
    assert_eq!(count(&format!("uprobe:{program}:root_hooks::kst_call_one")), ONE);
    assert_eq!(count(&format!("uprobe:{program}:root_hooks::kst_call_two")), TWO);
    assert_eq!(count("syscall:getpgid:enter"), 5);
    assert_eq!(count("syscall:[getsid, setpgid]:enter"), 4);
    assert_eq!(metrics.sum("kstrobe_listed_total", &[]) as u64, ONE + TWO + 5 + 4);
    assert!(!metrics.has("kstrobe_listed_total", &[("hook", "syscall:setsid:enter")]), "what never was is not zero");
}

#[test]
#[ignore = "needs root"]
fn root_an_argument_is_found_where_each_call_has_it() {
    let text = "probe: names\nsummary: S.\nat: syscall:[chdir, openat]:enter\nwhere: comm == \"kst-names\"\nmetrics:\n  \
                names_total: { type: counter, labels: { syscall: syscall, name: \"str(args.filename, 32)\" } }\n";
    let agent = agent("names", text);
    load::named("kst-names", || {
        for i in 0..12 {
            // The name is the first argument of the one, and the second of the other.
            let refused = match i % 3 {
                0 => std::env::set_current_dir("/kst-no-folder").is_err(),
                _ => std::fs::File::open("/kst-no-file").is_err(),
            };
            assert!(refused);
        }
    });
    let metrics = agent.scrape();
    let count = |syscall, name| metrics.sum("kstrobe_names_total", &[("syscall", syscall), ("name", name)]) as u64;
    assert_eq!((count("chdir", "/kst-no-folder"), count("openat", "/kst-no-file")), (4, 8));
    assert_eq!((count("chdir", "/kst-no-file"), count("openat", "/kst-no-folder")), (0, 0));
}

#[test]
#[ignore = "needs root"]
fn root_texts_that_are_shown_alike_are_one_series() {
    let text = "probe: groups\nsummary: S.\nat: syscall:getpgid:enter\nwhere: starts_with(comm, \"kst-g\")\nmetrics:\n  \
                groups_total:\n    type: counter\n    labels:\n      \
                group: 'map(comm, \"kst-g-one\" => \"first\", glob(\"kst-g-*\") => \"rest\")'\n      \
                pid: hex(u8(args.pid))\n";
    let agent = agent("groups", text);
    for (comm, calls) in [("kst-g-one", 7), ("kst-g-two", 5), ("kst-g-three", 3), ("kst-gone", 2)] {
        load::named(comm, || load::getpgid_calls(0x1f, calls));
    }
    let metrics = agent.scrape();
    let count = |group| metrics.sum("kstrobe_groups_total", &[("group", group), ("pid", "0x1f")]) as u64;
    assert_eq!(["first", "rest", "kst-gone"].map(count), [7, 8, 2]);
    let series = metrics.series("kstrobe_groups_total", &[]).count();
    assert_eq!(series, 3, "two names that read the same are one series");
}

#[test]
#[ignore = "needs root"]
fn root_calls_that_overlap_are_paired_by_thread_and_not_by_order() {
    let text = "probe: naps\nsummary: S.\nspan: { start: \"syscall:clock_nanosleep:enter\", end: \"syscall:clock_nanosleep:exit\" }\n\
                where: starts_with(comm, \"kst-nap-\")\nmetrics:\n  \
                naps_seconds:\n    type: histogram\n    value: elapsed\n    labels: { comm: comm }\n    \
                buckets: { classic: [0.1] }\n";
    let agent = agent("naps", text);
    let naps = |comm: &'static str, milliseconds, count| {
        move || load::named(comm, || (0..count).for_each(|_| std::thread::sleep(Duration::from_millis(milliseconds))))
    };
    // Nearly every short one begins and ends within a long one of the other thread.
    std::thread::scope(|scope| {
        scope.spawn(naps("kst-nap-long", 200, 5));
        scope.spawn(naps("kst-nap-short", 10, 90));
    });
    let metrics = agent.scrape();
    let of = |comm| metrics.histogram("kstrobe_naps_seconds", &[("comm", comm)]);
    let (long, short) = (of("kst-nap-long"), of("kst-nap-short"));
    assert_eq!((long.count, short.count), (5.0, 90.0));
    assert_eq!(long.at_most(0.1), 0.0, "an end of the other thread ends none of these");
    assert!(long.mean() >= 0.2 && short.mean() < 0.1, "{} {}", long.mean(), short.mean());
}

#[test]
#[ignore = "needs root"]
fn root_old_and_new_values_of_an_event_are_not_swapped() {
    let text = "probe: changes\nsummary: S.\nat: tracepoint:sock:inet_sock_set_state\nwhere: comm == \"kst-states\"\nmetrics:\n  \
                changes_total:\n    type: counter\n    \
                labels: { old: tcp_state(args.oldstate), new: tcp_state(args.newstate) }\n";
    let agent = agent("changes", text);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    load::named("kst-states", || (0..9).for_each(|_| drop(std::net::TcpStream::connect(address).unwrap())));
    let metrics = agent.scrape();
    let count = |old, new| metrics.sum("kstrobe_changes_total", &[("old", old), ("new", new)]) as u64;
    assert_eq!((count("close", "syn_sent"), count("syn_sent", "close")), (9, 0));
    assert_eq!((count("syn_sent", "established"), count("established", "syn_sent")), (9, 0));
}

#[test]
#[ignore = "needs root"]
fn root_cookies_of_sockets_are_those_of_ss() {
    let text = "probe: cookies\nsummary: S.\nat: syscall:getpeername:enter\nwhere: comm == \"kst-cookies\"\nmetrics:\n  \
                cookies_total: { type: counter, labels: { cookie: socket_cookie(fd_sock(args.fd)) } }\n";
    let agent = agent("cookies", text);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect("127.0.0.1:9").unwrap();
    let ask = || {
        std::thread::scope(|scope| {
            let named = std::thread::Builder::new().name("kst-cookies".into());
            named.spawn_scoped(scope, || assert!(socket.peer_addr().is_ok())).unwrap();
        });
    };
    ask();
    let port = format!(":{}", socket.local_addr().unwrap().port());
    let shown = std::process::Command::new("ss").args(["-Huane", "sport", "=", &port]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let cookie = shown.split_whitespace().find_map(|word| word.strip_prefix("sk:")).expect("ss shows a cookie");
    let cookie = u64::from_str_radix(cookie, 16).unwrap();
    ask();
    let metrics = agent.scrape();
    let calls = |cookie: u64| metrics.sum("kstrobe_cookies_total", &[("cookie", &cookie.to_string())]);
    assert_eq!((calls(0), calls(cookie)), (1.0, 1.0), "0 until ss has asked, then its number: {shown}");
}
