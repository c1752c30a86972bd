//! The agent's page in a real browser: the default probes, one with slow events, and a load.

mod support;

use kstrobe_testing::browser::Browser;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::agent::{Agent, DEFAULT_PACKS, Setup};
use support::api::{Home, TOKEN};
use support::load::Asking;

const METRIC: &str = "recv_wait_seconds";
const COMM: &str = "kst-page";
/// Records of receives that last longer than the load's.
const SLOW: &str = "
probe: slow_receives
summary: Receives, and a record of each that takes longer than 3 ms.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit' }
metrics: { receives_seconds: { type: histogram, value: elapsed } }
slow: { when: elapsed > 3ms, max_per_second: 1, fields: { comm: comm, took: elapsed } }
";
/// From opening the page to the first heat map.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// How many pixels of the card's heat map are neither the ground nor grid: cells and lines have colours.
const COLOURED: &str = "
    const canvas = document.querySelector('canvas[data-metric=recv_wait_seconds]');
    if (!canvas || !canvas.width) return null;
    const { data } = canvas.getContext('2d').getImageData(46, 0, canvas.width - 46, canvas.height);
    let coloured = 0;
    for (let i = 0; i < data.length; i += 4) {
      const [r, g, b, a] = data.subarray(i, i + 4);
      if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 40) coloured++;
    }
    return coloured > 20 && coloured;";
/// The whole picture as text, to see whether it moves.
const PICTURE: &str = "return document.querySelector('canvas[data-metric=recv_wait_seconds]').toDataURL()";

fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pictures")
}

/// The script of axe-core, fetched once from the npm registry.
fn axe() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/axe");
    let script = folder.join("axe.min.js");
    if !script.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let package = "https://registry.npmjs.org/axe-core/-/axe-core-4.10.3.tgz";
        let line = format!("curl -sSfL {package} | tar -xz --strip-components=1 package/axe.min.js");
        assert!(Command::new("sh").args(["-c", &line]).current_dir(&folder).status().unwrap().success(), "{line}");
    }
    std::fs::read_to_string(script).unwrap()
}

/// Serious and critical findings of axe-core, each with the elements.
fn findings(browser: &Browser, axe: &str) -> Vec<String> {
    browser.run(&format!("{axe}; window.axe = axe;"));
    let found = browser.run_to_end("const done = arguments[0]; axe.run().then((result) => done(result.violations))");
    let serious =
        found.as_array().unwrap().iter().filter(|one| one["impact"] == "serious" || one["impact"] == "critical");
    serious.map(|one| format!("{} {}: {}", one["impact"], one["id"], one["nodes"][0]["html"])).collect()
}

