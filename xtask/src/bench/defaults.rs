//! Probes that share a hook, and the default set under the loads of a user: what each adds to an operation, beside
//! hand-written programs and bpftrace, all attached in turn in the same run.

use super::agent::{self, Settings};
use super::hand_written::{self, Counts, Hooks, Pair};
use super::load::Take;
use super::variants::Setup;
use super::{in_turn, load, table};
use anyhow::{Context, Result};
use aya::Btf;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Probes at one hook.
const AT_ONE_HOOK: [usize; 4] = [1, 2, 4, 8];

/// What is attached while a load runs.
struct Row {
    name: String,
    setup: Setup,
}

/// A load: its name, what one operation is called, operations a round as a share of what is asked for, and how it runs.
struct Load {
    name: &'static str,
    share: u32,
    run: fn(usize, u32) -> Result<f64>,
}

const GETPPID: Load = Load { name: "`getppid`: only `syscalls` wants it", share: 1, run: load::fastest_call_ns };
const LOADS: [Load; 4] = [
    GETPPID,
    Load { name: "`recvfrom` with nothing to read: two probes want it", share: 1, run: load::fastest_empty_receive_ns },
    Load { name: "round trip by pipes", share: 10, run: load::fastest_pipe_round_trip_ns },
    Load { name: "round trip by TCP on loopback", share: 10, run: load::fastest_tcp_round_trip_ns },
];

type RoundTrip = fn(usize, Take) -> Result<f64>;
/// Loads that are measured once more when budgets have acted.
const SETTLED: [(&str, RoundTrip); 2] =
    [("Round trip by pipes", load::pipe_round_trip_ns), ("Round trip by TCP on loopback", load::tcp_round_trip_ns)];
/// Rounds of these, each of which takes half a minute.
const SETTLED_ROUNDS: usize = 3;

/// What all measurements share.
pub struct Bench<'a> {
    /// C programs and scripts.
    pub sources: &'a Path,
    /// What is made of them.
    pub build: &'a Path,
    pub agent: &'a Path,
    /// CPU of the loads.
    pub cpu: usize,
    pub rounds: usize,
    pub calls: u32,
}

