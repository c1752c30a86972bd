//! Sums by call stack, against loads whose functions, times and frames are known.

mod support;

use flate2::read::GzDecoder;
use kstrobe::metrics::profiles::pprof::proto;
use nix::time::{ClockId, clock_gettime};
use prost::Message;
use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::agent::{Agent, Setup, command};
use support::frames::{kst_burn_one, kst_burn_three, kst_descend, kst_dig, kst_outer_wait, timespec};
use support::{Folder, done, emulated, load, wait_for};

const HZ: f64 = 199.0;

const PROFILE: &str = "
probe: busy_profile
summary: What the load computes in.
at: profile:hz:199
where: comm == \"kst-stacks\"
metrics:
  busy_samples: { type: stacks, labels: { comm: comm } }
";

/// Text of `kst_burn_three` and of `kst_burn_one` in a frame.
const BURNERS: [&str; 2] = ["kst_burn_three", "kst_burn_one"];

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Three quarters of the time in one function and a quarter in another, by turns; how much CPU time each had, and how long
/// it all ran.
fn burn(turns: u32, turn: Duration) -> ([Duration; 2], load::Ran) {
    let (mut spent, mut ran) = ([Duration::ZERO; 2], load::Ran::new());
    for _ in 0..turns {
        for (which, function) in [kst_burn_three, kst_burn_one].into_iter().enumerate() {
            let part = turn * [3, 1][which] / 4;
            let begin = cpu_time();
            while cpu_time() - begin < part {
                // About a tenth of a millisecond.
                function(200_000);
                ran.look();
            }
            spent[which] += cpu_time() - begin;
        }
    }
    (spent, ran)
}

/// A line of folded text: its frames, and its value.
fn folded(text: &str) -> Vec<(Vec<&str>, u64)> {
    text.lines()
        .map(|line| {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            (stack.split(';').collect(), value.parse().unwrap())
        })
        .collect()
}

fn sum(stacks: &[(Vec<&str>, u64)], frame: &str) -> u64 {
    stacks.iter().filter(|(frames, _)| frames.contains(&frame)).map(|(_, value)| value).sum()
}

/// The sums are shared between the two functions as the thread's own clock says.
#[track_caller]
fn assert_shares(samples: [u64; 2], all: u64, spent: [Duration; 2], limit: f64) {
    let time = spent.map(|time| time.as_secs_f64());
    for (which, name) in BURNERS.into_iter().enumerate() {
        let share = samples[which] as f64 / all as f64;
        let expected = time[which] / (time[0] + time[1]);
        assert!((share - expected).abs() <= limit, "{name}: {share:.3} of {all} samples, {expected:.3} of {time:?} s");
    }
}

#[test]
#[ignore = "needs root"]
fn root_a_profile_shares_time_between_functions_as_their_clock_does() {
    let agent = Agent::start_with(&[], &[("busy_profile", PROFILE)]);
    let (mut spent, mut ran) = ([Duration::ZERO; 2], load::Ran::new());
    load::named("kst-stacks", || (spent, ran) = burn(8, Duration::from_millis(500)));
    let page = |format: &str| {
        let (status, body) = agent.get_bytes(&format!("/api/v1/stacks/busy_samples?format={format}")).unwrap();
        assert_eq!(status, 200, "{format}: {}", String::from_utf8_lossy(&body));
        body
    };
    let text = String::from_utf8(page("folded")).unwrap();
    let stacks = folded(&text);
    let all: u64 = stacks.iter().map(|(_, value)| value).sum();
    assert!(stacks.iter().all(|(frames, _)| frames[0] == "kst-stacks"), "{text}");
    let samples = BURNERS.map(|name| sum(&stacks, name));
    // Each of the 16 parts is longer or shorter than its samples by at most one. An emulated CPU's clock runs on while it stands
    // still, which nothing samples.
    assert_shares(samples, all, spent, if emulated() { 0.05 } else { 0.03 });
    let time = (spent[0] + spent[1]).as_secs_f64();
    // As in `root_a_profile_counts_cpu_time`: an emulated CPU that stood still does not make up for its samples.
    let (slack, lost) = (12.0, if emulated() { 0.4 } else { 0.05 });
    let most = if emulated() { time * HZ * 1.1 + slack } else { ran.most_samples(HZ).max(time * HZ) };
    let range = time * HZ * (1.0 - lost) - slack..=most;
    assert!(range.contains(&(all as f64)), "{all} samples in {time} s\n{text}");

    let profile = gunzip(&page("pprof"));
    assert_pprof(&profile, &stacks, all);
    let svg = page("svg");
    let titles = svg_titles(&svg);
    for (name, samples) in BURNERS.into_iter().zip(samples) {
        let title = format!("{name} ({samples} samples");
        assert!(titles.iter().any(|text| text.starts_with(&title)), "no {title} in {titles:?}");
    }
    agent.stop();
}

