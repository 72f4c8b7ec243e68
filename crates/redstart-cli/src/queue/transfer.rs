//! Export and import as JSON lines.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use redstart::{
    Store,
    messaging::{Enqueued, JobInfo, JobPolicy, JobState, Queue, QueueInspector, UniqueUntil},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, value::RawValue};

use super::{
    done,
    show::{JobLine, job_line},
};
use crate::Failure;

/// Along the way of a job: one that moves on while the states are listed comes later in the list.
const ALONG: [JobState; 6] = [
    JobState::Waiting,
    JobState::Parked,
    JobState::Delayed,
    JobState::Ready,
    JobState::Running,
    JobState::Dead,
];

/// How often the states are listed at most: a queue in which jobs go round faster than they are listed has no picture.
const ROUNDS: usize = 10;

/// One line for each job that is not over, and for each dead letter.
pub(super) async fn export(store: &Store, look: &QueueInspector) -> Result<(), Failure> {
    let is_whole = write_all(store, look, crate::output::whole).await?;
    if !is_whole {
        anstream::eprintln!(
            "redstart: the queue moves faster than it is read, so jobs may be missing: pause it, and export it again"
        );
        return Err(Failure::Claim);
    }
    Ok(())
}

/// Gives the lines to `write`, page by page. A job that goes back, such as one that fails and waits for its next attempt, may
/// be in none of the states when they are listed: they are listed again until there is nothing new. `false` if there still was.
async fn write_all(
    store: &Store,
    look: &QueueInspector,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<bool, Failure> {
    let mut clock = Clock::new(store);
    let began = clock.now().await?;
    let mut seen = HashSet::new();
    for _ in 0..ROUNDS {
        let mut is_new = false;
        for state in ALONG {
            let mut from = None;
            loop {
                let (jobs, next) = look.list(state, from).await?;
                let mut lines = Vec::new();
                for job in jobs.iter().filter(|job| seen.insert(job.id)) {
                    // What was added since is no sign that something was missed.
                    is_new |= job.created <= began;
                    let line = line(&mut clock, look, job).await?;
                    lines.extend_from_slice(format!("{line}\n").as_bytes());
                }
                write(&lines)?;
                match next {
                    Some(next) => from = Some(next),
                    None => break,
                }
            }
        }
        if !is_new {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A job, and how it holds its unique key.
async fn line<'a>(
    clock: &mut Clock<'_>,
    look: &QueueInspector,
    job: &'a JobInfo,
) -> Result<JobLine<'a>, Failure> {
    let mut line = job_line(job);
    let until = match look.unique_until(job).await? {
        None => Value::Null,
        Some(UniqueUntil::Started) => "started".into(),
        Some(UniqueUntil::For(left)) => (clock.now().await? + left).as_secs_f64().into(),
        Some(_) => "done".into(),
    };
    line.fields.insert("unique_until".to_owned(), until);
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
    /// JSON, as it is in the line.
    #[serde(default, deserialize_with = "as_it_is")]
    payload: Option<Box<RawValue>>,
    /// What is not JSON.
    #[serde(default)]
    payload_base64: Option<String>,
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

/// A payload may be `null`, which is not the same as none.
fn as_it_is<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(input).map(Some)
}

/// How a unique key is held: until the job is done or started, or until a time.
#[derive(Deserialize)]
#[serde(untagged)]
enum Held {
    Until(String),
    Time(f64),
}

impl Line {
    /// The payload, byte by byte; `None` unless it is there once.
    fn payload(&self) -> Option<Vec<u8>> {
        match (&self.payload, &self.payload_base64) {
            (Some(json), None) => Some(json.get().as_bytes().to_vec()),
            (None, Some(text)) => STANDARD.decode(text).ok(),
            _ => None,
        }
    }

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
        let line: Option<Line> = serde_json::from_str(&line).ok();
        let payload = line.as_ref().and_then(Line::payload);
        let (Some(line), Some(payload)) = (line, payload) else {
            return Err(Failure::Usage(format!(
                "line {} is not a job as `export` writes it",
                number + 1
            )));
        };
        // In its own queue it would expire when it is due.
        if line.state == "delayed" && line.expires.is_some_and(|expires| expires <= line.due) {
            expired += 1;
            continue;
        }
        if dry_run {
            added += 1;
            continue;
        }
        let now = clock.now().await?;
        let mut enqueue = queue
            .enqueue_raw(&line.kind, &payload)
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

#[cfg(test)]
mod tests {
    use super::*;
    use redstart::messaging::{Job, JobContext, Verdict};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Mail(u64);

    impl Job for Mail {
        const NAME: &'static str = "mail";
    }

    /// A delayed job becomes ready and a dead one is retried between two pages, whichever these are.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_export_has_each_job_once_however_they_move() -> anyhow::Result<()> {
        let store = Store::connect("memory://").await?;
        for page in 0..ALONG.len() {
            let queue = Queue::new(&store, "shop", &format!("mail{page}"))?;
            let look = queue.inspect();
            let handler = |_: Mail, _: JobContext| async { Verdict::dead("no such address") };
            let worker = queue.worker(handler).start().await?;
            let dead = queue.enqueue(&Mail(1)).await?;
            let died = async || look.counts().await.is_ok_and(|counts| counts.dead == 1);
            let ends = tokio::time::Instant::now() + Duration::from_secs(60);
            while !died().await {
                anyhow::ensure!(tokio::time::Instant::now() < ends, "it does not die");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            worker.shutdown(Duration::from_secs(5)).await?;
            let hour = Duration::from_secs(3600);
            let delayed = queue.enqueue(&Mail(2)).delay(hour).await?;
            let both = [dead.id(), delayed.id()].map(|id| id.map(|id| id.to_string()));
            let (mut written, mut pages) = (Vec::new(), 0);
            let moves = async || -> redstart::Result<()> {
                if let Some(id) = delayed.id() {
                    look.run_now(id).await?;
                }
                look.dead_letters().replay(|_| true).await?;
                Ok(())
            };
            let write = |lines: &[u8]| {
                written.extend_from_slice(lines);
                pages += 1;
                if pages == page + 1 {
                    let moved = tokio::task::block_in_place(|| {
                        tokio::runtime::Handle::current().block_on(moves())
                    });
                    moved.map_err(std::io::Error::other)?;
                }
                Ok(())
            };
            let is_whole = write_all(&store, &look, write).await;
            anyhow::ensure!(matches!(is_whole, Ok(true)), "{is_whole:?}");
            let mut found = Vec::new();
            for line in String::from_utf8(written)?.lines() {
                let line: Value = serde_json::from_str(line)?;
                found.push(line["id"].as_str().map(str::to_owned));
            }
            found.sort();
            let mut both = both.to_vec();
            both.sort();
            assert_eq!(found, both, "moved after page {page}");
        }
        Ok(())
    }
}
