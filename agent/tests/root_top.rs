//! `kstrobe top`, `watch` and `events` beside an agent as it is shipped: in a terminal of tmux, and as text and JSON that agree with the API.

mod support;

use serde_json::Value;
use std::net::SocketAddr;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::ssh::FarLogin;
use support::tmux::Tmux;
use support::{Done, done, load, wait_for};

const LIMIT: Duration = Duration::from_secs(20);
/// Calls of `getppid` a millisecond.
const CALLS: u32 = 20;

/// Does some work beside a load of system calls.
fn beside<T>(work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                load::getppid_calls(CALLS);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What a command of kstrobe prints that asks this agent.
fn kstrobe(address: SocketAddr, arguments: &[&str]) -> Done {
    let url = format!("http://{address}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kstrobe"));
    done(command.args(arguments).args(["--url", &url]).stdin(Stdio::null()))
}

#[track_caller]
fn text(done: Done) -> String {
    assert_eq!(done.code, Some(0), "{}", done.err);
    done.out
}

/// Whether a line of a heat map or a strip is there.
fn has_shades(screen: &str) -> bool {
    screen.contains(['░', '▒', '▓'])
}

#[test]
#[ignore = "needs root"]
fn root_top_shows_metrics_in_a_terminal() {
    if support::lab().is_some() {
        return support::not_asked_for("root_top_shows_metrics_in_a_terminal", "the guests have no tmux");
    }
    let agent = Agent::shipped();
    let top = format!("{} top --url http://{}", env!("CARGO_BIN_EXE_kstrobe"), agent.address());
    beside(|| {
        let plain = Tmux::start("plain", &["NO_COLOR=1"], &top);
        let first = plain.until("all metrics", |screen| {
            screen.contains("syscall_duration_seconds") && screen.contains("/s") && screen.contains("LAST MINUTE")
        });
        assert!(first.starts_with("kstrobe  ") && first.contains("CPU") && first.contains("cost"), "{first}");
        assert!(first.lines().all(|line| line.chars().count() <= 80), "{first}");
        plain.press(&["/", "syscall_dur", "Enter"]);
        plain.until("the filter", |screen| !screen.contains("softirq") && screen.contains("filter: syscall_dur"));
        plain.press(&["Enter"]);
        let metric = plain.until("a heat map", |screen| has_shades(screen) && screen.contains("getppid"));
        assert!(metric.contains("SYSCALL") && metric.contains("p99"), "{metric}");
        plain.ask(&["resize-window", "-x", "120", "-y", "40"]);
        let wide = plain.until("a wider heat map", |screen| {
            has_shades(screen) && screen.lines().any(|line| line.chars().count() > 100) && screen.contains("getppid")
        });
        assert!(wide.lines().count() <= 40, "{wide}");
        plain.press(&["["]);
        plain.until("an older time", |screen| screen.contains("until "));
        plain.press(&["]", "e"]);
        plain.until("events", |screen| screen.contains("no slow events of syscalls"));
        assert!(!plain.ask(&["capture-pane", "-p", "-e"]).contains("\u{1b}[38;"), "NO_COLOR");
        plain.press(&["?"]);
        plain.until("help", |screen| screen.contains("slow events") && screen.contains("quit"));
        plain.press(&["x", "q"]);
        plain.until("the end", |screen| screen.contains("ended"));

        let coloured = Tmux::start("full", &["COLORTERM=truecolor"], &top);
        coloured.until("all metrics", |screen| screen.contains("syscall_duration_seconds"));
        coloured.press(&["/", "syscall_dur", "Enter", "Enter"]);
        coloured.until("a heat map of half blocks", |screen| screen.contains(['▀', '▄']) && screen.contains("getppid"));
        let cells = coloured.ask(&["capture-pane", "-p", "-e"]);
        assert!(cells.contains("\u{1b}[38;2;") || cells.contains("38;2;"), "{cells:?}");
    });
}

