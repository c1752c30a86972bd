//! Subject alternative names of certificates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// DNS names, email addresses, IP addresses and URIs as text. Empty without the extension or for an invalid certificate.
pub fn names(der: &[u8]) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(der) else { return Vec::new() };
    let Ok(Some((_, names))) = certificate.tbs_certificate().get_extension::<SubjectAltName>() else {
        return Vec::new();
    };
    names.0.iter().filter_map(name).collect()
}

fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(text) | GeneralName::Rfc822Name(text) | GeneralName::UniformResourceIdentifier(text) => {
            Some(text.as_str().to_owned())
        }
        GeneralName::IpAddress(bytes) => ip(bytes.as_bytes()).map(|ip| ip.to_string()),
        _ => None,
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_certificate_has_no_names() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", &[0x30; 4096]] {
            assert_eq!(names(bytes), Vec::<String>::new());
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(ip(&[10, 0, 0, 1]).unwrap().to_string(), "10.0.0.1");
        assert_eq!(ip(&[0; 16]).unwrap().to_string(), "::");
        assert_eq!(ip(&[0; 5]), None);
    }
}
