//! Flash-sale stock: many buyers, few units, none sold twice and none lost.

mod answer;
mod builder;
mod loan;
mod memory;
mod prewarm;
mod report;
mod request;
mod reserve;

use std::{sync::Arc, time::Duration};

use crate::{
    error::{Error, Result},
    key::{Entity, Key, Keys},
    observe,
    script::{Batch, Call, Script},
    store::Store,
};

pub use answer::{Extension, Prewarm, ReservationState, Reserve, Restock, StockReport, Transition};
pub use builder::StockBuilder;
pub use request::Request;

/// A script on one shard, with the fragments that it needs.
macro_rules! script {
    ($name:literal, $($file:literal),+) => {
        Script::new($name, concat!($(include_str!($file)),+))
    };
}

pub(super) static PREWARM: Script =
    script!("stock.prewarm", "../script/now.lua", "stock/prewarm.lua");
pub(super) static RESERVE: Script = script!(
    "stock.reserve",
    "../script/now.lua",
    "stock/sale.lua",
    "stock/reserve.lua"
);
pub(super) static SETTLE: Script = script!(
    "stock.settle",
    "../script/now.lua",
    "stock/sale.lua",
    "stock/settle.lua"
);
pub(super) static EXTEND: Script = script!(
    "stock.extend",
    "../script/now.lua",
    "stock/sale.lua",
    "stock/extend.lua"
);
pub(super) static REPORT: Script = script!(
    "stock.report",
    "../script/now.lua",
    "stock/sale.lua",
    "stock/report.lua"
);
pub(super) static LEND: Script = script!(
    "stock.lend",
    "../script/now.lua",
    "stock/sale.lua",
    "stock/lend.lua"
);
pub(super) static OFFER: Script = script!("stock.offer", "../script/now.lua", "stock/offer.lua");
pub(super) static RECEIVE: Script = script!("stock.receive", "stock/receive.lua");
pub(super) static SETTLE_LOAN: Script = script!("stock.settle_loan", "stock/settle_loan.lua");
pub(super) static WARM: Script = script!("stock.warm", "../script/now.lua", "stock/warm.lua");
pub(super) static TIME: Script = script!("stock.time", "../script/now.lua", "stock/time.lua");
pub(super) static RESTOCK: Script = script!("stock.restock", "stock/restock.lua");
pub(super) static CLOSE: Script = script!("stock.close", "stock/close.lua");

/// The most units of one sale, and the most of one request.
const MAX_UNITS: u64 = 1 << 40;
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// How often an operator's call is sent because there is another sale than the handle knew of.
const SALES: usize = 3;

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: Keys,
    per_user: u64,
    shards: u32,
    memory: memory::Memory,
}

