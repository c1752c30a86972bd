//! A client's side: our own or the system's authorities, a certificate of ours.

use crate::any_server::AnyServer;
use crate::{certificates, key, provider, roots};
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use std::sync::Arc;

/// What a client shows and whom it trusts, as texts in PEM form.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client<'a> {
    /// Authorities; those of the system when there is none.
    pub ca: Option<&'a [u8]>,
    /// The client's own certificate, then those between it and an authority.
    pub cert: Option<&'a [u8]>,
    /// The key of `cert`.
    pub key: Option<&'a [u8]>,
}

impl Client<'_> {
    /// What rustls needs, or what is wrong, for a person. The protocols of ALPN are left to the connector.
    pub fn config(&self) -> Result<ClientConfig, String> {
        let roots = match self.ca {
            Some(ca) => roots(ca, "an authority")?,
            None => of_the_system()?,
        };
        self.shown(builder()?.with_root_certificates(roots))
    }

    /// The same without verification of the server: `ca` is ignored.
    pub fn config_for_any_server(&self) -> Result<ClientConfig, String> {
        let algorithms = provider().signature_verification_algorithms;
        let verifier = Arc::new(AnyServer { algorithms });
        self.shown(builder()?.dangerous().with_custom_certificate_verifier(verifier))
    }

    fn shown(&self, builder: ConfigBuilder<ClientConfig, WantsClientCert>) -> Result<ClientConfig, String> {
        match (self.cert, self.key) {
            (Some(cert), Some(own)) => builder
                .with_client_auth_cert(certificates(cert, "certificate")?, key(own)?)
                .map_err(|error| format!("the certificate and its key: {error}")),
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(_), None) => Err("a certificate without its key".into()),
            (None, Some(_)) => Err("a key without its certificate".into()),
        }
    }
}

/// For connections that are not encrypted: no authority is looked for, and no certificate would be taken.
pub fn without_authorities() -> Result<ClientConfig, String> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider())).with_safe_default_protocol_versions();
    builder.map_err(|error| format!("TLS: {error}"))
}

fn of_the_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("the system has no list of authorities: set `ca_file`, or install ca-certificates".into());
    }
    Ok(roots)
}
