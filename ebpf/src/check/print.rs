//! Typed probes as text: for people (`explain`) and for tests.

use crate::kernel_target::Btf;
use crate::typed::*;

/// A probe, one line per thing it does.
pub fn print_probe(probe: &Probe, btf: Option<&Btf>) -> String {
    let mut out = String::new();
    let line = |out: &mut String, text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    for Choice { wanted, got, because } in &probe.choices {
        let because = if because.is_empty() { String::new() } else { format!(", because {}", because.join("; ")) };
        line(&mut out, format!("chose {got} for {wanted}{because}"));
    }
    match &probe.shape {
        Shape::At(sites) if sites.is_empty() => line(&mut out, "nothing".into()),
        Shape::At(sites) => {
            for s in sites {
                line(&mut out, format!("at {}{}", attach(&s.attach), select(&s.select, btf)));
                body(&mut out, &s.filter, &[], &s.measures, probe, btf);
                slow(&mut out, &s.slow, probe, btf);
            }
        }
        Shape::Span { start, end, key, save, keep, max_open, off_cpu, filtered } => {
            let mut notes = format!("span by {}", span_key(key, btf));
            if matches!(key, SpanKey::Hash(_)) {
                notes += &format!(", at most {max_open} open");
            }
            if *keep == crate::program::Keep::First {
                notes += ", keep first";
            }
            notes += if *off_cpu { ", watches switches" } else { "" };
            notes += if *filtered { ", filtered" } else { "" };
            line(&mut out, notes);
            for s in start {
                line(&mut out, format!("start {}{}", attach(&s.attach), select(&s.select, btf)));
                body(&mut out, &s.filter, &s.by, &[], probe, btf);
                for ((name, ty), value) in save.iter().zip(&s.save) {
                    line(&mut out, format!("  save {name}: {} = {}", print_ty(*ty, btf), print_expr(value, btf)));
                }
            }
            for s in end {
                line(&mut out, format!("end {}{}", attach(&s.attach), select(&s.select, btf)));
                if let Some(before) = &s.before {
                    line(&mut out, format!("  if {}", print_expr(before, btf)));
                }
                body(&mut out, &s.filter, &s.by, &s.measures, probe, btf);
                slow(&mut out, &s.slow, probe, btf);
            }
        }
        Shape::Steps { key, fields, max_entries, sites } => {
            let key: Vec<String> = key.iter().map(|ty| print_ty(*ty, btf)).collect();
            line(&mut out, format!("state by ({}), at most {max_entries}", key.join(", ")));
            for (name, ty) in fields {
                line(&mut out, format!("  field {name}: {}", print_ty(*ty, btf)));
            }
            for s in sites {
                line(&mut out, format!("step {}{}", attach(&s.attach), select(&s.select, btf)));
                body(&mut out, &s.filter, &s.by, &[], probe, btf);
                if let Some(filter) = &s.state_filter {
                    line(&mut out, format!("  where {}", print_expr(filter, btf)));
                }
                if let Some(measured) = &s.measured {
                    line(&mut out, format!("  observe where {}", print_expr(measured, btf)));
                }
                for (metric, m) in &s.observe {
                    let name = &probe.metrics[*metric as usize].name;
                    line(&mut out, format!("  observe {name} = {}", print_expr(&m.value, btf)));
                }
                for (field, value) in &s.set {
                    line(&mut out, format!("  set {} = {}", fields[*field as usize].0, print_expr(value, btf)));
                }
                if s.delete {
                    line(&mut out, "  delete".into());
                }
                slow(&mut out, &s.slow, probe, btf);
            }
        }
        Shape::Poll { source, every_ns, filter, measures } => {
            line(&mut out, format!("poll {source} every {every_ns}ns"));
            body(&mut out, filter, &[], measures, probe, btf);
        }
    }
    out
}

