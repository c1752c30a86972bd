//! Loads a web configuration and its files.

use crate::stamp::{Stamp, Stamps};
use crate::tls::{self, Pems, TlsError};
use kstrobe_config::Diagnostic;
use kstrobe_config::model::{ClientAuth, Pem, RateLimit, SourceFile, User, Web};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

/// Maximum file size; also the limit of a ConfigMap.
const MAX_BYTES: u64 = 1 << 20;

/// A loaded configuration.
#[derive(Clone, Default)]
pub struct Settings {
    /// `None` for plain HTTP.
    pub tls: Option<TlsAcceptor>,
    /// Whether client certificates are verified.
    pub certificates_are_verified: bool,
    /// Whether a verified client certificate is required.
    pub certificates_are_required: bool,
    /// Headers added to each response.
    pub headers: Vec<(&'static str, String)>,
    /// Users with bcrypt hashes; empty without basic authentication.
    pub users: Arc<[User]>,
    /// Rate limit over all requests.
    pub rate_limit: Option<RateLimit>,
}

impl Settings {
    /// Whether every client must authenticate.
    pub fn requires_identity(&self) -> bool {
        !self.users.is_empty() || self.certificates_are_required
    }
}

/// Why loading a configuration failed.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{}: {reason}", file.display())]
    Read {
        file: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// Invalid content.
    #[error("{}", one_line(.0))]
    Mistakes(Vec<Diagnostic>),
    /// An invalid certificate or key.
    #[error("{file}: {reason}", file = .0.display(), reason = .1)]
    Tls(PathBuf, #[source] TlsError),
}

fn one_line(mistakes: &[Diagnostic]) -> String {
    mistakes.iter().filter(|d| d.is_error()).map(Diagnostic::one_line).collect::<Vec<_>>().join("; ")
}

/// Hash of all bytes read, to detect changes.
pub type Digest = [u8; 32];

/// Result of loading.
pub struct Loaded {
    /// Hash of the files.
    pub digest: Digest,
    /// Files with their stamps before reading.
    pub stamps: Stamps,
    /// Whether the file is blank.
    pub blank: bool,
    pub warnings: Vec<Diagnostic>,
    pub settings: Result<Settings, LoadError>,
}

/// Loads a `web-config.yml` and its files.
pub fn load(file: &Path) -> Loaded {
    let mut reader = Reader::default();
    let (mut blank, mut warnings) = (false, Vec::new());
    let settings = settings(file, &mut reader, &mut blank, &mut warnings);
    Loaded { digest: reader.digest.finalize().into(), stamps: reader.stamps, blank, warnings, settings }
}

/// Current stamps of the same files.
pub fn stamps(files: &Stamps) -> Stamps {
    files.iter().map(|(file, _)| (file.clone(), stamp(file))).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(file).ok()?;
    // Times before 1970 are clamped.
    let seconds = u64::try_from(about.mtime()).unwrap_or(0);
    let changed = Duration::new(seconds, u32::try_from(about.mtime_nsec()).unwrap_or(0));
    Some(Stamp { file: (about.dev(), about.ino()), size: about.size(), changed })
}

fn settings(
    file: &Path,
    reader: &mut Reader,
    blank: &mut bool,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Settings, LoadError> {
    let bytes = reader.read(file)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        let reason = io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8");
        LoadError::Read { file: file.to_owned(), reason }
    })?;
    *blank = text.trim().is_empty();
    let source = Arc::new(SourceFile { name: file.display().to_string(), text });
    let (web, diagnostics) = kstrobe_config::web(&source);
    let Some(web) = web else { return Err(LoadError::Mistakes(diagnostics)) };
    *warnings = diagnostics;
    let folder = file.parent().unwrap_or(Path::new(""));
    ready(web, file, folder, reader)
}

fn ready(web: Web, file: &Path, folder: &Path, reader: &mut Reader) -> Result<Settings, LoadError> {
    let mut tls = None;
    let auth = web.tls.as_ref().map_or(ClientAuth::None, |tls| tls.client_auth);
    if let Some(wanted) = &web.tls {
        let mut bytes = |pem: &Pem| match pem {
            Pem::File(path) => reader.read(&folder.join(path)),
            Pem::Text(text) => Ok(text.0.clone().into_bytes()),
        };
        // All files are read before the first error is returned, so that a change of any is detected.
        let (cert, key) = (bytes(&wanted.cert), bytes(&wanted.key));
        let client_ca = wanted.client_ca.as_ref().map(bytes).transpose();
        let pems = Pems { cert: cert?, key: key?, client_ca: client_ca? };
        let config = tls::server(wanted, web.http2, &pems);
        let config = config.map_err(|reason| LoadError::Tls(file.to_owned(), reason))?;
        tls = Some(TlsAcceptor::from(Arc::new(config)));
    }
    Ok(Settings {
        tls,
        certificates_are_verified: matches!(auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify),
        certificates_are_required: auth == ClientAuth::RequireAndVerify,
        headers: web.headers,
        users: web.users.into(),
        rate_limit: web.rate_limit,
    })
}

/// Reads files and records their stamps and hash.
#[derive(Default)]
struct Reader {
    stamps: Stamps,
    digest: Sha256,
}

impl Reader {
    fn read(&mut self, file: &Path) -> Result<Vec<u8>, LoadError> {
        self.stamps.push((file.to_owned(), stamp(file)));
        let read = read(file);
        let text = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
        for part in [file.as_os_str().as_encoded_bytes(), read.as_deref().unwrap_or_default(), text.as_bytes()] {
            self.digest.update((part.len() as u64).to_le_bytes());
            self.digest.update(part);
        }
        read.map_err(|reason| LoadError::Read { file: file.to_owned(), reason })
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let kind = std::fs::metadata(file)?.file_type();
    if kind.is_dir() || kind.is_fifo() || kind.is_socket() {
        // Opening a pipe would block until it has a writer.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}
