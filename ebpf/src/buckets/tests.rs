//! The definition, the tables, the code and the folds must agree: on every bound, beside every bound, and in between.

use super::big::Big;
use super::*;
use crate::ir::interp::Machine;
use crate::ir::sketch::{i, layout, map, set_call, slot, store_slot};
use crate::ir::{Duty, Func, Helper, Module, Op, Operand, Size, Space, Stmt, Var};
use crate::layout::MapId;
use proptest::prelude::*;
use std::cmp::Ordering;

fn spec(schema: u8, raw_per_unit: u64, min: u64, max: u64, classic: &[&str]) -> BucketSpec {
    BucketSpec { schema, raw_per_unit, min, max, classic: classic.iter().map(|c| c.to_string()).collect() }
}

fn seconds() -> BucketSpec {
    let classic = [
        "0.000001",
        "0.0000025",
        "0.000005",
        "0.00001",
        "0.000025",
        "0.00005",
        "0.0001",
        "0.00025",
        "0.0005",
        "0.001",
        "0.0025",
        "0.005",
        "0.01",
        "0.025",
        "0.05",
        "0.1",
        "0.25",
        "0.5",
        "1",
        "2.5",
        "5",
        "10",
    ];
    spec(3, 1_000_000_000, 1_000, 16_000_000_000, &classic)
}

fn counts() -> BucketSpec {
    let classic: Vec<String> = (0..=15).map(|k| (1u64 << (2 * k)).to_string()).collect();
    BucketSpec { schema: 3, raw_per_unit: 1, min: 1, max: 1 << 30, classic }
}

/// `v / raw_per_unit` against `2^(k / 2^schema)`, from the definition.
fn against_native(spec: &BucketSpec, v: u64, k: i32) -> Ordering {
    let power = |base: u64| (0..1u32 << spec.schema).fold(Big::from(1), |p, _| p.mul(&Big::from(base)));
    let up = |b: Big, k: i32| b.shl(k.max(0).unsigned_abs());
    up(power(v), -k).cmp(&up(power(spec.raw_per_unit), k))
}

