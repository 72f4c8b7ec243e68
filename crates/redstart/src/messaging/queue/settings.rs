//! What the workers of a queue say of its settings, for programs that do not know them: the command line, dashboards.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{JobLimit, Queue, QueueBuilder};
use crate::{
    codec::{Codec, Json},
    error::Result,
};

/// The settings that decide what is left of a job and where it waits, unless they are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    /// In microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    boost: Option<u64>,
    /// How many, and for how long in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_done: Option<(u64, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_events: Option<u64>,
    /// The kinds that have a line of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limited_kinds: Vec<String>,
}

impl Queue {
    /// The settings as text; empty if they are the defaults.
    pub(super) fn settings(&self) -> Result<String> {
        let inner = &*self.0;
        let boost = Duration::from_micros(inner.boost);
        let settings = Settings {
            boost: (boost != QueueBuilder::BOOST).then_some(inner.boost),
            keep_done: inner
                .keep_done_for
                .map(|_| (inner.keep_done, inner.keep_millis() as u64)),
            keep_events: (inner.keep_events > 0).then_some(inner.keep_events),
            limited_kinds: inner.kind_limits.keys().cloned().collect(),
        };
        if settings == Settings::default() {
            return Ok(String::new());
        }
        Ok(String::from_utf8_lossy(&Json::encode(&settings)?).into_owned())
    }
}

impl QueueBuilder {
    /// Takes over how the queue's workers have it set: how much age a priority is worth, what is kept of jobs and events,
    /// and which kinds have limits of their own. For programs that look after a queue without being part of its
    /// application, such as `redstart queue`: otherwise a job that they cancel would not be kept, and one that they add
    /// would pass the limit of its kind. What a worker wrote when it last started counts.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let store = Store::connect("memory://").await?;
    /// let queue = Queue::builder(&store, "shop", "mail").as_its_workers_have_it().await?.build()?;
    /// # drop(queue);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](crate::Error::is_config) for invalid settings so far; otherwise those of the store.
    pub async fn as_its_workers_have_it(mut self) -> Result<Self> {
        let queue = self.clone().build()?;
        let mut get = redis::cmd("HGET");
        get.arg(queue.entity().part("meta")).arg("settings");
        let Some(found) = queue.store().query::<Option<Vec<u8>>>(&get).await? else {
            return Ok(self);
        };
        let found: Settings = Json::decode(&found)?;
        if let Some(boost) = found.boost {
            self = self.boost(Duration::from_micros(boost));
        }
        if let Some((jobs, millis)) = found.keep_done {
            self = self.keep_done(jobs, Duration::from_millis(millis));
        }
        if let Some(entries) = found.keep_events {
            self = self.keep_events(entries);
        }
        for kind in found.limited_kinds {
            // The workers know how many; here it matters only that it has a line.
            self = self.kind_limit(&kind, JobLimit::default());
        }
        Ok(self)
    }
}
