//! x86's 80-bit floats, in which INCRBYFLOAT and HINCRBYFLOAT calculate.
//!
//! With doubles, `INCRBYFLOAT` of 0.1 by 0.2 would give 0.30000000000000004; Redis says 0.3.

/// A finite or infinite extended float: `mantissa × 2^exponent`, the mantissa's top bit set unless
/// the value is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LongDouble {
    negative: bool,
    mantissa: u64,
    exponent: i32,
    infinite: bool,
}

/// The exponent of the largest finite value, with the mantissa taken as an integer.
const MAX_EXPONENT: i32 = 16383 - 63;
/// The exponent of the smallest value that is not zero.
const MIN_EXPONENT: i32 = -16382 - 63 - 63;
/// The longest text that Redis reads as a float.
const MAX_TEXT: usize = 5 * 1024;

impl LongDouble {
    const ZERO: LongDouble = LongDouble {
        negative: false,
        mantissa: 0,
        exponent: 0,
        infinite: false,
    };

    pub(crate) fn from_int(value: i64) -> LongDouble {
        LongDouble::rounded(value < 0, u128::from(value.unsigned_abs()), 0, false)
    }

    /// C's `strtold` over the whole text; `None` for what Redis refuses: blanks, leftovers, NaN and
    /// values out of range.
    pub(crate) fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.is_empty() || text.len() >= MAX_TEXT {
            return None;
        }
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity") {
            return Some(LongDouble {
                negative,
                infinite: true,
                ..LongDouble::ZERO
            });
        }
        let value = match digits {
            [b'0', b'x' | b'X', hex @ ..] => parse_hex(negative, hex)?,
            decimal => parse_decimal(negative, decimal)?,
        };
        (!value.infinite).then_some(value)
    }

    /// A thousand times this, rounded up, as x86 converts it: what is out of range becomes the
    /// smallest integer.
    pub(crate) fn thousands(self) -> i64 {
        if self.infinite {
            return i64::MIN;
        }
        let value = u128::from(self.mantissa) * 1000;
        let magnitude = match self.exponent {
            0.. if value == 0 => 0,
            0..50 => value << self.exponent,
            50.. => return i64::MIN,
            // Less than one.
            ..=-90 => u128::from(!self.negative && value > 0),
            shift => {
                let whole = value >> -shift;
                let part = value & ((1u128 << -shift) - 1);
                whole + u128::from(!self.negative && part > 0)
            }
        };
        match i64::try_from(magnitude) {
            Ok(magnitude) if self.negative => -magnitude,
            Ok(magnitude) => magnitude,
            Err(_) => i64::MIN,
        }
    }

    pub(crate) fn is_infinite(self) -> bool {
        self.infinite
    }

    /// The sum, rounded to nearest, ties to even. `None` for infinity minus infinity.
    pub(crate) fn add(self, other: LongDouble) -> Option<LongDouble> {
        if self.infinite || other.infinite {
            return match (self.infinite, other.infinite) {
                (true, true) if self.negative != other.negative => None,
                (true, _) => Some(self),
                _ => Some(other),
            };
        }
        if other.mantissa == 0 {
            return Some(self);
        }
        if self.mantissa == 0 {
            return Some(other);
        }
        let (big, small) = if self.exponent >= other.exponent {
            (self, other)
        } else {
            (other, self)
        };
        let distance = (big.exponent - small.exponent) as u32;
        let a = u128::from(big.mantissa) << 62;
        let b = u128::from(small.mantissa) << 62;
        let (b, lost) = if distance > 126 {
            (0, true)
        } else {
            (b >> distance, b & ((1u128 << distance) - 1) != 0)
        };
        let exponent = big.exponent - 62;
        if big.negative == small.negative {
            return Some(LongDouble::rounded(big.negative, a + b, exponent, lost));
        }
        // What was shifted out lies between b and b + 1.
        let b = b + u128::from(lost);
        let (negative, difference) = if a >= b {
            (big.negative, a - b)
        } else {
            (small.negative, b - a)
        };
        if difference == 0 && !lost {
            return Some(LongDouble::ZERO);
        }
        Some(LongDouble::rounded(negative, difference, exponent, lost))
    }

    /// `value × 2^exponent` plus a little more if `sticky`, rounded to 64 bits.
    fn rounded(negative: bool, value: u128, exponent: i32, sticky: bool) -> LongDouble {
        if value == 0 {
            return LongDouble {
                negative,
                ..LongDouble::ZERO
            };
        }
        let excess = 64 - value.leading_zeros() as i32;
        let (mut mantissa, mut exponent) = (value, exponent + excess);
        if excess > 0 {
            let dropped = value & ((1u128 << excess) - 1);
            let half = 1u128 << (excess - 1);
            mantissa = value >> excess;
            if dropped > half || (dropped == half && (sticky || mantissa & 1 == 1)) {
                mantissa += 1;
            }
            if mantissa >> 64 != 0 {
                mantissa >>= 1;
                exponent += 1;
            }
        } else {
            mantissa <<= -excess;
        }
        if exponent > MAX_EXPONENT {
            return LongDouble {
                negative,
                infinite: true,
                ..LongDouble::ZERO
            };
        }
        if exponent < MIN_EXPONENT {
            return LongDouble {
                negative,
                ..LongDouble::ZERO
            };
        }
        LongDouble {
            negative,
            mantissa: mantissa as u64,
            exponent,
            infinite: false,
        }
    }

    /// C's `%.17Lf` without the zeros at the end: how Redis writes such a value.
    pub(crate) fn to_text(self) -> String {
        let sign = if self.negative { "-" } else { "" };
        if self.infinite {
            return format!("{sign}inf");
        }
        if self.exponent >= 0 {
            let mut value = Big::from(u128::from(self.mantissa));
            value.shift_left(self.exponent as usize);
            let digits = value.to_decimal();
            return if digits == "0" {
                digits
            } else {
                format!("{sign}{digits}")
            };
        }
        const SCALE: u128 = 100_000_000_000_000_000;
        let scaled = u128::from(self.mantissa) * SCALE;
        let shift = self.exponent.unsigned_abs();
        let mut units = 0;
        if shift < 128 {
            units = scaled >> shift;
            let dropped = scaled & ((1u128 << shift) - 1);
            let half = 1u128 << (shift - 1);
            if dropped > half || (dropped == half && units & 1 == 1) {
                units += 1;
            }
        }
        let text = format!("{}.{:017}", units / SCALE, units % SCALE);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        if text == "0" {
            text.to_owned()
        } else {
            format!("{sign}{text}")
        }
    }
}

