//! Flags of the command line as conditions in the probe language.

use std::sync::Arc;

use kstrobe_config::model::{Location, Owner, Probe, Shape, SourceFile, Spanned, SpannedStr};

/// Stands for the file that the conditions are written in, in diagnostics.
pub const FILTERS: &str = "condition of the command line";

/// Which events to measure; each must hold.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    pub pid: Option<u32>,
    pub comm: Option<String>,
    pub pod: Option<String>,
    pub cgroup: Option<Cgroup>,
    pub port: Option<u16>,
}

/// A cgroup, by its id: the inode number of its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgroup(pub u64);

/// Why a condition would show wrong figures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(
        "`{flag}` does not fit the probe `{probe}`: it measures rows of a table that the agent reads, which belong to no process"
    )]
    Rows { flag: &'static str, probe: String },
    #[error(
        "`{flag}` does not fit the probe `{probe}`: its events are not those of the task that runs at that moment \
         (`owner: none`). Leave `{flag}` out{}",
        by(labels)
    )]
    NoTask { flag: &'static str, probe: String, labels: Vec<String> },
    #[error("`--port` does not fit the probe `{probe}`: its events have no port. Leave `--port` out{}", by(labels))]
    NoPort { probe: String, labels: Vec<String> },
}

fn by(labels: &[String]) -> String {
    match labels {
        [] => String::new(),
        labels => format!(", and tell its events apart by `--by {}`", labels.join(",")),
    }
}

impl Filters {
    /// All conditions as one expression of this probe; `None` without any.
    pub(super) fn condition(&self, probe: &Probe) -> Result<Option<SpannedStr>, Unfit> {
        let mut terms = Vec::new();
        if let Some(pid) = self.pid {
            terms.push(format!("{} == {pid}", of_task(probe, "--pid", "pid", "tgid")?));
        }
        if let Some(comm) = &self.comm {
            let text = match named(probe, &["comm"]).pop() {
                Some(shown) => shown,
                None => of_task(probe, "--comm", "comm", "comm")?,
            };
            terms.push(format!("{text} == {}", quoted(comm)));
        }
        if let Some(pod) = &self.pod {
            owned(probe, "--pod")?;
            terms.push(format!("pod == {}", quoted(pod)));
        }
        if let Some(Cgroup(id)) = self.cgroup {
            let cgroup = match owned(probe, "--cgroup")? {
                Some(owner) => format!("cgroup_of({owner})"),
                None => "cgroup".to_owned(),
            };
            terms.push(format!("{cgroup} == {id}"));
        }
        if let Some(port) = self.port {
            terms.push(ports(probe, port)?);
        }
        let text = terms.join(" && ");
        let file = Arc::new(SourceFile { name: FILTERS.into(), text: text.clone() });
        let at = Location::new(&file, 0..text.len());
        Ok((!text.is_empty()).then(|| Spanned::new(text, at)))
    }
}

/// The owner's expression where events are measured, or `None` for the task that runs; refused where there is no owner.
fn owned<'a>(probe: &'a Probe, flag: &'static str) -> Result<Option<&'a str>, Unfit> {
    if matches!(probe.program.shape, Shape::Poll { .. }) {
        return Err(Unfit::Rows { flag, probe: probe.name().to_owned() });
    }
    match &probe.program.owner {
        Owner::Current => Ok(None),
        Owner::None => Err(Unfit::NoTask { flag, probe: probe.name().to_owned(), labels: labels(probe) }),
        Owner::Of { end, .. } => Ok(Some(&end.value)),
    }
}

/// A property of the task whose the events are: by its name in the language, or by the member of the owner. An owner that is
/// no task has no such member, which the compiler says.
fn of_task(probe: &Probe, flag: &'static str, name: &str, member: &str) -> Result<String, Unfit> {
    Ok(owned(probe, flag)?.map_or_else(|| name.to_owned(), |owner| format!("({owner}).{member}")))
}

/// A condition on any of the probe's ports: those that it shows, else those of the socket that owns the event.
fn ports(probe: &Probe, port: u16) -> Result<String, Unfit> {
    let mut shown = named(probe, &["port", "local_port", "remote_port"]);
    if shown.is_empty() {
        let no_port = || Unfit::NoPort { probe: probe.name().to_owned(), labels: labels(probe) };
        let socket = owned(probe, "--port").ok().flatten().ok_or_else(no_port)?;
        // `sk_num` is 0 once the socket is closed; `inet_sport` stays. A task has no `sk_dport`, which the compiler says.
        shown =
            vec![format!("ntohs(({socket}).sk_dport)"), format!("ntohs(cast(struct inet_sock, {socket}).inet_sport)")];
    }
    let terms: Vec<String> = shown.into_iter().map(|text| format!("{text} == {port}")).collect();
    Ok(format!("({})", terms.join(" || ")))
}

