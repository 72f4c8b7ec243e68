//! Flash-sale stock: many buyers, few units, none sold twice and none lost.
//!
//! A sale is [prewarmed](Stock::prewarm) with its units. A buyer [reserves](Stock::reserve) some for a while, and the
//! reservation is then [confirmed](Stock::confirm), [cancelled](Stock::cancel), or ends by itself.
//!
//! # What it promises
//!
//! - `free + held + sold` is what was put on sale, at every look.
//! - A reservation and its order in the stream of orders are made in one script: neither exists without the other.
//!   Cancelled and expired reservations leave their order there; whoever works on it confirms first and is told.
//! - Confirm, cancel and expiry happen once, whichever comes first, and a buyer's allowance comes back with the units.
//! - Nobody has more units (held or bought) than the [cap](Builder::per_user) says.
//! - A request whose answer was lost is repeated with the same id and gets the answer of the first:
//!   [`Reserve::Replayed`].
//! - A sale that was not prewarmed is [`Reserve::NotWarmed`], not sold out; prewarming a running sale changes nothing.
//!
//! Time is the server's. While the store is down every call fails: there is no stock to sell.
//!
//! # Keys and cost
//!
//! `<namespace>:stock:{<sku>}` (counts) and its parts `requests`, `holds`, `users` and `orders`. One script and one
//! round trip for each call. All but the stream of orders end with the sale's TTL; orders are data that somebody still
//! has to read.
//!
//! # One very hot SKU
//!
//! One key lives on one node. With [`buckets`](Builder::buckets) the units are spread over several slots; each buyer has
//! a bucket of their own, so the cap holds. A bucket that runs out borrows from the others before it says sold out:
//! the lender counts the units as lent until the borrower has accepted or refused them, so that a process that dies on
//! the way loses none. The next look settles what it left.
//!
//! Operations: `stock.prewarm`, `stock.reserve`, `stock.confirm`, `stock.cancel`, `stock.report`. Events:
//! `stock.sold_out`, `stock.user_cap`, `stock.replayed`, `stock.borrowed`, `stock.loan_settled`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
//! use redstart::{Store, commerce::stock::{Request, Reserve, Stock, Transition}};
//! use std::time::Duration;
//!
//! let store = Store::connect("memory://").await?;
//! let stock = Stock::new(&store, "shop").per_user(2).build()?;
//! stock.prewarm("console", 3, Duration::from_secs(3600)).await?;
//!
//! let request = Request::new("console", "ann", "req-1");
//! let hold = Duration::from_secs(300);
//! assert!(matches!(stock.reserve(&request, 2, hold).await?, Reserve::Held { .. }));
//! let more = Request::new("console", "ann", "req-2");
//! assert!(matches!(stock.reserve(&more, 1, hold).await?, Reserve::UserCap { left: 0 }));
//! let other = Request::new("console", "bob", "req-3");
//! assert!(matches!(stock.reserve(&other, 2, hold).await?, Reserve::SoldOut { free: 1 }));
//!
//! assert_eq!(stock.confirm(&request).await?, Transition::Done);
//! let report = stock.report("console").await?.expect("on sale");
//! assert_eq!((report.free, report.held, report.sold), (1, 0, 2));
//! # Ok(()) }
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    key::{Entity, Key, Keys},
    observe,
    script::{Batch, Script},
    store::Store,
};

macro_rules! script {
    ($name:literal, $($file:literal),+) => {
        Script::new($name, concat!($(include_str!(concat!("stock/", $file))),+))
    };
}

static PREWARM: Script = script!("stock.prewarm", "prewarm.lua");
static RESERVE: Script = script!("stock.reserve", "sale.lua", "reserve.lua");
static SETTLE: Script = script!("stock.settle", "sale.lua", "settle.lua");
static REPORT: Script = script!("stock.report", "sale.lua", "report.lua");
static LEND: Script = script!("stock.lend", "sale.lua", "lend.lua");
static RECEIVE: Script = script!("stock.receive", "receive.lua");
static CLOSE: Script = script!("stock.close", "close.lua");
static STALE: Script = script!("stock.stale", "stale.lua");

/// The most units of one sale, and the most of one request.
const MAX_UNITS: u64 = 1 << 40;
const MAX_BUCKETS: u32 = 256;
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// A loan takes two round trips. One that is older than this was left by a process that died.
const LOAN_AGE: Duration = Duration::from_secs(5);

/// Settings of [`Stock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Store,
    namespace: String,
    per_user: Option<u64>,
    buckets: u32,
}

impl Builder {
    /// The most units that one user may hold and buy of one SKU.
    pub fn per_user(mut self, units: u64) -> Self {
        self.per_user = Some(units);
        self
    }

