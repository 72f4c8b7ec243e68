//! Writes to the store how deliveries ended.

use std::{
    borrow::Cow,
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::mpsc, task::yield_now};

use super::{
    Delivery, Registration, Shared,
    run::{Ended, Ending},
    slots::Permits,
};
use crate::{
    duration::micros,
    messaging::queue::{history::History, parked, record::DeliveryId, script::FINISH},
    observe,
    script::Call,
};

/// Endings that one script writes.
const BATCH: usize = 256;
/// Bytes of results and reasons that one script writes, unless one alone is larger: it must arrive within the deadline.
const BATCH_BYTES: usize = 512 * 1024;
/// Bytes of a reason that are kept.
const MAX_REASON: usize = 4000;

/// Writes endings, as many at once as there are, until the worker has ended.
pub(super) async fn acknowledge(shared: Arc<Shared>, mut endings: mpsc::Receiver<Ended>) {
    let mut received = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            biased;
            count = endings.recv_many(&mut received, BATCH) => if count == 0 { return },
            () = shared.drained.cancelled() => return,
        }
        gather(&mut endings, &mut received).await;
        // After a loss there are endings of two registrations; the old one's are refused.
        while let Some(first) = received.first() {
            let registration = first.delivery.registration.clone();
            let (mut same, other): (Vec<_>, Vec<_>) = received
                .drain(..)
                .partition(|ended| Arc::ptr_eq(&ended.delivery.registration, &registration));
            received = other;
            while !same.is_empty() {
                let piece: Vec<Ended> = same.drain(..fitting(&same, &shared)).collect();
                finish(&shared, &registration, &piece).await;
                Permits::release(piece.into_iter().map(|ended| ended.permit));
            }
        }
    }
}

/// Jobs that were taken together and are short end together: lets those run that can run now, so that one script writes
/// their endings and not one the first of them.
async fn gather(endings: &mut mpsc::Receiver<Ended>, received: &mut Vec<Ended>) {
    while received.len() < BATCH {
        let before = received.len();
        yield_now().await;
        while received.len() < BATCH
            && let Ok(ended) = endings.try_recv()
        {
            received.push(ended);
        }
        if received.len() == before {
            return;
        }
    }
}

/// How many of the first endings one script writes.
fn fitting(ended: &[Ended], shared: &Shared) -> usize {
    let mut bytes = 0;
    let fits = ended.iter().take_while(|ended| {
        bytes += match &ended.ending {
            Ending::Done(result) if ended.delivery.keeps_result(shared) => result.len(),
            Ending::Retry { reason, .. } | Ending::Dead(reason) | Ending::Park { reason, .. } => {
                reason.len().min(MAX_REASON)
            }
            _ => 0,
        };
        bytes <= BATCH_BYTES
    });
    fits.count().max(1)
}

/// The beginning of a reason, cut between two characters.
fn cut(reason: &str) -> Cow<'_, [u8]> {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Borrowed(&reason.as_bytes()[..end])
}

impl Delivery {
    /// Whether anybody can ask for what it returns.
    fn keeps_result(&self, shared: &Shared) -> bool {
        self.result_is_kept || shared.queue.0.keep_done_for.is_some()
    }
}

/// Writes the endings of one registration and counts those that were written.
async fn finish(shared: &Shared, registration: &Registration, ended: &[Ended]) {
    let batch = Batch::new(ended, shared);
    let written = batch.write(shared, registration).await;
    registration.has_written(ended.len());
    {
        let mut known = registration.known.lock();
        for Ended { delivery, .. } in ended {
            known.remove(&delivery.key);
        }
    }
    let counted = batch.count(shared, &written);
    if !written.all {
        observe::events("queue.refused", (ended.len() - counted) as u64);
        registration.lost.cancel();
    }
}

/// Endings as `finish.lua` takes them.
pub(super) struct Batch<'a> {
    /// Done, and nothing but the record to remove.
    plain: Vec<&'a DeliveryId>,
    others: Vec<Other<'a>>,
    /// The parts of the kinds that are parked.
    parked: Vec<String>,
    history: History,
}

struct Other<'a> {
    delivery: &'a DeliveryId,
    /// Also the name by which it is counted.
    ending: &'static str,
    number: u64,
    text: Cow<'a, [u8]>,
}

/// How far a batch was written.
pub(super) struct Written {
    /// Of those that are not plain. With the first of them, or if there is none, all plain ones were written.
    others: usize,
    /// Otherwise the store refused the rest, or did not answer in the end.
    pub(super) all: bool,
}

/// The keys of kinds come after these.
const FIRST_KIND: usize = 21;