fn gunzip(bytes: &[u8]) -> proto::Profile {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    proto::Profile::decode(plain.as_slice()).unwrap()
}

/// The file says what the folded text does, sample for sample.
#[track_caller]
fn assert_pprof(profile: &proto::Profile, stacks: &[(Vec<&str>, u64)], all: u64) {
    let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    let types: Vec<_> = profile.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(profile.period, (1e9 / HZ) as i64);
    let of = |values: usize| profile.sample.iter().map(|sample| sample.value[values]).sum::<i64>();
    assert_eq!(of(0), all as i64);
    assert_eq!(of(1), all as i64 * profile.period);
    let names = |sample: &proto::Sample| -> HashSet<&str> {
        let location = |id: &u64| profile.location.iter().find(|location| location.id == *id).unwrap();
        let function = |line: &proto::Line| profile.function.iter().find(|f| f.id == line.function_id).unwrap();
        let lines = sample.location_id.iter().flat_map(|id| &location(id).line);
        lines.map(|line| text(function(line).name)).collect()
    };
    for name in BURNERS {
        let values = profile.sample.iter().filter(|sample| names(sample).contains(name)).map(|sample| sample.value[0]);
        assert_eq!(values.sum::<i64>(), sum(stacks, name) as i64, "{name}");
    }
    let comms = profile.sample.iter().flat_map(|sample| &sample.label).filter(|label| text(label.key) == "comm");
    assert!(comms.clone().count() > 0 && comms.clone().all(|label| text(label.str) == "kst-stacks"));
}

/// The texts of all `<title>`s, of a picture that is well-formed.
#[track_caller]
fn svg_titles(svg: &[u8]) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_reader(svg);
    let (mut titles, mut open, mut in_title) = (Vec::new(), 0, false);
    loop {
        // Refuses what does not end as it began.
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                tag.attributes().for_each(|attribute| assert!(attribute.is_ok(), "{attribute:?}"));
                in_title = tag.name().as_ref() == b"title";
                open += 1;
            }
            Event::End(_) => (open, in_title) = (open - 1, false),
            Event::Text(text) if in_title => titles.push(text.decode().unwrap().into_owned()),
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open, 0, "tags without an end");
    titles
}

#[test]
#[ignore = "needs root"]
fn root_the_command_takes_a_profile_of_the_shipped_probe() {
    let folder = Folder::new();
    let (file, over) = (folder.0.join("cpu.folded"), AtomicBool::new(false));
    let mut spent = [Duration::ZERO; 2];
    let (mut taken, mut took) = (None, 0.0);
    std::thread::scope(|scope| {
        let load = || {
            while !over.load(Ordering::Relaxed) {
                let (turn, _) = burn(1, Duration::from_millis(40));
                (0..2).for_each(|which| spent[which] += turn[which]);
            }
        };
        std::thread::Builder::new().name("kst-stacks".to_owned()).spawn_scoped(scope, load).unwrap();
        let path = file.to_str().unwrap();
        let begin = Instant::now();
        taken = Some(done(&mut command(&["stacks", "profile_cpu", "-d", "3s", "-o", path])));
        took = begin.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
    });
    let taken = taken.unwrap();
    assert_eq!(taken.code, Some(0), "{}", taken.err);
    let text = std::fs::read_to_string(file).unwrap();
    let mut stacks = folded(&text);
    // It counts stacks by address, of which several may have the same names.
    let count = taken.err.lines().find_map(|line| line.strip_suffix(" stacks")?.rsplit_once(": ")?.1.parse().ok());
    assert!(count.is_some_and(|count: usize| count >= stacks.len()), "{}", taken.err);
    stacks.retain(|(frames, _)| frames[0] == "kst-stacks");
    let all: u64 = stacks.iter().map(|(_, value)| value).sum();
    // Turns of a few samples each, and fewer where others want the CPUs too: four standard deviations of chance.
    let chance = 4.0 * (0.75 * 0.25 / all as f64).sqrt();
    assert_shares(BURNERS.map(|name| sum(&stacks, name)), all, spent, 0.02 + chance);
    // The load had a CPU most of the time, or shared it with what else runs here.
    assert!(all >= 30 && all as f64 <= 99.0 * took + 12.0, "{all} samples in {took} s\n{text}");
}

