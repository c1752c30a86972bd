//! Service account of a pod.

use super::{Auth, Config, Env, Impersonate, Pem, TIMEOUT, read, server};
use crate::error::ConfigError;

/// Whether this process runs in a pod with a service account.
pub(super) fn is_there(env: &Env) -> bool {
    env.text("KUBERNETES_SERVICE_HOST").is_some() && env.service_account.join("token").exists()
}

pub(super) fn config(env: &Env) -> Result<Config, ConfigError> {
    let variable = |name| env.text(name).ok_or(ConfigError::NoVariable(name));
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let token = env.service_account.join("token");
    if !token.exists() {
        return Err(ConfigError::NoServiceAccount(env.service_account.clone()));
    }
    let namespace = read(&env.service_account.join("namespace")).ok();
    let namespace = namespace.and_then(|bytes| Some(std::str::from_utf8(&bytes).ok()?.trim().to_owned()));
    Ok(Config {
        server: server(&format!("https://{host}:{port}"), "the variables KUBERNETES_SERVICE_HOST and _PORT")?,
        ca: Some(Pem::File(env.service_account.join("ca.crt"))),
        insecure: false,
        server_name: None,
        identity: None,
        auth: Auth::TokenFile(token),
        impersonate: Impersonate::default(),
        namespace: namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into()),
        timeout: TIMEOUT,
    })
}
