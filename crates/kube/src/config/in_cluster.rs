//! Service account of a pod.

use super::{Auth, Config, Env, Impersonate, Pem, TIMEOUT, read, server};
use crate::error::Error;

/// Whether this process runs in a pod with a service account.
pub(super) fn is_there(env: &Env) -> bool {
    env.text("KUBERNETES_SERVICE_HOST").is_some() && env.service_account.join("token").exists()
}

pub(super) fn config(env: &Env) -> Result<Config, Error> {
    let variable = |name: &str| {
        let missing = || Error::Config(format!("not in a pod: the variable {name} is not set"));
        env.text(name).ok_or_else(missing)
    };
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let token = env.service_account.join("token");
    if !token.exists() {
        return Err(Error::Config(format!(
            "there is no token in {}: the pod needs a service account and `automountServiceAccountToken: true`",
            env.service_account.display()
        )));
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
