//! What has happened to the data and to the clients: which promises it excuses.

use std::time::Duration;

use super::World;
use crate::{
    plan::{Fault, FaultKind},
    trouble::What,
};

/// How long it takes to make a connection again, beside the deadline of the call that failed: pauses of up to 400 ms.
const AGAIN: Duration = Duration::from_millis(500);

impl World {
    /// What servers took between these times may be gone.
    pub fn lost(&self, from: Duration, to: Duration) {
        self.inner.lock().losses.push((from, to));
    }

    /// Whether something that a server took between these times, or held then, may be gone.
    pub fn may_have_lost(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        let losses = inner.losses.iter();
        losses
            .into_iter()
            .any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// What is done next by a client that aims at a loss: when that loses everything from, and when it happens.
    pub fn next_loss(&self, within: Duration) -> Option<(Duration, Duration)> {
        let now = self.now();
        let ahead = |fault: &&Fault| now < fault.at && fault.at <= now + within;
        let mut losses = self.plan.faults.iter().filter(ahead);
        losses.find_map(|fault| Some((fault.at.saturating_sub(fault.kind.lag()?), fault.at)))
    }

    /// Whether keys of one slot may be of different times: a server lost writes in a world in which keys move one by one.
    pub fn may_be_torn(&self) -> bool {
        let moves = |fault: &Fault| matches!(fault.kind, FaultKind::MoveSlots { .. });
        self.plan.faults.iter().any(moves) && self.may_have_lost(Duration::ZERO, self.now())
    }

    /// All times in which data may have been lost.
    pub fn losses(&self) -> Vec<(Duration, Duration)> {
        self.inner.lock().losses.clone()
    }

    /// Data has come under another server's clock.
    pub(crate) fn clock_jumps(&self) {
        let now = self.now();
        self.inner.lock().jumps.push(now);
    }

    /// Whether data came under another server's clock between these times: what was to end then ends earlier or later.
    pub fn clock_jumped(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        inner.jumps.iter().any(|at| from <= *at && *at <= to)
    }

    /// The machine of a client is suspended for this time.
    pub(crate) fn suspends(&self, client: usize, lasts: Duration) {
        let now = self.now();
        let suspension = (client, now, now + lasts);
        self.inner.lock().suspensions.push(suspension);
    }

    /// Whether a machine was suspended between these times: a process cannot know that a lease has ended meanwhile.
    pub fn was_suspended(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        let mut times = inner.suspensions.iter();
        times.any(|(_, at, until)| from <= *until && *at <= to)
    }

    /// Whether the machine of this client was suspended since then.
    pub fn is_suspended_since(&self, client: usize, from: Duration) -> bool {
        let inner = self.inner.lock();
        let mut suspensions = inner.suspensions.iter();
        suspensions.any(|(of, _, until)| *of == client && from <= *until)
    }

    /// For how long a client had stood still that runs on just now.
    pub fn stood_still_until_now(&self, client: usize) -> Option<Duration> {
        let (at, stood) = (*self.lives.get(client)?.woke.lock())?;
        (at == self.now()).then_some(stood)
    }

    /// A server drops keys.
    pub(crate) fn evicted(&self) {
        let now = self.now();
        self.inner.lock().evictions.push(now);
    }

    /// Whether a server has dropped keys between these times.
    pub fn has_evicted(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        inner.evictions.iter().any(|at| from <= *at && *at <= to)
    }

    /// Whether a client kept a lease that it has renewed every third of it since it asked for it: nothing that a server knew was
    /// lost, no clock that counts jumped, and no renewal was hindered for so long that the lease ended.
    pub fn must_keep_lease(&self, client: usize, asked: Duration, lease: Duration) -> bool {
        let now = self.now();
        let data = self.may_have_lost(asked, now)
            || self.has_evicted(asked, now)
            || self.clock_jumped(asked, now)
            || self.was_suspended(asked, now);
        let clock = || {
            self.troubles
                .any(client, asked, now, |what| what == What::Clock)
        };
        !data && !clock() && !self.was_hindered(client, asked, lease)
    }

    /// Whether a client could not renew a lease in time, all that went wrong since it asked for it taken together: the first
    /// attempt is made when a third of the lease has passed, and those that fail are followed by pauses of up to a third.
    pub fn was_hindered(&self, client: usize, asked: Duration, lease: Duration) -> bool {
        let after = self.plan.deadline + AGAIN;
        self.troubles.lasted(client, asked, self.now(), after) >= lease / 3
    }
}
