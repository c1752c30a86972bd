//! TLS to a server of Kubernetes.

use crate::config::Secret;
use crate::credentials::Material;
use crate::error::Error;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::sync::Arc;

/// What rustls needs. The protocols of ALPN are left to the connector. Without `encrypted` nothing is looked for.
pub(crate) fn config(material: &Material, encrypted: bool) -> Result<ClientConfig, Error> {
    if !encrypted {
        return kstrobe_tls::without_authorities().map_err(Error::Config);
    }
    kstrobe_tls::able("an API server takes nothing else").map_err(Error::Config)?;
    let (cert, key) = match &material.identity {
        Some((cert, Secret(key))) => (Some(cert.as_slice()), Some(key.as_bytes())),
        None => (None, None),
    };
    if !material.insecure {
        let config = kstrobe_tls::Client { ca: material.ca.as_deref(), cert, key }.config();
        return config.map_err(|why| Error::Config(format!("TLS to Kubernetes: {why}")));
    }
    let wrong = |why: String| Error::Config(format!("TLS to Kubernetes: {why}"));
    let provider = kstrobe_tls::provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer { algorithms }));
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let chain = kstrobe_tls::certificates(cert, "certificate").map_err(wrong)?;
            let key = kstrobe_tls::key(key).map_err(wrong)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(error.to_string()))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
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
