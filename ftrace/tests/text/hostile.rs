//! Texts that nobody wrote.

#[path = "../../../tests/fuzz/src/cases/sound.rs"]
mod sound;

use kstrobe_ftrace::calls::text;
use proptest::prelude::*;

use crate::fixture;
use sound::sound;

fn line() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(" 0) ".to_string()),
        Just(" 1)  ".to_string()),
        Just("  10.123456 |  ".to_string()),
        Just("   ping-219    | ".to_string()),
        Just(" d..2. | ".to_string()),
        Just("+ 10.5 us   |".to_string()),
        Just("             |".to_string()),
        (0..9_usize).prop_map(|depth| " ".repeat(2 * depth)),
        Just("a() {".to_string()),
        Just("b [m](x=1);".to_string()),
        Just("}".to_string()),
        Just(" /* a */".to_string()),
        Just("==========> |".to_string()),
        Just(" 0)  a-1  =>  b-2".to_string()),
        Just("CPU:1 [LOST 3 EVENTS]".to_string()),
        Just("> ".to_string()),
        Just("[  1.2] ".to_string()),
        Just("ping-1 [001] 1.5: funcgraph_entry: ".to_string()),
        "\\PC{0,12}",
    ];
    proptest::collection::vec(piece, 0..7).prop_map(|pieces| pieces.concat())
}

fn pieces_of_fixtures() -> impl Strategy<Value = String> {
    let names = ["6.12-sched-trace", "6.1-roots-nocpu", "5.10-wrapped-full", "sid-modules-args", "sid-report-lat"];
    let change = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), "\\PC{0,4}");
    (prop::sample::select(names.map(fixture).to_vec()), proptest::collection::vec(change, 0..20)).prop_map(
        |(text, changes)| {
            let mut letters: Vec<char> = text.chars().take(20_000).collect();
            for (from, length, new) in changes {
                let from = from.index(letters.len() + 1);
                let to = (from + length.index(300)).min(letters.len());
                letters.splice(from..to, new.chars());
            }
            letters.into_iter().collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_lines(lines in proptest::collection::vec(line(), 0..60)) {
        sound(&text::parse(&lines.join("\n")));
    }

    #[test]
    fn any_letters(text in "\\PC{0,400}") {
        sound(&text::parse(&text));
    }

    #[test]
    fn any_change(text in pieces_of_fixtures()) {
        sound(&text::parse(&text));
    }
}

/// Texts of two megabytes that would take hours if a line cost what all before it cost.
#[test]
fn work_grows_with_the_text_only() {
    let many = |unit: &dyn Fn(usize) -> String, lines: usize| (0..lines).map(unit).collect::<String>();
    for (name, text) in [
        ("open forever", many(&|_| "  |  a() {\n".into(), 200_000)),
        ("deeper and deeper", many(&|n| format!("  |  {}a() {{\n", " ".repeat(2 * (n % 1000))), 4_000)),
        ("without depth", many(&|_| " | a() {\n".into(), 200_000)),
        (
            "exits of another name",
            many(&|_| " | a() {\n".into(), 50_000) + &many(&|_| " | } /* b */\n".into(), 100_000),
        ),
        ("only exits", many(&|_| "  1.0 us |  }\n".into(), 100_000)),
        ("exits less and less deep", many(&|n| format!("  |  {}}}\n", " ".repeat(2 * (1000 - n % 1000))), 4_000)),
        ("leaves less and less deep", many(&|n| format!("  |  {}a();\n", " ".repeat(2 * (1000 - n % 1000))), 4_000)),
        (
            "interrupts all the time",
            many(&|n| format!("  1.0 us |  {}\n", if n % 2 == 0 { "  irq_enter_rcu();" } else { "}" }), 100_000),
        ),
        ("a CPU each", many(&|n| format!(" {n})  1.0 us |  a();\n"), 100_000)),
        ("a task each", many(&|n| format!(" 0) a-{n} => a-{}\n  1.0 us |  a() {{\n", n + 1), 50_000)),
        ("leaves alike", many(&|_| "  1.0 us |  a();\n".into(), 200_000)),
        ("alike by twos", many(&|n| format!("  1.{} us |  a();\n", n % 2), 200_000)),
        ("alike by thousands", many(&|n| format!("  {} us |  a();\n", n % 1000), 100_000)),
        ("cut", many(&|_| "  |  a\n".into(), 200_000)),
        ("one line", "  |  a(".repeat(300_000)),
        ("quotes", ">".repeat(2_000_000)),
        ("tabs", "\t".repeat(200_000)),
        ("parentheses", format!("  |  a{}", "(".repeat(2_000_000))),
        ("wrapped", many(&|n| if n % 4 == 0 { "  |  a(\n".into() } else { format!("{}\n", "x".repeat(40)) }, 50_000)),
    ] {
        let calls = text::parse(&text);
        sound(&calls);
        assert!(name != "open forever" || calls.outline().len() < 200 * text.len(), "{name}");
    }
}
