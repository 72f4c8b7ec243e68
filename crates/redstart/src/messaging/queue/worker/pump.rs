//! The pump takes jobs and starts them.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::{Context, Crew, Delivered, EMBEDDED_NAP, Ended, Ending, Reserved, Runner, SYNC, Term};
use crate::{
    messaging::queue::{
        JobId, Outcome,
        job::{Delivery, MAX_DELAY, Record},
    },
    observe,
    store::{Event, Subscription},
};

/// Takes jobs and starts them.
pub(super) struct Pump {
    pub(super) crew: Arc<Crew>,
    pub(super) term: Arc<Term>,
    pub(super) subscription: Subscription,
}

impl Pump {
    pub(super) async fn run(mut self) -> Arc<Term> {
        let crew = self.crew.clone();
        let mut pause = Duration::from_millis(10);
        while !crew.stop.is_cancelled() {
            let permits = tokio::select! {
                () = crew.stop.cancelled() => break,
                permits = self.permits() => permits,
            };
            if self.term.lost.is_cancelled() && !self.renew_term().await {
                break;
            }
            // What was said before this look is answered by it.
            while let Some(Some(_)) = self.subscription.next().now_or_never() {}
            let want = permits.num_permits();
            let reserved = observe::operation(
                "queue.reserve",
                crew.queue.entity().namespace(),
                crew.reserve(&self.term, want),
            )
            .await;
            match reserved {
                Ok(Reserved::Jobs {
                    wait,
                    expired,
                    cron,
                    records,
                }) => {
                    pause = Duration::from_millis(10);
                    let short = records.len() < want;
                    // Asked to stop meanwhile: what came is handed back by the sync below.
                    if crew.stop.is_cancelled() {
                        break;
                    }
                    self.start(records, permits);
                    let mut again = false;
                    for name in expired {
                        match crew.reclaim(&name).await {
                            Ok(ready) => again |= ready > 0,
                            Err(error) => {
                                tracing::debug!(%error, "a silent worker's jobs could not be taken")
                            }
                        }
                    }
                    if cron {
                        match crew.queue.tick().await {
                            Ok(()) => again = true,
                            Err(error) => tracing::warn!(%error, "a cron entry could not be run"),
                        }
                    }
                    if short && !again {
                        self.rest(wait).await;
                    }
                }
                Ok(Reserved::Lost) => self.term.lost.cancel(),
                Ok(Reserved::Stale) => self.sync().await,
                Err(error) => {
                    tracing::debug!(%error, "no jobs could be taken");
                    drop(permits);
                    self.nap(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                    self.sync().await;
                }
            }
        }
        // Whatever came in after the stop goes back at once, not after the grace.
        self.sync().await;
        self.term
    }

    /// As many permits as there are, at least one.
    async fn permits(&self) -> OwnedSemaphorePermit {
        let semaphore = &self.crew.permits;
        // Neither fails: the semaphore is never closed.
        let mut permits = match semaphore.clone().acquire_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        };
        let more = semaphore.available_permits().min(self.crew.concurrency);
        if more > 0
            && let Ok(rest) = semaphore.clone().try_acquire_many_owned(more as u32)
        {
            permits.merge(rest);
        }
        permits
    }

    fn start(&self, records: Vec<Vec<u8>>, mut permits: OwnedSemaphorePermit) {
        let crew = &self.crew;
        {
            let mut known = self.term.known.lock();
            known.extend(records.iter().filter_map(|bytes| Record::delivery(bytes)));
        }
        for bytes in records {
            // There is a permit for each: no more were asked for.
            let Some(permit) = permits.split(1) else {
                return;
            };
            // The script gives out no record that is too short for this.
            let Some(delivery) = Record::delivery(&bytes) else {
                continue;
            };
            let record = Record::parse(&bytes);
            let delivered = Arc::new(Delivered {
                crew: crew.clone(),
                term: self.term.clone(),
                delivery,
                id: record.as_ref().map_or(JobId([0; 16]), |record| record.id),
                attempt: record
                    .as_ref()
                    .map_or(1, |record| u32::from(record.attempts) + 1),
                unique: record.as_ref().and_then(|record| record.unique.clone()),
                progressed: AtomicBool::new(false),
            });
            let failed = match &record {
                None => Some("corrupt record".to_owned()),
                Some(record) if !crew.handlers.contains_key(&*record.name) => {
                    Some(format!("no handler for the job {:?}", record.name))
                }
                Some(_) => None,
            };
            match (record, failed) {
                (Some(record), None) => {
                    let runner = crew.handlers[&*record.name].clone();
                    let limit = record.timeout.or(crew.timeout);
                    let payload = bytes.len() - record.payload(&bytes).len();
                    crew.jobs
                        .spawn(run_job(runner, bytes, payload, delivered, limit, permit));
                }
                (_, reason) => {
                    let _ = crew.ended.send(Ended {
                        delivered,
                        ending: Ending::Dead(reason.unwrap_or_default()),
                        _permit: permit,
                    });
                }
            }
        }
    }