/// What may be wrong with any view: it is wider than the window, or hard to use for some.
fn check_view(browser: &Browser, axe: &str, name: &str) {
    for (width, height, colours) in [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")]
    {
        browser.look(width, height, colours);
        // The pictures are drawn anew for the new width.
        std::thread::sleep(Duration::from_millis(300));
        browser.picture(&pictures().join(format!("{name}-{width}-{colours}.png")));
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{name} at {width} is {wide} wide");
        // Once for each set of colours, and for each width.
        if (width > 1000) == (colours == "light") {
            assert_eq!(findings(browser, axe), Vec::<String>::new(), "{name} at {width}, {colours}");
        }
    }
    browser.look(1280, 800, "light");
}

/// The value that the page shows for a figure of the selection.
fn shown(browser: &Browser, name: &str) -> f64 {
    let script = format!("return document.querySelector('#selection .{name} data').value");
    browser.run(&script).as_str().unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs root"]
fn root_the_page_shows_heat_maps_and_the_figures_of_a_brush() {
    let axe = axe();
    let agent: Agent =
        Setup { packs: &DEFAULT_PACKS, probes: &[("slow_receives", SLOW)], budget: true, ..Setup::default() }.start();
    let load = Asking::start(Duration::from_millis(4), COMM);
    let root = format!("http://{}/", agent.address());
    std::thread::sleep(Duration::from_secs(3));
    let browser = Browser::start();
    browser.look(1280, 800, "light");

    // The overview: not blank, soon, and it moves.
    let opened = Instant::now();
    browser.open(&root);
    let coloured = browser.wait("a heat map", COLOURED);
    let took = opened.elapsed();
    println!("{coloured} coloured pixels after {} ms", took.as_millis());
    assert!(took < MAX_WAIT || support::emulated(), "{took:?}");
    let before = browser.run(PICTURE);
    support::wait_for("a heat map that moves", Duration::from_secs(10), || {
        (browser.run(PICTURE) != before).then_some(())
    });
    std::thread::sleep(Duration::from_secs(5));
    check_view(&browser, &axe, "overview");

    // To the metric, and a brush over a part of it.
    browser.click(&format!("a[href='#/metric/{METRIC}']"));
    browser.wait("the choice of a range", "return document.querySelector('.tools button')");
    browser.click(".tools button");
    browser.wait("the last minute", "return location.hash.includes('range=60')");
    browser.wait("the metric's figures", "return document.querySelector('#selection data')?.value");
    check_view(&browser, &axe, "metric");
    browser.drag(".touch", 0.8, 0.95);
    let span = browser.wait("a selection", "return /select=(\\d+)\\.\\.(\\d+)/.exec(location.hash)?.slice(1)");
    let [from, to] = [0, 1].map(|i| span[i].as_str().unwrap().to_owned());
    browser.wait(
        "its figures",
        &format!("const d = document.querySelector('#selection').dataset; return d.from == {from} && d.to == {to}"),
    );
    let path = format!("/api/v1/query?metric={METRIC}&from={from}&to={to}&step=1");
    let (status, answer) = agent.get(&path).unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let total = &answer["groups"][0]["total"];
    assert!(total["count"].as_f64().unwrap() > 100.0, "{answer}");
    for name in ["p50", "p90", "p99", "max"] {
        assert_eq!(shown(&browser, name), total[name].as_f64().unwrap(), "{name} from {from} to {to}");
    }
    let ours = browser
        .wait("the program's row", &format!("return document.querySelector('[data-group={COMM}]')?.textContent"));
    println!("{from} to {to}: {total}, {ours}");
    check_view(&browser, &axe, "selection");

    // A mark leads to its event.
    browser.click(".mark.event");
    let event = browser.wait("an event", "return document.querySelector('#event, main table.text td')?.textContent");
    println!("the mark's event: {event}");
    check_view(&browser, &axe, "event");

    for view in ["events", "stacks", "captures", "probes"] {
        browser.run(&format!("location.hash = '#/{view}'"));
        browser.wait(view, "return document.querySelector('main .card, main .notice')");
        check_view(&browser, &axe, view);
    }
    // An agent without captures says so by 403, which the browser notes.
    let complaints = browser.complaints().into_iter().filter(|line| !line.contains("/api/v1/captures"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<String>::new());
    let foreign = browser.requests().into_iter().filter(|url| !url.starts_with(&root) && !url.starts_with("data:"));
    assert_eq!(foreign.collect::<Vec<_>>(), Vec::<String>::new());
    load.end();
    agent.stop();
}

/// The prefix of a proxy in front.
const PREFIX: &str = "/nodes/n1";
/// How many pixels of the timeline have the colours of states and calls.
const DRAWN: &str = "
    const canvas = document.querySelector('#timeline canvas');
    if (!canvas || !canvas.width) return null;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let coloured = 0;
    for (let i = 0; i < data.length; i += 4) {
      const [r, g, b, a] = data.subarray(i, i + 4);
      if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 30) coloured++;
    }
    return coloured > 200 && coloured;";

#[test]
#[ignore = "needs root"]
fn root_a_click_leads_from_a_slow_bucket_to_the_timeline() {
    let axe = axe();
    let home = Home::new();
    let (dir, token_file) = (home.captures(), home.token_file());
    let config = format!("captures: {{ dir: {}, token_file: {} }}\n", dir.display(), token_file.display());
    let probes = [("slow_receives", SLOW)];
    let agent = Setup { packs: &DEFAULT_PACKS, probes: &probes, config: &config, budget: true, ..Setup::default() };
    let agent = agent.start();
    let load = Asking::start(Duration::from_millis(4), COMM);
    let root = format!("http://{}{PREFIX}/", support::proxy::below(PREFIX, agent.address()));
    let browser = Browser::start();
    browser.look(1280, 800, "light");

    // The page asks for the token, and has it until the tab is closed.
    browser.open(&root);
    browser.wait("a field for the token", "return document.querySelector('main input[type=password]')");
    browser.run(&format!(
        "const field = document.querySelector('main input[type=password]'); field.value = '{TOKEN}'; field.form.requestSubmit()"
    ));
    browser.wait("a heat map", COLOURED);
    std::thread::sleep(Duration::from_secs(5));

    // From the metric's bucket to an event, and from there to a capture of what it was.
    browser.click(&format!("a[href='#/metric/{METRIC}']"));
    browser.wait("the metric's figures", "return document.querySelector('#selection data')?.value");
    browser.drag(".touch", 0.9, 0.98);
    browser.wait("a selection", "return location.hash.includes('select=')");
    browser.wait("an event's mark", "return document.querySelector('.mark.event')");
    browser.click(".mark.event");
    browser.wait("an event", "return document.querySelector('#event, main table.text td a')");
    browser.run("document.querySelector('main table.text td a')?.click()");
    browser.wait("the event itself", "return document.querySelector('#event')");
    browser.click("#event a.button.main");
    let events = browser.wait("a form", "return document.querySelector('form.fields input')?.value");
    assert!(events.as_str().unwrap().contains("sched:sched_switch"), "{events}");
    check_view(&browser, &axe, "form");
    browser.run(&format!(
        "const [events, comm, pod, seconds] = document.querySelectorAll('form.fields label > input');
         events.value = 'sched:sched_switch sched:sched_waking raw_syscalls:sys_enter raw_syscalls:sys_exit';
         comm.value = '{COMM}'; seconds.value = '2s'; comm.form.requestSubmit()"
    ));
    let id = browser.wait("a capture", "return /captures\\/(\\w+-\\w+)/.exec(location.hash)?.[1]");
    let id = id.as_str().unwrap();
    browser.wait("its progress", "return document.querySelector('#capture progress')");
    let drawn = browser.wait("its timeline", DRAWN);
    browser.wait("its report", "return document.querySelector('#report table')");

    // The table says what the API says of the load's thread: it asks, and sleeps until the answer 4 ms later.
    let timeline = agent.captures("GET", &format!("/{id}/timeline?find={COMM}"), "").json();
    let thread = &timeline["threads"][0];
    // Others came and left unseen, as only this thread was recorded.
    let all = agent.captures("GET", &format!("/{id}/timeline"), "").json();
    let names: Vec<&Value> = all["threads"].as_array().unwrap().iter().map(|thread| &thread["comm"]).collect();
    assert_eq!(names, [COMM], "{}", all["threads"]);
    let ns = |at: usize| thread["times_ns"][at].as_u64().unwrap();
    println!("{drawn} coloured pixels; {} calls, {:?}", thread["calls"].as_array().unwrap().len(), thread["times_ns"]);
    assert!(ns(2) > 1_500_000_000 && ns(0) > 0, "{}", thread["times_ns"]);
    let recvfrom = timeline["calls"].as_array().unwrap().iter().position(|name| name == "recvfrom").unwrap();
    let calls = thread["calls"].as_array().unwrap();
    let receives = calls.iter().filter(|call| call[2] == recvfrom && call[1].as_u64() > Some(3_900_000)).count();
    assert!((100..520).contains(&receives), "{receives} receives of 4 ms in 2 s");
    let reported = agent.captures("GET", &format!("/{id}/report"), "").json();
    let rows = reported["syscalls"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "recvfrom" && row["max_ns"].as_u64() > Some(3_900_000)), "{rows:?}");

    // Search, keys and the wheel.
    browser.run(&format!(
        "const find = document.querySelector('#timeline input'); find.value = '{COMM}'; find.dispatchEvent(new Event('input'))"
    ));
    let found = format!(
        "const rows = [...document.querySelectorAll('#timeline tbody tr')];
         return rows.length && rows.every((row) => row.textContent.startsWith('{COMM} '))"
    );
    browser.wait("only the threads that were searched for", &found);
    let width = "const [from, to] = /view=(\\d+)\\.\\.(\\d+)/.exec(location.hash)?.slice(1).map(Number) ?? []; return to - from";
    let whole = browser.wait("a view", width).as_f64().unwrap();
    let press = |event: &str| {
        browser.run(&format!(
            "const touch = document.querySelector('#timeline .touch'); touch.focus(); touch.dispatchEvent({event})"
        ));
    };
    for _ in 0..5 {
        press("new KeyboardEvent('keydown', { key: '+' })");
    }
    press("new WheelEvent('wheel', { deltaY: -100, cancelable: true })");
    let narrow = format!("const width = (() => {{ {width} }})(); return width < {} && width", whole / 35.0);
    browser.wait("a closer look", &narrow);
    browser.run(
        "const touch = document.querySelector('#timeline .touch'); const at = touch.getBoundingClientRect();
         touch.dispatchEvent(new PointerEvent('pointermove', { clientX: at.left + at.width / 2, clientY: at.top + 32 }))",
    );
    let said =
        browser.wait("what is there", "return document.querySelector('#timeline .tip:not([hidden])')?.textContent");
    println!("{said}");
    assert!(said.as_str().unwrap().starts_with(COMM), "{said}");
    check_view(&browser, &axe, "timeline");
    press("new KeyboardEvent('keydown', { key: 'Home' })");
    browser.run("document.querySelector('#timeline input').value = ''; document.querySelector('#timeline input').dispatchEvent(new Event('input'))");
    std::thread::sleep(Duration::from_secs(1));
    check_view(&browser, &axe, "timeline-whole");

    // Before it had the token, the page was refused, which the browser notes.
    let complaints = browser.complaints().into_iter().filter(|line| !line.contains("401"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<String>::new());
    let foreign = browser.requests().into_iter().filter(|url| !url.starts_with(&root) && !url.starts_with("data:"));
    assert_eq!(foreign.collect::<Vec<_>>(), Vec::<String>::new());
    load.end();
    agent.stop();
}
