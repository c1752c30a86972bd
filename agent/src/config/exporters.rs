//! `exporters:` of the configuration as what `kstrobe_export::push` needs, and who sends.

use http::uri::InvalidUri;
use kstrobe_config::model::{Exporter, Protocol};
use kstrobe_export::otlp::{Resource, Temporality};
use kstrobe_export::push;
use kstrobe_export::push::Kind;
use kstrobe_export::push::exporter::{Retry, Tls};
use std::path::PathBuf;
use std::time::Duration;

/// All receivers, and why others cannot be sent to.
pub fn receivers(exporters: &[Exporter]) -> (Vec<push::Exporter>, Vec<String>) {
    let found = found();
    let (mut receivers, mut reasons) = (Vec::new(), Vec::new());
    for exporter in exporters {
        match receiver(exporter, &found) {
            Ok(receiver) => receivers.push(receiver),
            Err(error) => reasons.push(format!("nothing can be sent to the exporter `{}`: {error}", exporter.name)),
        }
    }
    (receivers, reasons)
}

/// The machine's name.
pub fn host() -> String {
    line("/proc/sys/kernel/hostname")
}

fn line(file: &str) -> String {
    std::fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The URL is not shown: its query may hold a secret.
#[derive(Debug, thiserror::Error)]
#[error("its URL: {0}")]
struct UrlError(#[from] InvalidUri);

fn receiver(exporter: &Exporter, found: &[(&str, String)]) -> Result<push::Exporter, UrlError> {
    let url = exporter.url.value.parse()?;
    let path = |file: &Option<String>| file.as_ref().map(PathBuf::from);
    Ok(push::Exporter {
        name: exporter.name.clone(),
        kind: match exporter.protocol {
            Protocol::OtlpGrpc => Kind::OtlpGrpc,
            Protocol::OtlpHttp => Kind::OtlpHttp,
            Protocol::RemoteWrite => Kind::RemoteWrite,
        },
        url,
        interval: Duration::from_nanos(exporter.interval_ns),
        timeout: Duration::from_nanos(exporter.timeout_ns),
        headers: exporter.headers.clone(),
        headers_file: path(&exporter.headers_file),
        gzip: exporter.gzip,
        tls: Tls {
            ca_file: path(&exporter.tls.ca_file),
            cert_file: path(&exporter.tls.cert_file),
            key_file: path(&exporter.tls.key_file),
            server_name: exporter.tls.server_name.clone(),
        },
        retry: Retry {
            initial: Duration::from_nanos(exporter.first_pause_ns),
            max: Duration::from_nanos(exporter.longest_pause_ns),
            ..Retry::default()
        },
        temporality: if exporter.delta { Temporality::Delta } else { Temporality::Cumulative },
        queue_bytes: usize::try_from(exporter.queue_bytes).unwrap_or(usize::MAX),
        resource: Resource {
            attributes: attributes(found, &exporter.resource),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        logs: exporter.logs,
        traces: exporter.traces,
    })
}

/// What was found, unless the configuration says otherwise; an empty text there leaves an attribute out.
fn attributes(found: &[(&str, String)], configured: &[(String, String)]) -> Vec<(String, String)> {
    let ours = |name: &str| configured.iter().any(|(there, _)| there == name);
    let found = found.iter().filter(|(name, _)| !ours(name)).map(|(name, value)| ((*name).to_owned(), value.clone()));
    found.chain(configured.iter().cloned()).filter(|(_, value)| !value.is_empty()).collect()
}

/// Attributes of this agent by the semantic conventions. An agent is one a node, so the node's name tells them apart.
fn found() -> Vec<(&'static str, String)> {
    let node = ["NODE_NAME", "K8S_NODE_NAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let host = host();
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    vec![
        ("service.name", "kstrobe".into()),
        ("service.instance.id", if node.is_empty() { host.clone() } else { node.clone() }),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("host.name", host),
        ("host.id", line("/etc/machine-id")),
        ("host.arch", arch.into()),
        ("os.type", "linux".into()),
        ("k8s.node.name", node),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else `kstrobe check` would accept a file that stops its exporter.
    #[test]
    fn headers_that_are_set_are_refused_in_the_configuration() {
        assert_eq!(kstrobe_config::EXPORTER_HEADERS, kstrobe_export::push::exporter::OUR_HEADERS);
    }

    #[test]
    fn configured_attributes_win_and_empty_ones_are_left_out() {
        let found = [("service.name", "kstrobe".to_owned()), ("host.id", String::new()), ("os.type", "linux".into())];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let configured = [pair("service.name", "nodes"), pair("os.type", ""), pair("cluster", "a")];
        assert_eq!(attributes(&found, &configured), [pair("service.name", "nodes"), pair("cluster", "a")]);
        assert_eq!(attributes(&found, &[]), [pair("service.name", "kstrobe"), pair("os.type", "linux")]);
        assert!(super::found().iter().any(|(name, value)| *name == "host.name" && !value.is_empty()));
    }
}
