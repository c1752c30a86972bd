//! `cargo xtask side-by-side`: classic tools and `kstrobe` under their names, at the same time beside the same load.

use crate::programs::development_agent;
use anyhow::{Context, Error, Result, anyhow, ensure};
use nix::unistd::geteuid;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// Options of the comparison.
#[derive(clap::Args)]
pub struct Options {
    /// The agent; without it the development build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Write docs/side-by-side.md
    #[arg(long)]
    write_docs: bool,
}

const PAGE: &str = "docs/side-by-side.md";
/// For how long both tools run.
const SECONDS: u32 = 12;
/// Until both are attached.
const BEFORE_THE_LOAD: Duration = Duration::from_secs(5);
/// Lines that are shown of a longer text: the first, and the last.
const MAX_LINES: (usize, usize) = (14, 18);

/// A tool, and a load that it sees, in a shell.
struct Tool {
    /// Of the script of bpftrace, and of what `kstrobe` answers to.
    name: &'static str,
    /// Further words for `kstrobe NAME`.
    words: &'static [&'static str],
    load: &'static str,
    /// Lines that belong to the load; all if empty. Others use the machine too.
    of_the_load: &'static str,
    /// What explains a difference.
    note: &'static str,
}

impl Tool {
    /// As its distribution installs it.
    fn original(&self) -> String {
        format!("bpftrace /usr/sbin/{}.bt", self.name)
    }
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "execsnoop",
        words: &[],
        load: "for i in 1 2 3 4; do expr $i + $i >/dev/null; done",
        of_the_load: "expr",
        note: "",
    },
    Tool {
        name: "opensnoop",
        words: &["--comm", "head"],
        load: "for i in 1 2 3; do head -c1 /etc/hostname >/dev/null; head -c1 /nonexistent 2>/dev/null; done",
        of_the_load: "head",
        note: "",
    },
    Tool {
        name: "statsnoop",
        words: &["--comm", "stat"],
        load: "for i in 1 2 3; do stat /nonexistent 2>/dev/null; done",
        of_the_load: "stat",
        note: "",
    },
    Tool {
        name: "syscount",
        words: &[],
        load: "dd if=/dev/zero of=/dev/null bs=1 count=200000 2>/dev/null",
        of_the_load: "",
        note: "",
    },
    Tool {
        name: "killsnoop",
        words: &[],
        load: "sleep 30 & p=$!; for i in 1 2 3; do kill -URG $p; done; kill $p",
        of_the_load: "",
        note: "",
    },
    Tool {
        name: "setuids",
        words: &[],
        load: "for i in 1 2 3; do setpriv --reuid 65534 true; done",
        of_the_load: "setpriv",
        note: "",
    },
    Tool {
        name: "naptime",
        words: &["--comm", "sleep"],
        load: "sleep 0.1; sleep 0.2; sleep 0.3",
        of_the_load: "sleep",
        note: "The original sees nanosleep(2), which sleep(1) does not call any more.",
    },
    Tool {
        name: "bitesize",
        words: &["--comm", "dd"],
        load: "dd if=/dev/zero of=target/side-by-side bs=64k count=40 oflag=direct 2>/dev/null; rm target/side-by-side",
        of_the_load: "",
        note: "",
    },
    Tool {
        name: "cpuwalk",
        words: &["--comm", "sh"],
        load: "for i in 1 2; do timeout 4 sh -c 'while :; do :; done' & done; wait",
        of_the_load: "",
        note: "",
    },
    Tool {
        name: "syncsnoop",
        words: &[],
        load: "echo 1 >target/side-by-side; sync target/side-by-side; sync; sync; rm target/side-by-side",
        of_the_load: "sync",
        note: "",
    },
    Tool {
        name: "pidpersec",
        words: &["-i", "1s"],
        load: "for i in 1 2 3; do for j in 1 2 3 4 5; do true | true; done; sleep 1; done",
        of_the_load: "",
        note: "",
    },
    Tool {
        name: "gethostlatency",
        words: &["--comm", "getent"],
        load: "for i in 1 2 3; do getent ahosts localhost >/dev/null; done",
        of_the_load: "getent",
        note: "",
    },
    Tool {
        name: "threadsnoop",
        words: &["--comm", "xz"],
        load: "head -c 3000000 /dev/urandom | xz -0 -T 2 --block-size=500000 >/dev/null",
        of_the_load: "xz",
        note: "The original looks for pthread_create in libpthread, which has been in libc since glibc 2.34.",
    },
    Tool {
        name: "writeback",
        words: &[],
        load: "dd if=/dev/zero of=target/side-by-side bs=1M count=64 2>/dev/null; sync target/side-by-side; sync; rm target/side-by-side",
        of_the_load: "",
        note: "",
    },
];

