//! Numbers with and without units: whole numbers, durations, sizes and exact decimals.

use crate::model::Quantity;
use crate::names::one_of;
use crate::report::Problem;
use std::cmp::Ordering;
use std::fmt;

const DURATIONS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
/// What other tools call them.
const LONG_UNITS: [(&str, &str); 12] = [
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("msec", "ms"),
    ("usec", "us"),
    ("µs", "us"),
    ("nsec", "ns"),
    ("min", "m"),
    ("minutes", "m"),
    ("hr", "h"),
    ("hours", "h"),
];
const SIZES: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// A decimal whole number.
pub(crate) fn integer(text: &str) -> Result<u64, Problem> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Problem::new(format!("expected a whole number, found `{text}`")));
    }
    text.parse().map_err(|_| Problem::new(format!("{text} is too large")))
}

/// `5s`, `10ms`, `15m`, as nanoseconds.
pub(crate) fn duration_ns(text: &str) -> Result<u64, Problem> {
    let (number, unit) = split(text);
    if number == text && !number.is_empty() {
        return Err(Problem::new(format!("`{text}` has no unit"))
            .hint(format!("write for example `{text}s`; units are {}", units(&DURATIONS))));
    }
    scaled(text, number, unit, &DURATIONS, "a duration such as `5s`")
}

/// `16MiB`, `64KiB` or plain bytes.
pub(crate) fn size_bytes(text: &str) -> Result<u64, Problem> {
    let (number, unit) = split(text);
    let decimal = SIZES[1..].iter().find(|(binary, _)| {
        let letter = &binary[..1];
        unit.eq_ignore_ascii_case(letter) || unit.eq_ignore_ascii_case(&format!("{letter}B"))
    });
    match decimal {
        Some((binary, _)) => Err(Problem::new(format!("`{unit}` can mean powers of 1000 or of 1024"))
            .at(number.len()..text.len())
            .hint(format!("write `{number}{binary}`"))),
        None if number == text => integer(text),
        None => scaled(text, number, unit, &SIZES, "a size such as `16MiB`"),
    }
}

/// Nanoseconds in the largest unit that holds them exactly.
pub(crate) fn show_ns(ns: u64) -> String {
    let (unit, scale) = DURATIONS.iter().rev().find(|(_, scale)| ns.is_multiple_of(*scale)).unwrap_or(&DURATIONS[0]);
    format!("{}{unit}", ns / scale)
}

/// Bytes in the largest unit that holds them exactly.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let (unit, scale) = SIZES.iter().rev().find(|(_, scale)| bytes.is_multiple_of(*scale)).unwrap_or(&SIZES[0]);
    format!("{}{unit}", bytes / scale)
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn units(table: &[(&str, u64)]) -> String {
    let names: Vec<&str> = table.iter().map(|(unit, _)| *unit).collect();
    one_of(&names)
}

fn scaled(text: &str, number: &str, unit: &str, table: &[(&str, u64)], what: &str) -> Result<u64, Problem> {
    let Some((_, scale)) = table.iter().find(|(name, _)| *name == unit) else {
        return Err(unknown_unit(text, number, unit, table, what));
    };
    if number.is_empty() {
        return Err(Problem::new(format!("expected {what}, found `{text}`")));
    }
    let value = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*scale));
    value.ok_or_else(|| Problem::new(format!("{text} is too large")))
}

fn unknown_unit(text: &str, number: &str, unit: &str, table: &[(&str, u64)], what: &str) -> Problem {
    if number.is_empty() {
        return Problem::new(format!("expected {what}, found `{text}`"));
    }
    if unit.starts_with('.') {
        return Problem::new(format!("expected {what}, found `{text}`"))
            .hint("use a whole number of a smaller unit, such as `1500ms` for 1.5 s");
    }
    let unit = unit.trim_start();
    let meant = LONG_UNITS.iter().find(|(long, _)| *long == unit).map_or(unit, |(_, short)| short);
    let hint = match table.iter().find(|(name, _)| name.eq_ignore_ascii_case(meant)) {
        Some((near, _)) => format!("did you mean `{number}{near}`?"),
        None => format!("units are {}", units(table)),
    };
    Problem::new(format!("`{unit}` is no unit of {}", what.split(' ').nth(1).unwrap_or("this")))
        .at(text.len() - unit.len()..text.len())
        .hint(hint)
}

