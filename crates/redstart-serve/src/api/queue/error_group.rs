//! Errors that are the same but for their details.

/// An error without what differs from one occurrence to the next: numbers, ids and quoted text.
pub(crate) fn group_of(error: &str) -> String {
    let mut out = String::new();
    let mut rest = error;
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        if let Some(quoted) = quoted(rest) {
            out.push_str("\"…\"");
            rest = &rest[quoted..];
        } else if word(c) {
            let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
            let digits = rest[..end].chars().filter(char::is_ascii_digit).count();
            match digits {
                0 => out.push_str(&rest[..end]),
                _ => out.push('#'),
            }
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        if out.len() > 300 {
            break;
        }
    }
    out
}

/// How long the quoted text is that begins here.
fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| "\"'`".contains(*c))?;
    let end = text[1..].find(quote)?;
    (end > 0).then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_details_are_one_group() {
        let same = [
            "timeout after 3012 ms for user 'ann' (job 0193af)",
            "timeout after 17 ms for user \"bob\" (job 77)",
        ];
        assert_eq!(group_of(same[0]), group_of(same[1]));
        assert_eq!(
            group_of(same[0]),
            "timeout after # ms for user \"…\" (job #)"
        );
        assert_ne!(group_of("connection refused"), group_of("connection reset"));
        for odd in ["", "'", "''", "é'é", "\"🦊"] {
            let _ = group_of(odd);
        }
    }
}
