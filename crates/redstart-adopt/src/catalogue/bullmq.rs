//! BullMQ: `bull:<queue>:<part>`, where `bull` can be another prefix.
//!
//! | key | type | content |
//! |---|---|---|
//! | `meta` | hash | `version` = `bullmq:<version>`, `opts.maxLenEvents`, `paused`, `concurrency` |
//! | `<id>` | hash | `name`, `data`, `opts`, `timestamp`, `delay`, `priority`; later `ats`, `atm`, `returnvalue` … |
//! | `wait` `active` `paused` | list | ids |
//! | `delayed` `prioritized` `completed` `failed` `waiting-children` | sorted set | ids |
//! | `events` | stream | `event`, `jobId` … |
//! | `id` | string | the last id |
//! | `repeat` | sorted set | schedulers, by the time of their next job |

use std::collections::BTreeSet;

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

/// The fields that each job of Bull and BullMQ has.
pub(super) const JOB: &[&str] = &["name", "data", "opts", "timestamp"];

/// Endings that both libraries use.
const PARTS: &[&str] = &[
    "meta",
    "wait",
    "active",
    "paused",
    "delayed",
    "prioritized",
    "completed",
    "failed",
    "waiting-children",
    "events",
    "id",
    "marker",
    "stalled-check",
    "stalled",
    "pc",
    "repeat",
];

/// More queues than this are not looked at.
const QUEUES: usize = 80;

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    for base in bases(look) {
        let parts = ["meta", "events", "id", "repeat"];
        let parts = parts.map(|part| format!("{base}:{part}").into_bytes());
        let seen = look.at(parts.to_vec()).await?;
        let [meta, events, id, repeat] = &seen[..] else {
            continue;
        };
        let keys = KeySet::default().prefix(format!("{base}:"));
        let declared = meta.field("version").and_then(|text| text.split_once(':'));
        if let Some((family @ ("bullmq" | "bullmq-pro"), version)) = declared {
            found.push(
                Found::new(Library::BullMq, &base, 0.99)
                    .version(Some(version.to_owned()))
                    .because(format!("{base}:meta says {family}"))
                    .schedulers(repeat.len())
                    .keys(keys),
            );
            continue;
        }
        // Before 5.9 or so nothing was declared.
        let streams = events.entry_has("event") && events.entry_has("jobId");
        let job = a_job(look, &base).await?;
        if let (true, Some(job)) = (streams, &job) {
            let both = meta.has_fields(&["opts.maxLenEvents"]) && id.is_count();
            found.push(
                Found::new(Library::BullMq, &base, if both { 0.95 } else { 0.85 })
                    .because(format!("{base}:events is a stream of events with job ids"))
                    .because(format!("{} has the fields of a job", job.name()))
                    .schedulers(repeat.len())
                    .keys(keys),
            );
        }
    }
    Ok(())
}

/// What could be queues: names of sampled keys without their last part, and jobs without their id.
pub(super) fn bases(look: &Look<'_>) -> BTreeSet<String> {
    let mut bases = BTreeSet::new();
    for key in &look.keys {
        if let Some((base, part)) = split(key)
            && PARTS.contains(&part)
        {
            bases.insert(base.to_owned());
        }
    }
    for glimpse in look.seen() {
        if glimpse.has_fields(JOB)
            && let Some((base, _)) = split(&glimpse.key)
        {
            bases.insert(base.to_owned());
        }
    }
    bases.into_iter().take(QUEUES).collect()
}

fn split(key: &[u8]) -> Option<(&str, &str)> {
    let (base, part) = std::str::from_utf8(key).ok()?.rsplit_once(':')?;
    (!base.is_empty() && !part.is_empty()).then_some((base, part))
}

/// A job of this queue: one that was sampled, or one whose id stands in a list of the queue.
pub(super) async fn a_job(look: &mut Look<'_>, base: &str) -> Result<Option<Glimpse>> {
    let prefix = format!("{base}:");
    let is_job = |glimpse: &Glimpse| {
        glimpse.has_fields(JOB) && glimpse.field("timestamp").is_some_and(is_millis)
    };
    let sampled = look
        .seen()
        .find(|glimpse| glimpse.key.starts_with(prefix.as_bytes()) && is_job(glimpse));
    if let Some(job) = sampled {
        return Ok(Some(job.clone()));
    }
    for part in ["wait", "completed", "failed", "delayed", "active"] {
        let ids = look.one(format!("{base}:{part}")).await?;
        let Some(id) = ids.first() else { continue };
        let job = look.one([prefix.as_bytes(), id].concat()).await?;
        if is_job(&job) {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// Milliseconds since 1970 in this century.
pub(super) fn is_millis(text: &str) -> bool {
    text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit())
}
