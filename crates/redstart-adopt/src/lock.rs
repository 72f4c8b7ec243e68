//! Locks that other libraries take too: redis-py's `Lock`, npm's `redlock`, and hand-made ones.
//!
//! All of them keep a token in a string: `SET key token NX PX ttl`. A [`Mutex`] on the same key does the same, so each side honours
//! the other. [`mutex`] makes one, and [`who_holds`] says who blocks.
//!
//! | what holds the key | what `Mutex` does |
//! |---|---|
//! | redis-py `Lock`, redlock 4 and 5, any `SET … NX` | waits, and asks often, because these send no wake-up |
//! | the same without a TTL | waits; nobody else ever gets it until somebody deletes the key |
//! | a time stamp (SETNX and GETSET) | waits; [`LegacyLock`](redstart::locking::LegacyLock) can tell when it has ended |
//! | a hash (Redisson), or anything else | is an error: nothing is granted |
//!
//! # Limits
//!
//! redlock over several servers is not this lock: it asks a majority, and a mutex on one of them does not. Other libraries ignore
//! fence tokens, so only writes from Rust can be fenced.

use std::{fmt, time::Duration};

use redis::Value;
use redstart::{
    Store,
    key::Layout,
    locking::{Mutex, MutexBuilder},
};
use serde::Serialize;

use crate::{catalogue::lock_token_made_at, error::Result};

/// How often a waiter asks for a lock whose holders send no wake-up.
const POLL: Duration = Duration::from_millis(50);

/// A mutex on exactly this key, for a lock that other libraries take too. Everything else is set on the builder: the ttl, a label,
/// whether it is fenced, and how often it asks while it waits (default every 50 ms).
///
/// A fenced mutex keeps a counter without a TTL beside each key. Where locks have many names, such as one per order, use
/// [`unfenced`](MutexBuilder::unfenced).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// use redstart::Store;
/// use redstart_adopt::lock::{self, HeldBy};
///
/// let store = Store::connect("memory://").await?;
/// let order = lock::mutex(&store, "lock:order:5001").unfenced().build()?;
///
/// // A hand-made lock without a TTL.
/// store.query::<()>(redis::cmd("SET").arg("lock:order:5001").arg("worker-3").arg("NX")).await?;
/// assert!(order.try_lock().await?.is_none());
/// let holder = lock::who_holds(&store, "lock:order:5001").await?.expect("it is held");
/// assert_eq!((holder.by, holder.remaining), (HeldBy::Unknown, None));
/// # Ok(()) }
/// ```
pub fn mutex(store: &Store, key: &str) -> MutexBuilder {
    Mutex::builder(store, "adopt", key)
        .layout(Layout::new(str::to_owned))
        .poll(POLL)
}

/// What took a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeldBy {
    /// A lock of Redstart.
    Redstart,
    /// `redis.lock.Lock` of redis-py.
    RedisPy,
    /// 32 hexadecimal digits, as redlock (npm) writes them.
    Redlock,
    /// Redisson (Java): a hash.
    Redisson,
    /// A time stamp, as SETNX and GETSET locks write it.
    TimeStamp,
    /// Something else.
    Unknown,
}

/// Who holds a lock, as far as its key tells. Contains no token: anyone who knows it can release the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// What took it.
    pub by: HeldBy,
    /// How long ago it was taken. Only redis-py writes that, by its own clock.
    pub age: Option<Duration>,
    /// The host that took it: the network address that redis-py puts into its token, or the label of a holder of Redstart.
    pub host: Option<String>,
    /// When it ends without a renewal; `None` if it never does.
    pub remaining: Option<Duration>,
}

/// Who holds a lock; `None` if it is free. One round trip, or two for a holder of redis-py; only reads.
///
/// # Errors
///
/// Those of the store.
pub async fn who_holds(store: &Store, key: &str) -> Result<Option<Blocker>> {
    holder(store, key.as_bytes()).await
}

/// As [`who_holds`], for a key that need not be text.
pub(crate) async fn holder(store: &Store, key: &[u8]) -> Result<Option<Blocker>> {
    let mut look = redis::pipe();
    look.ignore_errors();
    look.cmd("TYPE").arg(key);
    look.cmd("GETRANGE").arg(key).arg(0).arg(511);
    look.cmd("PTTL").arg(key);
    let (kind, value, pttl): (String, Value, i64) = store.pipeline(&look).await?;
    if kind == "none" || pttl == -2 {
        return Ok(None);
    }
    let value: Vec<u8> = redis::from_redis_value(value).unwrap_or_default();
    let age = match lock_token_made_at(&value) {
        Some(made) => age(made, store.time().await?),
        None => None,
    };
    let mut blocker = read(&kind, &value, age);
    blocker.remaining = u64::try_from(pttl).ok().map(Duration::from_millis);
    Ok(Some(blocker))
}

