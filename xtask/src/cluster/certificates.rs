//! Certificates and kubeconfigs of a cluster, made by openssl for two days.

use super::network::{API_PORT, API_SERVICE, NODE};
use crate::apt::finished;
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Name of the node, which its certificates carry.
pub const NODE_NAME: &str = "node1";

/// A folder with all of them.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes them.
    pub fn new(folder: PathBuf) -> Result<Certificates> {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let made = Certificates(folder);
        made.sign(
            "ca",
            "CN = kubernetes",
            "basicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign",
        )?;
        finished(Command::new("openssl").args(["genrsa", "-out", &made.path("account.key"), "2048"]))?;
        let public =
            ["rsa", "-pubout", "-in", &made.path("account.key"), "-out", &made.path("account.pub")].map(str::to_owned);
        finished(Command::new("openssl").args(public))?;
        let names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost";
        made.server("apiserver", "kube-apiserver", &format!("{names},IP:{API_SERVICE},IP:{NODE},IP:127.0.0.1"))?;
        made.server("kubelet-server", NODE_NAME, &format!("DNS:{NODE_NAME},IP:{NODE}"))?;
        made.client("apiserver-kubelet", "O = system:masters\nCN = apiserver-kubelet")?;
        made.client("front-proxy", "CN = front-proxy-client")?;
        made.client("admin", "O = system:masters\nCN = admin")?;
        made.client("controller-manager", "CN = system:kube-controller-manager")?;
        made.client("scheduler", "CN = system:kube-scheduler")?;
        made.client("kubelet", &format!("O = system:nodes\nCN = system:node:{NODE_NAME}"))?;
        for user in ["admin", "controller-manager", "scheduler", "kubelet"] {
            made.kubeconfig(user)?;
        }
        Ok(made)
    }

    /// Path of one of the files: `NAME.crt`, `NAME.key`, `USER.conf`.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn server(&self, name: &str, subject: &str, names: &str) -> Result<()> {
        let usage = "basicConstraints = critical,CA:FALSE\nextendedKeyUsage = serverAuth,clientAuth";
        self.sign(name, &format!("CN = {subject}"), &format!("{usage}\nsubjectAltName = {names}"))
    }

    fn client(&self, name: &str, subject: &str) -> Result<()> {
        self.sign(name, subject, "basicConstraints = critical,CA:FALSE\nextendedKeyUsage = clientAuth")
    }

    /// `NAME.crt` and `NAME.key`, signed by the authority, which signs itself.
    fn sign(&self, name: &str, subject: &str, extensions: &str) -> Result<()> {
        let config = self.path(&format!("{name}.cnf"));
        let text = format!(
            "[req]\ndistinguished_name = subject\nprompt = no\nx509_extensions = extensions\n[subject]\n{subject}\n[extensions]\n{extensions}\n"
        );
        fs::write(&config, text)?;
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.args(["-days", "2", "-config", &config]);
        openssl.args(["-keyout", &self.path(&format!("{name}.key")), "-out", &self.path(&format!("{name}.crt"))]);
        if name != "ca" {
            openssl.args(["-CA", &self.path("ca.crt"), "-CAkey", &self.path("ca.key")]);
        }
        finished(&mut openssl).map(drop)
    }

    fn kubeconfig(&self, user: &str) -> Result<()> {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{NODE}:{API_PORT}"), "certificate-authority": self.path("ca.crt")}}],
            "users": [{"name": user, "user": {
                "client-certificate": self.path(&format!("{user}.crt")), "client-key": self.path(&format!("{user}.key"))}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        });
        Ok(fs::write(self.path(&format!("{user}.conf")), text.to_string())?)
    }
}
