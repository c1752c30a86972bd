//! What guests carry for the tests, as `agent/tests/guest.needs` lists it.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

const LIST: &str = "agent/tests/guest.needs";

/// What the tests need.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Programs of this machine.
    pub programs: Vec<String>,
    /// The same without what they need to run.
    pub binaries: Vec<String>,
    /// The kernels' modules.
    pub modules: Vec<String>,
    /// Files and folders below the workspace's root.
    pub files: Vec<String>,
}

/// Reads the list.
pub fn needs(root: &Path) -> Result<Needs> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Needs> {
    let mut needs = Needs::default();
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["program", name] => needs.programs.push(name.into()),
            ["binary", name] => needs.binaries.push(name.into()),
            // Files of modules have either; the kernel's own names have `_`.
            ["module", name] => needs.modules.push(name.replace('-', "_")),
            ["file", path] => needs.files.push(path.into()),
            _ => bail!("{LIST}:{number}: `{line}`: write `program NAME`, `binary NAME`, `module NAME` or `file PATH`"),
        }
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_four_kinds_of_lines() {
        let needs = parse("# why\n\nprogram tc\nbinary db\nmodule mq-deadline\n file docs \nmodule veth\n").unwrap();
        let list = |names: &[&str]| names.iter().map(|name| String::from(*name)).collect::<Vec<_>>();
        let (programs, binaries) = (list(&["tc"]), list(&["db"]));
        let (modules, files) = (list(&["mq_deadline", "veth"]), list(&["docs"]));
        assert_eq!(needs, Needs { programs, binaries, modules, files });
    }

    #[test]
    fn a_line_of_another_kind_is_named() {
        for line in ["modules veth", "module", "program a b"] {
            let error = parse(&format!("program tc\n{line}\n")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{LIST}:2: `{line}`")), "{error}");
        }
    }

    #[test]
    fn what_the_list_names_of_the_workspace_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in needs(root).unwrap().files {
            assert!(root.join(&file).exists(), "{file}");
        }
    }
}
