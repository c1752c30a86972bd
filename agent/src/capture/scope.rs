//! Threads that a request means: by number, by name, in control groups.

use super::error::RequestError;
use super::request::Scope;
use crate::kernel::binaries::pattern::matches;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Control groups below one another: deeper ones are not looked at, so that a loop of links ends.
const MAX_LEVELS: usize = 64;

impl Scope {
    /// Whether only some threads are recorded.
    pub fn restricts(&self) -> bool {
        self.only_command || self.looks_again() || !self.pids.is_empty()
    }

    /// Whether threads that begin later may be in scope.
    pub fn looks_again(&self) -> bool {
        !self.comms.is_empty() || !self.cgroups.is_empty()
    }

    /// The error of a scope that can contain no thread.
    pub fn check(&self) -> Result<(), RequestError> {
        // Names of pods are replaced by control groups before: see `kubernetes::pods`.
        if let Some(pod) = self.pods.first() {
            return Err(RequestError::PodNotLocated(pod.clone()));
        }
        for group in &self.cgroups {
            if procs(group).is_none() {
                return Err(RequestError::NotACgroup(group.clone()));
            }
        }
        for pid in &self.pids {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                return Err(RequestError::NoProcess(*pid));
            }
        }
        if self.only_command && self.command.is_empty() {
            return Err(RequestError::NoCommand);
        }
        Ok(())
    }

    /// All threads in scope now, but for the command's.
    pub fn threads(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for pid in &self.pids {
            found.extend(threads_of(*pid));
            found.insert(*pid);
        }
        if !self.comms.is_empty() {
            let named = |thread: &i32| {
                let comm = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
                self.comms.iter().any(|pattern| matches(pattern, comm.trim_end_matches('\n')))
            };
            found.extend(numbers("/proc").into_iter().flat_map(threads_of).filter(named));
        }
        for group in &self.cgroups {
            groups_in(group, &mut |group| {
                let processes = procs(group).unwrap_or_default();
                found.extend(processes.lines().filter_map(|line| line.parse().ok()).flat_map(threads_of));
                true
            });
        }
        found
    }
}

/// Calls `look` for a control group and those in it; false leaves out the groups below.
pub fn groups_in(group: &Path, look: &mut dyn FnMut(&Path) -> bool) {
    let mut groups: Vec<(PathBuf, usize)> = vec![(group.to_owned(), 0)];
    while let Some((group, level)) = groups.pop() {
        if look(&group) && level < MAX_LEVELS {
            let inner = std::fs::read_dir(&group).into_iter().flatten().flatten();
            let folders = inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            groups.extend(folders.map(|folder| (folder.path(), level + 1)));
        }
    }
}

/// Processes of a control group, one number a line.
fn procs(group: &Path) -> Option<String> {
    std::fs::read_to_string(group.join("cgroup.procs")).ok()
}

/// All threads of a process; of a thread that is not the first of its process, the thread alone.
pub fn threads_of(pid: i32) -> Vec<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<i32>().ok());
    match process {
        Some(process) if process == pid => numbers(&format!("/proc/{pid}/task")),
        Some(_) => vec![pid],
        None => Vec::new(),
    }
}

/// Entries of a directory that are numbers.
pub fn numbers(directory: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_by_number_and_name() {
        let name = "scope-of-test";
        let (tell, sent) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = ended.recv();
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work).unwrap();
        let (tid, pid) = (sent.recv().unwrap(), std::process::id().cast_signed());
        let of = |scope: Scope| scope.threads();
        assert_eq!(of(Scope { comms: vec!["scope-of-*".into()], ..Scope::default() }), BTreeSet::from([tid]));
        assert_eq!(of(Scope { pids: vec![tid], ..Scope::default() }), BTreeSet::from([tid]));
        let all = of(Scope { pids: vec![pid], ..Scope::default() });
        assert!(all.contains(&tid) && all.contains(&pid), "{all:?}");
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_scope_without_threads_is_an_error() {
        let said = |scope: Scope| scope.check().unwrap_err().to_string();
        assert_eq!(
            said(Scope { pids: vec![i32::MAX], ..Scope::default() }),
            "there is no process or thread 2147483647"
        );
        let no_group = Scope { cgroups: vec!["/proc/self".into()], ..Scope::default() };
        assert_eq!(said(no_group), "`/proc/self` is no control group: it has no cgroup.procs");
        assert!(said(Scope { pods: vec!["a/b".into()], ..Scope::default() }).contains("not known"));
    }
}
