//! `cargo xtask pictures`: the pictures of the README and of the documentation, from a real agent beside the demonstration's load.

mod terminal;

use crate::bench::build_agent;
use crate::demo::{self, load};
use crate::programs;
use anyhow::{Result, bail, ensure};
use kstrobe_testing::browser::Browser;
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terminal::{Terminal, draw};

/// Where they are, from the project's root.
const FOLDER: &str = "docs/pictures";
/// Bytes of all of them together: each clone of the project has them.
const MAX_BYTES: u64 = 600_000;
/// A metric that the load gives all kinds of values.
const METRIC: &str = "recv_wait_seconds";
/// A probe that the agent runs besides those by default, and its sums by call stack.
const PROFILE: (&str, &str) = ("profile_cpu", "cpu_samples");
/// How long the load runs beside the last picture.
const CLOSING: Duration = Duration::from_secs(90);
/// Heat maps stand on the page once they have something to show.
const IS_OVERVIEW: &str = "return document.querySelectorAll('canvas[data-metric]').length > 3";
/// Enlarges the stacks of a program of the load once they are there, of the first that is wide enough to be drawn: the whole has all that
/// runs on the machine.
const ENLARGED: &str = "
    const frames = [...document.querySelectorAll('g.frame')];
    const of = (name) => frames.find((frame) => frame.textContent.startsWith(`${name}: `));
    const one = ['shop-web', 'shop-db', 'true', 'shop-stats', 'shop-cron', 'shop-batch-a'].map(of).find(Boolean);
    one?.dispatchEvent(new MouseEvent('click'));
    return Boolean(one)";
/// The window of the page.
const SIZE: (u32, u32) = (1280, 800);
/// For a page to draw what came.
const DRAWN: Duration = Duration::from_millis(1500);

/// Options of the pictures.
#[derive(clap::Args)]
pub struct Options {
    /// How long the agent measures before the first picture: the page shows five minutes
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
    /// The agent; without it the release build is made and used
    #[arg(long)]
    agent: Option<PathBuf>,
    /// Where the agent listens
    #[arg(long, default_value = "127.0.0.1:9779")]
    listen: String,
}

/// Makes them anew.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(geteuid().is_root(), "the agent needs root here: sudo --preserve-env=PATH cargo xtask pictures");
    programs::install_these(&["chromium", "chromedriver", "tmux"])?;
    let folder = root.join("target/pictures-of-docs");
    fs::create_dir_all(&folder)?;
    let binary = match &options.agent {
        Some(path) => std::path::absolute(path)?,
        None => build_agent(root)?,
    };
    // What users have who start it, with one probe more and a folder for captures.
    let captures = folder.join("captures");
    let configuration = format!("probes: {{ enable: [{}] }}\ncaptures: {{ dir: {} }}\n", PROFILE.0, captures.display());
    let begin = Instant::now();
    let agent = demo::start_agent(&binary, &configuration, &options.listen, &folder)?;
    let measured = Duration::from_secs(options.seconds);
    let url = format!("http://{}", options.listen);
    first_picture(begin, &url);
    println!("the agent measures a small shop for {} s", options.seconds);
    let shop = load::start(&folder.join("files"), measured + CLOSING)?;
    std::thread::sleep(measured);

    let pictures = root.join(FOLDER);
    // None is left that is made no more.
    let _ = fs::remove_dir_all(&pictures);
    // Before the browser, which receives as well.
    let shows = |name: &str, command: &str, word: &str| {
        Terminal::screen(name, &format!("{} {command}", binary.display()), |screen| screen.contains(word))
    };
    let top = shows("top", &format!("top {METRIC} --url {url}"), "shop-")?;
    let tool = shows("runqlat", "runqlat -d 5s", "lost")?;
    let browser = Browser::start();
    page(&browser, &url, &pictures);
    timeline(&browser, &url, &pictures);
    draw(&browser, &top, &folder, &pictures.join("top.webp"))?;
    draw(&browser, &tool, &folder, &pictures.join("runqlat.webp"))?;
    drop(agent);
    println!("the shop answered {} requests", shop.wait()?);
    small_enough(&pictures)
}

