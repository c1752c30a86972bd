//! Reloads of an agent with polls, which need no capabilities.

use super::*;
use crate::app::{WebOptions, workloads};
use crate::config::files::SourceFile;
use crate::metrics::telemetry::ExportUse;
use kstrobe_export::Format;
use kstrobe_export::push::Usage;
use kstrobe_testing::{Receiving, wait_for};
use std::sync::atomic::{AtomicU32, Ordering};

/// Its files, and what reads them.
struct TestAgent {
    folder: PathBuf,
    /// Exporters' tasks end with it.
    #[expect(dead_code, reason = "it is there to be dropped")]
    runtime: tokio::runtime::Runtime,
    reload: Reload,
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const CONFIG: &str =
    "probes: { disable: [recvfrom, softirq, syscalls, tcp_backlog, tcp_retransmits], directory: DIR }\n";

fn poll(name: &str, every: &str) -> String {
    format!(
        "probe: {name}\nsummary: Counters.\npoll: {{ source: netstat, every: {every} }}\n\
         metrics:\n  {name}_value: {{ type: gauge, value: args.value, labels: {{ name: args.name }} }}\n"
    )
}

impl TestAgent {
    fn new(files: &[(&str, &str)]) -> TestAgent {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("kstrobe-reload-{}-{number}", std::process::id()));
        std::fs::create_dir_all(folder.join("probes")).unwrap();
        for (name, text) in [("kstrobe.yaml", CONFIG)].iter().chain(files) {
            write(&folder, name, text);
        }
        let options = Options {
            config: Some(folder.join("kstrobe.yaml")),
            source: crate::config::SourceArgs::default(),
            choice: crate::config::files::Choice::default(),
            listen: vec![],
            lifecycle: false,
            web: WebOptions {
                config: None,
                hosts: Vec::new(),
                systemd_socket: false,
                telemetry_path: "/metrics".into(),
                most_requests: 0,
            },
            events: None,
            log_level: None,
            log_json: None,
            custom_resources: false,
            handed: crate::kubernetes::probe_controller::Files::default(),
        };
        let LoadOutcome { loaded, diagnostics, seen, directory } = load_config::read(&options, None);
        let loaded = loaded.unwrap_or_else(|| panic!("{diagnostics:?}"));
        let deps = CaptureDeps::offline();
        let captures = captures::start(&loaded.agent, &loaded.plans, &deps);
        let (target, events) = (compile::look(&loaded.plans, None), workloads::event_channel().0);
        let app = Arc::new(App::start(&target, &loaded.plans, &loaded.agent, None, captures, &deps, events));
        app.telemetry.configured(0, &loaded.hash);
        let started = Started::new(&loaded.agent, loaded.listen(&options), loaded.log(&options).1);
        let tail = Arc::new(Tail::new(loaded.slow(), loaded.agent.kept_events));
        let level = Level::of_nothing();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let exporters = Arc::new(Exporters::new(app.clone(), runtime.handle().clone()));
        let context = ReloadContext { app, options, level, tail, deps, exporters, started };
        TestAgent { folder, runtime, reload: Reload::new(context, channel().1, seen, directory) }
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.folder, name, text);
    }

    fn app(&self) -> &App {
        &self.reload.context.app
    }

    /// Names with what they run, which is another when it was begun anew.
    fn running(&self) -> Vec<(String, *const ProbeLock)> {
        self.app().probes().iter().map(|probe| (probe.lock().meta.name.clone(), Arc::as_ptr(probe))).collect()
    }

    fn names(&self) -> String {
        self.running().into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    }

    /// The agent's own metrics.
    fn own(&self) -> String {
        String::from_utf8(self.app().telemetry.encode(Format::Text004)).unwrap()
    }

    fn metric(&self, name: &str) -> String {
        let text = self.own();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().to_owned()
    }

    fn reload(&mut self) -> Answer {
        self.reload.reload("a test")
    }
}

