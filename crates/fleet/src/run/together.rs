//! Merges the recordings of all nodes into one archive.

use super::{Agents, Member, Run, lock, ns};
use crate::archive::{Archive, MERGED, OTHERS, dat_of};
use crate::manifest::{Asked, Manifest, Node, VERSION, rfc3339};
use crate::merge::{self, Merge, Placed, Recording};
use crate::node_session::{NodeSession, Stage, exit_code};
use crate::private;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Manifest of the archive.
    pub manifest: Manifest,
    /// 0 if all nodes delivered, else 1.
    pub exit_code: u8,
    /// Whether an archive was written; false if no node delivered.
    pub written: bool,
}

impl<A: Agents> Run<A> {
    /// Writes the archive, with one recording in memory at a time.
    pub fn put_together(&self, recorder: &str, selector: Option<String>, out: &Path) -> io::Result<Outcome> {
        let merged = self.folder.join("merged");
        let mut merge = Merge::new(BufWriter::new(private::create(&merged)?));
        let mut nodes = Vec::new();
        let mut files = Vec::new();
        for member in &self.members {
            let mut member = lock(member);
            let placed = (member.session.stage() == Stage::Downloaded).then(|| Self::place(&member, &mut merge));
            if let Some(Err(reason)) = &placed {
                member.session.fail(&reason.to_string());
            }
            let mut node = Node::new(&member.target, &member.session);
            node.warnings.extend(member.notes.iter().cloned());
            (node.wall_clock, node.corrected_ns) = (member.offset, member.ahead_ns);
            if let Some(Ok((placed, file))) = placed {
                (node.machine, node.events_unix_ns) = (Some(placed.machine), placed.events_unix_ns);
                node.warnings.extend(placed.notes);
                files.push((dat_of(&node.node), file));
            }
            nodes.push(node);
        }
        nodes.extend(
            self.missing.iter().map(|m| Node::without_agent(&m.node, &NodeSession::failed(&m.reason.to_string()))),
        );
        drop(merge.finish()?);
        let mut manifest = self.manifest(recorder, selector, nodes);
        let exit_code = self.exit_code();
        if files.is_empty() {
            return Ok(Outcome { manifest, exit_code, written: false });
        }
        // Written aside and renamed, so that the archive is complete or absent.
        let aside = self.folder.join("archive");
        let seconds = u64::try_from(manifest.started_unix_ns / 1_000_000_000).unwrap_or_default();
        let mut archive = Archive::new(BufWriter::new(private::create(&aside)?), seconds);
        archive.add(MERGED, BufReader::new(File::open(&merged)?))?;
        for (path, file) in &files {
            archive.add(path, BufReader::new(File::open(file)?))?;
        }
        manifest.files = archive.files().to_vec();
        let dats: Vec<String> = files.iter().map(|(path, _)| format!("-i {path}")).collect();
        manifest.trace_cmd = format!("trace-cmd report -t {}", dats.join(" "));
        let text = serde_json::to_vec_pretty(&manifest)?;
        let written = archive.finish(&format!("{OTHERS}/manifest.json"), &text)?;
        written.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&aside, out)?;
        Ok(Outcome { manifest, exit_code, written: true })
    }

    fn place(member: &Member, merge: &mut Merge<BufWriter<File>>) -> Result<(Placed, PathBuf), merge::Error> {
        let from = &member.file;
        let dat = std::fs::read(from).map_err(merge::Error::Download)?;
        let to = from.with_extension("wall");
        let mut anew = BufWriter::new(private::create(&to).map_err(merge::Error::Download)?);
        let recording = Recording {
            name: &member.target.node,
            dat: &dat,
            status: member.session.status(),
            ahead_ns: member.ahead_ns,
        };
        let placed = merge.add(recording, &mut anew)?;
        anew.into_inner().map_err(|error| merge::Error::Download(error.into_error()))?;
        // The converted file replaces the download.
        let _ = std::fs::remove_file(from);
        Ok((placed, to))
    }

    fn manifest(&self, recorder: &str, selector: Option<String>, nodes: Vec<Node>) -> Manifest {
        let agreed = lock(&self.agreed).clone();
        let downloaded = nodes.iter().filter(|node| node.status == Stage::Downloaded).count();
        let started_unix_ns = agreed.as_ref().map_or(0, |agreed| agreed.begin_unix_ns);
        Manifest {
            kstrobe_fleet_capture: VERSION,
            recorder: recorder.to_owned(),
            asked: Asked {
                probe: self.spec.probe.clone(),
                selector,
                request: self.spec.request.clone(),
                duration_ms: u64::try_from(ns(self.spec.duration) / 1_000_000).unwrap_or_default(),
            },
            started: if agreed.is_some() { rfc3339(started_unix_ns) } else { String::new() },
            started_unix_ns,
            clock: agreed.map(|agreed| agreed.agreement.common),
            downloaded,
            failed: nodes.len() - downloaded,
            nodes,
            files: Vec::new(),
            trace_cmd: String::new(),
        }
    }

    /// 0 if all nodes delivered, else 1.
    fn exit_code(&self) -> u8 {
        let sessions: Vec<NodeSession> = self.members.iter().map(|member| lock(member).session.clone()).collect();
        exit_code(&sessions).max(u8::from(!self.missing.is_empty() || sessions.is_empty()))
    }
}
