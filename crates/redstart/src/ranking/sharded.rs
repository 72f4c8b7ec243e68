//! One leaderboard over many slots.

use std::cmp::Ordering;

use super::{
    BoardCursor, BoardEntry, BoardPage, Order, Policy, check_member, check_score, page::check_page,
};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Script,
    store::Store,
};

mod merge;

use merge::Direction;

pub(super) static SUBMIT: Script =
    Script::new("sharded.submit", include_str!("sharded/submit.lua"));
pub(super) static LOCATE: Script = Script::new(
    "sharded.locate",
    concat!(
        include_str!("../script/smaller.lua"),
        include_str!("../script/position.lua"),
        include_str!("sharded/locate.lua")
    ),
);
pub(super) static SLICE: Script = Script::new("sharded.slice", include_str!("sharded/slice.lua"));

/// One leaderboard over many slots, for hundreds of millions of members, with exact global ranks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, ranking::{Policy, ShardedLeaderboard}};
/// let store = Store::connect("memory://").await?;
/// let world = ShardedLeaderboard::builder(&store, "game", "world").shards(32).build()?;
///
/// for n in 1..=100 {
///     world.submit(&format!("player-{n}"), f64::from(n / 2), Policy::Best).await?;
/// }
/// let entry = world.rank("player-99").await?.expect("on the board");
/// assert_eq!((entry.rank, entry.score), (2, 49.0)); // behind player-100 only
/// assert_eq!(world.rank("player-98").await?.expect("on the board").rank, 2);
/// assert_eq!(world.top(1).await?[0].member, "player-100");
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - A member's shard follows from a fixed hash of its name: the same in every process, language and version.
/// - [`rank`](Self::rank) is exact: one more than the number of members with a better score, summed over all shards.
///   Members with equal scores share a rank; among themselves they are listed as Redis does, by name, backwards if the
///   highest score is first.
/// - [`top`](Self::top), [`page`](Self::page), [`slice`](Self::slice) and [`around`](Self::around) return what one
///   board with all members would return.
/// - [`page`](Self::page) takes a cursor that stays valid while members join and leave.
/// - A shard that does not answer makes the call fail; it is never left out of a sum.
/// - The number of shards and the order are part of the keys: a board that is opened with others is another, empty
///   board. To change them, copy the board.
///
/// # Limits
///
/// The shards are not read at one moment: while others submit, a rank is the sum of counts taken within one round trip
/// of each other.
///
/// # Keys
///
/// `<ns>:sharded:{<board>/<order>/<shards>/<shard>}`, one sorted set per shard.
///
/// # Round trips
///
/// `submit` and `score` take one; `rank` two (the score, then one pipeline to each node); `top` one or two; `page` three
/// or four; `around` four or five; `slice` two for each step of a bisection, about 2·log₂ of the members. Reading
/// *n* entries from *s* shards moves little more than *n* + 4·*s* rows: each shard is read as far as an even spread
/// suggests, and further only if its members can still be among the *n*.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `sharded.submit`, `sharded.score`, `sharded.rank`, `sharded.top`, `sharded.page`, `sharded.slice`,
/// `sharded.around`, `sharded.remove`, `sharded.len`.
#[derive(Clone, Debug)]
pub struct ShardedLeaderboard {
    store: Store,
    shards: Vec<Entity>,
    order: Order,
}

/// What a submission did. The rank is a separate question, because it asks every shard.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scored {
    /// The member's score now.
    pub score: f64,
    /// Its score before, if it had one.
    pub previous: Option<f64>,
}

/// A place in the order of all members: by score, then by name.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    score: f64,
    member: String,
}

/// Settings of [`ShardedLeaderboard`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ShardedLeaderboardBuilder {
    store: Store,
    namespace: String,
    name: String,
    shards: u32,
    order: Order,
}

