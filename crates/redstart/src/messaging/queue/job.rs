//! What a job is: its type, its id, the record it is stored as, and how a run of it ends.

use std::{fmt, future::Future, str::FromStr, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::worker::Context;
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
};

/// A kind of job: its payload, and the name that says which handler it is for.
///
/// The payload is stored as JSON, so that a job enqueued by one version of a program can be read by the next
/// and by other languages.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail { to: String }
///
/// impl redstart::messaging::queue::Job for SendMail {
///     const NAME: &'static str = "send_mail";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name, 1 to 255 bytes, unique among the jobs of a queue.
    const NAME: &'static str;
}

/// A job's name in the queue: 128 bits, in order of the enqueuing client's clock by the millisecond.
///
/// ```
/// use redstart::messaging::queue::JobId;
///
/// let id: JobId = "019a8b5c2f4e000102030405060708ff".parse()?;
/// assert_eq!(id.to_string(), "019a8b5c2f4e000102030405060708ff");
/// assert!("mail".parse::<JobId>().is_err());
/// # Ok::<(), redstart::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(crate) [u8; 16]);

impl JobId {
    pub(crate) fn generate() -> Self {
        let mut bytes: [u8; 16] = rand::random();
        // For people who read lists of ids; nothing is decided by it.
        let millis = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64);
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        Self(bytes)
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut id = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return Err(Error::config("a job id is 32 hexadecimal digits"));
        }
        for (byte, pair) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or_else(|| Error::config("a job id is 32 hexadecimal digits"))?;
        }
        Ok(Self(id))
    }
}

/// How long a unique key keeps others of its kind out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// Until the job is done, dead or deleted.
    Done,
    /// Until a worker takes the job: what is enqueued while it runs is a new job.
    Started,
}

/// How a run of a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done and leaves the queue.
    Done,
    /// It failed and is tried again: after the given time, or else after the worker's backoff. After the last
    /// attempt it becomes a dead letter.
    Retry {
        /// When, if not by the backoff.
        after: Option<Duration>,
        /// Why; kept with the dead letter, should it become one.
        reason: String,
    },
    /// It can never succeed: it becomes a dead letter at once.
    Dead {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// Try again after the backoff.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self::Retry {
            after: None,
            reason: reason.to_string(),
        }
    }

    /// Try again after a time of one's own choice.
    pub fn retry_after(after: Duration, reason: impl fmt::Display) -> Self {
        Self::Retry {
            after: Some(after),
            reason: reason.to_string(),
        }
    }

    /// Give up.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self::Dead {
            reason: reason.to_string(),
        }
    }
}

/// What a handler may return: an [`Outcome`], nothing (done), or a `Result` whose error means "try again".
pub trait IntoOutcome {
    /// The outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for std::result::Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => Outcome::retry(error),
        }
    }
}

/// Runs the jobs of one type. Every `Fn(J, Context)` that gives a future is one.
pub trait Handler<J: Job>: Send + Sync + 'static {
    /// Runs a job.
    ///
    /// A job may run more than once: when its worker dies, or is cut off for longer than its lease. Make the
    /// effect idempotent, by [`Context::once`] or by the job's id.
    fn run(&self, job: J, context: Context) -> impl Future<Output = Outcome> + Send;
}

impl<J, F, Fut> Handler<J> for F
where
    J: Job,
    F: Fn(J, Context) -> Fut + Send + Sync + 'static,
    Fut: Future + Send,
    Fut::Output: IntoOutcome,
{
    async fn run(&self, job: J, context: Context) -> Outcome {
        self(job, context).await.into_outcome()
    }
}

/// Names one delivery of a job: its id and how often it was tried and handed back.
pub(crate) type Delivery = [u8; 20];

/// A job as it is stored; `record.lua` has the table.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) due: u64,
    pub(crate) id: JobId,
    pub(crate) attempts: u16,
    pub(crate) priority: i16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unique: Option<Vec<u8>>,
    pub(crate) name: String,
    payload: usize,
}

const HEAD: usize = 46;
const UNTIL_DONE: u8 = 1;
const UNTIL_STARTED: u8 = 2;

