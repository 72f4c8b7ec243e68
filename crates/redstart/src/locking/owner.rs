//! An owner: one random token that may own one lock. It asks the server for the lock, extends it and releases it.

use std::{pin::Pin, sync::Arc, time::Duration};

use redis::Value;

use super::{
    kind::{Acquire, Operations},
    lease::MAX_TTL,
    lock::Lock,
};
use crate::{
    duration::millis,
    error::Result,
    script::{Call, Script},
    store::{Optional, Store},
    token,
};

/// Whether an extension or a release found the lock still owned.
pub(crate) type StillOwned<'a> = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>;

/// What a guard does with the lock that it holds, on one server or on several. Both steps compare the owner's token and
/// act in one script.
pub(crate) trait Ownership: Send + Sync + 'static {
    /// Makes the lease run for at least `ttl` from now; `false` if the lock is no longer the owner's.
    fn extend(&self, ttl: Duration) -> StillOwned<'_>;
    /// Releases the lock; `false` if it was no longer the owner's.
    fn release(&self) -> StillOwned<'_>;
    /// The store whose background work finishes what a dropped guard left.
    fn store(&self) -> &Store;
    fn operations(&self) -> &'static Operations;
    fn namespace(&self) -> &Arc<str>;
    /// The token that owns the lock.
    fn token(&self) -> &str;
    /// Whether the lock is on one server, so that its token is all that a holder needs; see [`Ticket`](super::Ticket).
    fn has_ticket(&self) -> bool {
        true
    }
    /// The longest lease that `extend` may be asked for.
    fn longest_lease(&self) -> Duration {
        MAX_TTL
    }
}

/// How the lock is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Once, without waiting.
    Once,
    /// For the first time, by a caller that will wait.
    First,
    /// Again, by a caller that waits.
    Again,
}

pub(crate) enum Answer {
    /// With the fence token, or 0 if the lock has none.
    Granted(u64),
    /// With the time after which it is worth asking again; `None` if the holder's lease has no end.
    Busy(Option<Duration>),
}

impl Answer {
    fn read(reply: Value) -> Result<Self> {
        Ok(match reply {
            Value::Int(ms) => Self::Busy(pause(ms)),
            Value::Array(_) => match redis::from_redis_value(reply)? {
                (1, fence) => Self::Granted(u64::try_from(fence).unwrap_or(0)),
                (_, ms) => Self::Busy(pause(ms)),
            },
            fence => Self::Granted(redis::from_redis_value(fence)?),
        })
    }
}

/// From a reply of PTTL; a key that is gone (-2) is worth asking for at once.
fn pause(pttl: i64) -> Option<Duration> {
    match u64::try_from(pttl) {
        // The server expires it within the following millisecond.
        Ok(ms) => Some(Duration::from_millis(ms.saturating_add(1))),
        Err(_) if pttl == -1 => None,
        Err(_) => Some(Duration::ZERO),
    }
}

/// What the tokens of this library begin with.
const MARK: &str = "rs-";

/// A random token, marked as this library's, with the label that people see.
pub(crate) fn owner_token(label: Option<&str>) -> String {
    let token = token::token();
    match label {
        None => format!("{MARK}{token}"),
        Some(label) => format!("{MARK}{token}:{label}"),
    }
}

/// Whether a text may be the token of an owner.
pub(crate) fn is_token(text: &str) -> bool {
    let ours = text.starts_with(MARK) && text.len() <= 256;
    ours && !text.ends_with('+') && !text.contains(char::is_control)
}

/// The token and the label in the value of a lock, which has a `+` at its end if there are waiters.
pub(crate) fn parse_token(value: &str) -> (&str, Option<&str>) {
    let Some(ours) = value.strip_prefix(MARK) else {
        return (value, None);
    };
    let token = value.strip_suffix('+').unwrap_or(value);
    let ours = ours.strip_suffix('+').unwrap_or(ours);
    (token, ours.split_once(':').map(|(_, label)| label))
}

/// One token that may own one lock.
pub(crate) struct Owner {
    pub(crate) lock: Arc<Lock>,
    pub(crate) token: String,
}

impl Owner {
    pub(crate) fn new(lock: &Arc<Lock>, token: String) -> Self {
        Self {
            lock: lock.clone(),
            token,
        }
    }