impl Bench<'_> {
    /// Measures all and returns the report.
    pub fn run(&self) -> Result<String> {
        let btf = Btf::from_sys_fs().context("reading the kernel's BTF")?;
        hand_written::write_headers(self.build)?;
        let pairs = |file: &str, counts, n: usize| -> Result<Setup> {
            let object = hand_written::compile(&self.sources.join(file), self.build)?;
            let loaded = (0..n).map(|_| Pair::load(&object, Hooks::Btf, counts, &btf));
            Ok(Setup::Pairs(loaded.collect::<Result<_>>()?))
        };
        let row = |name: &str, setup| Row { name: name.to_owned(), setup };
        let mut sharing = vec![
            row("nothing attached", Setup::Nothing),
            row("empty tp_btf pair (the floor)", pairs("empty.bpf.c", Counts::None, 1)?),
        ];
        for n in AT_ONE_HOOK {
            sharing.push(row(
                &format!("{n} hand-written C, a histogram each"),
                pairs("same_shape.bpf.c", Counts::Records, n)?,
            ));
            sharing.push(row(&format!("{n} probes, a histogram each"), self.probes("wide", "*", n)?));
            sharing.push(row(&format!("{n} probes of a call that is not made"), self.probes("narrow", "umask", n)?));
        }
        let mut defaults = vec![
            row("nothing attached", Setup::Nothing),
            row("empty tp_btf pair", pairs("empty.bpf.c", Counts::None, 1)?),
            row("`syscalls` alone", self.agent(agent::only(self.build, "syscalls", None)?)),
            row("`recvfrom` alone", self.agent(agent::only(self.build, "recvfrom", None)?)),
            row("default set", Setup::Agent { settings: self.settings(None), metric: None }),
            row("all shipped probes", self.agent(agent::all_shipped(self.build)?)),
            row("bpftrace, what the default set measures", Setup::Bpftrace(self.sources.join("defaults.bt"))),
        ];
        let mut text = "### Probes that share a hook\n".to_owned();
        text += &self.table(&mut sharing, &GETPPID)?;
        text += "\n### Default set\n";
        for load in &LOADS {
            text += &self.table(&mut defaults, load)?;
        }
        text += "\n### Default set on its budget\n";
        text += &self.settled(&mut [
            row("nothing attached", Setup::Nothing),
            row("default set", Setup::Agent { settings: self.settings(None), metric: None }),
        ])?;
        Ok(text)
    }

    /// Measures rows after so long a load that their budgets have acted.
    fn settled(&self, rows: &mut [Row]) -> Result<String> {
        let mut text = String::new();
        for (name, run) in SETTLED {
            let label = format!("{name}, settled");
            let least = least(rows, &label, SETTLED_ROUNDS, || run(self.cpu, Take::Settled))?;
            let cells = rows.iter().zip(&least).map(|(row, ns)| {
                let added = ns - least[0];
                let percent = added / least[0] * 100.0;
                vec![row.name.clone(), format!("{added:.0}"), format!("{percent:.1}"), format!("{ns:.0}")]
            });
            write!(
                text,
                "\n{name}; one CPU, {SETTLED_ROUNDS} interleaved rounds of {} s, of which the first {} are for budgets to act; the lowest \
                 of the rounds' medians.\n\n",
                (load::SETTLING + load::MEASURED).as_secs(),
                load::SETTLING.as_secs()
            )?;
            text += &table::markdown(&["attached", "added, ns", "added, %", "operation, ns"], cells);
        }
        Ok(text)
    }

    fn settings(&self, config: Option<PathBuf>) -> Settings {
        Settings { binary: self.agent.to_owned(), config }
    }

    fn agent(&self, config: PathBuf) -> Setup {
        Setup::Agent { settings: self.settings(Some(config)), metric: None }
    }

    /// An agent that runs `n` probes of these system calls and nothing else.
    fn probes(&self, name: &str, calls: &str, n: usize) -> Result<Setup> {
        let mut text = String::new();
        let names: Vec<String> = (0..n).map(|i| format!("bench_{name}{i}")).collect();
        for probe in &names {
            write!(
                text,
                "---\nprobe: {probe}\nsummary: Time in system calls.\nspan: {{ start: \"syscall:{calls}:enter\", end: \
                 \"syscall:{calls}:exit\" }}\nmetrics:\n  {probe}_seconds:\n    type: histogram\n    value: elapsed\n    \
                 labels: {{ syscall: syscall }}\n"
            )?;
        }
        Ok(self.agent(agent::these(self.build, &format!("{name}{n}"), &text, &names)?))
    }

    /// Measures all rows under one load.
    fn table(&self, rows: &mut Vec<Row>, load: &Load) -> Result<String> {
        let operations = (self.calls / load.share).max(load::CHUNK / load.share);
        let mut absent = String::new();
        rows.retain_mut(|row| {
            let reason = row.setup.refusal();
            if let Some(reason) = &reason {
                absent += &format!("\nNot run: {} ({reason})\n", row.name);
            }
            reason.is_none()
        });
        let fastest = least(rows, load.name, self.rounds, || (load.run)(self.cpu, operations))?;
        let (bare, floor) = (fastest[0], fastest[1] - fastest[0]);
        let cells = rows.iter().zip(&fastest).map(|(row, ns)| {
            let added = ns - bare;
            vec![
                row.name.clone(),
                if floor > 0.0 { format!("{:.2}x", added / floor) } else { "-".to_owned() },
                format!("{added:.0}"),
                format!("{:.1}", added / bare * 100.0),
                format!("{ns:.0}"),
            ]
        });
        let mut text = format!(
            "\n{}; one CPU, {operations} a round, {} interleaved rounds, the fastest piece of all rounds counts.\n\n",
            load.name, self.rounds
        );
        text += &table::markdown(&["attached", "added / empty pair", "added, ns", "added, %", "operation, ns"], cells);
        Ok(text + &absent)
    }
}

/// The least that a load takes in all rounds, with what each row attaches.
fn least(rows: &mut [Row], load: &str, rounds: usize, mut run: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let mut least = vec![f64::INFINITY; rows.len()];
    for round in 0..rounds {
        eprintln!("{load}: round {} of {rounds}", round + 1);
        for i in in_turn(round, rows.len()) {
            let attached = rows[i].setup.attach()?;
            // Attaching patches kernel code and wakes every CPU; let that pass.
            std::thread::sleep(Duration::from_millis(20));
            least[i] = least[i].min(run()?);
            rows[i].setup.detach(attached)?;
        }
    }
    Ok(least)
}