/// How long ago a token was made. A random token that looks like a UUID with a time has one that is far away.
fn age(made: Duration, now: Duration) -> Option<Duration> {
    const SKEW: Duration = Duration::from_secs(300);
    const YEAR: Duration = Duration::from_secs(366 * 86_400);
    (made < now + SKEW && made + YEAR > now).then(|| now.saturating_sub(made))
}

fn read(kind: &str, value: &[u8], age: Option<Duration>) -> Blocker {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = |text: &str| {
        (9..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    let (by, host) = match (kind, text) {
        ("hash", _) => (HeldBy::Redisson, None),
        ("string", text) if is_ours(text) => {
            let label = text.trim_end_matches('+').split_once(':');
            (HeldBy::Redstart, label.map(|(_, label)| label.to_owned()))
        }
        ("string", text) if age.is_some() => (HeldBy::RedisPy, text.get(20..).map(address)),
        ("string", text) if text.len() == 32 && hex(text) => (HeldBy::Redlock, None),
        ("string", text) if number(text) => (HeldBy::TimeStamp, None),
        _ => (HeldBy::Unknown, None),
    };
    Blocker {
        by,
        age,
        host: host.map(|host| crate::printable(&host)),
        remaining: None,
    }
}

/// `02fc00000001` as `02:fc:00:00:00:01`.
fn address(node: &str) -> String {
    let pairs: Vec<&str> = (0..node.len())
        .step_by(2)
        .filter_map(|at| node.get(at..at + 2))
        .collect();
    pairs.join(":")
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redstart => "a lock of Redstart",
            Self::RedisPy => "redis-py's Lock",
            Self::Redlock => "redlock, or another lock with a random token",
            Self::Redisson => "a hash, as Redisson's locks are",
            Self::TimeStamp => "a time stamp, as SETNX and GETSET locks are",
            Self::Unknown => "an unknown client",
        })
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held by {}", self.by)?;
        if let Some(host) = &self.host {
            write!(f, " of {host}")?;
        }
        if let Some(age) = self.age {
            write!(f, ", taken {} s ago", age.as_secs())?;
        }
        match self.remaining {
            Some(left) => write!(f, ", ends in {} ms unless it is renewed", left.as_millis()),
            None => f.write_str(", without a TTL: it stays until somebody releases it"),
        }
    }
}

/// Whether a text has the form of our tokens: others may begin theirs with `rs-` too.
fn is_ours(text: &str) -> bool {
    let Some((digits, rest)) = text
        .strip_prefix("rs-")
        .and_then(|text| text.split_at_checked(32))
    else {
        return false;
    };
    let hex = digits
        .bytes()
        .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    hex && (rest.is_empty() || rest == "+" || rest.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_what_took_the_lock() {
        let by = |value: &str| read("string", value.as_bytes(), None).by;
        let minute = Some(Duration::from_secs(60));
        let python = read("string", b"fe1a750ce14a11f1bf3902fc00000001", minute);
        assert_eq!(python.by, HeldBy::RedisPy);
        assert_eq!(python.host.as_deref(), Some("02:fc:00:00:00:01"));
        assert_eq!(by("a8ab52454cb2aec0fc3c07f4884adb9a"), HeldBy::Redlock);
        assert_eq!(by("1794784761"), HeldBy::TimeStamp);
        assert_eq!(by("1"), HeldBy::Unknown);
        assert_eq!(by("worker-3"), HeldBy::Unknown);
        // Others may begin as ours do.
        assert_eq!(by("rs-web-3"), HeldBy::Unknown);
        for ours in ["", "+", ":web-3", ":web-3+"] {
            let token = format!("rs-0123456789abcdef0123456789abcdef{ours}");
            assert_eq!(by(&token), HeldBy::Redstart, "{token}");
        }
        assert_eq!(read("hash", b"", None).by, HeldBy::Redisson);
    }

    #[test]
    fn a_random_token_has_no_age() {
        let now = Duration::from_secs(1_794_784_763);
        assert_eq!(
            age(now - Duration::from_secs(5), now),
            Some(Duration::from_secs(5))
        );
        assert_eq!(age(now + Duration::from_secs(5), now), Some(Duration::ZERO));
        assert_eq!(age(now + Duration::from_secs(9000), now), None);
        assert_eq!(age(Duration::from_secs(1_000_000_000), now), None);
    }

    #[test]
    fn a_report_says_that_a_lock_without_a_ttl_stays() {
        let text = read("string", b"1", None).to_string();
        assert!(text.contains("without a TTL"), "{text}");
    }
}
