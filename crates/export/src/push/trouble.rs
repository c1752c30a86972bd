//! What a connection that failed means: a word for metrics, and for people what happened and what to do about it.

use kstrobe_tls::chain;
use rustls::{AlertDescription, CertificateError};
use std::error::Error;
use std::io;

/// `otherwise` is the word when it is not about TLS. What was `overheard` from TLS meanwhile is the cause when the error has none.
pub(crate) fn trouble(
    error: &(dyn Error + 'static),
    otherwise: &'static str,
    overheard: Option<&rustls::Error>,
) -> (&'static str, String) {
    let mut text = chain(error);
    let Some(cause) = of_tls(error).or(overheard) else { return (otherwise, text) };
    for more in [Some(cause.to_string()), advice(cause).map(str::to_owned)].into_iter().flatten() {
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
    }
    ("tls", text)
}

/// The error of TLS among the causes; those of I/O hide what is in them.
pub(crate) fn of_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| of_tls(inner)) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn advice(error: &rustls::Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    use CertificateError as Wrong;
    Some(match error {
        rustls::Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => {
            "`ca_file` has to be the authority that signed the receiver's certificate"
        }
        rustls::Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            "`server_name` can be set to a name that the receiver's certificate has"
        }
        rustls::Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "the receiver's certificate has expired, or this machine's clock is wrong"
        }
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            "the receiver asks for a certificate: set `cert_file` and `key_file`"
        }
        rustls::Error::AlertReceived(
            Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnknownCA | Alert::CertificateExpired,
        ) => "the receiver does not take our certificate (`cert_file`)",
        rustls::Error::InvalidMessage(_) => "the receiver may not speak TLS: try `http://`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_tls_is_found_however_deep() {
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let inner = io::Error::new(io::ErrorKind::InvalidData, unknown);
        let outer = io::Error::other(inner);
        let (reason, message) = trouble(&outer, "connect", None);
        assert_eq!(reason, "tls");
        assert!(
            message.contains("UnknownIssuer") && message.ends_with("signed the receiver's certificate"),
            "{message}"
        );
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(trouble(&refused, "connect", None), ("connect", "connection refused".to_owned()));
    }

    #[test]
    fn what_was_overheard_is_told_once() {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        for broken in [io::Error::from(io::ErrorKind::BrokenPipe), io::Error::other(alert.to_string())] {
            let (reason, message) = trouble(&broken, "connection", Some(&alert));
            assert_eq!(reason, "tls");
            assert_eq!(message.matches("CertificateRequired").count(), 1, "{message}");
            assert!(message.ends_with(": set `cert_file` and `key_file`"), "{message}");
        }
    }
}
