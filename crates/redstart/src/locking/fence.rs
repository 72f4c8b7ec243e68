//! Fence tokens, and writes that refuse the stale ones.
//!
//! A lock in a store cannot stop a holder that believes in it: a process that was stopped for a minute wakes
//! up after its lease, in the middle of its work, and goes on. What it writes then must be refused by the
//! thing that is written to. That is what the token is for: each grant of a lock carries a number higher than
//! all before it, and the resource refuses a number lower than the highest it has seen.
//!
//! # What it promises
//!
//! - The token is issued in the same script that grants the lock, as `max(previous + 1, the server's time in
//!   µs)`. It rises from grant to grant, also when a failover loses the counter, as long as the clock of the
//!   new master is not behind the last grant by the old one.
//! - [`FencedStore`] compares and writes in one script: no write of a stale holder lands after a write of a
//!   newer one.
//!
//! # What it does not
//!
//! A resource that does not check tokens is not protected. In SQL the check is a column:
//! `UPDATE orders SET state = $1, fence = $2 WHERE id = $3 AND fence <= $2`, and no row updated means refused.
//!
//! # Keys, cost, store down
//!
//! | key | type | TTL |
//! |---|---|---|
//! | `<namespace>:fenced:{<name>}` | hash: `fence`, `value` | none: a mark that is forgotten lets old tokens pass |
//!
//! Each operation is one round trip: a script with two or three commands, `get` is one HMGET. While the store
//! is down writes fail, and nothing is written.

use std::{fmt, num::NonZero};

use crate::{
    error::{Error, Result},
    key::{Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

static WRITE: Script = Script::new("fenced.write", include_str!("fence/write.lua"));

/// The number of a grant: higher than those of all grants of the same lock before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceToken(NonZero<u64>);

/// Lua's numbers are exact up to here, and the tokens are compared in Lua.
const MAX_TOKEN: u64 = (1 << 53) - 1;

impl FenceToken {
    /// A token that came by another way, such as a column of a database or a request's header.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for zero and for numbers of 2^53 and above.
    pub fn new(token: u64) -> Result<Self> {
        match NonZero::new(token) {
            Some(token) if token.get() <= MAX_TOKEN => Ok(Self(token)),
            _ => Err(Error::config("a fence token is between 1 and 2^53 - 1")),
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

mod sealed {
    pub trait Sealed {
        /// From the script's answer.
        fn issued(token: u64) -> Self;
    }
}

/// What a guard carries: a [`FenceToken`], or nothing (`()`).
pub trait Fencing: sealed::Sealed + Copy + Send + Sync + 'static {}

impl sealed::Sealed for FenceToken {
    fn issued(token: u64) -> Self {
        // The scripts issue nothing below the server's time.
        Self(NonZero::new(token).unwrap_or(NonZero::<u64>::MIN))
    }
}
impl Fencing for FenceToken {}

impl sealed::Sealed for () {
    fn issued(_: u64) {}
}
impl Fencing for () {}

/// What became of a fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It was done.
    Done,
    /// A holder with a higher token was here before; nothing was changed.
    Stale {
        /// The highest token seen.
        highest: FenceToken,
    },
}

/// Values that only the newest holder can change. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, locking::{Mutex, fence::{FencedStore, Write}}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").build()?;
/// let orders = FencedStore::new(&store, "shop")?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else has it");
/// let old = guard.fence();
/// guard.release().await?;
///
/// let guard = mutex.try_lock().await?.expect("it was released");
/// assert_eq!(orders.set("order:5001", "paid", guard.fence()).await?, Write::Done);
/// // The first holder wakes up and still believes that it has the lock.
/// assert!(matches!(orders.set("order:5001", "cancelled", old).await?, Write::Stale { .. }));
/// assert_eq!(orders.get("order:5001").await?.as_deref(), Some(&b"paid"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FencedStore {
    store: Store,
    keys: Keys,
}

impl FencedStore {
    /// The guarded values of a namespace.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the namespace breaks the [rules](crate::key#rules-for-names).
    pub fn new(store: &Store, namespace: &str) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            keys: Keys::new(namespace, "fenced")?,
        })
    }

    /// Uses keys of the application's own.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.keys = self.keys.layout(layout);
        self
    }

    /// Writes a value, unless a holder with a higher token was here before. The same holder may write often.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or too long name, and those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the value may have been written; never by a stale token.
    pub async fn set(
        &self,
        name: &str,
        value: impl AsRef<[u8]>,
        fence: FenceToken,
    ) -> Result<Write> {
        self.write(name, "set", value.as_ref(), fence).await
    }

    /// Deletes a value under the same rule. The mark stays.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn delete(&self, name: &str, fence: FenceToken) -> Result<Write> {
        self.write(name, "delete", b"", fence).await
    }

    /// Only raises the mark: from now on lower tokens are refused. A new holder that begins with a long
    /// computation can shut out its predecessors at once.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn admit(&self, name: &str, fence: FenceToken) -> Result<Write> {
        self.write(name, "admit", b"", fence).await
    }

    async fn write(
        &self,
        name: &str,
        verb: &'static str,
        value: &[u8],
        fence: FenceToken,
    ) -> Result<Write> {
        observe::operation("fenced.write", self.keys.namespace(), async {
            let entity = self.keys.entity(name)?;
            let (done, highest): (i64, u64) = WRITE
                .on(&entity)
                .key()
                .arg(fence.get())
                .arg(verb)
                .arg(value)
                // The same token may write the same value twice.
                .idempotent()
                .run(&self.store)
                .await?;
            if done == 1 {
                return Ok(Write::Done);
            }
            observe::event("fenced.stale");
            Ok(Write::Stale {
                highest: sealed::Sealed::issued(highest),
            })
        })
        .await
    }

    /// The value, if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        observe::operation("fenced.read", self.keys.namespace(), async {
            let entity = self.keys.entity(name)?;
            self.store
                .query(redis::cmd("HGET").arg(entity.key()).arg("value"))
                .await
        })
        .await
    }

    /// The highest token seen, if there was one.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub async fn highest(&self, name: &str) -> Result<Option<FenceToken>> {
        observe::operation("fenced.read", self.keys.namespace(), async {
            let entity = self.keys.entity(name)?;
            let mark: Option<u64> = self
                .store
                .query(redis::cmd("HGET").arg(entity.key()).arg("fence"))
                .await?;
            mark.map(FenceToken::new).transpose()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_lua_cannot_compare_are_refused() {
        for bad in [0, 1 << 53, u64::MAX] {
            assert!(FenceToken::new(bad).unwrap_err().is_config());
        }
        assert!(FenceToken::new(1).unwrap() < FenceToken::new(MAX_TOKEN).unwrap());
    }
}
