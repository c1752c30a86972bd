//! `cargo xtask fuzz`: gives the parsers of `ftrace` random bytes, guided by what of the code they reach.
//!
//! Stable Rust is enough: LLVM's counters are asked for by name, and libFuzzer comes as a crate of its own workspace, `fuzz`. It needs a
//! C++ compiler, which nothing else of the project does.

mod corpus;

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a case.
const CASE_BYTES: usize = 64 << 10;
/// Seconds that a case may take. The slowest honest ones take a hundredth of that.
const CASE_SECONDS: u32 = 5;
/// Of the fuzzer, in MiB.
const MEMORY_MB: u32 = 512;
/// What `cargo fuzz build --sanitizer none` asks for.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// What is fuzzed: each a file in `fuzz/targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// Texts of `format` and `header_page` files, and print formats
    Format,
    /// Pages of the ring buffer
    Page,
    /// trace.dat files
    Dat,
    /// Texts of the function_graph tracer
    Text,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Format => "format",
            Target::Page => "page",
            Target::Dat => "dat",
            Target::Text => "text",
        }
    }
}

/// What `cargo xtask fuzz` is asked.
#[derive(clap::Args)]
pub struct Options {
    /// What to fuzz; everything, one after the other, when there is none
    targets: Vec<Target>,
    /// How long each of them runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Afterwards write the fewest cases that reach as much to fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Run this one case instead, e.g. one that failed
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    case: Option<PathBuf>,
}

/// Builds and runs fuzzers; fails when one of them finds something.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let all = [Target::Format, Target::Page, Target::Dat, Target::Text];
    let targets = if options.targets.is_empty() { &all[..] } else { &options.targets };
    let folder = build(root, targets)?;
    let mut found = Vec::new();
    for target in targets.iter().map(|target| target.name()) {
        let fuzzer = Fuzzer {
            root,
            target,
            program: folder.join(target),
            work: root.join("tests/fuzz/target/work").join(target),
        };
        let clean = match &options.case {
            Some(case) => fuzzer.case(case)?,
            None => fuzzer.run(options)?,
        };
        if !clean {
            found.push(target);
        }
    }
    if !found.is_empty() {
        bail!("not clean: {}", found.join(", "));
    }
    Ok(())
}

/// Builds fuzzers and returns the folder that they are in.
fn build(root: &Path, targets: &[Target]) -> Result<PathBuf> {
    // Asked for by name, so that programs that run while building are not counted.
    let version = Command::new("rustc").arg("-vV").output().context("starting rustc")?;
    let version = String::from_utf8_lossy(&version.stdout);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release", "--locked", "--target", host]);
    cargo.args(targets.iter().flat_map(|target| ["--bin", target.name()]));
    cargo.current_dir(root.join("tests/fuzz")).env("RUSTFLAGS", COVERAGE);
    // Cargo sets these for what it runs; they belong to the other workspace.
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    let status = cargo.status().context("starting cargo")?;
    ensure!(status.success(), "building the fuzzers ended with {status}; libFuzzer needs a C++ compiler (g++)");
    Ok(root.join("tests/fuzz/target").join(host).join("release"))
}

/// A fuzzer that was built.
struct Fuzzer<'a> {
    root: &'a Path,
    target: &'static str,
    program: PathBuf,
    /// Its folder: `cases`, what it found in `found`, its output in `log`.
    work: PathBuf,
}

impl Fuzzer<'_> {
    /// Fuzzes; whether nothing was found.
    fn run(&self, options: &Options) -> Result<bool> {
        let target = self.target;
        let (cases, found, log) = (self.work.join("cases"), self.work.join("found"), self.work.join("log"));
        empty(&cases)?;
        fs::create_dir_all(&found)?;
        corpus::unpack(self.root, target, &cases)?;
        let mut command = self.command();
        command
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-artifact_prefix={}/", found.display()));
        let words = self.root.join(format!("tests/fuzz/words/{target}"));
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        command.args(["-print_final_stats=1", "-use_value_profile=0"]).arg(&cases);
        let clean = logged(&mut command, &log)?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map_or("?", str::trim);
        println!(
            "{target}: {} cases in {} s, {} new paths, {} a second, {} MiB at most; log: {}",
            number("stat::number_of_executed_units:"),
            options.seconds,
            number("stat::new_units_added:"),
            number("stat::average_exec_per_sec:"),
            number("stat::peak_rss_mb:"),
            log.display(),
        );
        if !clean {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].iter().for_each(|line| println!("    {line}"));
            println!("{target}: FOUND something; again with: cargo xtask fuzz {target} --case FILE");
        } else if options.keep {
            self.keep(&cases)?;
        }
        Ok(clean)
    }

    /// Keeps the fewest cases of a folder that reach as much as all.
    fn keep(&self, cases: &Path) -> Result<()> {
        let fewest = self.work.join("fewest");
        empty(&fewest)?;
        let mut command = self.command();
        command.arg("-merge=1").arg(&fewest).arg(cases);
        ensure!(logged(&mut command, &self.work.join("merge.log"))?, "{}: merging the cases failed", self.target);
        corpus::pack(self.root, self.target, &fewest)
    }

    /// Runs one case; whether it is clean.
    fn case(&self, case: &Path) -> Result<bool> {
        let status =
            self.command().arg(case).status().with_context(|| format!("starting {}", self.program.display()))?;
        Ok(status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(format!("-timeout={CASE_SECONDS}")).arg(format!("-rss_limit_mb={MEMORY_MB}"));
        command.arg(format!("-max_len={CASE_BYTES}"));
        command
    }
}

/// Runs a command with its output in a file; whether it ended well.
fn logged(command: &mut Command, log: &Path) -> Result<bool> {
    let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    command.stdout(file.try_clone()?).stderr(file);
    Ok(command.status().with_context(|| format!("starting {:?}", command.get_program()))?.success())
}

/// Makes a folder that has nothing in it.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}
