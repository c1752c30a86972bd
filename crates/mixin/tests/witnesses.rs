//! promtool and jsonnet about our files. They are Debian's, which `cargo xtask test` fetches.

use kstrobe_mixin::rules::quoted;
use kstrobe_mixin::{FOLDERS, catalogue, expressions, files};
use kstrobe_testing::{Folder, find, witnesses};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, when it is there.
fn witness(test: &str, name: &str) -> Option<PathBuf> {
    witnesses(test, &[name]).then(|| find(name)).flatten()
}

/// All generated files.
struct Tree(Folder);

impl Tree {
    fn new() -> Self {
        let folder = Folder::new();
        let root = &folder.0;
        for folder in FOLDERS {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::create_dir_all(root.join("docs")).unwrap();
        for file in files(&catalogue()) {
            std::fs::write(root.join(&file.path), file.text).unwrap();
        }
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards/jsonnet/mixin.libsonnet");
        std::fs::copy(own, root.join("dashboards/jsonnet/mixin.libsonnet")).unwrap();
        Tree(folder)
    }

    /// What the program prints; it must end well.
    fn run(&self, program: &Path, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).current_dir(&self.0.0).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{} {arguments:?}:\n{out}\n{err}", program.display());
        out
    }
}

const RULES: [&str; 3] = [
    "dashboards/rules/kstrobe-alerts.yaml",
    "dashboards/rules/kstrobe-slo-classic.yaml",
    "dashboards/rules/kstrobe-slo-native.yaml",
];

#[test]
#[ignore = "needs promtool"]
fn root_promtool_takes_every_rule_and_every_query_of_every_panel() {
    let Some(promtool) = witness("promtool", "promtool") else { return };
    let tree = Tree::new();
    for rules in RULES {
        let out = tree.run(&promtool, &["check", "rules", "--lint=all", "--lint-fatal", rules]);
        assert!(out.contains("SUCCESS"), "{out}");
    }
    let mut text = String::from("groups:\n- name: queries\n  rules:\n");
    for (number, expression) in expressions(&catalogue(), "5m").iter().enumerate() {
        let _ = writeln!(text, "  - {{record: \"query:{number}\", expr: {}}}", quoted(&expression.text));
    }
    tree.0.write("queries.yaml", &text);
    tree.run(&promtool, &["check", "rules", "--lint=none", "queries.yaml"]);
}

#[test]
#[ignore = "needs promtool"]
fn root_promtool_sees_every_alert_fire_and_be_silent() {
    let Some(promtool) = witness("promtool", "promtool") else { return };
    let tree = Tree::new();
    for rules in RULES {
        let tests = rules.replace("rules/", "rules/tests/");
        let out = tree.run(&promtool, &["test", "rules", &tests]);
        assert!(out.contains("SUCCESS"), "{out}");
    }
}

/// A test that cannot fail is no test.
#[test]
#[ignore = "needs promtool"]
fn root_promtool_sees_what_is_wrong() {
    let Some(promtool) = witness("promtool", "promtool") else { return };
    let tree = Tree::new();
    for rules in &RULES[..2] {
        let text = std::fs::read_to_string(tree.0.0.join(rules)).unwrap();
        // Each alert compares with something.
        tree.0.write(rules, &text.replace("> ", "< "));
        let tests = rules.replace("rules/", "rules/tests/");
        let status =
            Command::new(&promtool).args(["test", "rules", &tests]).current_dir(&tree.0.0).output().unwrap().status;
        assert!(!status.success(), "{rules}");
    }
}

#[test]
#[ignore = "needs jsonnet"]
fn root_jsonnet_users_get_the_same_with_their_own_settings() {
    let Some(jsonnet) = witness("jsonnet", "jsonnet") else { return };
    let tree = Tree::new();
    tree.0.write(
        "use.jsonnet",
        r#"
        local kstrobe = (import 'dashboards/jsonnet/mixin.libsonnet') + {
          _config+:: {
            kstrobeSelector: 'job="node/kstrobe"', histograms: 'native', objectives: ['block-io'],
            runbookURLPattern: 'https://wiki.example/%s', dashboardTags: ['linux'],
          },
        };
        {
          dashboards: kstrobe.grafanaDashboards, rules: kstrobe.prometheusRules, alerts: kstrobe.prometheusAlerts,
          all: (import 'dashboards/jsonnet/mixin.libsonnet').prometheusRules,
        }"#,
    );
    let out = tree.run(&jsonnet, &["use.jsonnet"]);
    let made: serde_json::Value = serde_json::from_str(&out).unwrap();
    let boards = files(&catalogue()).iter().filter(|file| file.path.starts_with("dashboards/grafana/native/")).count();
    assert_eq!(made["dashboards"].as_object().unwrap().len(), boards);
    assert_eq!(made["dashboards"]["kstrobe-fleet.json"]["tags"], serde_json::json!(["linux"]));
    assert!(made["dashboards"].to_string().contains("histogram_sum("));
    assert_eq!(made["rules"]["groups"].as_array().unwrap().len(), 2, "one objective");
    assert!(made["all"]["groups"].as_array().unwrap().len() > 20);
    let rules = made["rules"].to_string() + &made["alerts"].to_string();
    assert!(rules.contains("histogram_fraction") && rules.contains(r#"job=\"node/kstrobe\""#));
    assert!(!rules.contains(r#"job=\"kstrobe\""#));
    let first = &made["alerts"]["groups"][0]["rules"][0];
    assert_eq!(first["annotations"]["runbook_url"], "https://wiki.example/KstrobeAgentDown");
    // What comes out is what Prometheus reads.
    if let Some(promtool) = witness("jsonnet", "promtool") {
        for part in ["rules", "alerts"] {
            tree.0.write("made.yaml", &made[part].to_string());
            tree.run(&promtool, &["check", "rules", "--lint=all", "--lint-fatal", "made.yaml"]);
        }
    }
}
