//! Prometheus' Alertmanager as a process of the test's own.

use super::http::ask;
use super::program;
use kstrobe_testing::{Server, free};
use std::net::SocketAddr;
use std::path::Path;

/// The program's name in Debian.
pub const PROGRAM: &str = "prometheus-alertmanager";

/// A running one. Dropping it kills it.
pub struct Alertmanager(Server);

impl Alertmanager {
    /// Starts one that posts every alert to this agent, again each second for as long as it fires.
    pub fn start(agent: SocketAddr, token_file: &Path) -> Alertmanager {
        let config = format!(
            "route: {{ receiver: kstrobe, group_by: [alertname], group_wait: 1ms, group_interval: 1s, repeat_interval: 1s }}\n\
             receivers:\n\
             \x20 - name: kstrobe\n\
             \x20   webhook_configs:\n\
             \x20     - url: 'http://{agent}/api/v1/captures/alertmanager'\n\
             \x20       send_resolved: true\n\
             \x20       http_config: {{ authorization: {{ credentials_file: '{}' }} }}\n",
            token_file.display()
        );
        let address = free();
        Alertmanager(Server::start(&program(PROGRAM).expect("Alertmanager"), address, "/-/ready", |folder| {
            vec![
                format!("--config.file={}", folder.write("alertmanager.yml", &config).display()),
                format!("--storage.path={}", folder.path("data")),
                format!("--web.listen-address={address}"),
                // Alone: no cluster.
                "--cluster.listen-address=".to_owned(),
            ]
        }))
    }

    /// Gives it alerts, as Prometheus does.
    #[track_caller]
    pub fn push(&self, alerts: &serde_json::Value) {
        let headers = [("Content-Type", "application/json")];
        let answer = ask(self.0.address(), "POST", "/api/v2/alerts", &headers, &alerts.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