    /// Spreads each SKU over so many slots. One, unless set. It must be the same in every process and
    /// throughout a sale.
    pub fn buckets(mut self, buckets: u32) -> Self {
        self.buckets = buckets;
        self
    }

    /// Checks the settings. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a cap of zero, no bucket or more than 256, or a bad namespace.
    pub fn build(self) -> Result<Stock> {
        if self.per_user == Some(0) {
            return Err(Error::config("a cap of zero units sells nothing"));
        }
        if !(1..=MAX_BUCKETS).contains(&self.buckets) {
            return Err(Error::config(format!(
                "stock is spread over 1 to {MAX_BUCKETS} buckets"
            )));
        }
        Ok(Stock(Arc::new(Inner {
            keys: Keys::new(&self.namespace, "stock")?,
            store: self.store,
            per_user: self.per_user.unwrap_or(0),
            buckets: self.buckets,
        })))
    }
}

/// Who wants what: a reservation's name. The id is the buyer's own; the same one means the same reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    sku: Box<str>,
    user: Box<str>,
    id: Box<str>,
}

impl Request {
    /// The request `id` of `user` for `sku`.
    pub fn new(sku: &str, user: &str, id: &str) -> Self {
        Self {
            sku: sku.into(),
            user: user.into(),
            id: id.into(),
        }
    }

    /// What is wanted.
    pub fn sku(&self) -> &str {
        &self.sku
    }

    /// Who wants it.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The request's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The request's name within its bucket; the length keeps "a" + "bc" and "ab" + "c" apart.
    fn name(&self) -> String {
        format!("{}:{}{}", self.user.len(), self.user, self.id)
    }

    fn check(&self) -> Result<()> {
        for (what, text) in [("user", &self.user), ("request id", &self.id)] {
            if text.is_empty() || text.len() > 512 {
                return Err(Error::config(format!("a {what} has 1 to 512 bytes")));
            }
        }
        Ok(())
    }
}

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Held, for so long.
    Held {
        /// What is left of the hold.
        left: Duration,
    },
    /// Sold.
    Sold,
    /// Cancelled.
    Cancelled,
    /// The hold ended before it was confirmed.
    Expired,
}

/// The answer to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only a held unit may be sold"]
pub enum Reserve {
    /// The units are held, and the order is in the stream.
    Held {
        /// How long they are held.
        left: Duration,
    },
    /// This request was made before; nothing was changed.
    Replayed(State),
    /// There are not enough free units.
    SoldOut {
        /// How many there are.
        free: u64,
    },
    /// The user would have more than the cap.
    UserCap {
        /// How many the user may still have.
        left: u64,
    },
    /// This request was made before, for another quantity.
    Conflict,
    /// The sale was not prewarmed, or is over.
    NotWarmed,
}

/// The answer to a confirmation or a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it may have been too late"]
pub enum Transition {
    /// Done, now.
    Done,
    /// It was done before.
    Repeated,
    /// It is too late: the reservation stands otherwise.
    Refused(State),
    /// There is no such reservation.
    Unknown,
}

/// The answer to a prewarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prewarm {
    /// The units are on sale.
    Warmed,
    /// The sale is running already; nothing was changed.
    Running,
}

/// The counts of a sale. They add up to what was put on sale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Units that can be reserved.
    pub free: u64,
    /// Units that are reserved.
    pub held: u64,
    /// Units that are sold.
    pub sold: u64,
}

impl Report {
    /// All units.
    pub fn total(&self) -> u64 {
        self.free + self.held + self.sold
    }
}

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: Keys,
    per_user: u64,
    buckets: u32,
}

/// The stock of a shop. Cheap to clone. See the [module](self).
#[derive(Clone, Debug)]
pub struct Stock(Arc<Inner>);

