//! TLS client configuration.

use crate::config::Secret;
use crate::credentials::Material;
use kstrobe_tls::Error;
use rustls::ClientConfig;

/// Builds the rustls configuration; the connector sets ALPN. Without `encrypted` no authorities are loaded.
pub(crate) fn config(material: &Material, encrypted: bool) -> Result<ClientConfig, Error> {
    if !encrypted {
        return kstrobe_tls::without_authorities();
    }
    let (cert, key) = match &material.identity {
        Some((cert, Secret(key))) => (Some(cert.as_slice()), Some(key.as_bytes())),
        None => (None, None),
    };
    let client = kstrobe_tls::Client { ca: material.ca.as_deref(), cert, key };
    if material.insecure { client.config_for_any_server() } else { client.config() }
}
