//! One lock on one store, as all clones of a handle share it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use super::{
    acquisition::{Acquisition, Waiter},
    fence::Fencing,
    guard::Guard,
    kind::{LockKind, Waiting},
    lease::{Terms, deadline},
    owner::{Answer, Ask, Owner, owner_token},
};
use crate::{
    error::Result,
    key::{Channel, Entity, Key},
    observe,
    store::Store,
};

pub(crate) struct Lock {
    pub(crate) store: Store,
    pub(crate) entity: Entity,
    /// The channel on which waiters listen.
    pub(crate) channel: Channel,
    /// The entity's own key and those of its parts, in the order of KEYS.
    pub(crate) keys: Vec<Key>,
    pub(crate) kind: &'static LockKind,
    /// What comes last in the ARGV of its scripts.
    pub(crate) arguments: Vec<String>,
    pub(crate) terms: Terms,
    /// What an owner of this handle is called, for people.
    pub(crate) label: Option<String>,
    /// How often to ask while waiting, where holders may release without a wake-up.
    pub(crate) poll: Option<Duration>,
    /// Held by the waiter that asks the server, if the kind lets only one of a handle ask.
    asking: Mutex<()>,
    /// Whether the server that has this lock refused the native command for a release.
    lacks_native_release: AtomicBool,
    /// How many waiters the last release woke, and when that was.
    woken: parking_lot::Mutex<Option<(u32, Instant)>>,
}

impl Lock {
    pub(crate) fn new(
        store: Store,
        entity: Entity,
        kind: &'static LockKind,
        arguments: Vec<String>,
        terms: Terms,
    ) -> Self {
        let parts = kind.parts.iter().map(|part| entity.part(part));
        Self {
            channel: entity.channel("wake"),
            keys: std::iter::once(entity.key().clone()).chain(parts).collect(),
            store,
            entity,
            kind,
            arguments,
            terms,
            label: None,
            poll: kind.poll,
            asking: Mutex::new(()),
            lacks_native_release: AtomicBool::new(false),
            woken: parking_lot::Mutex::new(None),
        }
    }

    pub(crate) fn lacks_native_release(&self) -> bool {
        self.lacks_native_release.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lacks_native_release(&self) {
        self.lacks_native_release.store(true, Ordering::Relaxed);
    }

    /// Asks once and does not wait.
    pub(crate) async fn try_lock<F: Fencing>(self: &Arc<Self>) -> Result<Option<Guard<F>>> {
        let operations = &self.kind.operations;
        observe::operation(operations.acquire, self.entity.namespace(), async {
            let mut acquisition = self.acquisition();
            let asked = self.store.clock().now();
            acquisition.recorded = true;
            match acquisition.owner().ask(Ask::Once).await {
                Ok(Answer::Granted(fence)) => {
                    acquisition.into_guard(fence, asked, self.terms).map(Some)
                }
                Ok(Answer::Busy(_)) => {
                    acquisition.recorded = false;
                    observe::event(operations.busy);
                    Ok(None)
                }
                Err(error) => {
                    acquisition.recorded = !error.is_config();
                    Err(error)
                }
            }
        })
        .await
    }

    /// Asks until the lock is granted or `wait` has passed. Between requests it sleeps until the holder releases the
    /// lock, until the holder's lease ends, or until a wake-up may have been missed.
    pub(crate) async fn lock<F: Fencing>(
        self: &Arc<Self>,
        wait: Duration,
    ) -> Result<Option<Guard<F>>> {
        let operation = self.kind.operations.acquire;
        observe::operation(operation, self.entity.namespace(), async {
            let clock = self.store.clock();
            let deadline = deadline(clock.now(), wait);
            // A waiter that never becomes the first of its handle still asks once: only the server can refuse.
            let _first = match self.kind.waiting {
                Waiting::Serial => tokio::select! {
                    biased;
                    first = self.asking.lock() => Some(first),
                    () = clock.sleep_until(deadline) => None,
                },
                Waiting::Parallel | Waiting::Queued => None,
            };
            Waiter::new(self, deadline).wait().await
        })
        .await
    }

    pub(crate) fn acquisition(self: &Arc<Self>) -> Acquisition<Owner> {
        let token = owner_token(self.label.as_deref());
        Acquisition::new(Owner::new(self, token))
    }

    /// How many waiters there are if so many connections listen: all waiters of this store share one of them.
    pub(crate) fn waiters(&self, connections: u64) -> u64 {
        let here = self.store.listeners(&self.channel).saturating_sub(1);
        match connections {
            0 => 0,
            connections => connections.saturating_add(here as u64),
        }
    }

    /// Remembers how many waiters a release woke, by the number of connections that the server told.
    pub(crate) fn released(&self, connections: u32) {
        let woken = u32::try_from(self.waiters(connections.into())).unwrap_or(u32::MAX);
        *self.woken.lock() = (woken > 0).then(|| (woken, Instant::now()));
    }

    /// Sleeps briefly if this handle released the lock a moment ago and others wait for it.
    ///
    /// Servers deliver wake-ups in an order of their own, which may be the same each time: some waiters would always
    /// ask first, and others would never get the lock. So a recent holder yields to waiters that missed more releases.
    /// `missed` is the number of releases after which this waiter did not get the lock.
    pub(crate) async fn yield_to_waiters(&self, missed: u32) {
        const STEP: Duration = Duration::from_micros(100);
        const LONGEST: Duration = Duration::from_millis(5);
        /// An older count says nothing about now.
        const FRESH: Duration = Duration::from_secs(1);
        let Some((woken, at)) = *self.woken.lock() else {
            return;
        };
        let now = Instant::now();
        if woken > missed && now < at + FRESH && self.kind.waiting == Waiting::Serial {
            tokio::time::sleep(STEP.saturating_mul(woken - missed).min(LONGEST)).await;
        }
    }
}
