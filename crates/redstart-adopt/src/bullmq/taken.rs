//! A job that a worker holds, and its end.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redstart::Store;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    BullQueue, EXTEND, FINISH, NOTE, RETRY,
    worker::{BullWorker, Keep, millis},
};
use crate::error::{Error, Result};

/// Why a job did not succeed.
#[derive(Clone, Debug)]
pub struct JobError {
    message: String,
    retry: bool,
}

impl JobError {
    /// It is tried again if it has attempts left.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry: true,
        }
    }

    /// It fails for good, whatever attempts it has left.
    pub fn unrecoverable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry: false,
        }
    }
}

/// The outcome of a job when its worker ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the hold on the job may have been lost, and then the result was not written"]
#[non_exhaustive]
pub enum Ended {
    /// It is completed.
    Completed,
    /// It failed for good.
    Failed,
    /// It will be tried again.
    Retried,
    /// This worker did not hold it any more, so nothing was written: it ran longer than its lease without renewals, or was
    /// removed.
    Lost,
}

async fn renew(
    queue: BullQueue,
    id: String,
    token: String,
    lease: Duration,
    held: Arc<AtomicBool>,
) {
    loop {
        tokio::time::sleep(lease / 2).await;
        let extended: Result<u8> = EXTEND
            .run(
                &queue.store,
                &queue.keys,
                &[&queue.prefix, &queue.major, &id, &token, &millis(lease)],
            )
            .await;
        match extended {
            Ok(0) => {
                held.store(false, Ordering::Release);
                return;
            }
            Ok(_) => {}
            // The lease may survive this; the next renewal or the end of the job will tell.
            Err(error) => tracing::warn!(%error, "a lease could not be renewed"),
        }
    }
}

/// A job that this worker holds. Dropped without an end, its lease ends and a stalled check gives it back.
#[derive(Debug)]
pub struct Taken {
    worker: BullWorker,
    id: String,
    token: String,
    fields: BTreeMap<String, String>,
    held: Arc<AtomicBool>,
    renewal: JoinHandle<()>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl Taken {
    /// Holds a job that was taken: its lease is renewed from now on.
    pub(super) fn hold(
        worker: BullWorker,
        id: String,
        token: String,
        fields: BTreeMap<String, String>,
    ) -> Self {
        let held = Arc::new(AtomicBool::new(true));
        let settings = worker.settings();
        let renewal = tokio::spawn(renew(
            settings.queue.clone(),
            id.clone(),
            token.clone(),
            settings.lease,
            held.clone(),
        ));
        Self {
            worker,
            id,
            token,
            fields,
            held,
            renewal,
        }
    }

    fn queue(&self) -> &BullQueue {
        &self.worker.settings().queue
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.fields.get("name").map_or("", String::as_str)
    }

    /// Its data.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not a `T`.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T> {
        let text = self.fields.get("data").map_or("null", String::as_str);
        serde_json::from_str(text)
            .map_err(|_| Error::invalid("the data of a job is not of the expected type"))
    }

    /// All its fields as they were stored when it was taken.
    pub fn fields(&self) -> &BTreeMap<String, String> {
        &self.fields
    }

    /// The attempts that ended before this one.
    pub fn attempts_made(&self) -> u32 {
        self.number("atm")
    }

    /// Whether a renewal has found that the job is not held any more: its work should stop.
    pub fn is_lost(&self) -> bool {
        !self.held.load(Ordering::Acquire)
    }

