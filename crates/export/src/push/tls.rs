//! TLS of a client, from the files of an exporter.

use crate::push::error::Error;
use crate::push::files::Files;
use kstrobe_tls::Client;
use rustls::ClientConfig;

/// The configuration of rustls for one exporter.
pub(crate) fn config(files: &Files) -> Result<ClientConfig, Error> {
    let client = Client { ca: files.ca.as_deref(), cert: files.cert.as_deref(), key: files.key.as_deref() };
    Ok(client.config()?)
}
