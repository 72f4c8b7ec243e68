//! A leaderboard: submit and rank in one step, by day, week, month or for ever.

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};

use super::{
    BoardCursor, BoardEntry, BoardPage, Order, Period, PeriodId, Policy, Ties, check_member,
    check_score,
};
use crate::{
    clock::ServerClock,
    error::{Error, Result},
    key::{Entity, Key},
    observe,
    script::{Call, Script},
    store::Store,
};

mod builder;
mod period_board;

pub use builder::LeaderboardBuilder;
pub use period_board::PeriodBoard;

pub(super) static SUBMIT: Script =
    Script::new("leaderboard.submit", include_str!("leaderboard/submit.lua"));
pub(super) static RANK: Script =
    Script::new("leaderboard.rank", include_str!("leaderboard/rank.lua"));
pub(super) static PAGE: Script = Script::new(
    "leaderboard.page",
    concat!(
        include_str!("../script/smaller.lua"),
        include_str!("../script/position.lua"),
        include_str!("leaderboard/page.lua")
    ),
);
pub(super) static REMOVE: Script =
    Script::new("leaderboard.remove", include_str!("leaderboard/remove.lua"));

/// What [`PeriodBoard::submit`] did.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "a submission to a closed period is not counted"]
pub enum Submitted {
    /// The score was counted.
    Placed(Placed),
    /// The server's clock is not in that period; nothing was written.
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

/// A leaderboard by day, week, month or for ever.
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
/// let top: Vec<_> = board.top(2).await?.into_iter().map(|entry| entry.member).collect();
/// assert_eq!(top, ["bob", "ann"]);
///
/// let week = board.current().await?;
/// let last_week = board.period_at(week.start() - jiff::SignedDuration::from_hours(1))?;
/// assert!(board.at(&last_week).is_empty().await?);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - [`submit`](Self::submit) stores the score by its policy and returns the rank in one script: no other submission
///   comes between the two.
/// - The methods here work on the current period by the *server's* clock; [`at`](Self::at) gives access to another
///   one. For a submission the client proposes the periods around its own clock and the script chooses; a client
///   whose clock is further off asks the server for the time and proposes again.
/// - A period's keys get their expiry (its end plus the time to keep it) from the script that writes them.
/// - A closed period takes no submissions: [`Submitted::Closed`], and nothing is written.
/// - Ties are ranked as the board was built: see [`Ties`].
/// - Order and tie rule are part of the keys. A board that is opened with other rules is another, empty board; it never
///   misreads the stored numbers.
/// - [`page`](Self::page) takes a cursor that stays valid while members join and leave.
///
/// # Limits
///
/// A submission whose reply was lost is [in doubt](crate::Error::is_in_doubt). Repeating it is harmless with
/// [`Policy::Best`] and [`Policy::Last`], and counts twice with [`Policy::Sum`].
///
/// # Keys
///
/// `<ns>:leaderboard:{<board>}:<order>.<ties>:<period>` is a sorted set. `…:seq` numbers the submissions for
/// [`Ties::EarliestFirst`]; `…:scores` and `…:counts` hold the different scores for [`Ties::Dense`].
///
/// # Round trips
///
/// One per call, O(log n). Reading the current period asks for the server's time once a minute, and again within two
/// seconds of a period's end.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `leaderboard.submit`, `leaderboard.rank`, `leaderboard.page`, `leaderboard.slice`,
/// `leaderboard.around`, `leaderboard.remove`, `leaderboard.len`. Event: `leaderboard.closed`.
#[derive(Clone, Debug)]
pub struct Leaderboard {
    /// The keys of a board without periods.
    only: Option<Arc<[Key]>>,
    store: Store,
    entity: Entity,
    /// `<order>.<ties>` in the keys; empty for a key that the application chose.
    rules: Arc<str>,
    order: Order,
    ties: Ties,
    /// 2 to the number of bits for the order of submissions.
    sequence_span: u64,
    period: Period,
    zone: TimeZone,
    keep_ms: u64,
    clock: ServerClock,
}

impl Leaderboard {
    /// The most entries of one page.
    pub const MAX_PAGE: u32 = 10_000;

    /// Builds the board `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> LeaderboardBuilder {
        LeaderboardBuilder::new(store, namespace, name)
    }

