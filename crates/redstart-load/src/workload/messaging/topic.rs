//! What listeners of a topic hear.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redstart::{
    Result,
    messaging::{Heard, Topic},
};

use super::{Beside, LOOK, Sent};
use crate::workload::{Bed, Claims, Op, Workload, counters, until};

/// What a listener of a topic got from each publisher.
struct Ear {
    /// The next number that is expected of each publisher.
    next: Vec<AtomicU64>,
    heard: AtomicU64,
    gaps: AtomicU64,
    claims: Claims,
}

pub(super) struct Goals {
    topic: Topic<(u64, u64)>,
    beside: Beside,
    ears: Vec<Arc<Ear>>,
    published: Vec<AtomicU64>,
    sent: Sent,
    claims: Claims,
}

impl Goals {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let topic = Topic::<(u64, u64)>::builder(&bed.store, &bed.namespace, "goals")
            .buffer(1 << 16)
            .build()?;
        let (beside, mut ears) = (Beside::default(), Vec::new());
        for _ in 0..2 {
            let ear = Arc::new(Ear {
                next: counters(bed.clients),
                heard: AtomicU64::new(0),
                gaps: AtomicU64::new(0),
                claims: Claims::default(),
            });
            ears.push(ear.clone());
            let mut listener = topic.listen().await?;
            beside
                .spawn(|stop| async move {
                    while !stop.load(Ordering::SeqCst) {
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
            sent: Sent::default(),
            claims: Claims::default(),
        })
    }
}

impl Ear {
    fn hear(&self, (client, number): (u64, u64)) {
        self.heard.fetch_add(1, Ordering::SeqCst);
        let next = self.next[client as usize].swap(number + 1, Ordering::SeqCst);
        // After a gap numbers may be missing; they never go back.
        let right = match self.gaps.load(Ordering::SeqCst) {
            0 => number == next,
            _ => number >= next,
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
