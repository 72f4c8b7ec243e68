//! Takes jobs from the store and starts them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Delivery, Registration, Shared,
    run::{Ended, Ending, run},
    slots::Permits,
};
use crate::{
    error::{Error, Result},
    messaging::queue::{
        parked,
        record::{DeliveryId, Record},
        script::{RECONCILE, RESERVE},
    },
    messaging::wake::Wake,
    observe,
};
use redis::Value;

/// Delayed jobs made ready by one script.
const PROMOTE: usize = 100;
/// What one reservation may carry: it must arrive within the deadline, and others share the connection.
const MAX_BYTES: usize = 1024 * 1024;
/// A worker of this many slots or fewer takes as many jobs at once as it has slots.
const FEW: usize = 16;

/// Takes jobs and starts them. It is the only task that takes, so it knows when a reply was lost.
pub(super) struct Fetcher {
    pub(super) shared: Arc<Shared>,
    pub(super) registration: Arc<Registration>,
    pub(super) wake: Arc<Wake>,
}

pub(super) enum Reserved {
    /// The registration is gone; its jobs were reclaimed.
    Lost,
    /// The request carried an old epoch.
    Stale,
    Jobs {
        next: Next,
        records: Vec<Vec<u8>>,
        /// The server's time, in microseconds.
        now: u64,
    },
}

/// The parked jobs of the kind that was asked for, behind those that were skipped.
enum ParkedLeft {
    /// There were none.
    None,
    More,
    /// A limit keeps them from running.
    Limited,
    AllTaken,
}

/// What to do after jobs were taken.
pub(super) enum Next {
    /// There may be more.
    Look,
    /// Nothing is ready until something happens, or until a delayed job is due.
    Rest(Option<Duration>),
}

