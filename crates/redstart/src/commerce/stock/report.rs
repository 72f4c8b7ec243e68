//! The counts of a sale.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{REPORT, Stock, answer::StockReport, loan::LOAN_AGE, on_sale};
use crate::{
    error::{Error, Result},
    observe,
    script::Batch,
};

/// free, held, sold, lent, moves, whether there is more, the id of the sale, the units with which it was opened, and those
/// that were added to the shard since.
type Answer = (u64, u64, u64, u64, u64, u64, String, i64, u64);

#[derive(Clone, Copy, Debug)]
struct Counts {
    free: u64,
    held: u64,
    sold: u64,
    /// Under way to another shard: nobody has them yet, so they are free.
    lent: u64,
    moves: u64,
    /// Of all shards.
    opened: Option<u64>,
    added: u64,
}

impl Stock {
    /// Ends holds that are over, settles what dead processes left, and counts. `None` if there is no such sale, or not all of
    /// its shards are there: some may not be warm yet, or have ended.
    ///
    /// Over several shards the counts are of one moment: they are read twice, until nothing moved between shards
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// The store's errors; [`is_timeout`](Error::is_timeout) if units kept moving between shards, or there were still holds
    /// that are over, at the store's deadline. What was ended until then stays so: ask again.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any time it changes nothing that the next report would not.
    pub async fn report(&self, sku: &str) -> Result<Option<StockReport>> {
        let inner = &*self.0;
        observe::operation("stock.report", inner.keys.namespace(), async {
            let until = Instant::now().checked_add(inner.store.deadline());
            let mut before = self.count(sku, until).await?;
            for (shard, counts) in (0..).zip(&before) {
                if counts.lent > 0 {
                    self.settle_loans(sku, shard, LOAN_AGE).await?;
                }
            }
            loop {
                if before.is_empty() {
                    return Ok(None);
                }
                if inner.shards == 1 {
                    return Ok(Some(sum(&before, 0)));
                }
                // A unit that was accepted is counted by the borrower; until the loan is settled the lender counts it
                // too.
                let twice = self.accepted_loans(sku, &before).await?;
                let after = self.count(sku, until).await?;
                let moves = |counts: &[Counts]| counts.iter().map(|c| c.moves).collect::<Vec<_>>();
                if moves(&before) == moves(&after) {
                    return Ok(Some(sum(&before, twice)));
                }
                if is_past(until) {
                    return Err(Error::timeout(
                        "units moved between shards during every attempt to count them",
                    ));
                }
                before = after;
            }
        })
        .await
    }

    /// The counts of all shards, with all holds that are over ended; empty if one of them does not have the sale.
    async fn count(&self, sku: &str, until: Option<Instant>) -> Result<Vec<Counts>> {
        let shards = self.all_shards(sku)?;
        // Each call ends a bounded number of holds: a report of a sale with many that are over takes many calls, none of
        // which blocks the server.
        loop {
            let mut batch = Batch::new();
            for shard in &shards {
                batch.push(on_sale(&REPORT, shard).idempotent());
            }
            let (mut counts, mut ids, mut more) = (Vec::new(), BTreeSet::new(), 0);
            for answer in batch.run::<Option<Answer>>(&self.0.store).await? {
                if let Some((free, held, sold, lent, moves, over, id, opened, added)) = answer? {
                    more += over;
                    ids.insert(id);
                    counts.push(Counts {
                        free,
                        held,
                        sold,
                        lent,
                        moves,
                        opened: u64::try_from(opened).ok(),
                        added,
                    });
                }
            }
            if counts.len() < shards.len() || ids.len() > 1 {
                return Ok(Vec::new());
            }
            if more == 0 {
                return Ok(counts);
            }
            if is_past(until) {
                return Err(Error::timeout("too many holds expired during the report"));
            }
        }
    }

    /// The units of loans that the borrower has and the lender still counts.
    async fn accepted_loans(&self, sku: &str, counts: &[Counts]) -> Result<u64> {
        let mut by_borrower: BTreeMap<u32, Vec<(String, u64)>> = BTreeMap::new();
        for (shard, count) in (0..).zip(counts) {
            if count.lent > 0 {
                let from = self.shard(sku, shard)?;
                for loan in self.loans(&from).await? {
                    let loans = by_borrower.entry(loan.to).or_default();
                    loans.push((loan.token, loan.qty));
                }
            }
        }
        let (mut pipeline, mut units) = (redis::pipe(), Vec::new());
        for (to, loans) in by_borrower {
            let decisions = self.shard(sku, to)?.part("decisions");
            for (token, qty) in loans {
                pipeline.cmd("HGET").arg(&decisions).arg(token);
                units.push(qty);
            }
        }
        if units.is_empty() {
            return Ok(0);
        }
        let decided: Vec<Option<u64>> = self.0.store.pipeline(&pipeline).await?;
        let accepted = units.into_iter().zip(decided);
        Ok(accepted
            .filter(|(_, decided)| decided.is_some_and(|units| units > 0))
            .map(|(qty, _)| qty)
            .sum())
    }
}

fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

fn sum(counts: &[Counts], twice: u64) -> StockReport {
    let mut report = StockReport::default();
    for count in counts {
        report.free += count.free + count.lent;
        report.held += count.held;
        report.sold += count.sold;
    }
    report.free = report.free.saturating_sub(twice);
    // Known only if every shard knows it.
    let opened: Option<Vec<u64>> = counts.iter().map(|count| count.opened).collect();
    let opened = opened.and_then(|opened| opened.first().copied());
    let added = counts.iter().map(|count| count.added).sum::<u64>();
    report.put_on_sale = opened.map(|opened| opened + added);
    report
}
