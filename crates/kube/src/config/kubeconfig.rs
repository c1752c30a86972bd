//! kubeconfig files: clusters, users and contexts, merged as kubectl merges them.

use super::{Auth, Config, Exec, Impersonate, Pem, Secret, TIMEOUT, Wanted, read, server};
use crate::error::{ConfigError, KubeconfigError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A kubeconfig file; unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    current_context: Option<String>,
    clusters: Option<Vec<Named>>,
    users: Option<Vec<Named>>,
    contexts: Option<Vec<Named>>,
}

/// A named entry; exactly one of `cluster`, `user` and `context` is set.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    cluster: Option<Cluster>,
    user: Option<User>,
    context: Option<Context>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<Plugin>,
    auth_provider: Option<Provider>,
    #[serde(rename = "as")]
    act_as: Option<String>,
    as_groups: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Provider {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Plugin {
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: Option<String>,
    provide_cluster_info: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

/// An entry and the directory of its file, to which its paths are relative.
struct Found<T> {
    value: T,
    folder: PathBuf,
    file: PathBuf,
}

/// Resolves the wanted or current context. The first of several entries with the same name wins. A missing file is an error
/// if `must` is set, otherwise it counts as empty.
pub(super) fn config(files: &[PathBuf], must: bool, wanted: &Wanted) -> Result<Config, ConfigError> {
    let read: Vec<(PathBuf, File)> = files
        .iter()
        .filter(|file| must || file.exists())
        .map(|file| Ok((file.clone(), parse(file)?)))
        .collect::<Result<_, ConfigError>>()?;
    if read.is_empty() {
        return Err(ConfigError::NoKubeconfig(files.to_vec()));
    }
    let current = || read.iter().find_map(|(_, file)| file.current_context.clone().filter(|name| !name.is_empty()));
    let none = || ConfigError::NoCurrentContext(files.to_vec());
    let name = wanted.context.clone().or_else(current).ok_or_else(none)?;
    let mut read = read;
    let context: Found<Context> = take(&mut read, &name, |file| &mut file.contexts, |named| named.context.take())
        .ok_or_else(|| ConfigError::NoContext { name: name.clone(), files: files.to_vec() })?;
    let context = context.value;
    let undefined = |kind, named: &str| ConfigError::Undefined {
        context: name.clone(),
        kind,
        name: named.to_owned(),
        files: files.to_vec(),
    };
    let cluster: Found<Cluster> =
        take(&mut read, &context.cluster, |file| &mut file.clusters, |named| named.cluster.take())
            .ok_or_else(|| undefined("cluster", &context.cluster))?;
    let user =
        take(&mut read, &context.user, |file| &mut file.users, |named| Some(named.user.take().unwrap_or_default()));
    // A context without a user is valid: the server needs no credentials.
    if user.is_none() && !context.user.is_empty() {
        return Err(undefined("user", &context.user));
    }
    assemble(context, cluster, user)
}

fn wrong(file: &Path, error: KubeconfigError) -> ConfigError {
    ConfigError::Kubeconfig { file: file.to_owned(), error }
}

fn parse(file: &Path) -> Result<File, ConfigError> {
    let text = String::from_utf8(read(file)?).map_err(|_| wrong(file, KubeconfigError::NotText))?;
    if text.trim().is_empty() {
        return Ok(File::default());
    }
    serde_saphyr::from_str(&text)
        .map_err(|error| wrong(file, KubeconfigError::Syntax { line: error.location().map(|at| at.line()) }))
}

fn take<T>(
    files: &mut [(PathBuf, File)],
    name: &str,
    list: fn(&mut File) -> &mut Option<Vec<Named>>,
    part: fn(&mut Named) -> Option<T>,
) -> Option<Found<T>> {
    for (path, file) in files {
        let named = list(file).iter_mut().flatten().find(|named| named.name == name);
        if let Some(value) = named.and_then(part) {
            let folder = path.parent().map(Path::to_owned).unwrap_or_default();
            return Some(Found { value, folder, file: path.clone() });
        }
    }
    None
}

fn assemble(context: Context, cluster: Found<Cluster>, user: Option<Found<User>>) -> Result<Config, ConfigError> {
    let file = &cluster.file;
    let Cluster { server: url, tls_server_name, proxy_url, .. } = &cluster.value;
    if let Some(proxy) = proxy_url.as_ref().filter(|proxy| !proxy.is_empty()) {
        return Err(wrong(file, KubeconfigError::Proxy(proxy.clone())));
    }
    let Some(url) = url else { return Err(wrong(file, KubeconfigError::NoServer(context.cluster))) };
    let insecure = cluster.value.insecure_skip_tls_verify.unwrap_or(false);
    let ca = pem(
        &cluster.value.certificate_authority_data,
        &cluster.value.certificate_authority,
        &cluster.folder,
        "certificate-authority-data",
        file,
    )?;
    let mut config = Config {
        server: server(url, file.display())?,
        ca,
        insecure,
        server_name: tls_server_name.clone().filter(|name| !name.is_empty()),
        identity: None,
        auth: Auth::None,
        impersonate: Impersonate::default(),
        namespace: context.namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into()),
        timeout: TIMEOUT,
    };
    if let Some(user) = user {
        identify(&mut config, user, &cluster.value)?;
    }
    Ok(config)
}

fn identify(config: &mut Config, user: Found<User>, cluster: &Cluster) -> Result<(), ConfigError> {
    let Found { value: user, folder, file } = user;
    if let Some(Provider { name }) = user.auth_provider {
        return Err(wrong(&file, KubeconfigError::AuthProvider(name)));
    }
    let cert = pem(&user.client_certificate_data, &user.client_certificate, &folder, "client-certificate-data", &file)?;
    let key = pem(&user.client_key_data, &user.client_key, &folder, "client-key-data", &file)?;
    config.identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(wrong(&file, KubeconfigError::NoKey)),
        (None, Some(_)) => return Err(wrong(&file, KubeconfigError::NoCertificate)),
    };
    config.auth = match user {
        User { token_file: Some(path), .. } if !path.as_os_str().is_empty() => Auth::TokenFile(folder.join(path)),
        User { token: Some(token), .. } if !token.is_empty() => Auth::Token(Secret(token)),
        User { username: Some(name), password, .. } if !name.is_empty() => {
            Auth::Basic(name, Secret(password.unwrap_or_default()))
        }
        User { exec: Some(plugin), .. } => {
            Auth::Exec(Box::new(exec(plugin, &folder, cluster).map_err(|error| wrong(&file, error))?))
        }
        _ => Auth::None,
    };
    config.impersonate = Impersonate { user: user.act_as, groups: user.as_groups.unwrap_or_default() };
    Ok(())
}

