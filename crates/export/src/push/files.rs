//! Files of an exporter, read again for each report, so that tokens and certificates can be replaced.

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
    /// An error names the file and the reason.
    pub(crate) fn read(exporter: &Exporter) -> Result<Files, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &exporter.headers {
            insert(&mut headers, name, value).map_err(|problem| format!("the header `{name}`: {problem}"))?;
        }
        if let Some(file) = &exporter.headers_file {
            let text = String::from_utf8(self::read(file)?).map_err(|_| format!("{}: not text", file.display()))?;
            parse(&text, &mut headers).map_err(|problem| format!("{}: {problem}", file.display()))?;
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

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("{}: {error}", file.display()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{}: larger than 1 MiB", file.display()));
    }
    Ok(bytes)
}

/// Reads lines `Name: value`, empty lines and comments (`#`). Errors do not quote values, which may be secrets.
fn parse(text: &str, headers: &mut HeaderMap) -> Result<(), String> {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| format!("line {}: not `Name: value`", number + 1))?;
        insert(headers, name.trim(), value.trim()).map_err(|problem| format!("line {}: {problem}", number + 1))?;
    }
    Ok(())
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "not a header's name".to_owned())?;
    if OUR_HEADERS.contains(&name.as_str()) {
        return Err(format!("`{name}` is set by the exporter itself"));
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| "characters that a header cannot have".to_owned())?;
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
            assert_eq!(result, expected.map_err(str::to_owned), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_headers_or_an_error(text in "\\PC{0,20}(:|\n|\\PC){0,40}") {
            let _ = parse(&text, &mut HeaderMap::new());
        }
    }
}
