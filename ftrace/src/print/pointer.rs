//! The conversions of the kernel that begin with `%p` (`Documentation/core-api/printk-formats.rst`).

use super::program::Conversion;
use crate::digits::{Digits, decimal, fill, prefixed_hexadecimal};
use crate::symbols::Symbols;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An address by itself: sixteen digits. The kernel may write a hash of it instead, which no record tells.
pub(super) fn address(conversion: &Conversion, address: u64, out: &mut String) {
    let digits = Digits::hexadecimal(address);
    let mut text = String::with_capacity(16);
    fill('0', 16usize.saturating_sub(digits.text().len()), &mut text);
    text.push_str(digits.text());
    conversion.text(&text, out);
}

/// An address as a name.
pub(super) fn symbol(conversion: &Conversion, address: u64, symbols: &Symbols, out: &mut String) {
    let mut text = String::new();
    // `%pB` is for return addresses: a call at a function's very end is still that function's.
    let back = u64::from(conversion.extension.starts_with('B'));
    match symbols.find(address.wrapping_sub(back)) {
        Some(found) => {
            text.push_str(&found.name);
            if !conversion.extension.starts_with('s') {
                // The kernel adds `/` and the size, which a trace does not have.
                text.push('+');
                prefixed_hexadecimal(address.wrapping_sub(found.address), &mut text);
            }
            if let Some(module) = &found.module {
                let _ = write!(text, " [{module}]");
            }
        }
        None => {
            let _ = write!(text, "{address:#x}");
        }
    }
    conversion.text(&text, out);
}

/// Bytes in the form that an extension asks for; `None` when it is another one, or there are too few.
pub(super) fn bytes(conversion: &Conversion, bytes: &[u8], width: Option<i32>) -> Option<String> {
    let extension = conversion.extension.as_bytes();
    let two = extension.get(..2).unwrap_or(extension);
    Some(match (extension.first()?, two) {
        (b'i' | b'I', b"I4" | b"i4") => ipv4(bytes.get(..4)?, extension),
        (b'i' | b'I', b"I6" | b"i6") => ipv6(bytes.get(..16)?, extension),
        (b'i' | b'I', b"IS" | b"iS") => socket(bytes, extension)?,
        (b'M' | b'm', _) => mac(bytes.get(..6)?, extension),
        (b'U', _) => uuid(bytes.get(..16)?, extension),
        (b'h', _) => {
            // The kernel writes at most 64 bytes.
            let count = usize::try_from(width.unwrap_or(1)).unwrap_or(0).min(64);
            let separator = match extension.get(1) {
                Some(b'C') => ":",
                Some(b'D') => "-",
                Some(b'N') => "",
                _ => " ",
            };
            hex(bytes.get(..count)?, separator)
        }
        (b'b', b"bl") => bit_list(bytes, bits(bytes, width)?),
        (b'b', _) => bit_mask(bytes, bits(bytes, width)?),
        (b'a', _) => format!("0x{:016x}", crate::value::unsigned(bytes.get(..8)?)),
        _ => return None,
    })
}

/// How many bits `%*pb` shows.
fn bits(bytes: &[u8], width: Option<i32>) -> Option<usize> {
    usize::try_from(width?).ok().filter(|bits| bits.div_ceil(8) <= bytes.len())
}

pub(super) fn hex(bytes: &[u8], separator: &str) -> String {
    let mut text = String::with_capacity(bytes.len() * 3);
    for (place, byte) in bytes.iter().enumerate() {
        text.push_str(if place > 0 { separator } else { "" });
        fill('0', usize::from(*byte < 16), &mut text);
        text.push_str(Digits::hexadecimal(u64::from(*byte)).text());
    }
    text
}

fn ipv4(bytes: &[u8], extension: &[u8]) -> String {
    let mut address = [bytes[0], bytes[1], bytes[2], bytes[3]];
    // `h` and `l`: in the machine's order, which is little endian.
    if matches!(extension.get(2), Some(b'h' | b'l')) {
        address.reverse();
    }
    let mut text = String::with_capacity(15);
    for (place, byte) in address.into_iter().enumerate() {
        fill('.', usize::from(place > 0), &mut text);
        decimal(byte.into(), if extension[0] == b'i' { 3 } else { 0 }, '0', &mut text);
    }
    text
}

