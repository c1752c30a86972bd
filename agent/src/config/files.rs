//! Reads configuration files and decides which probes run.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use kstrobe_config::diag::{Diagnostic, Severity};
use kstrobe_config::model::{Agent, Label, Location, Owner, Probe, Shape, Spanned};
pub use kstrobe_config::model::{History as HistoryConfig, Kubernetes, PodSource, Sandboxes, Workloads};
/// What is said of files, and their texts, for who runs what they ask for and does not read them.
pub use kstrobe_config::{agent as check_agent, diag, model::SourceFile, probes as check_probes, schema};

/// What the names of files that `Probe` objects of the cluster make end in, before `.yaml`.
pub const CLUSTER_STEM: &str = ".probe.kstrobe.dev";

/// Whether a pack is a `Probe` object of the cluster.
pub fn is_of_cluster(pack: &str) -> bool {
    pack.ends_with(CLUSTER_STEM)
}

/// Bytes of the largest file of probes: real ones have some kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// `kstrobe.yaml`, checked.
pub type AgentConfig = Agent;

/// Files that were read, and what is wrong with the others.
pub type Files = (Vec<Arc<SourceFile>>, Vec<Diagnostic>);

/// What the command line asks for on top of the configuration file.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub enable: Vec<String>,
    pub disable: Vec<String>,
    /// `--only`: these and no others.
    pub only: Vec<String>,
}

