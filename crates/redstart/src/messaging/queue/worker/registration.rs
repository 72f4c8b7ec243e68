//! A worker's registration: the name under which it holds jobs, and what the store is told about it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Shared, heartbeat::heartbeat};
use crate::{
    error::Result,
    messaging::queue::{
        JobId,
        record::DeliveryId,
        script::{LEAVE, RECLAIM, REGISTER},
    },
    observe,
    store::{Clock, valid_until},
    token::token,
};

/// The time for which a worker is known under one name. A lost registration is never revived; the next has a new name.
pub(super) struct Registration {
    pub(super) name: String,
    /// The part of the worker's hash of running jobs.
    pub(super) running: String,
    /// Raised after a lost reply, so that late requests are refused. Only the fetcher changes it.
    pub(super) epoch: AtomicU64,
    /// The lease has ended, or may have.
    pub(super) lost: CancellationToken,
    /// The clock of the queue's store.
    clock: Clock,
    /// When the lease ends at the latest that is known; missing if somebody else renews it.
    until: Mutex<Option<Instant>>,
    /// The worker unregisters: the heartbeat may stop.
    pub(super) over: CancellationToken,
    /// The deliveries that this worker knows of, and how each is told to stop.
    pub(super) known: Mutex<HashMap<DeliveryId, CancellationToken>>,
    /// Jobs that were cancelled before the reply with them arrived.
    early: Mutex<HashSet<JobId>>,
    /// How many endings were passed to the acknowledger, and of how many it knows what became of them.
    ended: AtomicU64,
    written: watch::Sender<u64>,
}

impl Registration {
    /// A registration that the store does not know yet.
    pub(super) fn new(name: String, clock: Clock) -> Self {
        Self {
            running: format!("running:{name}"),
            name,
            epoch: AtomicU64::new(1),
            lost: CancellationToken::new(),
            clock,
            until: Mutex::default(),
            over: CancellationToken::new(),
            known: Mutex::default(),
            early: Mutex::default(),
            ended: AtomicU64::new(0),
            written: watch::Sender::new(0),
        }
    }

    /// One more ending was passed to the acknowledger.
    pub(super) fn has_ended_one(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// This many endings were written or refused.
    pub(super) fn has_written(&self, endings: usize) {
        self.written
            .send_modify(|written| *written += endings as u64);
    }

    /// Waits until all endings were written or refused that there are now.
    async fn all_written(&self) {
        let ended = self.ended.load(Ordering::SeqCst);
        let mut written = self.written.subscribe();
        let _ = written.wait_for(|written| *written >= ended).await;
    }

    /// The name of the worker on its wake channel: the first half.
    pub(super) fn worker(&self) -> &str {
        self.name.get(..self.name.len() / 2).unwrap_or(&self.name)
    }

    /// The lease was renewed by a request that was sent at this time.
    pub(super) fn renewed(&self, asked: Instant, lease: Duration) {
        *self.until.lock() = Some(valid_until(asked, lease));
    }

    /// Whether the lease has ended, also if nothing has noticed yet because the process stood still.
    pub(super) fn has_ended(&self) -> bool {
        let is_late = |until: Instant| until <= self.clock.now();
        self.lost.is_cancelled() || self.until.lock().is_some_and(is_late)
    }

    /// Tells the run of a job to stop.
    pub(super) fn cancel(&self, id: JobId) {
        let known = self.known.lock();
        let found = known.iter().find(|(key, _)| key[..16] == id.0);
        match found {
            Some((_, token)) => token.cancel(),
            None => {
                let mut early = self.early.lock();
                // Those that are not on their way are over; the heartbeat tells of the others again.
                if early.len() >= 1000 {
                    early.clear();
                }
                early.insert(id);
            }
        }
    }

    /// Deliveries that have arrived; how each of them is told to stop.
    pub(super) fn expect(&self, keys: &[DeliveryId]) -> Vec<CancellationToken> {
        let mut known = self.known.lock();
        let mut early = self.early.lock();
        let tokens = keys.iter().map(|key| {
            let token = CancellationToken::new();
            if !early.is_empty() && JobId::read(&key[..16]).is_some_and(|id| early.remove(&id)) {
                token.cancel();
            }
            known.insert(*key, token.clone());
            token
        });
        tokens.collect()
    }
}

impl Shared {
    /// Registers under a new name and starts its heartbeat.
    pub(super) async fn register(self: &Arc<Self>) -> Result<Arc<Registration>> {
        // The worker's own name comes first: `reclaim` reads it from there.
        let name = format!("{}{}", self.id, token());
        let clock = self.queue.store().clock();
        let started = clock.now();
        let registration = Arc::new(Registration::new(name, clock));
        let _: u8 = REGISTER
            .on(self.queue.entity())
            .part(&registration.running)
            .part("workers")
            .part("meta")
            .arg(&registration.name)
            .arg(1)
            .arg(self.lease_micros())
            .arg(self.queue.settings()?)
            .idempotent()
            .run(self.queue.store())
            .await?;
        registration.renewed(started, self.lease);
        self.signals.is_registered(&registration);
        let former = self.current.lock().replace(registration.clone());
        self.former.lock().extend(former);
        crate::task::spawn(heartbeat(self.clone(), registration.clone(), started));
        Ok(registration)
    }

    /// Before this worker's own jobs of a lost registration are taken over: the endings that wait for the store since it did
    /// not answer are written first, for a deadline at most. Other workers do not know of them.
    async fn write_what_ended(&self, worker: &str) {
        let own = {
            let (current, former) = (self.current.lock(), self.former.lock());
            let mut own = current.iter().chain(former.iter());
            own.find(|registration| registration.name == worker)
                .cloned()
        };
        if let Some(registration) = own {
            self.answers.notify_one();
            let deadline = self.queue.store().deadline();
            let _ = tokio::time::timeout(deadline, registration.all_written()).await;
        }
    }

    /// Takes over the jobs of a worker whose lease ended.
    pub(super) async fn reclaim(&self, worker: &str) -> Result<()> {
        self.write_what_ended(worker).await;
        let (ready, dead): (i64, u64) = self
            .queue
            .call(
                &RECLAIM,
                &[&format!("running:{worker}"), "workers", "lines"],
            )
            .arg(worker)
            .arg(worker.get(..self.id.len()).unwrap_or(worker))
            .arg(self.max_attempts)
            .idempotent()
            .run(self.queue.store())
            .await?;
        if ready >= 0 {
            observe::events("queue.reclaimed", ready as u64 + dead);
            observe::events("queue.dead", dead);
            tracing::debug!(worker, ready, dead, "took over the jobs of a silent worker");
        }
        self.former
            .lock()
            .retain(|registration| registration.name != worker);
        Ok(())
    }

    /// Unregisters and hands back what the worker still holds; how many.
    pub(super) async fn leave(&self, registration: &Registration) -> Result<u64> {
        self.leave_as(registration, &registration.name).await
    }

    /// Keeps what the worker holds, but no longer waits for jobs under this registration. If it was woken for a job that
    /// it did not take, another worker is woken.
    pub(super) async fn stop_waiting(&self, registration: &Registration) -> Result<()> {
        // A name that holds nothing.
        let name = format!("{}{}", self.id, token());
        let nobody = Registration::new(name, self.queue.store().clock());
        self.leave_as(&nobody, &registration.name).await.map(drop)
    }

    async fn leave_as(&self, registration: &Registration, idle: &str) -> Result<u64> {
        self.queue
            .call(&LEAVE, &[&registration.running, "workers", "lines"])
            .arg(&registration.name)
            .arg(idle)
            .idempotent()
            .run(self.queue.store())
            .await
    }
}
