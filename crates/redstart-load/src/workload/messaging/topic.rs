//! What listeners of a topic hear.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use redstart::{
    Result,
    messaging::{Heard, Topic},
};

use super::{Beside, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload, counters, until};

/// The numbers of the messages of each publisher of which it does not know whether they were sent.
type Unsure = Arc<Vec<Mutex<BTreeSet<u64>>>>;

/// What a listener of a topic got from each publisher.
struct Ear {
    /// The next number that is expected of each publisher.
    next: Vec<AtomicU64>,
    unsure: Unsure,
    heard: AtomicU64,
    gaps: AtomicU64,
    claims: Claims,
}

pub(super) struct Goals {
    topic: Topic<(u64, u64)>,
    beside: Beside,
    ears: Vec<Arc<Ear>>,
    published: Vec<AtomicU64>,
    unsure: Unsure,
    sent: Sent,
    claims: Claims,
}

impl Goals {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let topic = Topic::<(u64, u64)>::builder(&bed.store, &bed.namespace, "goals")
            .buffer(1 << 16)
            .build()?;
        let (beside, mut ears) = (Beside::default(), Vec::new());
        let unsure: Unsure = Arc::new((0..bed.clients).map(|_| Mutex::default()).collect());
        for _ in 0..2 {
            let ear = Arc::new(Ear {
                next: counters(bed.clients),
                unsure: unsure.clone(),
                heard: AtomicU64::new(0),
                gaps: AtomicU64::new(0),
                claims: Claims::default(),
            });
            ears.push(ear.clone());
            let mut listener = topic.listen().await?;
            beside
                .spawn(|shift| async move {
                    while shift.goes_on() {
                        match tokio::time::timeout(LOOK, listener.next()).await {
                            Ok(Some(Heard::Message { message, .. })) => ear.hear(message),
                            Ok(Some(Heard::Gap)) => {
                                ear.gaps.fetch_add(1, Ordering::SeqCst);
                            }
                            Ok(Some(_)) | Err(_) => {}
                            Ok(None) => break,
                        }
                    }
                    Ok(())
                })
                .await;
        }
        Ok(Self {
            topic,
            beside,
            ears,
            published: counters(bed.clients),
            unsure,
            sent: Sent::default(),
            claims: Claims::default(),
        })
    }
}

impl Ear {
    fn hear(&self, (client, number): (u64, u64)) {
        self.heard.fetch_add(1, Ordering::SeqCst);
        let next = self.next[client as usize].fetch_max(number + 1, Ordering::SeqCst);
        let unsure = self.unsure[client as usize].lock();
        // After a gap numbers may be missing; they never go back. One whose outcome its publisher does not know may be missing,
        // or have been sent so late that later ones overtook it.
        let right = match number.checked_sub(next) {
            None => unsure.contains(&number),
            Some(missing) => {
                self.gaps.load(Ordering::SeqCst) > 0
                    || missing == unsure.range(next..number).count() as u64
            }
        };
        self.claims.hold(right, || {
            format!("message {number} of publisher {client} came where {next} was due")
        });
    }
}

impl Workload for Goals {
    async fn operate(&self, op: Op) -> Result<()> {
        // A client has one operation at a time, so its numbers are in order.
        let number = self.published[op.client].fetch_add(1, Ordering::SeqCst);
        let published = self.topic.publish(&(op.client as u64, number)).await;
        if published.is_err() {
            // Before the next number is taken: a listener that hears it knows of this one.
            self.unsure[op.client].lock().insert(number);
        }
        self.sent.add(number, &published);
        published.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        for ear in &self.ears {
            let heard = || ear.heard.load(Ordering::SeqCst);
            let gaps = || ear.gaps.load(Ordering::SeqCst);
            until(|| async { Ok(gaps() > 0 || heard() >= self.sent.tally.done()) }).await?;
            self.claims
                .hold(gaps() > 0 || self.sent.tally.explains(heard()), || {
                    format!(
                        "a listener heard {} of {} messages and was told of no gap",
                        heard(),
                        self.sent.tally.text()
                    )
                });
            if let Some(first) = ear.claims.first() {
                self.claims.hold(false, || first);
            }
        }
        self.beside.stop().await
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{goals}");

    fn entities(&self) -> u64 {
        0
    }

    fn figure(&self) -> Option<String> {
        let gaps: u64 = self
            .ears
            .iter()
            .map(|ear| ear.gaps.load(Ordering::SeqCst))
            .sum();
        Some(format!("{gaps} gaps were reported to 2 listeners"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is broken after a publisher's messages with these numbers, of which some are in doubt.
    fn broken(unsure: &[u64], heard: &[u64]) -> u64 {
        let ear = Ear {
            next: counters(1),
            unsure: Arc::new(vec![Mutex::new(unsure.iter().copied().collect())]),
            heard: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            claims: Claims::default(),
        };
        heard.iter().for_each(|number| ear.hear((0, *number)));
        ear.claims.broken()
    }

    #[test]
    fn only_messages_in_doubt_may_be_missing_or_late() {
        assert_eq!(broken(&[], &[0, 1, 2]), 0);
        assert_eq!(broken(&[], &[0, 2]), 1);
        assert_eq!(broken(&[], &[1, 0]), 2);
        assert_eq!(broken(&[1], &[0, 2, 3]), 0);
        assert_eq!(broken(&[1], &[0, 2, 1, 3]), 0);
        assert_eq!(broken(&[1], &[0, 3]), 1);
    }
}
