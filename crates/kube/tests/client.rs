//! The client against a server that speaks TLS and refuses as Kubernetes does.

mod support;

use kstrobe_fake_api::{Authority, FakeApi, Fault, objects};
use kstrobe_kube::{Client, Config, Error, Wanted};
use serde_json::{Value, json};
use std::time::Duration;
use support::{Folder, client, client_of, config_of, env, service_account};

const PODS: &str = "/api/v1/pods";

#[tokio::test]
async fn a_service_account_whose_token_is_replaced() {
    let (api, folder) = (FakeApi::start(), Folder::new());
    api.put(objects::web());
    let config = Config::find(&Wanted::default(), &service_account(&api, &folder)).unwrap();
    assert_eq!(config.namespace, "kstrobe");
    let client = Client::new(config, "kstrobe/test").unwrap();
    let list: Value = client.get(PODS).await.unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "web-5d8f7c9b6d-x7k2p");

    // The kubelet writes a new one before the old one ends; the same connection shows it.
    api.set_token("another-token");
    let refused = client.get::<Value>(PODS).await.unwrap_err();
    assert_eq!((refused.reason(), refused.is(401)), ("unauthorized", true));
    folder.write("account/token", "another-token");
    client.get::<Value>(PODS).await.unwrap();
    assert_eq!(api.connections(), 1);

    folder.write("account/token", "\n");
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "credentials");
    std::fs::remove_file(folder.0.join("account/token")).unwrap();
    let missing = client.get::<Value>(PODS).await.unwrap_err();
    assert!(missing.to_string().contains("account/token: No such file"), "{missing}");
}

#[tokio::test]
async fn an_authority_that_is_replaced() {
    let (api, folder) = (FakeApi::start(), Folder::new());
    let around = service_account(&api, &folder);
    let other = Authority::default();
    folder.write("account/ca.crt", other.pem());
    let client = Client::new(Config::in_cluster(&around).unwrap(), "kstrobe/test").unwrap();
    let refused = client.get::<Value>(PODS).await.unwrap_err();
    assert_eq!(refused.reason(), "connect");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    folder.write("account/ca.crt", &format!("{}{}", other.pem(), api.authority().pem()));
    client.get::<Value>(PODS).await.unwrap();
    folder.write("account/ca.crt", "nothing");
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "config");
}

#[tokio::test]
async fn refusals_say_why() {
    let api = FakeApi::start();
    let client = client(&api);
    api.forbid("list pods");
    let forbidden = client.get::<Value>(PODS).await.unwrap_err();
    assert_eq!(forbidden.reason(), "forbidden");
    assert!(forbidden.to_string().contains("cannot list resource \"pods\" in API group \"\" at the cluster scope"));
    let missing = client.get::<Value>("/api/v1/namespaces/shop/pods/none").await.unwrap_err();
    assert_eq!(missing.to_string(), "HTTP status 404: pods \"none\" not found");
    api.permit("list pods");
    api.next("list pods", Fault::TooMany(7));
    let throttled = client.get::<Value>(PODS).await.unwrap_err();
    assert_eq!((throttled.reason(), throttled.retry_after()), ("throttled", Some(Duration::from_secs(7))));
    api.next("list pods", Fault::Text(502, "<html>bad gateway</html>"));
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "server_error");
    api.next("list pods", Fault::Close);
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "connection");
    api.next("list pods", Fault::Late(Duration::from_secs(60)));
    let begun = std::time::Instant::now();
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "timeout");
    assert!(begun.elapsed() < Duration::from_secs(20));
    api.set_down(true);
    let down = client.get::<Value>(PODS).await.unwrap_err();
    assert!(["connect", "connection"].contains(&down.reason()), "{down:?}");
    api.set_down(false);
    client.get::<Value>(PODS).await.unwrap();
}

#[tokio::test]
async fn objects_are_made_changed_and_removed() {
    let api = FakeApi::start();
    let client = client(&api);
    let all = "/apis/kstrobe.dev/v1alpha1/namespaces/ops/captures";
    let object =
        json!({"apiVersion": "kstrobe.dev/v1alpha1", "kind": "Capture", "metadata": {"name": "a"}, "spec": {"x": 1}});
    let made: Value = client.create(all, &object).await.unwrap();
    assert_eq!(made["metadata"]["namespace"], "ops");
    let again = client.create::<Value>(all, &object).await.unwrap_err();
    assert_eq!((again.reason(), again.status().unwrap().reason.as_str()), ("conflict", "AlreadyExists"));
    let one = format!("{all}/a");
    let changed: Value = client.merge_patch(&one, &json!({"spec": {"y": 2}, "status": {"z": 3}})).await.unwrap();
    assert_eq!((&changed["spec"], &changed["status"]), (&json!({"x": 1, "y": 2}), &Value::Null));
    let status: Value =
        client.merge_patch(&format!("{one}/status"), &json!({"spec": {"x": 9}, "status": {"z": 3}})).await.unwrap();
    assert_eq!((&status["spec"]["x"], &status["status"]["z"]), (&json!(1), &json!(3)));
    client.delete(&one).await.unwrap();
    assert!(client.delete(&one).await.unwrap_err().is(404));
}

