//! Files of an exporter, read again for each report, so that tokens and certificates can be replaced.

use crate::push::error::{Error, HeaderError, LineError};
use crate::push::exporter::{Exporter, OUR_HEADERS, Tls};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::io::Read;
use std::path::Path;

/// Size of the largest file of headers or certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Their contents.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) headers: HeaderMap,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
}

impl Files {
    pub(crate) fn read(exporter: &Exporter) -> Result<Files, Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in &exporter.headers {
            insert(&mut headers, name, value).map_err(|error| Error::Header { name: name.clone(), error })?;
        }
        if let Some(file) = &exporter.headers_file {
            let text = String::from_utf8(self::read(file)?).map_err(|_| Error::NotText(file.clone()))?;
            parse(&text, &mut headers).map_err(|error| Error::HeadersFile { file: file.clone(), error })?;
        }
        let Tls { ca_file, cert_file, key_file, .. } = &exporter.tls;
        let some = |file: &Option<_>| file.as_deref().map(self::read).transpose();
        Ok(Files { headers, ca: some(ca_file)?, cert: some(cert_file)?, key: some(key_file)? })
    }

    /// Whether a connection made with the other files can be used.
    pub(crate) fn same_tls(&self, other: &Files) -> bool {
        (&self.ca, &self.cert, &self.key) == (&other.ca, &other.cert, &other.key)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::Read { file: file.to_owned(), error })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::FileSize(file.to_owned()));
    }
    Ok(bytes)
}

/// Reads lines `Name: value`, empty lines and comments (`#`). Errors do not quote values, which may be secrets.
fn parse(text: &str, headers: &mut HeaderMap) -> Result<(), LineError> {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':').ok_or(HeaderError::NoColon);
        let inserted = header.and_then(|(name, value)| insert(headers, name.trim(), value.trim()));
        inserted.map_err(|error| LineError { line: number + 1, error })?;
    }
    Ok(())
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), HeaderError> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Name)?;
    if OUR_HEADERS.contains(&name.as_str()) {
        return Err(HeaderError::Reserved(name));
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value)?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_headers() {
        for (text, expected) in [
            ("", Ok(vec![])),
            ("Authorization: Bearer a:b \n", Ok(vec![("authorization", "Bearer a:b")])),
            ("# token\n\nX-Scope-OrgID:1\r\nx-b: 2", Ok(vec![("x-scope-orgid", "1"), ("x-b", "2")])),
            ("a: 1\nA: 2", Ok(vec![("a", "2")])),
            ("secret", Err("line 1: not `Name: value`")),
            ("a: 1\nb c: secret", Err("line 2: not a header's name")),
            ("a: se\u{1}cret", Err("line 1: characters that a header cannot have")),
            ("Content-Type: text/plain", Err("line 1: `content-type` is set by the exporter itself")),
            ("User-Agent: me", Err("line 1: `user-agent` is set by the exporter itself")),
        ] {
            let mut headers = HeaderMap::new();
            let result = parse(text, &mut headers).map(|()| {
                headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect::<Vec<_>>()
            });
            assert_eq!(result.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_headers_or_an_error(text in "\\PC{0,20}(:|\n|\\PC){0,40}") {
            let _ = parse(&text, &mut HeaderMap::new());
        }
    }
}
