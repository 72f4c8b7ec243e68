//! Writes to the store how deliveries ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::mpsc;

use super::{
    Registration, Shared,
    run::{Ended, Ending},
};
use crate::{
    duration::{micros, millis},
    messaging::queue::{parked, record::DeliveryId, script::FINISH},
    observe,
    script::Call,
};

/// Endings that one script writes.
const BATCH: usize = 512;

/// Writes endings, as many at once as there are, until the worker has ended.
pub(super) async fn acknowledge(shared: Arc<Shared>, mut endings: mpsc::Receiver<Ended>) {
    let mut received = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            count = endings.recv_many(&mut received, BATCH) => if count == 0 { return },
            () = shared.drained.cancelled() => return,
        }
        // After a loss there are endings of two registrations; the old one's are refused.
        while let Some(first) = received.first() {
            let registration = first.delivery.registration.clone();
            let (same, other): (Vec<_>, Vec<_>) = received
                .drain(..)
                .partition(|ended| Arc::ptr_eq(&ended.delivery.registration, &registration));
            received = other;
            finish(&shared, &registration, &same).await;
        }
    }
}

/// Writes the endings of one registration and counts them.
async fn finish(shared: &Shared, registration: &Registration, ended: &[Ended]) {
    let batch = Batch::new(ended);
    let accepted = batch.write(shared, registration).await;
    {
        let mut known = registration.known.lock();
        for Ended { delivery, .. } in ended {
            known.remove(&delivery.key);
        }
    }
    if accepted {
        batch.count(shared);
    } else {
        observe::events("queue.refused", ended.len() as u64);
        registration.lost.cancel();
    }
}

/// Endings, sorted by what becomes of the job.
#[derive(Default)]
pub(super) struct Batch<'a> {
    done: Vec<&'a DeliveryId>,
    retry: Vec<(&'a DeliveryId, u64)>,
    dead: Vec<(&'a DeliveryId, &'a str)>,
    hand_back: Vec<&'a DeliveryId>,
    /// With the kind and the reason.
    park: Vec<(&'a DeliveryId, &'a str, &'a str)>,
    unique: Vec<(&'a DeliveryId, &'a [u8])>,
    progress: Vec<&'a DeliveryId>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(ended: &'a [Ended]) -> Self {
        let mut batch = Self::default();
        for Ended {
            delivery, ending, ..
        } in ended
        {
            let key = &delivery.key;
            match ending {
                Ending::Done => batch.done.push(key),
                Ending::Retry(wait) => batch.retry.push((key, micros(*wait))),
                Ending::Dead(reason) => batch.dead.push((key, reason)),
                Ending::HandBack => batch.hand_back.push(key),
                Ending::Park { kind, reason } => batch.park.push((key, kind, reason)),
            }
            if let (Ending::Done | Ending::Dead(_), Some(unique)) = (ending, &delivery.unique) {
                batch.unique.push((key, unique));
            }
            if delivery.progressed.load(Ordering::Relaxed) {
                batch.progress.push(key);
            }
        }
        batch
    }

    pub(super) fn call<'b>(&self, shared: &'b Shared, registration: &Registration) -> Call<'b> {
        let queue = &shared.queue;
        let mut call = FINISH
            .on(queue.entity())
            .part(&registration.running)
            .part("ready")
            .part("ranked")
            .part("delayed")
            .part("dead")
            .part("idle")
            .part("unique")
            .part("progress")
            .part("done")
            .part("parked");
        let mut kinds: Vec<&str> = self.park.iter().map(|(_, kind, _)| *kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in &kinds {
            call = call.part(&parked::part(kind));
        }
        call = call
            .arg(&queue.0.channel)
            .arg(queue.0.boost)
            .arg(queue.0.keep_done)
            .arg(millis(queue.0.keep_done_for))
            .arg(micros(queue.0.park_for));
        call = call.arg(self.unique.len());
        for (key, unique) in &self.unique {
            call = call.arg(&key[..]).arg(*unique);
        }
        call = call.arg(self.progress.len());
        for key in &self.progress {
            call = call.arg(&key[..]);
        }
        call = call.arg(self.done.len());
        for key in &self.done {
            call = call.arg(&key[..]);
        }
        call = call.arg(self.retry.len());
        for (key, wait) in &self.retry {
            call = call.arg(&key[..]).arg(wait);
        }
        call = call.arg(self.dead.len());
        for (key, reason) in &self.dead {
            call = call.arg(&key[..]).arg(reason);
        }
        call = call.arg(self.hand_back.len());
        for key in &self.hand_back {
            call = call.arg(&key[..]);
        }
        call = call.arg(self.park.len());
        for (key, kind, reason) in &self.park {
            // The keys of kinds come after ten others.
            let number = 11 + kinds.iter().position(|known| known == kind).unwrap_or(0);
            call = call.arg(&key[..]).arg(number).arg(*kind).arg(*reason);
        }
        // A delivery that was written before is skipped, so a lost reply does no harm.
        call.idempotent()
    }

    /// Tries until the store answers, or three times at the end of the worker; whether the store accepted it.
    async fn write(&self, shared: &Shared, registration: &Registration) -> bool {
        let queue = &shared.queue;
        let mut pause = Duration::from_millis(10);
        let mut tries_left = 3;
        loop {
            let call = self.call(shared, registration).run::<u8>(queue.store());
            match observe::operation("queue.finish", queue.namespace(), call).await {
                Ok(accepted) => return accepted == 1,
                Err(error) => tracing::debug!(%error, "endings of jobs could not be written"),
            }
            if shared.drained.is_cancelled() {
                tries_left -= 1;
                if tries_left == 0 {
                    return false;
                }
            }
            tokio::select! {
                biased;
                () = shared.drained.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    pub(super) fn count(&self, shared: &Shared) {
        let totals = &shared.totals;
        for (total, count) in [
            (&totals.done, self.done.len()),
            (&totals.failed, self.retry.len() + self.dead.len()),
            (&totals.handed_back, self.hand_back.len()),
        ] {
            total.fetch_add(count as u64, Ordering::Relaxed);
        }
        for (event, count) in [
            ("queue.done", self.done.len()),
            ("queue.retried", self.retry.len()),
            ("queue.dead", self.dead.len()),
            ("queue.handed_back", self.hand_back.len()),
            ("queue.parked", self.park.len()),
        ] {
            if count > 0 {
                observe::events(event, count as u64);
            }
        }
    }
}
