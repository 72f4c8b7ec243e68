//! Pages of a list that the server sorts.

use std::sync::atomic::{AtomicU64, Ordering};

use redstart::{Result, caching::SortedView, redis};

use super::fresh;
use crate::workload::{Bed, Claims, DAY, Op, Workload, one_target};

pub(super) struct Sorted {
    view: SortedView,
    store: redstart::Store,
    members: Vec<Priced>,
    claims: Claims,
}

/// A member of the sorted list. The low bits of its price count its changes.
#[derive(Default)]
struct Priced {
    changes: AtomicU64,
    /// The last change whose invalidation has returned.
    floor: AtomicU64,
    /// Changes of one member take turns, so that a later one has the higher number.
    turn: tokio::sync::Mutex<()>,
}

/// Bits of a price that count its changes. Together with the price it is below 2^53, where SORT compares exactly.
const CHANGES: u32 = 40;

impl Sorted {
    pub(super) async fn open(bed: &Bed) -> Result<Self> {
        let view = SortedView::builder(&bed.store, &bed.namespace, "by-price", "products")
            .ttl(DAY)
            .by("price_*")
            .get("#")
            .get("price_*")
            .build()?;
        let members = bed.entities(200);
        let sorted = Self {
            view,
            store: bed.store.clone(),
            members: (0..members).map(|_| Priced::default()).collect(),
            claims: Claims::default(),
        };
        for member in 0..members {
            bed.gate.pass(0).await;
            let mut add = redis::cmd("SADD");
            add.arg(sorted.view.source()).arg(member);
            sorted.store.query::<()>(&add).await?;
            bed.gate.pass(0).await;
            sorted.price(member, member as u64 * 7919).await?;
        }
        Ok(sorted)
    }

    /// Sets a new price, and returns the number of this change.
    async fn price(&self, member: usize, price: u64) -> Result<u64> {
        let change = self.members[member].changes.fetch_add(1, Ordering::SeqCst) + 1;
        let mut set = redis::cmd("SET");
        set.arg(self.view.part(&format!("price_{member}")))
            .arg((price % 4096) << CHANGES | change);
        self.store.query::<()>(&set).await?;
        Ok(change)
    }
}

impl Workload for Sorted {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            let index = op.index(self.members.len());
            let member = &self.members[index];
            let _turn = member.turn.lock().await;
            let change = self.price(index, op.random).await?;
            self.view.invalidate().await?;
            member.floor.store(change, Ordering::SeqCst);
            return Ok(());
        }
        let floors = self.members.iter();
        let floors: Vec<u64> = floors
            .map(|member| member.floor.load(Ordering::SeqCst))
            .collect();
        let rows = self.view.page(0..self.members.len()).await?;
        let row = |row: &Vec<String>| Some((row.first()?.parse().ok()?, row.get(1)?.parse().ok()?));
        let rows: Vec<(usize, u64)> = rows.iter().filter_map(row).collect();
        let sorted = rows.is_sorted_by_key(|(_, price)| *price);
        self.claims
            .hold(rows.len() == self.members.len() && sorted, || {
                let (rows, all) = (rows.len(), self.members.len());
                format!("a page of {rows} rows, of {all}, or unsorted")
            });
        for (member, price) in rows {
            let (seen, floor) = (
                price % (1 << CHANGES),
                floors.get(member).copied().unwrap_or(0),
            );
            fresh(&self.claims, "the price of member", member, seen, floor);
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    one_target!("{products}");

    fn entities(&self) -> u64 {
        self.members.len() as u64
    }
}
