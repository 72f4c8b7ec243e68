//! A leaderboard: submit and rank in one step, by day, week, month or for ever.
//!
//! # Promise
//!
//! - [`submit`](Leaderboard::submit) stores the score by its policy and returns the rank in one script: no other
//!   submission comes between the two.
//! - The period is that of the *server's* clock. The client proposes the periods around its own clock and the
//!   script chooses; a client whose clock is further off asks the server for the time and proposes again.
//! - A period's keys get their expiry (its end plus the retention) from the script that writes them.
//! - A closed period takes nothing: [`Submitted::Closed`], and nothing is written.
//! - Ties are resolved as the board was built: see [`Ties`].
//!
//! # Not promised
//!
//! A submission whose reply was lost is [in doubt](crate::Error::is_in_doubt). Repeating it is harmless with
//! [`Policy::Best`] and [`Policy::Last`], and counts twice with [`Policy::Sum`].
//!
//! # Keys and cost
//!
//! `<ns>:leaderboard:{<board>}:<period>` is a sorted set; `…:seq` numbers the submissions for
//! [`Ties::EarliestFirst`]; `…:scores` and `…:counts` hold the different scores for [`Ties::Dense`]. Every call is
//! one round trip and O(log n); reading the current period asks for the server's time once a minute.
//!
//! While the store is down every call fails.
//!
//! Operations: `leaderboard.submit`, `leaderboard.rank`, `leaderboard.page`, `leaderboard.around`,
//! `leaderboard.remove`, `leaderboard.len`.

use std::{sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Period, PeriodId, check_member, check_score};
use crate::{
    error::{Error, Result},
    key::{Entity, Key, Keys, Layout},
    observe,
    script::{Call, Script},
    store::Store,
};

static SUBMIT: Script = Script::new("leaderboard.submit", include_str!("leaderboard/submit.lua"));
static RANK: Script = Script::new("leaderboard.rank", include_str!("leaderboard/rank.lua"));
static PAGE: Script = Script::new("leaderboard.page", include_str!("leaderboard/page.lua"));
static REMOVE: Script = Script::new("leaderboard.remove", include_str!("leaderboard/remove.lua"));

/// Which score is best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The highest: points.
    #[default]
    HighestFirst,
    /// The lowest: times, strokes.
    LowestFirst,
}

/// What becomes of members with the same score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ties {
    /// Whoever reached the score first is ahead; no two members share a rank.
    ///
    /// Scores are whole numbers from 0 to `max_points`. They share 53 bits with the number of the
    /// submission, so a higher `max_points` leaves room for fewer submissions that are told apart; past
    /// [`Builder::distinct_submissions`] later ones count as simultaneous and are ordered by name.
    EarliestFirst {
        /// The highest score that can be reached.
        max_points: u64,
    },
    /// They share a rank and the next ranks are left out: 1, 2, 2, 4.
    Competition,
    /// They share a rank and no rank is left out: 1, 2, 2, 3.
    Dense,
}

impl Ties {
    /// EarliestFirst needs at least this many bits for the submissions' numbers.
    const MIN_BITS: u32 = 16;

    fn sequence_bits(self) -> Result<u32> {
        match self {
            Ties::EarliestFirst { max_points } => {
                let bits = u64::BITS - max_points.leading_zeros();
                53u32.checked_sub(bits).filter(|left| *left >= Self::MIN_BITS).ok_or_else(|| {
                    Error::config(format!(
                        "scores up to {max_points} take {bits} of 53 bits and leave too few to order ties; \
                         at most {} is possible",
                        (1u64 << (53 - Self::MIN_BITS)) - 1
                    ))
                })
            }
            Ties::Competition | Ties::Dense => Ok(0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Ties::EarliestFirst { .. } => "earliest",
            Ties::Competition => "competition",
            Ties::Dense => "dense",
        }
    }
}

/// What a submission does to the score that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The better of the two stays.
    Best,
    /// The new one replaces the old one.
    Last,
    /// They are added.
    Sum,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::Best => "best",
            Policy::Last => "last",
            Policy::Sum => "sum",
        }
    }
}

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Submitted {
    /// It was taken into account.
    Placed(Placed),
    /// The period is over; nothing was written.
    Closed,
}