fn ipv6(bytes: &[u8], extension: &[u8]) -> String {
    let mut address = [0; 16];
    address.copy_from_slice(bytes);
    if extension[0] == b'I' && extension.contains(&b'c') {
        return compressed(Ipv6Addr::from(address));
    }
    let groups: Vec<String> = address.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(if extension[0] == b'I' { ":" } else { "" })
}

/// The kernel shows IPv4 addresses in mapped and ISATAP ones, but not in those of other old forms.
fn compressed(address: Ipv6Addr) -> String {
    let words = address.segments();
    let isatap = words[4] | 0x0200 == 0x0200 && words[5] == 0x5efe;
    let mapped = address.to_ipv4_mapped().is_some();
    let shown = if mapped || isatap { 6 } else { 8 };
    // The longest run of zeros, the first of equal ones, and not a single one.
    let (mut best, mut length) = (0, 1);
    for start in 0..shown {
        let run = words[start..shown].iter().take_while(|word| **word == 0).count();
        if run > length {
            (best, length) = (start, run);
        }
    }
    let mut text = String::new();
    let mut at = 0;
    let mut colon = false;
    while at < shown {
        if length > 1 && at == best {
            text.push_str(if colon || at == 0 { ":" } else { "" });
            text.push(':');
            colon = false;
            at += length;
            continue;
        }
        if colon {
            text.push(':');
        }
        let _ = write!(text, "{:x}", words[at]);
        colon = true;
        at += 1;
    }
    if shown == 6 {
        let [.., a, b, c, d] = address.octets();
        if colon {
            text.push(':');
        }
        text.push_str(&Ipv4Addr::new(a, b, c, d).to_string());
    }
    text
}

/// `struct sockaddr`: of IPv4 and IPv6.
fn socket(bytes: &[u8], extension: &[u8]) -> Option<String> {
    let has = |letter| extension[2..].contains(&letter);
    let port = |out: &mut String| {
        if has(b'p') {
            let _ = write!(out, ":{}", u16::from_be_bytes([bytes[2], bytes[3]]));
        }
    };
    match crate::value::unsigned(bytes.get(..2)?) {
        2 => {
            let mut text = ipv4(bytes.get(4..8)?, &extension[..1]);
            port(&mut text);
            Some(text)
        }
        10 => {
            let inner: &[u8] = if has(b'c') { b"I6c" } else { b"I6" };
            let mut text = ipv6(bytes.get(8..24)?, if extension[0] == b'I' { inner } else { b"i6" });
            if has(b'p') || has(b'f') || has(b's') {
                text = format!("[{text}]");
            }
            port(&mut text);
            if has(b'f') {
                let flow = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) & 0x000f_ffff;
                let _ = write!(text, "/{flow}");
            }
            if has(b's') {
                let _ = write!(text, "%{}", crate::value::unsigned(bytes.get(24..28)?));
            }
            Some(text)
        }
        // The kernel's own words for all others.
        _ => Some("(einval)".to_owned()),
    }
}

fn mac(bytes: &[u8], extension: &[u8]) -> String {
    let mut address = bytes.to_vec();
    if extension.get(1) == Some(&b'R') {
        address.reverse();
    }
    let separator = match (extension[0], extension.get(1)) {
        (b'm', _) => "",
        (_, Some(b'F')) => "-",
        _ => ":",
    };
    hex(&address, separator)
}

fn uuid(bytes: &[u8], extension: &[u8]) -> String {
    const BIG: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    const LITTLE: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let order = if matches!(extension.get(1), Some(b'l' | b'L')) { LITTLE } else { BIG };
    let mut text = String::with_capacity(36);
    for (place, byte) in order.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{:02x}", bytes[byte]);
    }
    if matches!(extension.get(1), Some(b'B' | b'L')) { text.to_ascii_uppercase() } else { text }
}

/// Bits as hexadecimal numbers of 32 bits each, the highest first.
pub(super) fn bit_mask(bytes: &[u8], bits: usize) -> String {
    let words = bits.div_ceil(32);
    let mut text = String::new();
    for word in (0..words).rev() {
        let start = (word * 4).min(bytes.len());
        let mut value = crate::value::unsigned(&bytes[start..(start + 4).min(bytes.len())]);
        let used = (bits - word * 32).min(32);
        value &= u64::MAX >> (64 - used);
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{value:0width$x}", width = used.div_ceil(4));
    }
    text
}

