//! Describes connection errors: a metric label, and a message that says what to do.

use kstrobe_tls::chain;
use rustls::{AlertDescription, CertificateError};
use std::error::Error;
use std::io;

/// The label `reason` and the message of a connection error. `otherwise` is the reason of errors without TLS; `tls_error`, seen on the
/// same connection, is the cause where the error chain has none.
pub(crate) fn describe_error(
    error: &(dyn Error + 'static),
    otherwise: &'static str,
    tls_error: Option<&rustls::Error>,
) -> (&'static str, String) {
    let mut text = chain(error);
    let Some(cause) = of_tls(error).or(tls_error) else { return (otherwise, text) };
    for more in [Some(cause.to_string()), advice(cause).map(str::to_owned)].into_iter().flatten() {
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
    }
    ("tls", text)
}

/// The TLS error in a chain of causes. `io::Error` has it in `get_ref`, not in `source`.
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
    fn a_tls_error_is_found_at_any_depth() {
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let inner = io::Error::new(io::ErrorKind::InvalidData, unknown);
        let outer = io::Error::other(inner);
        let (reason, message) = describe_error(&outer, "connect", None);
        assert_eq!(reason, "tls");
        assert!(
            message.contains("UnknownIssuer") && message.ends_with("signed the receiver's certificate"),
            "{message}"
        );
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(describe_error(&refused, "connect", None), ("connect", "connection refused".to_owned()));
    }

    #[test]
    fn an_alert_stands_once_in_the_message() {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        for broken in [io::Error::from(io::ErrorKind::BrokenPipe), io::Error::other(alert.to_string())] {
            let (reason, message) = describe_error(&broken, "connection", Some(&alert));
            assert_eq!(reason, "tls");
            assert_eq!(message.matches("CertificateRequired").count(), 1, "{message}");
            assert!(message.ends_with(": set `cert_file` and `key_file`"), "{message}");
        }
    }
}
