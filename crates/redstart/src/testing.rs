//! Faults on purpose, for the tests of applications on `memory://`.
//!
//! An application that is correct while its store works may still be wrong when a reply is lost, when the store hangs, or when a
//! failover loses the last writes. [`Faults`] lets these happen in a test, at the place where the test wants them:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use std::time::Duration;
//! use redstart::{Store, commerce::{Request, Reserve, Stock}, testing::Faults};
//!
//! let store = Store::builder("memory://").deadline(Duration::from_millis(50)).connect().await?;
//! let faults = Faults::of(&store)?;
//! let stock = Stock::builder(&store, "shop", "spring").build()?;
//! let _ = stock.prewarm("console", 1, Duration::from_secs(3600)).await?;
//! let request = Request::new("console", "ann", "req-1");
//! let hold = Duration::from_secs(60);
//!
//! // A counter has no way to tell whether it was increased: the caller is told that it is in doubt.
//! faults.lose_next_reply();
//! let increased = store.query::<u64>(redis::cmd("INCR").arg("visits")).await;
//! assert!(increased.unwrap_err().is_in_doubt());
//!
//! // A reservation carries its id: repeating it is safe, and holds nothing twice.
//! faults.lose_next_reply();
//! let _ = stock.reserve(&request, 1, hold).await;
//! assert!(matches!(stock.reserve(&request, 1, hold).await?, Reserve::Replayed(_)));
//!
//! // While the store hangs, calls end by their deadline.
//! faults.hang();
//! let late = store.query::<u64>(redis::cmd("INCR").arg("visits")).await;
//! assert!(late.unwrap_err().is_in_doubt());
//! // The store wakes up, and carries out what it had received.
//! faults.resume();
//! assert_eq!(store.query::<u64>(redis::cmd("GET").arg("visits")).await?, 2);
//!
//! // The replica that takes over has the data of `keep`, and nothing of what came later.
//! faults.keep();
//! stock.confirm(&request).await?;
//! faults.fail_over()?;
//! let report = stock.report("console").await?.expect("the sale was kept");
//! assert_eq!((report.held, report.sold), (1, 0));
//! # Ok(()) }
//! ```
//!
//! [`Store::advance`] moves the clock: leases end and keys expire at once.
//!
//! # Limits
//!
//! Faults concern requests of the store that they were made of, and of its clones. Subscriptions and
//! [dedicated](Store::dedicated) connections are not concerned, except that a failover changes the data for all.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_engine::Engine;
use tokio::{sync::Notify, time::Instant};

use crate::{
    error::{Error, Result},
    store::Store,
};

/// Makes things go wrong on an embedded store. See the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Faults {
    mishaps: Arc<Mishaps>,
    engine: Engine,
}

impl Faults {
    /// The faults of a store and its clones.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the store is not embedded: for real servers, cut their connections.
    pub fn of(store: &Store) -> Result<Self> {
        match store.mishaps() {
            Some((mishaps, engine)) => Ok(Self { mishaps, engine }),
            None => Err(Error::config("only an embedded store can be made to fail")),
        }
    }

    /// The next request is carried out and its reply is lost. Called twice, so are the next two.
    ///
    /// As on a server, a request that is safe to repeat is repeated; any other one fails and is
    /// [in doubt](Error::is_in_doubt).
    pub fn lose_next_reply(&self) {
        self.mishaps
            .change(|state| state.next.push_back(Next::Lose));
    }

    /// The next request arrives undisturbed; use it to reach a later one.
    pub fn spare_next(&self) {
        self.mishaps
            .change(|state| state.next.push_back(Next::Spare));
    }

    /// From now on no request is answered until [`resume`](Self::resume). A request whose deadline passes meanwhile, or
    /// whose future is dropped, has been sent all the same: it is carried out when the store resumes.
    pub fn hang(&self) {
        self.mishaps.change(|state| state.hangs = true);
    }

    /// Ends a [hang](Self::hang). All requests that arrived meanwhile are carried out; first those whose callers have
    /// given up.
    pub fn resume(&self) {
        let mut arrived = Vec::new();
        self.mishaps.change(|state| {
            state.hangs = false;
            arrived = std::mem::take(&mut state.given_up);
        });
        for Arrived { db, commands } in arrived {
            let mut session = self.engine.session();
            if session.select(db).is_ok() {
                drop(session.execute_batch(&commands));
            }
        }
        self.mishaps.resumed.notify_waiters();
    }

    /// Remembers all data as it is now: what a replica has received.
    pub fn keep(&self) {
        let data = redstart_engine::sim::snapshot(&self.engine);
        self.mishaps.change(|state| state.kept = Some(data));
    }

    /// The replica takes over: the data is that of the last [`keep`](Self::keep), what was written since is gone, and no script
    /// is known.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) without a `keep` before.
    pub fn fail_over(&self) -> Result<()> {
        let kept = self.mishaps.state.lock().kept.clone();
        let kept = kept.ok_or_else(|| Error::config("call keep() before fail_over()"))?;
        redstart_engine::sim::restore(&self.engine, &kept);
        Ok(())
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

/// What is going to go wrong.
#[derive(Default)]
pub(crate) struct Mishaps {
    /// Something is. Looked at by every request.
    armed: AtomicBool,
    state: Mutex<State>,
    resumed: Notify,
}

#[derive(Default)]
struct State {
    next: VecDeque<Next>,
    hangs: bool,
    /// Requests that arrived during a hang and that nobody waits for any more.
    given_up: Vec<Arrived>,
    kept: Option<Vec<u8>>,
}

/// A request that was sent.
pub(crate) struct Arrived {
    pub(crate) db: usize,
    pub(crate) commands: Vec<Vec<Bytes>>,
}

/// Waits for the answer to a request that has arrived. Dropped before that, it leaves the request with the store.
struct Waiting<'a> {
    mishaps: &'a Mishaps,
    arrived: Option<Arrived>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(arrived) = self.arrived.take() {
            self.mishaps.change(|state| state.given_up.push(arrived));
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Spare,
    Lose,
}

impl Mishaps {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let armed = state.hangs || !state.next.is_empty();
        self.armed.store(armed, Ordering::Release);
    }

    pub(crate) fn are_due(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// Waits while the store hangs; false if it hung until the deadline.
    pub(crate) async fn answers_by(
        &self,
        deadline: Instant,
        request: impl FnOnce() -> Option<Arrived>,
    ) -> bool {
        if !self.state.lock().hangs {
            return true;
        }
        let mut waiting = Waiting {
            mishaps: self,
            arrived: request(),
        };
        loop {
            let mut resumed = std::pin::pin!(self.resumed.notified());
            resumed.as_mut().enable();
            if !self.state.lock().hangs {
                // Its caller carries it out.
                waiting.arrived = None;
                return true;
            }
            if tokio::time::timeout_at(deadline, resumed).await.is_err() {
                return false;
            }
        }
    }

    /// What becomes of the request that arrives now.
    pub(crate) fn take(&self) -> Next {
        let mut next = None;
        self.change(|state| next = state.next.pop_front());
        next.unwrap_or(Next::Spare)
    }
}