/// Reads a file, or says why not.
pub fn file(path: &Path) -> Result<Arc<SourceFile>, Diagnostic> {
    let name = path.display().to_string();
    let cannot = |why: &str| problem(format!("cannot read {name}: {why}"));
    let mut bytes = Vec::new();
    let open = std::fs::File::open(path).and_then(|f| f.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    open.map_err(|e| cannot(&e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(cannot("it is larger than 1 MiB, which no probe file is"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Arc::new(SourceFile { name, text })),
        Err(e) => {
            let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            Err(cannot(&format!("line {line} is not UTF-8 text")))
        }
    }
}

/// All probes known: the embedded ones and those of a directory or file, which replace embedded files of the same name.
pub fn probes(directory: Option<&Path>) -> (Vec<Probe>, Vec<Diagnostic>) {
    probes_in(directory.map(|d| (d, None)))
}

/// `directory` with the place that names it, if one does.
fn probes_in(directory: Option<(&Path, Option<&Location>)>) -> (Vec<Probe>, Vec<Diagnostic>) {
    let (files, mut diagnostics) = directory.map_or_else(Default::default, |(at, named)| files_in(at, named));
    let (probes, mut more) = probes_of(files);
    diagnostics.append(&mut more);
    (probes, diagnostics)
}

/// The files of a directory, with the place that names it, if one does.
fn files_in(directory: &Path, at: Option<&Location>) -> Files {
    let mut diagnostics = Vec::new();
    let mut files = Vec::new();
    match yaml_files(directory) {
        Ok(paths) => {
            for path in paths {
                match regular_file(&path) {
                    Ok(f) => files.push(f),
                    Err(e) => diagnostics.push(e),
                }
            }
        }
        Err(e) => {
            let message = format!("cannot read the probes directory {}: {e}", directory.display());
            diagnostics.push(Diagnostic { at: at.cloned(), ..problem(message) });
        }
    }
    (files, diagnostics)
}

/// Probes of these files and the shipped ones. A file takes the place of the shipped file of its name, and a probe that of the
/// shipped probe of its name, also when it has a mistake.
fn probes_of(files: Vec<Arc<SourceFile>>) -> (Vec<Probe>, Vec<Diagnostic>) {
    let base = |f: &SourceFile| f.name.rsplit('/').next().unwrap_or_default().to_string();
    let replaced: Vec<String> = files.iter().map(|f| base(f)).collect();
    let shipped: Vec<_> = kstrobe_config::embedded().into_iter().filter(|f| !replaced.contains(&base(f))).collect();
    let (mut all, mut diagnostics) = kstrobe_config::probes(&shipped);
    let (own, mut found) = kstrobe_config::all_probes(&files);
    all.retain(|probe| own.iter().all(|(other, _)| other.name() != probe.name()));
    all.extend(own.into_iter().filter_map(|(probe, sound)| sound.then_some(probe)));
    diagnostics.append(&mut found);
    (all, diagnostics)
}

/// The directory of an agent's probe files: the command line's over the configuration's.
pub fn directory<'a>(agent: &'a Agent, own: Option<&'a Path>) -> Option<&'a Path> {
    own.or_else(|| agent.probes_directory.as_ref().map(|d| Path::new(&d.value)))
}

pub fn probe_files(agent: &Agent, own: Option<&Path>) -> Files {
    let named = agent.probes_directory.as_ref().filter(|_| own.is_none()).map(|d| &d.at);
    directory(agent, own).map_or_else(Default::default, |directory| files_in(directory, named))
}

/// The probes an agent should run, from its configuration and the command line. Mistakes in probe files cost only the
/// probe they are in; a name that fits nothing, of a probe or in a rule, is a mistake in the command line, and then
/// there are none (unless it may be the name of something that was left out for its mistakes).
pub fn chosen(agent: &Agent, directory: Option<&Path>, choice: &Choice) -> (Option<Vec<Probe>>, Vec<Diagnostic>) {
    chosen_of(probe_files(agent, directory), agent, choice)
}

/// The same of files that were read.
pub fn chosen_of(files: Files, agent: &Agent, choice: &Choice) -> (Option<Vec<Probe>>, Vec<Diagnostic>) {
    let Selection { chosen, names_fit, diagnostics, .. } = select(files, agent, choice);
    (names_fit.then_some(chosen), diagnostics)
}

/// Probe files as an agent reads them.
pub struct Selection {
    /// All probes that there are.
    pub known: Vec<Probe>,
    /// Those to run.
    pub chosen: Vec<Probe>,
    /// Those that would run, were there not an earlier one with a metric of theirs.
    pub beaten: Vec<Probe>,
    /// Whether all names in the configuration and on the command line are those of probes, or may be of one that was left out
    /// for its mistakes.
    pub names_fit: bool,
    /// What is wrong.
    pub diagnostics: Vec<Diagnostic>,
}

/// Chooses the probes to run among the embedded ones and those of files.
pub fn select(files: Files, agent: &Agent, choice: &Choice) -> Selection {
    let (files, mut diagnostics) = files;
    let (mut known, mut more) = probes_of(files);
    diagnostics.append(&mut more);
    for probe in &mut known {
        if agent.budget_ppm == 0 {
            probe.budget_ppm.get_or_insert(0);
        }
        apply_override(probe, agent);
    }
    let (all_chosen, mut unknown) = choose(known.clone(), agent, choice);
    let is_in = |probes: &[Probe], probe: &Probe| probes.iter().any(|other| other.name() == probe.name());
    let runs = |probe: &Probe| is_in(&all_chosen, probe);
    let (mut wrong, mut doubtful): (Vec<_>, Vec<_>) =
        kstrobe_config::check_rules(&agent.rules, &known, runs).into_iter().partition(Diagnostic::is_error);
    unknown.append(&mut wrong);
    diagnostics.append(&mut doubtful);
    let names_fit = unknown.is_empty() || diagnostics.iter().any(Diagnostic::is_error);
    diagnostics.append(&mut unknown);
    let (chosen, mut twice) = kstrobe_config::unique_metrics(all_chosen.clone());
    diagnostics.append(&mut twice);
    let beaten = all_chosen.into_iter().filter(|probe| !is_in(&chosen, probe)).collect();
    Selection { known, chosen, beaten, names_fit, diagnostics }
}

/// Adds what the configuration asks for to a probe. A label that a metric has already stays as it is. What is said of the probe
/// itself stands over what is said of its pack.
fn apply_override(probe: &mut Probe, agent: &Agent) {
    let of = |name: &str| agent.overrides.iter().find(|o| o.name.value == *name);
    // Of a pack, what workloads have to do with: polls and events without an owner stay as they are.
    let anybodys = !matches!(probe.program.shape, Shape::Poll { .. }) && probe.program.owner != Owner::None;
    let Some(wanted) = of(probe.name()).or_else(|| of(&probe.pack).filter(|_| anybodys)) else { return };
    probe.program.extra_filter.clone_from(&wanted.filter);
    for metric in &mut probe.program.metrics {
        for label in &wanted.labels {
            if metric.labels.iter().all(|known| known.name.value != label.value) {
                metric.labels.push(Label { name: label.clone(), value: label.clone() });
            }
        }
        metric.max_series = wanted.max_series.unwrap_or(metric.max_series);
    }
}

/// YAML files right in a directory, in name order; of a file, itself. A mounted ConfigMap shows each key as a link beside
/// hidden folders.
pub fn yaml_files(directory: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Ok(vec![directory.to_path_buf()]);
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        let yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
        if yaml && !hidden && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// As [`file()`], but of regular files alone: this one was found in a directory, and opening a pipe would block.
fn regular_file(path: &Path) -> Result<Arc<SourceFile>, Diagnostic> {
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => Err(problem(format!("cannot read {}: it is not a regular file", path.display()))),
        // A link that leads nowhere, among others: opening it says so.
        _ => file(path),
    }
}

fn is_named(name: &str, probe: &Probe) -> bool {
    probe.name() == name || probe.pack == name
}

/// The probes that a person means by a name: those of that name or pack, else those that replace a tool of that name.
pub fn named<'a>(name: &str, probes: &'a [Probe]) -> Vec<&'a Probe> {
    let named: Vec<&Probe> = probes.iter().filter(|probe| is_named(name, probe)).collect();
    if named.is_empty() { kstrobe_config::probes_replacing(name, probes) } else { named }
}

/// What is said of a name that is none of a probe. `flag`, with a space behind it, is where it was given.
fn no_probe(name: &str, flag: &str, probes: &[Probe]) -> Diagnostic {
    let answers: Vec<&str> = kstrobe_config::probes_replacing(name, probes).into_iter().map(Probe::name).collect();
    if !answers.is_empty() {
        let message = match answers.as_slice() {
            [only] => format!("`{name}` is answered by the probe `{only}`"),
            several => format!("`{name}` is answered by the probes `{}`", several.join("` and `")),
        };
        return Diagnostic { hint: Some(format!("write `{flag}{}`", answers.join(","))), ..problem(message) };
    }
    let known = probes.iter().flat_map(|p| [p.name(), p.pack.as_str()].into_iter().chain(tools(p)));
    let near = kstrobe_ebpf::diag::did_you_mean(name, known);
    let hint = near.map_or_else(|| "`kstrobe list` shows all probes".into(), |near| format!("did you mean `{near}`?"));
    Diagnostic { hint: Some(hint), ..problem(format!("there is no probe `{name}`")) }
}

fn tools(probe: &Probe) -> impl Iterator<Item = &str> {
    probe.replaces.iter().map(String::as_str)
}

/// The probes that should run. A name that fits no probe and no pack is a mistake, with its place when it has one.
pub fn choose(probes: Vec<Probe>, agent: &Agent, choice: &Choice) -> (Vec<Probe>, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let mut unknown = |name: &str, at: Option<&Spanned<String>>, flag: &str| {
        if !probes.iter().any(|p| is_named(name, p)) {
            diagnostics.push(Diagnostic { at: at.map(|s| s.at.clone()), ..no_probe(name, flag, &probes) });
        }
    };
    for s in agent.enable.iter().chain(&agent.disable).chain(agent.overrides.iter().map(|o| &o.name)) {
        unknown(&s.value, Some(s), "");
    }
    for (flag, names) in [("--enable ", &choice.enable), ("--disable ", &choice.disable), ("", &choice.only)] {
        names.iter().for_each(|name| unknown(name, None, flag));
    }
    for (flag, names) in [("--enable", &choice.enable), ("--only", &choice.only)] {
        let both = names.iter().filter(|name| choice.disable.contains(name));
        let message = |name: &String| format!("`{name}` is in both `{flag}` and `--disable`");
        diagnostics
            .extend(both.map(|name| Diagnostic { hint: Some("take it out of one".into()), ..problem(message(name)) }));
    }
    // A pack's name means what is on by default in it, or all of it where nothing is.
    let of_pack = |p: &Probe| p.enabled || !probes.iter().any(|other| other.pack == p.pack && other.enabled);
    let wanted = |p: &Probe| {
        // The most exact word wins: a probe's own name over its pack's.
        let exact = |n: &str| if n == p.name() { 2 } else { u8::from(n == p.pack && of_pack(p)) };
        if !choice.only.is_empty() {
            // The file says nothing beside `--only`.
            let most_exact = |names: &[String]| names.iter().map(|n| exact(n)).max().unwrap_or(0);
            return most_exact(&choice.only) > most_exact(&choice.disable);
        }
        // Of two equally exact words, the command line's stands over the file's.
        let says = |file: &[Spanned<String>], line: &[String]| -> u8 {
            let of_file = file.iter().map(|s| 2 * exact(&s.value));
            let of_line = line.iter().map(|n| exact(n)).map(|e| if e > 0 { 2 * e + 1 } else { 0 });
            of_file.chain(of_line).max().unwrap_or(0)
        };
        let (on, off) = (says(&agent.enable, &choice.enable), says(&agent.disable, &choice.disable));
        if off > on { false } else { p.enabled || on > 0 }
    };
    let chosen = probes.iter().filter(|p| wanted(p)).cloned().collect();
    (chosen, diagnostics)
}

fn problem(message: String) -> Diagnostic {
    Diagnostic { severity: Severity::Error, at: None, message, hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
probe: a
summary: On by default.
at: rawtracepoint:sched_switch
metrics: { a_total: { type: counter } }
---
probe: b
summary: Off by default.
enabled: false
at: rawtracepoint:sched_switch
metrics: { b_total: { type: counter } }
";

    fn chosen(config: &str, enable: &[&str], disable: &[&str], only: &[&str]) -> String {
        let file = |name: &str, text: &str| Arc::new(SourceFile { name: name.into(), text: text.into() });
        let (probes, wrong) = kstrobe_config::probes(&[file("pack.yaml", FILE)]);
        assert_eq!(wrong, []);
        let (agent, wrong) = kstrobe_config::agent(&file("kstrobe.yaml", config));
        assert_eq!(wrong, []);
        let list = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        let choice = Choice { enable: list(enable), disable: list(disable), only: list(only) };
        let (chosen, unknown) = choose(probes, &agent.unwrap(), &choice);
        assert_eq!(unknown, []);
        chosen.iter().map(|p| p.name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_most_exact_word_wins_and_the_command_line_over_the_file() {
        assert_eq!(chosen("", &[], &[], &[]), "a");
        assert_eq!(chosen("", &["b"], &[], &[]), "a b");
        assert_eq!(chosen("", &["pack"], &[], &[]), "a", "a pack brings those on by default");
        assert_eq!(chosen("", &["a"], &["pack"], &[]), "a");
        assert_eq!(chosen("", &["pack"], &["a"], &[]), "");
        assert_eq!(chosen("probes: { enable: [b] }", &[], &["b"], &[]), "a");
        assert_eq!(chosen("probes: { disable: [a] }", &["a"], &[], &[]), "a");
        assert_eq!(chosen("probes: { disable: [a] }", &["pack"], &[], &[]), "", "its name says more than its pack's");
        assert_eq!(chosen("probes: { disable: [a] }", &[], &[], &["a", "b"]), "a b");
        assert_eq!(chosen("", &[], &[], &["pack"]), "a");
    }

    #[test]
    fn a_users_probe_takes_the_place_of_the_shipped_one() {
        let of = |text: &str| {
            let file = Arc::new(SourceFile { name: "mine.yaml".into(), text: text.into() });
            let (probes, wrong) = probes_of(vec![file]);
            let packs: Vec<_> = probes.iter().filter(|p| p.name() == "syscalls").map(|p| p.pack.clone()).collect();
            (packs, wrong.len())
        };
        let own =
            "probe: syscalls\nsummary: S.\nat: rawtracepoint:sched_switch\nmetrics: { a_total: { type: counter } }\n";
        assert_eq!(
            of("probe: a\nsummary: A.\nat: interval:s:1\nmetrics: { a_total: { type: counter } }\n"),
            (vec!["syscalls".into()], 0)
        );
        assert_eq!(of(own), (vec!["mine".into()], 0));
        assert_eq!(of(&format!("{own}---\n{own}")).1, 1, "twice in one's own files is a mistake");
        assert_eq!(of(&own.replace("counter", "conter")), (vec![], 1), "a mistake does not bring the shipped one back");
    }

    #[test]
    fn disable_takes_a_probe_out_of_only() {
        assert_eq!(chosen("", &[], &["a"], &["pack", "b"]), "b");
        assert_eq!(chosen("", &[], &["pack"], &["a", "b"]), "a b", "their names say more than their pack's");
    }

    #[test]
    fn a_pack_that_is_off_by_default_is_brought_whole_by_its_name() {
        let file = |name: &str, text: String| Arc::new(SourceFile { name: name.into(), text });
        let off = FILE.replace("metrics: { a_total", "enabled: false\nmetrics: { a_total");
        let chosen = |choice: Choice| {
            let (probes, _) = kstrobe_config::probes(&[file("pack.yaml", off.clone())]);
            let agent = kstrobe_config::agent(&file("kstrobe.yaml", String::new())).0.unwrap();
            choose(probes, &agent, &choice).0.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>().join(" ")
        };
        let pack = || vec!["pack".to_string()];
        assert_eq!(chosen(Choice::default()), "");
        assert_eq!(chosen(Choice { enable: pack(), ..Choice::default() }), "a b");
        assert_eq!(chosen(Choice { only: pack(), ..Choice::default() }), "a b");
    }

    #[test]
    fn metrics_of_probes_that_do_not_run_together_may_have_one_name() {
        let file = |name: &str, text: &str| Arc::new(SourceFile { name: name.into(), text: text.into() });
        let agent = kstrobe_config::agent(&file("kstrobe.yaml", "")).0.unwrap();
        let own =
            FILE.replace("probe: a", "probe: own").replace("probe: b", "probe: other").replace("a_total", "b_total");
        let ran = |enable: &[&str]| {
            let files = vec![file("one.yaml", FILE), file("two.yaml", &own)];
            let only = ["a", "own"].iter().chain(enable).map(|name| name.to_string()).collect();
            let Selection { chosen, beaten, diagnostics, .. } =
                select((files, vec![]), &agent, &Choice { only, ..Choice::default() });
            let names = |probes: &[Probe]| probes.iter().map(|p| p.name()).collect::<Vec<_>>().join(" ");
            let lines = diagnostics.iter().map(Diagnostic::one_line).collect::<Vec<_>>().join("\n");
            (names(&chosen), names(&beaten), lines)
        };
        assert_eq!(
            ran(&[]),
            ("a own".into(), String::new(), String::new()),
            "`b` has the metric, too, and does not run"
        );
        let expected = "two.yaml:4:12: metric `b_total` is defined twice (the first is in one.yaml, line 10)";
        assert_eq!(ran(&["b"]), ("a b".into(), "own".into(), expected.into()));
    }

    #[test]
    fn overrides_add_to_probes_and_packs() {
        let config = "probes: { override: { pack: { labels: [unit] }, a: { labels: [pod, namespace], max_series: 7, where: pid > 1 } } }";
        let file = |name: &str, text: &str| Arc::new(SourceFile { name: name.into(), text: text.into() });
        let text = FILE.replace("b_total: { type: counter }", "b_total: { type: counter, labels: { unit: comm } }");
        let agent = kstrobe_config::agent(&file("kstrobe.yaml", config)).0.unwrap();
        let choice = Choice { only: vec!["a".into(), "b".into()], ..Choice::default() };
        let (chosen, diagnostics) = chosen_of((vec![file("pack.yaml", &text)], vec![]), &agent, &choice);
        assert_eq!(diagnostics.iter().map(Diagnostic::one_line).collect::<Vec<_>>(), Vec::<String>::new());
        let probes = chosen.unwrap();
        let labels = |probe: &Probe| -> Vec<String> {
            let labels = probe.program.metrics[0].labels.iter();
            labels.map(|l| format!("{}={}", l.name.value, l.value.value)).collect()
        };
        let [a, b] = probes.as_slice() else { panic!("two probes") };
        assert_eq!(
            (labels(a), a.program.metrics[0].max_series),
            (vec!["pod=pod".into(), "namespace=namespace".into()], 7)
        );
        assert_eq!(a.program.extra_filter.as_ref().map(|also| also.value.as_str()), Some("pid > 1"));
        assert_eq!(
            (labels(b), b.program.metrics[0].max_series),
            (vec!["unit=comm".to_owned()], 1024),
            "its own label stays"
        );
    }

    #[test]
    fn a_tools_name_says_which_probe_answers_it() {
        let (probes, _) = super::probes(None);
        let lines = |agent: &str, choice: Choice| -> Vec<String> {
            let file = Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: agent.into() });
            let (_, wrong) = choose(probes.clone(), &kstrobe_config::agent(&file).0.unwrap(), &choice);
            wrong.iter().map(Diagnostic::one_line).collect()
        };
        let one = |name: &str| vec![name.to_owned()];
        let answer =
            |tool: &str, hint: &str| format!("`{tool}` is answered by the probe `runqueue_latency` (write `{hint}`)");
        let enable = Choice { enable: one("runqlat"), ..Choice::default() };
        assert_eq!(lines("", enable), [answer("runqlat", "--enable runqueue_latency")]);
        let only = Choice { only: one("runqlat-bpfcc"), ..Choice::default() };
        assert_eq!(lines("", only), [answer("runqlat-bpfcc", "runqueue_latency")]);
        let in_file = lines("probes: { enable: runqlat.bt }", Choice::default());
        assert_eq!(in_file, [format!("kstrobe.yaml:1:19: {}", answer("runqlat.bt", "runqueue_latency"))]);
        let near = lines("", Choice { enable: one("runqlatt"), ..Choice::default() });
        assert_eq!(near, ["there is no probe `runqlatt` (did you mean `runqlat`?)"]);
    }

    #[test]
    fn a_name_that_fits_nothing_is_shown_at_its_place() {
        let config =
            Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: "probes: { enable: [softrq] }\n".into() });
        let agent = kstrobe_config::agent(&config).0.unwrap();
        let (probes, diagnostics) = super::chosen(&agent, None, &Choice::default());
        assert!(probes.is_none());
        let lines: Vec<String> = diagnostics.iter().map(Diagnostic::one_line).collect();
        assert_eq!(lines, ["kstrobe.yaml:1:20: there is no probe `softrq` (did you mean `softirq`?)"]);
    }
}
