//! `cargo xtask vm`: the tests against the kernel, inside other kernels.
//!
//! Debian's kernels are fetched, never installed. Each boots in QEMU from an archive in memory that holds the test binaries
//! built here, and ends when they have; nothing is left but the cache in `target/vm`.

mod binaries;
mod boot;
mod docs;
mod guest;
mod image;
mod kernel;
mod needs;
mod system;

use crate::arch::Arch;
use crate::programs;
use anyhow::{Result, anyhow, bail};
use binaries::Binaries;
use clap::{Args, ValueEnum};
use image::Image;
use kernel::Release;
use kstrobe_testing::COLLECTOR;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use system::System;

/// Tests of the short set: whether everything loads, attaches and counts.
const SHORT: &[&str] = &[
    "root_detect_describes_this_kernel",
    "root_raw_and_btf_tracepoints_count_this_process",
    "root_abilities_without_btf_say_so",
    "root_default_probes_have_data_within_ten_seconds",
    "root_every_shipped_probe_attaches_or_says_why",
    "root_a_bad_probe_is_skipped_and_the_others_run",
    "root_functions_are_counted_alike_in_every_way",
    "root_retransmits_under_netem_loss_agree_with_snmp",
];

/// Settings of tests that guests get as they are here.
const PASSED_ON: [&str; 3] = ["KSTROBE_GENERATED", "KSTROBE_GENERATED_SEED", "KSTROBE_CHANGES"];

/// What to run where.
#[derive(Args)]
pub struct Options {
    /// Kernel; may be given several times [default: all]
    #[arg(long, value_enum)]
    kernel: Vec<Release>,
    /// Architecture of the kernels and of what is built for them; an emulated processor unless it is this machine's
    #[arg(long, value_enum, default_value_t = Arch::Amd64)]
    arch: Arch,
    /// Seconds that one kernel may take
    #[arg(long, default_value_t = 3600)]
    timeout: u64,
    /// Emulate a guest's CPUs in turn, which is slower: for loads that run much code of BPF while it is patched, which guests whose CPUs
    /// are emulated in parallel die of
    #[arg(long)]
    in_turn: bool,
    /// Which tests
    #[arg(long, value_enum, default_value_t = Set::Full)]
    set: Set,
    /// Fetch the newest kernels of Debian again, rather than take those that were fetched before
    #[arg(long)]
    renew: bool,
    /// Run no tests: ask every kernel what it can do and write docs/kernels.md
    #[arg(long, conflicts_with_all = ["kernel", "arch", "set", "tests"])]
    write_docs: bool,
    /// Run no tests but `cargo xtask bench --only hooks`: kinds of hooks that the host may lack
    #[arg(long, conflicts_with_all = ["set", "tests", "write_docs"])]
    bench: bool,
    /// Names of tests, or parts of them; those of the set when there are none
    #[arg(last = true)]
    tests: Vec<String>,
}

impl Options {
    fn guest(&self) -> boot::Settings {
        boot::Settings { limit: Duration::from_secs(self.timeout), in_turn: self.in_turn }
    }
}

/// A choice of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Set {
    /// A minute or two: whether everything loads, attaches and counts
    Short,
    /// All that need root
    Full,
}

/// What the lab keeps between runs.
fn cache(root: &Path) -> PathBuf {
    root.join("target/vm")
}

/// Runs what was asked for.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    provide(root, options.arch).map_err(|why| anyhow!(why))?;
    if options.renew {
        wanted(options).iter().try_for_each(|release| kernel::renew(&cache(root), options.arch, *release))?;
    }
    if options.write_docs {
        return write_docs(root, options.guest());
    }
    if options.bench {
        return bench(root, options);
    }
    run_tests(root, options).map(drop)
}

/// Measures the hooks in each kernel. Ratios are of an emulated processor's, which is slow at other things than a real one.
fn bench(root: &Path, options: &Options) -> Result<()> {
    let agent = crate::bench::build_agent(root)?;
    let xtask = std::env::current_exe()?;
    let script = format!(
        "cd '{}' && '{}' bench --only hooks --rounds 3 --calls 20000 --agent '{}'\n",
        root.display(),
        xtask.display(),
        agent.display()
    );
    let binaries = Binaries { tests: vec![xtask], agent };
    for release in wanted(options) {
        let ended = guest(root, (options.arch, *release), &binaries, &script, options.guest())?;
        if ended.status != 0 {
            bail!("the benchmark failed on kernel {} (status {})", release.name(), ended.status);
        }
    }
    Ok(())
}

