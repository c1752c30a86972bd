//! TLS of a client: our own or the system's authorities, a certificate of ours.

use crate::files::Files;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// What rustls needs for one receiver. The protocols of ALPN are left to the connector.
pub(crate) fn config(files: &Files) -> Result<ClientConfig, String> {
    able()?;
    let provider = Arc::new(rustls_graviola::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots(files)?);
    match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "certificate")?;
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key is not in PEM form: {error}"))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| format!("the certificate and its key: {error}"))
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err("a certificate without `key_file`".into()),
        (None, Some(_)) => Err("a key without `cert_file`".into()),
    }
}

/// For receivers without TLS: nothing is encrypted with it, and no authority is looked for.
pub(crate) fn none() -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls_graviola::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| format!("TLS: {error}"))?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

fn roots(files: &Files) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for root in certificates(ca, "authority")? {
            roots.add(root).map_err(|error| format!("an authority cannot be used: {error}"))?;
        }
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("the system has no list of authorities: set `ca_file`, or install ca-certificates".into());
    }
    Ok(roots)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("the {what} is not in PEM form: {error}"))?;
    if found.is_empty() { Err(format!("there is no {what} in PEM form in the file")) } else { Ok(found) }
}

/// The cryptography is written for processors since about 2015 and has no slow path: on others it would end the agent.
fn able() -> Result<(), String> {
    let mut lacking: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let needed = [
            ("adx", has!("adx")),
            ("aes", has!("aes")),
            ("avx", has!("avx")),
            ("avx2", has!("avx2")),
            ("bmi1", has!("bmi1")),
            ("bmi2", has!("bmi2")),
            ("pclmulqdq", has!("pclmulqdq")),
        ];
        lacking.extend(needed.iter().filter(|(_, there)| !there).map(|(name, _)| *name));
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        let needed = [("neon", has!("neon")), ("aes", has!("aes")), ("pmull", has!("pmull")), ("sha2", has!("sha2"))];
        lacking.extend(needed.iter().filter(|(_, there)| !there).map(|(name, _)| *name));
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let lacking = lacking.join(", ");
    Err(format!("this processor lacks {lacking}, which TLS needs: send without TLS to a collector on this host"))
}
