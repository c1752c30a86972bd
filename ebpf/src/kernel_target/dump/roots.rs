//! Which types a dump needs, so that what compiled for a kernel also compiles for its dump.

use crate::kernel_target::Target;
use crate::kernel_target::btf::{Btf, ITERATOR, Kind, Type};
use std::collections::{BTreeSet, VecDeque};

/// Members that `netns` walks through.
const NETNS: [&str; 3] = ["nsproxy", "net_ns", "ns"];
/// Members on the way from a task and from a socket to its cgroup's id.
const CGROUP: [&str; 4] = ["cgroups", "dfl_cgrp", "cgroup", "kn"];
/// Members on the way from a socket to its cookie.
const COOKIE: [&str; 3] = ["__sk_common", "skc_cookie", "counter"];
/// A packet and its headers, and the members that say where they begin.
const HEADERS: [&str; 5] = ["sk_buff", "iphdr", "ipv6hdr", "tcphdr", "udphdr"];
const PACKET_MEMBERS: [&str; 3] = ["head", "network_header", "transport_header"];
/// Structures behind a descriptor, as `fd_file` and `fd_sock` walk them.
const DESCRIPTOR: [&str; 5] = ["files_struct", "fdtable", "file", "inode", "socket"];
/// What decides whether user stacks are walked by tables, and what such a walk begins with.
const UNWIND: [&str; 4] = ["task_struct", "mm_struct", "pt_regs", "bpf_iter_num_new"];
/// More roots than any set of probes has: hostile types end here.
const MAX_ROOTS: usize = 10_000;

/// Names of the types that expressions of these texts can come to read at these hooks.
///
/// Decided by names alone, so that it works for a probe that does not compile: types and constants that a text names,
/// arguments of the `raw_events` (or functions of iterators) and of the functions that these patterns name, and members that are pointers to structs and whose name occurs in a text.
pub fn roots<'a>(
    target: &Target,
    raw_events: impl IntoIterator<Item = &'a str>,
    syscalls: impl IntoIterator<Item = &'a str>,
    patterns: impl IntoIterator<Item = &'a str>,
    texts: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let [raw_events, syscalls, patterns, texts]: [Vec<&str>; 4] = [
        raw_events.into_iter().collect(),
        syscalls.into_iter().collect(),
        patterns.into_iter().collect(),
        texts.into_iter().collect(),
    ];
    let mut roots = BTreeSet::new();
    for btf in target.btf.iter().chain(target.modules.values()) {
        let mut finder = Finder { btf, words: BTreeSet::new(), roots: BTreeSet::new(), open: VecDeque::new() };
        finder.root("bpf_rdonly_cast");
        texts.iter().for_each(|text| finder.text(text));
        if let Some(constant) = target.cgroup_constant().filter(|_| finder.words.contains("cgroup")) {
            finder.root("task_struct");
            // Elements of the array of controllers point to it.
            finder.root("cgroup_subsys_state");
            finder.root(&constant);
            finder.words.extend(CGROUP.into_iter().chain(["subsys"]).map(str::to_owned));
        }
        raw_events.iter().for_each(|event| finder.event(event));
        syscalls.iter().for_each(|call| finder.syscall(target, call));
        patterns.iter().filter_map(|p| target.functions.get(*p)).flatten().for_each(|f| finder.function(&f.symbol));
        finder.follow();
        roots.append(&mut finder.roots);
    }
    roots.into_iter().collect()
}

struct Finder<'b> {
    btf: &'b Btf,
    /// Words of all texts.
    words: BTreeSet<String>,
    roots: BTreeSet<String>,
    /// Types whose members were not looked at yet.
    open: VecDeque<u32>,
}

