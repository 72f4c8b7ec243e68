//! Putting units on sale: one sale over all shards.
//!
//! The first shard decides: its sale has the id, the number of units and the end of the sale of all others, and says whether it
//! is closed. If it is missing while others are warm, because a write was lost, it takes these from one of them; then the sale
//! is closed if any of them is.

use std::time::Duration;

use tokio::time::Instant;

use super::{PREWARM, Prewarm, Stock, WARM, check_time, check_units};
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
    /// In milliseconds.
    ends: u64,
    closed: bool,
    /// All shards had it: one that is missing was lost.
    whole: bool,
}

type Answer = (i32, String, u64, u64, bool);
/// The time of a shard, and its sale: id, units, end, whether it is closed, and whether all shards had it.
type Found = (
    u64,
    Option<String>,
    Option<u64>,
    Option<u64>,
    Option<bool>,
    Option<bool>,
);

impl Stock {
    /// Puts units on sale. The sale ends after `ttl`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units, too many, or a TTL that is zero or over a year;
    /// [`is_timeout`](Error::is_timeout) also if the sale before has not ended everywhere, or this one is shorter than a round
    /// trip; the store's errors. Repeat it after an error: shards that are warm stay as they are, and the rest is warmed with the units and to
    /// the end of the sale that those have.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some shards may be warm. Repeat it. A copy of the request that arrives later warms nothing
    /// once the sale has ended.
    pub async fn prewarm(&self, sku: &str, units: u64, ttl: Duration) -> Result<Prewarm> {
        let inner = &*self.0;
        observe::operation("stock.prewarm", inner.keys.namespace(), async {
            check_units("a sale", units)?;
            check_time("a sale", ttl)?;
            let _back = inner.memory.give_back(sku);
            let shards = self.all_shards(sku)?;
            let until = Instant::now().checked_add(inner.store.deadline());
            loop {
                if let Some((id, warmed)) = self.try_prewarm(&shards, units, ttl).await? {
                    inner.memory.put_sale(sku, &id);
                    return Ok(warmed);
                }
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(Error::timeout(
                        "a shard still has the sale before this one, or this one would be over already",
                    ));
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await
    }

    /// The id of the sale, and whether a shard was warmed. `None` if a shard has another sale, which is about to end.
    async fn try_prewarm(
        &self,
        shards: &[Entity],
        units: u64,
        ttl: Duration,
    ) -> Result<Option<(String, Prewarm)>> {
        let store = &self.0.store;
        // The end is said before the sale begins, so that a copy of the request that arrives after it starts no sale.
        let (now, warm) = self.warm(shards).await?;
        let sale = warm.unwrap_or_else(|| Sale {
            id: token(),
            units,
            ends: now.saturating_add(millis(ttl)),
            closed: false,
            whole: false,
        });
        let call = |n: usize, sale: &Sale| -> Call<'_> {
            let call = PREWARM.on(&shards[n]).key().part("requests");
            let call = call.part("holds").part("users").part("loans");
            let call = call.part("expired").part("restocks");
            let call = call.arg(&sale.id).arg(sale.units);
            let call = call.arg(self.share(sale.units, n)).arg(sale.ends);
            call.arg(u32::from(sale.closed)).arg(u32::from(sale.whole))
        };
        let (first, id, units, ends, closed): Answer = call(0, &sale).run(store).await?;
        if first < 0 {
            return Ok(None);
        }
        let mut sale = Sale {
            units,
            ends,
            closed,
            whole: sale.whole && id == sale.id,
            id,
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
        let warmed = match warmed {
            true => Prewarm::Warmed,
            false => Prewarm::Running,
        };
        if whole && !sale.whole && shards.len() > 1 {
            // From now on, a shard that is missing was lost.
            sale.whole = true;
            let mut batch = Batch::new();
            for n in 0..shards.len() {
                batch.push(call(n, &sale));
            }
            for answer in batch.run::<Answer>(store).await? {
                answer?;
            }
        }
        Ok(whole.then_some((sale.id, warmed)))
    }

    /// The time of the first shard in milliseconds, and its sale, or that of the shard with the latest end.
    async fn warm(&self, shards: &[Entity]) -> Result<(u64, Option<Sale>)> {
        let mut batch = Batch::new();
        for shard in shards {
            batch.push(WARM.on(shard).key().idempotent());
        }
        let (mut time, mut sales) = (None, Vec::with_capacity(shards.len()));
        for answer in batch.run::<Found>(&self.0.store).await? {
            let (now, id, units, ends, closed, whole) = answer?;
            time.get_or_insert(now);
            sales.push(match (id, units, ends) {
                (Some(id), Some(units), Some(ends)) => Some(Sale {
                    id,
                    units,
                    ends,
                    closed: closed.unwrap_or_default(),
                    whole: whole.unwrap_or_default(),
                }),
                _ => None,
            });
        }
        let all = sales.clone();
        let mut sales = sales.into_iter();
        let sale = match sales.next().flatten() {
            Some(first) => Some(first),
            None => {
                let sales: Vec<Sale> = sales.flatten().collect();
                let last = sales.iter().max_by_key(|sale| sale.ends).cloned();
                last.map(|mut last| {
                    last.closed = sales.iter().any(|sale| sale.id == last.id && sale.closed);
                    last
                })
            }
        };
        let sale = sale.map(|sale| Sale {
            whole: (all.iter().flatten()).any(|other| other.id == sale.id && other.whole),
            ..sale
        });
        Ok((time.unwrap_or_default(), sale))
    }
}
