//! Export and import as JSON lines.

use std::{
    io::{BufRead, BufReader},
    time::{Duration, SystemTime},
};

use redstart::messaging::{Enqueued, JobPolicy, JobState, Queue, QueueInspector, UniqueUntil};
use serde::Deserialize;
use serde_json::Value;

use super::{OPEN, done, show::job_json};
use crate::Failure;

/// One line for each job that is not over, and for each dead letter.
pub(super) async fn export(look: &QueueInspector) -> Result<(), Failure> {
    for state in OPEN.into_iter().chain([JobState::Dead]) {
        let mut from = None;
        loop {
            let (jobs, next) = look.list(state, from).await?;
            for job in jobs {
                say!("{}", job_json(&job));
            }
            match next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
    }
    Ok(())
}

/// What is read of a line; the rest belongs to the queue that it comes from.
#[derive(Deserialize)]
struct Line {
    kind: String,
    payload: Value,
    #[serde(default)]
    state: String,
    #[serde(default)]
    due: f64,
    #[serde(default)]
    priority: i16,
    #[serde(default)]
    max_attempts: Option<u16>,
    #[serde(default)]
    unique: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

/// Adds a job for each line: with a new id, and all its attempts. Delayed jobs keep their time; jobs that ran, waited for
/// children or were dead are ready.
pub(super) async fn import(
    queue: &Queue,
    file: &str,
    dry_run: bool,
    json: bool,
) -> Result<(), Failure> {
    let reader: Box<dyn BufRead> = match file {
        "-" => Box::new(std::io::stdin().lock()),
        file => Box::new(BufReader::new(std::fs::File::open(file)?)),
    };
    let (mut added, mut duplicates) = (0, 0);
    for (number, line) in reader.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line).map_err(|_| {
            Failure::Usage(format!(
                "line {} is not a job as `export` writes it",
                number + 1
            ))
        })?;
        if dry_run {
            added += 1;
            continue;
        }
        let mut policy = JobPolicy::new().priority(line.priority);
        if let Some(attempts) = line.max_attempts {
            policy = policy.attempts(attempts);
        }
        let payload = line.payload.to_string();
        let mut enqueue = queue
            .enqueue_raw(&line.kind, payload.as_bytes())
            .policy(policy);
        if line.state == "delayed" {
            let due = Duration::try_from_secs_f64(line.due).unwrap_or_default();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            enqueue = enqueue.delay(due.saturating_sub(now.unwrap_or_default()));
        }
        if let Some(group) = &line.group {
            enqueue = enqueue.group(group);
        }
        if let Some(unique) = &line.unique {
            enqueue = enqueue.unique(unique, UniqueUntil::Done);
        }
        match enqueue.await? {
            Enqueued::New(_) => added += 1,
            Enqueued::Duplicate(_) => duplicates += 1,
            Enqueued::Full => return Err(Failure::Other("the queue is full".to_owned())),
        }
    }
    if duplicates > 0 {
        done(
            "left out because their unique key is held",
            duplicates,
            json,
        )?;
    }
    done(if dry_run { "would add" } else { "added" }, added, json)
}
