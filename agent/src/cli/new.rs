//! `kstrobe new NAME`: a commented file of a probe to begin with.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use super::fail;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files::{SourceFile, check_probes};

const TEMPLATE: &str = include_str!("new.yaml");

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the probe, a C identifier; the file is NAME.yaml in this folder.
    name: String,
}

pub fn run(args: &Args) -> ExitCode {
    let file = source(&args.name);
    let (_, wrong) = check_probes(std::slice::from_ref(&file));
    if !wrong.is_empty() {
        print_diagnostics(&wrong);
        return ExitCode::from(2);
    }
    match save(&file) {
        Ok(()) => {
            println!("{}: try it with `kstrobe tool {} --probes {0}`", file.name, args.name);
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("cannot write {}: {error}", file.name)),
    }
}

fn source(name: &str) -> Arc<SourceFile> {
    let text = TEMPLATE.replace("FILE", "NAME.yaml").replace("NAME", name);
    Arc::new(SourceFile { name: format!("{name}.yaml"), text })
}

/// Writes a probe's file into this folder, unless there is one.
pub(super) fn save(file: &SourceFile) -> std::io::Result<()> {
    std::fs::File::create_new(&file.name)?.write_all(file.text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_no_mistake() {
        let (probes, wrong) = check_probes(&[source("my_syncs")]);
        assert_eq!((probes.len(), wrong), (1, Vec::new()));
        assert_eq!(probes[0].name(), "my_syncs");
    }
}
