//! `kstrobe print` on a recording of trace-cmd.

mod support;

use flate2::read::GzDecoder;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use support::agent::command;
use support::{Done, done};

/// A folder with the recording, which goes away with it.
struct Recording(PathBuf);

impl Recording {
    fn new(name: &str) -> Recording {
        let folder = std::env::temp_dir().join(format!("kstrobe-print-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ftrace/tests/fixtures/dat/default.dat.gz");
        let mut file = File::create(folder.join("whole.dat")).unwrap();
        io::copy(&mut GzDecoder::new(File::open(packed).unwrap()), &mut file).unwrap();
        Recording(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn print(&self, arguments: &[&str]) -> Done {
        done(command(&["print", &self.file("whole.dat")]).args(arguments))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The events among the lines.
fn events(done: &Done) -> Vec<&str> {
    assert_eq!(done.code, Some(0), "{}", done.err);
    done.out.lines().filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn a_part_prints_as_the_same_events_of_the_whole() {
    let recording = Recording::new("part");
    let chosen = ["-e", "sched_switch", "-f", "prev_state == 0 || next_comm ~ \"rcu*\""];
    let whole = recording.print(&chosen);
    let lines = events(&whole);
    assert!(lines.len() > 3 && lines.iter().all(|line| line.contains("sched_switch: ")), "{}", whole.out);
    let part = recording.file("part.dat");
    let written = recording.print(&[&chosen[..], &["-o", &part]].concat());
    assert_eq!(written.code, Some(0), "{}", written.err);
    assert!(written.err.contains(&format!("part.dat: {} of 37 events", lines.len())), "{}", written.err);
    assert_eq!(events(&done(&mut command(&["print", &part]))), lines);
}

#[test]
fn a_printed_time_chooses_its_event() {
    let recording = Recording::new("time");
    let all = recording.print(&["--no-flags"]);
    let times: Vec<&str> = events(&all).iter().map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    let time = times[times.len() / 2].trim_end_matches(':');
    let one = recording.print(&["--from", time, "--to", time]);
    let lines = events(&one);
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(time)), "{time}: {}", one.out);
    let first = recording.print(&["--to", "100us", "--delta"]);
    let first = events(&first);
    assert!(first[0].contains("(+0.000000)") && first.len() < times.len(), "{first:?}");
}

#[test]
fn what_chooses_nothing_is_named() {
    let recording = Recording::new("wrong");
    for (arguments, message) in [
        (&["-f", "prev_stat != 0"][..], "has a field `prev_stat`\n  prev_stat != 0\n  ^\n"),
        (&["-f", "prev_state = 0"], "expected ==, !=, <, <=, >, >=, & or ~\n  prev_state = 0\n             ^\n"),
        (&["-e", "sched_swich"], "no event of this recording is named `sched_swich`"),
        (&["--comm", "nobody-here"], "no event of 37 fits"),
        (&["--from", "soon"], "not a time"),
    ] {
        let said = recording.print(arguments);
        assert_ne!(said.code, Some(0), "{arguments:?}");
        assert!(said.out.is_empty() && said.err.contains(message), "{arguments:?}: {}", said.err);
    }
    let text = done(&mut command(&["print", "Cargo.toml"]));
    assert!(text.code == Some(1) && text.err.contains("Cargo.toml"), "{}", text.err);
}
