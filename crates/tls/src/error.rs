//! Errors of PEM texts and of a client's settings.

use rustls::pki_types::pem;

/// What is wrong with certificates, keys or authorities.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the {what} is not in PEM form: {error}")]
    NotPem {
        what: &'static str,
        #[source]
        error: pem::Error,
    },
    #[error("there is no {0} in PEM form in it")]
    NoCertificate(&'static str),
    #[error("the key has no private key in PEM form ({0}); one with a passphrase cannot be read")]
    Key(#[source] pem::Error),
    /// With its article.
    #[error("{what} cannot be used: {error}")]
    Authority {
        what: &'static str,
        #[source]
        error: rustls::Error,
    },
    #[error("the certificate and its key: {0}")]
    Identity(#[source] rustls::Error),
    #[error("a certificate without its key")]
    NoKey,
    #[error("a key without its certificate")]
    KeyAlone,
    #[error("TLS: {0}")]
    Provider(#[source] rustls::Error),
    #[error("the system has no list of authorities: set `ca_file`, or install ca-certificates")]
    NoSystemAuthorities,
}
