//! Whether a server is known to be down.
//!
//! The first requests that meet a server that does not answer wait for it, within their deadlines and for one grace
//! period in all. When that is over, the server is known to be down: every other request fails at once, so that a
//! page with five patterns pays one deadline and not five. A background task keeps trying to connect, and its first
//! success ends the trouble.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;

#[derive(Default)]
pub(super) struct Trouble {
    present: AtomicBool,
    since: Mutex<Option<Since>>,
}

struct Since {
    /// Until then, requests wait for a connection.
    grace: Instant,
    cause: Option<Arc<Error>>,
}

impl Trouble {
    pub(super) fn is_present(&self) -> bool {
        self.present.load(Ordering::Acquire)
    }

    /// Something failed. Only the first failure sets the grace period; later ones add what is known of the cause.
    pub(super) fn begin(&self, grace: Duration, cause: Option<&Arc<Error>>) {
        let mut since = self.since.lock();
        let since = since.get_or_insert_with(|| Since {
            grace: Instant::now() + grace,
            cause: None,
        });
        if let Some(cause) = cause {
            since.cause = Some(cause.clone());
        }
        self.present.store(true, Ordering::Release);
    }

    pub(super) fn end(&self) {
        *self.since.lock() = None;
        self.present.store(false, Ordering::Release);
    }

    /// Why connecting failed, if that is known.
    pub(super) fn cause(&self) -> Option<Error> {
        let since = self.since.lock();
        since.as_ref()?.cause.as_ref().map(Error::shared)
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
        let since = self.since.lock();
        match &*since {
            None => Ok(deadline),
            Some(since) if Instant::now() < since.grace => Ok(deadline.min(since.grace)),
            Some(since) => Err(match &since.cause {
                Some(cause) => Error::shared(cause),
                None => Error::unavailable(format!("{} is down", place())),
            }),
        }
    }
}