/// What is wrong with a quantity, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError {
    message: String,
    hint: Option<String>,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(out, ": {hint}"))
    }
}

impl std::error::Error for QuantityError {}

/// `50ms`, `4KiB`, `5%` or `0.5`, from anywhere but a file.
pub fn read(text: &str) -> Result<Quantity, QuantityError> {
    measured(text).map_err(|Problem { message, hint, .. }| QuantityError { message, hint })
}

/// `50ms`, `4KiB`, `5%` or `0.5`.
pub(crate) fn measured(text: &str) -> Result<Quantity, Problem> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let found = if text.is_empty() { "nothing".to_owned() } else { format!("`{text}`") };
    let value = Decimal::parse(number)
        .map_err(|_| Problem::new(format!("expected a number such as `50ms`, `4KiB`, `5%` or `0.5`, found {found}")))?
        .to_f64();
    if unit.is_empty() {
        return Ok(Quantity::Number(value));
    }
    if unit == "%" {
        return Ok(Quantity::Percent(value / 100.0));
    }
    if let Some((_, ns)) = DURATIONS.iter().find(|(name, _)| *name == unit) {
        return Ok(Quantity::Seconds(value * (*ns as f64) / 1e9));
    }
    if let Some((_, bytes)) = SIZES.iter().find(|(name, _)| *name == unit) {
        return Ok(Quantity::Bytes(value * (*bytes as f64)));
    }
    let at = digits..text.len();
    if matches!(unit, "/s" | "/sec") {
        let problem = Problem::new("rates are already per second").at(at);
        return Err(problem.hint(format!("write `{number}`")));
    }
    let meant = LONG_UNITS.iter().find(|(long, _)| *long == unit).map(|(_, short)| *short);
    let first = unit.chars().next().unwrap_or_default().to_ascii_uppercase();
    let size = SIZES[1..].iter().map(|(name, _)| *name).find(|name| name.starts_with(first));
    let hint = match meant.or(size) {
        Some(near) => format!("did you mean `{number}{near}`?"),
        None => {
            let names: Vec<&str> = DURATIONS.iter().chain(&SIZES).map(|(name, _)| *name).collect();
            format!("units are `{}` and `%`", names.join("`, `"))
        }
    };
    Err(Problem::new(format!("`{unit}` is no unit")).at(at).hint(hint))
}

/// An exact decimal (`0.0025`): no sign, no exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    whole: u64,
    /// In units of 10^-9.
    nano: u32,
}

