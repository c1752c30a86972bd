//! Probes that do not run because the agent is not root: one message for all of them.

use super::App;
use crate::kernel::privileges::Capabilities;

/// Probes that do not run while capabilities are missing.
pub(super) struct Lacking {
    /// The message: capabilities, probes, and the command that helps.
    pub text: String,
    /// Whether no probe runs.
    pub all: bool,
}

/// The probes of the agent that do not run, where capabilities are missing.
pub(super) fn lacking(app: &App) -> Option<Lacking> {
    let (probes, missing) = (app.probes(), Capabilities::missing_here());
    let idle = probes.iter().map(|probe| probe.lock()).filter(|probe| !probe.runs());
    let idle: Vec<String> = idle.map(|probe| probe.meta.name.clone()).collect();
    if idle.is_empty() || missing.is_empty() {
        return None;
    }
    let command: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let text = text(&missing, &idle, probes.len(), &command.join(" "));
    Some(Lacking { text, all: idle.len() == probes.len() })
}

fn text(missing: &[&str], idle: &[String], all: usize, command: &str) -> String {
    let (missing, count, idle) = (missing.join(" and "), idle.len(), idle.join(", "));
    format!(
        "this process lacks {missing}, without which the kernel loads no program: {count} of {all} probes do not run ({idle}); \
         type `sudo {command}`, or start the service: `sudo systemctl start kstrobe`"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_text_names_rights_probes_and_command() {
        let idle = ["block".to_owned(), "vfs".to_owned()];
        let text = super::text(&["CAP_BPF", "CAP_PERFMON"], &idle, 3, "kstrobe run");
        assert_eq!(
            text,
            "this process lacks CAP_BPF and CAP_PERFMON, without which the kernel loads no program: 2 of 3 probes do not \
             run (block, vfs); type `sudo kstrobe run`, or start the service: `sudo systemctl start kstrobe`"
        );
    }
}