impl Stock {
    /// The stock of a namespace.
    #[allow(
        clippy::new_ret_no_self,
        reason = "the pattern is made through its builder"
    )]
    pub fn new(store: &Store, namespace: &str) -> Builder {
        Builder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            per_user: None,
            buckets: 1,
        }
    }

    /// The keys of one bucket of a SKU.
    fn bucket(&self, sku: &str, bucket: u32) -> Result<Entity> {
        match self.0.buckets {
            1 => self.0.keys.entity(sku),
            // The number comes first, so that no SKU's bucket is another's.
            _ => self.0.keys.entity(&format!("{bucket}/{sku}")),
        }
    }

    /// The bucket of a user.
    fn home(&self, user: &str) -> u32 {
        let hash = xxhash_rust::xxh3::xxh3_64(user.as_bytes());
        u32::try_from(hash % u64::from(self.0.buckets)).unwrap_or(0)
    }

    /// The streams of orders of a SKU, one a bucket. An entry has the fields `sku`, `user`, `request` and `qty`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad SKU.
    pub fn orders(&self, sku: &str) -> Result<Vec<Key>> {
        (0..self.0.buckets)
            .map(|bucket| Ok(self.bucket(sku, bucket)?.part("orders")))
            .collect()
    }

    /// Puts units on sale. Everything about the sale but its orders is forgotten after `ttl`.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units, too many, or a TTL that is zero or over a year; the store's
    /// errors. Repeat it after an error: what was warmed stays, the rest is warmed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some buckets may be warm. Repeat it.
    pub async fn prewarm(&self, sku: &str, units: u64, ttl: Duration) -> Result<Prewarm> {
        let inner = &*self.0;
        observe::operation("stock.prewarm", inner.keys.namespace(), async {
            if units == 0 || units > MAX_UNITS {
                return Err(Error::config(format!("a sale has 1 to {MAX_UNITS} units")));
            }
            if ttl < Duration::from_millis(1) || ttl > MAX_TIME {
                return Err(Error::config("a sale lasts from 1 ms to a year"));
            }
            let buckets = u64::from(inner.buckets);
            let mut warmed = Prewarm::Running;
            for bucket in 0..inner.buckets {
                let entity = self.bucket(sku, bucket)?;
                // The first buckets get what does not divide.
                let share = units / buckets + u64::from(u64::from(bucket) < units % buckets);
                let call = PREWARM.on(&entity).key().arg(share).arg(millis(ttl));
                if call.run::<u32>(&inner.store).await? == 1 {
                    warmed = Prewarm::Warmed;
                }
            }
            Ok(warmed)
        })
        .await
    }

    /// Holds `qty` units for the request's user for `hold`, and puts the order in the stream.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for no units or a hold that is zero or over a year; the store's errors.
    /// After any of these, repeat it with the same request.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the units may be held. Repeat it, or cancel it, or let the hold end.
    pub async fn reserve(&self, request: &Request, qty: u64, hold: Duration) -> Result<Reserve> {
        let inner = &*self.0;
        observe::operation("stock.reserve", inner.keys.namespace(), async {
            request.check()?;
            if qty == 0 || qty > MAX_UNITS {
                return Err(Error::config(format!(
                    "a request is for 1 to {MAX_UNITS} units"
                )));
            }
            if hold < Duration::from_millis(1) || hold > MAX_TIME {
                return Err(Error::config("a hold lasts from 1 ms to a year"));
            }
            let mut answer = self.try_reserve(request, qty, hold).await?;
            if inner.buckets > 1 {
                // Others may take what was borrowed, so this may need more than one turn; but never more
                // than there are lenders.
                for _ in 0..inner.buckets {
                    let Reserve::SoldOut { free } = answer else {
                        break;
                    };
                    if !self.borrow_units(request, qty - free.min(qty)).await? {
                        break;
                    }
                    answer = self.try_reserve(request, qty, hold).await?;
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
        let entity = self.bucket(&request.sku, self.home(&request.user))?;
        let answer: Vec<Value> = RESERVE
            .on(&entity)
            .key()
            .part("requests")
            .part("holds")
            .part("users")
            .part("orders")
            .arg(request.name())
            .arg(&*request.user)
            .arg(qty)
            .arg(micros(hold))
            .arg(self.0.per_user)
            .arg(&*request.sku)
            .arg(&*request.id)
            .idempotent()
            .run(&self.0.store)
            .await?;
        let mut answer = Words(answer.into_iter());
        Ok(match answer.text()?.as_str() {
            "held" => Reserve::Held {
                left: answer.micros()?,
            },
            "replayed" => {
                let state = answer.text()?;
                Reserve::Replayed(state_of(&state, answer.micros()?)?)
            }
            "soldout" => Reserve::SoldOut {
                free: answer.number()?,
            },
            "cap" => Reserve::UserCap {
                left: answer.number()?,
            },
            "conflict" => Reserve::Conflict,
            _ => Reserve::NotWarmed,
        })
    }

    /// Borrows `wanted` units for the request's bucket from the one that has most. Whether anything came.
    async fn borrow_units(&self, request: &Request, wanted: u64) -> Result<bool> {
        let inner = &*self.0;
        let home = self.home(&request.user);
        let mut lenders = Vec::new();
        let mut pipeline = redis::pipe();
        for bucket in (0..inner.buckets).filter(|bucket| *bucket != home) {
            let entity = self.bucket(&request.sku, bucket)?;
            pipeline.cmd("HGET").arg(entity.key()).arg("free");
            lenders.push((bucket, entity));
        }
        let free: Vec<Option<u64>> = inner.store.pipeline(&pipeline).await?;
        let mut lenders: Vec<_> = free
            .into_iter()
            .map(Option::unwrap_or_default)
            .zip(lenders)
            .collect();
        lenders.sort_by_key(|(free, _)| std::cmp::Reverse(*free));
        let to = self.bucket(&request.sku, home)?;
        for (_, (_, from)) in lenders {
            let token = format!("{:x}", rand::random::<u128>());
            let lend = LEND
                .on(&from)
                .key()
                .part("requests")
                .part("holds")
                .part("users")
                .part("loans")
                .arg(&token)
                .arg(wanted)
                .arg(home)
                .idempotent();
            let qty: u64 = lend.run(&inner.store).await?;
            if qty > 0 {
                observe::event("stock.borrowed");
                return self.settle_loan(&from, &to, &token, qty).await;
            }
        }
        // Nobody has any. What dead processes left on the way counts, too.
        Ok(self.settle_loans(&request.sku, LOAN_AGE).await? > 0)
    }

    /// Offers a loan to its borrower (or, with `qty` 0, has it refused) and closes it as was decided.
    async fn settle_loan(&self, from: &Entity, to: &Entity, token: &str, qty: u64) -> Result<bool> {
        let store = &self.0.store;
        let receive = RECEIVE.on(to).key().part("decisions").arg(token).arg(qty);
        let accepted: u64 = receive.idempotent().run(store).await?;
        let close = CLOSE.on(from).key().part("loans").arg(token);
        let close = close.arg(u32::from(accepted > 0)).idempotent();
        close.run::<u32>(store).await?;
        Ok(accepted > 0)
    }

    /// Settles loans that are older than `age`: those that were not accepted are refused, so that nobody can
    /// accept them later, and come back.
    async fn settle_loans(&self, sku: &str, age: Duration) -> Result<u64> {
        let mut settled = 0;
        for bucket in 0..self.0.buckets {
            let from = self.bucket(sku, bucket)?;
            for (token, _, to) in self.loans(&from, age).await? {
                let to = self.bucket(sku, to)?;
                self.settle_loan(&from, &to, &token, 0).await?;
                observe::event("stock.loan_settled");
                settled += 1;
            }
        }
        Ok(settled)
    }

    /// Token, units and borrower of the loans of a bucket.
    async fn loans(&self, from: &Entity, age: Duration) -> Result<Vec<(String, u64, u32)>> {
        let stale = STALE.on(from).part("loans").arg(micros(age));
        let words: Vec<String> = stale.idempotent().run(&self.0.store).await?;
        let wrong = || Error::codec("a loan is not of the expected shape");
        words
            .chunks_exact(3)
            .map(|loan| {
                let qty = loan[1].parse().map_err(|_| wrong())?;
                Ok((loan[0].clone(), qty, loan[2].parse().map_err(|_| wrong())?))
            })
            .collect()
    }

    /// Sells what is held.
    ///
    /// # Errors
    ///
    /// The store's errors. Repeat it: what was done is told as [`Transition::Repeated`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, it may have happened. Repeat it.
    pub async fn confirm(&self, request: &Request) -> Result<Transition> {
        self.settle("stock.confirm", request, "s").await
    }

    /// Gives back what is held.
    ///
    /// # Errors
    ///
    /// Those of [`confirm`](Self::confirm).
    ///
    /// # Cancel safety
    ///
    /// That of [`confirm`](Self::confirm).
    pub async fn cancel(&self, request: &Request) -> Result<Transition> {
        self.settle("stock.cancel", request, "c").await
    }

    async fn settle(&self, name: &'static str, request: &Request, to: &str) -> Result<Transition> {
        let inner = &*self.0;
        observe::operation(name, inner.keys.namespace(), async {
            request.check()?;
            let entity = self.bucket(&request.sku, self.home(&request.user))?;
            let answer: Vec<Value> = SETTLE
                .on(&entity)
                .key()
                .part("requests")
                .part("holds")
                .part("users")
                .arg(request.name())
                .arg(to)
                .idempotent()
                .run(&inner.store)
                .await?;
            let mut answer = Words(answer.into_iter());
            Ok(match answer.text()?.as_str() {
                "done" => Transition::Done,
                "repeated" => Transition::Repeated,
                "refused" => Transition::Refused(state_of(&answer.text()?, Duration::ZERO)?),
                _ => Transition::Unknown,
            })
        })
        .await
    }

    /// Ends holds that are over, settles what dead processes left, and counts. `None` if there is no such sale.
    ///
    /// Over several buckets the counts are of one moment: they are read twice, until nothing moved between
    /// buckets meanwhile.
    ///
    /// # Errors
    ///
    /// The store's errors; [`is_timeout`](Error::is_timeout) if units kept moving between buckets until the
    /// store's deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any time it changes nothing that the next look would not.
    pub async fn report(&self, sku: &str) -> Result<Option<Report>> {
        let inner = &*self.0;
        observe::operation("stock.report", inner.keys.namespace(), async {
            if inner.buckets > 1 {
                self.settle_loans(sku, LOAN_AGE).await?;
            }
            let until = Instant::now() + inner.store.deadline();
            let mut before = self.count(sku).await?;
            loop {
                if before.is_empty() {
                    return Ok(None);
                }
                if inner.buckets == 1 {
                    return Ok(Some(sum(&before, 0)));
                }
                // A unit that was accepted is counted by the borrower; until the loan is closed the lender
                // counts it, too.
                let twice = self.accepted_loans(sku, &before).await?;
                let after = self.count(sku).await?;
                let moves = |counts: &[Counts]| counts.iter().map(|c| c.moves).collect::<Vec<_>>();
                if moves(&before) == moves(&after) {
                    return Ok(Some(sum(&before, twice)));
                }
                if Instant::now() >= until {
                    return Err(Error::timeout("units keep moving between buckets"));
                }
                before = after;
            }
        })
        .await
    }

    /// The counts of each bucket; empty if there is no sale.
    async fn count(&self, sku: &str) -> Result<Vec<Counts>> {
        let entities = (0..self.0.buckets)
            .map(|bucket| self.bucket(sku, bucket))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = Batch::new();
        for entity in &entities {
            let report = REPORT.on(entity).key().part("requests").part("holds");
            batch.push(report.part("users").idempotent());
        }
        let mut counts = Vec::new();
        for answer in batch.run::<Vec<u64>>(&self.0.store).await? {
            if let [free, held, sold, lent, moves] = answer?[..] {
                counts.push(Counts {
                    free,
                    held,
                    sold,
                    lent,
                    moves,
                });
            }
        }
        Ok(counts)
    }

    /// The units of loans that the borrower has and the lender still counts.
    async fn accepted_loans(&self, sku: &str, counts: &[Counts]) -> Result<u64> {
        let mut units = 0;
        for (bucket, count) in (0..self.0.buckets).zip(counts) {
            if count.lent == 0 {
                continue;
            }
            let from = self.bucket(sku, bucket)?;
            let mut by_borrower: HashMap<u32, Vec<(String, u64)>> = HashMap::new();
            for (token, qty, to) in self.loans(&from, Duration::ZERO).await? {
                by_borrower.entry(to).or_default().push((token, qty));
            }
            for (to, loans) in by_borrower {
                let decisions = self.bucket(sku, to)?.part("decisions");
                for (token, qty) in loans {
                    let mut cmd = redis::cmd("HGET");
                    cmd.arg(&decisions).arg(&token);
                    let decided: Option<u64> = self.0.store.query(&cmd).await?;
                    if decided.is_some_and(|accepted| accepted > 0) {
                        units += qty;
                    }
                }
            }
        }
        Ok(units)
    }
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    free: u64,
    held: u64,
    sold: u64,
    /// On the way to another bucket: nobody has them yet, so they are free.
    lent: u64,
    moves: u64,
}

fn sum(counts: &[Counts], twice: u64) -> Report {
    let mut report = Report::default();
    for count in counts {
        report.free += count.free + count.lent;
        report.held += count.held;
        report.sold += count.sold;
    }
    report.free = report.free.saturating_sub(twice);
    report
}

/// The words of a script's answer.
struct Words(std::vec::IntoIter<Value>);

impl Words {
    fn text(&mut self) -> Result<String> {
        Ok(redis::from_redis_value(
            self.0.next().unwrap_or(Value::Nil),
        )?)
    }

    fn number(&mut self) -> Result<u64> {
        let number: i64 = redis::from_redis_value(self.0.next().unwrap_or(Value::Nil))?;
        Ok(u64::try_from(number).unwrap_or(0))
    }

    fn micros(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }
}

fn state_of(state: &str, left: Duration) -> Result<State> {
    match state {
        "h" => Ok(State::Held { left }),
        "s" => Ok(State::Sold),
        "c" => Ok(State::Cancelled),
        "x" => Ok(State::Expired),
        _ => Err(Error::codec("a reservation is in an unknown state")),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
