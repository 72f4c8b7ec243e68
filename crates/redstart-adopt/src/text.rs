//! Names from a server, made safe to print.

use std::fmt::Write as _;

/// The longest name that is shown whole.
const LONGEST: usize = 512;

/// A text without characters that could move a cursor, change a colour, break a line or turn text around: they are shown as
/// `\u{…}`. Anyone who can write to a server can choose the names of its keys.
///
/// ```
/// assert_eq!(redstart_adopt::printable("bull:mail"), "bull:mail");
/// assert_eq!(redstart_adopt::printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\u{a}b");
/// ```
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LONGEST));
    for (at, c) in text.chars().enumerate() {
        if at == LONGEST {
            out.push('…');
            break;
        }
        if c.is_control() || is_invisible(c) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that change the direction of text or take no room.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
    )
}

/// A text in which Markdown sees no markup.
pub(crate) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(
            c,
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '#' | '|' | '~' | '!'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A text as code in Markdown: its fence is longer than any that it contains.
pub(crate) fn code(text: &str) -> String {
    let (mut run, mut longest) = (0, 0);
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    match longest {
        0 => format!("{fence}{text}{fence}"),
        _ => format!("{fence} {text} {fence}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_or_a_page_is_left() {
        let name = printable("a\u{1b}]0;x\u{7}\r\n\u{202e}\u{9b}31mb");
        assert_eq!(name, "a\\u{1b}]0;x\\u{7}\\u{d}\\u{a}\\u{202e}\\u{9b}31mb");
        assert!(printable(&"x".repeat(10_000)).chars().count() <= LONGEST + 1);
        assert_eq!(markdown("[a](b) <i>`c`"), "\\[a\\](b) \\<i\\>\\`c\\`");
        assert_eq!(code("bull:mail"), "`bull:mail`");
        assert_eq!(code("a``b"), "``` a``b ```");
    }
}
