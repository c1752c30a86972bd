//! Whole probes.

use super::expressions::Writer;
use super::{Hook, Kernel, Numbers, Root};

impl Numbers<'_> {
    /// A probe as YAML.
    pub fn probe(&mut self, kernel: &Kernel) -> String {
        let mut out = "probe: x\nsummary: x\n".to_owned();
        match self.below(8) {
            0..=3 => at(self, kernel, &mut out),
            4 | 5 => span(self, kernel, &mut out),
            6 => steps(self, kernel, &mut out),
            _ if kernel.objects.is_empty() => at(self, kernel, &mut out),
            _ => objects(self, kernel, &mut out),
        }
        out
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn writer<'k, 'n, 'a>(
    kernel: &'k Kernel,
    numbers: &'n mut Numbers<'a>,
    roots: &[Root],
    object: bool,
) -> Writer<'k, 'n, 'a> {
    Writer { kernel, numbers, roots: roots.to_vec(), of_task: !object, state: false }
}

fn line(out: &mut String, indent: usize, key: &str, value: &str) {
    out.push_str(&format!("{}{key}: {}\n", " ".repeat(indent), quoted(value)));
}

fn at(n: &mut Numbers, kernel: &Kernel, out: &mut String) {
    let hook: &Hook = n.pick(&kernel.hooks);
    line(out, 0, "at", &hook.text);
    if n.one_of(2) {
        let mut condition = writer(kernel, n, &hook.roots, false).condition(2);
        if n.one_of(8) {
            condition = format!("namespace == \"shop\" && {condition}");
        }
        line(out, 0, "where", &condition);
    }
    metrics(n, kernel, &hook.roots, out);
    slow(n, kernel, &hook.roots, out);
}

fn objects(n: &mut Numbers, kernel: &Kernel, out: &mut String) {
    let hook: &Hook = n.pick(&kernel.objects);
    line(out, 0, "at", &hook.text);
    if n.one_of(2) {
        let condition = writer(kernel, n, &hook.roots, true).condition(2);
        line(out, 0, "where", &condition);
    }
    out.push_str("metrics:\n");
    for i in 0..1 + n.below(2) {
        out.push_str(&format!("  m{i}:\n    type: gauge\n"));
        let value = writer(kernel, n, &hook.roots, true).number(2);
        line(out, 4, "value", &value);
        labels(n, kernel, &hook.roots, true, out);
    }
}

fn metrics(n: &mut Numbers, kernel: &Kernel, roots: &[Root], out: &mut String) {
    out.push_str("metrics:\n");
    for i in 0..1 + n.below(3) {
        match n.below(6) {
            0 | 1 => out.push_str(&format!("  m{i}_total:\n    type: counter\n")),
            2 => {
                out.push_str(&format!("  m{i}_total:\n    type: counter\n"));
                let value = writer(kernel, n, roots, false).number(2);
                line(out, 4, "value", &value);
            }
            3 => {
                out.push_str(&format!("  m{i}:\n    type: gauge\n"));
                let value = writer(kernel, n, roots, false).number(2);
                line(out, 4, "value", &value);
            }
            4 => {
                out.push_str(&format!(
                    "  m{i}_bytes:\n    type: histogram\n    buckets: {{ schema: 1, max: 65536 }}\n"
                ));
                let value = writer(kernel, n, roots, false).number(2);
                line(out, 4, "value", &value);
            }
            _ => out.push_str(&format!("  m{i}:\n    type: stacks\n    depth: 8\n    stacks: kernel\n")),
        }
        if n.one_of(3) {
            let condition = writer(kernel, n, roots, false).condition(1);
            line(out, 4, "where", &condition);
        }
        labels(n, kernel, roots, false, out);
    }
}

fn labels(n: &mut Numbers, kernel: &Kernel, roots: &[Root], object: bool, out: &mut String) {
    out.push_str("    max_series: 8\n    allow_high_cardinality: true\n");
    let count = n.below(4);
    if count > 0 {
        out.push_str("    labels:\n");
    }
    for i in 0..count {
        let label = writer(kernel, n, roots, object).label();
        line(out, 6, &format!("l{i}"), &label);
    }
}

