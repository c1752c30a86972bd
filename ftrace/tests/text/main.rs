//! Texts of the function_graph tracer: as four kernels printed them, and as people damage them.

mod damage;
mod forms;
mod hostile;
mod lost;
mod mutations;

use std::io::Read;

use kstrobe_ftrace::calls::{Call, CallId, Calls, Damage, Ends, text};

const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "sid"];

/// A recorded text.
fn fixture(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/text");
    unpacked(&folder.join(format!("{name}.txt.gz")))
}

/// What a packed file holds.
fn unpacked(path: &std::path::Path) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text
}

/// The trees, and that nothing is missing or strange in the text.
fn whole(text: &str) -> Calls {
    let calls = text::parse(text);
    assert_eq!(calls.damage, Default::default(), "{}", &text[..text.len().min(300)]);
    calls
}

/// What a root's tree prints.
fn tree(calls: &Calls, root: CallId) -> String {
    let mut text = String::new();
    calls.outline_of(root, &mut text);
    text
}

/// Trees that are equal, or the first line in which they are not.
#[track_caller]
fn same(is: &str, expected: &str, what: &str) {
    for (at, (is, expected)) in is.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, expected, "{what}: line {}", at + 1);
    }
    assert_eq!(is.lines().count(), expected.lines().count(), "{what}");
}

/// Every recording whose lines are whole: of each kernel, calls of one task, with events between them, and of several roots on all CPUs.
fn undamaged() -> impl Iterator<Item = (String, String)> {
    KERNELS.iter().flat_map(|kernel| ["recvfrom", "sched", "roots"].map(|scene| format!("{kernel}-{scene}"))).map(
        |name| {
            let text = fixture(&format!("{name}-trace"));
            (name, text)
        },
    )
}

/// Like it, but where only one task calls: nothing but order and indentation is needed.
fn of_one_task() -> impl Iterator<Item = (String, String)> {
    undamaged().filter(|(name, _)| name.ends_with("-recvfrom"))
}

#[test]
fn the_same_trees_whatever_columns_a_kernel_prints() {
    for kernel in KERNELS {
        for scene in ["recvfrom", "sched", "roots", "wrapped"] {
            let read = |columns: &str| text::parse(&fixture(&format!("{kernel}-{scene}-{columns}")));
            let full = read("full");
            assert!(full.calls.len() > 200, "{kernel} {scene}");
            let mut others = vec!["trace", "nocpu"];
            if matches!(scene, "recvfrom" | "sched") {
                others.push("latency");
            }
            // Two CPUs in one text without a column that tells them apart: see `damage`.
            others.retain(|columns| !(scene == "roots" && *columns == "nocpu"));
            // The task moved from one CPU to the other, which a text without tasks does not say.
            others.retain(|columns| !(kernel == "sid" && scene == "wrapped" && *columns == "trace"));
            for columns in others {
                let calls = read(columns);
                same(&calls.outline(), &full.outline(), &format!("{kernel} {scene} {columns}"));
                // Where calls lack an entry, a text without tasks leaves it to a guess whose the others are.
                let guessed = if full.damage.no_entry > 0 { calls.damage.guessed } else { 0 };
                let expected = Damage { guessed, ..full.damage };
                assert_eq!(calls.damage, expected, "{kernel} {scene} {columns}");
                assert_eq!(calls.marks.len(), full.marks.len(), "{kernel} {scene} {columns}");
            }
        }
    }
}

#[test]
fn what_a_kernel_prints_is_understood() {
    for (name, text) in undamaged() {
        let calls = whole(&text);
        assert!(
            calls
                .calls
                .iter()
                .all(|call| call.ends == Ends::Both && call.function.is_some() && call.duration_ns.is_some()),
            "{name}"
        );
    }
    for kernel in KERNELS {
        let damage = text::parse(&fixture(&format!("{kernel}-wrapped-trace"))).damage;
        assert_eq!((damage.lost, damage.not_understood, damage.repeated), (0, 0, 0), "{kernel}");
        assert!(damage.no_entry > 0, "{kernel}: the buffer wrapped");
    }
}