/// Flash-sale stock: many buyers, few units, none sold twice and none lost. Cheap to clone.
///
/// A sale is [prewarmed](Self::prewarm) with its units. A buyer [reserves](Self::reserve) some for a while; the
/// reservation is then [confirmed](Self::confirm), [cancelled](Self::cancel), or expires.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, commerce::{Request, Reserve, Stock, Transition}};
/// use std::time::Duration;
///
/// let store = Store::connect("memory://").await?;
/// let stock = Stock::builder(&store, "shop", "spring").per_user(2).build()?;
/// let _ = stock.prewarm("console", 3, Duration::from_secs(3600)).await?;
///
/// let request = Request::new("console", "ann", "req-1");
/// let hold = Duration::from_secs(300);
/// assert!(matches!(stock.reserve(&request, 2, hold).await?, Reserve::Held { .. }));
/// let more = Request::new("console", "ann", "req-2");
/// assert!(matches!(stock.reserve(&more, 1, hold).await?, Reserve::UserCap { left: 0 }));
/// let other = Request::new("console", "bob", "req-3");
/// assert!(matches!(stock.reserve(&other, 2, hold).await?, Reserve::SoldOut { free: 1 }));
///
/// assert_eq!(stock.confirm(&request).await?, Transition::Done);
/// let report = stock.report("console").await?.expect("on sale");
/// assert_eq!((report.free, report.held, report.sold), (1, 0, 2));
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - `free + held + sold` is what was put on sale, in every report. There is none while a shard is missing: before the sale
///   is warm as a whole, and from the end of the first shard on.
/// - All shards of a sale end at the same time, by the clocks of their nodes, and units never move from one sale to the next.
/// - A reservation and its order in the stream of orders are made in one script: neither exists without the other.
///   Cancelled and expired reservations leave their order in the stream; a worker confirms first and learns it then.
/// - Confirm, cancel and expiry happen once, whichever comes first, and a buyer's allowance comes back with the units.
/// - A request that was [cancelled](Self::cancel) during the sale is never held afterwards, also if it arrives later than its
///   cancellation.
/// - A reservation expires in one script with its entry in the stream of [expirations](Self::expirations): neither exists
///   without the other.
/// - No buyer has more units (held or bought) than the [cap](StockBuilder::per_user).
/// - A request whose answer was lost is repeated with the same id and gets the answer of the first:
///   [`Reserve::Replayed`].
/// - A sale that was not prewarmed is [`Reserve::NotWarmed`], not sold out; prewarming a running sale changes nothing.
/// - A copy of a request for a reservation that arrives during a later sale takes nothing of it, if its handle knew the sale:
///   from its own prewarm, or from the answer to an earlier reservation of this SKU.
/// - A copy of a restock's request that was carried out adds nothing to a sale that begins within a day. A prewarm that arrives
///   after the end of its sale starts none.
/// - A hold does not outlive its sale: [`Reserve::Held`] has its real time.
///
/// # Limits
///
/// An expired hold is released lazily: by a call that needs its units, by a call for the same request, or by a
/// [report](Self::report), which releases all of them. A worker that reads the expirations calls `report` as often as it wants to
/// hear of them, and shortly before the sale ends: holds that are open when it ends are dropped without an entry. The stream of
/// expirations and its consumer groups are kept for one day after the sale.
///
/// A shard that the server lost (evicted, or restarted empty) is made again by a prewarm with its whole share, also of units
/// that were sold or lent before, and without what was restocked: restock that under another id. From then on it is not known
/// [how many units were put on sale](StockReport::put_on_sale). Where such a loss leaves no trace, because the server lost all
/// shards and their parts, or the process of the first prewarm died before all shards were warm, the sale counts as a new one.
/// Do not let the server evict these keys. While versions that do not count restocks still restock, the units that were put on
/// sale are too few. A failover that loses the last writes loses the
/// reservations among them, and a loan of which only one of the two shards was lost may duplicate or lose its units.
///
/// Each request leaves a record until the sale ends, whatever became of it, also one that was cancelled before it arrived. A
/// record has the user and the id, at most a kilobyte. A user can only make records of its own requests, but as many as it
/// has ids: limit how often a user may reserve and cancel if the ids are the user's own choice.
///
/// The first reservation of a handle for a SKU does not name the sale, since that would take one more round trip: if its
/// caller gives up and the sale ends while the request is on its way, it is carried out in the next sale. The same holds for
/// a handle that sells many SKUs at once, since it remembers the sales of about a thousand. Keep a handle for the life of the
/// process. So may a [close](Self::close) or [reopen](Self::reopen) of such a handle be. Confirmations, cancellations, returns and
/// extensions name only the request: do not use a request's id again in the next sale of a SKU. A restock that was never carried out is added to the sale that runs when it arrives.
///
/// With [shards](StockBuilder::shards), units that come back to another shard, because another process freed them, their
/// hold expired, or the call that frees them was given up before it was answered, may be seen up to the
/// [sold-out memory](StockBuilder::sold_out_memory) later.
///
/// # Keys
///
/// `<namespace>:stock.<name>:{<sku>}` (counts) and its parts `requests`, `holds`, `users`, `restocks`, `expired` and
/// `orders`; with shards `<namespace>:stock_shard.<name>:{<shard>.<shards>/<sku>}` and also `loans`, `ended_loans` and
/// `decisions`. All but
/// the two streams expire with the sale (`decisions`: with the last of the sales whose loans were decided there).
/// Restocks stay for a day longer, and with them the ids of earlier sales, while the next one follows within a day. Expirations stay for a day longer. Orders are data that somebody still has to read:
/// they do not expire.
///
/// # Round trips
///
/// One script for each call. A prewarm takes two round trips; with shards three, and four when it opens the sale. The first reservation of a handle in
/// another sale of a SKU than its last one takes one more. A reservation whose own shard is empty asks all
/// shards at once, so that "sold out" takes two, or one within the sold-out memory; borrowing takes three more. Each script
/// does a bounded amount of work: at most 64 holds that are over are ended in one call, and a report repeats its call until
/// none is left.
///
/// # One very hot SKU
///
/// One key lives on one node. With [`shards`](StockBuilder::shards) the units are spread over several slots; each buyer
/// belongs to one shard, so the cap holds. A shard that runs out borrows from the others before it says sold out: the
/// lender counts the units as lent until the borrower has accepted or refused them, so that a process that dies on the
/// way loses none. A later call settles what it left.
///
/// # While the store is down
///
/// Every call fails: there is no stock to sell.
///
/// # Metrics
///
/// Operations: `stock.prewarm`, `stock.reserve`, `stock.confirm`, `stock.cancel`, `stock.take_back`, `stock.extend`,
/// `stock.restock`, `stock.close`, `stock.reopen`, `stock.report`. Events: `stock.sold_out`, `stock.user_cap`,
/// `stock.replayed`, `stock.borrowed`, `stock.loan_settled`.
#[derive(Clone, Debug)]
pub struct Stock(Arc<Inner>);

