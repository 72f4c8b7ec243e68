//! Takes jobs from the store and starts them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use redis::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Delivery, Registration, Shared,
    run::{Ended, Ending, run},
};
use crate::{
    error::{Error, Result},
    messaging::queue::{
        JobId,
        record::{DeliveryId, Record},
        script::{RECONCILE, RESERVE},
    },
    observe,
    store::{Event, Subscription},
};

/// Delayed jobs made ready by one script.
const PROMOTE: usize = 500;
/// The embedded engine's clock can be moved under a sleeping worker.
const EMBEDDED_REST: Duration = Duration::from_millis(50);

/// Takes jobs and starts them. It is the only task that takes, so it knows when a reply was lost.
pub(super) struct Fetcher {
    pub(super) shared: Arc<Shared>,
    pub(super) registration: Arc<Registration>,
    pub(super) subscription: Subscription,
}

enum Reserved {
    /// The registration is gone; its jobs were reclaimed.
    Lost,
    /// The request carried an old epoch.
    Stale,
    Jobs {
        /// Until something is due; `None` if nothing is scheduled.
        wait: Option<Duration>,
        /// Workers whose lease has ended.
        expired: Vec<String>,
        /// Whether a cron entry is due.
        cron: bool,
        records: Vec<Vec<u8>>,
    },
}

impl Fetcher {
    pub(super) async fn run(mut self) -> Arc<Registration> {
        let shared = self.shared.clone();
        let mut pause = Duration::from_millis(10);
        while !shared.stop.is_cancelled() {
            let permits = tokio::select! {
                () = shared.stop.cancelled() => break,
                permits = self.permits() => permits,
            };
            if self.registration.lost.is_cancelled() && !self.register_again().await {
                break;
            }
            // This look answers every message that came before it.
            while let Some(Some(_)) = self.subscription.next().now_or_never() {}
            let want = permits.num_permits();
            match self.reserve(want).await {
                Ok(Reserved::Jobs {
                    wait,
                    expired,
                    cron,
                    records,
                }) => {
                    pause = Duration::from_millis(10);
                    let short = records.len() < want;
                    // Asked to stop meanwhile: the jobs are handed back by `reconcile` below.
                    if shared.stop.is_cancelled() {
                        break;
                    }
                    self.start(records, permits).await;
                    if !self.look_after(expired, cron).await && short {
                        self.rest(wait).await;
                    }
                }
                Ok(Reserved::Lost) => self.registration.lost.cancel(),
                Ok(Reserved::Stale) => self.reconcile().await,
                Err(error) => {
                    tracing::debug!(%error, "no jobs could be taken");
                    drop(permits);
                    self.nap(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                    self.reconcile().await;
                }
            }
        }
        // Jobs that arrived after the stop go back at once, not after the grace.
        self.reconcile().await;
        self.registration
    }

    /// As many permits as there are, at least one.
    async fn permits(&self) -> OwnedSemaphorePermit {
        let semaphore = &self.shared.permits;
        // Neither fails: the semaphore is never closed.
        let mut permits = match semaphore.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        };
        let more = semaphore.available_permits().min(self.shared.concurrency);
        if more > 0
            && let Ok(rest) = semaphore.clone().try_acquire_many_owned(more as u32)
        {
            permits.merge(rest);
        }
        permits
    }

    async fn reserve(&self, want: usize) -> Result<Reserved> {
        let Registration {
            name,
            running,
            epoch,
            ..
        } = &*self.registration;
        let queue = &self.shared.queue;
        let call = RESERVE
            .on(queue.entity())
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part(running)
            .part("workers")
            .part("meta")
            .part("dead")
            .part("cron")
            .part("unique")
            .arg(name)
            .arg(epoch.load(Ordering::Relaxed))
            .arg(want)
            .arg(self.shared.lease_micros())
            .arg(queue.0.boost)
            .arg(PROMOTE)
            .run::<Vec<Value>>(queue.store());
        let reply = observe::operation("queue.reserve", queue.namespace(), call).await?;
        let mut reply = reply.into_iter();
        match (
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
            reply.next(),
        ) {
            (Some(Value::Int(0)), ..) => Ok(Reserved::Lost),
            (Some(Value::Int(2)), ..) => Ok(Reserved::Stale),
            (
                Some(Value::Int(1)),
                Some(Value::Int(wait)),
                Some(expired),
                Some(Value::Int(cron)),
                Some(Value::Array(records)),
            ) => Ok(Reserved::Jobs {
                wait: u64::try_from(wait).ok().map(Duration::from_micros),
                expired: redis::from_redis_value(expired)?,
                cron: cron > 0,
                records: records
                    .into_iter()
                    .filter_map(|record| match record {
                        Value::BulkString(bytes) => Some(bytes),
                        _ => None,
                    })
                    .collect(),
            }),
            _ => Err(Error::codec("unexpected shape of the reply")),
        }
    }

