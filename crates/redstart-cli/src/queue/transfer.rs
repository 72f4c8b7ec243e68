//! Export and import as JSON lines.

use std::{
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

use redstart::{
    Store,
    messaging::{Enqueued, JobInfo, JobPolicy, JobState, Queue, QueueInspector, UniqueUntil},
};
use serde::Deserialize;
use serde_json::Value;

use super::{OPEN, done, show::job_json};
use crate::Failure;

/// One line for each job that is not over, and for each dead letter.
pub(super) async fn export(store: &Store, look: &QueueInspector) -> Result<(), Failure> {
    let mut clock = Clock::new(store);
    for state in OPEN.into_iter().chain([JobState::Dead]) {
        let mut from = None;
        loop {
            let (jobs, next) = look.list(state, from).await?;
            for job in jobs {
                say!("{}", line(&mut clock, look, &job).await?);
            }
            match next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
    }
    Ok(())
}

/// A job, and how it holds its unique key.
async fn line(
    clock: &mut Clock<'_>,
    look: &QueueInspector,
    job: &JobInfo,
) -> Result<Value, Failure> {
    let mut line = job_json(job);
    line["unique_until"] = match look.unique_until(job).await? {
        None => Value::Null,
        Some(UniqueUntil::Started) => "started".into(),
        Some(UniqueUntil::For(left)) => (clock.now().await? + left).as_secs_f64().into(),
        Some(_) => "done".into(),
    };
    Ok(line)
}

/// The clock of the server, which all times of jobs are of. That of this machine may show another time.
struct Clock<'a> {
    store: &'a Store,
    /// What it showed, and when that was.
    read: Option<(Duration, Instant)>,
}

impl<'a> Clock<'a> {
    fn new(store: &'a Store) -> Self {
        Self { store, read: None }
    }

    async fn now(&mut self) -> Result<Duration, Failure> {
        match self.read {
            Some((time, at)) if at.elapsed() < Duration::from_secs(1) => Ok(time + at.elapsed()),
            _ => {
                let time = self.store.time().await?;
                self.read = Some((time, Instant::now()));
                Ok(time)
            }
        }
    }
}

/// What is left of the time until then, at least a millisecond: zero would be no limit.
fn left(until: f64, now: Duration) -> Duration {
    let until = Duration::try_from_secs_f64(until).unwrap_or_default();
    until.saturating_sub(now).max(Duration::from_millis(1))
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
    policy: Option<JobPolicy>,
    #[serde(default)]
    expires: Option<f64>,
    #[serde(default)]
    unique: Option<String>,
    #[serde(default)]
    unique_until: Option<Held>,
    #[serde(default)]
    group: Option<String>,
}

/// How a unique key is held: until the job is done or started, or until a time.
#[derive(Deserialize)]
#[serde(untagged)]
enum Held {
    Until(String),
    Time(f64),
}

impl Line {
    fn policy(&self, now: Duration) -> JobPolicy {
        let policy = self.policy.clone().unwrap_or_else(|| {
            let policy = JobPolicy::new().priority(self.priority);
            match self.max_attempts {
                Some(attempts) => policy.attempts(attempts),
                None => policy,
            }
        });
        match self.expires {
            // It expires when it would have; a dead letter has all its time again, as if it were retried.
            Some(expires) if self.state != "dead" => policy.expires_after(left(expires, now)),
            _ => policy,
        }
    }

    /// How long the new job holds the unique key; `None` if that time is over.
    fn unique_until(&self, now: Duration) -> Option<UniqueUntil> {
        match &self.unique_until {
            Some(Held::Time(until)) if *until <= now.as_secs_f64() => None,
            Some(Held::Time(until)) => Some(UniqueUntil::For(left(*until, now))),
            Some(Held::Until(until)) if until == "started" => Some(UniqueUntil::Started),
            _ => Some(UniqueUntil::Done),
        }
    }
}

/// Adds a job for each line: with a new id, all its attempts and its options. Delayed jobs keep their time; jobs that ran,
/// waited for children or were dead are ready.
pub(super) async fn import(
    store: &Store,
    queue: &Queue,
    file: &str,
    dry_run: bool,
    json: bool,
) -> Result<(), Failure> {
    let reader: Box<dyn BufRead> = match file {
        "-" => Box::new(std::io::stdin().lock()),
        file => Box::new(BufReader::new(std::fs::File::open(file)?)),
    };
    let mut clock = Clock::new(store);
    let (mut added, mut duplicates, mut expired) = (0, 0, 0);
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
        // In its own queue it would expire when it is due.
        if line.state == "delayed" && line.expires.is_some_and(|expires| expires <= line.due) {
            expired += 1;
            continue;
        }
        if dry_run {
            added += 1;
            continue;
        }
        let (payload, now) = (line.payload.to_string(), clock.now().await?);
        let mut enqueue = queue
            .enqueue_raw(&line.kind, payload.as_bytes())
            .policy(line.policy(now));
        if line.state == "delayed" {
            let due = Duration::try_from_secs_f64(line.due).unwrap_or_default();
            enqueue = enqueue.delay(due.saturating_sub(now));
        }
        if let Some(group) = &line.group {
            enqueue = enqueue.group(group);
        }
        if let (Some(unique), Some(until)) = (&line.unique, line.unique_until(now)) {
            enqueue = enqueue.unique(unique, until);
        }
        match enqueue.await? {
            Enqueued::New(_) => added += 1,
            Enqueued::Duplicate(_) => duplicates += 1,
            Enqueued::Full => return Err(Failure::Other("the queue is full".to_owned())),
        }
    }
    if expired > 0 {
        done(
            "left out because they expire before they are due",
            expired,
            json,
        )?;
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
