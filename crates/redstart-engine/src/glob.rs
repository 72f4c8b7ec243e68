//! Redis's glob patterns (KEYS, SCAN, PSUBSCRIBE, CONFIG GET).

/// Whether `text` matches `pattern`: `*`, `?`, `[a-c]`, `[^x]` and `\` escapes, byte-wise.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_case(pattern, text, false)
}

/// As [`matches()`], ignoring ASCII case if asked to.
pub(crate) fn matches_case(mut pattern: &[u8], mut text: &[u8], ignore_case: bool) -> bool {
    let fold = |byte: u8| {
        if ignore_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    };
    // Where to go back to when what follows the last star does not match: linear in practice and
    // at worst quadratic, where trying every split at every star would be exponential.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match pattern {
            [] => text.is_empty().then_some((pattern, text)),
            [b'*', rest @ ..] => {
                if rest.is_empty() {
                    return true;
                }
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            _ if text.is_empty() => return pattern.iter().all(|&byte| byte == b'*'),
            [b'?', rest @ ..] => Some((rest, &text[1..])),
            [b'[', rest @ ..] => {
                let (hit, rest) = class(rest, text[0], fold);
                hit.then_some((rest, &text[1..]))
            }
            [b'\\', literal, rest @ ..] => {
                (fold(*literal) == fold(text[0])).then_some((rest, &text[1..]))
            }
            [literal, rest @ ..] => (fold(*literal) == fold(text[0])).then_some((rest, &text[1..])),
        };
        match step {
            Some(([], [])) => return true,
            Some((rest, left)) => (pattern, text) = (rest, left),
            None => match retry {
                Some((rest, [_, left @ ..])) => {
                    retry = Some((rest, left));
                    (pattern, text) = (rest, left);
                }
                _ => return false,
            },
        }
    }
}

/// Matches one byte against a class, `pattern` being what follows the `[`.
fn class(mut pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> (bool, &[u8]) {
    let negated = pattern.first() == Some(&b'^');
    if negated {
        pattern = &pattern[1..];
    }
    let byte = fold(byte);
    let mut hit = false;
    loop {
        match pattern {
            // An open class ends with the pattern.
            [] => return (hit != negated, pattern),
            [b'\\', literal, rest @ ..] => {
                hit |= fold(*literal) == byte;
                pattern = rest;
            }
            [b']', rest @ ..] => return (hit != negated, rest),
            [from, b'-', to, rest @ ..] => {
                let (from, to) = (fold(*from.min(to)), fold(*from.max(to)));
                hit |= (from..=to).contains(&byte);
                pattern = rest;
            }
            [literal, rest @ ..] => {
                hit |= fold(*literal) == byte;
                pattern = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("*", "", true),
            ("", "", true),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxx", false),
            ("[", "[", false),
            ("a**", "a", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }
}
