//! A client of a fake server, and waiting.
#![allow(dead_code, reason = "each test uses a part")]

pub mod following;

use kstrobe_fake_api::FakeApi;
use kstrobe_kube::{Client, Config, Env, Wanted};
pub use kstrobe_testing::Folder;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pod's env: these variables and no others, and the folder of its service account.
pub fn env(variables: &[(&str, &str)], service_account: &Path) -> Env {
    let variables: HashMap<String, OsString> =
        variables.iter().map(|(key, value)| ((*key).to_owned(), OsString::from(value))).collect();
    Env { variable: Arc::new(move |name| variables.get(name).cloned()), service_account: service_account.to_owned() }
}

/// The service account of a pod in this folder.
pub fn service_account(api: &FakeApi, folder: &Folder) -> Env {
    std::fs::create_dir_all(folder.0.join("account")).unwrap();
    folder.write("account/token", &(api.token() + "\n"));
    folder.write("account/ca.crt", api.authority().pem());
    folder.write("account/namespace", "kstrobe");
    let port = api.address().port().to_string();
    let variables = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", port.as_str())];
    env(&variables, &folder.0.join("account"))
}

/// A client by the server's own kubeconfig file.
pub fn client(api: &FakeApi) -> Client {
    let folder = Folder::new();
    let file = folder.write("config", &api.kubeconfig());
    client_of(&file)
}

pub fn client_of(file: &Path) -> Client {
    Client::new(config_of(file).unwrap(), "kstrobe/test").unwrap()
}

pub fn config_of(file: &Path) -> Result<Config, kstrobe_kube::Error> {
    let wanted = Wanted { kubeconfig: Some(file.to_owned()), ..Wanted::default() };
    let mut config = Config::find(&wanted, &env(&[], Path::new("/nonexistent")))?;
    config.timeout = Duration::from_secs(5);
    Ok(config)
}

/// Asks until it is so.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
