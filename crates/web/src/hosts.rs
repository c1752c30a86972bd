//! The names that this server answers to. A web page whose own name was made to resolve to this machine (DNS rebinding) is of the same
//! origin as the server for a browser and may read every answer; the name in `Host`, which no script can set, shows it.

use std::net::IpAddr;

const HOSTNAME: &str = "/proc/sys/kernel/hostname";
const RESOLVER: &str = "/etc/resolv.conf";

/// Host names of a server. IP addresses are always accepted: DNS rebinding needs a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<Name>,
    /// Search domains of the resolver.
    search: Vec<String>,
}

/// An allowed host name or pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// `*`: any name.
    Any,
    /// An exact name.
    Exactly(String),
    /// `*.DOMAIN`: any name below this domain.
    Below(String),
}

/// A text that is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name of a host: write NAME without a port, *.DOMAIN, or * for any name")]
pub struct NotAName(String);

impl Name {
    /// Parses `NAME`, `*.DOMAIN` or `*`.
    pub fn parse(text: &str) -> Result<Name, NotAName> {
        if text == "*" {
            return Ok(Name::Any);
        }
        let (below, name) = text.strip_prefix("*.").map_or((false, text), |domain| (true, domain));
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !name.split('.').all(is_label) {
            return Err(NotAName(text.to_owned()));
        }
        Ok(if below { Name::Below(name) } else { Name::Exactly(name) })
    }
}

impl Hosts {
    /// Accepts any name.
    pub fn any() -> Hosts {
        Hosts { names: vec![Name::Any], search: Vec::new() }
    }

    /// Accepts addresses, `localhost`, the host name of the machine or pod, and the configured names.
    pub fn of_machine(configured: Vec<Name>) -> Hosts {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        Hosts::new(configured, read(HOSTNAME).trim(), &read(RESOLVER))
    }

    /// The same with an explicit host name and content of `resolv.conf`.
    pub fn new(configured: Vec<Name>, hostname: &str, resolver: &str) -> Hosts {
        let hostname = hostname.to_ascii_lowercase();
        let short = hostname.split('.').next().unwrap_or_default();
        let own = [hostname.as_str(), short].into_iter().filter_map(|name| Name::parse(name).ok());
        let search = resolver.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            matches!(words.next(), Some("search" | "domain")).then_some(words)
        });
        // `search .` means no domain.
        let search = search.flatten().map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        Hosts { names: own.chain(configured).collect(), search: search.filter(|domain| !domain.is_empty()).collect() }
    }

    /// Whether a `Host` value, with or without a port, is a name of this server.
    pub fn has(&self, host: &[u8]) -> bool {
        if self.names.contains(&Name::Any) {
            return true;
        }
        let Some(name) = std::str::from_utf8(host).ok().and_then(without_port) else { return false };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        is_address(&name) || name == "localhost" || self.is_named(&name) || self.is_completed(&name)
    }

    fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|own| match own {
            Name::Any => true,
            Name::Exactly(own) => own == name,
            Name::Below(domain) => below(name, domain).is_some(),
        })
    }

    /// Whether the name is one of ours plus a search domain.
    fn is_completed(&self, name: &str) -> bool {
        self.search.iter().filter_map(|domain| below(name, domain)).any(|short| self.is_named(short))
    }
}

/// The part of a name before a domain.
fn below<'a>(name: &'a str, domain: &str) -> Option<&'a str> {
    name.strip_suffix(domain)?.strip_suffix('.').filter(|rest| !rest.is_empty())
}

fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(_) => host.split_at(host.find(']')? + 1),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    is_port.then_some(name)
}

fn is_address(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    // `%25eth0` names the interface of a link-local address.
    inner.split('%').next().is_some_and(|address| address.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_answered_and_foreign_ones_refused() {
        let configured = ["kstrobe", "kstrobe.ops.svc", "*.kstrobe.ops.svc", "Scrape.Example."];
        let configured = configured.iter().map(|name| Name::parse(name).unwrap()).collect();
        let resolver =
            "nameserver 10.0.0.1\nsearch ops.svc.cluster.local svc.cluster.local cluster.local\ndomain corp.example\n";
        let hosts = Hosts::new(configured, "Node-1.dc.example", resolver);
        for (host, answered) in [
            ("localhost", true),
            ("LOCALHOST:9779", true),
            ("localhost.:9779", true),
            ("127.0.0.1:9779", true),
            ("10.1.2.3", true),
            ("[::1]:9779", true),
            ("[fe80::1%25eth0]:9779", true),
            ("node-1", true),
            ("node-1.dc.example:9779", true),
            ("node-1.corp.example", true),
            ("kstrobe:9779", true),
            ("kstrobe.ops.svc.cluster.local:9779", true),
            ("10-1-2-3.kstrobe.ops.svc.cluster.local", true),
            ("scrape.example", true),
            ("", false),
            (":9779", false),
            ("evil.example:9779", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("node-1.evil.example", false),
            ("node-2.dc.example", false),
            ("kstrobe.ops.svc.evil.example", false),
            ("evil-node-1.corp.example", false),
            ("xcorp.example", false),
            ("corp.example", false),
            (".kstrobe.ops.svc", false),
            ("localhost@evil.example", false),
            ("evil.example:9779@localhost", false),
            ("localhost:9779:1", false),
            ("[::1", false),
            ("[::1]evil.example", false),
        ] {
            assert_eq!(hosts.has(host.as_bytes()), answered, "{host:?}");
        }
        assert!(!hosts.has(b"\xff"));
        assert!(Hosts::any().has(b"evil.example") && !Hosts::default().has(b"evil.example"));
        assert!(!Hosts::new(Vec::new(), "", "search .\n").has(b"."), "an unknown hostname is no name");
    }

    #[test]
    fn invalid_names_are_refused() {
        for wrong in ["", "*.", "a b", "host:9779", "http://host", "a..b", "*a", "a.*", "[::1]"] {
            assert!(Name::parse(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(Name::parse("*"), Ok(Name::Any));
    }
}