fn wanted(options: &Options) -> &[Release] {
    if options.kernel.is_empty() { &Release::ALL } else { &options.kernel }
}

/// Runs tests in each kernel in turn; says which were not run there, and why.
fn run_tests(root: &Path, options: &Options) -> Result<Vec<String>> {
    let releases = wanted(options);
    let tests: Vec<String> = match options.set {
        _ if !options.tests.is_empty() => options.tests.clone(),
        Set::Short => SHORT.iter().map(|name| (*name).to_owned()).collect(),
        Set::Full => vec!["root_".to_owned()],
    };
    let binaries = binaries::build(root, options.arch, &tests)?;
    let settings = options.guest();
    let (mut failed, mut not_run) = (Vec::new(), Vec::new());
    for release in releases {
        let begin = Instant::now();
        let outcome = run_in(root, (options.arch, *release), &binaries, &tests, settings);
        let name = release.on(options.arch);
        println!("== kernel {name}: {:.1} s", begin.elapsed().as_secs_f64());
        match outcome {
            Ok(lines) => not_run.extend(lines.into_iter().map(|line| format!("{name}: {line}"))),
            Err(error) => {
                println!("kernel {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    for line in &not_run {
        println!("not run: {line}");
    }
    if failed.is_empty() { Ok(not_run) } else { bail!("failed on kernel {}", failed.join(", ")) }
}

/// Why no lab is wanted, or can be, on this machine.
pub fn absent() -> Option<String> {
    if std::env::var_os("KSTROBE_SKIP_VM").is_some_and(|value| value == "1") {
        return Some("KSTROBE_SKIP_VM=1".into());
    }
    foreign()
}

/// Why tests that were built here cannot run there.
fn foreign() -> Option<String> {
    (!cfg!(target_arch = "x86_64")).then(|| "the lab's kernels are for x86-64".into())
}

/// Gets what the lab needs, its kernels too; the error is why there is no lab here.
pub fn prepare(root: &Path) -> Result<(), String> {
    provide(root, Arch::Amd64)?;
    for release in Release::ALL {
        kernel::fetch(&cache(root), Arch::Amd64, release).map_err(|error| format!("{error:#}"))?;
    }
    Ok(())
}

/// Gets what the lab runs, and what guests take from this machine as far as it can be had.
fn provide(root: &Path, arch: Arch) -> Result<(), String> {
    foreign().map_or(Ok(()), Err)?;
    needs::provide(&cache(root), arch)?;
    if arch != Arch::here() {
        return System::of(arch, &cache(root)).map(drop).map_err(|error| format!("{error:#}"));
    }
    let needs = guest::needs(root).map_err(|error| format!("{error:#}"))?;
    let programs = [needs.programs, needs.binaries].concat();
    if programs::cannot_install().is_none()
        && let Err(error) = programs::install_these(&programs)
    {
        println!("{error:#}");
    }
    let missing: Vec<_> = programs.into_iter().filter(|name| programs::find(name).is_none()).collect();
    if !missing.is_empty() {
        println!("guests go without {}: not installed here", missing.join(", "));
    }
    Ok(())
}

/// The short set in every kernel, for a test of a change; says which tests were not run there, and why.
pub fn short(root: &Path) -> Result<Vec<String>> {
    run_tests(
        root,
        &Options {
            kernel: vec![],
            arch: Arch::Amd64,
            timeout: 600,
            in_turn: false,
            set: Set::Short,
            renew: false,
            write_docs: false,
            bench: false,
            tests: vec![],
        },
    )
}

fn write_docs(root: &Path, settings: boot::Settings) -> Result<()> {
    let mut all = Vec::new();
    let mut shipped = Vec::new();
    for arch in [Arch::Amd64, Arch::Arm64] {
        provide(root, arch).map_err(|why| anyhow!(why))?;
        let binaries = binaries::build(root, arch, &[])?;
        if arch == Arch::here() {
            shipped = docs::shipped(&binaries.agent)?;
        }
        for release in Release::ALL {
            let name = release.on(arch);
            let ended = guest(root, (arch, release), &binaries, &docs::script(&binaries, &shipped), settings)?;
            if ended.status != 0 {
                bail!("the agent does not answer on kernel {name}");
            }
            let version = kernel::fetch(&cache(root), arch, release)?.version;
            all.push(docs::answers(&name, &version, &ended)?);
        }
    }
    fs::write(root.join("docs/kernels.md"), docs::page(&all, &shipped)?)?;
    Ok(())
}

fn run_in(
    root: &Path,
    machine: (Arch, Release),
    binaries: &Binaries,
    tests: &[String],
    settings: boot::Settings,
) -> Result<Vec<String>> {
    let ended = guest(root, machine, binaries, &script(root, machine, binaries, tests), settings)?;
    if ended.status != 0 {
        bail!("tests failed (status {})", ended.status);
    }
    let lists = ended.files.iter().filter(|(name, _)| name == "not-run");
    Ok(lists.flat_map(|(_, bytes)| lines(bytes)).collect())
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// Boots a kernel of the lab with the project's binaries and runs a script of shell.
fn guest(
    root: &Path,
    (arch, release): (Arch, Release),
    binaries: &Binaries,
    script: &str,
    settings: boot::Settings,
) -> Result<boot::Ended> {
    let cache = cache(root);
    let name = release.on(arch);
    let kernel = kernel::fetch(&cache, arch, release)?;
    let work = cache.join("run").join(&name);
    fs::create_dir_all(&work)?;
    println!("\n== kernel {name} ({})", kernel.version);
    let system = System::of(arch, &cache)?;
    let mut image = Image::new(&system)?;
    let needs = guest::needs(root)?;
    image.modules(&kernel, &needs.modules, &work)?;
    for program in &needs.programs {
        // Tests whose witnesses are not there name themselves.
        if let Some(path) = system.find(program) {
            image.program(&path, &format!("/usr/sbin/{program}"))?;
        }
    }
    for name in &needs.binaries {
        if let Some(path) = system.find(name) {
            image.put_at(&path, &format!("/usr/sbin/{name}"))?;
        }
    }
    for binary in binaries.tests.iter().chain([&binaries.agent]) {
        image.stripped(binary)?;
    }
    // No package has it: guests carry it where it would be tested with here.
    if let Some(program) = collector().filter(|_| arch == Arch::here()) {
        image.program(&program, &program.to_string_lossy())?;
    }
    // What tests read, where it was when they were built.
    for file in &needs.files {
        image.put(&root.join(file))?;
    }
    image.directory(&root.join("agent").to_string_lossy());
    image.write("/command", script.as_bytes().to_vec(), 0o644);
    boot::boot(&kernel, &image.archive(), &work, settings)
}

/// The OpenTelemetry Collector that tests are given.
fn collector() -> Option<PathBuf> {
    std::env::var_os(COLLECTOR).map(PathBuf::from)
}

/// Runs each test binary as cargo would; the status is that of the last that failed.
fn script(root: &Path, (arch, release): (Arch, Release), binaries: &Binaries, tests: &[String]) -> String {
    let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let filters: Vec<String> = tests.iter().map(|name| quote(name)).collect();
    let mut script = format!(
        "cd {} || exit 1\n\
         export KSTROBE_NOT_RUN_FILE=/out/not-run KSTROBE_LAB={release} {emulated} RUST_BACKTRACE=0\n\
         export KSTROBE_SPARE_DISK={disk} KSTROBE_SPARE_DISK_IOPS={iops}\n\
         status=0\n",
        quote(&root.join("agent").to_string_lossy()),
        disk = boot::SPARE_DISK,
        iops = boot::SPARE_DISK_IOPS,
        release = release.on(arch),
        emulated = if boot::emulates(arch) { "KSTROBE_EMULATED=1" } else { "" },
    );
    if let Some(program) = collector().filter(|_| arch == Arch::here()) {
        script += &format!("export {COLLECTOR}={}\n", quote(&program.to_string_lossy()));
    }
    for name in PASSED_ON {
        if let Ok(value) = std::env::var(name) {
            script += &format!("export {name}={}\n", quote(&value));
        }
    }
    for binary in &binaries.tests {
        let binary = quote(&binary.to_string_lossy());
        script += &format!("{binary} --ignored --test-threads=1 {} || status=$?\n", filters.join(" "));
    }
    script + "exit $status\n"
}
