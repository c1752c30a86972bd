//! A client of a fake server, and waiting.
#![allow(dead_code, reason = "each test uses a part")]

use kstrobe_fake_api::FakeApi;
use kstrobe_kube::{Client, Config, Surroundings, Wanted};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A folder that is removed with its value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kstrobe-kube-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A pod's surroundings: these variables and no others, and the folder of its service account.
pub fn surroundings(variables: &[(&str, &str)], service_account: &Path) -> Surroundings {
    let variables: HashMap<String, OsString> =
        variables.iter().map(|(key, value)| ((*key).to_owned(), OsString::from(value))).collect();
    Surroundings {
        variable: Arc::new(move |name| variables.get(name).cloned()),
        service_account: service_account.to_owned(),
    }
}

/// The service account of a pod in this folder.
pub fn service_account(api: &FakeApi, folder: &Folder) -> Surroundings {
    folder.write("account/token", &(api.token() + "\n"));
    folder.write("account/ca.crt", api.authority().pem());
    folder.write("account/namespace", "kstrobe");
    let port = api.address().port().to_string();
    let variables = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", port.as_str())];
    surroundings(&variables, &folder.0.join("account"))
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
    let mut config = Config::find(&wanted, &surroundings(&[], Path::new("/nonexistent")))?;
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
