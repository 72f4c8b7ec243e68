//! Getting a lock: one request under way, and the loop of a caller that waits.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    fence::Fencing,
    guard::{Guard, release_in_background},
    kind::Waiting,
    lease::{Terms, valid_until},
    lock::Lock,
    owner::{Answer, Ask, Owner, Ownership},
    wake_up::{Listener, WokenBy},
};
use crate::{
    error::{Error, Result},
    observe,
    store::{Backoff, Clock},
};

/// An acquisition under way. Dropped before its end, because the caller's future was dropped, it releases whatever the
/// server may have granted or recorded by then.
pub(crate) struct Acquisition<O: Ownership> {
    owner: Option<Arc<O>>,
    /// Whether the server may have recorded anything for this owner.
    pub(crate) recorded: bool,
}

impl<O: Ownership> Acquisition<O> {
    pub(crate) fn new(owner: O) -> Self {
        Self {
            owner: Some(Arc::new(owner)),
            recorded: false,
        }
    }

    pub(crate) fn owner(&self) -> &O {
        // Taken only by `into_guard`, which takes the acquisition too.
        self.owner
            .as_deref()
            .expect("an acquisition has its owner until it becomes a guard")
    }

    /// The guard of a lock that was granted, unless its lease has ended already.
    pub(crate) fn into_guard<F: Fencing>(
        mut self,
        fence: u64,
        asked: Instant,
        terms: Terms,
    ) -> Result<Guard<F>> {
        if self.owner().store().clock().now() >= valid_until(asked, terms.ttl) {
            return Err(Error::timeout("the reply came after the lease had ended"));
        }
        match self.owner.take() {
            Some(owner) => Ok(Guard::new(owner, F::issued(fence), asked, terms)),
            None => Err(Error::config("an acquisition can become a guard only once")),
        }
    }
}

impl<O: Ownership> Drop for Acquisition<O> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take()
            && self.recorded
        {
            release_in_background(owner);
        }
    }
}

/// A caller that waits for a lock until its deadline.
pub(crate) struct Waiter<'a> {
    lock: &'a Arc<Lock>,
    clock: Clock,
    deadline: Instant,
    acquisition: Acquisition<Owner>,
    /// When the lease would have begun if the last request, or one whose reply was lost, was granted.
    asked: Instant,
    /// Whether the reply to a request with this token was lost.
    in_doubt: bool,
    how: Ask,
    /// Releases after which somebody else got the lock.
    missed: u32,
    backoff: Backoff,
    listening: Listening,
    /// How long to sleep while messages cannot arrive.
    deaf: Duration,
}

/// While messages cannot arrive, a waiter asks after this time, then less often.
const DEAF_FIRST: Duration = Duration::from_millis(100);
const DEAF_MAX: Duration = Duration::from_secs(1);
/// After a gap, the waiters of a process ask within this time, if they are many.
const AFTER_GAP_MAX: Duration = Duration::from_millis(50);
const AFTER_GAP_EACH: Duration = Duration::from_micros(50);

enum Listening {
    NotYet,
    To(Listener),
    /// This store cannot subscribe, so the waiter polls.
    Impossible,
}

enum Asked<F: Fencing> {
    Granted(Guard<F>),
    /// Ask again after this time.
    Busy(Duration),
    /// Ask again after this time; the request failed.
    Failed(Duration, Error),
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(lock: &'a Arc<Lock>, deadline: Instant) -> Self {
        let clock = lock.store.clock();
        Self {
            lock,
            deadline,
            acquisition: lock.acquisition(),
            asked: clock.now(),
            clock,
            in_doubt: false,
            how: Ask::First,
            missed: 0,
            backoff: Backoff::new(),
            listening: Listening::NotYet,
            deaf: DEAF_FIRST,
        }
    }

    pub(crate) async fn wait<F: Fencing>(mut self) -> Result<Option<Guard<F>>> {
        // A handle that released the lock a moment ago would ask before anybody else has heard of the release.
        self.lock.yield_to_waiters(self.missed).await;
        loop {
            let (pause, failure) = match self.ask().await? {
                Asked::Granted(guard) => return Ok(Some(guard)),
                Asked::Busy(pause) => (pause, None),
                Asked::Failed(pause, error) => (pause, Some(error)),
            };
            if self.clock.now() >= self.deadline {
                return match failure {
                    Some(error) => Err(error),
                    None => {
                        observe::event(self.lock.kind.operations.busy);
                        Ok(None)
                    }
                };
            }
            let subscribed = self.listen().await;
            if subscribed && failure.is_none() {
                // A release before the subscription stood was not heard.
                continue;
            }
            self.sleep(pause).await;
        }
    }