    /// Starts a task for each job.
    async fn start(&self, records: Vec<Vec<u8>>, mut permits: OwnedSemaphorePermit) {
        let shared = &self.shared;
        {
            let mut known = self.registration.known.lock();
            known.extend(records.iter().filter_map(|bytes| Record::delivery(bytes)));
        }
        for bytes in records {
            // There is a permit for each: no more were asked for.
            let Some(permit) = permits.split(1) else {
                return;
            };
            // The script hands out no record that is too short for this.
            let Some(key) = Record::delivery(&bytes) else {
                continue;
            };
            let record = Record::parse(&bytes);
            let delivery = Arc::new(Delivery {
                shared: shared.clone(),
                registration: self.registration.clone(),
                key,
                id: record.as_ref().map_or(JobId([0; 16]), |record| record.id),
                attempt: record
                    .as_ref()
                    .map_or(1, |record| u32::from(record.attempts) + 1),
                unique: record.as_ref().and_then(|record| record.unique.clone()),
                progressed: AtomicBool::new(false),
            });
            let reason = match &record {
                None => "corrupt record".to_owned(),
                Some(record) => match shared.handlers.get(&*record.name) {
                    Some(runner) => {
                        let timeout = record.timeout.or(shared.timeout);
                        let payload = bytes.len() - record.payload(&bytes).len();
                        shared.jobs.spawn(run(
                            runner.clone(),
                            bytes,
                            payload,
                            delivery,
                            timeout,
                            permit,
                        ));
                        continue;
                    }
                    None => format!("no handler for the job {:?}", record.name),
                },
            };
            let _ = shared
                .ended
                .send(Ended {
                    delivery,
                    ending: Ending::Dead(reason),
                    _permit: permit,
                })
                .await;
        }
    }

    /// Takes over the jobs of silent workers and runs due cron entries; whether there may be jobs now.
    async fn look_after(&self, expired: Vec<String>, cron: bool) -> bool {
        let mut more = false;
        for worker in expired {
            match self.shared.reclaim(&worker).await {
                Ok(ready) => more |= ready > 0,
                Err(error) => {
                    tracing::debug!(%error, "a silent worker's jobs could not be taken over")
                }
            }
        }
        if cron {
            match self.shared.queue.tick().await {
                Ok(()) => more = true,
                Err(error) => tracing::warn!(%error, "a cron entry could not be run"),
            }
        }
        more
    }

    /// Waits for a message, a due time, or a reason to reconcile.
    async fn rest(&mut self, wait: Option<Duration>) {
        // If a message is lost unnoticed, the delay is at most one lease.
        let mut most = wait.unwrap_or(self.shared.lease).min(self.shared.lease);
        if self.shared.queue.store().is_embedded() {
            most = most.min(EMBEDDED_REST);
        }
        let reconcile = tokio::select! {
            () = self.shared.stop.cancelled() => false,
            () = self.registration.lost.cancelled() => false,
            () = self.shared.suspect.notified() => true,
            event = self.subscription.next() => {
                match event {
                    // No message can arrive now; look again when the subscription is back.
                    Some(Event::Lost) => {
                        let _ = tokio::time::timeout(most, self.subscription.next()).await;
                    }
                    Some(_) => {}
                    // It does not end while the store lives; if it does, the clock remains.
                    None => self.nap(most).await,
                }
                false
            }
            () = tokio::time::sleep(most) => false,
        };
        if reconcile {
            self.reconcile().await;
        }
    }

    async fn nap(&self, pause: Duration) {
        tokio::select! {
            () = self.shared.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Makes the store and this worker agree on what the worker holds, and fences requests that are still on their
    /// way.
    async fn reconcile(&self) {
        let (shared, registration) = (&self.shared, &self.registration);
        let mut pause = Duration::from_millis(10);
        loop {
            let epoch = registration.epoch.fetch_add(1, Ordering::Relaxed) + 1;
            let known: Vec<DeliveryId> = registration.known.lock().iter().copied().collect();
            let mut call = RECONCILE
                .on(shared.queue.entity())
                .part(&registration.running)
                .part("ready")
                .part("ranked")
                .part("meta")
                .arg(&shared.queue.0.channel)
                .arg(shared.queue.0.boost)
                .arg(epoch);
            for key in &known {
                call = call.arg(&key[..]);
            }
            match call.run::<i64>(shared.queue.store()).await {
                Ok(-1) => return registration.lost.cancel(),
                Ok(-2) => continue,
                Ok(back) => {
                    observe::events("queue.handed_back", back as u64);
                    shared
                        .totals
                        .handed_back
                        .fetch_add(back as u64, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a worker could not reconcile its jobs with the store");
                }
            }
            // At the end one try is enough: unregistering hands back the same jobs.
            if shared.stop.is_cancelled() || registration.lost.is_cancelled() {
                return;
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Registers under a new name after a loss; `false` if the worker was asked to stop meanwhile.
    async fn register_again(&mut self) -> bool {
        let mut pause = Duration::from_millis(10);
        while !self.shared.stop.is_cancelled() {
            match self.shared.register().await {
                Ok(registration) => {
                    self.registration = registration;
                    return true;
                }
                Err(error) => tracing::debug!(%error, "a worker could not register again"),
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        false
    }
}
