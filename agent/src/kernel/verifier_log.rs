//! The few lines of a verifier log that matter.

/// The source line that the verifier was at, as our line info names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Text of the line.
    pub text: String,
    /// File name, as given in the object.
    pub file: String,
    /// 1-based.
    pub line: u32,
}

/// Most lines of the log in a summary.
const TAIL_LINES: usize = 3;

/// What went wrong, where in the user's file, and how much was left out. Empty for an empty log.
pub fn summary(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    let meaningful: Vec<&str> = lines.iter().copied().filter(|line| !is_noise(line)).collect();
    let tail = &meaningful[meaningful.len().saturating_sub(TAIL_LINES)..];
    let Some((verdict, before)) = tail.split_last() else { return String::new() };
    let mut text = without_instruction(verdict.trim()).to_string();
    if let Some(source) = source_line(log) {
        text += &format!("\n  at {}:{}: {}", source.file, source.line, source.text);
    }
    for line in before {
        text += &format!("\n  {}", without_state(line.trim()));
    }
    let omitted = lines.len() - tail.len();
    if omitted > 0 {
        text += &format!("\n  ({omitted} {} omitted)", if omitted == 1 { "line" } else { "lines" });
    }
    text
}

/// Whether the verifier gave up for the number of paths. BPF_PROG_LOAD has no errno of its own for a sequence of jumps that is too
/// long (EFAULT, EINVAL or ENOMEM by version); for too many instructions it has E2BIG.
pub fn is_too_complex(log: &str) -> bool {
    const VERDICTS: [&str; 2] = ["BPF program is too large.", "jumps is too complex"];
    let mut verdicts = log.lines().rev().filter(|line| !line.trim().is_empty() && !is_noise(line));
    verdicts.next().is_some_and(|last| VERDICTS.iter().any(|verdict| last.contains(verdict)))
}

/// The last source annotation in the log: the verifier prints one before the instructions made from a line, and stops at the
/// instruction it refuses. Kernels before 6.9 print the text alone; those annotations name no line and are left out.
pub fn source_line(log: &str) -> Option<SourceLine> {
    log.lines().rev().find_map(parse_annotation)
}

/// `; TEXT @ FILE:LINE`
fn parse_annotation(line: &str) -> Option<SourceLine> {
    let (text, place) = line.strip_prefix("; ")?.rsplit_once(" @ ")?;
    let (file, line) = place.rsplit_once(':')?;
    let line = line.trim_end().parse().ok()?;
    Some(SourceLine { text: text.trim().to_string(), file: file.to_string(), line })
}

/// The verdict on a whole program stands on the line of the instruction at which the verifier gave up.
fn without_instruction(line: &str) -> &str {
    match line.find("BPF program is too large") {
        Some(at) if is_numbered(line) => &line[at..],
        _ => line,
    }
}

/// An instruction without the register states that the verifier appends to it.
fn without_state(line: &str) -> &str {
    match line.split_once(" ; ") {
        Some((insn, _)) if is_numbered(insn) => insn.trim_end(),
        _ => line,
    }
}

