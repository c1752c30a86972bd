//! Mistakes of scripts that pair lines of a trace or read fields by their place, beside what a probe says of the same load.

mod support;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use support::agent::Setup;
use support::{load, wait_for};

#[test]
#[ignore = "needs root"]
fn root_calls_that_end_in_another_order_are_paired_by_thread() {
    let agent = Setup { arguments: &["--only", "sleeps"], ..Setup::default() }.start();
    let (long, short) = (Duration::from_millis(600), Duration::from_millis(20));
    // Each short one begins and ends within the long one: the first end in the trace is not that of the first begin.
    std::thread::scope(|scope| {
        scope.spawn(|| load::named("kst-long", || std::thread::sleep(long)));
        std::thread::sleep(short);
        (0..5).for_each(|_| load::named("kst-short", || std::thread::sleep(short)));
    });
    let metrics = agent.scrape();
    let of = |comm| metrics.histogram("kstrobe_sleep_duration_seconds", &[("comm", comm)]);
    let (long_ones, short_ones) = (of("kst-long"), of("kst-short"));
    assert_eq!((long_ones.count, short_ones.count), (1.0, 5.0));
    assert!(long_ones.mean() >= long.as_secs_f64(), "{} s", long_ones.mean());
    assert!((short.as_secs_f64()..long.as_secs_f64()).contains(&short_ones.mean()), "{} s", short_ones.mean());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_old_and_new_state_are_not_swapped() {
    let agent = Setup { arguments: &["--only", "tcp_states"], ..Setup::default() }.start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        drop((TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap()));
    }
    let of = |state, next| {
        let metrics = agent.scrape();
        metrics.sum("kstrobe_tcp_state_duration_seconds_count", &[("state", state), ("next", next)])
    };
    wait_for("connections", Duration::from_secs(10), || (of("syn_sent", "established") >= 3.0).then_some(()));
    assert_eq!(of("established", "syn_sent"), 0.0);
    agent.stop();
}
