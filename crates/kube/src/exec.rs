//! Credential plugins: programs that print a token or a certificate.

use crate::config::{Exec, Secret};
use crate::error::PluginError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time limit of a plugin, which may contact remote servers.
pub(crate) const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);

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
pub(crate) async fn run(exec: &Exec) -> Result<PluginCredentials, PluginError> {
    let mut command = Command::new(&exec.command);
    command.args(&exec.args).envs(exec.env.iter().map(|(key, value)| (key, value)));
    command.env("KUBERNETES_EXEC_INFO", info(exec));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = tokio::time::timeout(PLUGIN_TIMEOUT, command.output()).await.map_err(|_| PluginError::Timeout)?;
    let output = output.map_err(|error| PluginError::Start { error, hint: exec.install_hint.clone() })?;
    if !output.status.success() {
        return Err(PluginError::Exit(output.status));
    }
    parse(exec, &output.stdout)
}

fn info(exec: &Exec) -> String {
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = exec.cluster.as_ref().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        spec["cluster"] = cluster;
    }
    json!({"apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec}).to_string()
}

/// Parses the output of a plugin.
fn parse(exec: &Exec, printed: &[u8]) -> Result<PluginCredentials, PluginError> {
    let credential: ExecCredential = serde_json::from_slice(printed).map_err(|_| PluginError::NoExecCredential)?;
    if credential.api_version != exec.api_version {
        return Err(PluginError::Version { found: credential.api_version, expected: exec.api_version.clone() });
    }
    let status = credential.status.ok_or(PluginError::NoStatus)?;
    let identity = match (status.client_certificate_data, status.client_key_data) {
        (Some(cert), Some(key)) => Some((cert.into_bytes(), Secret(key))),
        (None, None) => None,
        _ => return Err(PluginError::Identity),
    };
    let token = status.token.filter(|token| !token.is_empty()).map(Secret);
    if token.is_none() && identity.is_none() {
        return Err(PluginError::Empty);
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
            of(json!({"token": "t"})).unwrap(),
            PluginCredentials { token: Some(Secret("t".into())), identity: None }
        );
        assert!(matches!(of(json!({"token": ""})), Err(PluginError::Empty)));
        assert!(matches!(of(json!({"clientCertificateData": "c"})), Err(PluginError::Identity)));
        let both = of(json!({"clientCertificateData": "c", "clientKeyData": "k"})).unwrap();
        assert_eq!(both.identity, Some((b"c".to_vec(), Secret("k".into()))));
        let error = parse(&exec(), b"token: secret").unwrap_err();
        assert_eq!(error.to_string(), "printed no ExecCredential");
        let other = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "t"}}).to_string();
        assert!(parse(&exec(), other.as_bytes()).unwrap_err().to_string().contains("v1beta1"));
    }

    #[test]
    fn plugin_input() {
        let info: Value = serde_json::from_str(&info(&exec())).unwrap();
        assert_eq!(info["spec"], json!({"interactive": false, "cluster": {"server": "https://h"}}));
        assert_eq!(info["kind"], "ExecCredential");
    }
}
