//! `exporters:`. Keys are those of the OpenTelemetry collector's `otlp` exporter and of Prometheus' `remote_write` where
//! they have them.

use super::capture::in_range;
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Exporter, ExporterTls, Protocol};
use crate::quantity;
use crate::raw::{Entry, Kind, Node};
use crate::report::{Problem, Report};
use crate::schema;

const EXPORTERS: Keys = Keys { of: "`exporters`", known: &schema::names(&schema::EXPORTERS), later: &[] };
const OTLP: Keys = Keys { of: "an OTLP exporter", known: &schema::names(&schema::OTLP), later: &[] };
const REMOTE_WRITE: Keys = Keys {
    of: "a remote write exporter",
    known: &schema::names(&schema::REMOTE_WRITE),
    later: &["authorization", "basic_auth", "sigv4", "oauth2", "write_relabel_configs"],
};
const TLS: Keys = Keys { of: "`tls`", known: &schema::names(&schema::TLS), later: &[] };
const RETRY: Keys = Keys { of: "`retry_on_failure`", known: &schema::names(&schema::RETRY), later: &[] };
const QUEUE: Keys = Keys { of: "`queue_config`", known: &schema::names(&schema::QUEUE), later: &[] };

/// Headers that exporters set themselves, in small letters. A test of the agent compares them with what `kstrobe-export` sets.
pub const EXPORTER_HEADERS: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
    "x-prometheus-remote-write-version",
];

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const MAX_EXPORTERS: usize = 16;
const MAX_PAIRS: usize = 64;
const MIN_QUEUE_BYTES: u64 = 1 << 20;
const MAX_QUEUE_BYTES: u64 = 4 << 30;

/// `exporters:`; those that are wrong are reported and left out.
pub(super) fn exporters(entry: &Entry, report: &mut Report) -> Vec<Exporter> {
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &EXPORTERS, report) else { return Vec::new() };
    let mut exporters = Vec::new();
    for (key, of) in [("otlp", &OTLP), ("remote_write", &REMOTE_WRITE)] {
        let Some(entry) = fields.entry(key) else { continue };
        let items = fields::one_or_many(&entry.value, "receiver", report);
        if items.len() > MAX_EXPORTERS {
            let message = format!("{} receivers, and at most {MAX_EXPORTERS} are taken", items.len());
            report.push(Diagnostic::error(&entry.key.at, message));
            continue;
        }
        for (position, item) in items.iter().enumerate() {
            let number = if items.len() > 1 { format!("_{}", position + 1) } else { String::new() };
            exporters.extend(exporter(item, entry, of, format!("{key}{number}"), report));
        }
    }
    named_once(&exporters, entry, report);
    exporters
}

fn named_once(exporters: &[Exporter], entry: &Entry, report: &mut Report) {
    for (position, exporter) in exporters.iter().enumerate() {
        if exporters[..position].iter().any(|first| first.name == exporter.name) {
            let message = format!("two exporters are called `{}`", exporter.name);
            report.push(Diagnostic::error(&entry.key.at, message).hint("give each a `name` of its own"));
        }
    }
}

