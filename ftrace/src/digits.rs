//! Numbers as digits in a given width: what `write!` does, at a fraction of its cost. Traces are mostly numbers.

/// Digits of a number in base 8, 10 or 16.
pub(crate) struct Digits {
    /// The last ones are used.
    bytes: [u8; 22],
    start: usize,
}

impl Digits {
    /// In base 10.
    #[inline]
    pub fn decimal(number: u64) -> Digits {
        Digits::of::<10>(number, b"0123456789")
    }

    /// In base 16, in small letters.
    #[inline]
    pub fn hexadecimal(number: u64) -> Digits {
        Digits::of::<16>(number, b"0123456789abcdef")
    }

    /// In base 16, in capital letters.
    pub fn capital_hexadecimal(number: u64) -> Digits {
        Digits::of::<16>(number, b"0123456789ABCDEF")
    }

    /// In base 8.
    pub fn octal(number: u64) -> Digits {
        Digits::of::<8>(number, b"01234567")
    }

    /// The base is known when this is compiled: it needs no division.
    #[inline]
    fn of<const BASE: u64>(mut number: u64, digits: &[u8]) -> Digits {
        // The longest number has 22 digits in base 8.
        let mut it = Digits { bytes: [b'0'; 22], start: 22 };
        loop {
            it.start -= 1;
            it.bytes[it.start] = digits[(number % BASE) as usize];
            number /= BASE;
            if number == 0 {
                return it;
            }
        }
    }

    #[inline]
    pub fn text(&self) -> &str {
        // They are ASCII.
        std::str::from_utf8(&self.bytes[self.start..]).unwrap_or_default()
    }
}

/// Appends a character some times.
#[inline]
pub(crate) fn fill(character: char, times: usize, out: &mut String) {
    for _ in 0..times {
        out.push(character);
    }
}

/// Appends a number in base 10, with `fill` before it up to a width.
#[inline]
pub(crate) fn decimal(number: u64, width: usize, filled_with: char, out: &mut String) {
    let digits = Digits::decimal(number);
    let text = digits.text();
    fill(filled_with, width.saturating_sub(text.len()), out);
    out.push_str(text);
}

/// Appends a number in base 10 with a sign when it is negative, and blanks behind it up to a width.
#[inline]
pub(crate) fn signed_to_the_left(number: i64, width: usize, out: &mut String) {
    let start = out.len();
    if number < 0 {
        out.push('-');
    }
    decimal(number.unsigned_abs(), 0, ' ', out);
    fill(' ', width.saturating_sub(out.len() - start), out);
}

/// Appends `0x` and a number in base 16.
#[inline]
pub(crate) fn prefixed_hexadecimal(number: u64, out: &mut String) {
    out.push_str("0x");
    out.push_str(Digits::hexadecimal(number).text());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_format() {
        for number in [0, 7, 8, 9, 10, 15, 16, 99, 100, 1 << 32, u64::MAX - 1, u64::MAX] {
            assert_eq!(Digits::decimal(number).text(), format!("{number}"));
            assert_eq!(Digits::hexadecimal(number).text(), format!("{number:x}"));
            assert_eq!(Digits::capital_hexadecimal(number).text(), format!("{number:X}"));
            assert_eq!(Digits::octal(number).text(), format!("{number:o}"));
            let mut out = String::new();
            decimal(number, 12, ' ', &mut out);
            decimal(number, 6, '0', &mut out);
            prefixed_hexadecimal(number, &mut out);
            signed_to_the_left(number as i64, 7, &mut out);
            assert_eq!(out, format!("{number:>12}{number:06}{number:#x}{:<7}", number as i64));
        }
    }
}
