//! Notices that are taken once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redstart::{Error, Result, messaging::NotifySet};

use super::{Beside, LOOK};
use crate::workload::{Bed, Claims, Op, Tally, Workload, grows_to};

pub(super) struct Notices {
    set: NotifySet,
    members: usize,
    beside: Beside,
    /// How often a notice was added, and how many of them were new.
    added: AtomicU64,
    fresh: Tally,
    taken: Arc<AtomicU64>,
    /// How often the reply to a consumer was lost, with all that it took.
    doubts: Arc<AtomicU64>,
    claims: Claims,
}

/// Members of one take.
const MOST: usize = 100;

impl Notices {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let set = NotifySet::new(&bed.store, &bed.namespace, "changed")?;
        let (beside, taken) = (Beside::default(), Arc::new(AtomicU64::new(0)));
        let doubts = Arc::new(AtomicU64::new(0));
        for _ in 0..2 {
            let (mut consumer, taken) = (set.consumer(), taken.clone());
            let doubt = doubts.clone();
            beside
                .spawn(|mut shift| async move {
                    while shift.goes_on() {
                        let members = consumer.take(MOST, LOOK).await;
                        if members.as_ref().is_err_and(Error::is_in_doubt) {
                            doubt.fetch_add(1, Ordering::SeqCst);
                        }
                        let members = shift.heed(members).await.unwrap_or_default();
                        taken.fetch_add(members.len() as u64, Ordering::SeqCst);
                    }
                    shift.end()
                })
                .await;
        }
        Ok(Self {
            set,
            members: bed.entities(1_000_000),
            beside,
            added: AtomicU64::new(0),
            fresh: Tally::default(),
            taken,
            doubts,
            claims: Claims::default(),
        })
    }
}

impl Workload for Notices {
    async fn operate(&self, op: Op) -> Result<()> {
        let member = format!("e{}", op.index(self.members));
        self.added.fetch_add(1, Ordering::SeqCst);
        let added = self.set.add(&[member]).await;
        match &added {
            Ok(fresh) => self.fresh.add(*fresh, &added),
            Err(_) => self.fresh.add(1, &added),
        }
        added.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let taken = || self.taken.load(Ordering::SeqCst);
        let doubts = || self.doubts.load(Ordering::SeqCst);
        let least = || self.fresh.done().saturating_sub(doubts() * MOST as u64);
        grows_to(least(), || async { Ok(taken()) }).await?;
        self.beside.stop().await?;
        // An addition whose reply was lost is sent again, and then the notice is no longer new: where anything failed, each
        // addition may have been one.
        let most = match doubts() == 0 && self.fresh.most() == self.fresh.done() {
            true => self.fresh.done(),
            false => self.added.load(Ordering::SeqCst),
        };
        self.claims.hold((least()..=most).contains(&taken()), || {
            format!(
                "{} notices were taken of {least} to {most}",
                taken(),
                least = least()
            )
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{changed}");

    fn entities(&self) -> u64 {
        self.members as u64
    }
}