const OFFCPU: &str = include_str!("../../probes/scheduler/offcpu.yaml");

/// What counts nothing must not look as if there was nothing.
#[test]
#[ignore = "needs root"]
fn root_a_profile_of_what_its_budget_holds_back_is_refused() {
    let probe = OFFCPU.replace("enabled: false\n", "").replace("percent: 20", "percent: 0.001");
    let agent = Setup { probes: &[("offcpu", &probe)], ..Setup::default() }.start();
    wait_for("the probe to be taken off", Duration::from_secs(60), || {
        load::pselect_sleeps(200, Duration::from_micros(100));
        agent.get("/readyz").filter(|(_, text)| text.contains("taken off its hooks"))
    });
    let (status, text) = agent.get("/api/v1/stacks/offcpu_seconds?seconds=1").unwrap();
    assert!(status == 503 && text.contains("over its budget of 0.001 %"), "{status} {text}");
    assert_eq!(agent.get("/api/v1/stacks/offcpu_seconds").unwrap().0, 200, "what was counted before is there");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_time_off_the_cpu_is_under_the_frames_that_wait() {
    // Elsewhere on the machine tasks may switch so often that the probe would be taken off its hooks for what it costs.
    let probe = OFFCPU.replace("enabled: false\n", "").replace("budget_cpu_percent: 20", "budget_cpu_percent: 0");
    let agent = Setup { probes: &[("offcpu", &probe)], ..Setup::default() }.start();
    let (count, each) = (20, timespec(Duration::from_millis(50)));
    // By its clocks: more than a second where it had to wait for a CPU when it woke up.
    let mut slept = Duration::ZERO;
    load::named("kst-sleeper", || {
        let (begin, ran) = (Instant::now(), cpu_time());
        for _ in 0..count {
            assert_eq!(kst_outer_wait(&each), 0);
        }
        slept = begin.elapsed() - (cpu_time() - ran);
    });
    let (status, text) = agent.get("/api/v1/stacks/offcpu_seconds").unwrap();
    assert_eq!(status, 200, "{text}");
    let mut stacks = folded(&text);
    stacks.retain(|(frames, _)| frames[0] == "kst-sleeper" && frames.contains(&"kst_inner_wait"));
    let at = |frames: &[&str], name: &str| frames.iter().position(|frame| *frame == name);
    // What waits in the kernel is there; a preemption between two sleeps is not one.
    stacks.retain(|(frames, _)| at(frames, "do_nanosleep_[k]").is_some());
    assert!(!stacks.is_empty(), "{text}");
    for (frames, _) in &stacks {
        let outer = at(frames, "kst_outer_wait").unwrap_or_else(|| panic!("{frames:?}"));
        assert_eq!(frames[outer + 1], "kst_inner_wait", "{frames:?}");
        let kernel = frames.iter().position(|frame| frame.ends_with("_[k]")).unwrap();
        assert_eq!(kernel, outer + 2, "{frames:?}");
        let [hrtimer, sleep] = ["hrtimer_nanosleep_[k]", "do_nanosleep_[k]"].map(|name| at(frames, name).unwrap());
        let schedule = frames.iter().rposition(|frame| ["schedule_[k]", "__schedule_[k]"].contains(frame)).unwrap();
        assert!(kernel < hrtimer && hrtimer < sleep && sleep < schedule, "{frames:?}");
    }
    let seconds = stacks.iter().map(|(_, value)| value).sum::<u64>() as f64 / 1e9;
    let slept = slept.as_secs_f64();
    let switches = if emulated() { 0.1 } else { 0.01 };
    assert!(
        // A switch takes a while, which both may count. On a crowded 6.18 one of some hundred `sched_switch` events never
        // reached any program: a sleep may be missing, not two.
        seconds <= slept + switches && slept - seconds <= 0.1,
        "{seconds} s off the CPU; it slept 1 s, and was off the CPU for {slept} s\n{}",
        own(&agent, &text)
    );
    agent.stop();
}

/// Different ones of the load. Fewer would not fill the smallest table that there is.
const STACKS: u64 = 256;

/// The lines of the load, and what the probe lost.
fn own(agent: &Agent, folded: &str) -> String {
    let metrics = agent.get("/metrics").map(|(_, text)| text).unwrap_or_default();
    let lost = metrics.lines().filter(|line| line.starts_with("kstrobe_lost_total"));
    let lines = folded.lines().filter(|line| line.starts_with("kst-sleeper"));
    lines.chain(lost).collect::<Vec<_>>().join("\n")
}

const CROWDED: &str = "
probe: crowded
summary: Sleeps, by stack, in a table with as many places as stacks.
at: tracepoint:syscalls:sys_enter_nanosleep
where: comm == \"kst-crowd\"
metrics:
  crowded_sleeps: { type: stacks, stacks: user, labels: { comm: comm }, max_series: 256 }
";

#[test]
#[ignore = "needs root"]
fn root_stacks_without_a_place_are_counted_and_shown_as_missed() {
    let agent = Agent::start_with(&[], &[("crowded", CROWDED)]);
    let each = timespec(Duration::from_micros(10));
    load::named("kst-crowd", || {
        for path in (STACKS..2 * STACKS).cycle().take(3 * STACKS as usize) {
            assert_eq!(kst_descend(&each, path), 0);
        }
    });
    let (status, text) = agent.get("/api/v1/stacks/crowded_sleeps").unwrap();
    assert_eq!(status, 200, "{text}");
    let stacks = folded(&text);
    let after = agent.scrape();
    let lost = |reason: &str| after.sum("kstrobe_lost_total", &[("probe", "crowded"), ("reason", reason)]);
    assert_eq!(stacks.iter().map(|(_, value)| value).sum::<u64>(), 3 * STACKS, "{text}");
    let missed = sum(&stacks, "[missed user stack]");
    assert_eq!(missed as f64, lost("stack_collision"), "{text}");
    // Of 256 stacks in 256 buckets that hold two, about 26 find no place; all but a few, or none, would be no hash.
    assert!((3..3 * STACKS / 2).contains(&missed), "{missed} of {} missed", 3 * STACKS);
    // Every stack that was kept has all of its frames.
    let frames = 1 + STACKS.ilog2() as usize;
    for (frames_of, value) in stacks.iter().filter(|(frames, _)| !frames.contains(&"[missed user stack]")) {
        let descents = frames_of.iter().filter(|frame| **frame == "kst_descend").count();
        assert_eq!((descents, *frames_of.last().unwrap()), (frames, "kst_inner_wait"), "{frames_of:?} {value}");
    }
    agent.stop();
}

const TURNOVER: &str = "
probe: turnover
summary: Sleeps, by stack, in a table that the load fills many times over.
at: tracepoint:syscalls:sys_enter_nanosleep
where: comm == \"kst-turn\"
metrics:
  turnover_sleeps: { type: stacks, stacks: user, labels: { comm: comm }, max_series: 1024 }
";

/// Percentage of the values that stand under a frame for stacks without a place.
fn missed_percent(stacks: &[(Vec<&str>, u64)]) -> f64 {
    let missed = stacks.iter().filter(|(frames, _)| frames.iter().any(|frame| frame.starts_with("[missed ")));
    let all: u64 = stacks.iter().map(|(_, value)| value).sum();
    100.0 * missed.map(|(_, value)| value).sum::<u64>() as f64 / all as f64
}

/// Ends a load, also when its test fails meanwhile.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[track_caller]
fn profile_of_next(agent: &Agent, metric: &str, seconds: u32) -> String {
    let (status, text) = agent.get(&format!("/api/v1/stacks/{metric}?seconds={seconds}")).unwrap();
    assert_eq!(status, 200, "{text}");
    text
}

#[test]
#[ignore = "needs root"]
fn root_a_profile_after_many_stacks_misses_none() {
    let agent = Agent::start_with(&[], &[("turnover", TURNOVER)]);
    let (over, each) = (AtomicBool::new(false), timespec(Duration::from_millis(10)));
    // Each sleep has a stack of its own.
    let slept = AtomicU64::new(0);
    let load = || {
        while !over.load(Ordering::Relaxed) {
            assert_eq!(kst_descend(&each, (1 << 20) + slept.fetch_add(1, Ordering::Relaxed)), 0);
        }
    };
    let mut text = String::new();
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        std::thread::Builder::new().name("kst-turn".to_owned()).spawn_scoped(scope, load).unwrap();
        let filled = || (slept.load(Ordering::Relaxed) > 1500).then_some(());
        wait_for("the load to fill the table once and a half", Duration::from_secs(120), filled);
        text = profile_of_next(&agent, "turnover_sleeps", 5);
    });
    let stacks = folded(&text);
    let all: u64 = stacks.iter().map(|(_, value)| value).sum();
    assert!(all > 10 && missed_percent(&stacks) < 1.0, "{} % of\n{text}", missed_percent(&stacks));
    // What was counted before the profile, and what it kept apart, is not lost.
    let (_, all) = agent.get("/api/v1/stacks/turnover_sleeps").unwrap();
    let total: u64 = folded(&all).iter().map(|(_, value)| value).sum();
    assert_eq!(total, slept.load(Ordering::Relaxed), "{all}");
    agent.stop();
}

