//! A real Prometheus scrapes with a client certificate, a password or a token, right and wrong ones.

mod support;

use std::process::{Child, Command, Stdio};
use support::{Folder, Running, certificates, find, hash, programs, wait_for};

struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    fn start(folder: &Folder, config: &str) -> Prometheus {
        let config = folder.write("prometheus.yml", config);
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(folder.0.join("prometheus.log")).unwrap();
        let child = Command::new(find("prometheus").unwrap())
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Prometheus { child, port }
    }

    /// Labels `job` and values of `up`, once all `jobs` were scraped.
    fn up(&self, jobs: usize) -> Vec<(String, bool)> {
        wait_for("a scrape of every job", || {
            let url = format!("http://127.0.0.1:{}/api/v1/query?query=up", self.port);
            let (_, status, _, body) = support::curl(&[&url]);
            if status != 200 {
                return None;
            }
            let mut found: Vec<(String, bool)> = body
                .split("\"job\":\"")
                .skip(1)
                .map(|rest| (rest.split('"').next().unwrap().to_owned(), rest.contains(",\"1\"]")))
                .collect();
            found.sort();
            (found.len() == jobs).then_some(found)
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs prometheus, curl and openssl"]
fn root_prometheus_scrapes_with_right_credentials_only() {
    let name = "root_prometheus_scrapes_with_right_credentials_only";
    if !programs(name, &["prometheus", "curl", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    for authority in ["ca", "other"] {
        certificates::authority(&folder, authority);
    }
    certificates::server(&folder, "server", "ca");
    certificates::client(&folder, "right", "ca", "DNS:prometheus.example");
    certificates::client(&folder, "unnamed", "ca", "DNS:else.example");
    certificates::client(&folder, "foreign", "other", "DNS:prometheus.example");
    let web = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_ca_file: ca.crt\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus.example]\n\
         basic_auth_users:\n  prometheus: {}\n",
        hash("secret")
    );
    let server = Running::start(&folder, &web);
    let certificate = |name: &str| {
        format!("cert_file: {}, key_file: {}", folder.path(&format!("{name}.crt")), folder.path(&format!("{name}.key")))
    };
    let password = |text: &str| format!("basic_auth: {{ username: prometheus, password: {text} }}");
    let token = |text: &str| format!("authorization: {{ credentials: {text} }}");
    let jobs = [
        ("right_password", certificate("right"), password("secret"), true),
        ("right_token", certificate("right"), token("right"), true),
        ("wrong_password", certificate("right"), password("wrong"), false),
        ("wrong_token", certificate("right"), token("wrong"), false),
        ("no_password", certificate("right"), String::new(), false),
        ("no_certificate", String::new(), password("secret"), false),
        ("foreign_certificate", certificate("foreign"), password("secret"), false),
        ("certificate_of_another_name", certificate("unnamed"), password("secret"), false),
    ];
    let ca = folder.path("ca.crt");
    let mut config = "global: { scrape_interval: 1s, scrape_timeout: 1s }\nscrape_configs:\n".to_owned();
    for (job, certificate, credentials, _) in &jobs {
        config += &format!(
            "- job_name: {job}\n  scheme: https\n  tls_config: {{ ca_file: {ca}, {certificate} }}\n  {credentials}\n  \
             static_configs: [{{ targets: ['localhost:{}'] }}]\n",
            server.address.port()
        );
    }
    let prometheus = Prometheus::start(&folder, &config);
    let mut expected: Vec<(String, bool)> = jobs.iter().map(|(job, .., up)| ((*job).to_owned(), *up)).collect();
    expected.sort();
    // The first scrape of a busy machine may be too slow; who is refused stays so.
    wait_for("both right ones", || {
        let up = prometheus.up(jobs.len());
        (up.iter().filter(|(_, up)| *up).count() == 2).then_some(())
    });
    assert_eq!(prometheus.up(jobs.len()), expected);

    // Another password and other certificates, without a restart.
    certificates::server(&folder, "server", "ca");
    folder.write(
        "web-config.yml",
        &web.replace("client_allowed_sans: [prometheus.example]", "client_allowed_sans: [else.example]"),
    );
    wait_for("the certificate of another name", || {
        let up = prometheus.up(jobs.len());
        up.iter().any(|(job, up)| job == "certificate_of_another_name" && *up).then_some(())
    });
    assert!(server.counts().reload_ok);
}
