//! Reservations: made, settled, extended.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::{
    EXTEND, RESERVE, SETTLE, Stock,
    answer::{Extension, Reserve, Transition, Words},
    check_time, check_units,
    loan::Borrowed,
    on_sale,
    request::Request,
};
use crate::{
    duration::micros,
    error::{Error, Result},
    observe,
};

impl Stock {
    /// Holds `qty` units for the request's user for `hold`, and adds the order to the stream. A hold ends with its sale
    /// at the latest.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units or a hold that is zero or over a year; the store's errors.
    /// After any of these, repeat it with the same request.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the units may be held, also later, when the request arrives. Repeat it, or
    /// [cancel](Self::cancel) it, or let the hold expire.
    pub async fn reserve(&self, request: &Request, qty: u64, hold: Duration) -> Result<Reserve> {
        let inner = &*self.0;
        observe::operation("stock.reserve", inner.keys.namespace(), async {
            request.check()?;
            check_units("a request", qty)?;
            check_time("a hold", hold)?;
            let mut answer = self.try_reserve(request, qty, hold).await?;
            // Others may take what was borrowed, so this may need more than one attempt; but never more than there are
            // lenders, and once more if loans of a process that died had to be settled first.
            let attempts = match inner.shards {
                1 => 0,
                shards => shards,
            };
            for _ in 0..attempts {
                let Reserve::SoldOut { free } = answer else {
                    break;
                };
                match self.borrow_units(request, qty, free).await? {
                    Borrowed::Some => answer = self.try_reserve(request, qty, hold).await?,
                    Borrowed::Nothing => break,
                }
            }
            match answer {
                Reserve::SoldOut { .. } => observe::event("stock.sold_out"),
                Reserve::UserCap { .. } => observe::event("stock.user_cap"),
                Reserve::Replayed(_) => observe::event("stock.replayed"),
                _ => {}
            }
            Ok(answer)
        })
        .await
    }

    async fn try_reserve(&self, request: &Request, qty: u64, hold: Duration) -> Result<Reserve> {
        let inner = &*self.0;
        let shard = self.shard(&request.sku, self.home(&request.user))?;
        let began = Instant::now();
        loop {
            let sale = inner.memory.sale(&request.sku);
            let mut answer: Vec<Value> = on_sale(&RESERVE, &shard)
                .part("orders")
                .arg(request.name())
                .arg(&*request.user)
                .arg(qty)
                .arg(micros(hold))
                .arg(inner.per_user)
                .arg(&*request.sku)
                .arg(&*request.id)
                .arg(sale.as_deref().unwrap_or_default())
                .idempotent()
                .run(&inner.store)
                .await?;
            if sale.is_none() {
                // The last word is the sale.
                let id: String = Words::new(answer.pop().into_iter().collect()).text()?;
                inner.memory.put_sale(&request.sku, &id);
            }
            let mut answer = Words::new(answer);
            return Ok(match answer.text()?.as_str() {
                "held" => Reserve::Held {
                    left: answer.micros()?,
                },
                "replayed" => Reserve::Replayed(answer.state()?),
                "soldout" => Reserve::SoldOut {
                    free: answer.number()?,
                },
                "cap" => Reserve::UserCap {
                    left: answer.number()?,
                },
                "conflict" => Reserve::Conflict,
                "closed" => Reserve::Closed,
                // The sale that this process knew is over. The caller is still here, so it is meant for this one.
                "other" => {
                    inner.memory.put_sale(&request.sku, &answer.text()?);
                    match began.elapsed() < inner.store.deadline() {
                        true => continue,
                        false => return Err(Error::timeout("the sale keeps changing")),
                    }
                }
                // Each call ends a bounded number of holds that are over.
                "again" if began.elapsed() < inner.store.deadline() => continue,
                "again" => {
                    return Err(Error::timeout("too many expired holds to release in time"));
                }
                _ => Reserve::NotWarmed,
            });
        }
    }

    /// Sells what is held.
    ///
    /// # Errors
    ///
    /// The store's errors. Repeat it: what was done is [`Transition::Repeated`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may have happened. Repeat it.
    pub async fn confirm(&self, request: &Request) -> Result<Transition> {
        self.settle("stock.confirm", request, "s").await
    }

    /// Frees what is held. A request that has not arrived is [`Transition::Unknown`]; if it arrives after that, during the
    /// same sale, nothing is held and no order is written: it is [`Reserve::Replayed`] as cancelled. Without a sale
    /// nothing is recorded.
    ///
    /// # Errors
    ///
    /// Those of [`confirm`](Self::confirm).
    ///
    /// # Cancel safety
    ///
    /// That of [`confirm`](Self::confirm).
    pub async fn cancel(&self, request: &Request) -> Result<Transition> {
        let _back = self.0.memory.give_back(&request.sku);
        self.settle("stock.cancel", request, "c").await
    }

    /// Takes sold units back: they are free again, and so is the buyer's allowance.
    ///
    /// # Errors
    ///
    /// Those of [`confirm`](Self::confirm).
    ///
    /// # Cancel safety
    ///
    /// That of [`confirm`](Self::confirm).
    pub async fn take_back(&self, request: &Request) -> Result<Transition> {
        let _back = self.0.memory.give_back(&request.sku);
        self.settle("stock.take_back", request, "r").await
    }

    async fn settle(&self, name: &'static str, request: &Request, to: &str) -> Result<Transition> {
        let inner = &*self.0;
        observe::operation(name, inner.keys.namespace(), async {
            request.check()?;
            let shard = self.shard(&request.sku, self.home(&request.user))?;
            let call = on_sale(&SETTLE, &shard).arg(request.name()).arg(to);
            let mut answer = Words::new(call.idempotent().run(&inner.store).await?);
            Ok(match answer.text()?.as_str() {
                "done" => Transition::Done,
                "repeated" => Transition::Repeated,
                "refused" => Transition::Refused(answer.state()?),
                _ => Transition::Unknown,
            })
        })
        .await
    }

    /// Lets a hold last for `hold` from now, if it is not over. It never shortens it, and it ends with its sale at the
    /// latest.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a hold that is zero or over a year; the store's errors.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the hold may have been extended.
    pub async fn extend(&self, request: &Request, hold: Duration) -> Result<Extension> {
        let inner = &*self.0;
        observe::operation("stock.extend", inner.keys.namespace(), async {
            request.check()?;
            check_time("a hold", hold)?;
            let shard = self.shard(&request.sku, self.home(&request.user))?;
            let call = on_sale(&EXTEND, &shard).arg(request.name());
            let call = call.arg(micros(hold)).idempotent();
            let mut answer = Words::new(call.run(&inner.store).await?);
            Ok(match answer.text()?.as_str() {
                "held" => Extension::Held {
                    left: answer.micros()?,
                },
                "refused" => Extension::Refused(answer.state()?),
                _ => Extension::Unknown,
            })
        })
        .await
    }
}