impl<'a> Batch<'a> {
    pub(super) fn new(ended: &'a [Ended], shared: &Shared) -> Self {
        let mut batch = Self {
            plain: Vec::new(),
            others: Vec::new(),
            parked: Vec::new(),
            history: History::default(),
        };
        let queue = &shared.queue.0;
        for Ended {
            delivery, ending, ..
        } in ended
        {
            let result = match ending {
                Ending::Done(result) if delivery.keeps_result(shared) => &result[..],
                _ => &[],
            };
            let is_too_large = result.len() > queue.max_payload;
            let is_done = match ending {
                Ending::Done(_) => Some(!is_too_large),
                Ending::Retry { .. } | Ending::Dead(_) => Some(false),
                _ => None,
            };
            if let (true, Some(is_done)) = (queue.history > 0, is_done) {
                let (waited, ran) = (delivery.waited, delivery.started.elapsed());
                batch.history.note(&delivery.kind, is_done, waited, ran);
            }
            let plain = delivery.plain
                && queue.keep_done_for.is_none()
                && !delivery.progressed.load(Ordering::Relaxed);
            let (ending, number, text): (_, _, Cow<'a, [u8]>) = match ending {
                Ending::Done(_) if is_too_large => {
                    let reason = format!(
                        "the result has {} bytes; the queue accepts at most {}",
                        result.len(),
                        queue.max_payload
                    );
                    ("dead", 0, reason.into_bytes().into())
                }
                Ending::Done(_) => {
                    if plain {
                        batch.plain.push(&delivery.key);
                        continue;
                    }
                    ("done", 0, result.into())
                }
                Ending::Retry { wait, reason } => ("retry", micros(*wait), cut(reason)),
                Ending::Dead(reason) => ("dead", 0, cut(reason)),
                Ending::Cancelled => ("cancel", 0, Cow::Borrowed(b"")),
                Ending::HandBack => ("back", 0, Cow::Borrowed(b"")),
                Ending::Park { kind, reason } => {
                    let part = parked::part(kind);
                    let known = batch.parked.iter().position(|other| *other == part);
                    let at = known.unwrap_or_else(|| {
                        batch.parked.push(part);
                        batch.parked.len() - 1
                    });
                    ("park", (FIRST_KIND + at) as u64, cut(reason))
                }
            };
            batch.others.push(Other {
                delivery: &delivery.key,
                ending,
                number,
                text,
            });
        }
        batch
    }

    /// Writes the plain endings and those others that come after so many: with some of these, all plain ones were written.
    pub(super) fn call<'b>(
        &self,
        shared: &'b Shared,
        registration: &Registration,
        written: usize,
    ) -> Call<'b> {
        let plain = if written == 0 { &self.plain[..] } else { &[] };
        let others = self.others.get(written..).unwrap_or_default();
        let queue = &shared.queue;
        let mut parts = vec![&*registration.running, "parked", "history", "tallies"];
        parts.extend(self.parked.iter().map(String::as_str));
        let mut call = queue
            .call(&FINISH, &parts)
            .arg(micros(queue.0.park_for))
            // The worker that took them, which need not be this one.
            .arg(registration.worker())
            .arg(u8::from(queue.0.group_limit.is_in_order()))
            .arg(queue.0.history)
            .arg(plain.len());
        for delivery in plain {
            call = call.arg(&delivery[..]);
        }
        call = call.arg(others.len());
        for other in others {
            call = call
                .arg(&other.delivery[..])
                .arg(other.ending)
                .arg(other.number)
                .arg(&other.text[..]);
        }
        let tallies = self.history.tallies();
        call = call.arg(tallies.len());
        for (name, amount) in tallies {
            call = call.arg(name).arg(amount);
        }
        // A delivery that was written before is skipped, so a lost reply does no harm.
        call.idempotent()
    }

    /// After a reply to [`call`](Self::call): how many of those that are not plain were written so far, or the end.
    pub(super) fn after(&self, written: usize, reply: usize) -> ControlFlow<Written, usize> {
        match reply {
            0 => ControlFlow::Break(Written {
                others: written,
                all: false,
            }),
            1 => ControlFlow::Break(Written {
                others: self.others.len(),
                all: true,
            }),
            some => ControlFlow::Continue(written + some - 1),
        }
    }

    /// Tries until the store answers, or three times at the end of the worker.
    async fn write(&self, shared: &Shared, registration: &Registration) -> Written {
        let queue = &shared.queue;
        let mut pause = Duration::from_millis(10);
        let mut tries_left = 3;
        let mut written = 0;
        loop {
            let call = self.call(shared, registration, written);
            let call = call.run::<usize>(queue.store());
            match observe::operation("queue.finish", queue.namespace(), call).await {
                Ok(reply) => match self.after(written, reply) {
                    ControlFlow::Break(written) => return written,
                    ControlFlow::Continue(more) => {
                        written = more;
                        continue;
                    }
                },
                Err(error) => tracing::debug!(%error, "endings of jobs could not be written"),
            }
            // The fetcher may wait for room, which there is not before this is written.
            shared.wants_slots(false);
            if shared.drained.is_cancelled() {
                tries_left -= 1;
                if tries_left == 0 {
                    return Written {
                        others: written,
                        all: false,
                    };
                }
            }
            tokio::select! {
                biased;
                () = shared.drained.cancelled() => {}
                () = shared.answers.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Counts those that were written; how many.
    pub(super) fn count(&self, shared: &Shared, written: &Written) -> usize {
        let plain = match written {
            Written {
                others: 0,
                all: false,
            } => 0,
            _ => self.plain.len(),
        };
        let written = self.others.get(..written.others).unwrap_or(&self.others);
        let of = |ending| {
            written
                .iter()
                .filter(|other| other.ending == ending)
                .count() as u64
        };
        let (done, handed_back) = (of("done") + plain as u64, of("back"));
        let (retried, dead) = (of("retry"), of("dead"));
        let totals = &shared.totals;
        for (total, count) in [
            (&totals.done, done),
            (&totals.failed, retried + dead),
            (&totals.handed_back, handed_back),
        ] {
            total.fetch_add(count, Ordering::Relaxed);
        }
        for (event, count) in [
            ("queue.done", done),
            ("queue.retried", retried),
            ("queue.dead", dead),
            ("queue.handed_back", handed_back),
            ("queue.parked", of("park")),
            ("queue.cancelled", of("cancel")),
        ] {
            if count > 0 {
                observe::events(event, count);
            }
        }
        plain + written.len()
    }
}