impl Record {
    pub(crate) fn delivery(bytes: &[u8]) -> Option<Delivery> {
        bytes.get(17..37)?.try_into().ok()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if *bytes.first()? != b'J' {
            return None;
        }
        let pair = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let due = std::str::from_utf8(bytes.get(1..17)?).ok()?.parse().ok()?;
        let unique_length = usize::from(pair(44)?);
        let unique = bytes.get(HEAD..HEAD + unique_length)?;
        let at = HEAD + unique_length;
        let name_length = usize::from(*bytes.get(at)?);
        let name = bytes.get(at + 1..at + 1 + name_length)?;
        let millis = u32::from_be_bytes(bytes.get(40..44)?.try_into().ok()?);
        Some(Self {
            due,
            id: JobId::read(bytes.get(17..33)?)?,
            attempts: pair(33)?,
            // The difference fits: the stored number is the priority plus 32768.
            priority: (i32::from(pair(37)?) - 32768) as i16,
            timeout: (millis > 0).then(|| Duration::from_millis(u64::from(millis))),
            unique: (bytes[39] == UNTIL_DONE).then(|| unique.to_vec()),
            name: std::str::from_utf8(name).ok()?.to_owned(),
            payload: at + 1 + name_length,
        })
    }

    pub(crate) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.payload..]
    }
}

/// The part of a record that the client writes: all from byte 18 on.
pub(crate) struct Body {
    pub(crate) id: JobId,
    pub(crate) bytes: Vec<u8>,
}

/// What a job is enqueued with, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) delay: Duration,
    pub(crate) priority: i16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unique: Option<(String, Until)>,
}

/// Priorities are small numbers: with the largest boost their product must stay far below 2^53.
const MAX_PRIORITY: i16 = 1000;
const MAX_UNIQUE: usize = 1024;
/// A hundred years; more is a mistake, and would not fit the record's digits for long.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Options {
    pub(crate) fn check(&self) -> Result<()> {
        if self.priority.unsigned_abs() > MAX_PRIORITY.unsigned_abs() {
            return Err(Error::config(format!(
                "a priority is from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )));
        }
        if self.delay > MAX_DELAY {
            return Err(Error::config("a delay is at most a hundred years"));
        }
        if let Some(timeout) = self.timeout
            && (timeout.as_millis() == 0 || timeout.as_millis() > u128::from(u32::MAX))
        {
            return Err(Error::config("a timeout is from 1 ms to 49 days"));
        }
        if let Some((key, _)) = &self.unique
            && (key.is_empty() || key.len() > MAX_UNIQUE)
        {
            return Err(Error::config(format!(
                "a unique key has 1 to {MAX_UNIQUE} bytes"
            )));
        }
        Ok(())
    }
}

impl Body {
    pub(crate) fn new<J: Job>(job: &J, options: &Options, max_payload: usize) -> Result<Self> {
        const { assert!(!J::NAME.is_empty() && J::NAME.len() <= 255) };
        let payload = Json::encode(job)?;
        if payload.len() > max_payload {
            return Err(Error::config(format!(
                "a job's payload has at most {max_payload} bytes here, not {}",
                payload.len()
            )));
        }
        Ok(Self::raw(J::NAME, &payload, options))
    }

    pub(crate) fn raw(name: &str, payload: &[u8], options: &Options) -> Self {
        let id = JobId::generate();
        let mut bytes = Vec::with_capacity(HEAD - 17 + 1 + name.len() + payload.len());
        bytes.extend_from_slice(&id.0);
        bytes.extend_from_slice(&[0; 4]);
        let priority = (i32::from(options.priority) + 32768) as u16;
        bytes.extend_from_slice(&priority.to_be_bytes());
        bytes.push(match options.unique {
            None => 0,
            Some((_, Until::Done)) => UNTIL_DONE,
            Some((_, Until::Started)) => UNTIL_STARTED,
        });
        let millis = options.timeout.map_or(0, |t| t.as_millis() as u32);
        bytes.extend_from_slice(&millis.to_be_bytes());
        let unique = options.unique.as_ref().map_or("", |(key, _)| key);
        bytes.extend_from_slice(&(unique.len() as u16).to_be_bytes());
        bytes.extend_from_slice(unique.as_bytes());
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(payload);
        Self { id, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let options = Options {
            delay: Duration::ZERO,
            priority: -7,
            timeout: Some(Duration::from_millis(1500)),
            unique: Some(("user:5".into(), Until::Done)),
        };
        let body = Body::raw("send_mail", b"{\"to\":1}", &options);
        let mut bytes = b"J1763193600000000".to_vec();
        bytes.extend_from_slice(&body.bytes);
        let record = Record::parse(&bytes).unwrap();
        assert_eq!(record.due, 1_763_193_600_000_000);
        assert_eq!(record.id, body.id);
        assert_eq!(record.priority, -7);
        assert_eq!(record.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(record.unique.as_deref(), Some(&b"user:5"[..]));
        assert_eq!(record.name, "send_mail");
        assert_eq!(record.payload(&bytes), b"{\"to\":1}");
        for end in 0..bytes.len() - 8 {
            assert!(Record::parse(&bytes[..end]).is_none(), "cut at {end}");
        }
    }
}