fn exec(plugin: Plugin, folder: &Path, cluster: &Cluster) -> Result<Exec, KubeconfigError> {
    const KNOWN: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
    if !KNOWN.contains(&plugin.api_version.as_str()) {
        return Err(KubeconfigError::ExecVersion { found: plugin.api_version, known: &KNOWN });
    }
    if plugin.command.is_empty() {
        return Err(KubeconfigError::NoCommand);
    }
    // As in kubectl: a path is relative to the file, a bare name is looked up in PATH.
    let command =
        if plugin.command.contains('/') { folder.join(&plugin.command) } else { PathBuf::from(&plugin.command) };
    let cluster_info = plugin.provide_cluster_info.unwrap_or(false).then(|| exec_cluster(cluster, folder).to_string());
    Ok(Exec {
        api_version: plugin.api_version,
        command,
        args: plugin.args.unwrap_or_default(),
        env: plugin.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect(),
        install_hint: plugin.install_hint.unwrap_or_default(),
        cluster: cluster_info,
    })
}

/// Builds `spec.cluster` of `KUBERNETES_EXEC_INFO`.
fn exec_cluster(cluster: &Cluster, folder: &Path) -> Value {
    let from_file = || Some(STANDARD.encode(read(&folder.join(cluster.certificate_authority.as_ref()?)).ok()?));
    json!({
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify.unwrap_or(false),
        "certificate-authority-data": cluster.certificate_authority_data.clone().or_else(from_file),
    })
}

/// Inline data takes precedence over a file name.
fn pem(
    data: &Option<String>,
    path: &Option<PathBuf>,
    folder: &Path,
    what: &'static str,
    file: &Path,
) -> Result<Option<Pem>, ConfigError> {
    if let Some(data) = data.as_ref().filter(|data| !data.is_empty()) {
        let compact: String = data.split_whitespace().collect();
        let text = STANDARD.decode(compact).map_err(|_| wrong(file, KubeconfigError::NotBase64(what)))?;
        return Ok(Some(Pem::Text(text)));
    }
    Ok(path.as_ref().filter(|path| !path.as_os_str().is_empty()).map(|path| Pem::File(folder.join(path))))
}
