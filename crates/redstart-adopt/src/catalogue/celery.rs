//! Celery on kombu's Redis transport.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<queue>`, and `<queue>` + `\x06\x16` + priority | list | messages: JSON with `body`, `headers`, `properties` |
//! | `_kombu.binding.<exchange>` | set | routing key, pattern and queue, joined by `\x06\x16` |
//! | `unacked`, `unacked_index` | hash, sorted set | messages that workers have taken |
//! | `celery-task-meta-<id>` | string | a result: JSON with `status`, `result`, `task_id` |

use std::collections::BTreeMap;

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::json_has,
    library::Library,
    look::Look,
};

/// Between the parts of a binding, and before a priority.
const SEPARATOR: &str = "\u{6}\u{16}";

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    let mut queues: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for glimpse in look.seen() {
        let name = glimpse.name();
        if name.contains("_kombu.binding.") {
            for queue in glimpse.members().iter().filter_map(|member| bound(member)) {
                let evidence = format!("{name} binds the queue in kombu's format");
                queues.entry(queue).or_default().push(evidence);
            }
        }
        let message = glimpse.first().is_some_and(|first| {
            json_has(first, &["body", "content-type", "headers", "properties"])
                && contains(first, b"\"delivery_info\"")
        });
        if message {
            let queue = name.split(SEPARATOR).next().unwrap_or(name);
            let evidence = format!("{queue} is a list of kombu's messages");
            queues.entry(queue.to_owned()).or_default().push(evidence);
        }
    }
    let result = look.seen().find(|glimpse| {
        glimpse.name().contains("celery-task-meta-")
            && glimpse
                .head()
                .is_some_and(|head| json_has(head, &["status", "result", "task_id"]))
    });
    let result = result.map(|glimpse| pattern_of_results(glimpse.name()));
    for (queue, mut evidence) in queues {
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
            .prefix("_kombu.binding.")
            .prefix("_kombu.binding_permanent.")
            .key("unacked")
            .key("unacked_index")
            .key("unacked_mutex");
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

/// The queue of a binding.
fn bound(member: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(member).ok()?;
    let mut parts = text.split(SEPARATOR);
    let (_key, _pattern, queue) = (parts.next()?, parts.next()?, parts.next()?);
    // Mailboxes of workers come and go with them.
    let mailbox =
        queue.contains(".pidbox") || queue.starts_with("celeryev.") || queue.contains(".reply.");
    (!queue.is_empty() && !mailbox).then(|| queue.to_owned())
}

fn pattern_of_results(name: &str) -> String {
    let prefix = name.split("celery-task-meta-").next().unwrap_or_default();
    format!("{prefix}celery-task-meta-*")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