#[test]
#[ignore = "needs root"]
fn root_top_follows_keys_over_a_slow_ssh() {
    /// Of each way: the round trip is that between continents.
    const DELAY: Duration = Duration::from_millis(150);
    /// A screen of 80x24 drawn anew has about 2,000 characters; each second brings the cells that changed, not the screen.
    const MAX_BYTES_PER_SECOND: u64 = 2000;
    if support::lab().is_some() {
        return support::not_asked_for("root_top_follows_keys_over_a_slow_ssh", "the guests have no tmux");
    }
    let agent = Agent::shipped();
    let far = FarLogin::with_delay(DELAY);
    let top = format!("NO_COLOR=1 {} top --url http://{}", env!("CARGO_BIN_EXE_kstrobe"), agent.address());
    beside(|| {
        let terminal = Tmux::start("far", &[], &far.command(&top));
        terminal.until("all metrics", |screen| screen.contains("syscall_duration_seconds") && screen.contains("/s"));
        let (begin, before) = (std::time::Instant::now(), far.received_bytes());
        std::thread::sleep(Duration::from_secs(5));
        let per_second = (far.received_bytes() - before) as f64 / begin.elapsed().as_secs_f64();
        println!("{per_second:.0} bytes a second of the list");
        assert!(per_second > 0.0 && per_second < MAX_BYTES_PER_SECOND as f64, "{per_second}");
        // All of it before the first answer is back.
        terminal.press(&["/", "syscall_dur", "Enter", "Enter"]);
        terminal.until("a heat map", |screen| has_shades(screen) && screen.contains("getppid"));
        terminal.press(&["?"]);
        terminal.until("help", |screen| screen.contains("Figures are of the last"));
        // A lone escape is no beginning of an arrow, which comes as three bytes.
        terminal.press(&["Escape"]);
        terminal.until("the metric", |screen| !screen.contains("Figures are") && screen.contains("getppid"));
        terminal.press(&["Down", "Up", "Escape"]);
        terminal.until("the list", |screen| screen.contains("filter: syscall_dur") && screen.contains("LAST MINUTE"));
        terminal.ask(&["resize-window", "-x", "120", "-y", "40"]);
        terminal.until("a wider list", |screen| screen.lines().any(|line| line.chars().count() > 100));
        terminal.press(&["q"]);
        terminal.until("the end", |screen| screen.contains("ended") && !screen.contains("LAST MINUTE"));
    });
}

#[test]
#[ignore = "needs root"]
fn root_printed_figures_are_those_of_the_api() {
    const METRIC: &str = "syscall_duration_seconds";
    let agent = Agent::shipped();
    beside(|| {
        wait_for("the metric", LIMIT, || agent.json_once_there(&format!("/api/v1/query?metric={METRIC}")));
        let lines = text(kstrobe(agent.address(), &["watch", METRIC, "-n", "3", "-m", "syscall=\"getppid\""]));
        let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["TIME", "RATE", "P50", "P99", "MAX", "TOTAL"], "{lines}");
        let second = |row: &Vec<&str>| row[0].rsplit(':').next().unwrap().parse::<u32>().unwrap();
        let seconds: Vec<u32> = rows[1..].iter().map(second).collect();
        assert_eq!(seconds, [seconds[0], (seconds[0] + 1) % 60, (seconds[0] + 2) % 60], "{lines}");
        assert!(rows[1..].iter().all(|row| row[1].ends_with("/s") && row[3].ends_with('s')), "{lines}");

        let once = text(kstrobe(agent.address(), &["top", "--once"]));
        let names = ["syscall_duration_seconds", "softirq_duration_seconds", "tcp_retransmits_total"];
        assert!(once.starts_with("kstrobe  ") && names.iter().all(|name| once.contains(&name[..18])), "{once}");

        // A column of a terminal of 80 is five seconds.
        wait_for("two columns", LIMIT, || {
            let history: Value = serde_json::from_str(&agent.get("/api/v1/history")?.1).ok()?;
            (history["newest"].as_u64()? >= history["oldest"].as_u64()? + 11).then_some(())
        });
        let json: Value =
            serde_json::from_str(&text(kstrobe(agent.address(), &["top", METRIC, "-o", "json"]))).unwrap();
        let answer = &json["query"];
        let number = |name: &str| answer[name].as_u64().unwrap();
        let (from, to, step) = (number("from"), number("to"), number("step"));
        let whole = agent.get(&format!("/api/v1/query?metric={METRIC}&from={from}&to={to}&step={step}")).unwrap().1;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        let groups = answer["groups"].as_array().unwrap();
        assert!(groups.len() > 1 && answer["left_out"] == 0, "{answer}");
        // The last column may have gained seconds since.
        let columns = usize::try_from((to - from) / step).unwrap() - 1;
        let count = |group: &Value, column: usize| -> u64 {
            group["heat"][column].as_array().unwrap().chunks(2).map(|pair| pair[1].as_u64().unwrap()).sum()
        };
        let of_groups: Vec<u64> = (0..columns).map(|at| groups.iter().map(|group| count(group, at)).sum()).collect();
        let of_whole: Vec<u64> = (0..columns).map(|at| count(&whole["groups"][0], at)).collect();
        assert_eq!(of_groups, of_whole);
        assert!(of_whole.iter().sum::<u64>() > u64::from(CALLS));
        assert_eq!(json["node"]["cpus"].as_u64(), std::thread::available_parallelism().ok().map(|n| n.get() as u64));
    });
    let wrong = kstrobe(agent.address(), &["watch", "no_such_metric"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("no_such_metric") && wrong.err.contains("hint:"), "{}", wrong.err);
    let address = agent.address();
    agent.stop();
    let none = kstrobe(address, &["top"]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("no agent answers") && none.err.contains("kstrobe run"), "{}", none.err);
}

