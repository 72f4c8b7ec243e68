//! Putting units on sale: one sale over all shards.
//!
//! The first shard decides: its sale has the id, the number of units and the end of the sale of all others. If it is missing while
//! others are warm, because a write was lost, it takes these from one of them.

use std::time::Duration;

use tokio::time::Instant;

use super::{PREWARM, Prewarm, Stock, check_time, check_units};
use crate::{
    duration::millis,
    error::{Error, Result},
    key::Entity,
    observe,
    script::{Batch, Call},
    token::token,
};

/// Pause while a shard still has the sale before this one, because its clock is behind.
const PAUSE: Duration = Duration::from_millis(20);

/// What all shards of a sale have in common.
#[derive(Clone, PartialEq, Eq)]
struct Sale {
    id: String,
    units: u64,
    /// In milliseconds; `None` if it is not known yet.
    ends: Option<u64>,
}

type Answer = (i32, String, u64, u64);

impl Stock {
    /// Puts units on sale. Everything about the sale but its orders is forgotten after `ttl`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units, too many, or a TTL that is zero or over a year; the store's
    /// errors. Repeat it after an error: shards that are warm stay as they are, and the rest is warmed with the units and to
    /// the end of the sale that those have.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some shards may be warm. Repeat it.
    pub async fn prewarm(&self, sku: &str, units: u64, ttl: Duration) -> Result<Prewarm> {
        let inner = &*self.0;
        observe::operation("stock.prewarm", inner.keys.namespace(), async {
            check_units("a sale", units)?;
            check_time("a sale", ttl)?;
            inner.sold_out.forget(sku);
            let shards = self.all_shards(sku)?;
            let until = Instant::now().checked_add(inner.store.deadline());
            loop {
                if let Some(warmed) = self.try_prewarm(&shards, units, ttl).await? {
                    return Ok(warmed);
                }
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(Error::timeout("a shard still has the sale before this one"));
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await
    }

    /// `None` if a shard has another sale, which is about to end.
    async fn try_prewarm(
        &self,
        shards: &[Entity],
        units: u64,
        ttl: Duration,
    ) -> Result<Option<Prewarm>> {
        let store = &self.0.store;
        let mut sale = Sale {
            id: token(),
            units,
            ends: None,
        };
        if shards.len() > 1
            && let Some(warm) = self.warm(shards).await?
        {
            sale = warm;
        }
        let call = |n: usize, sale: &Sale| -> Call<'_> {
            let ends = sale.ends.map(|ends| ends.to_string());
            let call = PREWARM.on(&shards[n]).key().part("requests");
            let call = call.part("holds").part("users").part("restocks");
            let call = call.part("loans").part("expired").arg(&sale.id);
            let call = call.arg(sale.units).arg(self.share(sale.units, n));
            call.arg(ends.unwrap_or_default()).arg(millis(ttl))
        };
        let (first, id, units, ends): Answer = call(0, &sale).run(store).await?;
        if first < 0 {
            return Ok(None);
        }
        let sale = Sale {
            id,
            units,
            ends: Some(ends),
        };
        let mut warmed = first == 1;
        let mut batch = Batch::new();
        for n in 1..shards.len() {
            batch.push(call(n, &sale));
        }
        let mut whole = true;
        for answer in batch.run::<Answer>(store).await? {
            let (answer, id, ..) = answer?;
            whole &= answer >= 0 && id == sale.id;
            warmed |= answer == 1;
        }
        Ok(whole.then_some(match warmed {
            true => Prewarm::Warmed,
            false => Prewarm::Running,
        }))
    }

    /// The sale of the first shard, or of the one with the latest end.
    async fn warm(&self, shards: &[Entity]) -> Result<Option<Sale>> {
        let mut pipeline = redis::pipe();
        for shard in shards {
            pipeline.cmd("HMGET").arg(shard.key());
            pipeline.arg("id").arg("units").arg("ends");
        }
        type Found = (Option<String>, Option<u64>, Option<u64>);
        let found: Vec<Found> = self.0.store.pipeline(&pipeline).await?;
        let mut sales = found.into_iter().map(|(id, units, ends)| {
            Some(Sale {
                id: id?,
                units: units?,
                ends: Some(ends?),
            })
        });
        Ok(match sales.next().flatten() {
            Some(first) => Some(first),
            None => sales.flatten().max_by_key(|sale| sale.ends),
        })
    }
}