fn exporter(node: &Node, entry: &Entry, keys: &Keys, name: String, report: &mut Report) -> Option<Exporter> {
    let at = if matches!(entry.value.kind, Kind::Sequence(_)) { &node.at } else { &entry.key.at };
    let fields = Fields::read(node, at, keys, report)?;
    let otlp = keys.known.contains(&"endpoint");
    let protocol = match fields.get("protocol") {
        _ if !otlp => Some(Protocol::RemoteWrite),
        None => Some(Protocol::OtlpGrpc),
        Some(node) => {
            let protocol = fields::choice(node, "a protocol", &["grpc", "http"], &[], report);
            protocol.map(|name| if name == "http" { Protocol::OtlpHttp } else { Protocol::OtlpGrpc })
        }
    };
    let grpc = protocol == Some(Protocol::OtlpGrpc);
    let url = fields.need(if otlp { "endpoint" } else { "url" }, keys.of, report);
    let url = url.and_then(|node| fields::parsed(node, "a URL", report, |text| self::url(text, grpc)));
    let choice = |key: &str, names: &[&'static str], report: &mut Report| {
        fields.get(key).and_then(|node| fields::choice(node, "one of these", names, &[], report))
    };
    let timeout = if otlp { ("timeout", 10) } else { ("remote_timeout", 30) };
    let pauses = match fields.entry("retry_on_failure").or_else(|| fields.entry("queue_config")) {
        Some(entry) => pauses(entry, if otlp { &RETRY } else { &QUEUE }, report),
        None => DEFAULT_PAUSES_NS,
    };
    let bytes = fields.get("queue_bytes").and_then(|node| {
        fields::parsed(node, "a size such as `64MiB`", report, |text| {
            let bytes = quantity::size_bytes(text)?;
            in_range(text, bytes, MIN_QUEUE_BYTES, MAX_QUEUE_BYTES, quantity::show_bytes)
        })
    });
    let truth = |key: &str, report: &mut Report| {
        fields.get(key).is_some_and(|node| fields::boolean(node, report) == Some(true))
    };
    let tls = fields.entry("tls").or_else(|| fields.entry("tls_config"));
    let exporter = Exporter {
        name: fields.get("name").and_then(|node| fields::text(node, "a name", report)).map_or(name, |name| name.value),
        protocol: protocol.unwrap_or(Protocol::OtlpGrpc),
        interval_ns: time(&fields, "interval", SECOND_NS, report).unwrap_or(60 * SECOND_NS),
        timeout_ns: time(&fields, timeout.0, SECOND_NS / 10, report).unwrap_or(timeout.1 * SECOND_NS),
        headers: fields.entry("headers").map(|entry| pairs(entry, header, report)).unwrap_or_default(),
        headers_file: path(&fields, "headers_file", report),
        gzip: choice("compression", &["gzip", "none"], report) != Some("none"),
        delta: choice("temporality", &["cumulative", "delta"], report) == Some("delta"),
        tls: tls.map(|entry| self::tls(entry, report)).unwrap_or_default(),
        first_pause_ns: pauses.0,
        longest_pause_ns: pauses.1,
        queue_bytes: bytes.map_or(64 << 20, |bytes| bytes.value),
        resource: fields.entry("resource").map(|entry| pairs(entry, |_, _| Ok(()), report)).unwrap_or_default(),
        logs: truth("logs", report),
        traces: truth("traces", report),
        url: url?,
    };
    if let Some(entry) = tls.filter(|_| exporter.url.value.starts_with("http://")) {
        let diagnostic = Diagnostic::error(&entry.key.at, "TLS settings for a receiver without TLS");
        report.push(diagnostic.hint("write `https://`, or leave the settings out"));
    }
    protocol.map(|_| exporter)
}

/// First and longest pause after failures.
const DEFAULT_PAUSES_NS: (u64, u64) = (5 * SECOND_NS, 30 * SECOND_NS);

fn pauses(entry: &Entry, keys: &Keys, report: &mut Report) -> (u64, u64) {
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, keys, report) else { return DEFAULT_PAUSES_NS };
    let mut pause = |key: &str, default| time(&fields, key, SECOND_NS / 100, report).unwrap_or(default);
    let first = pause(keys.known[0], DEFAULT_PAUSES_NS.0);
    let longest = pause(keys.known[1], DEFAULT_PAUSES_NS.1.max(first));
    if longest < first {
        let message = format!("the longest pause is shorter than the first ({})", quantity::show_ns(first));
        report.push(Diagnostic::error(&entry.key.at, message));
    }
    (first, longest.max(first))
}

fn tls(entry: &Entry, report: &mut Report) -> ExporterTls {
    let Some(fields) = Fields::read(&entry.value, &entry.key.at, &TLS, report) else { return ExporterTls::default() };
    let tls = ExporterTls {
        ca_file: path(&fields, "ca_file", report),
        cert_file: path(&fields, "cert_file", report),
        key_file: path(&fields, "key_file", report),
        server_name: fields.get("server_name").and_then(|n| fields::text(n, "a host name", report)).map(|n| n.value),
    };
    if fields.get("cert_file").is_some() != fields.get("key_file").is_some() {
        let diagnostic = Diagnostic::error(&entry.key.at, "a certificate and its key go together");
        report.push(diagnostic.hint("set both `cert_file` and `key_file`, or neither"));
    }
    tls
}

fn path(fields: &Fields<'_>, key: &str, report: &mut Report) -> Option<String> {
    fields.get(key).and_then(|node| fields::text(node, "a path", report)).map(|path| path.value)
}

/// A duration of at most an hour.
fn time(fields: &Fields<'_>, key: &str, least_ns: u64, report: &mut Report) -> Option<u64> {
    let duration = fields::parsed(fields.get(key)?, "a duration such as `10s`", report, |text| {
        in_range(text, quantity::duration_ns(text)?, least_ns, HOUR_NS, quantity::show_ns)
    });
    duration.map(|duration| duration.value)
}

