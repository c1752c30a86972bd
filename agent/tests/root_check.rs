//! `kstrobe check` and `kstrobe run` agree on what this machine can do.

mod support;

use support::Folder;
use support::agent::{Setup, command};
use support::done;

fn counted(hook: &str, label: &str) -> String {
    format!(
        "probe: own\nsummary: Events.\nat: {hook}\nmetrics:\n  own_total: {{ type: counter, labels: {{ x: '{label}' }} }}\n"
    )
}

/// The probe in an agent: whether the agent is ready, and the line of `/readyz` about it.
fn run(text: &str) -> (bool, String) {
    let agent = Setup { probes: &[("own", text)], ..Setup::default() }.start();
    let (status, body) = agent.get("/readyz").unwrap();
    agent.stop();
    (status == 200, body)
}

fn check(text: &str) -> support::Done {
    let folder = Folder::new();
    let file = folder.write("own.yaml", text);
    done(&mut command(&["check", file.to_str().unwrap()]))
}

#[test]
#[ignore = "needs root"]
fn root_check_refuses_what_run_refuses() {
    let program = std::env::current_exe().unwrap();
    let hooks = [
        "rawtracepoint:sched_switch".to_owned(),
        "software:page-faults:100".to_owned(),
        // Some machines have a counter for it, some have none.
        "hardware:cycles:1000000".to_owned(),
        "uprobe:/nonexistent/program:main".to_owned(),
        format!("uprobe:{}:no_such_function_of_any", program.display()),
    ];
    for hook in hooks {
        let text = counted(&hook, "comm");
        let (checked, (ready, body)) = (check(&text), run(&text));
        assert_eq!(checked.code == Some(0), ready, "{hook}\n{}\n{body}", checked.err);
    }
}

#[test]
#[ignore = "needs root"]
fn root_check_notes_what_run_waits_for() {
    let text = counted("usdt:/nonexistent/server:provider:point", "arg0");
    let checked = check(&text);
    assert_eq!((checked.code, checked.out.as_str()), (Some(0), "1 probes fine, 0 errors\n"), "{}", checked.err);
    assert!(checked.err.contains("note: there is no file /nonexistent/server"), "{}", checked.err);
    let (ready, body) = run(&text);
    assert!(!ready && body.contains("own: waiting: "), "{body}");
}
