//! The same change by the command line.

use crate::{
    call::{Call, Query},
    config::AlgorithmName,
};

/// A word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The `redstart` command for an action. Values are joined to their options by `=`, so that one with a dash in front is
/// not taken for an option.
pub(super) fn command(
    call: &Call,
    namespace: &str,
    action: &str,
    form: &Query,
    job: (&str, &str),
) -> Option<String> {
    let option =
        |option: &str, field: &str| Some(format!("--{option}={}", quoted(form.given(field)?)));
    let (pattern, _) = action.split_once('.')?;
    let name = option("name", if pattern == "queue" { "queue" } else { "name" })?;
    let what = match action {
        "queue.pause" => "pause".to_owned(),
        "queue.resume" => "resume".to_owned(),
        "queue.cancel" => format!("cancel {}", quoted(form.given("job")?)),
        "queue.run-now" => format!("run-now {}", quoted(form.given("job")?)),
        "queue.delete" => format!("delete {}", quoted(form.given("job")?)),
        "queue.add" => format!("add -- {} {}", quoted(job.0), quoted(job.1)),
        "queue.replay" => format!("retry {}", letters(form)?),
        "queue.purge" => format!("purge --yes {}", letters(form)?),
        "lock.force-release" => "force-release --yes".to_owned(),
        "breaker.force-open" => "force-open --for=60".to_owned(),
        "breaker.reset" => "reset".to_owned(),
        "cache.invalidate" => {
            let chosen = option("key", "key").or_else(|| option("tag", "tag"));
            format!("invalidate {}", chosen?)
        }
        "session.revoke" => {
            let (user, handle) = (option("user", "user")?, option("handle", "handle")?);
            format!("revoke {user} {handle}")
        }
        "session.revoke-all" => format!("revoke --all {}", option("user", "user")?),
        "limiter.reset" => {
            let limit = limit(call, form.given("name")?)?;
            format!("reset {limit} -- {}", quoted(form.given("subject")?))
        }
        _ => return None,
    };
    let namespace = quoted(namespace);
    Some(format!(
        "redstart {pattern} --url \"$REDSTART_URL\" --namespace={namespace} {name} {what}"
    ))
}

fn letters(form: &Query) -> Option<String> {
    match (form.given("letter"), form.given("group")) {
        (Some(letter), _) => Some(format!("--letter={}", quoted(letter))),
        (None, group) => Some(format!("--group={}", quoted(group?))),
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
