//! Reads and checks the configuration: files and command line together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Options;
use super::watch::{self, Seen};
use crate::config::files::diag::Diagnostic;
use crate::config::files::{self, AgentConfig, SourceFile};
use crate::config::plan::{self, ProbePlan};

/// Hexadecimal digits of a hash that are shown: enough to tell configurations apart, and short enough to compare by eye.
const HASH_DIGITS: usize = 16;

/// A configuration that can run.
pub(super) struct LoadedConfig {
    pub agent: AgentConfig,
    pub plans: Vec<ProbePlan>,
    /// Of the files' names (without folders) and texts.
    pub hash: String,
}

pub(super) struct LoadOutcome {
    /// May be there beside mistakes: the probes with mistakes are left out of it.
    pub loaded: Option<LoadedConfig>,
    pub diagnostics: Vec<Diagnostic>,
    /// The files as they were before they were read.
    pub seen: Seen,
    /// Of probe files.
    pub directory: Option<PathBuf>,
}

/// Reads the files. `directory` is the last known folder of probe files, for a configuration that cannot be parsed.
pub(super) fn read(options: &Options, directory: Option<&Path>) -> LoadOutcome {
    let (config, own) = (options.config.as_deref(), options.source.probes.as_deref());
    let mut seen = watch::look(config, None);
    let (agent, file, mut diagnostics) = agent(config);
    let directory = match &agent {
        Some(agent) => files::directory(agent, own),
        None => directory,
    };
    let directory = directory.map(Path::to_path_buf);
    seen.append(&mut watch::look(None, directory.as_deref()));
    let Some(agent) = agent else { return LoadOutcome { loaded: None, diagnostics, seen, directory } };
    let mut files = files::probe_files(&agent, own);
    files.0.extend(options.handed.get());
    let hash = hash(file.iter().chain(&files.0));
    let (probes, mut more) = files::chosen_of(files, &agent, &options.choice);
    diagnostics.append(&mut more);
    let plans = probes.map(|probes| probes.into_iter().map(plan::plan).collect());
    LoadOutcome { loaded: plans.map(|plans| LoadedConfig { agent, plans, hash }), diagnostics, seen, directory }
}

fn agent(config: Option<&Path>) -> (Option<AgentConfig>, Option<Arc<SourceFile>>, Vec<Diagnostic>) {
    match config.map(files::file).transpose() {
        Err(unread) => (None, None, vec![unread]),
        Ok(None) => (Some(AgentConfig::default()), None, Vec::new()),
        Ok(Some(file)) => {
            let (agent, diagnostics) = files::check_agent(&file);
            (agent, Some(file), diagnostics)
        }
    }
}

impl LoadedConfig {
    /// Addresses to listen on.
    pub fn listen<'a>(&'a self, options: &'a Options) -> &'a [String] {
        if options.listen.is_empty() { &self.agent.listen } else { &options.listen }
    }

    /// Where single events are written.
    pub fn events<'a>(&'a self, options: &'a Options) -> &'a str {
        options.events.as_deref().unwrap_or(&self.agent.events)
    }

    /// Least severe messages to log, and whether as JSON.
    pub fn log<'a>(&'a self, options: &'a Options) -> (&'a str, bool) {
        let level = options.log_level.as_deref().unwrap_or(&self.agent.log_level);
        (level, options.log_json.unwrap_or(self.agent.log_json))
    }

    /// Names of the probes that have single events.
    pub fn slow(&self) -> Vec<String> {
        slow(&self.plans)
    }
}

/// Names of those that have single events.
pub(super) fn slow(plans: &[ProbePlan]) -> Vec<String> {
    plans.iter().map(ProbePlan::meta).filter(|meta| meta.slow).map(|meta| meta.name.clone()).collect()
}

fn hash<'a>(files: impl Iterator<Item = &'a Arc<SourceFile>>) -> String {
    let mut hash = Sha256::new();
    for file in files {
        let name = file.name.rsplit('/').next().unwrap_or_default();
        // Lengths, so that no text can stand for another file.
        for part in [name, &file.text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..HASH_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_names_and_texts() {
        let hash = |files: &[(&str, &str)]| {
            let file =
                |(name, text): &(&str, &str)| Arc::new(SourceFile { name: (*name).into(), text: (*text).into() });
            super::hash(files.iter().map(file).collect::<Vec<_>>().iter())
        };
        let one = hash(&[("/etc/kstrobe/a.yaml", "x")]);
        assert_eq!(
            (one.len(), hash(&[("/tmp/a.yaml", "x")]) == one),
            (16, true),
            "{one}: folders differ between nodes"
        );
        for other in
            [&[("b.yaml", "x")][..], &[("a.yaml", "y")], &[("a.yamlx", "")], &[("a.yaml", "x"), ("b.yaml", "")], &[]]
        {
            assert_ne!(hash(other), one, "{other:?}");
        }
        // SHA-256 of nothing: the same in all versions of the agent.
        assert_eq!(hash(&[]), "e3b0c44298fc1c14");
    }
}
