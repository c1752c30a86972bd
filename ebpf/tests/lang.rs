//! Text to AST and back.

use kstrobe_ebpf::ast::{BinaryOp, Expr, ExprKind, Ident, TypeKind, UnaryOp};
use kstrobe_ebpf::diag::Span;
use kstrobe_ebpf::lang::{parse, print};
use proptest::prelude::*;

/// The tree without places, which printing does not keep.
fn bare(expr: &Expr) -> Expr {
    let b = |e: &Expr| Box::new(bare(e));
    let id = |i: &Ident| Ident { name: i.name.clone(), span: Span::default() };
    let all = |list: &[Expr]| list.iter().map(bare).collect();
    let kind = match &expr.kind {
        ExprKind::Field(base, field) => ExprKind::Field(b(base), id(field)),
        ExprKind::Index(base, index) => ExprKind::Index(b(base), b(index)),
        ExprKind::Call(name, args) => ExprKind::Call(id(name), all(args)),
        ExprKind::Unary(op, x) => ExprKind::Unary(*op, b(x)),
        ExprKind::Binary(op, x, y) => ExprKind::Binary(*op, b(x), b(y)),
        ExprKind::Cond(c, x, y) => ExprKind::Cond(b(c), b(x), b(y)),
        ExprKind::In(x, list, negated) => ExprKind::In(b(x), all(list), *negated),
        ExprKind::Arm(x, y) => ExprKind::Arm(x.as_ref().map(|x| b(x)), b(y)),
        leaf => leaf.clone(),
    };
    Expr { kind, span: Span::default() }
}

fn assert_same_after_printing(expr: &Expr) {
    let printed = print(expr);
    match parse(&printed) {
        Ok(again) => assert_eq!(bare(&again), bare(expr), "printed as {printed}"),
        Err(e) => panic!("{printed}: {e:?}"),
    }
}

/// What `text` means, written with the fewest brackets.
fn check(text: &str, normal: &str) {
    assert_eq!(parse(text).map(|e| print(&e)), Ok(normal.to_string()));
}

#[test]
fn operators_bind_as_documented() {
    check("((a))", "a");
    check("(a * b) + c", "a * b + c");
    check("a - (b - c)", "a - (b - c)");
    check("(a - b) - c", "a - b - c");
    check("(a == b) & (c == d)", "a == b & c == d");
    check("(a & b) == c", "(a & b) == c");
    check("a | (b ^ (c & (d == (e < f))))", "a | b ^ c & d == e < f");
    check("a < (b in [1, 2])", "a < b in [1, 2]");
    check("(a << 1) in [c]", "a << 1 in [c]");
    check("a << (b + c)", "a << b + c");
    check("(a && b) || c", "a && b || c");
    check("a && (b || c)", "a && (b || c)");
    check("c ? (x ? 1 : 2) : (y ? 3 : 4)", "c ? x ? 1 : 2 : y ? 3 : 4");
    check("(c ? d : e) ? 1 : 2", "(c ? d : e) ? 1 : 2");
    check("-a.b[1]", "-a.b[1]");
    check("(-a).b", "(-a).b");
    check("!(a in [1])", "!(a in [1])");
    check("a->b->c", "a.b.c");
    check("a not in [1, 2,]", "a not in [1, 2]");
}

