//! A worker's registration: the name under which it holds jobs, and what the store is told about it.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Shared, heartbeat::heartbeat};
use crate::{
    error::Result,
    messaging::queue::{
        record::DeliveryId,
        script::{LEAVE, RECLAIM, REGISTER},
    },
    observe,
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
    /// The worker unregisters: the heartbeat may stop.
    pub(super) over: CancellationToken,
    /// The deliveries that this worker knows of.
    pub(super) known: Mutex<HashSet<DeliveryId>>,
}

impl Shared {
    /// Registers under a new name and starts its heartbeat.
    pub(super) async fn register(self: &Arc<Self>) -> Result<Arc<Registration>> {
        // The worker's own name comes first: `reclaim` reads it from there.
        let name = format!("{}{}", self.id, token());
        let registration = Arc::new(Registration {
            running: format!("running:{name}"),
            name,
            epoch: AtomicU64::new(1),
            lost: CancellationToken::new(),
            over: CancellationToken::new(),
            known: Mutex::default(),
        });
        let started = Instant::now();
        let _: u8 = REGISTER
            .on(self.queue.entity())
            .part(&registration.running)
            .part("workers")
            .arg(&registration.name)
            .arg(1)
            .arg(self.lease_micros())
            .idempotent()
            .run(self.queue.store())
            .await?;
        *self.current.lock() = Some(registration.clone());
        crate::task::spawn(heartbeat(self.clone(), registration.clone(), started));
        Ok(registration)
    }

    /// Takes over the jobs of a worker whose lease ended.
    pub(super) async fn reclaim(&self, worker: &str) -> Result<()> {
        let (ready, dead): (i64, u64) = RECLAIM
            .on(self.queue.entity())
            .part(&format!("running:{worker}"))
            .part("workers")
            .part("ready")
            .part("ranked")
            .part("dead")
            .part("idle")
            .part("unique")
            .part("progress")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
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
        Ok(())
    }

    /// Unregisters and hands back what the worker still holds; how many.
    pub(super) async fn leave(&self, registration: &Registration) -> Result<u64> {
        LEAVE
            .on(self.queue.entity())
            .part(&registration.running)
            .part("workers")
            .part("ready")
            .part("ranked")
            .part("idle")
            .part("progress")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
            .arg(&registration.name)
            .arg(&self.id)
            .idempotent()
            .run(self.queue.store())
            .await
    }
}
