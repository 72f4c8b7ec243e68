//! Loans of units from one shard to another.
//!
//! ```text
//! lender                                 borrower
//! free ── lend ──> lent, "loans"
//!                                        receive: accepted, "decisions" ──> free
//! lent ── settle_loan ──> gone           (or refused, and back to the lender's free)
//! ```
//!
//! Each step is idempotent, and the borrower's decision is final. A process that dies between two of them leaves a loan
//! that anybody can settle.

use std::time::Duration;

use tokio::time::Instant;

use super::{LEND, OFFER, RECEIVE, SETTLE_LOAN, Stock, TIME, on_sale, request::Request};
use crate::{
    error::{Error, Result},
    key::Entity,
    observe,
    script::Batch,
    token::token,
};

/// A loan takes two round trips. One that is older than this was left by a process that died.
pub(super) const LOAN_AGE: Duration = Duration::from_secs(5);
/// How many loans are read at a time.
const PAGE: usize = 100;

/// Whether borrowing brought anything.
pub(super) enum Borrowed {
    /// It is worth trying again.
    Some,
    Nothing,
}

/// Units under way from one shard to another.
pub(super) struct Loan {
    pub(super) token: String,
    pub(super) qty: u64,
    pub(super) to: u32,
    /// When it was made, by the clock of the lender's server.
    since: Duration,
    sale: Sale,
}

/// The sale of a loan.
struct Sale {
    id: String,
    /// Milliseconds since 1970.
    ends: u64,
}

impl Stock {
    /// Borrows units for the request's shard, which has only `free` of the `qty` wanted.
    pub(super) async fn borrow_units(
        &self,
        request: &Request,
        qty: u64,
        free: u64,
    ) -> Result<Borrowed> {
        let inner = &*self.0;
        if inner.memory.is_short_of(&request.sku, qty) {
            return Ok(Borrowed::Nothing);
        }
        let home = self.home(&request.user);
        let asked = inner.memory.ask(&request.sku);
        let shards = self.all_shards(&request.sku)?;
        let (mine, mut offers): (Vec<_>, Vec<_>) = {
            let offers = self.offers(&shards).await?.into_iter();
            offers.partition(|offer| offer.shard == home)
        };
        let all: u64 = free + offers.iter().map(|offer| offer.free).sum::<u64>();
        let over = offers.iter().any(|offer| offer.over > 0);
        if all < qty && !over {
            // Units may be under way, or were left there by a process that died; also those of this shard.
            let lenders = || mine.iter().chain(&offers).filter(|offer| offer.lent > 0);
            for offer in lenders() {
                if self
                    .settle_loans(&request.sku, offer.shard, LOAN_AGE)
                    .await?
                    > 0
                {
                    return Ok(Borrowed::Some);
                }
            }
            // Units that are under way will be free somewhere soon.
            if lenders().next().is_none() {
                inner.memory.put(&request.sku, all, asked);
            }
            return Ok(Borrowed::Nothing);
        }
        offers.sort_by_key(|offer| std::cmp::Reverse((offer.free, offer.over)));
        let to = &shards[home as usize];
        for offer in offers.iter().filter(|offer| offer.free + offer.over > 0) {
            let from = &shards[offer.shard as usize];
            let token = token();
            let call = on_sale(&LEND, from).part("loans").part("ended_loans");
            let call = call
                .arg(&token)
                .arg(qty - free.min(qty))
                .arg(home)
                .arg(&offer.sale)
                .idempotent();
            let (lent, id, ends): (u64, String, u64) = call.run(&inner.store).await?;
            if lent > 0 {
                observe::event("stock.borrowed");
                let sale = Sale { id, ends };
                self.settle_loan(from, to, (&token, &sale), lent).await?;
                return Ok(Borrowed::Some);
            }
        }
        Ok(Borrowed::Nothing)
    }

