//! Numbers as JSON spells them, read as whole units. No float: what is spelled is what counts.

/// Whether `text` is a number of JSON.
pub(super) fn is_number(text: &[u8]) -> bool {
    parts(text).is_some()
}

/// The units that `text`, a number of JSON, comes to: a fraction is rounded up, and what is too large for a `u64` is
/// the largest. `None` if it is none, or negative.
pub(super) fn units(text: &[u8]) -> Option<u64> {
    let Parts {
        negative,
        whole,
        fraction,
        exponent,
    } = parts(text)?;
    let mut units = 0_u64;
    let mut rest = false;
    let mut point = i64::try_from(whole.len()).ok()?.saturating_add(exponent);
    for digit in whole.iter().chain(fraction).map(|byte| byte - b'0') {
        if point > 0 {
            units = units.saturating_mul(10).saturating_add(digit.into());
        } else {
            rest |= digit > 0;
        }
        point = point.saturating_sub(1);
    }
    // Zeros that the exponent adds: twenty of them are more than a u64 holds.
    for _ in 0..point.clamp(0, 20) {
        units = units.saturating_mul(10);
    }
    let units = units.saturating_add(rest.into());
    (!negative || units == 0).then_some(units)
}

/// A number of JSON in its parts, each of digits only.
struct Parts<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

fn parts(text: &[u8]) -> Option<Parts<'_>> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (whole, text) = digits(text)?;
    if whole.len() > 1 && whole.starts_with(b"0") {
        return None;
    }
    let (fraction, text) = match text.strip_prefix(b".") {
        Some(text) => digits(text)?,
        None => (&[] as &[u8], text),
    };
    let exponent = match text.split_first() {
        None => 0,
        Some((b'e' | b'E', text)) => exponent(text)?,
        Some(_) => return None,
    };
    Some(Parts {
        negative,
        whole,
        fraction,
        exponent,
    })
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (sign, text) = match text.split_first() {
        Some((b'-', text)) => (-1, text),
        Some((b'+', text)) => (1, text),
        _ => (1, text),
    };
    let (digits, []) = digits(text)? else {
        return None;
    };
    let exponent = digits.iter().fold(0_i64, |sum, byte| {
        sum.saturating_mul(10)
            .saturating_add(i64::from(byte - b'0'))
    });
    Some(exponent.saturating_mul(sign))
}

/// The digits that `text` begins with, one at least, and what follows them.
fn digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at_checked(end).filter(|_| end > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_spelled_and_rounded_up() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0e5", Some(0)),
            ("3", Some(3)),
            ("3.0", Some(3)),
            ("1.5", Some(2)),
            ("0.0001", Some(1)),
            ("1e9", Some(1_000_000_000)),
            ("1.25e1", Some(13)),
            ("1.25E+2", Some(125)),
            ("125e-2", Some(2)),
            ("1e-400", Some(1)),
            ("0e400", Some(0)),
            ("4294967296", Some(1 << 32)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("1e99999999999999999999", Some(u64::MAX)),
            ("-1", None),
            ("-0.1", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("01", None),
            (".5", None),
            ("1.", None),
            ("1e", None),
            ("1e+", None),
            ("0x10", None),
            ("NaN", None),
            ("Infinity", None),
            ("1 000", None),
            ("1_000", None),
            ("٣", None),
        ] {
            assert_eq!(units(text.as_bytes()), expected, "{text}");
        }
    }
}