fn slow(n: &mut Numbers, kernel: &Kernel, roots: &[Root], out: &mut String) {
    if !n.one_of(4) {
        return;
    }
    out.push_str("slow:\n");
    let condition = writer(kernel, n, roots, false).condition(1);
    line(out, 2, "when", &condition);
    out.push_str("  fields:\n");
    for i in 0..1 + n.below(3) {
        let field = writer(kernel, n, roots, false).label();
        line(out, 4, &format!("f{i}"), &field);
    }
    if n.one_of(4) {
        out.push_str("    stack: kstack\n");
    }
}

fn span(n: &mut Numbers, kernel: &Kernel, out: &mut String) {
    let start: &Hook = n.pick(&kernel.hooks);
    let end: &Hook = if n.one_of(3) { n.pick(&kernel.hooks) } else { start };
    out.push_str("span:\n");
    line(out, 2, "start", &start.text);
    line(out, 2, "end", &end.text);
    match n.below(4) {
        0 | 1 => {}
        2 => line(out, 2, "by", "cpu"),
        _ => {
            let by = [start, end].map(|hook| writer(kernel, n, &hook.roots, false).number(1));
            out.push_str("  by:\n");
            line(out, 4, "start", &by[0]);
            line(out, 4, "end", &by[1]);
        }
    }
    if n.one_of(3) {
        let condition = writer(kernel, n, &start.roots, false).condition(2);
        line(out, 2, "where", &condition);
    }
    let mut roots = end.roots.clone();
    let saved = n.below(3);
    if saved > 0 {
        out.push_str("  save:\n");
    }
    for i in 0..saved {
        let (text, ty) = writer(kernel, n, &start.roots, false).saved();
        line(out, 4, &format!("s{i}"), &text);
        roots.push(Root { text: format!("start.s{i}"), ty });
    }
    if n.one_of(3) {
        let condition = writer(kernel, n, &roots, false).condition(2);
        line(out, 0, "where", &condition);
    }
    out.push_str("metrics:\n  took_seconds:\n    type: histogram\n    buckets: { schema: 1 }\n");
    out.push_str(if n.one_of(3) { "    value: elapsed.on_cpu\n" } else { "    value: elapsed\n" });
    labels(n, kernel, &roots, false, out);
    slow(n, kernel, &roots, out);
}

fn steps(n: &mut Numbers, kernel: &Kernel, out: &mut String) {
    let hooks: Vec<&Hook> = (0..2).map(|_| n.pick(&kernel.hooks)).collect();
    out.push_str("state:\n");
    let by = if n.one_of(2) { "tid" } else { "cpu" };
    line(out, 2, "by", by);
    out.push_str("  fields: { a: u64, b: u32, t: string(16) }\n  max_entries: 64\nsteps:\n");
    for i in 0..2 + n.below(2) {
        let hook = hooks[n.below(2)];
        let write = |n: &mut Numbers| -> (Option<String>, String) {
            let mut writer = writer(kernel, n, &hook.roots, false);
            writer.state = true;
            let condition = writer.numbers.one_of(2).then(|| writer.condition(2));
            (condition, writer.number(2))
        };
        let (condition, value) = write(n);
        out.push_str(&format!("  - at: {}\n", quoted(&hook.text)));
        if let Some(condition) = condition {
            line(out, 4, "where", &condition);
        }
        if i == 0 {
            out.push_str("    observe: n_total\n");
        }
        match n.below(4) {
            0 | 1 => out.push_str(&format!("    set: {{ a: {} }}\n", quoted(&value))),
            2 => out.push_str(&format!("    set: {{ a: {}, b: 'state.b + 1', t: comm }}\n", quoted(&value))),
            _ => out.push_str("    delete: true\n"),
        }
    }
    out.push_str("metrics:\n  n_total:\n    type: counter\n    max_series: 8\n    allow_high_cardinality: true\n");
    out.push_str("    labels: { a: 'state.a % 7', t: state.t }\n");
}
