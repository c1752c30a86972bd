//! What is shown to the server: read anew for each request, since tokens and certificates are replaced while we run.

use crate::config::{Auth, Config, Secret};
use crate::error::Error;
use crate::exec::{self, Told};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Mutex;

/// What a connection is made with. Another one is as good when this is the same.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Material {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) insecure: bool,
    /// Certificate and key.
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
}

/// Material and headers of one request.
pub(crate) struct Shown {
    pub(crate) material: Material,
    pub(crate) headers: HeaderMap,
}

/// What plugins told, until the server no longer takes it.
#[derive(Default)]
pub(crate) struct Credentials {
    told: Mutex<Option<Told>>,
}

impl Credentials {
    /// Reads the files, and runs the plugin if there is one that has told nothing yet.
    pub(crate) async fn show(&self, config: &Config) -> Result<Shown, Error> {
        let told = match &config.auth {
            Auth::Exec(exec) => {
                let mut told = self.told.lock().await;
                if told.is_none() {
                    *told = Some(exec::run(exec).await?);
                }
                told.clone()
            }
            _ => None,
        };
        let ca = config.ca.as_ref().map(|ca| ca.read()).transpose().map_err(Error::Config)?;
        let own = match &config.identity {
            Some((cert, key)) => {
                let key = String::from_utf8(key.read().map_err(Error::Credentials)?);
                let key = key.map_err(|_| Error::Credentials("the client's key is not in PEM form".into()))?;
                Some((cert.read().map_err(Error::Credentials)?, Secret(key)))
            }
            None => None,
        };
        let identity = told.as_ref().and_then(|told| told.identity.clone()).or(own);
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization(&config.auth, told.as_ref())? {
            headers.insert(AUTHORIZATION, value);
        }
        impersonate(config, &mut headers)?;
        Ok(Shown { material: Material { ca, insecure: config.insecure, identity }, headers })
    }

    /// The server did not take it. Whether asking once more makes sense: files may have changed, plugins tell anew.
    pub(crate) async fn refused(&self, config: &Config) -> bool {
        match config.auth {
            Auth::Exec(_) => self.told.lock().await.take().is_some(),
            Auth::None | Auth::Token(_) | Auth::TokenFile(_) | Auth::Basic(..) => false,
        }
    }
}

fn authorization(auth: &Auth, told: Option<&Told>) -> Result<Option<HeaderValue>, Error> {
    let bearer = |token: &str, from: &str| {
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        value.map_err(|_| Error::Credentials(format!("{from} has characters that no token has")))
    };
    let value = match auth {
        Auth::None => return Ok(None),
        Auth::Token(Secret(token)) => bearer(token.trim(), "the token")?,
        Auth::TokenFile(path) => {
            let bytes = crate::config::read(path).map_err(Error::Credentials)?;
            let text = String::from_utf8_lossy(&bytes);
            if text.trim().is_empty() {
                return Err(Error::Credentials(format!("{}: there is no token in it", path.display())));
            }
            bearer(text.trim(), &path.display().to_string())?
        }
        Auth::Basic(name, Secret(password)) => {
            let pair = STANDARD.encode(format!("{name}:{password}"));
            HeaderValue::from_str(&format!("Basic {pair}")).map_err(|error| Error::Credentials(error.to_string()))?
        }
        Auth::Exec(_) => match told.and_then(|told| told.token.as_ref()) {
            Some(Secret(token)) => bearer(token, "the token of the credential plugin")?,
            None => return Ok(None),
        },
    };
    let mut value = value;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn impersonate(config: &Config, headers: &mut HeaderMap) -> Result<(), Error> {
    let value = |text: &str| {
        HeaderValue::from_str(text).map_err(|_| Error::Config("`as` has characters that no name has".into()))
    };
    if let Some(user) = &config.impersonate.user {
        headers.insert(HeaderName::from_static("impersonate-user"), value(user)?);
    }
    for group in &config.impersonate.groups {
        headers.append(HeaderName::from_static("impersonate-group"), value(group)?);
    }
    Ok(())
}
