//! A machine with far more to do than it can, and the agent as it is shipped: nothing of its configuration is changed.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use support::agent::{Agent, DEFAULT_PACKS};
use support::metrics::Metrics;
use support::{http, load, wait_for};

/// Threads that want a CPU all the time, of which some call the kernel all the time: a load of 40, whatever the machine.
const BUSY: usize = 30;
const CALLING: usize = 10;
/// Requests that wait in `recvfrom`, in a thread of this name.
const ASKS: u32 = 300;
const ASKER: &str = "kst-asker";
/// Scrapes while it goes on, each with the limit that Prometheus has when nothing is said.
const SCRAPES: usize = 10;
const TIMEOUT: (&str, &str) = ("X-Prometheus-Scrape-Timeout-Seconds", "10");

/// Does some work beside the load.
fn beside<T>(work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let started = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let run = |step: fn()| {
            let (over, started) = (&over, &started);
            scope.spawn(move || {
                started.fetch_add(1, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| step());
                }
            });
        };
        (0..BUSY).for_each(|_| run(std::hint::spin_loop));
        (0..CALLING).for_each(|_| run(|| load::getppid_calls(1)));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let all = (BUSY + CALLING) as u32;
            wait_for("the load", Duration::from_secs(60), || (started.load(Ordering::Relaxed) == all).then_some(()));
            work()
        }));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn scrape(agent: &Agent) -> Metrics {
    let answer = http::ask(agent.address(), "GET", "/metrics", &[TIMEOUT], "").expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    Metrics::parse(answer.text())
}

#[test]
#[ignore = "needs root"]
fn root_the_shipped_agent_answers_and_ends_under_a_load_of_40() {
    let agent = Agent::shipped();
    let before = scrape(&agent);
    for pack in DEFAULT_PACKS {
        assert!(before.has("kstrobe_probe_attached", &[("probe", pack)]), "{pack} is not among the defaults");
    }
    beside(|| {
        let (server, answering) = load::delayed_echo(Duration::ZERO);
        load::ask(server, ASKS, ASKER);
        answering.join().unwrap();
        for _ in 0..SCRAPES {
            let metrics = scrape(&agent);
            assert!(metrics.has("kstrobe_scrape_age_seconds", &[]), "each answer says how old it is");
            for (labels, attached) in metrics.series("kstrobe_probe_attached", &[]) {
                let over = labels["reason"].contains("over its budget");
                assert!(
                    attached == 1.0
                        || over
                        || before.sum("kstrobe_probe_attached", &[("probe", &labels["probe"])]) == 0.0,
                    "{labels:?}"
                );
            }
        }
        // Every request is counted, or a metric shows that the probe was throttled or lost events.
        let metrics = wait_for("a fresh answer", Duration::from_secs(120), || {
            let metrics = scrape(&agent);
            (metrics.sum("kstrobe_scrape_age_seconds", &[]) == 0.0).then_some(metrics)
        });
        let counted = metrics.sum("kstrobe_recv_wait_seconds_count", &[("comm", ASKER)]);
        let throttled = metrics.sum("kstrobe_probe_throttled_total", &[("probe", "recvfrom")]);
        let lost = metrics.sum("kstrobe_lost_total", &[("probe", "recvfrom")]);
        assert!(counted == f64::from(ASKS) || throttled + lost > 0.0, "{counted} of {ASKS}, and nothing says why");
        // Its end comes while the load goes on.
        agent.stop();
    });
}
