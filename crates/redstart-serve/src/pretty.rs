//! JSON for people: indented, with every number exactly as it was sent, and without what must not be shown.

/// Indents JSON text and hides the values of fields with these names, in any case. Text that is no JSON is returned as it is.
///
/// One loop over the characters with one arm per token: the arms share all of the state.
pub(crate) fn pretty(text: &str, hidden: &[String]) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut chars = text.char_indices().peekable();
    // The last string that was read, which may be a field's name.
    let mut name: Option<String> = None;
    let mut hide = false;
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let mut end = text.len();
                let mut escaped = false;
                for (next, c) in chars.by_ref() {
                    match c {
                        '\\' if !escaped => escaped = true,
                        '"' if !escaped => {
                            end = next + 1;
                            break;
                        }
                        _ => escaped = false,
                    }
                }
                let string = &text[at..end];
                if hide {
                    out.push_str("\"•••\"");
                    hide = false;
                } else {
                    out.push_str(string);
                }
                // A name may be written with escapes.
                name = serde_json::from_str(string).ok();
            }
            '{' | '[' => {
                if hide {
                    hide = false;
                    out.push_str("\"•••\"");
                    skip(&mut chars, c);
                    continue;
                }
                out.push(c);
                let closing = if c == '{' { '}' } else { ']' };
                while chars.peek().is_some_and(|(_, c)| c.is_whitespace()) {
                    chars.next();
                }
                if chars.peek().is_some_and(|(_, next)| *next == closing) {
                    chars.next();
                    out.push(closing);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
                name = None;
            }
            ':' => {
                out.push_str(": ");
                hide = name
                    .take()
                    .is_some_and(|name| hidden.iter().any(|h| name.eq_ignore_ascii_case(h)));
            }
            c if c.is_whitespace() => {}
            c => {
                let mut end = at + c.len_utf8();
                while let Some((next, c)) = chars.peek().copied() {
                    if ",]}".contains(c) || c.is_whitespace() {
                        break;
                    }
                    end = next + c.len_utf8();
                    chars.next();
                }
                if hide {
                    out.push_str("\"•••\"");
                    hide = false;
                } else {
                    out.push_str(&text[at..end]);
                }
            }
        }
    }
    out
}

/// Skips the rest of an object or array.
fn skip(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>, open: char) {
    let close = if open == '{' { '}' } else { ']' };
    let (mut depth, mut within, mut escaped) = (1, false, false);
    for (_, c) in chars.by_ref() {
        match c {
            _ if escaped => escaped = false,
            '\\' if within => escaped = true,
            '"' => within = !within,
            c if !within && c == open => depth += 1,
            c if !within && c == close => {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
            _ => {}
        }
    }
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth.min(40)));
}

/// The same on one line.
pub(crate) fn redacted(text: &str, hidden: &[String]) -> String {
    pretty(text, hidden).lines().map(str::trim_start).collect()
}

/// One line of it, cut after this many characters.
pub(crate) fn brief(text: &str, hidden: &[String], most: usize) -> String {
    let whole: String = pretty(text, hidden)
        .lines()
        .map(str::trim_start)
        .collect::<Vec<_>>()
        .join(" ");
    if whole.chars().count() <= most {
        return whole;
    }
    whole.chars().take(most).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_and_hidden_fields_are_not_shown() {
        let hidden = ["password".to_owned(), "card".to_owned()];
        let text = r#"{"n":9007199254740993.10,"Password":"x\"y","c\u0061rd":{"no":[1,"}"]},"list":[],"deep":{"card":12}}"#;
        let shown = pretty(text, &hidden);
        assert!(shown.contains("9007199254740993.10"), "{shown}");
        assert!(
            !shown.contains("x\\\"y") && !shown.contains("no") && !shown.contains("12"),
            "{shown}"
        );
        assert_eq!(shown.matches("•••").count(), 3, "{shown}");
        assert!(shown.contains("\"list\": []"), "{shown}");
        let line = redacted(text, &hidden);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["deep"]["card"], line.lines().count()),
            (&"•••".into(), 1)
        );
    }

    #[test]
    fn whatever_it_is_given_it_ends() {
        for text in [
            "",
            "\"",
            "{",
            "}",
            "[[[[",
            "{\"a\":",
            "\\",
            "{\"card\":{\"a\"",
            "🦊",
            "\"\\",
        ] {
            let _ = pretty(text, &["card".to_owned()]);
        }
    }
}
