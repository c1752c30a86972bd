//! Abilities that a run of the agent has found before, since the machine was booted: hooks that are attached to find out whether they
//! can be take up to a tenth of a second each to be removed again.
//!
//! Only what works is kept, and only while everything is as it was that decides about it. What does not work is tried again at each start: it
//! may have lacked memory or descriptors.

use crate::kernel::privileges;
use kstrobe_ebpf::kernel_target::{Abilities, Ability};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions, read_to_string, remove_file, rename};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

const FOLDER: &str = "/run/kstrobe";
const FILE: &str = "abilities";
/// Far more than such a file has.
const MAX_BYTES: u64 = 4096;

/// What comes and goes while the machine runs: tracefs may be mounted, and modules are loaded.
const NOT_KEPT: [&str; 2] = ["tracepoint", "module_btf"];

/// Names of abilities that need not be tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known(BTreeSet<String>);

/// Why a file is of no use.
#[derive(Debug, Error)]
pub enum Unusable {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another user could have written it.
    #[error("it is not this user's alone")]
    Foreign,
    #[error("it was found after another boot, with other rights, or by another build of the agent")]
    OtherFacts,
}

/// Where abilities are kept, with the facts that decide about them.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// The effective user of this process.
    user: Option<u32>,
    facts: String,
}

impl Store {
    pub fn here() -> Store {
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        Store { folder: FOLDER.into(), user: user(&status), facts: facts(&status) }
    }

    /// Abilities found under the same facts.
    pub fn read(&self) -> Result<Known, Unusable> {
        // A link could lead to a file of this user's with other contents.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(self.folder.join(FILE))?;
        let metadata = file.metadata()?;
        if Some(metadata.uid()) != self.user || metadata.mode() & 0o077 != 0 || !metadata.is_file() {
            return Err(Unusable::Foreign);
        }
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        let yes = text.strip_prefix(&self.facts).and_then(|rest| rest.strip_prefix("works"));
        let words = yes.ok_or(Unusable::OtherFacts)?.split_whitespace();
        Ok(Known(words.map(str::to_owned).collect()))
    }

    /// Replaces the file. A reader finds the old one or the new one.
    pub fn write(&self, known: &Known) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
        let new = self.folder.join(format!("{FILE}.{}.new", std::process::id()));
        let written = self.write_new(&new, known).and_then(|()| rename(&new, self.folder.join(FILE)));
        if written.is_err() {
            // What is left of it is in the way of nothing: the error is what counts.
            let _ = remove_file(&new);
        }
        written
    }

    fn write_new(&self, new: &Path, known: &Known) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
        let words: Vec<&str> = known.0.iter().map(String::as_str).collect();
        file.write_all(format!("{}works {}\n", self.facts, words.join(" ")).as_bytes())
    }
}

impl Known {
    /// Those that work, of abilities that were tried.
    pub fn of(abilities: &Abilities) -> Known {
        let mut abilities = abilities.clone();
        let works = abilities
            .by_name()
            .into_iter()
            .filter(|(name, ability)| **ability == Ability::Yes && !NOT_KEPT.contains(name));
        Known(works.map(|(name, _)| name.to_owned()).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, ability: &str) -> bool {
        self.0.contains(ability)
    }
}

/// The second of four numbers: real, effective, saved and of file systems.
fn user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// All that decides what the kernel lets this process do and that can change: a line each.
fn facts(status: &str) -> String {
    let line = |path: &str| read_to_string(path).unwrap_or_default().trim().to_owned();
    let of_process = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    // A build under way has the same version as the one before it.
    let build =
        std::fs::metadata("/proc/self/exe").map_or((0, 0, 0), |exe| (exe.size(), exe.mtime(), exe.mtime_nsec()));
    [
        format!("boot {}", line("/proc/sys/kernel/random/boot_id")),
        format!("agent {} {build:?}", env!("CARGO_PKG_VERSION")),
        of_process("CapEff:"),
        of_process("Seccomp:"),
        format!("lockdown {:?}", privileges::lockdown()),
        format!("perf_event_paranoid {}", line("/proc/sys/kernel/perf_event_paranoid")),
        format!("ftrace_enabled {}", line("/proc/sys/kernel/ftrace_enabled")),
    ]
    .map(|fact| fact + "\n")
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn store(name: &str, facts: &str) -> Store {
        let folder = std::env::temp_dir().join(format!("kstrobe-known-{}-{name}", std::process::id()));
        Store { folder, facts: facts.into(), ..Store::here() }
    }

    #[test]
    fn abilities_are_known_again_under_the_same_facts_alone() {
        let first = store("same", "boot 1\nagent 2\n");
        let abilities = Abilities {
            uprobe: Ability::Yes,
            fentry: Ability::No("none".into()),
            module_btf: Ability::Yes,
            ..Abilities::default()
        };
        let known = Known::of(&abilities);
        assert_eq!((known.has("uprobe"), known.has("fentry"), known.has("module_btf")), (true, false, false));
        assert!(matches!(first.read(), Err(Unusable::Io(error)) if error.kind() == io::ErrorKind::NotFound));
        first.write(&known).unwrap();
        assert_eq!(first.read().unwrap(), known);
        assert!(matches!(store("same", "boot 1\nagent 3\n").read(), Err(Unusable::OtherFacts)));
        first.write(&Known::default()).unwrap();
        assert_eq!(first.read().unwrap(), Known::default());
        assert_eq!(std::fs::read_dir(&first.folder).unwrap().count(), 1, "nothing is left beside it");
        std::fs::remove_dir_all(&first.folder).unwrap();
    }

    #[test]
    fn files_that_others_may_write_or_read_are_not_used() {
        let store = store("foreign", "");
        store.write(&Known::default()).unwrap();
        let file = store.folder.join(FILE);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(store.read(), Err(Unusable::Foreign)));
        let elsewhere = store.folder.join("elsewhere");
        std::fs::rename(&file, &elsewhere).unwrap();
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert!(matches!(store.read(), Err(Unusable::Io(_))), "a link is not followed");
        std::fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let store = Store { folder: "/proc/kstrobe".into(), ..Store::here() };
        assert!(store.read().is_err() && store.write(&Known::default()).is_err());
    }

    #[test]
    fn facts_stay_the_same_within_a_process() {
        let (facts, again) = (Store::here().facts, Store::here().facts);
        assert_eq!(facts, again);
        assert!(facts.starts_with("boot ") && facts.contains("CapEff:"), "{facts}");
    }

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(user("Name:\tx\nUid:\t1000\t7\t8\t9\nGid:\t1\t2\t3\t4\n"), Some(7));
        assert_eq!(user("Name:\tx\n"), None);
    }
}