impl Fetcher {
    pub(super) async fn run(mut self) -> Arc<Registration> {
        let shared = self.shared.clone();
        let mut pause = Duration::from_millis(10);
        let (mut is_idle, mut is_down) = (false, false);
        while !shared.stop.is_cancelled() {
            // Before it takes permits: those of slots are others' too. What it asked for under a lease that has ended would
            // renew that, and jobs under its name would wait for another lease.
            if self.registration.has_ended() {
                self.registration.lost.cancel();
                shared.wants_slots(false);
                is_idle = false;
                if !self.register_again().await {
                    break;
                }
            }
            shared.wants_slots(!is_down);
            // Jobs of another queue have all slots: a job that this worker is woken for is left to another.
            if is_idle && !shared.room.has_some() {
                is_idle = false;
                if let Err(error) = shared.stop_waiting(&self.registration).await {
                    tracing::debug!(%error, "a worker without slots could not say so");
                }
            }
            let permits = tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                permits = shared.room.permits(at_once(shared.concurrency)) => permits,
            };
            if self.registration.has_ended() {
                continue;
            }
            shared.wants_slots(!is_down);
            shared.signals.reset();
            match self.reserve(permits.count()).await {
                Ok(Reserved::Jobs { next, records, now }) => {
                    pause = Duration::from_millis(10);
                    is_down = false;
                    // Asked to stop meanwhile: the jobs are handed back by `reconcile` below.
                    if shared.stop.is_cancelled() {
                        break;
                    }
                    self.start(records, now, permits).await;
                    is_idle = matches!(next, Next::Rest(_));
                    if let Next::Rest(wait) = next {
                        shared.wants_slots(false);
                        self.rest(wait).await;
                    }
                }
                Ok(Reserved::Lost) => self.registration.lost.cancel(),
                Ok(Reserved::Stale) => {
                    drop(permits);
                    self.reconcile().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "no jobs could be taken");
                    drop(permits);
                    is_down = true;
                    shared.wants_slots(false);
                    self.nap(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                    self.reconcile().await;
                }
            }
        }
        shared.wants_slots(false);
        // Jobs that arrived after the stop go back at once, not after the grace.
        self.reconcile().await;
        self.registration
    }

    /// Takes parked jobs that this worker may be able to run, and jobs that are ready.
    pub(super) async fn reserve(&self, want: usize) -> Result<Reserved> {
        let signals = &self.shared.signals;
        let parked = signals.take_parked_kind();
        let of_kind = parked.as_ref().map(|(kind, skip)| (&**kind, *skip));
        let reserved = self.ask(want, of_kind).await;
        if let Some((kind, skip)) = parked {
            match &reserved {
                Ok((Reserved::Jobs { next, .. }, left)) => match (left, next) {
                    (ParkedLeft::None, _) if skip > 0 => signals.look_from_the_start(kind),
                    (ParkedLeft::AllTaken, _) if skip > 0 => signals.more_parked(kind),
                    (ParkedLeft::None | ParkedLeft::AllTaken, _) => {}
                    (ParkedLeft::Limited, Next::Rest(wait)) => {
                        signals.parked_are_limited(kind, wait.unwrap_or(self.shared.lease));
                    }
                    _ => signals.more_parked(kind),
                },
                _ => signals.more_parked(kind),
            }
        }
        reserved.map(|(reserved, _)| reserved)
    }

    /// Asks the store for jobs; what is left of the parked jobs of a kind, of which some are skipped.
    async fn ask(
        &self,
        want: usize,
        parked: Option<(&str, usize)>,
    ) -> Result<(Reserved, ParkedLeft)> {
        let Registration {
            name,
            running,
            epoch,
            ..
        } = &*self.registration;
        let queue = &self.shared.queue;
        let of_kind = parked.map(|(kind, _)| parked::part(kind));
        let mut parts = vec![&**running, "workers", "rates", "lines"];
        if let Some(of_kind) = &of_kind {
            parts.extend([&**of_kind, "parked"]);
        }
        let (kind, skip) = parked.unwrap_or_default();
        let mut call = queue
            .call(&RESERVE, &parts)
            .arg(name)
            .arg(epoch.load(Ordering::Relaxed))
            .arg(want)
            .arg(self.shared.lease_micros())
            .arg(PROMOTE)
            .arg(MAX_BYTES)
            .arg(&self.shared.id)
            .arg(&queue.0.limit.numbers()[..])
            .arg(&queue.0.group_limit.numbers()[..])
            .arg(self.shared.max_attempts)
            .arg(kind)
            .arg(skip);
        for (kind, limit) in &queue.0.kind_limits {
            call = call.arg(kind).arg(&limit.numbers()[..]);
        }
        let call = call.run::<Vec<Value>>(queue.store());
        let reply = observe::operation("queue.reserve", queue.namespace(), call).await?;
        Reserved::read(reply)
    }

    /// Starts a task for each job.
    async fn start(&self, records: Vec<Vec<u8>>, now: u64, mut permits: Permits) {
        let shared = &self.shared;
        // The script hands out no record that is too short for this.
        let records = records.into_iter();
        let (keys, records): (Vec<DeliveryId>, Vec<Vec<u8>>) = records
            .filter_map(|bytes| Some((Record::delivery(&bytes)?, bytes)))
            .unzip();
        let tokens = self.registration.expect(&keys);
        for ((bytes, key), cancelled) in records.into_iter().zip(keys).zip(tokens) {
            // There is a permit for each: no more were asked for.
            let Some(permit) = permits.split_one() else {
                return;
            };
            let record = Record::parse(&bytes);
            let registration = &self.registration;
            let delivery = Delivery::new(shared, registration, key, record.as_ref(), now);
            let delivery = Arc::new(Delivery {
                cancelled,
                ..delivery
            });
            let ending = match &record {
                None => Ending::Dead("corrupt record".to_owned()),
                Some(record) => match shared.handlers.get(&*record.name) {
                    Some(runner) => {
                        let timeout = record.timeout.or(shared.timeout);
                        let payload = bytes.len() - record.payload(&bytes).len();
                        let job = run(runner.clone(), bytes, payload, delivery, timeout, permit);
                        shared.jobs.spawn(crate::task::owned(job));
                        continue;
                    }
                    None => {
                        let reason = format!("no handler for the job {:?}", record.name);
                        shared.cannot_run(record.name.clone(), reason)
                    }
                },
            };
            shared.pass_on(Ended::new(delivery, ending, permit)).await;
        }
    }

    /// Waits for a signal, a due time, or a reason to reconcile.
    pub(super) async fn rest(&self, wait: Option<Duration>) {
        let shared = &self.shared;
        let clock = shared.queue.store().clock();
        // If a message is lost unnoticed, the delay is at most one lease.
        let end = clock.now() + wait.unwrap_or(shared.lease).min(shared.lease);
        while !shared.signals.must_look() {
            let until = shared.signals.due().map_or(end, |due| due.min(end));
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = self.registration.lost.cancelled() => return,
                () = shared.suspect.notified() => return self.reconcile().await,
                () = self.wake.called() => {}
                () = clock.sleep_until(until) => return,
            }
        }
    }

    async fn nap(&self, pause: Duration) {
        tokio::select! {
            biased;
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
            let mut known: Vec<DeliveryId> = registration.known.lock().keys().copied().collect();
            // The same request for the same deliveries.
            known.sort_unstable();
            let mut call = shared
                .queue
                .call(&RECONCILE, &[&registration.running])
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
                    let lost = std::mem::replace(&mut self.registration, registration);
                    // As the next look for silent workers would: its jobs need not wait for that.
                    if let Err(error) = self.shared.reclaim(&lost.name).await {
                        tracing::debug!(%error, "the jobs of a lost registration could not be taken over");
                    }
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

/// How many jobs one reservation takes. With many slots it is half of them: those jobs run while the store hands out the
/// others, so that neither waits for the other.
fn at_once(concurrency: usize) -> usize {
    concurrency.div_ceil(2).max(FEW).min(concurrency)
}

impl Reserved {
    fn read(reply: Vec<Value>) -> Result<(Self, ParkedLeft)> {
        let mut reply = reply.into_iter();
        let mut next = || reply.next();
        match (next(), next(), next(), next(), next()) {
            (Some(Value::Int(0)), ..) => Ok((Self::Lost, ParkedLeft::More)),
            (Some(Value::Int(2)), ..) => Ok((Self::Stale, ParkedLeft::More)),
            (
                Some(Value::Int(1)),
                Some(Value::Int(wait)),
                Some(Value::Array(records)),
                Some(now),
                Some(Value::Int(left)),
            ) => {
                let jobs = Self::Jobs {
                    next: match u64::try_from(wait) {
                        Ok(0) => Next::Look,
                        Ok(wait) => Next::Rest(Some(Duration::from_micros(wait))),
                        Err(_) => Next::Rest(None),
                    },
                    now: redis::from_redis_value(now)?,
                    records: records
                        .into_iter()
                        .filter_map(|record| match record {
                            Value::BulkString(bytes) => Some(bytes),
                            _ => None,
                        })
                        .collect(),
                };
                let left = match left {
                    0 => ParkedLeft::None,
                    2 => ParkedLeft::Limited,
                    3 => ParkedLeft::AllTaken,
                    _ => ParkedLeft::More,
                };
                Ok((jobs, left))
            }
            _ => Err(Error::codec("unexpected shape of the reply")),
        }
    }
}
