//! Which probes a name means: a probe's own, or a classic tool's.

use clap::CommandFactory;
use kstrobe_config::did_you_mean;
use kstrobe_config::model::Probe;

/// There is neither a command nor a probe nor a tool of that name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no command, probe or tool `{name}`{}", hint(near))]
pub struct Unknown {
    name: String,
    near: Option<String>,
}

fn hint(near: &Option<String>) -> String {
    match near {
        Some(near) => format!(": did you mean `{near}`?"),
        None => "; `kstrobe help` lists the commands, `kstrobe list` the probes and the tools that they replace".into(),
    }
}

/// The probe of that name alone, else those that replace that tool, in the order of the library.
pub fn resolve<'a>(name: &str, probes: &'a [Probe]) -> Result<Vec<&'a Probe>, Unknown> {
    let own: Vec<&Probe> = probes.iter().filter(|probe| probe.name() == name).collect();
    let found = if own.is_empty() { kstrobe_config::probes_replacing(name, probes) } else { own };
    if !found.is_empty() {
        return Ok(found);
    }
    let cli = super::super::Cli::command();
    let commands: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
    let tools = probes.iter().flat_map(|probe| probe.replaces.iter().map(String::as_str).chain([probe.name()]));
    let near = did_you_mean(name, commands.into_iter().chain(tools)).map(str::to_owned);
    Err(Unknown { name: name.to_owned(), near })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<Vec<String>, String> {
        let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
        let found = resolve(name, &probes).map_err(|unknown| unknown.to_string())?;
        Ok(found.into_iter().map(|probe| probe.name().to_owned()).collect())
    }

    #[test]
    fn tools_and_probes_are_found_by_name() {
        for tool in ["runqlat", "runqlat.bt", "runqlat-bpfcc", "runqueue_latency"] {
            assert_eq!(named(tool), Ok(vec!["runqueue_latency".to_owned()]), "{tool}");
        }
    }

    #[test]
    fn unknown_names_say_what_may_be_meant() {
        let meant = |name: &str| named(name).unwrap_err();
        assert!(meant("runqlta").ends_with("did you mean `runqlat`?"), "{}", meant("runqlta"));
        assert!(meant("explian").ends_with("did you mean `explain`?"));
        assert!(meant("runqueue_latancy").ends_with("did you mean `runqueue_latency`?"));
        assert!(meant("zzzzzzzzzz").contains("`kstrobe list`"));
    }
}
