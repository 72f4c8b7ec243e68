//! Sidekiq: jobs pushed from Rust, which Ruby runs.
//!
//! Up to version 7 times are seconds with a fraction, from version 8 on milliseconds; [`Times`] chooses.
//!
//! # Limits
//!
//! Only pushing: Ruby runs the jobs. As with Sidekiq's own client, a Cluster is not supported.

use std::time::Duration;

use redis::cmd;
use redstart::Store;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// How a version of Sidekiq writes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Times {
    /// Seconds with a fraction: up to version 7.
    Seconds,
    /// Milliseconds: from version 8 on.
    Millis,
}

/// Pushes jobs to Sidekiq.
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
    times: Times,
}

impl Sidekiq {
    /// For the Sidekiq on this store. Which times it writes follows from its version, which recognition tells.
    pub fn new(store: &Store, times: Times) -> Self {
        Self {
            store: store.clone(),
            times,
        }
    }

    /// Pushes a job: `class` is run with `args`, which must become a JSON array. Returns its id.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an empty queue or class, or arguments that are no array; otherwise those of the
    /// store. After [`is_in_doubt`](redstart::Error::is_in_doubt) the job may have been pushed.
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
            .query(cmd("SADD").arg("queues").arg(queue))
            .await?;
        let key = format!("queue:{queue}");
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
            .arg("schedule")
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
        if queue.is_empty() || class.is_empty() {
            return Err(Error::invalid("a job of Sidekiq needs a queue and a class"));
        }
        let args = serde_json::to_value(args).ok().filter(Value::is_array);
        let args = args.ok_or_else(|| {
            Error::invalid("the arguments of a job of Sidekiq must be a JSON array")
        })?;
        let jid = format!("{:024x}", rand::random::<u128>() >> 32);
        let now = self.store.time().await?;
        let at = match self.times {
            Times::Seconds => json!(now.as_secs_f64()),
            Times::Millis => json!(now.as_millis() as u64),
        };
        let job = json!({
            "class": class, "args": args, "retry": true, "queue": queue, "jid": jid, "created_at": at,
        });
        Ok((jid, job))
    }
}