fn parse_decimal(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let (number, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let mut digits = Vec::new();
    let mut scale = exponent;
    let mut seen_point = false;
    let mut any = false;
    for &byte in number {
        match byte {
            b'0'..=b'9' => {
                any = true;
                if !(digits.is_empty() && byte == b'0') {
                    digits.push(byte - b'0');
                }
                scale -= i64::from(seen_point);
            }
            b'.' if !seen_point => seen_point = true,
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    if digits.is_empty() {
        return Some(LongDouble {
            negative,
            ..LongDouble::ZERO
        });
    }
    // The value lies between 10^(magnitude-1) and 10^magnitude.
    let magnitude = digits.len() as i64 + scale;
    if !(-4960..=4940).contains(&magnitude) {
        return None;
    }
    let mut numerator = Big::default();
    for digit in digits {
        numerator.multiply_add(10, u32::from(digit));
    }
    let mut denominator = Big::from(1);
    let power = if scale >= 0 {
        &mut numerator
    } else {
        &mut denominator
    };
    for _ in 0..scale.unsigned_abs() {
        power.multiply_add(10, 0);
    }
    // A quotient of 66 or 67 bits, and whether something remains.
    let shift = 66 - (numerator.bits() as i64 - denominator.bits() as i64);
    if shift >= 0 {
        numerator.shift_left(shift as usize);
    } else {
        denominator.shift_left(-shift as usize);
    }
    let mut quotient = 0u128;
    denominator.shift_left(67);
    for _ in 0..=67 {
        quotient <<= 1;
        if numerator.at_least(&denominator) {
            numerator.subtract(&denominator);
            quotient |= 1;
        }
        denominator.halve();
    }
    let value = LongDouble::rounded(negative, quotient, -shift as i32, !numerator.is_zero());
    (value.mantissa != 0 || value.infinite).then_some(value)
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Beyond this every value is out of range whatever its digits (a text has fewer than 5120).
    let value = digits.iter().fold(0i64, |value, digit| {
        (value * 10 + i64::from(digit - b'0')).min(1_000_000)
    });
    Some(if negative { -value } else { value })
}

fn parse_hex(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let (number, exponent) = match text.iter().position(|byte| matches!(byte, b'p' | b'P')) {
        Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (mut value, mut scale, mut sticky) = (0u128, exponent, false);
    let (mut seen_point, mut any) = (false, false);
    for &byte in number {
        if byte == b'.' && !seen_point {
            seen_point = true;
            continue;
        }
        let digit = (byte as char).to_digit(16)?;
        any = true;
        if value >> 120 == 0 {
            value = value << 4 | u128::from(digit);
            scale -= 4 * i64::from(seen_point);
        } else {
            sticky |= digit != 0;
            scale += 4 * i64::from(!seen_point);
        }
    }
    if !any {
        return None;
    }
    let value = LongDouble::rounded(negative, value, scale.clamp(-40_000, 40_000) as i32, sticky);
    Some(value)
}

/// A natural number of any size, least word first.
#[derive(Clone, Default)]
struct Big {
    words: Vec<u32>,
}

impl Big {
    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.words.is_empty()
    }

    fn bits(&self) -> usize {
        match self.words.last() {
            Some(word) => self.words.len() * 32 - word.leading_zeros() as usize,
            None => 0,
        }
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for word in &mut self.words {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.words.push(carry as u32);
        }
    }

    fn shift_left(&mut self, by: usize) {
        if self.is_zero() {
            return;
        }
        let (whole, bits) = (by / 32, by % 32);
        if bits > 0 {
            let mut carry = 0u32;
            for word in &mut self.words {
                let shifted = (u64::from(*word) << bits) | u64::from(carry);
                *word = shifted as u32;
                carry = (shifted >> 32) as u32;
            }
            if carry > 0 {
                self.words.push(carry);
            }
        }
        self.words.splice(0..0, std::iter::repeat_n(0, whole));
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for word in self.words.iter_mut().rev() {
            let low = *word & 1;
            *word = *word >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    fn at_least(&self, other: &Big) -> bool {
        if self.words.len() != other.words.len() {
            return self.words.len() > other.words.len();
        }
        self.words.iter().rev().ge(other.words.iter().rev())
    }

    /// Subtracts a number that is not larger.
    fn subtract(&mut self, other: &Big) {
        let mut borrow = 0i64;
        for (at, word) in self.words.iter_mut().enumerate() {
            let difference =
                i64::from(*word) - i64::from(other.words.get(at).copied().unwrap_or(0)) - borrow;
            *word = difference as u32;
            borrow = i64::from(difference < 0);
        }
        self.trim();
    }

    fn to_decimal(&self) -> String {
        let mut rest = self.clone();
        let mut groups = Vec::new();
        while !rest.is_zero() {
            let mut remainder = 0u64;
            for word in rest.words.iter_mut().rev() {
                let value = remainder << 32 | u64::from(*word);
                *word = (value / 1_000_000_000) as u32;
                remainder = value % 1_000_000_000;
            }
            rest.trim();
            groups.push(remainder);
        }
        let mut text = groups.pop().unwrap_or(0).to_string();
        for group in groups.into_iter().rev() {
            text.push_str(&format!("{group:09}"));
        }
        text
    }
}

impl From<u128> for Big {
    fn from(value: u128) -> Big {
        let words = (0..4).map(|at| (value >> (32 * at)) as u32).collect();
        let mut big = Big { words };
        big.trim();
        big
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let a = LongDouble::parse(a.as_bytes()).unwrap();
        a.add(LongDouble::parse(b.as_bytes()).unwrap())
            .unwrap()
            .to_text()
    }

    #[test]
    fn sums_are_those_of_long_double() {
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("1", "-1.1"), "-0.1");
        assert_eq!(sum("3", "-3"), "0");
        assert_eq!(sum("9223372036854775807", "1"), "9223372036854775808");
        assert_eq!(sum("0x10", "0"), "16");
        assert_eq!(sum("1e30", "1"), "1000000000000000000024696061952");
    }

    #[test]
    fn what_is_no_float_is_refused() {
        for bad in [
            "", " 1", "1 ", "abc", "nan", "1e", "1e5000", "1e-5000", "0x", ".", "--1",
        ] {
            assert!(LongDouble::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