    pub(crate) fn call(&self, script: &'static Script) -> Call<'_> {
        let lock = &self.lock;
        script.on(&lock.entity).keys(&lock.keys).arg(&self.token)
    }

    /// A call by the holder. The scripts of a plain lock need only its key for that.
    fn call_held(&self, script: &'static Script) -> Call<'_> {
        let lock = &self.lock;
        match lock.kind.plain {
            true => script.on(&lock.entity).key().arg(&self.token),
            false => self.call(script),
        }
    }

    pub(crate) async fn ask(&self, how: Ask) -> Result<Answer> {
        match self.lock.kind.acquire {
            Acquire::Script(script) => self.ask_script(script, how).await,
            Acquire::SetNx(script) if how == Ask::Again => self.ask_script(script, how).await,
            Acquire::SetNx(script) => {
                let mut set = redis::Cmd::with_capacity(6, 128);
                set.arg("SET").arg(self.lock.entity.key());
                set.arg(&self.token).arg("NX");
                set.arg("PX").arg(millis(self.lock.terms.ttl));
                match self
                    .lock
                    .store
                    .request_one(&set, self.lock.entity.slot(), false)
                    .await
                {
                    Ok(Value::Nil) if how == Ask::Once => Ok(Answer::Busy(None)),
                    Ok(Value::Nil) => self.ask_script(script, how).await,
                    Ok(_) => Ok(Answer::Granted(0)),
                    // Only the script can tell an earlier grant of this token from one of another owner.
                    Err(error) if error.is_in_doubt() && !error.is_timeout() => {
                        self.ask_script(script, how).await
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn ask_script(&self, script: &'static Script, how: Ask) -> Result<Answer> {
        let lock = &self.lock;
        let mut call = self.call(script).arg(millis(lock.terms.ttl));
        let waits = how != Ask::Once;
        if !lock.kind.plain {
            call = call
                .arg(u8::from(waits))
                .arg(millis(lock.terms.waiter()))
                .arg(&lock.channel)
                .arg(&lock.arguments[..]);
        } else if waits {
            call = call.arg(1);
        }
        let reply = call
            // Asked again with the same token, it gives the same answer.
            .idempotent()
            .run(&lock.store)
            .await?;
        Answer::read(reply)
    }

    /// Takes the place of the owner that handed the lock over. Returns the fence token, or 0 if the lock has none; `None` if
    /// the lock is not to be had.
    pub(crate) async fn redeem(&self, giver: &str) -> Result<Option<u64>> {
        let lock = &self.lock;
        lock.kind
            .redeem
            .on(&lock.entity)
            .keys(&lock.keys)
            .arg(giver)
            .arg(&self.token)
            .arg(millis(lock.terms.ttl))
            .arg(&lock.channel)
            .arg(&lock.arguments[..])
            // Asked again with the same new token, it gives the same answer.
            .idempotent()
            .run(&lock.store)
            .await
    }

    async fn release_once(&self) -> Result<bool> {
        let lock = &self.lock;
        if lock.kind.plain && self.release_natively().await? {
            lock.released(0);
            return Ok(true);
        }
        let reply: i64 = self
            .call_held(lock.kind.release)
            .arg(&lock.channel)
            .arg(&lock.arguments[..])
            .run(&lock.store)
            .await?;
        lock.released(u32::try_from(reply - 1).unwrap_or_default());
        Ok(reply >= 1)
    }

    /// Releases a lock that holds only the token by a native command, where the server has one. `false` if it has none,
    /// if there are waiters, or if the lock is no longer the owner's: the script can tell.
    async fn release_natively(&self) -> Result<bool> {
        let lock = &self.lock;
        if lock.lacks_native_release() {
            return Ok(false);
        }
        let (command, condition) = match lock.store.capabilities().await {
            Ok(known) if known.has(Optional::DelIfEq) => ("DELIFEQ", None),
            Ok(known) if known.has(Optional::DelEx) => ("DELEX", Some("IFEQ")),
            _ => return Ok(false),
        };
        let mut cmd = redis::Cmd::with_capacity(4, 128);
        cmd.arg(command).arg(lock.entity.key());
        if let Some(condition) = condition {
            cmd.arg(condition);
        }
        cmd.arg(&self.token);
        match lock
            .store
            .request_one(&cmd, lock.entity.slot(), false)
            .await
        {
            Ok(reply) => Ok(reply == Value::Int(1)),
            // Capabilities come from one node of a Cluster; the one that has this lock may be older.
            Err(error)
                if error.is_unknown_command()
                    && !crate::mend::is_missing("an old server is asked by script") =>
            {
                lock.set_lacks_native_release();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Ownership for Owner {
    fn extend(&self, ttl: Duration) -> StillOwned<'_> {
        Box::pin(async move {
            let reply: i64 = self
                .call_held(self.lock.kind.extend)
                .arg(millis(ttl))
                .arg(&self.lock.arguments[..])
                .idempotent()
                .run(&self.lock.store)
                .await?;
            Ok(reply == 1)
        })
    }

    fn release(&self) -> StillOwned<'_> {
        Box::pin(self.release_once())
    }

    fn token(&self) -> &str {
        &self.token
    }

    fn store(&self) -> &Store {
        &self.lock.store
    }

    fn operations(&self) -> &'static Operations {
        &self.lock.kind.operations
    }

    fn namespace(&self) -> &Arc<str> {
        self.lock.entity.namespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_back_and_tokens_of_other_clients_are_kept_whole() {
        for label in [None, Some("worker-7"), Some("a:b")] {
            let token = owner_token(label);
            assert_eq!(parse_token(&token), (token.as_str(), label));
            assert_eq!(parse_token(&format!("{token}+")), (token.as_str(), label));
        }
        assert_eq!(parse_token("theirs:x+"), ("theirs:x+", None));
    }
}
