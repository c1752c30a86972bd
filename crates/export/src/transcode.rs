//! OpenMetrics 1.0 text to Prometheus text 0.0.4, for the agent's own metrics, which their registry encodes as
//! OpenMetrics only.

/// Rewrites a whole OpenMetrics exposition: `# UNIT`, `# EOF`, exemplars and `_created` samples go; a counter's HELP and
/// TYPE take the `_total` of its samples; `info` becomes a gauge named `_info`; `unknown` becomes `untyped`.
pub fn to_text_0_0_4(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut family = Metadata::default();
    for line in openmetrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            sample(&mut out, &mut family, line);
            continue;
        };
        let (keyword, rest) = comment.split_once(' ').unwrap_or((comment, ""));
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        if keyword != "EOF" && family.name != name {
            family = Metadata { name, ..Metadata::default() };
        }
        match keyword {
            "HELP" => family.help = Some(text),
            "TYPE" => family.kind = text,
            _ => {}
        }
    }
    out
}

/// What came before a family's first sample; written when that comes, as HELP may stand before TYPE.
#[derive(Default)]
struct Metadata<'a> {
    name: &'a str,
    help: Option<&'a str>,
    kind: &'a str,
    written: bool,
}

fn sample(out: &mut String, family: &mut Metadata, line: &str) {
    if line.is_empty() {
        return;
    }
    let name_end = line.find(['{', ' ']).unwrap_or(line.len());
    let suffix = line[..name_end].strip_prefix(family.name).unwrap_or("");
    if suffix == "_created" && family.kind != "gauge" {
        return;
    }
    if !std::mem::replace(&mut family.written, true) {
        let (suffix, kind) = match family.kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "stateset" => ("", "gauge"),
            "gauge" | "histogram" | "summary" => ("", family.kind),
            _ => ("", "untyped"),
        };
        if let Some(help) = family.help {
            // 0.0.4 knows no escape for a quote here.
            let help = help.replace("\\\"", "\"");
            out.push_str(&format!("# HELP {}{suffix} {help}\n", family.name));
        }
        out.push_str(&format!("# TYPE {}{suffix} {kind}\n", family.name));
    }
    out.push_str(without_exemplar(line));
    out.push('\n');
}

/// An exemplar is a ` # {` outside the quotes of label values.
fn without_exemplar(line: &str) -> &str {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'#' if !quoted => return line[..at].trim_end(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line() {
        let openmetrics = r##"# HELP kstrobe_runs Program runs, "all" of them.
# TYPE kstrobe_runs counter
kstrobe_runs_total{probe="a # {b} \" \\"} 3 # {trace_id="x"} 1 1.5
kstrobe_runs_created{probe="a"} 1.5
# HELP kstrobe_build Build.
# TYPE kstrobe_build info
kstrobe_build_info{version="1"} 1
# HELP scrape_duration_seconds Scrapes.
# TYPE scrape_duration_seconds histogram
# UNIT scrape_duration_seconds seconds
scrape_duration_seconds_bucket{le="+Inf"} 1
scrape_duration_seconds_sum 0.5
scrape_duration_seconds_count 1
# TYPE odd unknown
odd 1
# HELP empty Nothing.
# TYPE empty gauge
# EOF
"##;
        let expected = r##"# HELP kstrobe_runs_total Program runs, "all" of them.
# TYPE kstrobe_runs_total counter
kstrobe_runs_total{probe="a # {b} \" \\"} 3
# HELP kstrobe_build_info Build.
# TYPE kstrobe_build_info gauge
kstrobe_build_info{version="1"} 1
# HELP scrape_duration_seconds Scrapes.
# TYPE scrape_duration_seconds histogram
scrape_duration_seconds_bucket{le="+Inf"} 1
scrape_duration_seconds_sum 0.5
scrape_duration_seconds_count 1
# TYPE odd untyped
odd 1
"##;
        assert_eq!(to_text_0_0_4(openmetrics), expected);
    }
}