/// Bits as numbers and ranges: `0-3,8`.
fn bit_list(bytes: &[u8], bits: usize) -> String {
    let set = |bit: usize| bit < bits && bytes[bit / 8] >> (bit % 8) & 1 == 1;
    let mut text = String::new();
    let mut bit = 0;
    while bit < bits {
        if !set(bit) {
            bit += 1;
            continue;
        }
        let first = bit;
        while set(bit + 1) {
            bit += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{first}");
        if bit > first {
            let _ = write!(text, "-{bit}");
        }
        bit += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(extension: &str, data: &[u8], width: Option<i32>) -> Option<String> {
        let conversion = Conversion { letter: b'p', extension: extension.into(), ..Conversion::default() };
        bytes(&conversion, data, width)
    }

    fn v6(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn addresses_look_as_the_kernel_writes_them() {
        let socket4 = [2, 0, 0x1b, 0x58, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut socket6 = [0; 28];
        socket6[0] = 10;
        socket6[2..4].copy_from_slice(&[0, 80]);
        socket6[8..24].copy_from_slice(&v6("2001:db8::1"));
        let cases: &[(&str, &[u8], &str)] = &[
            ("I4", &[10, 0, 0, 1], "10.0.0.1"),
            ("i4", &[10, 0, 0, 1], "010.000.000.001"),
            ("I4h", &[10, 0, 0, 1], "1.0.0.10"),
            ("I6", &v6("2001:db8::1"), "2001:0db8:0000:0000:0000:0000:0000:0001"),
            ("i6", &v6("2001:db8::1"), "20010db8000000000000000000000001"),
            ("I6c", &v6("2001:db8::1"), "2001:db8::1"),
            ("I6c", &v6("::"), "::"),
            ("I6c", &v6("::1"), "::1"),
            ("I6c", &v6("fe80::"), "fe80::"),
            ("I6c", &v6("1:0:2:0:3:0:4:0"), "1:0:2:0:3:0:4:0"),
            ("I6c", &v6("1:0:0:2:0:0:0:3"), "1:0:0:2::3"),
            ("I6c", &v6("::ffff:10.0.0.2"), "::ffff:10.0.0.2"),
            ("ISpc", &socket4, "10.0.0.2:7000"),
            ("ISpc", &socket6, "[2001:db8::1]:80"),
            ("ISc", &socket6, "2001:db8::1"),
            ("ISpc", &[1, 0], "(einval)"),
            ("M", &[1, 2, 3, 4, 5, 0xff], "01:02:03:04:05:ff"),
            ("MF", &[1, 2, 3, 4, 5, 0xff], "01-02-03-04-05-ff"),
            ("m", &[1, 2, 3, 4, 5, 0xff], "0102030405ff"),
            ("U", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "00010203-0405-0607-0809-0a0b0c0d0e0f"),
            ("Ul", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "03020100-0504-0706-0809-0a0b0c0d0e0f"),
        ];
        for (extension, data, expected) in cases {
            assert_eq!(shown(extension, data, None).as_deref(), Some(*expected), "{extension}");
        }
        assert_eq!(shown("I4", &[1, 2, 3], None), None);
        assert_eq!(shown("ISpc", &[2, 0, 1], None), None);
        assert_eq!(shown("d", &[0; 16], None), None);
    }

    #[test]
    fn bits_and_bytes_have_the_length_that_is_asked_for() {
        assert_eq!(shown("hN", &[1, 0xab, 3], Some(2)).as_deref(), Some("01ab"));
        assert_eq!(shown("h", &[1, 0xab, 3], Some(3)).as_deref(), Some("01 ab 03"));
        assert_eq!(shown("h", &[1], Some(2)), None);
        assert_eq!(shown("bl", &[0b1000_1111, 1], Some(16)).as_deref(), Some("0-3,7-8"));
        assert_eq!(shown("bl", &[0, 0], Some(16)).as_deref(), Some(""));
        assert_eq!(shown("b", &[0x8f, 1, 0, 0, 3], Some(34)).as_deref(), Some("3,0000018f"));
        assert_eq!(shown("b", &[0x8f], Some(9)), None);
        assert_eq!(shown("b", &[0x8f], Some(-1)), None);
    }
}