    /// What the shards could lend, in one round trip.
    async fn offers(&self, shards: &[Entity]) -> Result<Vec<Offer>> {
        let mut batch = Batch::new();
        for shard in shards {
            batch.push(OFFER.on(shard).key().part("holds").idempotent());
        }
        let mut offers = Vec::with_capacity(shards.len());
        type Answer = (u64, u64, u64, String);
        let answers = batch.run::<Option<Answer>>(&self.0.store).await?;
        for (shard, answer) in (0..).zip(answers) {
            if let Some((free, lent, over, sale)) = answer? {
                offers.push(Offer {
                    shard,
                    free,
                    lent,
                    over,
                    sale,
                });
            }
        }
        Ok(offers)
    }

    /// Offers a loan to its borrower (or, with `qty` 0, has it refused) and closes it as was decided.
    async fn settle_loan(
        &self,
        from: &Entity,
        to: &Entity,
        (token, sale): (&str, &Sale),
        qty: u64,
    ) -> Result<()> {
        let store = &self.0.store;
        let receive = RECEIVE.on(to).key().part("decisions").arg(token).arg(qty);
        let accepted: u64 = receive
            .arg(&sale.id)
            .arg(sale.ends)
            .idempotent()
            .run(store)
            .await?;
        let close = SETTLE_LOAN.on(from).key().part("loans");
        let close = close.part("ended_loans").arg(token);
        let close = close.arg(u32::from(accepted > 0)).idempotent();
        close.run::<u32>(store).await?;
        Ok(())
    }

    /// Settles the loans of a shard that are older than `age`, and returns how many. Those that were not accepted are
    /// refused, so that nobody can accept them later, and come back.
    pub(super) async fn settle_loans(&self, sku: &str, shard: u32, age: Duration) -> Result<u64> {
        let from = self.shard(sku, shard)?;
        let loans = self.loans(&from).await?;
        if loans.is_empty() {
            return Ok(0);
        }
        // Another node's clock says nothing of how old they are.
        let now: u64 = TIME.on(&from).key().idempotent().run(&self.0.store).await?;
        let now = Duration::from_micros(now);
        let mut settled = 0;
        for loan in loans {
            if now.saturating_sub(loan.since) >= age {
                let to = self.shard(sku, loan.to)?;
                let loan = (&*loan.token, &loan.sale);
                self.settle_loan(&from, &to, loan, 0).await?;
                observe::event("stock.loan_settled");
                settled += 1;
            }
        }
        Ok(settled)
    }

    /// The loans of a shard.
    pub(super) async fn loans(&self, from: &Entity) -> Result<Vec<Loan>> {
        let wrong = || Error::codec("unexpected shape of a loan");
        let (key, mut cursor, mut loans) = (from.part("loans"), 0u64, Vec::new());
        let until = Instant::now().checked_add(self.0.store.deadline());
        loop {
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(&key).arg(cursor).arg("COUNT").arg(PAGE);
            let (next, page): (u64, Vec<(String, String)>) = self.0.store.query(&cmd).await?;
            for (token, loan) in page {
                let words: Vec<&str> = loan.splitn(5, ' ').collect();
                let [qty, to, since, ends, id] = words[..] else {
                    return Err(wrong());
                };
                loans.push(Loan {
                    token,
                    qty: qty.parse().map_err(|_| wrong())?,
                    to: to.parse().map_err(|_| wrong())?,
                    since: Duration::from_micros(since.parse().map_err(|_| wrong())?),
                    sale: Sale {
                        id: id.to_owned(),
                        ends: ends.parse().map_err(|_| wrong())?,
                    },
                });
            }
            cursor = next;
            if cursor == 0 {
                return Ok(loans);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Error::timeout("too many loans to read in time"));
            }
        }
    }
}

struct Offer {
    shard: u32,
    free: u64,
    lent: u64,
    /// Holds that are over: their units can be lent once they are ended.
    over: u64,
    /// Its id.
    sale: String,
}
