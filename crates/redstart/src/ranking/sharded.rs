//! One leaderboard over many slots, for hundreds of millions of members, with exact global ranks.
//!
//! # Promise
//!
//! - A member's shard follows from a fixed hash of its name: the same in every process, language and version.
//! - [`rank`](ShardedLeaderboard::rank) is exact: one more than the members with a better score, summed over all
//!   shards. Members with equal scores share a rank; among themselves they are listed as Redis does, by name,
//!   backwards if the highest score is first.
//! - [`top`](ShardedLeaderboard::top), [`page`](ShardedLeaderboard::page) and [`around`](ShardedLeaderboard::around) give
//!   what one board with all members would give.
//! - A shard that does not answer makes the call fail; it is never left out of a sum.
//!
//! # Not promised
//!
//! One moment for all shards: while others submit, a rank is the sum of counts taken within one round trip of
//! each other. The number of shards is part of the board's name; to change it, copy the board.
//!
//! # Keys and cost
//!
//! `<ns>:sharded:{<board>/<shards>/<shard>}`, one sorted set a shard. With *s* shards on *k* nodes: `submit` and
//! `score` are one round trip; `rank` two (the score, then one pipeline to each node); `top(n)` one, moving *n*
//! entries of each shard; `around` four; `page` two for each halving of the search, about 2·log₂ of the
//! members.
//!
//! While the store is down every call fails.
//!
//! Operations: `sharded.submit`, `sharded.rank`, `sharded.top`, `sharded.page`, `sharded.around`,
//! `sharded.remove`, `sharded.len`.

use std::cmp::Ordering;

use super::{
    check_member, check_score,
    leaderboard::{Entry, Order, Policy},
};
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::{Batch, Script},
    store::Store,
};

static SUBMIT: Script = Script::new("sharded.submit", include_str!("sharded/submit.lua"));
static LOCATE: Script = Script::new(
    "sharded.locate",
    concat!(
        include_str!("../script/smaller.lua"),
        include_str!("sharded/locate.lua")
    ),
);
static SLICE: Script = Script::new("sharded.slice", include_str!("sharded/slice.lua"));

/// A board over many shards. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, ranking::{Order, Policy, ShardedLeaderboard}};
/// let store = Store::connect("memory://").await?;
/// let world = ShardedLeaderboard::new(&store, "game", "world", 16, Order::HighestFirst)?;
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
#[derive(Clone, Debug)]
pub struct ShardedLeaderboard {
    store: Store,
    shards: Vec<Entity>,
    order: Order,
}

/// What a submission did. The rank is a question of its own, because it asks every shard.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stored {
    /// The member's score now.
    pub score: f64,
    /// Its score before, if it had one.
    pub previous: Option<f64>,
}

/// A place in the order of all members: by score, then by name.
#[derive(Clone, Debug)]
struct Point {
    score: f64,
    member: String,
}

impl ShardedLeaderboard {
    /// The most shards of a board.
    pub const MAX_SHARDS: u32 = 4096;
    /// The most entries of one page.
    pub const MAX_PAGE: u32 = 10_000;