impl Decimal {
    /// Reads `text`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            let hint = match text.parse::<f64>() {
                Ok(_) => "write it without sign and exponent, such as `0.0025`",
                Err(_) => "write the number in the exported unit, such as `0.0025` for 2.5 ms in seconds",
            };
            return Err(Problem::new(format!("expected a decimal number, found `{text}`")).hint(hint));
        }
        let too_fine = || Problem::new(format!("{text} has more than 9 digits after the point"));
        let whole = whole.parse().map_err(|_| Problem::new(format!("{text} is too large")))?;
        let fraction = fraction.trim_end_matches('0');
        let scale = 9usize.checked_sub(fraction.len()).ok_or_else(too_fine)?;
        let nano = if fraction.is_empty() { 0 } else { fraction.parse::<u32>().map_err(|_| too_fine())? };
        // At most 9 digits, so that this stays below 10^9; without digits it is 0 whatever the scale.
        Ok(Self { whole, nano: nano * 10u32.pow(if fraction.is_empty() { 0 } else { scale as u32 }) })
    }

    /// How it compares with `raw / raw_per_unit`, exactly.
    pub fn compare(self, raw: u64, raw_per_unit: u64) -> Ordering {
        let value = u128::from(self.whole) * 1_000_000_000 + u128::from(self.nano);
        (value * u128::from(raw_per_unit)).cmp(&(u128::from(raw) * 1_000_000_000))
    }

    /// The whole part of this many times it; `None` when that has more than 64 bits.
    pub fn times(self, factor: u64) -> Option<u64> {
        let value = u128::from(self.whole) * 1_000_000_000 + u128::from(self.nano);
        u64::try_from(value * u128::from(factor) / 1_000_000_000).ok()
    }

    /// The sum with so many times another; `None` when that is too large.
    pub fn plus(self, step: Decimal, times: u64) -> Option<Decimal> {
        let nanos = |d: Decimal| u128::from(d.whole) * 1_000_000_000 + u128::from(d.nano);
        let sum = nanos(self).checked_add(nanos(step).checked_mul(times.into())?)?;
        Some(Decimal { whole: u64::try_from(sum / 1_000_000_000).ok()?, nano: (sum % 1_000_000_000) as u32 })
    }

    /// The nearest number.
    pub fn to_f64(self) -> f64 {
        self.whole as f64 + f64::from(self.nano) / 1e9
    }

    /// Whether it is 0.
    pub fn is_zero(self) -> bool {
        self.whole == 0 && self.nano == 0
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.whole)?;
        match format!("{:09}", self.nano).trim_end_matches('0') {
            "" => Ok(()),
            fraction => write!(f, ".{fraction}"),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.whole, self.nano).cmp(&(other.whole, other.nano))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration_ns("5s"), Ok(5_000_000_000));
        assert_eq!(duration_ns("10ms"), Ok(10_000_000));
        assert_eq!(duration_ns("15m"), Ok(900_000_000_000));
        assert_eq!(duration_ns("1h"), Ok(3_600_000_000_000));
        assert_eq!(duration_ns("0s"), Ok(0));
        for bad in ["", "5", "s", "-5s", "1.5s", "5 s", "5sec", "1h30m", "5124096h", "99999999999999999999s", "٣s"] {
            assert!(duration_ns(bad).is_err(), "{bad}");
        }
        assert_eq!(duration_ns("5seconds").unwrap_err().hint.unwrap(), "did you mean `5s`?");
        assert_eq!(duration_ns("5 s").unwrap_err().hint.unwrap(), "did you mean `5s`?");
        assert_eq!(show_ns(100_000_000), "100ms");
        assert_eq!(show_ns(120_000_000_000), "2m");
    }

    #[test]
    fn sizes() {
        assert_eq!(size_bytes("16MiB"), Ok(16 << 20));
        assert_eq!(size_bytes("4096"), Ok(4096));
        assert_eq!((show_bytes(3 << 20), show_bytes(1025)), ("3MiB".into(), "1025B".into()));
        assert_eq!(size_bytes("1GB").unwrap_err().hint.unwrap(), "write `1GiB`");
        assert_eq!(size_bytes("64k").unwrap_err().hint.unwrap(), "write `64KiB`");
        for bad in ["", "MiB", "1.5MiB", "16 MiB", "99999999TiB"] {
            assert!(size_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn decimals_compare_exactly() {
        let d = |text| Decimal::parse(text).unwrap();
        assert!(d("0.0025") < d("0.025"));
        assert_eq!(d("1.50"), d("1.5"));
        assert_eq!(d("3.000000000000"), d("3"));
        assert!(d("0.000").is_zero());
        assert_eq!((d("2.5").times(10_000), d("0.00001").times(10_000)), (Some(25_000), Some(0)));
        assert_eq!(d("18446744073709551615").times(2), None);
        assert_eq!(d("0.0025").compare(2_500_000, 1_000_000_000), Ordering::Equal);
        assert_eq!(d("0.5").compare(1, 1), Ordering::Less);
        assert_eq!(d("18446744073709551615").compare(u64::MAX, 1), Ordering::Equal);
        for bad in ["", ".", ".5", "5.", "1e-3", "-1", "1ms", "0.0000000001", "99999999999999999999", "0x1"] {
            assert!(Decimal::parse(bad).is_err(), "{bad}");
        }
    }
}