/// On request, as it takes half an hour, or as many minutes as `KSTROBE_LOAD_MINUTES` says:
/// `cargo test -p kstrobe --test root_stacks -- --ignored --nocapture a_profile_after_half_an_hour_of_64_threads`.
#[test]
#[ignore = "half an hour, as root, on request"]
fn a_profile_after_half_an_hour_of_64_threads_misses_few_stacks() {
    const THREADS: u64 = 64;
    let minutes = std::env::var("KSTROBE_LOAD_MINUTES").map_or(30, |minutes| minutes.parse().unwrap());
    let [cpu, offcpu] = [include_str!("../../probes/scheduler/profile_cpu.yaml"), OFFCPU];
    let [cpu, offcpu] = [cpu, offcpu].map(|probe| probe.replace("enabled: false\n", ""));
    let agent = Agent::start_with(&[], &[("profile_cpu", &cpu), ("offcpu", &offcpu)]);
    let over = AtomicBool::new(false);
    // Half a hundredth of a CPU a thread: the machine has other work. Stacks come from a million of each kind.
    let each = timespec(Duration::from_millis(40));
    let load = |seed: u64| {
        let mut path = seed;
        while !over.load(Ordering::Relaxed) {
            path = path.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            kst_dig(400_000, (1 << 20) + (path >> 44));
            assert_eq!(kst_descend(&each, (1 << 20) + (path >> 44)), 0);
        }
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for seed in 0..THREADS {
            std::thread::Builder::new()
                .name(format!("kst-load-{seed}"))
                .spawn_scoped(scope, move || load(seed))
                .unwrap();
        }
        std::thread::sleep(Duration::from_secs(minutes * 60).saturating_sub(Duration::from_secs(60)));
        let mut shares = Vec::new();
        std::thread::scope(|both| {
            let profiles = ["cpu_samples", "offcpu_seconds"].map(|metric| {
                let agent = &agent;
                both.spawn(move || (metric, profile_of_next(agent, metric, 60)))
            });
            for profile in profiles {
                let (metric, text) = profile.join().unwrap();
                let stacks = folded(&text);
                let own = stacks.iter().filter(|(frames, _)| frames[0].starts_with("kst-load-")).count();
                println!(
                    "{metric}: {} stacks, {own} of the load, {:.3} % missed",
                    stacks.len(),
                    missed_percent(&stacks)
                );
                let mut missed: Vec<_> = stacks
                    .iter()
                    .filter(|(frames, _)| frames.iter().any(|frame| frame.starts_with("[missed ")))
                    .collect();
                missed.sort_by_key(|(_, value)| std::cmp::Reverse(*value));
                missed.iter().take(8).for_each(|(frames, value)| println!("  {value} {}", frames.join(";")));
                shares.push((metric, own, missed_percent(&stacks)));
            }
        });
        for (metric, own, missed) in shares {
            assert!(
                own > 100 && missed < 1.0,
                "{metric}: {missed} % of the last minute is missed, {own} stacks are the load's"
            );
        }
    });
    agent.stop();
}