/// A mapping from text to text.
fn pairs(
    entry: &Entry,
    check: impl Fn(&str, &str) -> Result<(), Problem>,
    report: &mut Report,
) -> Vec<(String, String)> {
    let Some(entries) = fields::mapping(&entry.value, &format!("`{}`", entry.key.value), report) else {
        return Vec::new();
    };
    if entries.len() > MAX_PAIRS {
        let message = format!("{} entries, and at most {MAX_PAIRS} are taken", entries.len());
        report.push(Diagnostic::error(&entry.key.at, message));
        return Vec::new();
    }
    let mut pairs = Vec::new();
    for Entry { key, value } in entries {
        let text = match &value.kind {
            // It may be empty, unlike other texts.
            Kind::Scalar { text, .. } => Some(text.clone()),
            _ => fields::text(value, "text", report).map(|text| text.value),
        };
        let Some(value) = text else { continue };
        if report.accept(&key.at, &key.value, check(&key.value, &value)).is_some() {
            pairs.push((key.value.clone(), value));
        }
    }
    pairs
}

/// A value is not shown: it may be a secret.
fn header(name: &str, value: &str) -> Result<(), Problem> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        Err(Problem::new(format!("`{name}` is not the name of a header")))
    } else if EXPORTER_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        Err(Problem::new(format!("the exporter itself sets the header `{name}`")).hint("leave it out"))
    } else if value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        Err(Problem::new(format!("the header `{name}` has characters that a header cannot have")))
    } else {
        Ok(())
    }
}

/// `http://HOST[:PORT][/PATH]` or `https://..`; gRPC has no path.
fn url(text: &str, grpc: bool) -> Result<String, Problem> {
    let example = if grpc { "`http://collector:4317`" } else { "`https://receiver.example/path`" };
    let bad = |message: String| Problem::new(message).hint(format!("write for example {example}"));
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(bad(format!("`{text}` does not begin with `http://` or `https://`")));
    };
    if !matches!(scheme, "http" | "https") {
        return Err(bad(format!("`{scheme}` is neither `http` nor `https`")).at(0..scheme.len()));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let begin = scheme.len() + 3;
    let place = begin..begin + authority.len();
    if authority.contains('@') {
        let problem = Problem::new("a user's name and password do not belong into a URL").at(place);
        return Err(problem.hint("put an `Authorization` header into `headers_file`"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        // The colons of an address of IPv6 are within brackets.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = v6.map_or(!host.is_empty() && host.chars().all(name), |v6| v6.parse::<std::net::Ipv6Addr>().is_ok());
    if !good {
        return Err(bad(format!("`{host}` is not a host")).at(place));
    }
    if let Some(port) = port
        && (!port.bytes().all(|b| b.is_ascii_digit())
            || port.parse::<u16>().is_ok_and(|p| p == 0)
            || port.parse::<u16>().is_err())
    {
        return Err(bad(format!("`{port}` is not a port from 1 to 65535")).at(place));
    }
    if grpc && !matches!(path, "" | "/") {
        return Err(bad("gRPC has no path".into()).at(place.end..text.len()));
    }
    if let Some(c) = path
        .chars()
        .find(|c| !c.is_ascii_graphic() || matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}' | '#'))
    {
        return Err(bad(format!("a path has no {c:?}")).at(place.end..text.len()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn urls() {
        for good in ["http://h:4317", "https://h", "http://127.0.0.1:1/", "http://[::1]:4317", "https://a-b.c_d:65535"]
        {
            assert_eq!(url(good, true).as_deref(), Ok(good));
        }
        for good in ["https://h/api/v1/write?tenant=a%20b&x=1", "http://[::1]/x"] {
            assert_eq!(url(good, false).as_deref(), Ok(good));
            assert!(url(good, true).is_err(), "gRPC has no path");
        }
        for bad in [
            "h:4317",
            "ftp://h",
            "http://",
            "http://:80",
            "http://h:0",
            "http://h:65536",
            "http://h:",
            "http://u:p@h",
            "http://a b",
            "http://[::g]:1",
            "http://h:+1",
            "http://::1:80",
            "",
        ] {
            assert!(url(bad, true).is_err() && url(bad, false).is_err(), "{bad}");
        }
        assert!(url("http://h/a b", false).is_err() && url("http://h/#x", false).is_err());
    }
}
