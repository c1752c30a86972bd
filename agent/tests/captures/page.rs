//! The page about captures against the code: its configurations and bodies are read, its mistakes told as it says.

use super::fences::Page;
use kstrobe::capture::api;
use kstrobe::capture::rules::alerts::Notification;
use kstrobe_config::diag::Diagnostic;
use kstrobe_config::model::{Captures, SourceFile};
use kstrobe_config::{agent, check_rules, embedded, probes, render};
use std::sync::Arc;

const PAGE: &str = "docs/captures.md";

/// What is wrong with a configuration, and with its rules beside the built-in probes.
fn wrong(text: &str) -> Vec<Diagnostic> {
    let file = Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: text.into() });
    let (agent, mut wrong) = agent(&file);
    let rules = agent.map(|agent| agent.rules).unwrap_or_default();
    wrong.extend(check_rules(&rules, &probes(&embedded()).0, |_| true));
    wrong
}

#[test]
fn every_block_is_what_it_says() {
    let mut page = Page::read(PAGE);
    let mut kinds = Vec::new();
    for fence in page.fences.clone() {
        let body = page.body(&fence).to_owned();
        let problem = match fence.info.as_str() {
            "yaml" => Some(render(&wrong(&body))).filter(|text| !text.is_empty()),
            "json request" => api::from_json(body.as_bytes(), &Captures::default()).err().map(|e| e.to_string()),
            "json alerts" => serde_json::from_str::<Notification>(&body).err().map(|e| e.to_string()),
            // The configuration of Alertmanager is its own.
            "yaml error" | "text" | "console" | "yaml alertmanager" => None,
            other => Some(format!("nobody checks blocks of kind `{other}`")),
        };
        if let Some(problem) = problem {
            page.complain(format!("line {}: {problem}", fence.line));
        }
        kinds.push(fence.info);
    }
    for kind in ["yaml", "json request", "json alerts", "yaml error"] {
        assert!(kinds.iter().any(|found| found == kind), "no block of kind `{kind}`");
    }
    page.finish();
}

#[test]
fn every_mistake_is_told_as_the_page_says() {
    let mut page = Page::read(PAGE);
    for (fence, next) in page.of("yaml error") {
        let told = render(&wrong(page.body(&fence)));
        let Some(next) = next.filter(|fence| fence.info == "text") else {
            page.complain(format!("no ```text follows the mistake at line {}", fence.line));
            continue;
        };
        page.expect(next.body, &format!("line {}", next.line), told);
    }
    page.finish();
}