    /// The board `name` over so many shards.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name, no shards, or more than
    /// [`MAX_SHARDS`](Self::MAX_SHARDS).
    pub fn new(
        store: &Store,
        namespace: &str,
        name: &str,
        shards: u32,
        order: Order,
    ) -> Result<Self> {
        if !(1..=Self::MAX_SHARDS).contains(&shards) {
            return Err(Error::config(format!(
                "a board has 1 to {} shards, not {shards}",
                Self::MAX_SHARDS
            )));
        }
        if name.is_empty() {
            return Err(Error::config("a board's name must not be empty"));
        }
        let keys = Keys::new(namespace, "sharded")?;
        let shards = (0..shards)
            .map(|shard| keys.entity(&format!("{name}/{shards}/{shard}")))
            .collect::<Result<_>>()?;
        Ok(Self {
            store: store.clone(),
            shards,
            order,
        })
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

    fn direction(&self) -> &'static str {
        match self.order {
            Order::HighestFirst => "high",
            Order::LowestFirst => "low",
        }
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
    /// Dropped before it is done, the score may or may not have been taken into account.
    pub async fn submit(&self, member: &str, score: f64, policy: Policy) -> Result<Stored> {
        check_member(member)?;
        let score = check_score(score)?;
        observe::operation("sharded.submit", self.namespace(), async {
            let policy = match policy {
                Policy::Best => "best",
                Policy::Last => "last",
                Policy::Sum => "sum",
            };
            let call = SUBMIT.on(self.shard(member)).key();
            let call = call
                .arg(self.direction())
                .arg(policy)
                .arg(member)
                .arg(score);
            let (score, previous): (f64, Option<f64>) = call.run(&self.store).await?;
            Ok(Stored { score, previous })
        })
        .await
    }

    /// Submits many scores, one round trip to each node. Returns how many members were new.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the scores are checked before anything is sent. If a part fails, others
    /// may have been taken into account.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of them may have been taken into account.
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
                            "sums are submitted one by one: ZADD INCR takes one member",
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

    /// A member's score; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an empty or long member; otherwise those of the
    /// [store](Store::query).
    pub async fn score(&self, member: &str) -> Result<Option<f64>> {
        check_member(member)?;
        let mut cmd = redis::cmd("ZSCORE");
        cmd.arg(self.shard(member).key()).arg(member);
        self.store.query(&cmd).await
    }

    /// A member's exact rank among all shards; `None` if it has none.
    ///
    /// # Errors
    ///
    /// As [`score`](Self::score); also if any shard does not answer.
    pub async fn rank(&self, member: &str) -> Result<Option<Entry>> {
        check_member(member)?;
        observe::operation("sharded.rank", self.namespace(), async {
            let Some(score) = self.score(member).await? else {
                return Ok(None);
            };
            let rank = self.better(score).await? + 1;
            Ok(Some(Entry {
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

    /// Whether nobody is on the board.
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

    /// Takes a member off the board; `false` if it was not on it.
    ///
    /// # Errors
    ///
    /// As [`score`](Self::score).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the member may or may not be gone.
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
    pub async fn top(&self, n: u32) -> Result<Vec<Entry>> {
        check_page(n)?;
        if n == 0 {
            return Ok(Vec::new());
        }
        observe::operation("sharded.top", self.namespace(), async {
            self.read(vec![0; self.shards.len()], 0, u64::from(n)).await
        })
        .await
    }

    /// `n` entries from the one at `offset` on, the best being at 0.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `n` is over [`MAX_PAGE`](Self::MAX_PAGE); otherwise those of the
    /// [store](Store::query); also if any shard does not answer.
    pub async fn page(&self, offset: u64, n: u32) -> Result<Vec<Entry>> {
        check_page(n)?;
        if n == 0 {
            return Ok(Vec::new());
        }
        observe::operation("sharded.page", self.namespace(), async {
            let starts = self.select(offset).await?;
            self.read(starts, 0, u64::from(n)).await
        })
        .await
    }

    /// A member with up to `n` neighbours on each side; empty if it has no place.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page) and [`score`](Self::score).
    pub async fn around(&self, member: &str, n: u32) -> Result<Vec<Entry>> {
        check_member(member)?;
        check_page(n.saturating_mul(2))?;
        observe::operation("sharded.around", self.namespace(), async {
            let Some(score) = self.score(member).await? else {
                return Ok(Vec::new());
            };
            let before = self
                .locate(&Point {
                    score,
                    member: member.to_owned(),
                })
                .await?;
            let place: u64 = before.iter().sum();
            let back = place.min(u64::from(n));
            // The `back` entries before the member are among the last `back` before it in each shard.
            let starts: Vec<u64> = before
                .iter()
                .map(|before| before.saturating_sub(back))
                .collect();
            let skip = place - back - starts.iter().sum::<u64>();
            self.read(starts, skip, back + 1 + u64::from(n)).await
        })
        .await
    }

    /// Merges all shards from `starts` on, leaves out the first `skip` and gives the next `n` with their ranks.
    async fn read(&self, starts: Vec<u64>, skip: u64, n: u64) -> Result<Vec<Entry>> {
        let place = starts.iter().sum::<u64>() + skip;
        let mut batch = Batch::new();
        for (shard, start) in self.shards.iter().zip(starts) {
            let call = SLICE.on(shard).key().arg(self.direction());
            batch.push(call.arg(start).arg(start + skip + n - 1).idempotent());
        }
        let mut all: Vec<Point> = Vec::new();
        for slice in batch.run::<Vec<(String, f64)>>(&self.store).await? {
            all.extend(
                slice?
                    .into_iter()
                    .map(|(member, score)| Point { score, member }),
            );
        }
        all.sort_unstable_by(|a, b| self.compare(a, b));
        let mut points = all
            .into_iter()
            .skip(skip as usize)
            .take(n as usize)
            .peekable();

        // Equal scores share the rank of the first of them, which may lie before what was read.
        let mut rank = match points.peek() {
            Some(first) if place > 0 => self.better(first.score).await? + 1,
            _ => 1,
        };
        let mut above: Option<f64> = None;
        let entries = points
            .zip(place + 1..)
            .map(|(Point { score, member }, position)| {
                if above.is_some_and(|above| above != score) {
                    rank = position;
                }
                above = Some(score);
                Entry {
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

    /// For each shard, how many of its members are among the best `offset` of all.
    ///
    /// A search in all shards at once: take a member from the middle of the widest window as a pivot, ask
    /// every shard how many it has before the pivot, and keep the sides that hold the place.
    async fn select(&self, offset: u64) -> Result<Vec<u64>> {
        let mut high = self.lengths().await?;
        let mut low = vec![0u64; high.len()];
        if offset >= high.iter().sum() {
            return Ok(high);
        }
        loop {
            let widest = (0..low.len())
                .max_by_key(|shard| high[*shard] - low[*shard])
                .unwrap_or(0);
            if low.iter().sum::<u64>() >= offset || high[widest] <= low[widest] {
                return Ok(low);
            }
            let middle = low[widest] + (high[widest] - low[widest]) / 2;
            let call = SLICE.on(&self.shards[widest]).key().arg(self.direction());
            let pivot: Vec<(String, f64)> = call
                .arg(middle)
                .arg(middle)
                .idempotent()
                .run(&self.store)
                .await?;
            let Some((member, score)) = pivot.into_iter().next() else {
                // The shard shrank meanwhile.
                high[widest] = middle;
                continue;
            };
            let before = self.locate(&Point { score, member }).await?;
            let here = before.iter().sum::<u64>();
            for (shard, before) in before.iter().enumerate() {
                let cut = (*before).clamp(low[shard], high[shard]);
                match here.cmp(&offset) {
                    Ordering::Greater => high[shard] = cut,
                    Ordering::Less | Ordering::Equal => low[shard] = cut,
                }
            }
            match here.cmp(&offset) {
                // The pivot itself comes before the place.
                Ordering::Less => low[widest] = (low[widest] + 1).min(high[widest]),
                Ordering::Equal => return Ok(low),
                Ordering::Greater => {}
            }
        }
    }

    /// For each shard, how many of its members come before a point.
    async fn locate(&self, point: &Point) -> Result<Vec<u64>> {
        let mut batch = Batch::new();
        for shard in &self.shards {
            let call = LOCATE.on(shard).key().arg(self.direction());
            batch.push(call.arg(point.score).arg(&point.member).idempotent());
        }
        batch.run(&self.store).await?.into_iter().collect()
    }
}

fn check_page(n: u32) -> Result<()> {
    if n > ShardedLeaderboard::MAX_PAGE {
        return Err(Error::config(format!(
            "a page has at most {} entries",
            ShardedLeaderboard::MAX_PAGE
        )));
    }
    Ok(())
}