#[test]
fn literals_are_read() {
    check("0xff", "255");
    check("1_000", "1000");
    check("'a' + '\\n' + '\\''", "97 + 10 + 39");
    check("10ns + 1500us + 60s + 2h", "10ns + 1500us + 1m + 2h");
    check("64KiB + 1024KiB + 0GiB", "64KiB + 1MiB + 0KiB");
    check(r#""a\"\\\n\0é'""#, r#""a\"\\\n\0é'""#);
    check("map(x, 1 => \"one\", _ => \"many\")", "map(x, 1 => \"one\", _ => \"many\")");
    check("cast(struct sock, p)", "cast(struct sock, p)");
    check("enum(enum tcp, p)", "enum(enum tcp, p)");
    check("18446744073709551615", "18446744073709551615");
}

/// A mistake: where (marked by `^` under `text`), what and what to do.
fn fails(text: &str, carets: &str, message: &str, hint: &str) {
    let e = parse(text).expect_err(text);
    let shown =
        format!("{}{}", " ".repeat(e.span.start as usize), "^".repeat((e.span.end - e.span.start).max(1) as usize));
    assert_eq!(
        (shown.as_str(), e.message.as_str(), e.hint.as_deref().unwrap_or("")),
        (carets, message, hint),
        "{text}"
    );
}

#[test]
fn mistakes_are_explained() {
    fails("min(a, (b + 1)", "   ^", "expected `)` to close this `(`", "found the end of the expression instead");
    fails("a[1", " ^", "expected `]` to close this `[`", "found the end of the expression instead");
    fails("(a b)", "^", "expected `)` to close this `(`", "found `b` instead");
    fails("a = 1", "  ^", "expected an operator or the end of the expression, found `=`", "use `==` to compare");
    fails("a and b", "  ^^^", "expected an operator or the end of the expression, found `and`", "write `&&`");
    fails("a +", "   ^", "expected a value, found the end of the expression", "");
    fails("", "^", "expected a value, found the end of the expression", "");
    fails("*p", "^", "expected a value, found `*`", "`.` follows pointers by itself; `p[0]` reads behind one");
    fails("a.1", "  ^", "expected a field name after `.`, found `1`", "");
    fails("10sec", "^^^^^", "unknown unit `sec` in `10sec`", "units are ns us ms s m h and KiB MiB GiB");
    fails("0xg", "^^^", "`0xg` is not a number", "hexadecimal digits are 0-9 and a-f");
    fails("9999999h", "^^^^^^^^", "`9999999h` does not fit 64 bits", "the largest number is 0xffffffffffffffff");
    fails("a # b", "  ^", "unexpected character '#'", "");
    fails("x == \"ab", "     ^^^", "this quote is never closed", "");
    fails("'ab'", "^^", "expected `'` after one character", "put longer text in double quotes: \"text\"");
    fails(r#""\q""#, " ^^", "unknown escape `\\q`", "escapes are \\n \\t \\r \\0 \\\\ \\\" \\'");
    fails("c ? 1", "  ^", "expected `:` and a second value for this `?`", "found the end of the expression instead");
    fails("a in 1", "     ^", "expected `[` and the elements of a set, found `1`", "");
    fails("a in []", "      ^", "a set needs at least one element", "");
    fails("min(1 => \"a\")", "    ^^^^^^^^", "`=>` stands only inside `map(..)`", "");
    fails("a in [1 => \"a\"]", "      ^^^^^^^^", "`=>` stands only inside `map(..)`", "");
}

#[test]
fn depth_is_bounded_for_every_shape_of_tree() {
    let too_deep = |text: String| parse(&text).expect_err("a deep tree").message;
    for text in ["!".repeat(65) + "a", "a".to_string() + &".b".repeat(65), "a".to_string() + &" + a".repeat(65)] {
        assert_eq!(too_deep(text), "expression nested too deeply (limit 64)");
    }
    assert_eq!(too_deep("(".repeat(100_000)), "expression longer than 64 KiB");
    assert_eq!(too_deep("(".repeat(60_000)), "brackets nested too deeply (limit 136)");
    assert!(parse(&("a".to_string() + &" + a".repeat(63))).is_ok());
    assert!(parse(&format!("{}a{}", "(".repeat(100), ")".repeat(100))).is_ok());
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_][a-z0-9_]{0,6}", Just("args".to_string()), Just("AF_INET".to_string())]
        .prop_filter("a keyword", |w| {
            !["in", "not", "and", "or", "true", "false", "struct", "union", "enum", "_", "map"].contains(&w.as_str())
        })
}

fn node(kind: ExprKind) -> Expr {
    Expr { kind, span: Span::default() }
}

fn ident(name: String) -> Ident {
    Ident { name, span: Span::default() }
}

fn tree() -> impl Strategy<Value = Expr> {
    let binary = prop::sample::select(vec![
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Rem,
        BinaryOp::BitAnd,
        BinaryOp::BitOr,
        BinaryOp::BitXor,
        BinaryOp::Shl,
        BinaryOp::Shr,
        BinaryOp::Eq,
        BinaryOp::Ne,
        BinaryOp::Lt,
        BinaryOp::Le,
        BinaryOp::Gt,
        BinaryOp::Ge,
        BinaryOp::And,
        BinaryOp::Or,
    ]);
    let unary = prop::sample::select(vec![UnaryOp::Neg, UnaryOp::Not, UnaryOp::Invert]);
    let types = prop::sample::select(vec![TypeKind::Struct, TypeKind::Union, TypeKind::Enum]);
    let leaf = prop_oneof![
        any::<u64>().prop_map(ExprKind::Int),
        any::<u64>().prop_map(ExprKind::Duration),
        (0u64..1 << 54).prop_map(|n| ExprKind::Size(n << 10)),
        any::<bool>().prop_map(ExprKind::Bool),
        any::<String>().prop_map(ExprKind::Str),
        word().prop_map(ExprKind::Name),
        (types, word()).prop_map(|(kind, name)| ExprKind::TypeName(kind, name)),
    ]
    .prop_map(node);
    leaf.prop_recursive(6, 48, 4, move |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let arm = (prop::option::of(inner.clone()), any::<String>())
            .prop_map(|(k, v)| node(ExprKind::Arm(k.map(Box::new), Box::new(node(ExprKind::Str(v))))));
        prop_oneof![
            (inner.clone(), word()).prop_map(|(e, f)| ExprKind::Field(Box::new(e), ident(f))),
            (inner.clone(), inner.clone()).prop_map(|(e, i)| ExprKind::Index(Box::new(e), Box::new(i))),
            (word(), prop::collection::vec(inner.clone(), 0..3)).prop_map(|(f, a)| ExprKind::Call(ident(f), a)),
            (inner.clone(), prop::collection::vec(arm, 1..3)).prop_map(|(x, arms)| {
                ExprKind::Call(ident("map".into()), std::iter::once(x).chain(arms).collect())
            }),
            (unary.clone(), inner.clone()).prop_map(|(op, e)| ExprKind::Unary(op, Box::new(e))),
            (binary.clone(), inner.clone(), inner.clone()).prop_map(|(op, a, b)| ExprKind::Binary(
                op,
                Box::new(a),
                Box::new(b)
            )),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(c, a, b)| ExprKind::Cond(
                Box::new(c),
                Box::new(a),
                Box::new(b)
            )),
            (inner, list, any::<bool>()).prop_map(|(e, l, n)| ExprKind::In(Box::new(e), l, n)),
        ]
        .prop_map(node)
    })
}

/// Text made of pieces of the language, which gets much further into the parser than arbitrary text.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a", "args", ".", "->", "[", "]", "(", ")", ",", "1", "0x1f", "10ms", "64KiB", "\"x\"", "'c'", "+", "-", "*",
        "/", "%", "!", "~", "&", "&&", "||", "|", "^", "==", "!=", "<", ">>", "?", ":", "in", "not", "struct", "enum",
        "map", "=>", "_", "true", "=", " ", "\"", "'", "\\", "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #[test]
    fn any_text_parses_or_is_a_mistake_inside_it(text in prop_oneof![any::<String>(), soup()]) {
        match parse(&text) {
            Ok(expr) => {
                prop_assert!(expr.span.end as usize <= text.len());
                assert_same_after_printing(&expr);
            }
            Err(e) => {
                let (start, end) = (e.span.start as usize, e.span.end as usize);
                prop_assert!(text.is_char_boundary(start) && text.is_char_boundary(end) && start <= end);
                prop_assert!(!e.message.is_empty());
            }
        }
    }

    #[test]
    fn any_tree_prints_as_itself(expr in tree()) {
        assert_same_after_printing(&expr);
    }
}
