//! Notices that are taken once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redstart::{Result, messaging::NotifySet};

use super::{Beside, LOOK};
use crate::workload::{Bed, Claims, Op, Tally, Workload, grows_to};

pub(super) struct Notices {
    set: NotifySet,
    members: usize,
    beside: Beside,
    fresh: Tally,
    taken: Arc<AtomicU64>,
    claims: Claims,
}

impl Notices {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let set = NotifySet::new(&bed.store, &bed.namespace, "changed")?;
        let (beside, taken) = (Beside::default(), Arc::new(AtomicU64::new(0)));
        for _ in 0..2 {
            let (mut consumer, taken) = (set.consumer(), taken.clone());
            beside
                .spawn(|stop| async move {
                    while !stop.load(Ordering::SeqCst) {
                        let members = consumer.take(100, LOOK).await?;
                        taken.fetch_add(members.len() as u64, Ordering::SeqCst);
                    }
                    Ok(())
                })
                .await;
        }
        Ok(Self {
            set,
            members: bed.entities(1_000_000),
            beside,
            fresh: Tally::default(),
            taken,
            claims: Claims::default(),
        })
    }
}

impl Workload for Notices {
    async fn operate(&self, op: Op) -> Result<()> {
        let member = format!("e{}", op.index(self.members));
        let added = self.set.add(&[member]).await;
        match &added {
            Ok(fresh) => self.fresh.add(*fresh, &added),
            Err(_) => self.fresh.add(1, &added),
        }
        added.map(|_| ())
    }

    async fn finish(&self) -> Result<()> {
        let taken = || self.taken.load(Ordering::SeqCst);
        grows_to(self.fresh.done(), || async { Ok(taken()) }).await?;
        self.beside.stop().await?;
        self.claims.hold(self.fresh.explains(taken()), || {
            format!("{} notices were taken of {}", taken(), self.fresh.text())
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
