//! `kstrobe fleet get`

use super::Reach;
use super::door::Door;
use super::error::Error;
use crate::capture::format::Format;
use bytes::Bytes;
use http::Method;
use kstrobe_fleet::run::{Agents, store};
use kstrobe_fleet::target::{NoAgent, Target, Wanted, choose};
use kstrobe_kube::crd::NodeCapture;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// For a whole file.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the Capture.
    capture: String,
    #[command(flatten)]
    reach: Reach,
    /// Format of the files: dat, perfetto, text, folded or pprof.
    #[arg(long, value_name = "FORMAT", default_value = "dat", value_parser = format)]
    format: Format,
    /// Folder for the files, which are called CAPTURE-NODE and after their format.
    #[arg(short, long, value_name = "FOLDER", default_value = ".")]
    output: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("it is {}", Format::ALL.map(Format::name).join(", "))]
struct NotAFormat;

fn format(text: &str) -> Result<Format, NotAFormat> {
    Format::named(text).ok_or(NotAFormat)
}

/// 1 when a node that should have a file delivers none.
pub async fn run(args: Args) -> Result<ExitCode, Error> {
    let door = args.reach.door()?;
    let agents = args.reach.agents(&door).await?;
    let namespaces = agents.iter().map(|agent| agent.namespace.as_str()).collect();
    let capture = door.capture(&namespaces, &args.capture).await?;
    let is_meant = |node: &str| args.reach.nodes.is_empty() || args.reach.nodes.iter().any(|named| named == node);
    let nodes: Vec<(&String, &NodeCapture)> = capture.nodes.iter().filter(|(node, _)| is_meant(node)).collect();
    if nodes.is_empty() {
        return Err(Error::NoStatus(args.capture));
    }
    let (targets, missing) = choose(&agents, &Wanted::Nodes(nodes.iter().map(|(node, _)| (*node).clone()).collect()));
    let mut failed = false;
    for (node, entry) in nodes {
        let name = format!("{}-{}-{}", file_name(&args.capture), file_name(node), args.format.file());
        let to = args.output.join(name);
        let target = targets.iter().find(|target| target.node == *node);
        let no_agent = || missing.iter().find(|missing| missing.node == *node).map(|missing| missing.reason.clone());
        let fetched = match (&entry.id, target) {
            (None, _) => {
                let message = entry.message.as_deref().unwrap_or("it has no files").to_owned();
                Err(Error::NoFile { state: format!("{:?}", entry.state), message })
            }
            (Some(_), None) => Err(kstrobe_fleet::Error::from(no_agent().unwrap_or(NoAgent::None)).into()),
            (Some(_), Some(_)) if !entry.state.is_end() => Err(Error::StillRuns),
            (Some(id), Some(target)) => fetch(&door, target, id, args.format, &to).await,
        };
        match fetched {
            Ok(()) => println!("{}", to.display()),
            Err(reason) => {
                eprintln!("{node}: {reason}");
                failed = true;
            }
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// A name of the cluster as part of a file's name: any other character than theirs becomes `_`.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' }).collect()
}

async fn fetch(door: &Door, target: &Target, id: &str, format: Format, to: &Path) -> Result<(), Error> {
    let path = format!("/api/v1/captures/{}/download?format={}", kstrobe_kube::encode(id), format.name());
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let fetching = async {
        let answer = door.ask(&target.agent, Method::GET, &path, Bytes::new()).await?;
        store(answer, &part).await
    };
    let fetched = tokio::time::timeout(LIMIT, fetching).await;
    let renamed = |()| std::fs::rename(&part, to).map_err(|error| Error::File { file: to.to_owned(), error });
    // An incomplete file is removed.
    let stored = match fetched {
        Ok(fetched) => fetched.map_err(Error::Agent).and_then(renamed),
        Err(_) => Err(Error::FileTimeout(LIMIT)),
    };
    if stored.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    stored
}
