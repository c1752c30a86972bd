//! An agent that nothing reads on a quiet machine rests, and misses nothing for it.

mod support;

use nix::sys::signal::{Signal, raise};
use std::net::TcpListener;
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::{load, now, wait_for};

const COMM: &str = "kst-rest";
/// An agent may rest 90 s after the last read.
const LIMIT: Duration = Duration::from_secs(240);

/// Few events occur at this hook but for those of the test.
const SIGNALS: &str = "probe: rest_signals\nsummary: Signals.\nat: rawtracepoint:signal_generate\n\
     where: comm == \"kst-rest\"\nmetrics:\n  rest_signals_total: { type: counter }\n";
const PORTS: &str = "probe: rest_ports\nsummary: Listeners.\npoll: { source: tcp_listen, every: 5s }\nmetrics:\n  \
     rest_limit: { type: gauge, value: args.limit, labels: { port: args.port } }\n";

/// How often the thread that reads for the history has waited so far.
fn waits(agent: &Agent) -> u64 {
    agent.waits("history")
}

/// Waits until no second is read any more, without reading anything of the agent.
fn wait_for_rest(agent: &Agent) {
    wait_for("the agent's rest", LIMIT, || {
        let before = waits(agent);
        std::thread::sleep(Duration::from_secs(4));
        (waits(agent) == before).then_some(())
    });
}

#[test]
#[ignore = "needs root"]
fn root_an_agent_at_rest_misses_no_event() {
    let probes = [("signals", SIGNALS), ("ports", PORTS)];
    let agent = Setup { probes: &probes, budget: true, ..Setup::default() }.start();
    let begun = now() as u64;
    wait_for_rest(&agent);
    assert!(now() as u64 - begun >= 85, "it rested too soon after a read");

    let before = waits(&agent);
    load::named(COMM, || {
        for _ in 0..2_000 {
            (0..20).for_each(|_| raise(Signal::SIGWINCH).unwrap());
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    wait_for("the end of the rest after the events", Duration::from_secs(10), || {
        (waits(&agent) > before + 1).then_some(())
    });
    wait_for_rest(&agent);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_rest_signals_total", &[]), 40_000.0);
    assert!(metrics.sum("kstrobe_rest_limit", &[("port", &port)]) > 0.0, "a poll is no older than its interval");

    let read = now() as u64;
    let history = agent.json("/api/v1/history");
    let [oldest, newest] = ["oldest", "newest"].map(|key| history[key].as_u64().unwrap());
    assert!(newest + 1 >= read, "the seconds of the rest are there: {history}, read at {read}");
    let kept = agent.scrape().sum("kstrobe_history_kept_seconds", &[]) as u64;
    assert!(
        (newest - oldest..newest - oldest + 3).contains(&kept),
        "{kept} seconds, neither missing nor twice: {history}"
    );
    assert_eq!(history["lost_seconds"], 0, "seconds of a rest are not lost: {history}");
    let path = format!("/api/v1/query?metric=rest_signals_total&from={}&to={}&step=1", begun - 1, read + 1);
    let counted = agent.json(&path);
    assert_eq!(counted["groups"][0]["total"]["count"], 40_000.0, "{counted}");
    agent.stop();
}