/// `7: ...`
fn is_numbered(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Statistics, source annotations and register states say nothing about the cause.
fn is_noise(line: &str) -> bool {
    const STARTS: [&str; 10] = [
        ";",
        "processed ",
        "insns processed ",
        "verification time ",
        "stack depth ",
        "func#",
        "arg#",
        "from ",
        "mark_precise: ",
        "Live regs before insn",
    ];
    let line = line.trim_start();
    STARTS.iter().any(|start| line.starts_with(start)) || is_state(line)
}

/// `0: R1=ctx() R10=fp0`, and on newer kernels the live registers of every instruction: `4: 01........ (85) call ...`.
fn is_state(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(": ").filter(|_| is_numbered(line)) else { return false };
    let live = |b: u8| b == b'.' || b.is_ascii_digit();
    rest.starts_with('R') || rest.len() >= 10 && rest.contains('.') && rest.bytes().take(10).all(live)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONTEXT: &str = "\
0: R1=ctx() R10=fp0
; value: args.vec @ softirq.yaml:4
0: (b7) r0 = 0                        ; R0=0
; by: cpu @ softirq.yaml:7
1: (79) r0 = *(u64 *)(r1 +9000)
invalid bpf_context access off=9000 size=8
verification time 49 usec
stack depth 0
processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";

    #[test]
    fn a_log_of_6_18() {
        let want = "\
invalid bpf_context access off=9000 size=8
  at softirq.yaml:7: by: cpu
  0: (b7) r0 = 0
  1: (79) r0 = *(u64 *)(r1 +9000)
  (6 lines omitted)";
        assert_eq!(summary(CONTEXT), want);
    }

    #[test]
    fn a_map_value_exceeded() {
        let log = "\
0: R1=ctx() R10=fp0
; value: elapsed @ a b.yaml:6
5: (85) call bpf_map_lookup_elem#1    ; R0=map_value(map=counts,ks=4,vs=8)
6: (55) if r0 != 0x0 goto pc+1        ; R0=map_value(map=counts,ks=4,vs=8)
; value: a @ b @ a b.yaml:8
8: (79) r1 = *(u64 *)(r0 +4)
invalid access to map value, value_size=8 off=4 size=8
R0 min value is outside of the allowed memory range
verification time 87 usec
processed 7 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";
        let want = "\
R0 min value is outside of the allowed memory range
  at a b.yaml:8: value: a @ b
  8: (79) r1 = *(u64 *)(r0 +4)
  invalid access to map value, value_size=8 off=4 size=8
  (7 lines omitted)";
        assert_eq!(summary(log), want);
    }

    #[test]
    fn a_log_without_line_numbers_of_5_10() {
        let log = "\
; value: elapsed
0: (b7) r1 = 0
1: (85) call unknown#9999
invalid func unknown#9999
processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";
        let want = "invalid func unknown#9999\n  0: (b7) r1 = 0\n  1: (85) call unknown#9999\n  (2 lines omitted)";
        assert_eq!(summary(log), want);
        assert_eq!(source_line(log), None);
    }

    #[test]
    fn a_verdict_behind_an_instruction() {
        let log =
            "143: (bc) w2 = w2\n144: (15) if r2 == 0x0 goto pc+2 BPF program is too large. Processed 1000001 insn\n";
        assert!(summary(log).starts_with("BPF program is too large. Processed 1000001 insn\n"), "{}", summary(log));
        assert!(is_too_complex(log));
    }

    #[test]
    fn too_many_paths_are_told_from_a_wrong_access() {
        assert!(is_too_complex(
            "5: (15) if r0 == 0x0 goto pc+1\nThe sequence of 8193 jumps is too complex.\nprocessed 9 insns\n"
        ));
        assert!(!is_too_complex(CONTEXT) && !is_too_complex(""));
    }

    #[test]
    fn short_logs() {
        assert_eq!(summary(""), "");
        assert_eq!(summary("\n \nprocessed 0 insns\n"), "");
        assert_eq!(summary("unreachable insn 2\n"), "unreachable insn 2");
        assert_eq!(summary("unreachable insn 2\nprocessed 0 insns\n"), "unreachable insn 2\n  (1 line omitted)");
    }

    #[test]
    fn the_annotation_nearest_to_the_end_counts() {
        let source = source_line(CONTEXT).unwrap();
        assert_eq!((source.file.as_str(), source.line, source.text.as_str()), ("softirq.yaml", 7, "by: cpu"));
    }

    proptest! {
        #[test]
        fn never_panics(log in "([0-9]{1,2}: |; | @ |x:[0-9]|R1|[.]{3}|é|\n|[a-z ]){0,60}") {
            let text = summary(&log);
            prop_assert!(text.lines().count() <= TAIL_LINES + 2);
        }
    }
}
