//! Sidekiq: jobs pushed from Rust, which Ruby runs, and a consumer that runs Ruby's jobs and loses none.
//!
//! Up to version 7 times are seconds with a fraction, from version 8 on milliseconds; [`Times`] chooses.
//!
//! # Limits
//!
//! As with Sidekiq's own client, a Cluster is not supported.
//!
//! Only Ruby knows the options of a class (`sidekiq_options`). `retry` is left out of a job, so that the class decides when its
//! job fails; a job that fails before its class is loaded (the class does not exist, or not yet) is then not retried by
//! Sidekiq, and [`Sidekiq::retry`] is for those who want that. Other options of the class (`backtrace`, `dead`, `retry_queue`, `expires_in`)
//! do not apply to jobs that were pushed from here.

use std::time::Duration;

use redis::cmd;
use redstart::Store;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};

mod consumer;
mod ending;
mod job;
mod promote;
mod recover;

pub use consumer::{SidekiqConsumer, SidekiqConsumerBuilder};
pub use job::{JobFailure, SidekiqJob};

/// As seconds it would be in the year 5138, as milliseconds it is 1973.
const FIRST_MILLIS: f64 = 1e11;

/// How a version of Sidekiq writes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Times {
    /// Seconds with a fraction: up to version 7.
    Seconds,
    /// Milliseconds: from version 8 on.
    Millis,
}

/// Pushes jobs to Sidekiq, and makes [consumers](Sidekiq::consumer) of its queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::sidekiq::{Sidekiq, Times};
///
/// let store = Store::connect("memory://").await?;
/// let sidekiq = Sidekiq::new(&store, Times::Seconds);
/// let jid = sidekiq.push("default", "Charge", &(17, "eur")).await?;
/// assert_eq!(jid.len(), 24);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Sidekiq {
    store: Store,
    /// None if the version is not known: then as the job itself has them.
    times: Option<Times>,
    /// With its colon, or empty.
    namespace: String,
    retry: Option<u32>,
}

impl Sidekiq {
    /// For the Sidekiq on this store. Which times it writes follows from its version, which recognition tells.
    pub fn new(store: &Store, times: Times) -> Self {
        Self {
            store: store.clone(),
            times: Some(times),
            namespace: String::new(),
            retry: None,
        }
    }

    /// For what is done to jobs that are there already: times are written as the job has them.
    pub(crate) fn of_any_version(store: &Store) -> Self {
        Self {
            times: None,
            ..Self::new(store, Times::Seconds)
        }
    }

    /// For a Sidekiq that uses redis-namespace (up to version 6): its keys begin with this and a colon. Recognition shows it in the
    /// names of queues: `app:queue:default` is the queue `default` in the namespace `app`.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = match namespace {
            "" => String::new(),
            namespace => format!("{namespace}:"),
        };
        self
    }

    /// How often a job is retried after it failed, whatever its class says; 0 sends it to the dead jobs at once (default what
    /// the class says).
    #[must_use]
    pub fn retry(mut self, times: u32) -> Self {
        self.retry = Some(times);
        self
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.namespace)
    }

    /// Pushes a job: `class` is run with `args`, which must become a JSON array. Returns its id.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty queue or class, the key of a queue instead of its name, or arguments that
    /// are no array; otherwise those of the store. After [`is_in_doubt`](redstart::Error::is_in_doubt) the job may have been pushed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the job may have been pushed.
    pub async fn push(&self, queue: &str, class: &str, args: &impl Serialize) -> Result<String> {
        let (jid, mut job) = self.job(queue, class, args).await?;
        job["enqueued_at"] = job["created_at"].clone();
        // The queue is listed before it has a job, so that no job is invisible.
        let _: u64 = self
            .store
            .query(cmd("SADD").arg(self.key("queues")).arg(queue))
            .await?;
        let key = self.key(&format!("queue:{queue}"));
        let _: u64 = self
            .store
            .query(cmd("LPUSH").arg(key).arg(job.to_string()))
            .await?;
        Ok(jid)
    }

    /// Pushes a job that is not run before this time has passed.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    ///
    /// # Cancel safety
    ///
    /// As [`push`](Self::push).
    pub async fn push_in(
        &self,
        delay: Duration,
        queue: &str,
        class: &str,
        args: &impl Serialize,
    ) -> Result<String> {
        let (jid, job) = self.job(queue, class, args).await?;
        let at = self.store.time().await? + delay;
        let add = cmd("ZADD")
            .arg(self.key("schedule"))
            .arg(at.as_secs_f64())
            .arg(job.to_string())
            .take();
        let _: u64 = self.store.query(&add).await?;
        Ok(jid)
    }

    async fn job(
        &self,
        queue: &str,
        class: &str,
        args: &impl Serialize,
    ) -> Result<(String, Value)> {
        if class.is_empty() {
            return Err(Error::invalid("a job of Sidekiq needs a class"));
        }
        check_queue(queue)?;
        let args = serde_json::to_value(args).ok().filter(Value::is_array);
        let args = args.ok_or_else(|| {
            Error::invalid("the arguments of a job of Sidekiq must be a JSON array")
        })?;
        let jid = format!("{:024x}", rand::random::<u128>() >> 32);
        let now = self.store.time().await?;
        let at = self.stamp(now, None);
        let mut job = json!({
            "class": class, "args": args, "queue": queue, "jid": jid, "created_at": at,
        });
        if let Some(times) = self.retry {
            job["retry"] = json!(times);
        }
        Ok((jid, job))
    }

    /// A time as this version writes it, or as a job was written that was created at this time.
    fn stamp(&self, at: Duration, created: Option<f64>) -> Value {
        let of_job = match created {
            Some(created) if created >= FIRST_MILLIS => Times::Millis,
            _ => Times::Seconds,
        };
        match self.times.unwrap_or(of_job) {
            Times::Seconds => json!(at.as_secs_f64()),
            Times::Millis => json!(at.as_millis() as u64),
        }
    }
}

/// What stands before `queue:` in the key of a queue, with its colon, where redis-namespace is used, and the name of the queue.
pub(crate) fn parts_of(key: &str) -> Option<(&str, &str)> {
    const QUEUE: &str = "queue:";
    match key.rfind(":queue:") {
        Some(at) => Some((&key[..=at], &key[at + 1 + QUEUE.len()..])),
        None => Some(("", key.strip_prefix(QUEUE)?)),
    }
}

fn check_queue(queue: &str) -> Result<()> {
    if queue.is_empty() {
        return Err(Error::invalid("a queue of Sidekiq needs a name"));
    }
    if queue.starts_with("queue:") || queue.contains(":queue:") {
        return Err(Error::invalid(
            "a queue of Sidekiq is named without `queue:`; what stands before it is the namespace",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_queue_tells_its_namespace_and_its_name() {
        assert_eq!(parts_of("queue:default"), Some(("", "default")));
        assert_eq!(parts_of("app:queue:default"), Some(("app:", "default")));
        let odd = parts_of("jobqueue:queue:default");
        assert_eq!(odd, Some(("jobqueue:", "default")));
        assert_eq!(parts_of("queue:mail:queue"), Some(("", "mail:queue")));
        assert_eq!(parts_of("a:b:queue:c"), Some(("a:b:", "c")));
        assert_eq!(parts_of("jobqueue:default"), None);
    }
}
