//! Numbers in and out of strings, by Redis's rules.

use bytes::Bytes;

use crate::error::{NOT_FLOAT, NOT_INTEGER, Stop};

/// Parses an integer as strictly as Redis does: no blanks, no `+`, no leading zeros, no `-0`.
pub(crate) fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [] => return None,
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    match digits {
        [b'0'] => return if negative { None } else { Some(0) },
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    if negative {
        if value > i64::MIN.unsigned_abs() {
            None
        } else {
            Some((value as i64).wrapping_neg())
        }
    } else {
        i64::try_from(value).ok()
    }
}

/// An integer argument.
pub(crate) fn int_arg(text: &[u8]) -> Result<i64, Stop> {
    parse_int(text).ok_or(Stop::Error(NOT_INTEGER.into()))
}

/// An integer argument within a range, with Redis's error for a value outside it.
pub(crate) fn range_arg(text: &[u8], min: i64, max: i64, error: &'static str) -> Result<i64, Stop> {
    match parse_int(text) {
        Some(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(error.into()),
    }
}

/// An integer argument that must fit C's `int`.
pub(crate) fn i32_arg(text: &[u8]) -> Result<i32, Stop> {
    i32::try_from(int_arg(text)?).map_err(|_| {
        "ERR value is out of range, value must between -2147483648 and 2147483647".into()
    })
}

/// An integer argument that must not be negative.
pub(crate) fn positive_arg(text: &[u8]) -> Result<i64, Stop> {
    range_arg(
        text,
        0,
        i64::MAX,
        "ERR value is out of range, must be positive",
    )
}

/// Parses a float as C's `strtod` over the whole string, refusing NaN and overflow as Redis does.
pub(crate) fn parse_double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let negative = text.starts_with('-');
    if let Some(hex) = unsigned
        .strip_prefix("0x")
        .or_else(|| unsigned.strip_prefix("0X"))
    {
        let value = parse_hex(hex)?;
        return Some(if negative { -value } else { value });
    }
    if unsigned.eq_ignore_ascii_case("inf") || unsigned.eq_ignore_ascii_case("infinity") {
        return Some(if negative {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        });
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let value: f64 = unsigned.parse().ok()?;
    // Out of range in either direction is an error, a true zero is not.
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or_default();
    if value.is_infinite() || (value == 0.0 && mantissa.bytes().any(|b| matches!(b, b'1'..=b'9'))) {
        return None;
    }
    Some(if negative { -value } else { value })
}

/// A float where Redis looks at nothing but the end of `strtod`: a NUL ends the text, blanks may
/// lead, and nothing at all is 0. Too large is infinity, or refused if `in_range`; NaN is refused.
pub(crate) fn parse_double_leniently(text: &[u8], in_range: bool) -> Option<f64> {
    let text = &text[..memchr::memchr(0, text).unwrap_or(text.len())];
    let start = text
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .unwrap_or(text.len());
    let text = &text[start..];
    if text.is_empty() {
        // Blanks alone are left over, since nothing was converted.
        return (start == 0).then_some(0.0);
    }
    parse_double(text).or_else(|| {
        let text = std::str::from_utf8(text).ok().filter(|_| !in_range)?;
        let starts = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        text.parse::<f64>()
            .ok()
            .filter(|value| starts && !value.is_nan())
    })
}

fn parse_hex(text: &str) -> Option<f64> {
    let (digits, exponent) = match text.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0f64;
    for digit in whole.chars() {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let mut scale = 1.0 / 16.0;
    for digit in fraction.chars() {
        value += f64::from(digit.to_digit(16)?) * scale;
        scale /= 16.0;
    }
    let value = value * 2f64.powi(exponent);
    value.is_finite().then_some(value)
}

/// A float argument.
pub(crate) fn double_arg(text: &[u8]) -> Result<f64, Stop> {
    parse_double(text).ok_or(Stop::Error(NOT_FLOAT.into()))
}

/// C's `%.17g`, which is how Redis 7.0 writes a double.
pub(crate) fn format_double(value: f64) -> Bytes {
    Bytes::from(double_text(value).into_bytes())
}

/// C's `%.17g` as text.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    if value == value.trunc() && value.abs() < 1e15 && (value != 0.0 || value.is_sign_positive()) {
        return itoa::Buffer::new().format(value as i64).to_owned();
    }
    general(value, 17)
}

/// C's `%.<precision>g`.
pub(crate) fn general(value: f64, precision: usize) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{:.*e}", precision - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let mantissa = trim_zeros(mantissa);
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    } else {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        trim_zeros(&format!("{value:.decimals$}")).to_owned()
    }
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// A C cast to `long long`, with what x86 makes of what does not fit.
pub(crate) fn truncate(value: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value) {
        value as i64
    } else {
        i64::MIN
    }
}

/// A C cast to `unsigned long long`, likewise.
pub(crate) fn truncate_unsigned(value: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if value < HALF {
        truncate(value) as u64
    } else {
        truncate(value - HALF) as u64 ^ 1 << 63
    }
}

/// An integer as a bulk string's bytes.
pub(crate) fn int_bytes(value: i64) -> Bytes {
    Bytes::copy_from_slice(itoa::Buffer::new().format(value).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_strictly_as_redis_does() {
        assert_eq!(parse_int(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_int(b"9223372036854775807"), Some(i64::MAX));
        for bad in [
            "9223372036854775808",
            "-0",
            "+1",
            " 1",
            "01",
            "1 ",
            "",
            "-",
            "1e3",
        ] {
            assert_eq!(parse_int(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn doubles_are_written_with_seventeen_digits() {
        assert_eq!(double_text(0.1), "0.10000000000000001");
        assert_eq!(double_text(3.0), "3");
        assert_eq!(double_text(-0.0), "-0");
        assert_eq!(double_text(1e17), "1e+17");
        assert_eq!(double_text(1.5e-7), "1.4999999999999999e-07");
        assert_eq!(double_text(f64::NEG_INFINITY), "-inf");
    }
}
