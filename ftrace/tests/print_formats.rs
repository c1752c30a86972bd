//! Print formats of all events there are: how many are understood, and that no record makes them fail.

mod print_fixtures;
mod support;

use kstrobe_ftrace::format::EventFormat;
use kstrobe_ftrace::page::Lost;
use kstrobe_ftrace::print::{Printer, understood};
use kstrobe_ftrace::trace::Event;
use print_fixtures::empty;
use proptest::prelude::*;
use std::sync::LazyLock;
use support::{KERNELS, formats};

/// All formats, those of the recorded kernels first, with where they are from.
static ALL: LazyLock<Vec<(String, EventFormat)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for kernel in KERNELS {
        all.extend(formats(kernel).all().iter().map(|format| (kernel.to_owned(), format.clone())));
    }
    all.extend(print_fixtures::formats().into_iter().map(|format| ("6.18".to_owned(), format)));
    all
});

fn event<'a>(format: &'a EventFormat, data: &'a [u8]) -> Event<'a> {
    Event { buffer: 0, cpu: 0, time: 0, lost: Lost::Nothing, data, format: Some(format) }
}

#[test]
fn nearly_all_print_formats_are_understood() {
    let mut list = String::new();
    let mut refused = 0;
    for (kernel, format) in ALL.iter() {
        if let Err(why) = understood(format) {
            refused += 1;
            list.push_str(&format!("{kernel} {}:{}: {why}\n", format.system, format.name));
        }
    }
    list.push_str(&format!("{} of {}\n", refused, ALL.len()));
    let path = print_fixtures::path("not-understood.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &list).unwrap();
    }
    assert_eq!(list, std::fs::read_to_string(&path).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every format over records of any bytes and length.
    #[test]
    fn no_record_makes_a_format_fail(data in proptest::collection::vec(any::<u8>(), 0..400), zeros in 0usize..400) {
        let trace = empty();
        let mut printer = Printer::new(&trace);
        let mut data = data;
        let length = data.len();
        data[..zeros.min(length)].fill(0);
        for (number, (_, format)) in ALL.iter().enumerate() {
            // Ids of several kernels meet: one printer for one format.
            if number % 50 == 0 {
                printer = Printer::new(&trace);
            }
            let format = EventFormat { id: number as u16, ..format.clone() };
            let mut out = String::new();
            printer.print(&event(&format, &data), &mut out);
            prop_assert!(out.len() < 1 << 20);
        }
    }

    /// Print formats that are damaged, or are none.
    #[test]
    fn no_text_makes_the_parser_fail(which in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(), with in "[-()\\[\\]{}\"%&*?:,.<>!~|A-Za-z0-9 ]{0,12}", data in proptest::collection::vec(any::<u8>(), 0..80)) {
        let trace = empty();
        let (_, format) = which.get(&ALL);
        let mut format = format.clone();
        let at = cut.index(format.print.len() + 1);
        if let Some((head, tail)) = format.print.split_at_checked(at) {
            for print in [format!("{head}{with}"), format!("{head}{with}{tail}"), format!("{with}{tail}")] {
                format.print = print;
                let mut out = String::new();
                Printer::new(&trace).print(&event(&format, &data), &mut out);
            }
        }
    }
}

#[test]
fn deep_and_long_expressions_are_refused() {
    let (_, format) = ALL.iter().find(|(_, format)| format.name == "sched_switch").unwrap();
    let with = |argument: String| EventFormat { print: format!("\"%d\", {argument}"), ..format.clone() };
    let deep = 100_000;
    let cases = [
        format!("{}1{}", "(".repeat(deep), ")".repeat(deep)),
        format!("{}1", "-".repeat(deep)),
        format!("{}1", "(int)".repeat(deep)),
        format!("1{}", "?1:1".repeat(deep)),
        format!("REC->next_pid{}", "+1".repeat(deep)),
        format!("REC{}", "->x".repeat(deep)),
        format!("REC->next_pid{}", "[0]".repeat(deep)),
        format!("{}1", "({ int x = 1; ".repeat(deep)),
        format!(
            "({{ int x0 = REC->next_pid; {} x99; }})",
            (1..100).map(|n| format!("int x{n} = x{0} + x{0}; ", n - 1)).collect::<String>()
        ),
    ];
    for case in cases {
        assert!(understood(&with(case.clone())).is_err(), "{}", &case[..60]);
    }
    assert_eq!(understood(&with("((((1))))".to_owned())), Ok(()));
    let many = "__print_hex(REC->prev_comm, 16) || ".repeat(100);
    assert!(understood(&with(format!("{many}1"))).is_err());
    assert!(understood(&with(vec!["REC->next_pid"; 30_000].join(", "))).is_err());

    // Texts have an end, whatever their format and fields say.
    let wide = EventFormat { print: format!("\"{}\"{}", "%4096d".repeat(5000), ", 1".repeat(5000)), ..format.clone() };
    let field = |number| format!("\tfield:__data_loc char[] f{number};\toffset:8;\tsize:4;\tsigned:0;\n");
    let many: String = (0..5000).map(field).collect();
    let many = EventFormat::parse("x", &format!("name: x\nID: 1\nformat:\n{many}\nprint fmt: ?\n")).unwrap();
    let mut data = vec![b'a'; 4000];
    data[8..12].copy_from_slice(&(12u32 | 3000 << 16).to_le_bytes());
    for format in [wide, many] {
        let mut out = String::new();
        Printer::new(&empty()).print(&event(&format, &data), &mut out);
        assert!((60..80_000).contains(&out.len()), "{}", out.len());
    }
}
