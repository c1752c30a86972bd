//! A real Prometheus scrapes with a client certificate, a password or a token, right and wrong ones.

mod support;

use kstrobe_testing::{Api, Server, find, free};
use support::{Folder, Running, certificates, hash, programs, wait_for};

struct Prometheus(Server);

impl Prometheus {
    fn start(config: &str) -> Prometheus {
        let address = free();
        Prometheus(Server::start(&find("prometheus").unwrap(), address, "/-/ready", |folder| {
            vec![
                format!("--config.file={}", folder.write("prometheus.yml", config).display()),
                format!("--storage.tsdb.path={}", folder.path("data")),
                format!("--web.listen-address={address}"),
            ]
        }))
    }

    /// Labels `job` and values of `up`, once all `jobs` were scraped.
    fn up(&self, jobs: usize) -> Vec<(String, bool)> {
        wait_for("a scrape of every job", || {
            let found = Api(self.0.address()).query("up");
            let mut found: Vec<_> = found.into_iter().map(|up| (up.labels["job"].clone(), up.value == 1.0)).collect();
            found.sort();
            (found.len() == jobs).then_some(found)
        })
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
    let prometheus = Prometheus::start(&config);
    let mut expected: Vec<(String, bool)> = jobs.iter().map(|(job, .., up)| ((*job).to_owned(), *up)).collect();
    expected.sort();
    // The first scrape on a busy machine may time out; refusals are permanent.
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