impl ShardedLeaderboardBuilder {
    /// The number of shards, 16 by default. It is part of the keys.
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// Which score is best; the highest by default.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Builds the board.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, no shards, or more than
    /// [`ShardedLeaderboard::MAX_SHARDS`].
    pub fn build(self) -> Result<ShardedLeaderboard> {
        let count = self.shards;
        if !(1..=ShardedLeaderboard::MAX_SHARDS).contains(&count) {
            return Err(Error::config(format!(
                "a board must have 1 to {} shards, not {count}",
                ShardedLeaderboard::MAX_SHARDS
            )));
        }
        if self.name.is_empty() {
            return Err(Error::config("the name of a board must not be empty"));
        }
        let keys = Keys::new(&self.namespace, "sharded")?;
        let order = self.order.name();
        let shards = (0..count)
            .map(|shard| keys.entity(&format!("{}/{order}/{count}/{shard}", self.name)))
            .collect::<Result<_>>()?;
        Ok(ShardedLeaderboard {
            store: self.store,
            shards,
            order: self.order,
        })
    }
}

impl ShardedLeaderboard {
    /// The most shards of a board.
    pub const MAX_SHARDS: u32 = 4096;
    /// The most entries of one page.
    pub const MAX_PAGE: u32 = 10_000;

    /// Builds the board `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> ShardedLeaderboardBuilder {
        ShardedLeaderboardBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            shards: 16,
            order: Order::default(),
        }
    }

    /// The board `name` with default settings: 16 shards, the highest score first.
    ///
    /// # Errors
    ///
    /// As [`ShardedLeaderboardBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    fn shard_index(&self, member: &str) -> usize {
        // XXH3 with seed 0: fixed by its specification, unlike the standard library's hashers.
        let hash = xxhash_rust::xxh3::xxh3_64(member.as_bytes());
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

    fn shard(&self, member: &str) -> &Entity {
        &self.shards[self.shard_index(member)]
    }

    fn namespace(&self) -> &std::sync::Arc<str> {
        self.shards[0].namespace()
    }

    /// Submits a score.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member or a score that is not finite; otherwise
    /// those of the [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the score may or may not have been counted.
    pub async fn submit(&self, member: &str, score: f64, policy: Policy) -> Result<Scored> {
        check_member(member)?;
        let score = check_score(score)?;
        observe::operation("sharded.submit", self.namespace(), async {
            let call = SUBMIT.on(self.shard(member)).key();
            let call = call
                .arg(self.order.name())
                .arg(policy.name())
                .arg(member)
                .arg(score);
            let (score, previous): (f64, Option<f64>) = call.run(&self.store).await?;
            Ok(Scored { score, previous })
        })
        .await
    }

    /// Submits many scores, one round trip to each node. Returns how many members were new.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the scores are checked before anything is sent. [`Policy::Sum`] is refused. If a
    /// shard fails, the scores of others may have been counted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, any of the scores may have been counted.
    pub async fn submit_many<'m>(
        &self,
        scores: impl IntoIterator<Item = (&'m str, f64)>,
        policy: Policy,
    ) -> Result<u64> {
        let mut adds: Vec<redis::Cmd> = vec![redis::Cmd::new(); self.shards.len()];
        let mut counts = vec![0usize; self.shards.len()];
        for (member, score) in scores {
            check_member(member)?;
            let score = check_score(score)?;
            let at = self.shard_index(member);
            if counts[at] == 0 {
                adds[at].arg("ZADD").arg(self.shards[at].key());
                match (policy, self.order) {
                    (Policy::Best, Order::HighestFirst) => drop(adds[at].arg("GT")),
                    (Policy::Best, Order::LowestFirst) => drop(adds[at].arg("LT")),
                    (Policy::Last, _) => {}
                    (Policy::Sum, _) => {
                        return Err(Error::config(
                            "sums must be submitted one by one, because ZADD INCR takes one member",
                        ));
                    }
                }
            }
            counts[at] += 1;
            adds[at].arg(score).arg(member);
        }
        let mut pipeline = redis::Pipeline::new();
        for (add, count) in adds.into_iter().zip(counts) {
            if count > 0 {
                pipeline.add_command(add);
            }
        }
        if pipeline.is_empty() {
            return Ok(0);
        }
        observe::operation("sharded.submit", self.namespace(), async {
            let added: Vec<u64> = self.store.pipeline(&pipeline).await?;
            Ok(added.iter().sum())
        })
        .await
    }

    /// A member's score; `None` if it is not on the board.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](Store::query).
    pub async fn score(&self, member: &str) -> Result<Option<f64>> {
        check_member(member)?;
        observe::operation("sharded.score", self.namespace(), self.read_score(member)).await
    }

    async fn read_score(&self, member: &str) -> Result<Option<f64>> {
        let mut cmd = redis::cmd("ZSCORE");
        cmd.arg(self.shard(member).key()).arg(member);
        self.store.query(&cmd).await
    }

    /// A member's exact rank among all shards; `None` if it is not on the board.
    ///
    /// # Errors
    ///
    /// As [`score`](Self::score); also if any shard does not answer.
    pub async fn rank(&self, member: &str) -> Result<Option<BoardEntry>> {
        check_member(member)?;
        observe::operation("sharded.rank", self.namespace(), async {
            let Some(score) = self.read_score(member).await? else {
                return Ok(None);
            };
            let rank = self.better(score).await? + 1;
            Ok(Some(BoardEntry {
                rank,
                member: member.to_owned(),
                score,
            }))
        })
        .await
    }

    /// How many members of all shards have a better score.
    async fn better(&self, score: f64) -> Result<u64> {
        let mut pipeline = redis::Pipeline::with_capacity(self.shards.len());
        let beyond = format!("({score}");
        let (from, to) = match self.order {
            Order::HighestFirst => (&*beyond, "+inf"),
            Order::LowestFirst => ("-inf", &*beyond),
        };
        for shard in &self.shards {
            let mut count = redis::Cmd::with_capacity(4, 96);
            count.arg("ZCOUNT").arg(shard.key()).arg(from).arg(to);
            pipeline.add_command(count);
        }
        let better: Vec<u64> = self.store.pipeline(&pipeline).await?;
        Ok(better.iter().sum())
    }

    /// How many members the board has.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query); also if any shard does not answer.
    pub async fn len(&self) -> Result<u64> {
        observe::operation("sharded.len", self.namespace(), async {
            Ok(self.lengths().await?.iter().sum())
        })
        .await
    }

    /// Whether the board has no members.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
    }

    async fn lengths(&self) -> Result<Vec<u64>> {
        let mut pipeline = redis::Pipeline::with_capacity(self.shards.len());
        for shard in &self.shards {
            pipeline.cmd("ZCARD").arg(shard.key());
        }
        self.store.pipeline(&pipeline).await
    }

    /// Removes a member; `false` if it was not on the board.
    ///
    /// # Errors
    ///
    /// As [`score`](Self::score).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member may or may not be removed.
    pub async fn remove(&self, member: &str) -> Result<bool> {
        check_member(member)?;
        observe::operation("sharded.remove", self.namespace(), async {
            let mut cmd = redis::cmd("ZREM");
            cmd.arg(self.shard(member).key()).arg(member);
            self.store.query(&cmd).await
        })
        .await
    }

    /// The best `n`.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub async fn top(&self, n: u32) -> Result<Vec<BoardEntry>> {
        check_page(n, Self::MAX_PAGE)?;
        observe::operation("sharded.top", self.namespace(), async {
            self.read(&vec![0; self.shards.len()], n).await
        })
        .await
    }

    /// Up to `n` entries behind a cursor, or the best ones without a cursor. See [`BoardCursor`] for what holds
    /// while members come and go.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is 0 or over [`MAX_PAGE`](Self::MAX_PAGE), or for an invalid cursor;
    /// otherwise those of the [store](Store::query); also if any shard does not answer.
    pub async fn page(&self, from: Option<&BoardCursor>, n: u32) -> Result<BoardPage> {
        check_page(n, Self::MAX_PAGE)?;
        if n == 0 {
            return Err(Error::config("a page must have at least one entry"));
        }
        let from = match from.map(BoardCursor::split).transpose()? {
            Some((score, member)) => Some(Point {
                score: score
                    .parse()
                    .map_err(|_| Error::config("invalid leaderboard cursor"))?,
                member: member.to_owned(),
            }),
            None => None,
        };
        observe::operation("sharded.page", self.namespace(), async {
            let starts = match &from {
                Some(point) => {
                    let located = self.locate(point).await?;
                    located.iter().map(|(before, met)| before + met).collect()
                }
                None => vec![0; self.shards.len()],
            };
            let entries = self.read(&starts, n).await?;
            let next = match entries.last() {
                Some(last) if entries.len() == n as usize => {
                    Some(BoardCursor::new(&last.score.to_string(), &last.member))
                }
                _ => None,
            };
            Ok(BoardPage { entries, next })
        })
        .await
    }

    /// Up to `n` entries from the one at `offset` on, the best being at 0. For "ranks 101 to 150"; to walk through a
    /// board use [`page`](Self::page), which is cheaper and stays right while members come and go.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    pub async fn slice(&self, offset: u64, n: u32) -> Result<Vec<BoardEntry>> {
        check_page(n, Self::MAX_PAGE)?;
        observe::operation("sharded.slice", self.namespace(), async {
            let starts = self.select(offset).await?;
            self.read(&starts, n).await
        })
        .await
    }

    /// A member with up to `n` neighbours on each side; empty if it is not on the board.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page) and [`score`](Self::score).
    pub async fn around(&self, member: &str, n: u32) -> Result<Vec<BoardEntry>> {
        check_member(member)?;
        check_page(n.saturating_mul(2), Self::MAX_PAGE)?;
        observe::operation("sharded.around", self.namespace(), async {
            let Some(score) = self.read_score(member).await? else {
                return Ok(Vec::new());
            };
            let point = Point {
                score,
                member: member.to_owned(),
            };
            let located = self.locate(&point).await?;
            let starts: Vec<u64> = located.iter().map(|(before, _)| *before).collect();
            let (mut points, after) = futures_util::future::try_join(
                self.merge(&starts, Direction::Back, n),
                self.merge(&starts, Direction::Forth, n + 1),
            )
            .await?;
            let first = starts.iter().sum::<u64>() - points.len() as u64;
            points.reverse();
            points.extend(after);
            self.ranked(points, first).await
        })
        .await
    }

    /// The next `n` entries of all shards behind these places.
    async fn read(&self, starts: &[u64], n: u32) -> Result<Vec<BoardEntry>> {
        let points = self.merge(starts, Direction::Forth, n).await?;
        self.ranked(points, starts.iter().sum()).await
    }

    /// Gives consecutive points their ranks; `first` members come before them.
    async fn ranked(&self, points: Vec<Point>, first: u64) -> Result<Vec<BoardEntry>> {
        // Equal scores share the rank of the first of them, which may come before what was read.
        let mut rank = match points.first() {
            Some(point) if first > 0 => self.better(point.score).await? + 1,
            _ => 1,
        };
        let mut above: Option<f64> = None;
        let entries =
            points
                .into_iter()
                .zip(first + 1..)
                .map(|(Point { score, member }, place)| {
                    if above.is_some_and(|above| above != score) {
                        rank = place;
                    }
                    above = Some(score);
                    BoardEntry {
                        rank,
                        member,
                        score,
                    }
                });
        Ok(entries.collect())
    }

    fn compare(&self, a: &Point, b: &Point) -> Ordering {
        let upwards = a
            .score
            .total_cmp(&b.score)
            .then_with(|| a.member.cmp(&b.member));
        match self.order {
            Order::LowestFirst => upwards,
            Order::HighestFirst => upwards.reverse(),
        }
    }
}