/// Measures itself, for the rest of the time of a test.
fn own(arguments: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kstrobe"));
    done(command.args(["top", "--only", "syscalls"]).args(arguments).stdin(Stdio::null()))
}

#[test]
#[ignore = "needs root"]
fn root_top_without_an_agent_runs_probes_itself() {
    beside(|| {
        let json: Value = serde_json::from_str(&text(own(&["syscall_duration_seconds", "-o", "json"]))).unwrap();
        let names: Vec<&str> = json["probes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["syscalls"]);
        let groups = json["query"]["groups"].as_array().unwrap();
        let of = |group: &&Value| group["labels"]["syscall"] == "getppid";
        let calls = groups.iter().find(of).expect("the load's call")["total"]["count"].as_f64().unwrap();
        assert!(calls >= f64::from(CALLS) * 100.0, "{calls} of some {} a second", CALLS * 1000);
        let once = text(own(&["--once"]));
        assert!(once.contains("own probes") && once.contains("syscall_duration_sec"), "{once}");
        if support::lab().is_none() {
            let top = format!("{} top --only syscalls", env!("CARGO_BIN_EXE_kstrobe"));
            let tmux = Tmux::start("own", &["NO_COLOR=1"], &top);
            tmux.until("its own metrics", |screen| screen.contains("own probes") && screen.contains("/s"));
            tmux.press(&["q"]);
            tmux.until("the end", |screen| screen.contains("ended"));
        }
    });
    let wrong = own(&["no_such_metric", "--once"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("no metric `no_such_metric`"), "{}", wrong.err);
}

#[test]
#[ignore = "needs root"]
fn root_events_prints_each_slow_event() {
    const SLOW: &str = "
probe: slow_receives
summary: Receives of this test that take longer than 20 ms.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit', where: comm == \"kst-slow\" }
metrics:
  receives_seconds: { type: histogram, value: elapsed }
slow: { when: elapsed > 20ms, max_per_second: 1000, fields: { comm: comm, took: elapsed } }
";
    let agent = Setup { probes: &[("slow", SLOW)], ..Setup::default() }.start();
    load::named("kst-slow", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        (0..5).for_each(|_| assert!(socket.recv(&mut [0]).is_err(), "no packet comes here"));
    });
    let path = "/api/v1/events?limit=5&probe=slow_receives";
    let events = wait_for("five events", LIMIT, || {
        let document: Value = serde_json::from_str(&agent.get(path)?.1).ok()?;
        Some(document["events"].as_array()?.clone()).filter(|events| events.len() == 5)
    });
    let lines = text(kstrobe(agent.address(), &["events", "slow_receives", "-n", "5", "-o", "json"]));
    let printed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed, events);
    let columns = text(kstrobe(agent.address(), &["events", "slow_receives", "-n", "2"]));
    assert_eq!(columns.lines().count(), 3, "{columns}");
    for (line, event) in columns.lines().skip(1).zip(&events[3..]) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(event["time"].as_str().unwrap().contains(words[0]), "{line} {event}");
        assert_eq!(words[1..4], ["slow_receives", &event["pid"].to_string(), "kst-slow"]);
    }
}