fn body(
    out: &mut String,
    filter: &Option<Expr>,
    by: &[Expr],
    measures: &[Option<Measure>],
    probe: &Probe,
    btf: Option<&Btf>,
) {
    if let Some(filter) = filter {
        out.push_str(&format!("  where {}\n", print_expr(filter, btf)));
    }
    for by in by {
        out.push_str(&format!("  by {}\n", print_expr(by, btf)));
    }
    for (metric, measure) in probe.metrics.iter().zip(measures) {
        let Some(measure) = measure else {
            out.push_str(&format!("  {} never\n", metric.name));
            continue;
        };
        let duration = if measure.value.duration { " (duration)" } else { "" };
        out.push_str(&format!("  {} = {}{duration}\n", metric.name, print_expr(&measure.value, btf)));
        if let Some(filter) = &measure.filter {
            out.push_str(&format!("    where {}\n", print_expr(filter, btf)));
        }
        for (label, expr) in metric.labels.iter().zip(&measure.labels) {
            let domain = label.domain.map_or(String::new(), |n| format!(" of {n}"));
            out.push_str(&format!(
                "    {}: {}{domain} = {}\n",
                label.name,
                decoder(&label.decoder),
                print_expr(expr, btf)
            ));
        }
    }
}

fn slow(out: &mut String, measure: &Option<SlowMeasure>, probe: &Probe, btf: Option<&Btf>) {
    let (Some(slow), Some(measure)) = (&probe.slow, measure) else { return };
    out.push_str(&format!("  slow when {}, {} a second\n", print_expr(&measure.when, btf), slow.max_per_second));
    let shown = slow.fields.len() - slow.otlp_span.len();
    for (i, (field, expr)) in slow.fields.iter().zip(&measure.fields).enumerate() {
        let of = if i < shown { "" } else { "span " };
        out.push_str(&format!("    {of}{}: {} = {}\n", field.name, decoder(&field.decoder), print_expr(expr, btf)));
    }
}

fn attach(attach: &Attach) -> String {
    attach.to_string()
}

fn select(select: &Select, btf: Option<&Btf>) -> String {
    match select {
        Select::All => String::new(),
        Select::NotNull(expr) => format!(" if {} != 0", print_expr(expr, btf)),
        Select::OneOf(expr, numbers) => format!(" if {} in {numbers:?}", print_expr(expr, btf)),
    }
}

fn span_key(key: &SpanKey, btf: Option<&Btf>) -> String {
    match key {
        SpanKey::Task => "task".into(),
        SpanKey::Dense(domains) => format!("index {domains:?}"),
        SpanKey::Hash(types) => {
            let types: Vec<String> = types.iter().map(|ty| print_ty(*ty, btf)).collect();
            format!("hash [{}]", types.join(", "))
        }
    }
}

fn decoder(decoder: &Decoder) -> String {
    match decoder {
        Decoder::Enum(names) => format!("enum of {} names", names.len()),
        Decoder::Map(names, otherwise) => {
            let mut arms: Vec<String> = names.iter().map(|(value, name)| format!("{value} => {name:?}")).collect();
            arms.extend(otherwise.iter().map(|name| format!("_ => {name:?}")));
            format!("map({})", arms.join(", "))
        }
        Decoder::Texts(of, texts, otherwise) => {
            let mut arms: Vec<String> =
                texts.iter().map(|(pattern, shown)| format!("{pattern:?} => {shown:?}")).collect();
            arms.extend(otherwise.iter().map(|shown| format!("_ => {shown:?}")));
            format!("{} as {}", self::decoder(of), arms.join(", "))
        }
        simple => format!("{simple:?}").to_lowercase(),
    }
}

fn print_ty(ty: Ty, btf: Option<&Btf>) -> String {
    match ty {
        Ty::Int { bits, signed } => format!("{}{bits}", if signed { 's' } else { 'u' }),
        Ty::Bool => "bool".into(),
        Ty::Ptr { to, trust } => {
            let pointee = btf.map_or(String::new(), |btf| btf.describe(to));
            let trust = match trust {
                Trust::Btf => "btf",
                Trust::Probe => "probe",
                Trust::User => "user",
            };
            format!("{trust} {pointee}*")
        }
        Ty::Str(n) => format!("str{n}"),
        Ty::Bytes(n) => format!("bytes{n}"),
    }
}

