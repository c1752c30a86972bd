//! Figures for people: three digits that matter and a unit, so that columns stay narrow.

/// Steps of 1000 below a second.
const TIMES: [(f64, &str); 4] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
const THOUSANDS: [(f64, &str); 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
const POWERS_OF_1024: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// A time in seconds: `6.1ms`, `212ms`, `1.20s`.
pub fn seconds(seconds: f64) -> String {
    if seconds == 0.0 {
        return "0s".to_owned();
    }
    let (unit, name) = scale(seconds, &TIMES);
    match name {
        "s" if seconds.abs() < 10.0 => format!("{seconds:.2}s"),
        _ => format!("{}{name}", short(seconds / unit)),
    }
}

/// Events a second: `18.2k/s`, `0.3/s`.
pub fn rate(rate: f64) -> String {
    number(rate) + "/s"
}

/// A number without a unit: `18.2k`, `12`, `0.25`.
pub fn number(number: f64) -> String {
    let (unit, name) = scale(number, &THOUSANDS);
    let scaled = number / unit;
    match name {
        "" if number.abs() < 1.0 && number != 0.0 => format!("{number:.2}"),
        "" if number.fract() == 0.0 => format!("{number:.0}"),
        "" => short(scaled),
        _ if scaled.abs() < 100.0 => format!("{scaled:.1}{name}"),
        _ => format!("{scaled:.0}{name}"),
    }
}

/// A size: `512B`, `1.5MiB`.
pub fn bytes(bytes: u64) -> String {
    let unit = POWERS_OF_1024.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes}B"), |(unit, name)| format!("{}{name}", short(bytes as f64 / unit as f64)))
}

/// The first unit that leaves a whole digit, as rounded to two; the last where there is none.
fn scale<const N: usize>(value: f64, units: &'static [(f64, &'static str); N]) -> (f64, &'static str) {
    units.iter().copied().find(|(unit, _)| value.abs() / unit >= 0.9995).unwrap_or(units[N - 1])
}

fn short(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_leaves_a_digit() {
        let cases = [
            (0.0, "0s"),
            (3.2e-10, "0.3ns"),
            (5.12e-7, "512ns"),
            (9.994e-7, "999ns"),
            (9.996e-7, "1.0us"),
            (6.1e-3, "6.1ms"),
            (0.0099, "9.9ms"),
            (0.212, "212ms"),
            (1.2, "1.20s"),
            (61.0, "61s"),
        ];
        cases.into_iter().for_each(|(time, text)| assert_eq!(seconds(time), text));
    }

    #[test]
    fn rates_and_sizes_are_short() {
        let rates = [0.0, 0.25, 1.0, 12.5, 999.0, 18_240.0, 211_000.0, 1_940_000.0];
        let texts = ["0/s", "0.25/s", "1/s", "12/s", "999/s", "18.2k/s", "211k/s", "1.9M/s"];
        assert_eq!(rates.map(rate), texts);
        assert_eq!([0, 512, 1536, 20 << 20, 3 << 40].map(bytes), ["0B", "512B", "1.5KiB", "20MiB", "3.0TiB"]);
    }
}