    /// Until a message, a due time, or something to look after.
    async fn rest(&mut self, wait: Option<Duration>) {
        // A message that was lost in a way that nobody noticed costs no more than a lease.
        let mut most = wait.unwrap_or(self.crew.lease).min(self.crew.lease);
        if self.crew.queue.store().is_embedded() {
            most = most.min(EMBEDDED_NAP);
        }
        let sync = tokio::select! {
            () = self.crew.stop.cancelled() => false,
            () = self.term.lost.cancelled() => false,
            () = self.crew.suspect.notified() => true,
            event = self.subscription.next() => {
                match event {
                    // Nothing can be heard now; look again when it can.
                    Some(Event::Lost) => {
                        let _ = tokio::time::timeout(most, self.subscription.next()).await;
                    }
                    Some(_) => {}
                    // It never ends while the store lives; should it, there is still the clock.
                    None => self.nap(most).await,
                }
                false
            }
            () = tokio::time::sleep(most) => false,
        };
        if sync {
            self.sync().await;
        }
    }

    async fn nap(&self, pause: Duration) {
        tokio::select! {
            () = self.crew.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Makes sure that the server and we agree on what we hold, and that no request that is still on its way
    /// changes that.
    async fn sync(&self) {
        let crew = &self.crew;
        let mut pause = Duration::from_millis(10);
        // At the end it is worth one try: leaving hands back the same.
        loop {
            let epoch = self.term.epoch.fetch_add(1, Ordering::Relaxed) + 1;
            let known: Vec<Delivery> = self.term.known.lock().iter().copied().collect();
            let mut call = SYNC
                .on(crew.queue.entity())
                .part(&self.term.running)
                .part("ready")
                .part("ranked")
                .part("meta")
                .arg(&crew.queue.0.channel)
                .arg(crew.queue.0.boost)
                .arg(epoch);
            for delivery in &known {
                call = call.arg(&delivery[..]);
            }
            match call.run::<i64>(crew.queue.store()).await {
                Ok(-1) => return self.term.lost.cancel(),
                Ok(-2) => continue,
                Ok(back) => {
                    observe::events("queue.handed_back", back as u64);
                    crew.counts
                        .handed_back
                        .fetch_add(back as u64, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the worker could not compare notes with the store")
                }
            }
            if crew.stop.is_cancelled() || self.term.lost.is_cancelled() {
                return;
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Registers anew after a loss; `false` when the worker was asked to stop meanwhile.
    async fn renew_term(&mut self) -> bool {
        let mut pause = Duration::from_millis(10);
        while !self.crew.stop.is_cancelled() {
            match self.crew.join().await {
                Ok(term) => {
                    self.term = term;
                    return true;
                }
                Err(error) => tracing::debug!(%error, "the worker could not register again"),
            }
            self.nap(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        false
    }
}

async fn run_job(
    runner: Arc<dyn Runner>,
    record: Vec<u8>,
    payload: usize,
    delivered: Arc<Delivered>,
    limit: Option<Duration>,
    permit: OwnedSemaphorePermit,
) {
    let crew = delivered.crew.clone();
    let context = Context(delivered.clone());
    let attempt = delivered.attempt;
    let work =
        AssertUnwindSafe(async { runner.run(record, payload, context).await }).catch_unwind();
    let limited = async {
        match limit {
            None => Some(work.await),
            Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = limited => Some(outcome),
        () = crew.abort.cancelled() => None,
    };
    let ending = match outcome {
        None => Ending::Back,
        Some(None) => crew.again(attempt, None, "timed out".to_owned()),
        Some(Some(Err(_))) => crew.again(attempt, None, "panicked".to_owned()),
        Some(Some(Ok(Outcome::Done))) => Ending::Done,
        Some(Some(Ok(Outcome::Retry { after, reason }))) => crew.again(attempt, after, reason),
        Some(Some(Ok(Outcome::Dead { reason }))) => Ending::Dead(reason),
    };
    // The clerk outlives the jobs.
    let _ = crew.ended.send(Ended {
        delivered,
        ending,
        _permit: permit,
    });
}

impl Crew {
    /// The next attempt, or the end after the last.
    fn again(&self, attempt: u32, after: Option<Duration>, reason: String) -> Ending {
        if attempt >= u32::from(self.max_attempts) {
            return Ending::Dead(reason);
        }
        let wait = after.unwrap_or_else(|| self.backoff.wait(attempt));
        Ending::Retry(wait.min(MAX_DELAY))
    }
}
