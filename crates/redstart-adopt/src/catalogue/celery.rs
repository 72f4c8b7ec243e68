//! Celery on kombu's Redis transport.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<queue>`, and `<queue>` + `\x06\x16` + priority | list | messages: JSON with `body`, `headers`, `properties` |
//! | `_kombu.binding.<exchange>` | set | routing key, pattern and queue, joined by `\x06\x16` |
//! | `unacked`, `unacked_index` | hash, sorted set | messages that workers have taken |
//! | `celery-task-meta-<id>` | string | a result: JSON with `status`, `result`, `task_id` |
//!
//! `\x06\x16` is the default of the transport option `sep`. With `global_keyprefix` all but the results stand behind a prefix.

use std::collections::BTreeMap;

use crate::{
    celery::{BINDING, SEPARATOR, separator_of},
    error::Result,
    found::{Found, KeySet},
    glimpse::json_has,
    library::Library,
    look::Look,
};

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
    for glimpse in look.seen() {
        let name = glimpse.name();
        if let Some((prefix, exchange)) = name.split_once(BINDING) {
            for (queue, separator) in glimpse.members().iter().filter_map(|m| bound(m, exchange)) {
                let evidence = format!("{name} binds the queue in kombu's format");
                let queue = queues.entry(format!("{prefix}{queue}")).or_default();
                queue.evidence.push(evidence);
                queue.prefix = prefix.to_owned();
                queue.separator = Some(separator);
            }
        }
    }
    for glimpse in look.seen() {
        let message = glimpse.first().is_some_and(|first| {
            json_has(first, &["body", "content-type", "headers", "properties"])
                && contains(first, b"\"delivery_info\"")
        });
        if !message {
            continue;
        }
        let name = glimpse.name();
        // A list of a priority belongs to the queue before the separator.
        let known = queues.iter().find_map(|(queue, about)| {
            let rest = name.strip_prefix(queue.as_str())?;
            let step = rest.strip_prefix(about.separator.as_deref()?)?;
            step.parse::<u8>().is_ok().then(|| queue.clone())
        });
        let queue =
            known.unwrap_or_else(|| name.split(SEPARATOR).next().unwrap_or(name).to_owned());
        let evidence = format!("{queue} is a list of kombu's messages");
        queues.entry(queue).or_default().evidence.push(evidence);
    }
    let result = look.seen().find(|glimpse| {
        glimpse.name().contains("celery-task-meta-")
            && glimpse
                .head()
                .is_some_and(|head| json_has(head, &["status", "result", "task_id"]))
    });
    let result = result.map(|glimpse| pattern_of_results(glimpse.name()));
    for (queue, about) in queues {
        let (mut evidence, prefix) = (about.evidence, about.prefix);
        let separator = about.separator.as_deref().unwrap_or(SEPARATOR);
        evidence.sort();
        evidence.dedup();
        let list = look.one(&queue).await?;
        let task = list
            .first()
            .is_some_and(|first| contains(first, b"\"task\""));
        let confidence = match (task, evidence.len()) {
            (true, 2..) => 0.98,
            (true, _) => 0.93,
            (false, _) => 0.88,
        };
        let mut keys = KeySet::default()
            .key(&queue)
            .prefix(format!("{queue}{SEPARATOR}"))
            .prefix(format!("{prefix}{BINDING}"))
            .prefix(format!("{prefix}_kombu.binding_permanent."))
            .key(format!("{prefix}unacked"))
            .key(format!("{prefix}unacked_index"))
            .key(format!("{prefix}unacked_mutex"));
        if separator != SEPARATOR {
            for step in 1..=9 {
                keys = keys.key(format!("{queue}{separator}{step}"));
            }
        }
        if let Some(results) = &result {
            evidence.push(format!("{results} are results of tasks"));
            keys = keys.pattern(results);
        }
        let mut one = Found::new(Library::Celery, &queue, confidence).keys(keys);
        one.evidence = evidence;
        found.push(one);
    }
    Ok(())
}

/// What is known of a queue.
#[derive(Default)]
struct Queue {
    evidence: Vec<String>,
    prefix: String,
    separator: Option<String>,
}

/// The queue of a binding, and the separator of its parts.
fn bound(member: &[u8], exchange: &str) -> Option<(String, String)> {
    let text = std::str::from_utf8(member).ok()?;
    let mut parts = text.split(SEPARATOR);
    let (queue, separator) = match (parts.next(), parts.next(), parts.next()) {
        (Some(_key), Some(_pattern), Some(queue)) => (queue.to_owned(), SEPARATOR.to_owned()),
        // Another separator shows where a queue is bound by its own name.
        _ => (exchange.to_owned(), separator_of(member, exchange)?),
    };
    // Mailboxes of workers come and go with them.
    let mailbox =
        queue.contains(".pidbox") || queue.starts_with("celeryev.") || queue.contains(".reply.");
    (!queue.is_empty() && !mailbox).then_some((queue, separator))
}

fn pattern_of_results(name: &str) -> String {
    let prefix = name.split("celery-task-meta-").next().unwrap_or_default();
    format!("{prefix}celery-task-meta-*")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
