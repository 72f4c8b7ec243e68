//! Watching who leads.

use std::{fmt, sync::Arc, time::Duration};

use super::{Elected, read};
use crate::{
    error::Result,
    locking::{lock::Lock, wake_up::Listener},
};

/// Reports who leads, change by change. Made by [`Leader::observe`](super::Leader::observe).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Leader};
/// let store = Store::connect("memory://").await?;
/// let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
/// let mut observer = office.observe();
/// assert_eq!(observer.next().await?, None);
///
/// let leadership = office.campaign(Duration::from_secs(1)).await?.expect("there is no other candidate");
/// assert_eq!(observer.next().await?.expect("elected").id, "node-1");
/// leadership.resign().await?;
/// assert_eq!(observer.next().await?, None);
/// # Ok(()) }
/// ```
pub struct LeaderObserver {
    lock: Arc<Lock>,
    listener: Option<Listener>,
    /// What was reported last.
    last: Option<Option<Elected>>,
}

impl LeaderObserver {
    pub(super) fn new(lock: Arc<Lock>) -> Self {
        Self {
            lock,
            listener: None,
            last: None,
        }
    }

    /// Waits until the leader is not the one that was reported last, and reports it; the first call returns at once.
    /// `None` means that there is no leader. Leaders that came and went between two looks are not reported.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`](crate::Store). The observer stays usable: call it again.
    ///
    /// # Cancel safety
    ///
    /// No change is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Elected>> {
        let lock = self.lock.clone();
        let clock = lock.store.clock();
        if self.listener.is_none() {
            // Listening begins before the first look, so that no change falls between the two.
            self.listener = match Listener::open(&lock.store, &lock.channel).await {
                Ok(listener) => Some(listener),
                // A store that cannot subscribe polls.
                Err(error) if error.is_config() => None,
                Err(error) => return Err(error),
            };
        }
        loop {
            let seen = read(&lock).await?;
            let left = seen.as_ref().and_then(|(_, left)| *left);
            let now = seen.map(|(elected, _)| elected);
            if self.last.as_ref() != Some(&now) {
                self.last = Some(now.clone());
                return Ok(now);
            }
            let ttl = lock.terms.ttl;
            let pause = left.map_or(ttl, |left| left + Duration::from_millis(1));
            match &mut self.listener {
                Some(listener) => {
                    let pause = pause.min(if listener.stands() { ttl } else { ttl / 3 });
                    tokio::select! {
                        biased;
                        () = listener.any() => {}
                        () = clock.sleep(pause) => {}
                    }
                }
                None => clock.sleep(pause.min(ttl / 3)).await,
            }
        }
    }
}

impl fmt::Debug for LeaderObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderObserver")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
