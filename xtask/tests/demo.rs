//! The demonstration as a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use kstrobe_testing::{free, http, not_asked_for, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Debian's Prometheus may have to be fetched and unpacked first.
const START_LIMIT: Duration = Duration::from_secs(300);
const END_LIMIT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root"]
fn root_a_demo_that_is_interrupted_leaves_nothing_running() {
    if std::env::var_os("KSTROBE_LAB").is_some() {
        let name = "root_a_demo_that_is_interrupted_leaves_nothing_running";
        return not_asked_for(name, "a guest of the lab has no Prometheus, and what ends with what is the same there");
    }
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug/kstrobe");
    assert!(agent.exists(), "{}: build the agent first, as `cargo test --workspace` does", agent.display());
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let places: [SocketAddr; 2] = [free(), free()];
        // A shell starts what it puts into the background with SIGINT ignored, which a demonstration would inherit.
        let mut demo = Command::new("env");
        demo.args(["--default-signal=INT", env!("CARGO_BIN_EXE_xtask"), "demo", "--keep", "--agent"]).arg(&agent);
        demo.args(["--listen", &places[0].to_string(), "--prometheus", &places[1].to_string()]);
        let mut demo = demo.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let ready = [(places[0], "/healthz"), (places[1], "/-/ready")];
        wait_for("agent and Prometheus", START_LIMIT, || {
            assert!(demo.try_wait().unwrap().is_none(), "the demonstration has ended");
            ready
                .iter()
                .all(|(place, path)| http::get(*place, path).is_some_and(|(status, _)| status == 200))
                .then_some(())
        });
        // To it alone, not to its process group as a terminal does.
        kill(Pid::from_raw(demo.id().cast_signed()), signal).unwrap();
        demo.wait().unwrap();
        wait_for("the end of agent and Prometheus", END_LIMIT, || {
            places.iter().all(|place| TcpStream::connect(place).is_err()).then_some(())
        });
    }
}