impl Finder<'_> {
    fn root(&mut self, name: &str) {
        if self.roots.len() >= MAX_ROOTS || !self.roots.insert(name.to_owned()) {
            return;
        }
        self.open.extend(self.btf.find_aggregate(name));
        self.open.extend(self.btf.find(name, Kind::Typedef));
    }

    fn text(&mut self, text: &str) {
        let mut before = "";
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty()) {
            let is_type = matches!(before, "struct" | "union" | "enum");
            if is_type || self.btf.constant(word).is_some() {
                self.root(word);
            }
            match word {
                "task" | "off_cpu" | "on_cpu" => self.root("task_struct"),
                "netns" => {
                    self.root("task_struct");
                    self.words.extend(NETNS.map(str::to_owned));
                }
                "ustack" => UNWIND.into_iter().for_each(|name| self.root(name)),
                "fd_file" | "fd_sock" => {
                    self.root("task_struct");
                    self.root("sock");
                    DESCRIPTOR.into_iter().for_each(|name| self.root(name));
                }
                "socket_cookie" => {
                    self.root("sock");
                    self.words.extend(COOKIE.map(str::to_owned));
                }
                "ip_header" | "ipv6_header" | "tcp_header" | "udp_header" => {
                    HEADERS.into_iter().for_each(|name| self.root(name));
                    self.words.extend(PACKET_MEMBERS.map(str::to_owned));
                }
                "cgroup_of" | "namespace" | "pod" | "container" | "workload" | "unit" | "cgroup_path" => {
                    self.root("task_struct");
                    self.root("sock");
                    self.words.extend(CGROUP.map(str::to_owned));
                }
                _ => {}
            }
            // The kernel's own macros: `sk_prot` is `__sk_common.skc_prot`.
            if let Some((_, rest)) = word.split_once('_') {
                self.words.insert(format!("skc_{rest}"));
            }
            self.words.insert(word.to_owned());
            before = word;
        }
    }

    fn event(&mut self, event: &str) {
        if event.starts_with(ITERATOR) {
            return self.iterator(event);
        }
        self.root(&format!("btf_trace_{event}"));
        self.root(&format!("__traceiter_{event}"));
        if matches!(event, "sys_enter" | "sys_exit") {
            self.root("pt_regs");
        }
        for (name, ty) in self.btf.tracepoint_args(event).unwrap_or_default() {
            if self.words.contains(&name) {
                self.pointee(self.btf.strip(ty));
            }
        }
    }

    /// All that it gets: `args.sk` stands for what has other names.
    fn iterator(&mut self, function: &str) {
        self.root(function);
        for (_, ty) in self.btf.function(function).unwrap_or_default().0 {
            self.pointee(self.btf.strip(ty));
        }
    }

    fn syscall(&mut self, target: &Target, call: &str) {
        for arg in target.syscalls.get(call).and_then(|c| c.args.as_deref()).unwrap_or_default() {
            // `const struct sockaddr *`, `umode_t`: the last word names the type.
            let name = arg.ctype.trim_end_matches(['*', ' ']).rsplit(' ').next().unwrap_or_default();
            if self.words.contains(&arg.name) {
                self.root(name);
            }
        }
    }

    fn function(&mut self, symbol: &str) {
        let name = crate::kernel_target::plain_name(symbol);
        let Some((params, result)) = self.btf.function(name) else { return };
        self.root(name);
        for (name, ty) in params.into_iter().chain([("retval", result)]) {
            if self.words.contains(name) {
                self.pointee(self.btf.strip(ty));
            }
        }
    }

    /// Makes a root of the struct that a pointer, or an array of pointers, leads to.
    fn pointee(&mut self, mut t: Type) {
        // No array of the kernel has more dimensions.
        for _ in 0..4 {
            match t.kind {
                Kind::Array => t = self.btf.strip(self.btf.array(t).unwrap_or_default().0),
                Kind::Ptr => t = self.btf.strip(t.size_or_type),
                _ => break,
            }
        }
        if matches!(t.kind, Kind::Struct | Kind::Union | Kind::Fwd) {
            let name = self.btf.name(t).to_owned();
            if !name.is_empty() {
                self.root(&name);
            }
        }
    }

    /// Looks at the members of all roots and of what they hold by value.
    fn follow(&mut self) {
        let mut seen = BTreeSet::new();
        while let Some(id) = self.open.pop_front() {
            let t = self.btf.strip(id);
            if !seen.insert(t.id) {
                continue;
            }
            let members: Vec<_> = self.btf.members(t).map(|m| (m.name.to_owned(), m.ty)).collect();
            for (name, ty) in members {
                let mut held = self.btf.strip(ty);
                if let Some((element, _)) = self.btf.array(held) {
                    held = self.btf.strip(element);
                }
                match held.kind {
                    Kind::Struct | Kind::Union => self.open.push_back(held.id),
                    Kind::Ptr if self.words.contains(&name) => self.pointee(held),
                    _ => {}
                }
            }
        }
    }
}