/// The text read another way: a line's caller is the last line of its task that is indented less and not closed.
#[test]
fn callers_are_what_the_indentation_says() {
    for kernel in KERNELS {
        for scene in ["recvfrom", "sched", "roots"] {
            let name = format!("{kernel}-{scene}");
            let text = fixture(&format!("{name}-full"));
            let mut stacks: std::collections::HashMap<String, Vec<(usize, String)>> = Default::default();
            let mut expected = Vec::new();
            for line in text.lines().filter(|line| line.ends_with(['{', ';']) || line.contains("  } /*")) {
                let columns: Vec<&str> = line.split('|').collect();
                let task = columns[1].rsplit(' ').find(|word| word.contains('-')).unwrap();
                let lane = if task.ends_with("-0") { columns[1].trim() } else { task };
                let stack = stacks.entry(lane.to_string()).or_default();
                let blanks = columns[3].len() - columns[3].trim_start().len();
                let function = columns[3].trim().split('(').next().unwrap().to_string();
                stack.retain(|(other, _)| *other < blanks);
                if function.starts_with('}') {
                    continue;
                }
                let us: f64 = columns[0].trim().parse().unwrap();
                expected.push((
                    (us * 1e9).round() as u64,
                    function.clone(),
                    stack.last().map(|(_, caller)| caller.clone()),
                ));
                stack.push((blanks, function));
            }
            let calls = whole(&text);
            let named = |call: &Call| calls.name_of(call).to_string();
            let is = calls
                .calls
                .iter()
                .map(|call| (call.start_ns.unwrap(), named(call), call.parent.map(|id| named(&calls[id]))));
            // Where an interrupt came while a record was made, the depth is not the caller's: see `calls_of_interrupts`.
            let lines = |rows: Vec<_>| {
                let rows = rows.iter().zip(&calls.calls).filter(|(_, call)| !call.interrupt);
                rows.map(|(row, _)| format!("{row:?}\n")).collect::<String>()
            };
            same(&lines(is.collect()), &lines(expected), &name);
        }
    }
}

/// Interrupts that come when a function was entered, or left, and that was not recorded yet.
#[test]
fn calls_of_interrupts() {
    let calls = whole(&fixture("sid-recvfrom-trace"));
    let root = &calls[calls.roots[0]];
    let first = &calls[root.children[0]];
    assert_eq!(
        (calls.name_of(root), calls.name_of(first), first.interrupt),
        ("__x64_sys_recvfrom", "irq_enter_rcu", true)
    );
    assert!(first.duration_ns < root.duration_ns);
    // 29.535 us are too short for what stands in it.
    let calls = whole(&fixture("6.12-sched-trace"));
    let release = calls
        .calls
        .iter()
        .position(|call| calls.name_of(call) == "release_sock" && call.duration_ns == Some(29_535))
        .unwrap();
    let release = CallId(release as u32);
    let parent = &calls[calls[release].parent.unwrap()];
    let after = parent.children[parent.children.iter().position(|child| *child == release).unwrap() + 1];
    assert_eq!((calls.name_of(&calls[after]), calls[after].interrupt), ("irq_enter_rcu", true));
}

#[test]
fn an_outline_stays_what_it_was() {
    for name in ["sid-modules-args", "6.12-recvfrom-trace", "5.10-wrapped-trace"] {
        let path = format!("{}/tests/fixtures/text/{name}.outline", env!("CARGO_MANIFEST_DIR"));
        let is = text::parse(&fixture(name)).outline();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &is).unwrap();
        }
        same(&is, &std::fs::read_to_string(&path).expect(&path), name);
    }
}

#[test]
fn times_and_tasks_are_those_of_the_columns() {
    let calls = whole(&fixture("6.12-recvfrom-full"));
    let root = &calls[calls.roots[0]];
    assert_eq!(calls.name_of(root), "__x64_sys_recvfrom");
    let task = root.task.unwrap();
    assert_eq!((&*calls.names[task.comm.unwrap()], root.cpu), ("ping", Some(1)));
    let trace = whole(&fixture("6.12-recvfrom-trace"));
    assert_eq!((trace[trace.roots[0]].task, trace[trace.roots[0]].cpu), (None, Some(1)));
    // A switch between tasks tells them where there is no such column.
    let trace = whole(&fixture("6.12-roots-trace"));
    let full = whole(&fixture("6.12-roots-full"));
    let tasks = |calls: &Calls| calls.calls.iter().map(|call| call.task.map(|task| task.pid)).collect::<Vec<_>>();
    assert_eq!(tasks(&trace), tasks(&full));
    assert!(tasks(&trace).iter().all(Option::is_some));
}
