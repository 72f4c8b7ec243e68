//! asynq: `asynq:queues`, `asynq:{<queue>}:pending` and its relatives, `asynq:{<queue>}:t:<id>` (a hash with `msg` and `state`).

use std::collections::BTreeSet;

use crate::{
    error::Result,
    found::{Found, KeySet},
    glimpse::Glimpse,
    library::Library,
    look::Look,
};

const STATES: &[&str] = &[
    "active",
    "pending",
    "scheduled",
    "retry",
    "archived",
    "completed",
    "aggregating",
];

pub(super) async fn find(look: &mut Look<'_>, found: &mut Vec<Found>) -> Result<()> {
    let is_task = |glimpse: &Glimpse| {
        glimpse.has_fields(&["msg", "state"])
            && glimpse
                .field("state")
                .is_some_and(|state| STATES.contains(&state))
    };
    let queues = look.one("asynq:queues").await?;
    let mut names: BTreeSet<String> = queues
        .members()
        .iter()
        .filter_map(|name| String::from_utf8(name.clone()).ok())
        .collect();
    let sampled = look
        .keys
        .iter()
        .filter_map(|key| std::str::from_utf8(key).ok());
    names.extend(sampled.filter_map(|key| {
        let (name, _) = key.strip_prefix("asynq:{")?.split_once('}')?;
        Some(name.to_owned())
    }));
    for name in names.into_iter().take(50) {
        let prefix = format!("asynq:{{{name}}}:");
        let sampled = look
            .seen()
            .find(|glimpse| glimpse.key.starts_with(prefix.as_bytes()) && is_task(glimpse))
            .cloned();
        let task = match sampled {
            Some(task) => Some(task),
            None => {
                let pending = look.one(format!("{prefix}pending")).await?;
                let Some(id) = pending.first() else { continue };
                let task = look.one([prefix.as_bytes(), b"t:", id].concat()).await?;
                Some(task).filter(is_task)
            }
        };
        if let Some(task) = task {
            let subject = prefix.trim_end_matches(':');
            found.push(
                Found::new(Library::Asynq, subject, 0.96)
                    .because(format!("{} has msg and a state", task.name()))
                    .keys(KeySet::default().prefix("asynq:")),
            );
        }
    }
    Ok(())
}
