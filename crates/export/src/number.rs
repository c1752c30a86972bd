//! Numbers as text, exact where integers allow it.

use std::fmt::Write;

/// Most digits after the point: enough for every power of ten a u64 holds.
const FRACTION_DIGITS: usize = 20;
/// In a second.
const NANOSECONDS: u64 = 1_000_000_000;

/// Appends `raw / raw_per_unit` as a decimal: exact when the divisor has no other prime factors than 2 and 5 (1e9 has
/// none), else to 20 digits. A float would round a sum of nanoseconds above 2^53 (104 days).
pub fn decimal(out: &mut Vec<u8>, raw: u64, raw_per_unit: u64) {
    let unit = raw_per_unit.max(1);
    out.extend_from_slice(itoa::Buffer::new().format(raw / unit).as_bytes());
    let mut rest = u128::from(raw % unit);
    if rest == 0 {
        return;
    }
    out.push(b'.');
    if unit == NANOSECONDS {
        // Nine digits at once, the usual case.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(NANOSECONDS + raw % unit).trim_end_matches('0');
        out.extend_from_slice(&digits.as_bytes()[1..]);
        return;
    }
    for _ in 0..FRACTION_DIGITS {
        rest *= 10;
        out.push(b'0' + (rest / u128::from(unit)) as u8);
        rest %= u128::from(unit);
        if rest == 0 {
            break;
        }
    }
}

/// `raw / raw_per_unit`, correctly rounded: the float that reading [`decimal`] gives.
pub fn quotient(raw: u64, raw_per_unit: u64) -> f64 {
    const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
    let unit = raw_per_unit.max(1);
    if unit == 1 || raw <= EXACT && unit <= EXACT {
        // Of two exact numbers the division rounds once.
        return raw as f64 / unit as f64;
    }
    let mut text = Vec::new();
    decimal(&mut text, raw, unit);
    std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(raw as f64 / unit as f64)
}

/// Appends a float in the shortest form that reads back the same, as the formats spell it.
pub fn float(out: &mut Vec<u8>, value: f64) {
    let text = if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else if value != 0.0 && !(1e-5..1e15).contains(&value.abs()) {
        format!("{value:e}")
    } else {
        value.to_string()
    };
    out.extend_from_slice(text.as_bytes());
}

/// The text of a bucket bound, equal in both formats.
///
/// It is what Prometheus itself makes of a bound (Go's `%g`, with `.0` when that leaves an integer): `0.001`, `1.0`,
/// `2.5e-06`. OpenMetrics asks for it, and Prometheus 3 rewrites `le="1"` to `le="1.0"` at ingestion while Prometheus 2
/// kept the text of a 0.0.4 scrape as it came. With this spelling a rule on `le="1.0"` matches whatever the version and
/// whatever the format of the scrape.
pub fn bound_text(bound: f64) -> String {
    if bound.is_infinite() {
        return if bound > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{bound:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let mut text = String::new();
    if bound != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        // Writing to a String cannot fail.
        let _ = write!(text, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    } else {
        let _ = write!(text, "{bound}");
        if !text.contains('.') {
            text.push_str(".0");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bounds_are_spelled_as_prometheus_does() {
        for (bound, expected) in [
            (0.0, "0.0"),
            (1e-6, "1e-06"),
            (2.5e-6, "2.5e-06"),
            (0.00025, "0.00025"),
            (0.001, "0.001"),
            (0.25, "0.25"),
            (1.0, "1.0"),
            (10.0, "10.0"),
            (65536.0, "65536.0"),
            (100_000.0, "100000.0"),
            (1_000_000.0, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (1e-10, "1e-10"),
            (1e10, "1e+10"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(bound_text(bound), expected);
        }
    }

    #[test]
    fn sums_are_exact() {
        let sum = |raw, unit| text(|out| decimal(out, raw, unit));
        assert_eq!(sum(0, 1_000_000_000), "0");
        assert_eq!(sum(1, 1_000_000_000), "0.000000001");
        assert_eq!(sum(12_003_456_700, 1_000_000_000), "12.0034567");
        assert_eq!(sum(u64::MAX, 1_000_000_000), "18446744073.709551615");
        assert_eq!(sum(u64::MAX, 1), "18446744073709551615");
        assert_eq!(sum(3, 1 << 10), "0.0029296875");
        assert_eq!(sum(1, 3), "0.33333333333333333333");
        assert_eq!(sum(7, 0), "7");
    }

    #[test]
    fn quotients_round_once() {
        for (raw, unit, expected) in [
            (0, 1, 0.0),
            (7, 0, 7.0),
            (1_500_000_001, 1_000_000_000, 1.500000001),
            (u64::MAX, 1, 18446744073709551615.0),
            (9_007_199_254_740_993_000, 1_000_000_000, 9007199254.740993),
            (u64::MAX, 1_000_000_000, 18_446_744_073.709_553),
        ] {
            assert_eq!(quotient(raw, unit), expected, "{raw} / {unit}");
        }
    }

    #[test]
    fn special_floats() {
        for (value, expected) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1e300, "1e300"),
        ] {
            assert_eq!(text(|out| float(out, value)), expected);
        }
    }

    proptest! {
        #[test]
        fn decimals_read_back(raw: u64, power in 0u32..19) {
            let unit = 10u64.pow(power);
            let text = text(|out| decimal(out, raw, unit));
            prop_assert_eq!(quotient(raw, unit), text.parse::<f64>().unwrap());
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let digits = format!("{fraction:0<width$}", width = power as usize);
            let fraction: u128 = if digits.is_empty() { 0 } else { digits.parse().unwrap() };
            prop_assert_eq!(whole.parse::<u128>().unwrap() * u128::from(unit) + fraction, u128::from(raw));
        }

        #[test]
        fn floats_and_bounds_read_back(value in proptest::num::f64::NORMAL | proptest::num::f64::ZERO) {
            prop_assert_eq!(text(|out| float(out, value)).parse::<f64>().unwrap(), value);
            prop_assert_eq!(bound_text(value).parse::<f64>().unwrap(), value);
        }
    }
}
