//! What servers and clients share of TLS: the cryptography, texts in PEM form, and a client's side of a connection. No files,
//! no sockets.
#![forbid(unsafe_code)]

mod any_server;
mod chain;
mod client;

pub use chain::chain;
pub use client::{Client, without_authorities};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The cryptography of all connections: aws-lc-rs, the default of rustls.
pub fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// All certificates of a text, of which there must be one at least; `what` names them to a person.
pub fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("the {what} is not in PEM form: {error}"))?;
    if found.is_empty() { Err(format!("there is no {what} in PEM form in it")) } else { Ok(found) }
}

/// The private key of a text.
pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        format!("the key has no private key in PEM form ({error}); one with a passphrase cannot be read")
    })
}

/// The authorities of a text; `what` is one of them, with its article: `an authority for clients`.
pub fn roots(pem: &[u8], what: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let one = what.strip_prefix("an ").or_else(|| what.strip_prefix("a ")).unwrap_or(what);
    for root in certificates(pem, one)? {
        roots.add(root).map_err(|error| format!("{what} cannot be used: {error}"))?;
    }
    Ok(roots)
}