    fn number(&self, field: &str) -> u32 {
        self.fields
            .get(field)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    fn options(&self) -> Value {
        let text = self.fields.get("opts").map_or("{}", String::as_str);
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Completes it with a result.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the result cannot be JSON; otherwise those of the store. After
    /// [`is_in_doubt`](redstart::Error::is_in_doubt) it may be completed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the job may have ended.
    pub async fn complete(&self, result: &impl Serialize) -> Result<Ended> {
        let value = serde_json::to_string(result)
            .map_err(|_| Error::invalid("the result of a job must be representable as JSON"))?;
        self.end(
            "completed",
            &value,
            "",
            self.keep("removeOnComplete", self.worker.settings().keep_completed),
            Ended::Completed,
        )
        .await
    }

    /// Says that this attempt failed: it is tried again if it may be, or fails for good.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(&self, error: JobError) -> Result<Ended> {
        let options = self.options();
        let attempts = options["attempts"].as_u64().unwrap_or(0);
        let made = u64::from(self.attempts_made()) + 1;
        // What Node keeps there are stack traces; ours has the messages.
        let before = self.fields.get("stacktrace").map_or("[]", String::as_str);
        let mut trace: Vec<Value> = serde_json::from_str(before).unwrap_or_default();
        trace.push(json!(error.message));
        let trace = Value::Array(trace).to_string();
        if !error.retry || made >= attempts {
            return self
                .end(
                    "failed",
                    &error.message,
                    &trace,
                    self.keep("removeOnFail", self.worker.settings().keep_failed),
                    Ended::Failed,
                )
                .await;
        }
        let push = if options["lifo"].as_bool() == Some(true) {
            "RPUSH"
        } else {
            "LPUSH"
        };
        let code: i64 = RETRY
            .run(
                &self.queue().store,
                &self.queue().keys,
                &[
                    &self.queue().prefix,
                    &self.queue().major,
                    &self.id,
                    &self.token,
                    &self.backoff(&options["backoff"], made),
                    &error.message,
                    &trace,
                    &push,
                ],
            )
            .await?;
        self.ended(code, Ended::Retried)
    }

    fn backoff(&self, options: &Value, made: u64) -> u64 {
        if let Some(wait) = backoff(options, made, rand::random()) {
            return wait;
        }
        let made = u32::try_from(made).unwrap_or(u32::MAX);
        match &self.worker.settings().backoff {
            Some(wait) => millis(wait(self, made)),
            // Not reached: without a rule such a job is not taken.
            None => options["delay"].as_u64().unwrap_or(1000),
        }
    }

    /// What the job says is kept, or else its worker.
    fn keep(&self, option: &str, default: Keep) -> Keep {
        match &self.options()[option] {
            Value::Bool(true) => Keep { count: 0, age: 0 },
            Value::Bool(false) => Keep::ALL,
            Value::Number(count) => Keep {
                count: count.as_i64().unwrap_or(-1),
                age: 0,
            },
            Value::Object(both) => Keep {
                count: both.get("count").and_then(Value::as_i64).unwrap_or(-1),
                age: both.get("age").and_then(Value::as_i64).unwrap_or(0),
            },
            _ => default,
        }
    }

    async fn end(
        &self,
        state: &str,
        value: &str,
        trace: &str,
        keep: Keep,
        ended: Ended,
    ) -> Result<Ended> {
        let options = self.options();
        let attempts = options["attempts"].as_u64().unwrap_or(0);
        let code: i64 = FINISH
            .run(
                &self.queue().store,
                &self.queue().keys,
                &[
                    &self.queue().prefix,
                    &self.queue().major,
                    &self.id,
                    &self.token,
                    &state,
                    &value,
                    &trace,
                    &keep.count,
                    &keep.age,
                    &attempts,
                ],
            )
            .await?;
        self.ended(code, ended)
    }

    fn ended(&self, code: i64, ended: Ended) -> Result<Ended> {
        self.renewal.abort();
        match code {
            0 => Ok(ended),
            -4 => Err(Error::invalid(
                "a job with unfinished children cannot be completed",
            )),
            _ => Ok(Ended::Lost),
        }
    }

    /// Writes how far it is, which Node's `QueueEvents` hears.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    pub async fn progress(&self, progress: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(progress)
            .map_err(|_| Error::invalid("the progress of a job must be representable as JSON"))?;
        self.note("progress", &text).await
    }

    /// Writes a line to its log.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn log(&self, line: &str) -> Result<()> {
        self.note("log", line).await
    }

    async fn note(&self, what: &str, text: &str) -> Result<()> {
        let _: i64 = NOTE
            .run(
                &self.queue().store,
                &self.queue().keys,
                &[
                    &self.queue().prefix,
                    &self.queue().major,
                    &self.id,
                    &what,
                    &text,
                ],
            )
            .await?;
        Ok(())
    }

    /// The store that it is on.
    pub fn store(&self) -> &Store {
        &self.queue().store
    }
}

/// How long BullMQ itself would wait before the next attempt; `None` for a type that it does not have.
fn backoff(options: &Value, made: u64, random: f64) -> Option<u64> {
    let both = match options {
        Value::Number(delay) => return Some(delay.as_u64().unwrap_or(0)),
        Value::Object(both) => both,
        _ => return Some(0),
    };
    let delay = both.get("delay").and_then(Value::as_u64).unwrap_or(0);
    let most = match both.get("type").and_then(Value::as_str) {
        Some("fixed") => delay,
        Some("exponential") => {
            let factor = 1_u64 << made.saturating_sub(1).min(40);
            delay.saturating_mul(factor).min(1 << 40)
        }
        _ => return None,
    };
    // A share of the wait is random.
    let jitter = both.get("jitter").and_then(Value::as_f64).unwrap_or(0.0);
    let jitter = jitter.clamp(0.0, 1.0);
    Some((most as f64 * (1.0 - jitter + jitter * random)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_is_as_in_bullmq() {
        let wait = |options: Value, made| backoff(&options, made, 0.5);
        assert_eq!(wait(json!(250), 3), Some(250));
        assert_eq!(wait(json!({"type": "fixed", "delay": 250}), 3), Some(250));
        let exponential = json!({"type": "exponential", "delay": 250});
        assert_eq!(wait(exponential, 3), Some(1000));
        assert_eq!(wait(json!({"type": "custom"}), 1), None);
        assert_eq!(wait(Value::Null, 1), Some(0));
        let jitter = json!({"type": "exponential", "delay": 250, "jitter": 0.4});
        assert_eq!(backoff(&jitter, 3, 0.0), Some(600));
        assert_eq!(backoff(&jitter, 3, 0.5), Some(800));
        assert_eq!(backoff(&jitter, 3, 1.0), Some(1000));
    }
}
