//! Certificates of a cluster's authority, made anew for each test.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// A certificate and its key, in PEM form.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    pub key: String,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: String,
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new("kubernetes")
    }
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).expect("all of it is right").pem();
        Authority { issuer: Issuer::new(params, key), cert }
    }

    /// Its own certificate in PEM form: `ca.crt`.
    pub fn pem(&self) -> &str {
        &self.cert
    }

    /// A server's certificate for these names and addresses.
    pub fn server(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of servers");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, "server")
    }

    /// A client's certificate for this user.
    pub fn client(&self, user: &str) -> Identity {
        let mut params = params(user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, user)
    }

    fn sign(&self, mut params: CertificateParams, name: &str) -> Identity {
        let key = KeyPair::generate().expect("random numbers");
        let own = self::params(name);
        params.distinguished_name = own.distinguished_name;
        params.serial_number = own.serial_number;
        let cert = params.signed_by(&key, &self.issuer).expect("all of it is right").pem();
        Identity { cert, key: key.serialize_pem() }
    }
}

fn params(name: &str) -> CertificateParams {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(NEXT.fetch_add(1, Ordering::Relaxed)));
    params
}
