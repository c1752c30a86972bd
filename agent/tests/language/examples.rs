//! Examples in YAML.

use super::fences::{Fence, Page};
use super::fixture;
use kstrobe::config::plan::{self, ProbePlan};
use kstrobe_config::diag::Diagnostic;

const PAGES: [&str; 2] = ["docs/language.md", "README.md"];

/// What a probe file gives: probes that compile, and everything that is wrong.
fn compile(name: &str, text: &str) -> (Vec<ProbePlan>, Vec<Diagnostic>) {
    let (probes, mut diagnostics) = kstrobe_config::all_probes(&[fixture::file(name, text)]);
    let target = fixture::target();
    let mut good = Vec::new();
    for (probe, sound) in probes {
        let plan = plan::plan(probe);
        match plan.compile(&target) {
            _ if !sound => {
                let mut more = plan.mistakes(&target);
                more.retain(|new| diagnostics.iter().all(|known| known.at != new.at));
                diagnostics.append(&mut more);
            }
            Ok(artifact) => {
                diagnostics.extend(plan.warnings(&artifact));
                good.push(plan);
            }
            Err(refusal) => diagnostics.extend(refusal.diagnostics),
        }
    }
    kstrobe_config::in_order(&mut diagnostics);
    (good, diagnostics)
}

/// The probes of all good examples, and of the expressions on the page.
pub fn plans() -> Vec<ProbePlan> {
    let mut plans = Vec::new();
    for name in PAGES {
        let page = Page::read(name);
        for (fence, _) in page.of("yaml").iter().filter(|(f, _)| f.info == "yaml") {
            let (probes, _) = kstrobe_config::probes(&[fixture::file("example", page.body(fence))]);
            plans.extend(probes.into_iter().map(plan::plan));
        }
        for (fence, _) in page.of("expr") {
            plans.extend(super::expressions::plans(&page, &fence));
        }
    }
    plans
}

#[test]
fn every_example_compiles() {
    for name in PAGES {
        let mut page = Page::read(name);
        let examples: Vec<Fence> = page.fences.iter().filter(|f| f.info == "yaml").cloned().collect();
        assert!(examples.len() >= 2, "{name} has only {} examples", examples.len());
        for fence in examples {
            let (good, wrong) = compile(&format!("{name} at line {}", fence.line), page.body(&fence));
            if good.is_empty() || !wrong.is_empty() {
                let shown = kstrobe_config::render(&wrong);
                page.complain(format!("the example at line {} does not compile\n{shown}", fence.line));
            }
        }
        page.finish();
    }
}

#[test]
fn every_mistake_is_told_as_the_page_says() {
    for name in PAGES {
        let mut page = Page::read(name);
        for (fence, next) in page.of("yaml error") {
            let (_, wrong) = compile("probe.yaml", page.body(&fence));
            let Some(next) = next.filter(|f| f.info == "text") else {
                page.complain(format!("no ```text follows the mistake at line {}", fence.line));
                continue;
            };
            if wrong.is_empty() {
                page.complain(format!("nothing is wrong at line {}", fence.line));
            }
            page.expect(next.body, &format!("line {}", next.line), kstrobe_config::render(&wrong));
        }
        page.finish();
    }
}

/// Blocks of an unknown kind would be checked by nobody.
#[test]
fn every_block_is_of_a_kind_that_is_checked() {
    for name in PAGES {
        let mut page = Page::read(name);
        for fence in page.fences.clone() {
            let kind = fence.info.split(' ').next().unwrap_or_default();
            let known = matches!(fence.info.as_str(), "yaml" | "yaml error" | "text" | "console");
            if !known && !matches!(kind, "expr" | "fold") {
                page.complain(format!("line {}: nobody checks blocks of kind `{}`", fence.line, fence.info));
            }
        }
        page.finish();
    }
}