#[tokio::test]
async fn a_kubeconfig_file_with_files_and_contexts() {
    let (api, folder) = (FakeApi::start(), Folder::new());
    let identity = api.client("alice");
    std::fs::create_dir_all(folder.0.join("pki")).unwrap();
    folder.write("pki/ca.crt", api.authority().pem());
    folder.write("pki/alice.crt", &identity.cert);
    folder.write("pki/alice.key", &identity.key);
    folder.write("pki/token", &api.token());
    let url = api.url();
    let port = api.address().port();
    let file = folder.write(
        "config",
        &format!(
            "current-context: by-certificate\n\
             clusters:\n\
             - {{name: right, cluster: {{server: '{url}', certificate-authority: pki/ca.crt}}}}\n\
             - {{name: blind, cluster: {{server: '{url}', insecure-skip-tls-verify: true}}}}\n\
             - {{name: named, cluster: {{server: 'https://localhost:{port}', certificate-authority: pki/ca.crt, tls-server-name: kubernetes}}}}\n\
             - {{name: misnamed, cluster: {{server: '{url}', certificate-authority: pki/ca.crt, tls-server-name: other}}}}\n\
             - {{name: unknown, cluster: {{server: '{url}'}}}}\n\
             users:\n\
             - {{name: alice, user: {{client-certificate: pki/alice.crt, client-key: pki/alice.key}}}}\n\
             - {{name: file, user: {{tokenFile: pki/token, token: stale}}}}\n\
             - {{name: nobody, user: {{}}}}\n\
             contexts:\n\
             - {{name: by-certificate, context: {{cluster: right, user: alice, namespace: ops}}}}\n\
             - {{name: by-file, context: {{cluster: blind, user: file}}}}\n\
             - {{name: by-name, context: {{cluster: named, user: file}}}}\n\
             - {{name: misnamed, context: {{cluster: misnamed, user: file}}}}\n\
             - {{name: system, context: {{cluster: unknown, user: file}}}}\n\
             - {{name: nobody, context: {{cluster: right, user: nobody}}}}\n\
             - {{name: lost, context: {{cluster: right, user: gone}}}}\n"
        ),
    );
    let of = |context: &str| {
        let wanted = Wanted {
            kubeconfig: Some(file.clone()),
            context: (!context.is_empty()).then(|| context.to_owned()),
            namespace: None,
        };
        Config::find(&wanted, &env(&[], &folder.0))
    };
    let ask = async |context: &str| {
        let client = Client::new(of(context).unwrap(), "kstrobe/test").unwrap();
        client.get::<Value>(PODS).await.map(|_| client.namespace().to_owned()).map_err(|error| error.reason())
    };
    assert_eq!(ask("").await, Ok("ops".into()));
    assert_eq!(ask("by-file").await, Ok("default".into()));
    assert_eq!(ask("by-name").await, Ok("default".into()));
    assert_eq!(ask("misnamed").await, Err("connect"));
    assert!(["connect", "config"].contains(&ask("system").await.unwrap_err()));
    assert_eq!(ask("nobody").await, Err("unauthorized"));
    let lost = of("lost").unwrap_err().to_string();
    assert!(lost.contains("names the user `gone`, which is not in"), "{lost}");
    assert!(of("none").unwrap_err().to_string().contains("there is no context `none`"));
}