/// `v / raw_per_unit` against a decimal, digit by digit and not through [`Decimal`].
fn against_classic(spec: &BucketSpec, v: u64, bound: &str) -> Ordering {
    let (mantissa, exponent) = bound.split_once('e').unwrap_or((bound, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().unwrap();
    let exponent = exponent.parse::<i32>().unwrap() - fraction.len() as i32;
    let ten = |n: i32| (0..n.max(0)).fold(Big::from(1), |p, _| p.mul(&Big::from(10)));
    let left = Big::from(v).mul(&ten(-exponent));
    left.cmp(&Big::from(digits).mul(&Big::from(spec.raw_per_unit)).mul(&ten(exponent)))
}

/// Checks the bucket of `v` against both definitions.
fn check_definition(scheme: &Scheme, v: u64) -> Result<(), TestCaseError> {
    let spec = &scheme.spec;
    let bucket = scheme.index(v);
    prop_assert!(bucket < scheme.buckets());

    let last = match scheme.native().of.last() {
        Some(NativeBucket::Index(i)) => *i,
        other => panic!("{other:?}"),
    };
    match scheme.native().of[bucket] {
        NativeBucket::Zero => prop_assert!(v <= spec.min, "{v} in the zero bucket"),
        NativeBucket::Index(k) => {
            prop_assert_eq!(against_native(spec, v, k - 1), Ordering::Greater, "{} is not above bucket {}", v, k);
            if k < last {
                prop_assert_ne!(against_native(spec, v, k), Ordering::Greater, "{} is above bucket {}", v, k);
            } else {
                prop_assert!(v > spec.max, "{v} in the overflow bucket");
            }
        }
    }
    // Nothing between the zero threshold and `min` may be in the zero bucket.
    if against_native(spec, v, zero_index(scheme)) == Ordering::Greater {
        prop_assert_ne!(scheme.native().of[bucket], NativeBucket::Zero);
    }

    let classic = spec.classic.iter().position(|bound| against_classic(spec, v, bound) != Ordering::Greater);
    prop_assert_eq!(usize::from(scheme.classic().of[bucket]), classic.unwrap_or(spec.classic.len()));
    Ok(())
}

fn zero_index(scheme: &Scheme) -> i32 {
    (scheme.zero_threshold().log2() * f64::from(1u32 << scheme.spec.schema)).round() as i32
}

/// A machine and a module whose function reads `v` from its context and stores its bucket in the array map.
fn indexer(scheme: &Scheme) -> (Machine, Module) {
    let mut rodata = vec![1, 2, 3];
    let tables = scheme.append_rodata(&mut rodata);
    let mut next = 3;
    let mut fresh = || {
        next += 1;
        Var(next)
    };
    let (v, out) = (Var(1), Var(2));
    let mut body = vec![Stmt::Set(v, Op::Load { ptr: Var(0), offset: 0, size: Size::B8, space: Space::Ctx })];
    body.extend(scheme.emit(v, out, tables, &mut fresh));
    body.extend([
        store_slot(0, 0, Size::B4, i(0)),
        set_call(3, Helper::MapLookup, &[map(0), slot(0)]),
        crate::ir::sketch::when(3, crate::ir::CmpOp::Eq, i(0), vec![Stmt::Return]),
        Stmt::Store { ptr: Var(3), offset: 0, size: Size::B8, value: Operand::Var(out) },
        Stmt::Store { ptr: Var(3), offset: 8, size: Size::B8, value: Operand::Var(v) },
    ]);
    let func = Func {
        name: "index".into(),
        attach: None,
        calls: None,
        duty: Duty::Always,
        vars: next + 1,
        slots: vec![8],
        body,
    };
    let module = Module { funcs: vec![func], rodata, layout: layout() };
    (Machine::new(&module.layout).unwrap(), module)
}

fn run_index((machine, module): &mut (Machine, Module), v: u64) -> usize {
    machine.run(module, 0, &v.to_le_bytes()).unwrap();
    let record = machine.array(MapId(0));
    let word = |i: usize| u64::from_le_bytes(record[8 * i..8 * i + 8].try_into().unwrap());
    assert_eq!(word(1), v, "the value is kept");
    word(0) as usize
}

/// Every bound and its neighbours, the ends of the number range, and `more`.
fn interesting(scheme: &Scheme, more: &[u64]) -> Vec<u64> {
    let beside = |&b: &u64| [b.saturating_sub(1), b, b.saturating_add(1)];
    let mut values: Vec<u64> = scheme.upper.iter().chain(more).flat_map(beside).collect();
    values.extend([0, 1, 2, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX]);
    values
}

fn check_scheme(scheme: &Scheme, more: &[u64], definition: bool) -> Result<(), TestCaseError> {
    prop_assert!(scheme.upper.windows(2).all(|pair| pair[0] < pair[1]));
    let values = interesting(scheme, more);
    let mut code = indexer(scheme);
    crate::ir::verify::verify(&code.1).map_err(|errors| TestCaseError::fail(errors.join("\n")))?;
    for &v in &values {
        let index = scheme.index(v);
        prop_assert_eq!(scheme.fast().index(v), index, "fast index of {}", v);
        prop_assert_eq!(run_index(&mut code, v), index, "emitted index of {}", v);
        if definition {
            check_definition(scheme, v)?;
        }
    }
    Ok(())
}

/// A classic bound as text: digits and an exponent, in either notation.
fn decimal() -> impl Strategy<Value = (f64, String)> {
    (1u64..10_000, -9i32..6, any::<bool>()).prop_map(|(digits, exponent, plain)| {
        let text = match (plain, exponent) {
            (true, 0..) => format!("{digits}{}", "0".repeat(exponent as usize)),
            (true, _) => {
                let padded = format!("{digits:00$}", exponent.unsigned_abs() as usize + 1);
                let (whole, fraction) = padded.split_at(padded.len() - exponent.unsigned_abs() as usize);
                format!("{whole}.{fraction}")
            }
            (false, _) => format!("{digits}e{exponent}"),
        };
        (text.parse().unwrap(), text)
    })
}

fn any_spec() -> impl Strategy<Value = BucketSpec> {
    let units = prop::sample::select(vec![1, 1000, 1_000_000, 1_000_000_000u64]);
    let bits =
        |range: std::ops::Range<u32>| (range, any::<u64>()).prop_map(|(b, r)| (1u64 << b) | (r & ((1 << b) - 1)));
    (0u8..=5, units, bits(0..40), bits(1..55), prop::collection::vec(decimal(), 0..12), 0u8..8).prop_map(
        |(schema, raw_per_unit, a, b, mut classic, low)| {
            // Small minimums, 0 and 1 above all, deserve more than their share.
            let min = if low < 4 { u64::from(low) } else { a.min(b) };
            classic.sort_by(|x, y| x.0.total_cmp(&y.0));
            classic.dedup_by(|x, y| x.0 == y.0);
            let floor = min as f64 / raw_per_unit as f64;
            let classic = classic.into_iter().filter(|c| c.0 >= floor).map(|c| c.1).collect();
            BucketSpec { schema, raw_per_unit, min, max: a.max(b).max(min).max(1), classic }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn definition_tables_and_code_agree(spec in any_spec(), more in prop::collection::vec((any::<u64>(), 0u32..64), 40)) {
        let scheme = match Scheme::new(&spec) {
            Ok(scheme) => scheme,
            Err(error) => {
                prop_assert!(error.message.contains("buckets in one histogram"), "{}: {:?}", error, spec);
                return Ok(());
            }
        };
        let more: Vec<u64> = more.into_iter().map(|(v, shift)| v >> shift).collect();
        check_scheme(&scheme, &more, true)?;
    }

    #[test]
    fn folds_keep_every_count(spec in any_spec(), values in prop::collection::vec((any::<u64>(), 0u32..64), 200)) {
        let Ok(scheme) = Scheme::new(&spec) else { return Ok(()) };
        let mut counts = vec![0; scheme.buckets()];
        let values: Vec<u64> = values.into_iter().map(|(v, shift)| v >> shift).collect();
        values.iter().for_each(|&v| counts[scheme.index(v)] += 1);

        let classic = scheme.fold_classic(&counts);
        prop_assert_eq!(classic.len(), spec.classic.len() + 1);
        for (i, bound) in spec.classic.iter().enumerate() {
            let at_most = values.iter().filter(|&&v| against_classic(&spec, v, bound) != Ordering::Greater).count();
            prop_assert_eq!(classic[..=i].iter().sum::<u64>(), at_most as u64, "le={}", bound);
        }
        prop_assert_eq!(classic.iter().sum::<u64>(), values.len() as u64);

        let (zero, native) = scheme.fold_native(&counts);
        prop_assert_eq!(zero + native.iter().map(|(_, count)| count).sum::<u64>(), values.len() as u64);
        prop_assert!(native.windows(2).all(|pair| pair[0].0 < pair[1].0), "ascending, each once");
        let mut at_most = zero;
        for (k, count) in native {
            at_most += count;
            let expected = values.iter().filter(|&&v| against_native(&spec, v, k) != Ordering::Greater).count() as u64;
            let overflow = scheme.native().of.last() == Some(&NativeBucket::Index(k));
            prop_assert_eq!(at_most, if overflow { values.len() as u64 } else { expected }, "native bucket {}", k);
        }
    }
}

#[test]
fn default_seconds() {
    let scheme = Scheme::new(&seconds()).unwrap();
    assert_eq!(scheme.upper[0], 953);
    assert_eq!(scheme.zero_threshold(), 2f64.powi(-20));
    assert_eq!(*scheme.upper.last().unwrap(), 16_000_000_000);
    assert_eq!(scheme.native().of.last(), Some(&NativeBucket::Index(33)));
    // The zero bucket, 24 octaves of 8, 22 classic bounds of which 0.25, 0.5 and 1 s are native ones too, the overflow.
    assert_eq!(scheme.buckets(), 1 + 24 * 8 + 19 + 1);
    assert_eq!(scheme.index(1_000_000_000), scheme.index(1_000_000_001) - 1);
    check_scheme(&scheme, &[], true).unwrap();
}

#[test]
fn default_seconds_cost() {
    let scheme = Scheme::new(&seconds()).unwrap();
    let fast = scheme.fast();
    assert_eq!((fast.steps.as_slice(), fast.compares), (&[16, 8, 4][..], 2));
    assert!(!fast.wide() && fast.start.len() <= 2048, "{} groups", fast.start.len());
    fn statements(block: &crate::ir::Block) -> usize {
        block
            .iter()
            .map(|s| {
                if let Stmt::If { then, otherwise, .. } = s { 1 + statements(then) + statements(otherwise) } else { 1 }
            })
            .sum()
    }
    let code = indexer(&scheme).1;
    let all = statements(&code.funcs[0].body) - 6;
    assert!(all <= 32, "{all} statements compute the index");
}

#[test]
fn default_counts() {
    let scheme = Scheme::new(&counts()).unwrap();
    assert_eq!(&scheme.upper[..4], &[0, 1, 2, 3]);
    assert_eq!(scheme.native().of[..3], [NativeBucket::Zero, NativeBucket::Index(0), NativeBucket::Index(8)]);
    assert!(scheme.zero_threshold() < 1.0 && scheme.zero_threshold() > 0.9);
    assert_eq!(*scheme.upper.last().unwrap(), 1 << 30);
    let small: Vec<u64> = (0..5000).collect();
    check_scheme(&scheme, &small, true).unwrap();
    assert_eq!(scheme.fold_classic(&[5, 7, 1]), [12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(scheme.fold_native(&[5, 7, 1]), (5, vec![(0, 7), (8, 1)]));
}

#[test]
fn the_zero_bucket_of_small_minimums_holds_zero_alone() {
    for (schema, raw_per_unit, min) in
        [(0, 1, 0), (5, 1, 1), (3, 1_000_000_000, 0), (3, 1_000_000_000, 1), (2, 1024, 1)]
    {
        let scheme = Scheme::new(&spec(schema, raw_per_unit, min, 1 << 20, &[])).unwrap();
        assert_eq!((scheme.upper[0], scheme.index(0), scheme.index(1)), (0, 0, 1));
        check_scheme(&scheme, &[3, 7, 100], true).unwrap();
    }
}

#[test]
fn many_buckets_use_wide_tables() {
    let scheme = Scheme::new(&spec(5, 1_000_000_000, 1_000, 16_000_000_000, &["0.001", "0.1"])).unwrap();
    assert!(scheme.buckets() > 700 && scheme.fast().wide());
    check_scheme(&scheme, &[], true).unwrap();
    let edge = Scheme::new(&spec(5, 1, 64, 64 << 7, &[])).unwrap();
    assert!(edge.buckets() <= 256 && !edge.fast().wide());
    check_scheme(&edge, &[], true).unwrap();
}

#[test]
fn extreme_ranges() {
    for s in [
        spec(0, 1, 0, 1, &[]),
        spec(0, 1, 1, 1, &["0"]),
        spec(0, 1, 9, 9, &[]),
        spec(5, 1_000_000_000, 7, 7, &[]),
        spec(3, 1, 0, MAX_RAW, &[]),
        spec(0, u64::MAX, 0, MAX_RAW, &["0.1"]),
        spec(5, u64::MAX, MAX_RAW - 1, MAX_RAW, &[]),
        spec(0, 1, 0, 4, &["0.5", "1.5", "1.7", "1000"]),
        spec(2, 1_000_000_000, 1_000_000, 5_000_000, &["0.001", "1", "3000000000"]),
    ] {
        let scheme = Scheme::new(&s).unwrap_or_else(|e| panic!("{s:?}: {e}"));
        check_scheme(&scheme, &[5, 1000, 1 << 40], true).unwrap_or_else(|e| panic!("{s:?}: {e}"));
    }
}

#[test]
fn rodata_is_aligned_and_little_endian() {
    let scheme = Scheme::new(&seconds()).unwrap();
    let mut rodata = vec![9; 13];
    let tables = scheme.append_rodata(&mut rodata);
    assert_eq!((tables.upper, rodata.len() % 8), (16, 0));
    assert_eq!(rodata[16..24], 953u64.to_le_bytes());
    assert_eq!(rodata.len() - 16, scheme.rodata().len());
    assert_eq!(rodata[tables.start as usize], 0);
}

#[test]
fn mistakes_are_explained() {
    for (bad, expected) in [
        (spec(6, 1, 0, 1, &[]), "schema 6 is out of range"),
        (spec(0, 0, 0, 1, &[]), "0 raw units"),
        (spec(0, 1, 0, 0, &[]), "`max` must be above 0"),
        (spec(0, 1, 5, 4, &[]), "range from 5 to 4"),
        (spec(0, 1, 0, u64::MAX, &[]), "the largest possible is 4611686018427387904"),
        (spec(0, 1, 0, 8, &["one"]), "`one` is not a plain decimal number"),
        (spec(0, 1, 0, 8, &["-1"]), "`-1` is not a plain decimal number"),
        (spec(0, 1, 0, 8, &["+Inf"]), "+Inf is implied"),
        (spec(0, 1, 0, 8, &["2", "1"]), "`1` is not above `2`"),
        (spec(0, 1, 0, 8, &["1", "1.0"]), "`1.0` is not above `1`"),
        (spec(0, 1, 0, 8, &["1e19"]), "`1e19` is too large"),
        (spec(3, 1_000_000_000, 1000, 2000, &["5e-07"]), "`5e-07` lies inside the zero bucket, which ends at 9.5"),
        (spec(3, 1_000_000_000, 1000, 2000, &["5e-07"]), "set `min` to 500 raw units or less"),
        (spec(5, 1, 0, MAX_RAW, &[]), "at most 1024 are allowed"),
    ] {
        let error = Scheme::new(&bad).expect_err("must be refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_bound_of_0_is_a_bucket_of_its_own() {
    let spec = spec(3, 1_000_000_000, 1000, 16_000_000_000, &["0", "0.000001", "1"]);
    let scheme = Scheme::new(&spec).unwrap();
    for v in [0, 1, 2, 952, 953, 954, 1000, 1001, 1_000_000_000, u64::MAX] {
        check_definition(&scheme, v).unwrap_or_else(|e| panic!("{v}: {e}"));
    }
    let mut counts = vec![0; scheme.buckets()];
    [0, 0, 1, 1000].iter().for_each(|v| counts[scheme.index(*v)] += 1);
    assert_eq!(scheme.fold_classic(&counts), [2, 2, 0, 0]);
    assert_eq!(scheme.fold_native(&counts).0, 3, "both lie in the native form's zero bucket");
}
