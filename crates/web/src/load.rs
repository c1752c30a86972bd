//! A web configuration and the files it names, read and put together.

use crate::stamp::{Stamp, Stamps};
use crate::tls::{self, Pems};
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

/// Bytes of a file that are read; a ConfigMap holds no more.
const MOST_BYTES: u64 = 1 << 20;

/// A configuration, ready to be used.
#[derive(Clone, Default)]
pub struct Settings {
    /// `None` for plain HTTP.
    pub tls: Option<TlsAcceptor>,
    /// Whether a client on a connection with a certificate has been checked by our authority.
    pub certificates_are_verified: bool,
    /// Whether nobody comes without such a certificate.
    pub certificates_are_required: bool,
    /// Added to each answer.
    pub headers: Vec<(&'static str, String)>,
    /// Who may come with a password; empty when nobody is asked.
    pub users: Arc<[User]>,
    /// Of all requests together.
    pub rate_limit: Option<RateLimit>,
}

impl Settings {
    /// Whether nobody is served who did not say who they are.
    pub fn asks_who(&self) -> bool {
        !self.users.is_empty() || self.certificates_are_required
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file itself.
    #[error("{}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// What is written in it.
    #[error("{}", one_line(.0))]
    Mistakes(Vec<Diagnostic>),
    /// A certificate or key, or what TLS makes of them.
    #[error("{file}: {reason}", file = .0.display(), reason = .1)]
    Tls(PathBuf, String),
}

fn one_line(mistakes: &[Diagnostic]) -> String {
    mistakes.iter().filter(|d| d.is_error()).map(Diagnostic::one_line).collect::<Vec<_>>().join("; ")
}

/// Of all bytes that were read: two that are the same were read from the same files.
pub type Digest = [u8; 32];

/// What came of reading.
pub struct Loaded {
    /// Of what was read.
    pub digest: Digest,
    /// Files that were looked at, with their stamps from before they were read.
    pub stamps: Stamps,
    /// Whether the file has nothing in it but blanks.
    pub blank: bool,
    /// What is doubtful.
    pub warnings: Vec<Diagnostic>,
    /// The result.
    pub settings: Result<Settings, LoadError>,
}

/// Reads a `web-config.yml` and all it names.
pub fn load(file: &Path) -> Loaded {
    let mut reader = Reader::default();
    let (mut blank, mut warnings) = (false, Vec::new());
    let settings = settings(file, &mut reader, &mut blank, &mut warnings);
    Loaded { digest: reader.digest.finalize().into(), stamps: reader.stamps, blank, warnings, settings }
}

/// Stamps of the same files now.
pub fn stamps(files: &Stamps) -> Stamps {
    files.iter().map(|(file, _)| (file.clone(), stamp(file))).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(file).ok()?;
    // A file from before 1970 is as good as one from then.
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
        // All are looked at before the first mistake is told, so that a change of any of them is noticed.
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

/// Reads files and remembers what they were.
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
        // Opening a pipe would wait for whoever writes to it.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(bytes)
}
