//! Laps of a ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use redstart::{Result, messaging::Ring};

use crate::workload::{Bed, Claims, Op, Workload};

pub(super) struct Laps {
    ring: Ring,
    items: usize,
    /// The visits of laps that are not complete yet.
    open: Mutex<BTreeMap<u64, BTreeSet<String>>>,
    failures: AtomicU64,
    claims: Claims,
}

impl Laps {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let ring = Ring::new(&bed.store, &bed.namespace, "items")?;
        let items = bed.entities(100);
        for n in 0..items {
            bed.gate.pass(0).await;
            ring.add(&format!("e{n}")).await?;
        }
        Ok(Self {
            ring,
            items,
            open: Mutex::default(),
            failures: AtomicU64::new(0),
            claims: Claims::default(),
        })
    }
}

impl Workload for Laps {
    async fn operate(&self, _: Op) -> Result<()> {
        let visit = self.ring.next().await;
        if visit.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let Some(visit) = visit? else {
            self.claims.hold(false, || "the ring is empty".to_owned());
            return Ok(());
        };
        let mut open = self.open.lock();
        let lap = open.entry(visit.lap).or_default();
        let first = lap.insert(visit.item.clone());
        if lap.len() == self.items {
            open.remove(&visit.lap);
        }
        self.claims.hold(first, || {
            format!("{} was visited twice in lap {}", visit.item, visit.lap)
        });
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        // Complete laps were removed; only the last one may be incomplete.
        let open = self.open.lock();
        let incomplete = open.len().saturating_sub(1) as u64;
        let failures = self.failures.load(Ordering::Relaxed);
        self.claims.hold(incomplete <= failures, || {
            format!("{incomplete} laps skipped an item")
        });
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    crate::workload::one_target!("{items}");

    fn entities(&self) -> u64 {
        self.items as u64
    }
}