    async fn ask<F: Fencing>(&mut self) -> Result<Asked<F>> {
        if !self.in_doubt {
            // After a lost reply, the lease may run from that earlier request on.
            self.asked = self.clock.now();
        }
        self.acquisition.recorded = true;
        let answer = self.acquisition.owner().ask(self.how).await;
        self.how = Ask::Again;
        match answer {
            Ok(Answer::Granted(fence)) => {
                let granted = std::mem::replace(&mut self.acquisition, self.lock.acquisition());
                self.in_doubt = false;
                // A reply that came after the lease had ended is a failure like any other: ask again.
                Ok(
                    match granted.into_guard(fence, self.asked, self.lock.terms) {
                        Ok(guard) => Asked::Granted(guard),
                        Err(error) => Asked::Failed(self.backoff.next(), error),
                    },
                )
            }
            Ok(Answer::Busy(pause)) => {
                // Outside a line, a waiter leaves nothing on the server.
                self.acquisition.recorded = self.lock.kind.waiting == Waiting::Queued;
                self.in_doubt = false;
                self.backoff = Backoff::new();
                Ok(Asked::Busy(pause.unwrap_or(self.lock.terms.ttl)))
            }
            Err(error) if error.is_store_down() => {
                self.in_doubt = true;
                if self.clock.now() >= valid_until(self.asked, self.lock.terms.ttl) {
                    // A lease from that request would be over; start again with another token.
                    self.acquisition = self.lock.acquisition();
                    self.in_doubt = false;
                }
                Ok(Asked::Failed(self.backoff.next(), error))
            }
            Err(error) => {
                self.acquisition.recorded = !error.is_config();
                Err(error)
            }
        }
    }

    /// Starts to listen; true if the subscription has just been made and stands.
    async fn listen(&mut self) -> bool {
        if !matches!(self.listening, Listening::NotYet) {
            return false;
        }
        let lock = self.lock;
        match Listener::open(&lock.store, &lock.channel).await {
            Ok(listener) => {
                let stands = listener.stands();
                self.listening = Listening::To(listener);
                stands
            }
            Err(error) => {
                if error.is_config() {
                    self.listening = Listening::Impossible;
                }
                false
            }
        }
    }

    async fn sleep(&mut self, mut pause: Duration) {
        let lock = self.lock;
        if lock.kind.waiting == Waiting::Queued {
            pause = pause.min(lock.terms.waiter() / 3);
        }
        if let Some(poll) = lock.poll {
            pause = pause.min(poll);
        }
        match &self.listening {
            Listening::Impossible => {
                pause = pause.min(Duration::from_millis(crate::chance::range(25..=100)));
            }
            // The subscription may be refused for good, and a lease may be long.
            Listening::To(listener) if !listener.stands() => {
                pause = pause.min(self.deaf.mul_f64(crate::chance::range(0.5..=1.0)));
                self.deaf = (self.deaf * 2).min(DEAF_MAX);
            }
            Listening::To(_) => self.deaf = DEAF_FIRST,
            Listening::NotYet => {}
        }
        let until = self
            .clock
            .now()
            .checked_add(pause)
            .map_or(self.deadline, |until| until.min(self.deadline));
        let Listening::To(listener) = &mut self.listening else {
            return self.clock.sleep_until(until).await;
        };
        let stood = listener.stands();
        tokio::select! {
            biased;
            woken_by = listener.woken(&self.acquisition.owner().token) => {
                if woken_by == WokenBy::Gap && stood {
                    // Every waiter of every process is told at the same time.
                    self.disperse().await;
                }
                lock.yield_to_waiters(self.missed).await;
                self.missed += 1;
            }
            () = self.clock.sleep_until(until) => {}
        }
    }

    /// Sleeps for a random time, longer if many wait here.
    async fn disperse(&self) {
        let waiters = u32::try_from(self.lock.store.listeners(&self.lock.channel));
        let longest = AFTER_GAP_EACH.saturating_mul(waiters.unwrap_or(u32::MAX));
        let pause = longest
            .min(AFTER_GAP_MAX)
            .mul_f64(crate::chance::range(0.0..=1.0));
        let left = self.deadline.saturating_duration_since(self.clock.now());
        tokio::time::sleep(pause.min(left)).await;
    }
}
