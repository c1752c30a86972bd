//! Credential plugins: programs that print a token or a certificate.

use crate::config::{Exec, Secret};
use crate::error::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time limit of a plugin, which may contact remote servers.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Credentials printed by a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginCredentials {
    pub(crate) token: Option<Secret>,
    /// Certificate and key in PEM form.
    pub(crate) identity: Option<(Vec<u8>, Secret)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs the plugin non-interactively.
pub(crate) async fn run(exec: &Exec) -> Result<PluginCredentials, Error> {
    let name = exec.command.display();
    let mut command = Command::new(&exec.command);
    command.args(&exec.args).envs(exec.env.iter().map(|(key, value)| (key, value)));
    command.env("KUBERNETES_EXEC_INFO", info(exec));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = match tokio::time::timeout(PLUGIN_TIMEOUT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            let hint = if exec.install_hint.is_empty() { "" } else { "\n" };
            let message = format!("the credential plugin {name} does not run: {error}{hint}{}", exec.install_hint);
            return Err(Error::Credentials(message));
        }
        Err(_) => {
            return Err(Error::Credentials(format!(
                "the credential plugin {name} printed nothing within {PLUGIN_TIMEOUT:?}"
            )));
        }
    };
    if !output.status.success() {
        return Err(Error::Credentials(format!("the credential plugin {name} ended with {}", output.status)));
    }
    parse(exec, &output.stdout).map_err(|why| Error::Credentials(format!("the credential plugin {name} {why}")))
}

fn info(exec: &Exec) -> String {
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = exec.cluster.as_ref().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        spec["cluster"] = cluster;
    }
    json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec}).to_string()
}

/// Parses the output of a plugin; errors never quote it, since it holds secrets.
fn parse(exec: &Exec, printed: &[u8]) -> Result<PluginCredentials, String> {
    let credential: ExecCredential =
        serde_json::from_slice(printed).map_err(|_| "printed no ExecCredential".to_owned())?;
    if credential.api_version != exec.api_version {
        return Err(format!("speaks {:.60} instead of {}", credential.api_version, exec.api_version));
    }
    let status = credential.status.ok_or("printed no credentials")?;
    let identity = match (status.client_certificate_data, status.client_key_data) {
        (Some(cert), Some(key)) => Some((cert.into_bytes(), Secret(key))),
        (None, None) => None,
        _ => return Err("printed a certificate or a key without the other".into()),
    };
    let token = status.token.filter(|token| !token.is_empty()).map(Secret);
    if token.is_none() && identity.is_none() {
        return Err("printed neither token nor certificate".into());
    }
    Ok(PluginCredentials { token, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec() -> Exec {
        Exec {
            api_version: "client.authentication.k8s.io/v1".into(),
            command: "x".into(),
            args: Vec::new(),
            env: Vec::new(),
            install_hint: String::new(),
            cluster: Some("{\"server\":\"https://h\"}".into()),
        }
    }

    #[test]
    fn plugin_output() {
        let v1 = "client.authentication.k8s.io/v1";
        let of = |status: Value| parse(&exec(), json!({"apiVersion": v1, "status": status}).to_string().as_bytes());
        assert_eq!(
            of(json!({"token": "t"})),
            Ok(PluginCredentials { token: Some(Secret("t".into())), identity: None })
        );
        assert!(of(json!({"token": ""})).is_err());
        assert!(of(json!({"clientCertificateData": "c"})).unwrap_err().contains("without the other"));
        let both = of(json!({"clientCertificateData": "c", "clientKeyData": "k"})).unwrap();
        assert_eq!(both.identity, Some((b"c".to_vec(), Secret("k".into()))));
        let error = parse(&exec(), b"token: secret").unwrap_err();
        assert_eq!(error, "printed no ExecCredential");
        let other = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "t"}}).to_string();
        assert!(parse(&exec(), other.as_bytes()).unwrap_err().contains("v1beta1"));
    }

    #[test]
    fn plugin_input() {
        let info: Value = serde_json::from_str(&info(&exec())).unwrap();
        assert_eq!(info["spec"], json!({"interactive": false, "cluster": {"server": "https://h"}}));
        assert_eq!(info["kind"], "ExecCredential");
    }
}