fn write(folder: &std::path::Path, name: &str, text: &str) {
    let text = text.replace("DIR", &folder.join("probes").display().to_string());
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn what_is_the_same_goes_on_and_the_order_is_that_of_a_start() {
    let files =
        [("probes/b.yaml", poll("b", "1s")), ("probes/c.yaml", poll("c", "1s")), ("probes/d.yaml", poll("d", "1s"))];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let mut agent = TestAgent::new(&files);
    let before = agent.running();
    assert_eq!(agent.names(), "b c d");
    let answer = agent.reload().unwrap();
    assert!(answer.starts_with("reloaded; probes: 3 unchanged, 0 replaced, 0 started, 0 ended\n"), "{answer}");
    assert_eq!(agent.running(), before);
    let hash = |agent: &TestAgent| agent.own().lines().find(|l| l.contains("config_hash{")).unwrap().to_owned();
    let first = hash(&agent);
    agent.write("probes/a.yaml", &poll("a", "1s"));
    agent.write("probes/b.yaml", &format!("# Only a comment.\n{}", poll("b", "1s")));
    agent.write("probes/c.yaml", &poll("c", "2s"));
    std::fs::remove_file(agent.folder.join("probes/d.yaml")).unwrap();
    let answer = agent.reload().unwrap();
    assert!(answer.starts_with("reloaded; probes: 1 unchanged, 1 replaced, 1 started, 1 ended\n"), "{answer}");
    let after = agent.running();
    assert_eq!(agent.names(), "a b c");
    assert_eq!(after[1], before[0], "b goes on");
    assert_ne!(after[2], before[1], "c is another");
    assert_ne!(hash(&agent), first);
    assert_eq!(agent.metric("kstrobe_config_reloads_total{result=\"success\"}"), "2");
    // A new poll has data before the first scrape.
    let (snapshot, _) = agent.app().snapshot();
    let names: Vec<&str> = snapshot.families.iter().map(|family| family.about.name.as_str()).collect();
    assert!(names.contains(&"kstrobe_a_value") && names.contains(&"kstrobe_c_value"), "{names:?}");
    // An ended probe that is still referenced has a reason.
    assert_eq!(agent.app().status().probes.len(), 3);
}

#[test]
fn a_mistake_changes_nothing_and_shows_in_log_status_and_metrics() {
    let mut agent = TestAgent::new(&[("probes/a.yaml", &poll("a", "1s"))]);
    let (before, list) = (agent.running(), agent.app().probes());
    let bad_key = poll("b", "1s").replace("summary", "sumary");
    // Only the compiler reads expressions.
    let bad_expression = poll("b", "1s").replace("args.value", "args.value +");
    let no_probe = CONFIG.replace("disable: [", "disable: [no_such, ");
    for (file, text, expected) in [
        ("probes/b.yaml", bad_key, "b.yaml:2:1: "),
        ("probes/b.yaml", bad_expression, "b.yaml:5:"),
        // It runs, and would not.
        ("probes/a.yaml", poll("a", "1s").replace("netstat", "no_such"), "a.yaml:3:"),
        ("kstrobe.yaml", no_probe, "there is no probe `no_such`"),
        ("kstrobe.yaml", "listen: [".to_owned(), "kstrobe.yaml:"),
        ("kstrobe.yaml", format!("{CONFIG}events: /no/such/folder\n"), "cannot be written to `/no/such/folder`"),
        ("kstrobe.yaml", format!("{CONFIG}captures: {{ dir: /dev/null/x }}\n"), "captures cannot be stored"),
    ] {
        let good = std::fs::read_to_string(agent.folder.join(file));
        agent.write(file, &text);
        let answer = agent.reload().expect_err(file);
        let place = expected.trim_end_matches([' ', ':']);
        assert!(answer.0.contains(place) && answer.0.ends_with("not reloaded: what ran before runs on\n"), "{answer}");
        assert!(Arc::ptr_eq(&list, &agent.app().probes()) && agent.running() == before, "{file}");
        let status = agent.app().status();
        assert!(status.mistakes.is_empty() && status.refused[0].contains(expected), "{status:?}");
        assert_eq!(agent.metric("kstrobe_config_last_reload_successful"), "0");
        match good {
            Ok(good) => agent.write(file, &good),
            Err(_) => std::fs::remove_file(agent.folder.join(file)).unwrap(),
        }
    }
    assert_eq!(agent.metric("kstrobe_config_reloads_total{result=\"failure\"}"), "7");
    agent.reload().unwrap();
    assert_eq!(agent.running(), before);
    assert!(agent.app().status().refused.is_empty());
    assert_eq!(agent.metric("kstrobe_config_last_reload_successful"), "1");
}

#[test]
fn keys_that_take_a_restart_are_reported() {
    let mut agent = TestAgent::new(&[]);
    agent.write("kstrobe.yaml", &format!("{CONFIG}listen: [127.0.0.1:1]\nlog: {{ format: json }}\nevents: stderr\n"));
    let answer = agent.reload().unwrap();
    assert!(answer.contains("the agent still listens on 127.0.0.1:9779"), "{answer}");
    assert!(answer.contains("`log.format` has changed, and takes a restart"), "{answer}");
    assert!(matches!(lock(&agent.app().events).sink, Some(Sink::Stderr)));
    agent.write("kstrobe.yaml", CONFIG);
    assert!(!agent.reload().unwrap().contains("restart"));
    assert!(matches!(lock(&agent.app().events).sink, Some(Sink::None)));
}

#[test]
fn exporters_come_stay_and_go() {
    let mut agent = TestAgent::new(&[("probes/a.yaml", &poll("a", "1s"))]);
    let receiving = Receiving::start(&[]);
    let address = receiving.address;
    let otlp = |name: &str, more: &str| {
        format!("{{ name: {name}, endpoint: 'http://{address}/x?token=secret', protocol: http, interval: 1h{more} }}")
    };
    let with = |list: &[String]| format!("{CONFIG}exporters: {{ otlp: [{}] }}\n", list.join(", "));
    let names = |agent: &TestAgent| {
        let usage = agent.app().exports.usage();
        usage.now.iter().map(|usage| usage.receiver.clone()).collect::<Vec<_>>()
    };
    for (list, summary, expected) in [
        (
            vec![otlp("one", ""), otlp("two", ", logs: true")],
            "0 unchanged, 2 started, 0 ended",
            vec!["one", "two", "two/logs"],
        ),
        (
            vec![otlp("two", ", logs: true"), otlp("one", "")],
            "2 unchanged, 0 started, 0 ended",
            vec!["two", "two/logs", "one"],
        ),
        (
            vec![otlp("two", ", logs: true"), otlp("one", ", temporality: delta")],
            "1 unchanged, 1 started, 1 ended",
            vec!["two", "two/logs", "one"],
        ),
    ] {
        agent.write("kstrobe.yaml", &with(&list));
        let answer = agent.reload().unwrap();
        assert!(answer.contains(&format!("\nexporters: {summary}\n")), "{answer}");
        assert_eq!(names(&agent), expected);
    }
    // The one that ended sent a last report, though its time had not come.
    let came = |count: usize| {
        let bodies = || receiving.came().into_iter().map(|came| came.body).collect::<Vec<_>>();
        let soon = std::time::Duration::from_secs(20);
        let bodies = wait_for("reports", soon, || Some(bodies()).filter(|all| all.len() >= count));
        assert!(bodies.iter().all(|body| body.len() > 100), "{bodies:?}");
    };
    came(1);
    let sent = |agent: &TestAgent| {
        let ExportUse { now, past } = agent.app().exports.usage();
        let of = |all: &[Usage]| all.iter().find(|usage| usage.receiver == "one").map(|usage| usage.sent);
        (of(&now), of(&past))
    };
    let soon = std::time::Duration::from_secs(20);
    let answer = wait_for("its totals", soon, || sent(&agent).0.filter(|sent| *sent > 0));
    assert_eq!(sent(&agent), (Some(answer), None), "its successor goes on with them");
    agent.write("kstrobe.yaml", &with(&[otlp("one", ", interval: 1s")]));
    assert!(agent.reload().is_err(), "a mistake, which changes nothing");
    assert_eq!(names(&agent).len(), 3);
    agent.write("kstrobe.yaml", CONFIG);
    assert!(agent.reload().unwrap().contains("exporters: 0 unchanged, 0 started, 2 ended\n"));
    assert!(names(&agent).is_empty());
    came(3);
    wait_for("the last of its totals", soon, || (sent(&agent).1 > Some(answer)).then_some(()));
    assert_eq!(sent(&agent).0, None);
    assert!(!agent.reload().unwrap().contains("exporters"));
}

#[test]
fn captures_come_change_and_go() {
    let mut agent = TestAgent::new(&[("probes/a.yaml", &poll("a", "1s"))]);
    let rules = |agent: &TestAgent| agent.app().rules();
    assert!(rules(&agent).is_none());
    let with = |folder: &str, more: &str| format!("{CONFIG}captures: {{ dir: DIR/{folder}, {more} }}\n");
    agent.write("kstrobe.yaml", &with("one", ""));
    agent.reload().unwrap();
    let one = rules(&agent).expect("captures");
    let rule = "rules: [{ name: r, when: 'value(a_value) > 5', capture: { events: x } }]\n";
    agent.write("kstrobe.yaml", &format!("{}{rule}", with("one", "max_concurrent: 3")));
    agent.reload().unwrap();
    let same = rules(&agent).expect("captures");
    assert!(Arc::ptr_eq(&one, &same), "the folder is the same");
    assert_eq!((same.service().settings().max_concurrent, same.metrics()), (3, vec!["kstrobe_a_value".to_owned()]));
    agent.write("kstrobe.yaml", &with("two", ""));
    agent.reload().unwrap();
    let two = rules(&agent).expect("captures");
    assert!(!Arc::ptr_eq(&one, &two) && two.metrics().is_empty());
    // A rule about a metric that is gone with its probe is a mistake.
    agent.write("kstrobe.yaml", &format!("{}{rule}", with("two", "")));
    std::fs::remove_file(agent.folder.join("probes/a.yaml")).unwrap();
    assert!(agent.reload().unwrap_err().0.contains("a_value"));
    agent.write("kstrobe.yaml", CONFIG);
    agent.reload().unwrap();
    assert!(rules(&agent).is_none());
}

#[test]
fn files_that_change_are_noticed_once() {
    let mut agent = TestAgent::new(&[("probes/a.yaml", &poll("a", "1s"))]);
    let look = |agent: &mut TestAgent, seconds| {
        let seen = watch::look(agent.reload.context.options.config.as_deref(), agent.reload.directory.as_deref());
        agent.reload.watch.look(std::time::Duration::from_secs(seconds), seen)
    };
    assert!(!look(&mut agent, 0) && !look(&mut agent, 10));
    agent.write("probes/b.yaml", "probe: [");
    assert!(!look(&mut agent, 12) && look(&mut agent, 14));
    agent.reload().unwrap_err();
    assert!(!look(&mut agent, 16) && !look(&mut agent, 30), "what is wrong is tried once");
    // A configuration that cannot be read says nothing of the folder: the old one is still watched.
    agent.write("kstrobe.yaml", "listen: [");
    agent.reload().unwrap_err();
    agent.write("probes/c.yaml", &poll("c", "1s"));
    assert!(!look(&mut agent, 40) && look(&mut agent, 42));
}

#[test]
fn keys_that_take_a_restart_are_those_of_the_page() {
    use crate::config::files::schema::{BLOCKS, Type};
    let started = |text: String| {
        let (agent, _) = crate::config::files::check_agent(&Arc::new(SourceFile { name: "kstrobe.yaml".into(), text }));
        let agent = agent.unwrap_or_default();
        Started::new(&agent, &agent.listen, agent.log_json)
    };
    let mut restarts = 0;
    for (block, key) in BLOCKS.iter().flat_map(|block| block.keys.iter().map(move |key| (block, key))) {
        let (before, after) = (key.document(block, None), key.document(block, Some(key.example)));
        let notes = started(before).notes(&started(after.clone()));
        // A mapping is marked when all of its keys are.
        let is_mapping = matches!(key.ty, Type::Block(_) | Type::Blocks(_) | Type::ListOf(_));
        assert!(notes.is_empty() != key.restart || is_mapping && !key.restart, "{after}: {notes:?}");
        restarts += usize::from(key.restart);
    }
    assert!(restarts > 5, "{restarts}");
}