/// A typed expression; leaves and reads show their types.
pub fn print_expr(expr: &Expr, btf: Option<&Btf>) -> String {
    let show = |e: &Expr| print_expr(e, btf);
    let ty = || print_ty(expr.ty, btf);
    match &expr.kind {
        Kind::Load { base, offset, bitfield } => {
            let bits = bitfield.map_or(String::new(), |b| format!(" {}B>>{}&{}b", b.size, b.shift, b.width));
            format!("load({} {offset:+}{bits}):{}", show(base), ty())
        }
        Kind::Offset { base, offset } => format!("({} {offset:+}):{}", show(base), ty()),
        Kind::Element { base, index, scale, count } => {
            format!("element({}, {} of {count}, {scale}B):{}", show(base), show(index), ty())
        }
        Kind::StrAt(p) => format!("str({}):{}", show(p), ty()),
        Kind::FdFile(fd) => format!("fd_file({}):{}", show(fd), ty()),
        Kind::FdSock(fd) => format!("fd_sock({}):{}", show(fd), ty()),
        Kind::Unary(Unary::Neg, a) => format!("-{}", show(a)),
        Kind::Unary(Unary::Invert, a) => format!("~{}", show(a)),
        Kind::Not(a) => format!("!{}", show(a)),
        Kind::Arith(op, a, b) => format!("({} {} {})", show(a), arith(*op), show(b)),
        Kind::Cmp(op, a, b) => format!("({} {} {})", show(a), cmp(*op), show(b)),
        Kind::And(a, b) => format!("({} && {})", show(a), show(b)),
        Kind::Or(a, b) => format!("({} || {})", show(a), show(b)),
        Kind::Cond(c, a, b) => format!("({} ? {} : {})", show(c), show(a), show(b)),
        Kind::Convert(a) => format!("{}({})", ty(), show(a)),
        Kind::Swap(a) => format!("swap({})", show(a)),
        Kind::Log2(a) => format!("log2({})", show(a)),
        Kind::StrEq(a, bytes) => format!("({} is {})", show(a), text(bytes)),
        Kind::OneOf(a, values) => match a.ty {
            Ty::Int { signed: true, .. } => {
                format!("({} in {:?})", show(a), values.iter().map(|v| *v as i64).collect::<Vec<_>>())
            }
            _ => format!("({} in {values:?})", show(a)),
        },
        Kind::Selected(a, selector) => format!("selected({}, {selector})", show(a)),
        leaf => print_leaf(leaf, expr.ty, &ty()),
    }
}

/// What has no operands.
fn print_leaf(kind: &Kind, ty: Ty, shown_ty: &str) -> String {
    match kind {
        Kind::Const(bits) => match ty {
            Ty::Bool => (*bits != 0).to_string(),
            Ty::Int { signed: true, .. } => format!("{}:{shown_ty}", *bits as i64),
            _ => format!("{bits}:{shown_ty}"),
        },
        Kind::Str(bytes) => text(bytes),
        Kind::Task => format!("task:{shown_ty}"),
        Kind::Arg { offset } => format!("arg{}:{shown_ty}", offset / 8),
        Kind::ArgCopy { offset } => format!("arg{}.copy:{shown_ty}", offset / 8),
        Kind::Field { offset } => format!("field@{offset}:{shown_ty}"),
        Kind::DataLoc { offset } => format!("data_loc@{offset}:{shown_ty}"),
        Kind::Saved(i) => format!("saved{i}:{shown_ty}"),
        // Now, Pid, Comm, Elapsed ...: the name says it all.
        name => {
            let camel = format!("{name:?}");
            let snake = camel.char_indices().map(|(i, c)| match c.is_uppercase() && i > 0 {
                true => format!("_{}", c.to_lowercase()),
                false => c.to_lowercase().to_string(),
            });
            snake.collect()
        }
    }
}

fn text(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

fn arith(op: Arith) -> &'static str {
    match op {
        Arith::Add => "+",
        Arith::Sub => "-",
        Arith::Mul => "*",
        Arith::Div => "/",
        Arith::Rem => "%",
        Arith::And => "&",
        Arith::Or => "|",
        Arith::Xor => "^",
        Arith::Shl => "<<",
        Arith::Shr => ">>",
        Arith::Min => "min",
        Arith::Max => "max",
    }
}

fn cmp(op: Cmp) -> &'static str {
    match op {
        Cmp::Eq => "==",
        Cmp::Ne => "!=",
        Cmp::Lt => "<",
        Cmp::Le => "<=",
        Cmp::Gt => ">",
        Cmp::Ge => ">=",
    }
}
