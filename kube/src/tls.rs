//! TLS to a server of Kubernetes.

use crate::config::Secret;
use crate::credentials::Material;
use crate::error::Error;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// What rustls needs. The protocols of ALPN are left to the connector. Without `encrypted` nothing is looked for.
pub(crate) fn config(material: &Material, encrypted: bool) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls_graviola::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = builder(provider)?;
    let builder = if !encrypted {
        builder.with_root_certificates(RootCertStore::empty())
    } else if material.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer { algorithms }))
    } else {
        builder.with_root_certificates(roots(material.ca.as_deref())?)
    };
    match &material.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, Secret(key))) => {
            let chain = certificates(cert, "client's certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
                Error::Credentials(
                    "the client's key has no private key in PEM form; one with a passphrase cannot be read".into(),
                )
            })?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| Error::Credentials(format!("the client's certificate and its key: {error}")))
        }
    }
}

fn builder(provider: Arc<CryptoProvider>) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.map_err(|error| Error::Config(format!("TLS: {error}")))
}

fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::Config(
                "the system has no list of authorities: name the cluster's certificate-authority".into(),
            ));
        }
        return Ok(roots);
    };
    for root in certificates(ca, "cluster's authority")? {
        roots.add(root).map_err(|error| Error::Config(format!("the cluster's authority cannot be used: {error}")))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| Error::Config(format!("the {what} is not in PEM form: {error}")))?;
    if found.is_empty() { Err(Error::Config(format!("there is no {what} in PEM form"))) } else { Ok(found) }
}

/// Takes every certificate, as `insecure-skip-tls-verify` asks for. That the server has its key is still checked.
#[derive(Debug)]
struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
