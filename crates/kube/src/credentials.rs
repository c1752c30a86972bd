//! Credentials of requests, read for each request since tokens and certificates rotate.

use crate::config::{Auth, Config, Secret};
use crate::error::{ConfigError, CredentialsError, Error};
use crate::exec::{self, PluginCredentials};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Mutex;

/// TLS inputs of a connection; connections with equal material are interchangeable.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Material {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) insecure: bool,
    /// Client certificate and key in PEM form.
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
}

/// TLS material and headers of one request.
pub(crate) struct Shown {
    pub(crate) material: Material,
    pub(crate) headers: HeaderMap,
}

/// Output of the credential plugin, cached until the server returns 401.
#[derive(Default)]
pub(crate) struct Credentials {
    plugin: Mutex<Option<PluginCredentials>>,
}

impl Credentials {
    /// Reads the files, and runs the plugin unless its output is cached.
    pub(crate) async fn show(&self, config: &Config) -> Result<Shown, Error> {
        let plugin = match &config.auth {
            Auth::Exec(exec) => {
                let mut plugin = self.plugin.lock().await;
                if plugin.is_none() {
                    let failed = |error| CredentialsError::Plugin { plugin: exec.command.clone(), error };
                    *plugin = Some(exec::run(exec).await.map_err(failed)?);
                }
                plugin.clone()
            }
            _ => None,
        };
        let ca = config.ca.as_ref().map(|ca| ca.read()).transpose().map_err(ConfigError::File)?;
        let own = match &config.identity {
            Some((cert, key)) => {
                let key = String::from_utf8(key.read().map_err(CredentialsError::File)?);
                let key = key.map_err(|_| CredentialsError::NotPem)?;
                Some((cert.read().map_err(CredentialsError::File)?, Secret(key)))
            }
            None => None,
        };
        let identity = plugin.as_ref().and_then(|plugin| plugin.identity.clone()).or(own);
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization(&config.auth, plugin.as_ref())? {
            headers.insert(AUTHORIZATION, value);
        }
        impersonate(config, &mut headers)?;
        Ok(Shown { material: Material { ca, insecure: config.insecure, identity }, headers })
    }

    /// Drops cached credentials after a 401. Returns whether a retry makes sense: files may have changed, plugins run again.
    pub(crate) async fn refused(&self, config: &Config) -> bool {
        match config.auth {
            Auth::Exec(_) => self.plugin.lock().await.take().is_some(),
            Auth::None | Auth::Token(_) | Auth::TokenFile(_) | Auth::Basic(..) => false,
        }
    }
}

fn authorization(auth: &Auth, plugin: Option<&PluginCredentials>) -> Result<Option<HeaderValue>, CredentialsError> {
    let header = |value: String, origin: &str| {
        HeaderValue::from_str(&value).map_err(|_| CredentialsError::Characters { origin: origin.to_owned() })
    };
    let bearer = |token: &str, origin: &str| header(format!("Bearer {token}"), origin);
    let mut value = match auth {
        Auth::None => return Ok(None),
        Auth::Token(Secret(token)) => bearer(token.trim(), "the token")?,
        Auth::TokenFile(path) => {
            let bytes = crate::config::read(path)?;
            let text = String::from_utf8_lossy(&bytes);
            if text.trim().is_empty() {
                return Err(CredentialsError::NoToken(path.clone()));
            }
            bearer(text.trim(), &path.display().to_string())?
        }
        Auth::Basic(name, Secret(password)) => {
            header(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))), "the password")?
        }
        Auth::Exec(_) => match plugin.and_then(|plugin| plugin.token.as_ref()) {
            Some(Secret(token)) => bearer(token, "the token of the credential plugin")?,
            None => return Ok(None),
        },
    };
    value.set_sensitive(true);
    Ok(Some(value))
}

fn impersonate(config: &Config, headers: &mut HeaderMap) -> Result<(), ConfigError> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| ConfigError::Impersonate);
    if let Some(user) = &config.impersonate.user {
        headers.insert(HeaderName::from_static("impersonate-user"), value(user)?);
    }
    for group in &config.impersonate.groups {
        headers.append(HeaderName::from_static("impersonate-group"), value(group)?);
    }
    Ok(())
}