impl Submitted {
    /// The placing, if the period was open.
    pub fn placed(self) -> Option<Placed> {
        match self {
            Submitted::Placed(placed) => Some(placed),
            Submitted::Closed => None,
        }
    }
}

/// Where a submission put its member.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Placed {
    /// The member's score now.
    pub score: f64,
    /// Its rank, from 1.
    pub rank: u64,
    /// Its score before, if it had one.
    pub previous: Option<f64>,
}

/// A member of the board.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// Its rank, from 1.
    pub rank: u64,
    /// Its name.
    pub member: String,
    /// Its score.
    pub score: f64,
}

/// Settings of a board; see [`Leaderboard::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Store,
    namespace: String,
    name: String,
    order: Order,
    ties: Ties,
    period: Period,
    zone: TimeZone,
    retain: Option<Duration>,
    layout: Option<Layout>,
}

impl Builder {
    /// Which score is best; the highest unless told.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// What becomes of equal scores; [`Ties::Competition`] unless told.
    pub fn ties(mut self, ties: Ties) -> Self {
        self.ties = ties;
        self
    }

    /// When the board starts anew, in which time zone, and how long an ended period is kept.
    pub fn period(mut self, period: Period, zone: TimeZone, retain: Duration) -> Self {
        self.period = period;
        self.zone = zone;
        self.retain = Some(retain);
        self
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// How many submissions [`Ties::EarliestFirst`] tells apart in a period; 0 for the other rules.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `max_points` leaves no room.
    pub fn distinct_submissions(&self) -> Result<u64> {
        Ok(match self.ties.sequence_bits()? {
            0 => 0,
            bits => 1 << bits,
        })
    }

    /// Makes the board.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name, or if `max_points` of [`Ties::EarliestFirst`] leaves too
    /// few of the 53 bits for the order of submissions.
    pub fn build(self) -> Result<Leaderboard> {
        let bits = self.ties.sequence_bits()?;
        let mut keys = Keys::new(&self.namespace, "leaderboard")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let entity = keys.entity(&self.name)?;
        let only = match self.period {
            Period::All => {
                let period = self.period.at(Timestamp::UNIX_EPOCH, &self.zone)?;
                Some(keys_to_submit(&entity, self.ties, &period).into())
            }
            _ => None,
        };
        Ok(Leaderboard {
            only,
            store: self.store,
            entity,
            order: self.order,
            ties: self.ties,
            sequence_span: 1 << bits,
            period: self.period,
            zone: self.zone,
            retain: self.retain,
            clock: Arc::new(Mutex::new(None)),
        })
    }
}

/// A board. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use jiff::tz::TimeZone;
/// use redstart::{Store, ranking::{Leaderboard, Period, Policy, Ties}};
/// let store = Store::connect("memory://").await?;
/// let board = Leaderboard::builder(&store, "game", "weekly")
///     .ties(Ties::EarliestFirst { max_points: 1_000_000 })
///     .period(Period::Week, TimeZone::UTC, Duration::from_secs(8 * 86400))
///     .build()?;
///
/// board.submit("ann", 300.0, Policy::Best).await?;
/// board.submit("bob", 500.0, Policy::Best).await?;
/// let placed = board.submit("cid", 300.0, Policy::Best).await?;
/// assert_eq!(placed.rank, 3); // ann had 300 first
///
/// let week = board.current().await?;
/// let top: Vec<_> = board.top(&week, 2).await?.into_iter().map(|entry| entry.member).collect();
/// assert_eq!(top, ["bob", "ann"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Leaderboard {
    /// The keys of a board without periods.
    only: Option<Arc<[Key]>>,
    store: Store,
    entity: Entity,
    order: Order,
    ties: Ties,
    /// 2 to the number of bits for the order of submissions.
    sequence_span: u64,
    period: Period,
    zone: TimeZone,
    retain: Option<Duration>,
    /// The server's time, and when it was that.
    clock: Arc<Mutex<Option<(Timestamp, Instant)>>>,
}

