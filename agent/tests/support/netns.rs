//! Network namespaces: a pair joined by a cable, removed when the test ends however it ends.

use super::output;
use nix::sched::{CloneFlags, setns};
use std::process::Command;
use std::thread::JoinHandle;

/// A named network namespace with loopback up.
pub struct Netns {
    /// As `ip netns` knows it.
    pub name: String,
}

impl Netns {
    pub fn new(name: &str) -> Netns {
        let netns = Netns { name: format!("kst{}-{name}", std::process::id()) };
        output(Command::new("ip").args(["netns", "add", &netns.name]));
        netns.ip(&["link", "set", "lo", "up"]);
        netns
    }

    /// Two namespaces joined by a veth pair: the first has 10.99.0.1, the second 10.99.0.2.
    pub fn pair() -> (Netns, Netns) {
        let (a, b) = (Netns::new("a"), Netns::new("b"));
        let link = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns"];
        a.ip(&[&link[..], &[&b.name]].concat());
        for (netns, address) in [(&a, "10.99.0.1/24"), (&b, "10.99.0.2/24")] {
            netns.ip(&["address", "add", address, "dev", "eth0"]);
            netns.ip(&["link", "set", "eth0", "up"]);
        }
        (a, b)
    }

    /// Runs `ip` in it.
    #[track_caller]
    pub fn ip(&self, arguments: &[&str]) {
        output(Command::new("ip").args(["-n", &self.name]).args(arguments));
    }

    /// A command that runs in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Drops this share of the TCP packets that arrive, at random.
    pub fn drop_arriving_tcp(&self, percent: u32) {
        let rules = format!(
            "table inet loss {{ chain in {{ type filter hook input priority 0; \
             meta l4proto tcp numgen random mod 100 < {percent} drop; }}; }}\n"
        );
        let folder = super::Folder::new();
        let file = folder.write("rules.nft", &rules);
        output(self.command("nft").arg("-f").arg(file));
    }

    /// Drops this share of what leaves it, at random, by netem; why it cannot, where the kernel has no netem.
    pub fn lose_leaving(&self, percent: u32) -> Result<(), String> {
        self.netem(&["loss", &format!("{percent}%")])
    }

    /// Holds back what leaves it for so many milliseconds, by netem; why it cannot, where the kernel has no netem.
    pub fn delay_leaving(&self, ms: u32) -> Result<(), String> {
        self.netem(&["delay", &format!("{ms}ms")])
    }

    fn netem(&self, what: &[&str]) -> Result<(), String> {
        let qdisc = ["qdisc", "add", "dev", "eth0", "root", "netem"];
        let done = Command::new("tc").args(["-n", &self.name]).args(qdisc).args(what).output().unwrap();
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
    }

    /// A counter of its network stack since it was made, as nstat tells.
    pub fn nstat(&self, counter: &str) -> u64 {
        // -a: absolute, -s: leave no history file, -z: zeroes too.
        let text = output(self.command("nstat").args(["-asz", counter]));
        let line = text.lines().find(|line| line.starts_with(counter));
        let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        value.unwrap_or_else(|| panic!("no {counter} in: {text}"))
    }

    /// Runs `work` in a thread of this name that has entered the namespace.
    pub fn spawn<T: Send + 'static>(&self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        let inside = move || {
            // Only this thread moves: sockets it makes are of the namespace, those of other threads are not.
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(inside).unwrap()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
