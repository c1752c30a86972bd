//! Prometheus' Alertmanager as a process of the test's own.

use super::http::ask;
use super::{Folder, wait_for};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program's name in Debian.
pub const PROGRAM: &str = "prometheus-alertmanager";

/// A running one, on loopback alone. Dropping it kills it.
pub struct Alertmanager {
    child: Child,
    address: SocketAddr,
    folder: Folder,
}

impl Alertmanager {
    /// Starts one that posts every alert to this agent, again each second for as long as it fires.
    pub fn start(agent: SocketAddr, token_file: &Path) -> Alertmanager {
        let folder = Folder::new();
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
        let config = folder.write("alertmanager.yml", &config);
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = File::create(folder.0.join("log")).unwrap();
        let child = Command::new(PROGRAM)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", folder.0.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            // Alone: no cluster.
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut started = Alertmanager { child, address, folder };
        wait_for("Alertmanager", Duration::from_secs(60), || {
            if let Some(status) = started.child.try_wait().unwrap() {
                panic!("Alertmanager ended with {status}:\n{}", started.log());
            }
            ask(address, "GET", "/-/ready", &[], "").filter(|answer| answer.status == 200)
        });
        started
    }

    /// Gives it alerts, as Prometheus does.
    #[track_caller]
    pub fn push(&self, alerts: &serde_json::Value) {
        let headers = [("Content-Type", "application/json")];
        let answer = ask(self.address, "POST", "/api/v2/alerts", &headers, &alerts.to_string()).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("Alertmanager's log:\n{}", self.log());
        }
    }
}