    /// The board `name` with default settings: all time, the highest score first, shared ranks.
    ///
    /// # Errors
    ///
    /// As [`LeaderboardBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// The period of a moment.
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
        if self.period == Period::All {
            return self.period_at(Timestamp::UNIX_EPOCH);
        }
        if let Some(now) = self.clock.estimate() {
            let period = self.period_at(now)?;
            // Close to the end of a period the server decides.
            let margin = ServerClock::MARGIN;
            if period.contains(now + margin) && period.contains(now - margin) {
                return Ok(period);
            }
        }
        self.period_at(self.clock.ask().await?)
    }

    /// Another period of the board.
    pub fn at<'a>(&'a self, period: &'a PeriodId) -> PeriodBoard<'a> {
        PeriodBoard {
            board: self,
            period,
        }
    }

    /// Submits a score to the current period.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member, a score that is not finite, or, with
    /// [`Ties::EarliestFirst`], one that is not a whole number from 0 to `max_points` (the script refuses a sum that
    /// leaves that range and writes nothing); otherwise those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the score may or may not have been counted.
    pub async fn submit(&self, member: &str, score: f64, policy: Policy) -> Result<Placed> {
        let score = self.check(member, score, policy)?;
        observe::operation("leaderboard.submit", self.entity.namespace(), async {
            if let Some(only) = &self.only {
                let call = SUBMIT.on(&self.entity).keys(only);
                return match self.place(call, &[], member, score, policy).await? {
                    Submitted::Placed(placed) => Ok(placed),
                    Submitted::Closed => Err(Error::codec(
                        "unexpected reply: a board without periods is never closed",
                    )),
                };
            }
            let mut now = self.clock.estimate().unwrap_or_else(Timestamp::now);
            for _ in 0..3 {
                let candidates = self.candidates(now)?;
                match self.place_in(&candidates, member, score, policy).await? {
                    Submitted::Placed(placed) => return Ok(placed),
                    // Our clock is off by more than a period.
                    Submitted::Closed => now = self.clock.ask().await?,
                }
            }
            Err(Error::unavailable(
                "the server's clock jumped past each proposed period",
            ))
        })
        .await
    }

    /// As [`PeriodBoard::rank`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::rank`].
    pub async fn rank(&self, member: &str) -> Result<Option<BoardEntry>> {
        self.at(&self.current().await?).rank(member).await
    }

    /// As [`PeriodBoard::top`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::top`].
    pub async fn top(&self, n: u32) -> Result<Vec<BoardEntry>> {
        self.at(&self.current().await?).top(n).await
    }

    /// As [`PeriodBoard::page`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::page`].
    pub async fn page(&self, from: Option<&BoardCursor>, n: u32) -> Result<BoardPage> {
        self.at(&self.current().await?).page(from, n).await
    }

    /// As [`PeriodBoard::slice`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::slice`].
    pub async fn slice(&self, offset: u64, n: u32) -> Result<Vec<BoardEntry>> {
        self.at(&self.current().await?).slice(offset, n).await
    }

    /// As [`PeriodBoard::around`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::around`].
    pub async fn around(&self, member: &str, n: u32) -> Result<Vec<BoardEntry>> {
        self.at(&self.current().await?).around(member, n).await
    }

    /// As [`PeriodBoard::remove`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::remove`].
    ///
    /// # Cancel safety
    ///
    /// As [`PeriodBoard::remove`].
    pub async fn remove(&self, member: &str) -> Result<bool> {
        self.at(&self.current().await?).remove(member).await
    }

    /// As [`PeriodBoard::len`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::len`].
    pub async fn len(&self) -> Result<u64> {
        self.at(&self.current().await?).len().await
    }

    /// As [`PeriodBoard::is_empty`], for the current period.
    ///
    /// # Errors
    ///
    /// As [`PeriodBoard::is_empty`].
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
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
            call = call.keys(&keys_to_submit(
                &self.entity,
                &self.rules,
                self.ties,
                period,
            ));
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
                // Periods are after 1970 in any calendar that a server's clock shows.
                let end = end.as_millisecond().unsigned_abs();
                call = call
                    .arg(period.start().as_millisecond())
                    .arg(end)
                    .arg(end + self.keep_ms);
            }
        }
        let reply: String = call.run(&self.store).await?;
        match reply.as_str() {
            "closed" => {
                observe::event("leaderboard.closed");
                Ok(Submitted::Closed)
            }
            "range" => Err(Error::config(
                "the sum would be outside the board's score range",
            )),
            placed => match parse_placed(placed) {
                Some(placed) => Ok(Submitted::Placed(placed)),
                None => Err(Error::codec("unexpected reply to a submission")),
            },
        }
    }

    /// Order, ties and policy by their first letters.
    fn letters(&self, policy: Policy) -> [u8; 3] {
        [self.order.name(), self.ties.name(), policy.name()].map(|name| name.as_bytes()[0])
    }

    /// The part of the key for a period; empty for a key that the application chose.
    fn label(&self, period: &PeriodId) -> String {
        label(&self.rules, period)
    }

    fn period_key(&self, period: &PeriodId) -> Key {
        match self.label(period).as_str() {
            "" => self.entity.key().clone(),
            label => self.entity.part(label),
        }
    }

    fn check(&self, member: &str, score: f64, policy: Policy) -> Result<f64> {
        check_member(member)?;
        let score = check_score(score)?;
        if let Ties::EarliestFirst { max_points } = self.ties {
            let whole = score.fract() == 0.0 && score.abs() <= max_points as f64;
            if !whole || (score < 0.0 && policy != Policy::Sum) {
                return Err(Error::config(format!(
                    "when ties are ordered by time, a score must be a whole number from 0 to {max_points}"
                )));
            }
        }
        Ok(score)
    }
}

fn label(rules: &str, period: &PeriodId) -> String {
    match rules {
        "" => String::new(),
        rules => format!("{rules}:{}", period.label()),
    }
}

/// The keys of a period that a submission may change.
fn keys_to_submit(entity: &Entity, rules: &str, ties: Ties, period: &PeriodId) -> Vec<Key> {
    let label = label(rules, period);
    let mut keys = vec![match label.as_str() {
        "" => entity.key().clone(),
        label => entity.part(label),
    }];
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

/// `rank score previous`, as the script writes it.
fn parse_placed(text: &str) -> Option<Placed> {
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
