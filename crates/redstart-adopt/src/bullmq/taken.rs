//! A job that a worker holds, and its end.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use redstart::Store;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    BullQueue, FINISH, NOTE, REMOVE_CHILDREN, RETRY,
    hold::Hold,
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

    /// For a handler that panicked.
    pub(super) fn panic(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        match text {
            Some(text) => Self::new(format!("the handler panicked: {text}")),
            None => Self::new("the handler panicked"),
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

/// A job that this worker holds. Dropped without an end, its lease ends and a stalled check gives it back.
#[derive(Debug)]
pub struct Taken {
    worker: BullWorker,
    /// As the queue has it: others may have chosen bytes that are no text.
    id: Vec<u8>,
    id_text: String,
    token: String,
    fields: BTreeMap<String, String>,
    hold: Hold,
    /// Whether the end of the job was sent, and nobody knows whether it arrived.
    is_in_doubt: AtomicBool,
}

impl Taken {
    /// Holds a job that was taken: its lease is renewed from now on.
    pub(super) fn hold(
        worker: BullWorker,
        id: Vec<u8>,
        token: String,
        fields: BTreeMap<String, String>,
    ) -> Self {
        let settings = worker.settings();
        let hold = Hold::start(
            settings.queue.clone(),
            id.clone(),
            token.clone(),
            settings.lease,
        );
        Self {
            worker,
            id_text: String::from_utf8_lossy(&id).into_owned(),
            id,
            token,
            fields,
            hold,
            is_in_doubt: AtomicBool::new(false),
        }
    }

    fn queue(&self) -> &BullQueue {
        &self.worker.settings().queue
    }

    /// Its id. Bytes that are not UTF-8 are replaced.
    pub fn id(&self) -> &str {
        &self.id_text
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
        self.hold.is_lost()
    }

    /// Whether it may still be held, as far as this process knows.
    pub(super) fn may_be_held(&self) -> bool {
        self.hold.may_last()
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
    /// A parent can run before its children have ended, if one of them failed and was to let it go on. It is not completed then: as in Node, this attempt
    /// fails, or the job if a child failed that is to fail it. [`remove_unprocessed_children`](Self::remove_unprocessed_children) is the way to complete it.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the result cannot be JSON; otherwise those of the store. After
    /// [`is_in_doubt`](redstart::Error::is_in_doubt) it may be completed: calling it again tells.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the job may have ended.
    pub async fn complete(&self, result: &impl Serialize) -> Result<Ended> {
        let value = serde_json::to_string(result)
            .map_err(|_| Error::invalid("the result of a job must be representable as JSON"))?;
        let keep = self.keep("removeOnComplete", self.worker.settings().keep_completed);
        match self.finish("completed", &value, "", keep).await? {
            -4 => {
                let why = format!("Job {} has pending dependencies", self.id());
                self.fail(JobError::new(why)).await
            }
            -9 => {
                let why = format!(
                    "Cannot complete job {} because it has at least one failed child",
                    self.id()
                );
                self.fail(JobError::unrecoverable(why)).await
            }
            code => self.ended(code, Ended::Completed).await,
        }
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
            let keep = self.keep("removeOnFail", self.worker.settings().keep_failed);
            let code = self.finish("failed", &error.message, &trace, keep).await?;
            return self.ended(code, Ended::Failed).await;
        }
        let push = if options["lifo"].as_bool() == Some(true) {
            "RPUSH"
        } else {
            "LPUSH"
        };
        let code = RETRY
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
            .await;
        let code = self.note_doubt(code)?;
        self.ended(code, Ended::Retried).await
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

    async fn finish(&self, state: &str, value: &str, trace: &str, keep: Keep) -> Result<i64> {
        let options = self.options();
        let attempts = options["attempts"].as_u64().unwrap_or(0);
        let code = FINISH
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
            .await;
        self.note_doubt(code)
    }

    fn note_doubt(&self, code: Result<i64>) -> Result<i64> {
        code.inspect_err(|error| {
            if error.store().is_some_and(redstart::Error::is_in_doubt) {
                self.is_in_doubt.store(true, Ordering::Relaxed);
            }
        })
    }

    async fn ended(&self, code: i64, ended: Ended) -> Result<Ended> {
        let has_ended = code == 0
            || self.is_in_doubt.load(Ordering::Relaxed) && self.has_ended_so(ended).await?;
        self.hold.release();
        Ok(if has_ended { ended } else { Ended::Lost })
    }

    /// Whether an earlier request, whose reply was lost, has ended it like this.
    async fn has_ended_so(&self, ended: Ended) -> Result<bool> {
        let queue = self.queue();
        let key = [queue.prefix.as_bytes(), &self.id].concat();
        let mut look = redis::pipe();
        look.cmd("EXISTS").arg(&key);
        look.cmd("HGET").arg(&key).arg("atm");
        for set in ["completed", "failed"] {
            look.cmd("ZSCORE").arg(queue.key(set)).arg(&self.id);
        }
        let (exists, made, completed, failed): (bool, Option<String>, Option<f64>, Option<f64>) =
            queue.store.pipeline(&look).await?;
        let made = made.and_then(|made| made.parse::<u32>().ok()).unwrap_or(0);
        Ok(match ended {
            // It may have been removed at its end.
            Ended::Completed => completed.is_some() || !exists,
            Ended::Failed => failed.is_some() || !exists,
            Ended::Retried => made > self.attempts_made(),
            Ended::Lost => false,
        })
    }

    /// Removes its children that nobody has begun to run, with what is below them; returns how many. Children that run, or have ended, stay.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, they may have been removed, all of them.
    pub async fn remove_unprocessed_children(&self) -> Result<u64> {
        let queue = self.queue();
        REMOVE_CHILDREN
            .run(
                &queue.store,
                &queue.keys,
                &[&queue.prefix, &queue.major, &self.id],
            )
            .await
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