impl Leaderboard {
    /// The most entries of one page.
    pub const MAX_PAGE: u32 = 10_000;

    /// Starts to build the board `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> Builder {
        Builder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            order: Order::default(),
            ties: Ties::Competition,
            period: Period::All,
            zone: TimeZone::UTC,
            retain: None,
            layout: None,
        }
    }

    /// The period that a moment is in.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) at the end of the calendar.
    pub fn period_at(&self, moment: Timestamp) -> Result<PeriodId> {
        self.period.at(moment, &self.zone)
    }

    /// The period that the server's clock is in.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn current(&self) -> Result<PeriodId> {
        const TRUST: Duration = Duration::from_secs(60);
        const MARGIN: Duration = Duration::from_secs(2);
        if self.period == Period::All {
            return self.period_at(Timestamp::UNIX_EPOCH);
        }
        let known = *self.clock.lock();
        if let Some((server, at)) = known
            && at.elapsed() < TRUST
            && !self.store.is_embedded()
        {
            let now = server + at.elapsed();
            let period = self.period_at(now)?;
            // Close to an end the server itself is asked.
            if period.contains(now + MARGIN) && period.contains(now - MARGIN) {
                return Ok(period);
            }
        }
        self.period_at(self.server_time().await?)
    }

    async fn server_time(&self) -> Result<Timestamp> {
        let time = self.store.time().await?;
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let now = Timestamp::from_microsecond(micros)
            .map_err(|e| Error::codec("the server's time is out of range").with_source(e))?;
        *self.clock.lock() = Some((now, Instant::now()));
        Ok(now)
    }

    /// Submits a score to the period that the server's clock is in.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member, a score that is not finite, or, with
    /// [`Ties::EarliestFirst`], one that is not a whole number from 0 to `max_points` (a sum that leaves that
    /// range is refused by the script, unchanged); otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the score may or may not have been taken into account.
    pub async fn submit(&self, member: &str, score: f64, policy: Policy) -> Result<Placed> {
        let score = self.check(member, score, policy)?;
        observe::operation("leaderboard.submit", self.entity.namespace(), async {
            if let Some(only) = &self.only {
                let call = SUBMIT.on(&self.entity).keys(only);
                return match self.place(call, &[], member, score, policy).await? {
                    Submitted::Placed(placed) => Ok(placed),
                    Submitted::Closed => Err(Error::codec("a board without periods is closed")),
                };
            }
            let mut now = match *self.clock.lock() {
                Some((server, at)) if !self.store.is_embedded() => server + at.elapsed(),
                _ => Timestamp::now(),
            };
            for _ in 0..3 {
                let candidates = self.candidates(now)?;
                match self.place_in(&candidates, member, score, policy).await? {
                    Submitted::Placed(placed) => return Ok(placed),
                    // Our clock is off by more than a period.
                    Submitted::Closed => now = self.server_time().await?,
                }
            }
            Err(Error::unavailable(
                "the server's clock moves too fast to find its period",
            ))
        })
        .await
    }

    /// Submits a score to a given period, if that is the one the server's clock is in.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    ///
    /// As [`submit`](Self::submit).
    pub async fn submit_to(
        &self,
        period: &PeriodId,
        member: &str,
        score: f64,
        policy: Policy,
    ) -> Result<Submitted> {
        let score = self.check(member, score, policy)?;
        observe::operation("leaderboard.submit", self.entity.namespace(), async {
            self.place_in(std::slice::from_ref(period), member, score, policy)
                .await
        })
        .await
    }

    /// The period of a moment and its neighbours.
    fn candidates(&self, now: Timestamp) -> Result<Vec<PeriodId>> {
        let middle = self.period_at(now)?;
        let Some(end) = middle.end() else {
            return Ok(vec![middle]);
        };
        let before = self.period_at(middle.start() - jiff::SignedDuration::from_secs(1))?;
        let after = self.period_at(end)?;
        Ok(vec![middle, before, after])
    }

    async fn place_in(
        &self,
        periods: &[PeriodId],
        member: &str,
        score: f64,
        policy: Policy,
    ) -> Result<Submitted> {
        let mut call = SUBMIT.on(&self.entity);
        for period in periods {
            call = call.keys(&keys_to_submit(&self.entity, self.ties, period));
        }
        self.place(call, periods, member, score, policy).await
    }

    /// Submits to the one of the periods that the server's clock is in; the call has their keys.
    async fn place(
        &self,
        mut call: Call<'_>,
        periods: &[PeriodId],
        member: &str,
        score: f64,
        policy: Policy,
    ) -> Result<Submitted> {
        call = call.arg(&self.letters(policy)[..]).arg(member).arg(score);
        if let Ties::EarliestFirst { max_points } = self.ties {
            call = call.arg(self.sequence_span).arg(max_points);
        }
        for period in periods {
            if let Some(end) = period.end() {
                let retain =
                    i64::try_from(self.retain.unwrap_or_default().as_millis()).unwrap_or(0);
                let end = end.as_millisecond();
                call = call
                    .arg(period.start().as_millisecond())
                    .arg(end)
                    .arg(end.saturating_add(retain));
            }
        }
        let reply: String = call.run(&self.store).await?;
        match reply.as_str() {
            "closed" => {
                observe::event("leaderboard.closed");
                Ok(Submitted::Closed)
            }
            "range" => Err(Error::config(
                "the sum would leave the range from 0 to max_points",
            )),
            placed => match placed_of(placed) {
                Some(placed) => Ok(Submitted::Placed(placed)),
                None => Err(Error::codec("a submission was answered by something else")),
            },
        }
    }

    /// A member's place; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](Store::query).
    pub async fn rank(&self, period: &PeriodId, member: &str) -> Result<Option<Entry>> {
        check_member(member)?;
        observe::operation("leaderboard.rank", self.entity.namespace(), async {
            let call = self
                .rules(self.parts(RANK.on(&self.entity), period))
                .arg(member);
            let found: Option<(u64, f64)> = call.idempotent().run(&self.store).await?;
            Ok(found.map(|(rank, score)| Entry {
                rank,
                member: member.to_owned(),
                score,
            }))
        })
        .await
    }

    /// The best `n`.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub async fn top(&self, period: &PeriodId, n: u32) -> Result<Vec<Entry>> {
        self.page(period, 0, n).await
    }

    /// `n` entries from the one at `offset` on, the best being at 0.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is over [`MAX_PAGE`](Self::MAX_PAGE); otherwise those of the
    /// [store](Store::query).
    pub async fn page(&self, period: &PeriodId, offset: u64, n: u32) -> Result<Vec<Entry>> {
        if n > Self::MAX_PAGE {
            return Err(Error::config(format!(
                "a page has at most {} entries",
                Self::MAX_PAGE
            )));
        }
        if n == 0 {
            return Ok(Vec::new());
        }
        observe::operation("leaderboard.page", self.entity.namespace(), async {
            let call = self.rules(self.parts(PAGE.on(&self.entity), period));
            let call = call.arg("page").arg(offset).arg(offset + u64::from(n) - 1);
            self.entries(call).await
        })
        .await
    }

    /// A member with up to `n` neighbours on each side; empty if it has no place.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page) and [`rank`](Self::rank).
    pub async fn around(&self, period: &PeriodId, member: &str, n: u32) -> Result<Vec<Entry>> {
        check_member(member)?;
        if n > Self::MAX_PAGE / 2 {
            return Err(Error::config(format!(
                "at most {} neighbours",
                Self::MAX_PAGE / 2
            )));
        }
        observe::operation("leaderboard.around", self.entity.namespace(), async {
            let call = self.rules(self.parts(PAGE.on(&self.entity), period));
            self.entries(call.arg("around").arg(member).arg(n)).await
        })
        .await
    }

    async fn entries(&self, call: Call<'_>) -> Result<Vec<Entry>> {
        let rows: Vec<(u64, String, f64)> = call.idempotent().run(&self.store).await?;
        Ok(rows
            .into_iter()
            .map(|(rank, member, score)| Entry {
                rank,
                member,
                score,
            })
            .collect())
    }

    /// Takes a member off the board; `false` if it was not on it.
    ///
    /// # Errors
    ///
    /// As [`rank`](Self::rank).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the member may or may not be gone.
    pub async fn remove(&self, period: &PeriodId, member: &str) -> Result<bool> {
        check_member(member)?;
        observe::operation("leaderboard.remove", self.entity.namespace(), async {
            let call = self
                .rules(self.parts(REMOVE.on(&self.entity), period))
                .arg(member);
            call.idempotent().run(&self.store).await
        })
        .await
    }

    /// How many members the board has.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn len(&self, period: &PeriodId) -> Result<u64> {
        observe::operation("leaderboard.len", self.entity.namespace(), async {
            self.store
                .query(redis::cmd("ZCARD").arg(self.entity.part(period.label())))
                .await
        })
        .await
    }

    /// Whether nobody is on the board.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query).
    pub async fn is_empty(&self, period: &PeriodId) -> Result<bool> {
        Ok(self.len(period).await? == 0)
    }

    /// The four keys of a period, as every script takes them.
    fn parts<'a>(&self, call: Call<'a>, period: &PeriodId) -> Call<'a> {
        let label = period.label();
        call.part(label)
            .part(&format!("{label}:seq"))
            .part(&format!("{label}:scores"))
            .part(&format!("{label}:counts"))
    }

    /// Order, ties and policy by their first letters.
    fn letters(&self, policy: Policy) -> [u8; 3] {
        let order = match self.order {
            Order::HighestFirst => b'h',
            Order::LowestFirst => b'l',
        };
        let first = |name: &str| name.as_bytes()[0];
        [order, first(self.ties.name()), first(policy.name())]
    }

    /// The board's rules, as the scripts that read take them.
    fn rules<'a>(&self, call: Call<'a>) -> Call<'a> {
        let order = match self.order {
            Order::HighestFirst => "high",
            Order::LowestFirst => "low",
        };
        let max_points = match self.ties {
            Ties::EarliestFirst { max_points } => max_points,
            _ => 0,
        };
        call.arg(order)
            .arg(self.ties.name())
            .arg(self.sequence_span)
            .arg(max_points)
    }

    fn check(&self, member: &str, score: f64, policy: Policy) -> Result<f64> {
        check_member(member)?;
        let score = check_score(score)?;
        if let Ties::EarliestFirst { max_points } = self.ties {
            let whole = score.fract() == 0.0 && score.abs() <= max_points as f64;
            if !whole || (score < 0.0 && policy != Policy::Sum) {
                return Err(Error::config(format!(
                    "with ties by time a score is a whole number from 0 to {max_points}, not {score}"
                )));
            }
        }
        Ok(score)
    }
}

/// The keys of a period that a submission may change.
fn keys_to_submit(entity: &Entity, ties: Ties, period: &PeriodId) -> Vec<Key> {
    let label = period.label();
    let mut keys = vec![entity.part(label)];
    let others: &[&str] = match ties {
        Ties::Competition => &[],
        Ties::EarliestFirst { .. } => &["seq"],
        Ties::Dense => &["seq", "scores", "counts"],
    };
    keys.extend(
        others
            .iter()
            .map(|part| entity.part(&format!("{label}:{part}"))),
    );
    keys
}

/// `rank score previous`, as the script says it.
fn placed_of(text: &str) -> Option<Placed> {
    let mut words = text.split(' ');
    let (rank, score, previous) = (words.next()?, words.next()?, words.next()?);
    Some(Placed {
        rank: rank.parse().ok()?,
        score: score.parse().ok()?,
        previous: match previous {
            "-" => None,
            previous => Some(previous.parse().ok()?),
        },
    })
}
