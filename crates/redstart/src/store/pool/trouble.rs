//! Whether a server is known to be down.
//!
//! The first requests that meet a server that does not answer wait for it, within their deadlines and for one grace
//! period in all. When that is over, the server is known to be down: every other request fails at once, so that a
//! page with five patterns pays one deadline and not five. A background task keeps trying to connect, and its first
//! success ends the trouble.
//!
//! The grace period is one deadline of the store since the first request began, or since a connection was first wanted. The
//! deadline of a handle that is in more of a hurry does not count: what it could not wait for, others can.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

#[derive(Default)]
pub(super) struct Trouble {
    present: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    since: Option<Since>,
    /// How often trouble ended, or a connection was made without any.
    ends: u64,
}

/// A moment between two ends of trouble. What was seen to fail in it says nothing once another end has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

struct Since {
    /// Until then, requests wait for a connection.
    grace: Instant,
    cause: Option<Arc<Error>>,
}

impl Trouble {
    pub(super) fn is_present(&self) -> bool {
        self.present.load(Ordering::Acquire)
    }

    /// To be asked before looking for a connection that is then found missing.
    pub(super) fn seen(&self) -> Seen {
        Seen(self.state.lock().ends)
    }

    /// Something failed, unless a connection was made since. Later failures add what is known of the cause, and do not
    /// prolong the grace period: one that began earlier than the first, and failed later, makes it shorter.
    pub(super) fn begin(&self, seen: Seen, grace: Instant, cause: Option<&Arc<Error>>) {
        let mut state = self.state.lock();
        if seen != Seen(state.ends) {
            return;
        }
        let since = state
            .since
            .get_or_insert_with(|| Since { grace, cause: None });
        since.grace = since.grace.min(grace);
        if let Some(cause) = cause {
            since.cause = Some(cause.clone());
        }
        self.present.store(true, Ordering::Release);
    }

    /// To be called after the connection can be found.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.since = None;
        state.ends += 1;
        self.present.store(false, Ordering::Release);
    }

    /// Why connecting failed, if that is known.
    pub(super) fn cause(&self) -> Option<Error> {
        let state = self.state.lock();
        let cause = state.since.as_ref()?.cause.as_ref();
        cause.map(Error::shared)
    }

    /// Until when a request may wait for a connection: its deadline, or the end of the grace period.
    ///
    /// # Errors
    ///
    /// The server is known to be down.
    pub(super) fn wait_until(
        &self,
        deadline: Instant,
        place: impl FnOnce() -> String,
    ) -> Result<Instant, Error> {
        if !self.is_present() {
            return Ok(deadline);
        }
        let state = self.state.lock();
        match &state.since {
            None => Ok(deadline),
            Some(since) if Instant::now() < since.grace => Ok(deadline.min(since.grace)),
            Some(since) => Err(match &since.cause {
                Some(cause) => Error::shared(cause),
                None => Error::unavailable(format!("{} is down", place())),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A request that waited in vain may say so after the connection was made.
    #[test]
    fn a_failure_from_before_a_success_begins_nothing() {
        let trouble = Trouble::default();
        let now = Instant::now();
        let waiting = trouble.seen();
        trouble.end();
        trouble.begin(waiting, now, None);
        assert!(!trouble.is_present());
        trouble.begin(trouble.seen(), now, None);
        assert!(trouble.is_present());
        assert!(trouble.wait_until(now, String::new).is_err());
        trouble.end();
        assert!(!trouble.is_present());
        assert!(trouble.wait_until(now, String::new).is_ok());
    }

    #[test]
    fn the_earliest_request_sets_the_grace_period() {
        let trouble = Trouble::default();
        let now = Instant::now();
        let (grace, deadline) = (Duration::from_secs(60), Duration::from_secs(600));
        let seen = trouble.seen();
        // One in a hurry failed first; another that began before it fails then, and a third later.
        for part in [3, 2, 4] {
            trouble.begin(seen, now + grace * part / 2, None);
        }
        let until = trouble.wait_until(now + deadline, String::new);
        assert_eq!(until.ok(), Some(now + grace));
        // Nobody waits beyond its own deadline.
        let until = trouble.wait_until(now + grace / 2, String::new);
        assert_eq!(until.ok(), Some(now + grace / 2));
    }
}
