//! Names from a server, made safe to print.

use std::fmt::Write as _;

/// The longest name that a report shows.
const LONGEST: usize = 120;

/// A name without bytes that could move a cursor, change a colour, break a line or turn text around, as far as a report shows it.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut out = clean(bytes, LONGEST);
    if out.chars().count() > LONGEST {
        out = out.chars().take(LONGEST - 1).chain(['…']).collect();
    }
    out
}

/// A text without such bytes, and a little more of it than this.
pub(crate) fn clean(bytes: &[u8], most: usize) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() || is_invisible(c) => {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
        if out.len() > most {
            break;
        }
    }
    out
}

/// Characters that change the direction of text or take no room.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{2028}' | '\u{2029}')
}

/// A count with separators: `1,234,567`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A size in bytes, for people.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MB", n as f64 / 1_048_576.0),
        _ => format!("{:.1} GB", n as f64 / 1_073_741_824.0),
    }
}

/// A time in seconds, for people.
pub(crate) fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_cannot_leave_its_line_or_colour_the_terminal() {
        let name = printable(b"a\x1b[31m\r\nb\xff\\\xe2\x80\xae");
        assert_eq!(name, "a\\u{1b}[31m\\r\\nb\\xff\\\\\\u{202e}");
        assert!(printable(&[b'x'; 10_000]).chars().count() <= LONGEST);
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        assert_eq!(bytes(12 * 1024), "12.0 KB");
        assert_eq!(time(10_000), "2 hours");
    }
}
