//! A client's side: our own or the system's authorities, a certificate of ours.

use crate::any_server::AnyServer;
use crate::{Error, certificates, key, provider, roots};
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
    /// The configuration of rustls. The protocols of ALPN are left to the connector.
    pub fn config(&self) -> Result<ClientConfig, Error> {
        let roots = match self.ca {
            Some(ca) => roots(ca, "an authority")?,
            None => of_the_system()?,
        };
        self.shown(builder()?.with_root_certificates(roots))
    }

    /// The same without verification of the server: `ca` is ignored.
    pub fn config_for_any_server(&self) -> Result<ClientConfig, Error> {
        let algorithms = provider().signature_verification_algorithms;
        let verifier = Arc::new(AnyServer { algorithms });
        self.shown(builder()?.dangerous().with_custom_certificate_verifier(verifier))
    }

    fn shown(&self, builder: ConfigBuilder<ClientConfig, WantsClientCert>) -> Result<ClientConfig, Error> {
        match (self.cert, self.key) {
            (Some(cert), Some(own)) => {
                builder.with_client_auth_cert(certificates(cert, "certificate")?, key(own)?).map_err(Error::Identity)
            }
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(_), None) => Err(Error::NoKey),
            (None, Some(_)) => Err(Error::KeyAlone),
        }
    }
}

/// For connections that are not encrypted: no authority is looked for, and no certificate would be taken.
pub fn without_authorities() -> Result<ClientConfig, Error> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider())).with_safe_default_protocol_versions();
    builder.map_err(Error::Provider)
}

fn of_the_system() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::NoSystemAuthorities);
    }
    Ok(roots)
}
