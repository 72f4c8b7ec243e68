//! Queues of other libraries through one interface that only reads.
//!
//! | library | subject | states |
//! |---|---|---|
//! | BullMQ, Bull | `bull:mail` | waiting, prioritized, delayed, paused, active, waiting-children, completed, failed |
//! | Sidekiq | `queue:default` | enqueued; scheduled, retry and dead of all queues together, as Sidekiq keeps them |
//! | Celery | `celery` | waiting; unacked of all queues together, as kombu keeps them |
//! | RQ | `rq:queue:default` | queued, started, scheduled, deferred, finished, failed |
//!
//! Payloads are shown, never executed: a pickle is bytes.

pub(crate) mod bullmq;
mod celery;
mod inflate;
mod rq;
mod sidekiq;

use std::time::Duration;

use redis::cmd;
use redstart::Store;
use serde::Serialize;

use crate::{
    error::{Error, Result},
    library::Library,
};

/// A payload above this length is not read.
const LARGEST: u64 = 64 * 1024;
/// An error above this length is cut off.
const LONGEST_ERROR: usize = 4 * 1024;
/// The jobs of one page.
const PAGE: usize = 100;

/// A queue of another library, to be looked into. It writes nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::{Inspector, Library, bullmq::{BullQueue, NewJob}};
///
/// let store = Store::connect("memory://").await?;
/// let mail = BullQueue::new(&store, "mail")?;
/// let _ = mail.add(NewJob::new("welcome", &"ann")?).await?;
///
/// let inspector = Inspector::new(&store, Library::BullMq, mail.base())?;
/// assert_eq!(inspector.overview().await?.count("waiting"), 1);
/// let jobs = inspector.jobs("waiting", 0, 10).await?;
/// assert_eq!(jobs[0].name, "welcome");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Inspector {
    store: Store,
    library: Library,
    subject: String,
}

/// How many jobs a queue has, by state.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// The library.
    pub library: Library,
    /// The queue, as [`Found::subject`](crate::Found::subject) names it.
    pub subject: String,
    /// Each state with its number of jobs, in the order of a job's life.
    pub states: Vec<State>,
    /// How long the job that is next has waited, if the library writes that down; of several places from which jobs are taken, the longest.
    pub oldest_ms: Option<u64>,
    /// For how long the oldest job has been in the hands of a worker, if the library writes that down.
    pub oldest_active_ms: Option<u64>,
    /// Whether the queue is paused, if the library can pause.
    pub paused: bool,
}

/// A state and the number of jobs in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct State {
    /// Its name.
    pub name: &'static str,
    /// The jobs in it.
    pub count: u64,
    /// Whether the library keeps this state for all of its queues together.
    pub shared: bool,
}

impl Overview {
    /// The jobs in a state; 0 if there is no such state.
    pub fn count(&self, state: &str) -> u64 {
        let found = self.states.iter().find(|known| known.name == state);
        found.map_or(0, |state| state.count)
    }
}

/// A job as an inspection shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobView {
    /// Its id.
    pub id: String,
    /// The job's name, class or task.
    pub name: String,
    /// What it is to work on.
    pub payload: Payload,
    /// The attempts that ended, if the library counts them. RQ does not where a job is retried after an exception.
    pub attempts: Option<u64>,
    /// Why it failed last, as far as the library writes that down.
    pub error: Option<String>,
    /// When it was added, in milliseconds since 1970.
    pub added_ms: Option<u64>,
}

/// What a job is to work on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Payload {
    /// JSON.
    Json {
        /// The text.
        text: String,
    },
    /// Bytes of some format, such as a pickle. They are not decoded.
    Bytes {
        /// What they seem to be: `pickle`, `zlib`, `unknown`.
        format: &'static str,
        /// The number of bytes.
        len: u64,
        /// The first 64 bytes in hexadecimal.
        head: String,
    },
    /// Too large to be shown.
    Large {
        /// The number of bytes.
        len: u64,
    },
}