/// Expressions of the labels and fields of these names, each once, as numbers and text of the machine.
fn named(probe: &Probe, names: &[&str]) -> Vec<String> {
    let labels = probe.program.metrics.iter().flat_map(|metric| &metric.labels);
    let labels = labels.map(|label| (&label.name, &label.value));
    let fields = probe.program.slow.iter().flat_map(|slow| &slow.fields).map(|(name, value)| (name, value));
    let mut found: Vec<String> = Vec::new();
    for (name, value) in labels.chain(fields) {
        // A name stands for an expression of names before it.
        let written = probe.program.lets.iter().rev().fold(value.value.trim(), |text, (name, expression)| {
            if name.value == text { expression.value.trim() } else { text }
        });
        let text = undecoded(written);
        if names.contains(&name.value.as_str()) && !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

/// `port(x)` is for labels alone: in a condition it is `ntohs(x)`.
fn undecoded(text: &str) -> String {
    let inner = text.strip_prefix("port(").and_then(|rest| rest.strip_suffix(')'));
    // The last bracket closes the first one when none before it does.
    let mut depth = 0;
    let mut closes_last = |inner: &str| {
        inner.chars().all(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth >= 0
        })
    };
    match inner {
        Some(inner) if closes_last(inner) => format!("ntohs({inner})"),
        _ => format!("({text})"),
    }
}

fn labels(probe: &Probe) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for label in probe.program.metrics.iter().flat_map(|metric| &metric.labels) {
        if !names.contains(&label.name.value) {
            names.push(label.name.value.clone());
        }
    }
    names
}

/// As text of the language.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(name: &str) -> Probe {
        let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
        probes.into_iter().find(|probe| probe.name() == name).unwrap()
    }

    fn condition(probe: &str, filters: Filters) -> Result<String, String> {
        let condition = filters.condition(&shipped(probe)).map_err(|unfit| unfit.to_string())?;
        Ok(condition.map(|text| text.value).unwrap_or_default())
    }

    #[test]
    fn conditions_are_about_the_task_that_owns_the_event() {
        let pid = || Filters { pid: Some(7), ..Filters::default() };
        let comm = || Filters { comm: Some("a \"b\"".into()), ..Filters::default() };
        assert_eq!(condition("syncs", pid()), Ok("pid == 7".into()));
        assert_eq!(condition("runqueue_latency", pid()), Ok("(args.next).tgid == 7".into()));
        assert_eq!(condition("runqueue_latency", comm()), Ok("(args.next.comm) == \"a \\\"b\\\"\"".into()));
        assert_eq!(condition("block_by_program", comm()), Ok("(start.comm) == \"a \\\"b\\\"\"".into()));
        let both = Filters { comm: comm().comm, cgroup: Some(Cgroup(9)), ..pid() };
        assert_eq!(condition("sleeps", both), Ok("pid == 7 && (comm) == \"a \\\"b\\\"\" && cgroup == 9".into()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let pid = || Filters { pid: Some(7), ..Filters::default() };
        let refused = condition("softirq", pid()).unwrap_err();
        assert!(refused.contains("`owner: none`") && refused.contains("--by vector"), "{refused}");
        assert!(condition("network_counters", pid()).unwrap_err().contains("rows of a table"));
        let port = Filters { port: Some(80), ..Filters::default() };
        assert!(condition("sleeps", port).unwrap_err().contains("have no port"));
    }

    #[test]
    fn ports_are_those_that_are_shown_or_the_sockets() {
        let port = || Filters { port: Some(80), ..Filters::default() };
        let connects = condition("tcp_connects", port()).unwrap();
        assert_eq!(connects, "(ntohs(args.sk.sk_dport) == 80)");
        let retransmits = condition("tcp_retransmits", port()).unwrap();
        assert!(retransmits.starts_with("(ntohs((args.sk).sk_dport) == 80 || "), "{retransmits}");
    }

    #[test]
    fn only_whole_calls_of_port_are_undecoded() {
        assert_eq!(undecoded("port(cast(struct s, args.sk).p)"), "ntohs(cast(struct s, args.sk).p)");
        assert_eq!(undecoded("port(a) + port(b)"), "(port(a) + port(b))");
    }
}
