//! Taking several mutexes, all or none.

use std::time::Duration;

use super::Mutex;
use crate::{
    error::{Error, Result},
    locking::{fence::Fencing, guard::Guard, lease::deadline},
};

impl<F: Fencing> Mutex<F> {
    /// Takes all of these locks, or none: `None` if one of them is held.
    ///
    /// They are requested one after another in the order of their keys, whatever order they are given in, so that callers
    /// with overlapping sets do not block each other for ever. The guards are in the order of `mutexes`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Mutex};
    /// let store = Store::connect("memory://").await?;
    /// let ann = Mutex::new(&store, "bank", "account:ann")?;
    /// let bob = Mutex::new(&store, "bank", "account:bob")?;
    ///
    /// let both = Mutex::try_lock_all(&[bob.clone(), ann.clone()]).await?.expect("both are free");
    /// assert!(ann.try_lock().await?.is_none());
    /// for guard in both {
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if one lock is given twice, and those of the [`Store`](crate::Store). What was
    /// granted is released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released in the background.
    pub async fn try_lock_all(mutexes: &[Self]) -> Result<Option<Vec<Guard<F>>>> {
        Self::all(mutexes, None).await
    }

    /// Takes all of these locks as soon as they are free; `None` if one of them was still held after `wait`, which is for
    /// all of them together. See [`try_lock_all`](Self::try_lock_all).
    ///
    /// # Errors
    ///
    /// As [`try_lock_all`](Self::try_lock_all).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released in the background.
    pub async fn lock_all(mutexes: &[Self], wait: Duration) -> Result<Option<Vec<Guard<F>>>> {
        Self::all(mutexes, Some(wait)).await
    }

    async fn all(mutexes: &[Self], wait: Option<Duration>) -> Result<Option<Vec<Guard<F>>>> {
        let Some(first) = mutexes.first() else {
            return Ok(Some(Vec::new()));
        };
        let clock = first.lock.store.clock();
        let deadline = wait.map(|wait| deadline(clock.now(), wait));
        let key = |at: &usize| mutexes[*at].lock.entity.key();
        let mut order: Vec<usize> = (0..mutexes.len()).collect();
        order.sort_by(|a, b| key(a).cmp(key(b)));
        if order.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(Error::config(
                "a lock is given twice: it would wait for itself",
            ));
        }
        let mut guards: Vec<Option<Guard<F>>> = mutexes.iter().map(|_| None).collect();
        for at in order {
            let granted = match deadline {
                None => mutexes[at].try_lock().await?,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(clock.now());
                    mutexes[at].lock(left).await?
                }
            };
            match granted {
                Some(guard) => guards[at] = Some(guard),
                None => {
                    // In the foreground, so that they are free when the caller knows; dropped, the rest are released too.
                    for guard in guards.into_iter().flatten() {
                        guard.release().await?;
                    }
                    return Ok(None);
                }
            }
        }
        let guards: Vec<_> = guards.into_iter().flatten().collect();
        // The first lease may have ended while the last lock was waited for.
        match guards.iter().all(Guard::is_valid) {
            true => Ok(Some(guards)),
            false => Err(Error::timeout(
                "a lease ended before all locks were granted",
            )),
        }
    }
}