/// Runs all, prints what each pair said.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(geteuid().is_root(), "probes run as root");
    let agent = development_agent(root, options.agent.as_deref())?;
    let mut page = String::from(
        "<!-- Made by `cargo xtask side-by-side --write-docs`; do not edit. -->\n\n# Classic tools, side by side\n\n\
         Each tool as its distribution ships it, and `kstrobe` under the same name, at the same time beside the same load. Where others use\n\
         the machine too, only the load's lines of the original are shown, and of both none of programs that ran before. What both have to say\n\
         is the same; kstrobe draws sums and distributions, and adds a line for each event where a probe has records.\n",
    );
    for tool in TOOLS {
        let (original, ours) = beside(root, &agent, tool).with_context(|| tool.name)?;
        let note = if tool.note.is_empty() { String::new() } else { format!("\n{}\n", tool.note) };
        let words: String = tool.words.iter().map(|word| format!(" {word}")).collect();
        let _ = write!(
            page,
            "\n## {}\n\nLoad: `{}`\n{note}\n```console\n# {}\n{original}```\n\n```console\n# kstrobe {}{words} -d {SECONDS}s\n{ours}```\n",
            tool.name,
            tool.load,
            tool.original(),
            tool.name
        );
    }
    println!("{page}");
    if options.write_docs {
        std::fs::write(root.join(PAGE), page)?;
    }
    Ok(())
}

/// Both tools' output.
fn beside(root: &Path, agent: &Path, tool: &Tool) -> Result<(String, String)> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        let mounted = format!("mount -t tracefs none /sys/kernel/tracing 2>/dev/null; {script}");
        command.current_dir(root).args(["--mount", "sh", "-c", &mounted]).stdin(Stdio::null());
        command
    };
    let others = others()?;
    let mut original = shell(&format!("exec timeout -s INT {SECONDS} {}", tool.original()));
    let original = thread::spawn(move || original.output());
    let mut ours = Command::new(agent);
    ours.current_dir(root).arg(tool.name).args(tool.words).args(["-d", &format!("{SECONDS}s")]);
    let ours = thread::spawn(move || ours.output());
    thread::sleep(BEFORE_THE_LOAD);
    // The load of some is refused on purpose.
    Command::new("sh").current_dir(root).args(["-c", tool.load]).status()?;
    let text = |thread: thread::JoinHandle<std::io::Result<Output>>| {
        let output = thread.join().map_err(|_| anyhow!("the thread of a tool panicked"))??;
        Ok::<_, Error>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    Ok((shown(&text(original)?, tool.of_the_load, &others), shown(&text(ours)?, "", &others)))
}

/// Names of programs that run already, without those that a load may use as well.
fn others() -> Result<Vec<String>> {
    const ANYWHERE: [&str; 4] = ["sh", "bash", "sleep", "timeout"];
    let mut names = Vec::new();
    for process in procfs::process::all_processes()?.flatten() {
        // Threads of the kernel have no command line.
        let is_program = process.cmdline().is_ok_and(|line| !line.is_empty());
        names.extend(process.stat().ok().filter(|_| is_program).map(|stat| stat.comm));
    }
    names.retain(|name| !ANYWHERE.contains(&name.as_str()) && !name.starts_with("xtask"));
    Ok(names)
}

/// The first lines, without blank ones and those of other programs; of a long text with a mark that more followed.
fn shown(text: &str, part: &str, others: &[String]) -> String {
    let is_shown = |line: &&str| !line.is_empty() && !others.iter().any(|other| line.contains(other.as_str()));
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(is_shown).collect();
    // A heading is above what belongs to the load.
    let wanted: Vec<&str> = lines
        .iter()
        .copied()
        .enumerate()
        .filter(|(at, line)| *at < 2 || line.contains(part))
        .map(|(_, line)| line)
        .collect();
    let (first, last) = MAX_LINES;
    let left_out = wanted.len().saturating_sub(first + last);
    let mut shown = String::new();
    for (at, line) in wanted.iter().enumerate() {
        match at {
            _ if left_out == 0 || at < first || at >= first + left_out => _ = writeln!(shown, "{line}"),
            _ if at == first => _ = writeln!(shown, "... {left_out} more lines ..."),
            _ => {}
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_others_are_left_out() {
        let text = "Attaching\nPID COMM\n\n1 head\n2 other\n3 head  \n4 daemon head\n";
        let shown_of_load = shown(text, "head", &["daemon".to_owned()]);
        assert_eq!(shown_of_load, "Attaching\nPID COMM\n1 head\n3 head\n");
        let long = shown(&"x\n".repeat(40), "", &[]);
        assert_eq!(long, format!("{}... 8 more lines ...\n{}", "x\n".repeat(14), "x\n".repeat(18)));
    }
}