impl Stock {
    /// The settings of the stock `name` in a namespace.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> StockBuilder {
        StockBuilder::new(store, namespace, name)
    }

    /// The keys of one shard of a SKU.
    fn shard(&self, sku: &str, shard: u32) -> Result<Entity> {
        match self.0.shards {
            1 => self.0.keys.entity(sku),
            // The number of shards is part of the name: a sale of four shards is not one of three.
            shards => self.0.keys.entity(&format!("{shard}.{shards}/{sku}")),
        }
    }

    fn all_shards(&self, sku: &str) -> Result<Vec<Entity>> {
        (0..self.0.shards)
            .map(|shard| self.shard(sku, shard))
            .collect()
    }

    /// The shard of a user.
    fn home(&self, user: &str) -> u32 {
        let hash = xxhash_rust::xxh3::xxh3_64(user.as_bytes());
        u32::try_from(hash % u64::from(self.0.shards)).unwrap_or(0)
    }

    /// Shares of `units` for each shard; the first shards get what does not divide.
    fn share(&self, units: u64, shard: usize) -> u64 {
        let shards = u64::from(self.0.shards);
        units / shards + u64::from((shard as u64) < units % shards)
    }

    /// The streams of orders of a SKU, one per shard. An entry has the fields `sku`, `user`, `request` and `qty`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad SKU.
    pub fn orders(&self, sku: &str) -> Result<Vec<Key>> {
        let shards = self.all_shards(sku)?;
        Ok(shards.iter().map(|shard| shard.part("orders")).collect())
    }

    /// The streams of reservations of a SKU that expired, one per shard. An entry has the fields `user`, `request` and
    /// `qty`, and `ended`: when the hold ended, in microseconds since 1970.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad SKU.
    pub fn expirations(&self, sku: &str) -> Result<Vec<Key>> {
        let shards = self.all_shards(sku)?;
        Ok(shards.iter().map(|shard| shard.part("expired")).collect())
    }

    /// Adds units to a running sale, once for each `id`. Ids are remembered until a day after the sale: in a sale that follows
    /// within that day, the same id adds nothing.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units, too many, or an empty or overlong id;
    /// [`is_unavailable`](Error::is_unavailable) if only a part of the sale is warm; the store's errors. Repeat it with the
    /// same id after an error.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some of the units may have been added. Repeat it with the same id, during the same sale: in
    /// the next one it adds the shares of those shards that it has not reached.
    pub async fn restock(&self, sku: &str, units: u64, id: &str) -> Result<Restock> {
        let inner = &*self.0;
        observe::operation("stock.restock", inner.keys.namespace(), async {
            check_units("a restock", units)?;
            request::check_id("restock id", id)?;
            let _back = inner.memory.give_back(sku);
            let shards = self.all_shards(sku)?;
            let mut batch = Batch::new();
            for (n, shard) in shards.iter().enumerate() {
                let call = RESTOCK.on(shard).key().part("restocks").arg(id);
                batch.push(call.arg(self.share(units, n)).idempotent());
            }
            let (mut restocked, mut missing) = (Restock::Repeated, 0);
            for answer in batch.run::<i32>(&inner.store).await? {
                match answer? {
                    1 => restocked = Restock::Added,
                    0 => {}
                    _ => missing += 1,
                }
            }
            match missing {
                0 => Ok(restocked),
                _ if missing == shards.len() => Ok(Restock::NotWarmed),
                _ => Err(Error::unavailable(
                    "a part of the sale is not warm: prewarm it, then repeat the restock with the same id",
                )),
            }
        })
        .await
    }

    /// Stops a sale: it takes no new reservations. Those that exist can be confirmed and cancelled. `false` if there is
    /// no such sale.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if only a part of the sale is warm: prewarm it, then repeat this. Shards that
    /// are warmed then take over from the first one whether the sale is closed. The store's errors. Repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some shards may be closed. Repeat it.
    pub async fn close(&self, sku: &str) -> Result<bool> {
        self.set_closed("stock.close", sku, true).await
    }

    /// Lets a [closed](Self::close) sale go on. `false` if there is no such sale.
    ///
    /// # Errors
    ///
    /// Those of [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some shards may be open. Repeat it.
    pub async fn reopen(&self, sku: &str) -> Result<bool> {
        self.set_closed("stock.reopen", sku, false).await
    }

    async fn set_closed(&self, name: &'static str, sku: &str, closed: bool) -> Result<bool> {
        let inner = &*self.0;
        observe::operation(name, inner.keys.namespace(), async {
            let shards = self.all_shards(sku)?;
            // A copy of the request that arrives later changes no other sale.
            let mut sale = inner.memory.sale(sku);
            for _ in 0..SALES {
                let mut batch = Batch::new();
                for shard in &shards {
                    let call = CLOSE.on(shard).key().arg(u32::from(closed));
                    batch.push(call.arg(sale.as_deref().unwrap_or_default()).idempotent());
                }
                let (mut found, mut other) = (0, None);
                for answer in batch.run::<(i32, String)>(&inner.store).await? {
                    match answer? {
                        (1, _) => found += 1,
                        (-1, id) => other = Some(id),
                        _ => {}
                    }
                }
                match (found, other) {
                    (0, None) => return Ok(false),
                    (_, None) if found == shards.len() => return Ok(true),
                    // A later sale than this handle knew of.
                    (_, Some(id)) => {
                        inner.memory.put_sale(sku, &id);
                        sale = Some(id.into());
                    }
                    // The rest would be open when it is warm.
                    (_, None) => {
                        return Err(Error::unavailable(
                            "a part of the sale is not warm: prewarm it, then repeat this",
                        ));
                    }
                }
            }
            Err(Error::unavailable("one sale followed the other meanwhile"))
        })
        .await
    }
}

/// A call with the five keys that `sale.lua` works on.
fn on_sale<'a>(script: &'static Script, shard: &'a Entity) -> Call<'a> {
    let call = script.on(shard).key().part("requests");
    call.part("holds").part("users").part("expired")
}

fn check_units(what: &str, units: u64) -> Result<()> {
    match (1..=MAX_UNITS).contains(&units) {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{what} must have 1 to {MAX_UNITS} units"
        ))),
    }
}

fn check_time(what: &str, time: Duration) -> Result<()> {
    match time >= Duration::from_millis(1) && time <= MAX_TIME {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{what} must last from 1 ms to a year"
        ))),
    }
}
