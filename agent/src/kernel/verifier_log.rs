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
    let mut text = verdict.trim().to_string();
    if let Some(source) = source_line(log) {
        text += &format!("\n  at {}:{}: {}", source.file, source.line, source.text);
    }
    for line in before {
        text += &format!("\n  {}", line.trim());
    }
    let omitted = lines.len() - tail.len();
    if omitted > 0 {
        text += &format!("\n  ({omitted} {} omitted)", if omitted == 1 { "line" } else { "lines" });
    }
    text
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

/// Statistics, source annotations and register states say nothing about the cause.
fn is_noise(line: &str) -> bool {
    const STATISTICS: [&str; 6] =
        ["processed ", "verification time ", "stack depth ", "max_states_per_insn", "insns processed ", "peak_states "];
    let line = line.trim_start();
    line.starts_with(';')
        || line.starts_with("func#")
        || line.starts_with("Live regs before insn")
        || STATISTICS.iter().any(|start| line.starts_with(start))
        || is_liveness(line)
}

/// `  4: 01........ (85) call ...`: newer kernels print the live registers of every instruction first.
fn is_liveness(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(": ") else { return false };
    let Some(registers) = rest.get(..10) else { return false };
    registers.contains('.') && registers.bytes().all(|b| b == b'.' || b.is_ascii_digit())
}
