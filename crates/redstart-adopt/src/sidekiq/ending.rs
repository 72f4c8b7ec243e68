//! How a job ends: done, to be retried, or dead, as Sidekiq itself writes it.

use std::{sync::Arc, time::Duration};

use super::{
    FIRST_MILLIS, Sidekiq,
    job::{Fields, JobFailure},
    recover::RECOVERED,
};
use crate::{error::Result, script::Lua};

static FINISH: Lua = Lua::new(include_str!("finish.lua"));

/// How long a job waits before its retry of this number.
pub(super) type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

pub(super) enum Ending {
    Done,
    Failed(Fields, JobFailure),
    /// Its consumers died with it, too often. It fails, and is kept also if it says that failures are not.
    Killed(Fields),
    /// What is no job goes to the dead jobs, as with Sidekiq.
    Malformed,
}

/// Writes the end of a job; `false` if it is not in this list any more.
pub(super) async fn finish(
    sidekiq: &Sidekiq,
    queue: &str,
    backoff: Option<&Backoff>,
    list: &str,
    text: &[u8],
    ending: &Ending,
) -> Result<bool> {
    let now = sidekiq.store.time().await?;
    let rule = Rule {
        sidekiq,
        queue,
        backoff,
        now,
    };
    let (outcome, kept, at) = match ending {
        Ending::Done => ("done", Vec::new(), 0.0),
        Ending::Malformed => ("dead", text.to_owned(), 0.0),
        Ending::Failed(fields, failure) => rule.failed(fields.clone(), failure, false),
        Ending::Killed(fields) => {
            let failure =
                JobFailure::new("the processes that ran it died several times").class("Killed");
            rule.failed(fields.clone(), &failure, true)
        }
    };
    let day = jiff::Timestamp::from_second(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
        .map(|at| at.strftime("%Y-%m-%d").to_string())
        .unwrap_or_default();
    let keys = [
        list.to_owned(),
        sidekiq.key("retry"),
        sidekiq.key("dead"),
        sidekiq.key("stat:processed"),
        sidekiq.key(&format!("stat:processed:{day}")),
        sidekiq.key("stat:failed"),
        sidekiq.key(&format!("stat:failed:{day}")),
        sidekiq.key(RECOVERED),
    ];
    FINISH
        .run(
            &sidekiq.store,
            &keys,
            &[&text, &outcome, &kept, &at, &now.as_secs_f64()],
        )
        .await
}

struct Rule<'a> {
    sidekiq: &'a Sidekiq,
    queue: &'a str,
    backoff: Option<&'a Backoff>,
    now: Duration,
}

impl Rule<'_> {
    /// What becomes of a failed job: the outcome, the job as it is kept, and when it is retried.
    fn failed(
        &self,
        mut fields: Fields,
        failure: &JobFailure,
        always_kept: bool,
    ) -> (&'static str, Vec<u8>, f64) {
        /// As many as Sidekiq retries a job that does not say.
        const RETRIES: u32 = 25;
        let retries = match fields.get::<serde_json::Value>("retry") {
            Some(serde_json::Value::Bool(false)) if !always_kept => {
                return ("drop", Vec::new(), 0.0);
            }
            Some(serde_json::Value::Bool(false)) => 0,
            Some(serde_json::Value::Number(most)) => most
                .as_u64()
                .and_then(|most| u32::try_from(most).ok())
                .unwrap_or(RETRIES),
            _ => RETRIES,
        };
        let created = fields.get::<f64>("created_at");
        let stamp = self.sidekiq.stamp(self.now, created);
        // Sidekiq Web counts one back when it puts a job into its queue again, so it can be -1.
        let count = match fields.get::<i64>("retry_count") {
            Some(count) => {
                fields.set("retried_at", &stamp);
                u32::try_from(count.saturating_add(1)).unwrap_or(0)
            }
            None => {
                fields.set("failed_at", &stamp);
                0
            }
        };
        fields.set("retry_count", &count);
        let queue = fields.get::<String>("retry_queue");
        fields.set("queue", &queue.as_deref().unwrap_or(self.queue));
        let message: String = failure.message.chars().take(10_000).collect();
        fields.set("error_message", &message);
        fields.set("error_class", &failure.class);
        let kept = fields.text().into_bytes();
        // From version 7.1 on a job may say for how long it is retried, in seconds since it failed first; then the number does not count.
        let may_be_retried = match fields.get::<f64>("retry_for") {
            Some(time) => {
                let first = fields.get::<f64>("failed_at").map_or(0.0, seconds);
                first + time >= self.now.as_secs_f64()
            }
            None => count < retries,
        };
        if failure.retry && may_be_retried {
            let wait = match self.backoff {
                Some(backoff) => backoff(count),
                None => usual_backoff(count),
            };
            return ("retry", kept, self.now.saturating_add(wait).as_secs_f64());
        }
        match fields.get::<bool>("dead") {
            Some(false) if !always_kept => ("drop", Vec::new(), 0.0),
            _ => ("dead", kept, 0.0),
        }
    }
}

/// Up to version 7 times are seconds with a fraction, from version 8 on milliseconds.
fn seconds(at: f64) -> f64 {
    if at < FIRST_MILLIS { at } else { at / 1000.0 }
}

/// Sidekiq's own rule.
fn usual_backoff(count: u32) -> Duration {
    let count = u64::from(count);
    let chance = rand::random_range(0..10) * (count + 1);
    Duration::from_secs(count.saturating_pow(4).saturating_add(15 + chance))
}
