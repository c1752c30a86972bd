//! Numbers with units, short enough for a column.

use crate::config::adhoc::scale::Scale;

/// A raw value with the unit that makes it short, to two digits or to the whole number: `1.9 us`, `212 ms`, `4 KiB`.
pub fn quantity(raw: f64, scale: Scale, unit: &str) -> String {
    match (scale, unit) {
        (Scale::Time, _) => time(raw),
        (Scale::Count, "bytes") => scaled(raw, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024.0),
        (Scale::Count, _) => number(raw),
    }
}

/// Nanoseconds.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 999.5e9 => scaled(ns / 1e9, &["s"], 1.0),
        ns => scaled(ns, &["ns", "us", "ms", "s"], 1000.0),
    }
}

/// The first unit in which the value is below `step`.
fn scaled(value: f64, units: &[&str], step: f64) -> String {
    let (mut value, mut units) = (value, units.iter());
    let mut unit = units.next().copied().unwrap_or_default();
    // 999.6 us is shown as 1 ms, not as 1000 us.
    while value.round() >= step {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / step, next);
    }
    format!("{} {unit}", short(value))
}

/// One decimal below 10, none above and for whole numbers.
fn short(value: f64) -> String {
    let tenths = (value * 10.0).round() / 10.0;
    match tenths.fract() == 0.0 || tenths >= 10.0 {
        true => format!("{:.0}", value.round()),
        false => format!("{tenths:.1}"),
    }
}

/// A plain number: with groups of three digits when it is whole.
fn number(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 9e15 {
        true if value < 0.0 => format!("-{}", grouped(-value as u64)),
        true => grouped(value as u64),
        false if value >= 100.0 => grouped(value.round() as u64),
        false => format!("{}", (value * 10.0).round() / 10.0),
    }
}

/// A number in full, its thousands apart: `18,904`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_get_the_unit_that_makes_them_short() {
        let ns = |raw: f64| quantity(raw, Scale::Time, "seconds");
        let shown = [0.0, 512.0, 999.6, 1_900.0, 9_960.0, 31_400.0, 999_600.0, 7.3e6, 1.0e9, 90e9, 7_200e9].map(ns);
        let expected =
            ["0 ns", "512 ns", "1 us", "1.9 us", "10 us", "31 us", "1 ms", "7.3 ms", "1 s", "90 s", "7200 s"];
        assert_eq!(shown, expected);
        let bytes = |raw: f64| quantity(raw, Scale::Count, "bytes");
        assert_eq!([0.0, 512.0, 1023.9, 4096.0, 1.6e6].map(bytes), ["0 B", "512 B", "1 KiB", "4 KiB", "1.5 MiB"]);
        let count = |raw: f64| quantity(raw, Scale::Count, "");
        assert_eq!([3.0, 18_904.0, 2.25, 1234.5, -40.0].map(count), ["3", "18,904", "2.3", "1,235", "-40"]);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 999, 1_000, 18_904, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "18,904", "1,234,567"]);
    }
}
