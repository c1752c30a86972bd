//! Errors of an exporter's settings and files, and of the requests that they make.

use http::HeaderName;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the header `{name}`: {error}")]
    Header {
        name: String,
        #[source]
        error: HeaderError,
    },
    #[error("{}: {error}", file.display())]
    HeadersFile {
        file: PathBuf,
        #[source]
        error: LineError,
    },
    #[error("{}: {error}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: larger than 1 MiB", .0.display())]
    FileSize(PathBuf),
    #[error("{}: not text", .0.display())]
    NotText(PathBuf),
    #[error("`{0}` is not a server's name")]
    ServerName(String),
    #[error(transparent)]
    Tls(#[from] kstrobe_tls::Error),
    #[error("too large for snappy")]
    Snappy,
    #[error(transparent)]
    Gzip(#[from] io::Error),
    #[error("`{0}` is not a path")]
    Path(String),
    #[error(transparent)]
    Url(#[from] http::uri::InvalidUriParts),
    #[error(transparent)]
    Request(#[from] http::Error),
}

/// A line of a file of headers that is wrong.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {error}")]
pub(crate) struct LineError {
    pub(crate) line: usize,
    #[source]
    pub(crate) error: HeaderError,
}

/// What is wrong with a header. The value is not shown, as it may be a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("not `Name: value`")]
    NoColon,
    #[error("not a header's name")]
    Name,
    #[error("`{0}` is set by the exporter itself")]
    Reserved(HeaderName),
    #[error("characters that a header cannot have")]
    Value,
}
