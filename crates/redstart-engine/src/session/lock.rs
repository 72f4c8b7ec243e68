//! The lock of the engine's state: how long callers wait for it, and what is settled when it is free.

use std::{sync::atomic::Ordering, task::Poll, time::Duration};

use parking_lot::MutexGuard;

use crate::{
    aof::Place,
    blocking,
    client::{Client, Watch},
    commands::transaction,
    dispatch,
    engine::{Inner, State},
    notify::class,
    reply::Reply,
};

/// How long a task may stand still for the lock. Commands hold it for microseconds; only a slow
/// script or a huge command holds it for longer.
pub(super) const PATIENCE: Duration = Duration::from_millis(5);

/// What ended while a script held the engine's state, and is settled when the state is free.
pub(crate) enum Ended {
    /// A wait, by its number.
    Wait(u64),
    /// The watching of a client, by its number.
    Watch(u64, Box<Watch>),
    Client(Box<Client>),
}

impl Ended {
    fn settle(self, state: &mut State, now_micros: i64) {
        match self {
            Ended::Wait(number) => blocking::cancel(state, number, now_micros),
            Ended::Watch(client, watch) => transaction::end_watch(state, client, *watch),
            Ended::Client(mut client) => client.disconnect(state),
        }
    }
}

impl Inner {
    /// The engine's state, however long that takes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        self.settle_ended(&mut state);
        state
    }

    /// The engine's state, unless it is held for longer than commands hold it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        let state = match self.state.try_lock() {
            Some(state) => Some(state),
            // A script that is known to be slow will not be done in a moment.
            None if self.watchdog.is_busy() => None,
            None if self.watchdog.is_long() && self.clock.is_live() => None,
            None => self.state.try_lock_for(PATIENCE),
        };
        let mut state = state?;
        self.settle_ended(&mut state);
        Some(state)
    }

    #[inline]
    fn settle_ended(&self, state: &mut State) {
        if self.some_ended.load(Ordering::Relaxed) {
            self.some_ended.store(false, Ordering::Relaxed);
            let ended = std::mem::take(&mut *self.ended.lock());
            let now = self.clock.now_micros();
            for one in ended {
                one.settle(state, now);
            }
        }
    }

    /// Settles the end of a client or a wait now, or when the state is free.
    pub(super) fn end(&self, ended: Ended) {
        match self.try_lock() {
            Some(mut state) => ended.settle(&mut state, self.clock.now_micros()),
            None => {
                self.ended.lock().push(ended);
                self.some_ended.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Does what is due by now; needed where no commands come.
    pub(crate) fn tick(&self) {
        let now = self.clock.now_micros();
        // A caller that holds the lock does the same.
        if let Some(mut state) = self.state.try_lock() {
            self.settle_ended(&mut state);
            dispatch::tick(&mut state, now);
            dispatch::finish(&mut state, now);
        }
    }

    /// Whether anyone subscribed to the expiry of keys, which happens also while no command comes.
    pub(super) fn tells_of_expiry(&self) -> bool {
        let told = |state: &State| state.config.notify & class::EXPIRED != 0;
        self.clock.is_live() && self.state.try_lock().is_none_or(|state| told(&state))
    }

    /// Waits until replies that depend on this position of the log may leave.
    pub(super) async fn kept(&self, position: u64) -> Result<(), Reply> {
        if position == 0 {
            return Ok(());
        }
        let mut place = Place::default();
        std::future::poll_fn(|cx| self.poll_kept(position, &mut place, cx)).await
    }

    /// Waits a moment while the state is held for long.
    pub(super) async fn wait_for_lock(&self) {
        if self.can_sleep() {
            tokio::time::sleep(PATIENCE).await;
        } else {
            // Looking for the lock takes a moment, too.
            let mut looked = false;
            std::future::poll_fn(|cx| match std::mem::replace(&mut looked, true) {
                true => Poll::Ready(()),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
        }
    }

    /// Whether this is a runtime whose clock is the engine's.
    pub(super) fn can_sleep(&self) -> bool {
        self.clock.is_live() && tokio::runtime::Handle::try_current().is_ok()
    }
}
