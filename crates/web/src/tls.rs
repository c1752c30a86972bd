//! Builds the rustls configuration from `tls_server_config`.

use crate::sans;
use kstrobe_config::model::{ClientAuth, Curve, Tls, TlsVersion};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, NamedGroup, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};
use std::sync::Arc;

/// PEM texts, inline or from files.
pub struct Pems {
    /// Certificate chain of the server.
    pub cert: Vec<u8>,
    /// Private key of the server.
    pub key: Vec<u8>,
    /// Certificate authorities for clients.
    pub client_ca: Option<Vec<u8>>,
}

/// Why a `tls_server_config` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Material(#[from] kstrobe_tls::Error),
    #[error("versions, suites and curves do not fit together: {0}")]
    Combination(#[source] Error),
    #[error("the key does not belong to the certificate")]
    KeyMismatch,
    #[error("the certificate or the key cannot be used: {0}")]
    Certificate(#[source] Error),
    #[error("there is no cipher suite {0}")]
    CipherSuite(String),
    #[error("the authority for clients cannot be used: {0}")]
    ClientAuthority(#[from] VerifierBuilderError),
}

/// Builds the server configuration.
pub fn server(tls: &Tls, http2: bool, pems: &Pems) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider(tls)?);
    let versions: &[_] = match (tls.min_version, tls.max_version) {
        (TlsVersion::Tls13, _) => &[&TLS13],
        (_, TlsVersion::Tls12) => &[&TLS12],
        // Without a matching cipher suite TLS 1.2 is disabled.
        _ if tls.cipher_suites.as_ref().is_some_and(Vec::is_empty) => &[&TLS13],
        _ => &[&TLS13, &TLS12],
    };
    let chain = kstrobe_tls::certificates(&pems.cert, "certificate")?;
    let key = kstrobe_tls::key(&pems.key)?;
    let verifier = verifier(tls, &provider, pems.client_ca.as_deref())?;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(TlsError::Combination)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => TlsError::KeyMismatch,
        error => TlsError::Certificate(error),
    })?;
    config.ignore_client_order = tls.prefer_server_cipher_suites;
    config.alpn_protocols = if http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(config)
}

fn provider(tls: &Tls) -> Result<CryptoProvider, TlsError> {
    let mut provider = kstrobe_tls::provider();
    if let Some(names) = &tls.cipher_suites {
        // The list applies to TLS 1.2 only. rustls names these suites as Go does, unlike those of TLS 1.3.
        let of = |name: &str| {
            let named = |suite: &&SupportedCipherSuite| format!("{:?}", suite.suite()) == name;
            provider.cipher_suites.iter().find(named).copied()
        };
        let mut suites: Vec<_> =
            provider.cipher_suites.iter().filter(|suite| suite.tls13().is_some()).copied().collect();
        for name in names {
            suites.push(of(name).ok_or_else(|| TlsError::CipherSuite((*name).to_owned()))?);
        }
        provider.cipher_suites = suites;
    }
    if let Some(curves) = &tls.curves {
        let group = |curve: &Curve| match curve {
            Curve::P256 => NamedGroup::secp256r1,
            Curve::P384 => NamedGroup::secp384r1,
            Curve::X25519 => NamedGroup::X25519,
        };
        let of = |curve: &Curve| provider.kx_groups.iter().find(|kx| kx.name() == group(curve)).copied();
        provider.kx_groups = curves.iter().filter_map(of).collect();
    }
    Ok(provider)
}

/// Client verifier; `None` if no certificate is requested.
fn verifier(
    tls: &Tls,
    provider: &Arc<CryptoProvider>,
    client_ca: Option<&[u8]>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let any = |mandatory| {
        let algorithms = provider.signature_verification_algorithms;
        Arc::new(AnyCertificate { mandatory, algorithms }) as Arc<dyn ClientCertVerifier>
    };
    let verifier = match tls.client_auth {
        ClientAuth::None => return Ok(None),
        ClientAuth::Request => any(false),
        ClientAuth::RequireAny => any(true),
        ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify => {
            let roots = kstrobe_tls::roots(client_ca.unwrap_or_default(), "an authority for clients");
            let roots = roots?;
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let optional = tls.client_auth == ClientAuth::VerifyIfGiven;
            let builder = if optional { builder.allow_unauthenticated() } else { builder };
            builder.build()?
        }
    };
    Ok(Some(match &tls.client_allowed_sans {
        Some(allowed) => Arc::new(NamedCertificate { inner: verifier, allowed: allowed.clone() }),
        None => verifier,
    }))
}

/// Accepts any certificate; the handshake still proves possession of the key.
#[derive(Debug)]
struct AnyCertificate {
    mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts certificates that `inner` accepts and that have an allowed name.
#[derive(Debug)]
struct NamedCertificate {
    inner: Arc<dyn ClientCertVerifier>,
    allowed: Vec<String>,
}

impl ClientCertVerifier for NamedCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, between, now)?;
        if sans::names(certificate).iter().any(|name| self.allowed.contains(name)) {
            return Ok(verified);
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