#[tokio::test]
async fn the_variable_kubeconfig_names_several_files() {
    let (api, folder) = (FakeApi::start(), Folder::new());
    let first = folder.write("first", "current-context: fake\nusers:\n- name: someone\n  user: {token: first-wins}\n");
    let second = folder.write("second", &api.kubeconfig());
    let list = format!("{}:/nonexistent:{}", first.display(), second.display());
    let around = env(&[("KUBECONFIG", &list)], &folder.0);
    let client = Client::new(Config::find(&Wanted::default(), &around).unwrap(), "kstrobe/test").unwrap();
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "unauthorized");
    api.set_token("first-wins");
    client.get::<Value>(PODS).await.unwrap();

    std::fs::create_dir_all(folder.0.join("home/.kube")).unwrap();
    let home = folder.write("home/.kube/config", &api.kubeconfig());
    let around = env(&[("HOME", home.parent().unwrap().parent().unwrap().to_str().unwrap())], &folder.0);
    let wanted = Wanted { namespace: Some("elsewhere".into()), ..Wanted::default() };
    assert_eq!(Config::find(&wanted, &around).unwrap().namespace, "elsewhere");
    let nowhere = Config::find(&Wanted::default(), &env(&[], &folder.0)).unwrap_err();
    assert!(nowhere.to_string().contains("no ~/.kube/config"), "{nowhere}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    let cluster = "clusters: [{name: c, cluster: {server: 'https://h'CLUSTER}}]\n";
    let rest = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n";
    let of = |cluster_more: &str, user: &str| {
        let text =
            format!("{rest}{}users: [{{name: u, user: {{{user}}}}}]\n", cluster.replace("CLUSTER", cluster_more));
        config_of(&folder.write("config", &text)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(of("", ""), Ok(()));
    for (cluster, user, part) in [
        (", proxy-url: 'http://p'", "", "proxies are not supported"),
        (", certificate-authority-data: '!'", "", "`certificate-authority-data` is not base64"),
        ("", "client-certificate: a", "a client certificate without its key"),
        ("", "auth-provider: {name: gcp}", "`gcp` is not supported"),
        ("", "exec: {apiVersion: v9, command: x}", "`exec` speaks `v9`"),
        ("", "token: [secret]", "not a kubeconfig file"),
    ] {
        let message = of(cluster, user).unwrap_err();
        assert!(message.contains(part) && !message.contains("secret"), "{message}");
        assert!(message.contains("config"), "{message}");
    }
    let text = rest.to_owned() + "clusters: [{name: c, cluster: {server: 'h:1'}}]\nusers: [{name: u}]\n";
    assert!(config_of(&folder.write("config", &text)).unwrap_err().to_string().contains("begin with https://"));
    assert!(config_of(&folder.0.join("none")).unwrap_err().to_string().contains("No such file"));
    assert!(config_of(&folder.write("config", "")).unwrap_err().to_string().contains("no current context"));
}

#[tokio::test]
async fn a_credential_plugin_runs_again_when_its_token_has_expired() {
    let (api, folder) = (FakeApi::start(), Folder::new());
    let answer = |token: &str| {
        json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}})
            .to_string()
    };
    folder.write("answer", &answer(&api.token()));
    std::fs::create_dir_all(folder.0.join("bin")).unwrap();
    let plugin =
        folder.write("bin/plugin", "#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO $1 $FROM\" >>\"$LOG\"\ncat \"$ANSWER\"\n");
    std::fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let user = format!(
        "exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: bin/plugin\n      args: [token]\n      \
         provideClusterInfo: true\n      env:\n      - {{name: FROM, value: here}}\n      - {{name: LOG, value: '{0}/log'}}\n      \
         - {{name: ANSWER, value: '{0}/answer'}}",
        folder.0.display()
    );
    let text = api.kubeconfig().replace(&format!("token: {}", api.token()), &user);
    let client = client_of(&folder.write("config", &text));
    client.get::<Value>(PODS).await.unwrap();
    client.get::<Value>(PODS).await.unwrap();
    let log = || std::fs::read_to_string(folder.0.join("log")).unwrap();
    assert_eq!(log().lines().count(), 1, "one plugin run: {}", log());
    assert!(
        log().contains("\"interactive\":false") && log().contains(&api.url()) && log().ends_with("token here\n"),
        "{}",
        log()
    );

    api.set_token("the-next");
    folder.write("answer", &answer("the-next"));
    client.get::<Value>(PODS).await.unwrap();
    assert_eq!(log().lines().count(), 2);
    // What does not help is not tried for ever.
    api.set_token("unknown");
    assert_eq!(client.get::<Value>(PODS).await.unwrap_err().reason(), "unauthorized");
    assert_eq!(log().lines().count(), 3);
    folder.write("answer", "secret");
    let error = client.get::<Value>(PODS).await.unwrap_err();
    assert!(
        matches!(&error, Error::Credentials(why) if why.to_string().contains("printed no ExecCredential")),
        "{error}"
    );
}