/// What one waits for after `kstrobe run`: the README says how long that takes.
fn first_picture(begin: Instant, url: &str) {
    let ready = begin.elapsed();
    let browser = Browser::start();
    let opened = Instant::now();
    browser.open(url);
    browser.wait("a heat map", IS_OVERVIEW);
    let (ready, drawn) = (ready.as_secs_f64(), opened.elapsed().as_secs_f64());
    println!("ready {ready:.1} s after its start, and {drawn:.1} s after the page was opened it has heat maps");
}

/// A capture of two programs of the load, started in the page, and its timeline.
fn timeline(browser: &Browser, url: &str, pictures: &Path) {
    browser.open("about:blank");
    browser.open(&format!("{url}/#/captures"));
    browser.wait("a form", "return document.querySelector('form.fields input')");
    browser.run(
        "const [events, comm, pod, seconds] = document.querySelectorAll('form.fields label > input');
         events.value = 'sched:sched_switch sched:sched_waking raw_syscalls:sys_enter raw_syscalls:sys_exit';
         comm.value = 'shop-web shop-db'; seconds.value = '2s'; comm.form.requestSubmit()",
    );
    browser.wait(
        "its timeline",
        "return document.querySelector('#timeline canvas')?.width && document.querySelector('#report table')",
    );
    // A sixteenth of it, in which calls are wide enough to be seen.
    for _ in 0..4 {
        browser.run(
            "const touch = document.querySelector('#timeline .touch'); touch.focus();
             touch.dispatchEvent(new KeyboardEvent('keydown', { key: '+' }))",
        );
    }
    std::thread::sleep(DRAWN);
    let place = browser.run("return location.href");
    let place = place.as_str().unwrap_or_default();
    for colours in ["light", "dark"] {
        look_at(browser, place, colours);
        browser.wait(
            "the timeline",
            "return document.querySelector('#timeline canvas')?.width && document.querySelector('#report table')",
        );
        browser.run("document.querySelector('#timeline').scrollIntoView()");
        std::thread::sleep(DRAWN);
        browser.small_picture(&pictures.join(format!("timeline-{colours}.webp")));
    }
}

/// Opens a place as a new document, so that no view of the one before is left.
fn look_at(browser: &Browser, place: &str, colours: &str) {
    browser.look(SIZE.0, SIZE.1, colours);
    browser.open("about:blank");
    browser.open(place);
}

/// The page's views, light and dark.
fn page(browser: &Browser, url: &str, pictures: &Path) {
    let views = [
        ("overview", "#/".to_owned(), IS_OVERVIEW),
        (
            "metric",
            format!("#/metric/{METRIC}?by=comm&match=comm%3D~%22shop-(web|db)%22"),
            "return document.querySelector('[data-group]')",
        ),
        ("stacks", format!("#/stacks/{}", PROFILE.1), ENLARGED),
    ];
    for (name, place, is_there) in views {
        for colours in ["light", "dark"] {
            look_at(browser, &format!("{url}/{place}"), colours);
            browser.wait(name, is_there);
            std::thread::sleep(DRAWN);
            browser.small_picture(&pictures.join(format!("{name}-{colours}.webp")));
        }
    }
}

fn small_enough(pictures: &Path) -> Result<()> {
    let mut sum = 0;
    for entry in fs::read_dir(pictures)? {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        println!("{:>8} {}", bytes, entry.file_name().to_string_lossy());
        sum += bytes;
    }
    if sum > MAX_BYTES {
        bail!("the pictures have {sum} bytes together: {MAX_BYTES} at most");
    }
    println!("{sum:>8} bytes together");
    Ok(())
}
