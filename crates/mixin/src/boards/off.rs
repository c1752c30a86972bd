//! Panels of probes that do not run by default: a row of their own, which asks nothing until it is opened.

use super::panel;
use crate::catalogue::Catalogue;
use crate::dashboard::Row;
use crate::expressions::metrics;
use crate::panel::{Look, Panel};

/// The row with what runs by default, then one with the rest; either only if it has panels.
pub(super) fn apart(row: Row, catalogue: &Catalogue) -> Vec<Row> {
    let mut names = Vec::new();
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for panel in row.panels {
        let needed = not_by_default(&panel, catalogue);
        let part = if needed.is_empty() { &mut on } else { &mut off };
        part.push(panel);
        names.extend(needed.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let mut rows = Vec::new();
    if !on.is_empty() {
        rows.push(Row { title: row.title.clone(), collapsed: row.collapsed, panels: on });
    }
    if !off.is_empty() {
        off.insert(0, how_to_enable(&row.title, &names));
        let title = match &names[..] {
            [name] => format!("{} (off by default: kstrobe run --enable {name})", row.title),
            _ => format!("{} (off by default, inside stands how to enable it)", row.title),
        };
        rows.push(Row { title, collapsed: true, panels: off });
    }
    rows
}

/// Probes that a panel asks and that do not run by default.
fn not_by_default<'a>(panel: &Panel, catalogue: &'a Catalogue) -> Vec<&'a str> {
    let mut names = Vec::new();
    for metric in panel.targets.iter().flat_map(|target| metrics(&target.expr)) {
        let probe = catalogue.find(&metric).and_then(|(probe, _)| probe).filter(|probe| !probe.enabled);
        names.extend(probe.map(|probe| probe.name.as_str()).filter(|name| !names.contains(name)));
    }
    names
}

fn how_to_enable(title: &str, names: &[&str]) -> Panel {
    let (comma, listed) = (names.join(","), names.join(", "));
    let text = format!(
        "Not enabled by default: `{listed}`. Enable with `kstrobe run --enable {comma}`, in `kstrobe.yaml` with \
         `probes: {{enable: [{listed}]}}`, or in the chart with `--set probes.enable={{{comma}}}`."
    );
    Panel { width: 24, ..panel(&format!("{title}: how to enable"), &text, "", Look::Text, Vec::new()) }
}