impl Payload {
    fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        match text.filter(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()) {
            Some(text) => Self::Json {
                text: text.to_owned(),
            },
            None => Self::Bytes {
                format: match bytes {
                    [0x80, 2..=5, ..] => "pickle",
                    [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => "zlib",
                    _ => "unknown",
                },
                len: bytes.len() as u64,
                head: bytes
                    .iter()
                    .take(64)
                    .map(|byte| format!("{byte:02x}"))
                    .collect(),
            },
        }
    }
}

impl Inspector {
    /// Looks into the queue that recognition found under this name.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the library has no queues, or none that can be looked into.
    pub fn new(store: &Store, library: Library, subject: &str) -> Result<Self> {
        let known = matches!(
            library,
            Library::BullMq | Library::Bull | Library::Sidekiq | Library::Celery | Library::Rq
        );
        if !known {
            return Err(Error::invalid(format!(
                "queues of {library} cannot be looked into"
            )));
        }
        Ok(Self {
            store: store.clone(),
            library,
            subject: subject.to_owned(),
        })
    }

    /// How many jobs there are, and how old the oldest is. Two or three round trips.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn overview(&self) -> Result<Overview> {
        match self.library {
            Library::Sidekiq => sidekiq::overview(self).await,
            Library::Celery => celery::overview(self).await,
            Library::Rq => rq::overview(self).await,
            _ => bullmq::overview(self).await,
        }
    }

    /// A page of the jobs in a state, those that run next first; at most 100. Jobs come and go meanwhile.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a state that the library does not have; otherwise those of the store.
    pub async fn jobs(&self, state: &str, offset: usize, limit: usize) -> Result<Vec<JobView>> {
        let limit = limit.min(PAGE);
        if limit == 0 {
            return Ok(Vec::new());
        }
        match self.library {
            Library::Sidekiq => sidekiq::jobs(self, state, offset, limit).await,
            Library::Celery => celery::jobs(self, state, offset, limit).await,
            Library::Rq => rq::jobs(self, state, offset, limit).await,
            _ => bullmq::jobs(self, state, offset, limit).await,
        }
    }

    fn unknown_state(&self, state: &str) -> Error {
        Error::invalid(format!("{} has no state {state:?}", self.library))
    }

    /// The server's time in milliseconds.
    async fn now(&self) -> Result<u64> {
        Ok(millis(self.store.time().await?))
    }

    /// A page of a list, of which the right end is next (`reversed`) or the left one. Elements that are large on average are
    /// left out.
    async fn list(
        &self,
        key: &str,
        offset: usize,
        limit: usize,
        reversed: bool,
    ) -> Result<Vec<Vec<u8>>> {
        if self.is_large(key, "LLEN").await? {
            return Ok(Vec::new());
        }
        let (from, to) = (offset as i64, (offset + limit - 1) as i64);
        let mut range = cmd("LRANGE");
        range.arg(key);
        if reversed {
            range.arg(-to - 1).arg(-from - 1);
        } else {
            range.arg(from).arg(to);
        }
        let mut page: Vec<Vec<u8>> = self.store.query(&range).await?;
        if reversed {
            page.reverse();
        }
        Ok(page)
    }

    /// A page of a sorted set.
    async fn sorted(&self, key: &str, offset: usize, limit: usize) -> Result<Vec<Vec<u8>>> {
        if self.is_large(key, "ZCARD").await? {
            return Ok(Vec::new());
        }
        let range = cmd("ZRANGE")
            .arg(key)
            .arg(offset)
            .arg(offset + limit - 1)
            .take();
        Ok(self.store.query(&range).await?)
    }

    /// Whether the elements of a key are too large to be shown, on average.
    async fn is_large(&self, key: &str, length: &str) -> Result<bool> {
        let mut pipeline = redis::pipe();
        pipeline.cmd(length).arg(key);
        pipeline.cmd("MEMORY").arg("USAGE").arg(key);
        let (count, bytes): (u64, Option<u64>) = self.store.pipeline(&pipeline).await?;
        Ok(bytes.unwrap_or(0) / count.max(1) > LARGEST)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Cuts an error off where it is too long.
fn shorten(error: &mut String) {
    if error.len() > LONGEST_ERROR {
        let end = (0..=LONGEST_ERROR)
            .rev()
            .find(|at| error.is_char_boundary(*at));
        error.truncate(end.unwrap_or(0));
        error.push('…');
    }
}
