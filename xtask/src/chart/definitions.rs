//! Definitions of custom resources, by the API server's own code: its validation alone, and the whole server of custom
//! resources with etcd.

use crate::golang::Library;
use crate::programs;
use anyhow::{Context, Result, bail, ensure};
use kstrobe_testing::{Folder, Server, free};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The API server of custom resources as Debian has it: its sources, that is.
const API_SERVER: Library = Library {
    folder: "go/apiextensions",
    package: "golang-k8s-apiextensions-apiserver-dev",
    unused: &[
        "golang-github-aws-aws-sdk-go-v2-dev",
        "golang-github-charmbracelet-bubbletea-dev",
        "golang-github-cloudflare-circl-dev",
        "golang-github-google-pprof-dev",
        "golang-github-klauspost-compress-dev",
        "golang-github-nats-io-nats-server-dev",
        "golang-github-nxadm-tail-dev",
        "golang-github-pierrec-lz4-dev",
        "golang-github-pjbgf-sha1cd-dev",
        "golang-golang-x-image-dev",
        "golang-golang-x-tools",
        "golang-gonum-v1-plot-dev",
        "golang-google-api-dev",
        "golang-google-cloud-dev",
        "golang-mongodb-mongo-driver-dev",
    ],
};

/// Begins the first line of a wrong definition; what the API server says follows.
const REFUSED: &str = "# refused: ";

/// Lines of the end of the API server's log that a failure shows.
const SHOWN: usize = 20;

/// The program that validates definitions, built once.
pub fn checker(root: &Path) -> Result<PathBuf> {
    API_SERVER.build(root, &root.join("xtask/crds/check"))
}

/// All definitions of a folder are valid, and those in `helm/tests/wrong_definitions` are not.
pub fn check(root: &Path, checker: &Path, definitions: &Path) -> Result<()> {
    let right = files(definitions)?;
    let (valid, said) = validate(checker, &right)?;
    ensure!(valid, "the API server's validation refuses the chart's definitions:\n{said}");
    let wrong = files(&root.join("helm/tests/wrong_definitions"))?;
    for path in &wrong {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let expected = text.lines().next().and_then(|line| line.strip_prefix(REFUSED));
        let expected = expected.with_context(|| format!("{} does not begin with `{REFUSED}`", path.display()))?;
        let (valid, said) = validate(checker, std::slice::from_ref(path))?;
        ensure!(!valid && said.contains(expected), "{}: expected `{expected}`, got: {said}", path.display());
    }
    println!("the API server's validation takes {} definitions and refuses {} wrong ones", right.len(), wrong.len());
    Ok(())
}

/// Whether these files are valid, and what is said of them.
fn validate(checker: &Path, files: &[PathBuf]) -> Result<(bool, String)> {
    let Output { status, stdout, stderr } =
        Command::new(checker).args(files).output().with_context(|| format!("starting {}", checker.display()))?;
    let said = String::from_utf8_lossy(&stdout).into_owned();
    match status.code() {
        Some(0) => Ok((true, said)),
        Some(1) if !said.is_empty() => Ok((false, said)),
        _ => bail!("{} ended with {status}: {}", checker.display(), String::from_utf8_lossy(&stderr)),
    }
}

/// Files of a folder that is not empty, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    files.sort();
    Ok(files)
}

/// Right and wrong objects, judged by the whole API server of custom resources, which stores them in etcd.
pub fn judge(root: &Path, python: &Path, definitions: &Path) -> Result<()> {
    let program = API_SERVER.build(root, &root.join("xtask/crds/server"))?;
    let etcd = programs::unpack("etcd")?;
    let (client, peer, secure) = (free(), free(), free());
    let _etcd = Server::start(&etcd, client, "health", |folder| {
        let data = folder.0.join("data");
        [
            format!("--data-dir={}", data.display()),
            "--unsafe-no-fsync".to_owned(),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
        ]
        .into()
    });
    let folder = Folder::new();
    // It asks a core API server for services, which only webhooks of conversion need.
    let core = folder.0.join("core.conf");
    let kubeconfig = r#"{"apiVersion":"v1","kind":"Config","current-context":"none",
        "clusters":[{"name":"none","cluster":{"server":"http://127.0.0.1:1"}}],
        "contexts":[{"name":"none","context":{"cluster":"none"}}]}"#;
    fs::write(&core, kubeconfig).with_context(|| core.display().to_string())?;
    let log = fs::File::create(folder.0.join("log"))?;
    let mut server = Command::new(&program);
    server.args([format!("--etcd-servers=http://{client}"), format!("--secure-port={}", secure.port())]);
    server.args(["--bind-address=127.0.0.1", "--enable-priority-and-fairness=false"]);
    server.args([format!("--cert-dir={}", folder.0.display()), format!("--kubeconfig={}", core.display())]);
    server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut server = server.spawn().with_context(|| format!("starting {}", program.display()))?;
    let mut judge = Command::new(python);
    judge.env("PYTHONDONTWRITEBYTECODE", "1").arg(root.join("helm/tests/server.py"));
    judge.arg(format!("https://localhost:{}", secure.port())).arg(folder.0.join("apiserver.crt")).arg(definitions);
    let judged = programs::finish(&mut judge);
    server.kill()?;
    server.wait()?;
    judged.with_context(|| format!("the API server's log ends:\n{}", end_of(&folder.0.join("log"))))
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}
