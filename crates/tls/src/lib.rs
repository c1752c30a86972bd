//! What servers and clients share of TLS: the cryptography, texts in PEM form, and a client's side of a connection. No files,
//! no sockets.
#![forbid(unsafe_code)]

mod any_server;
mod chain;
mod client;
mod error;

pub use chain::chain;
pub use client::{Client, without_authorities};
pub use error::Error;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The cryptography of all connections: aws-lc-rs, the default of rustls.
pub fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// All certificates of a text, of which there must be one at least; `what` names them to a person.
pub fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| Error::NotPem { what, error })?;
    if found.is_empty() { Err(Error::NoCertificate(what)) } else { Ok(found) }
}

/// The private key of a text.
pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(Error::Key)
}

/// The authorities of a text; `what` is one of them, with its article: `an authority for clients`.
pub fn roots(pem: &[u8], what: &'static str) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let one = what.strip_prefix("an ").or_else(|| what.strip_prefix("a ")).unwrap_or(what);
    for root in certificates(pem, one)? {
        roots.add(root).map_err(|error| Error::Authority { what, error })?;
    }
    Ok(roots)
}
