//! Who follows whom, on both sides or on neither.
//!
//! # Promise
//!
//! - [`follow`](Graph::follow) and [`unfollow`](Graph::unfollow) change both accounts or neither. Accounts of one bucket
//!   change in one script. Between two buckets an intent is written on the follower's side first; each further step
//!   can be repeated by anyone, so a crash in between is mended by [`repair`](Graph::repair) or by the next call for
//!   the same two accounts, and both sides agree again.
//! - [`block`](Graph::block) removes the follows in both directions and refuses new ones, from its first step on.
//! - Counts are the sizes of the sets. There is no counter that could drift.
//! - No call holds the server up: pages have a limit, and what needs many accounts is read page by page.
//!
//! # Not promised
//!
//! Between two buckets the sides differ for a moment, about two round trips. A step that arrives more than a day late
//! may be taken for a new one. [`suggestions`](Graph::suggestions) looks at the newest
//! [`MAX_FRIENDS`](Graph::MAX_FRIENDS) accounts that one follows, and at as many of each of them.
//!
//! # Keys and cost
//!
//! `<ns>:graph:{<name>/<buckets>/<bucket>}:following:<account>`, `…:followers:<account>`, `…:blocks:<account>` are sorted
//! sets by the time in microseconds; `…:seen:<account>` what was applied of late. `…:intents`, `…:pending` and `…:number`
//! are the bucket's. With one bucket `follow` is one round trip; with more it is three unless both accounts share a
//! bucket. Pages are one; suggestions three.
//!
//! While the store is down every call fails.
//!
//! Operations: `graph.follow`, `graph.unfollow`, `graph.block`, `graph.unblock`, `graph.page`, `graph.counts`,
//! `graph.look`, `graph.mutuals`, `graph.suggestions`, `graph.repair`. Events: `graph.repaired`.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::{Batch, Call, Script},
    store::Store,
};

static FOLLOW: Script = Script::new("graph.follow", include_str!("graph/follow.lua"));
static UNFOLLOW: Script = Script::new("graph.unfollow", include_str!("graph/unfollow.lua"));
static BLOCK: Script = Script::new("graph.block", include_str!("graph/block.lua"));
static UNBLOCK: Script = Script::new("graph.unblock", include_str!("graph/unblock.lua"));
static INTEND: Script = Script::new("graph.intend", include_str!("graph/intend.lua"));
static APPLY: Script = Script::new("graph.apply", include_str!("graph/apply.lua"));
static COMPLETE: Script = Script::new("graph.complete", include_str!("graph/complete.lua"));
static PENDING: Script = Script::new("graph.pending", include_str!("graph/pending.lua"));
static PAGE: Script = Script::new("graph.page", include_str!("graph/page.lua"));

/// What a follow came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It is new.
    New,
    /// It was there.
    Already,
    /// One of the two blocks the other; nothing was written.
    Blocked,
}

/// One account of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The account.
    pub account: String,
    /// Since when, by the server's clock, in microseconds since the epoch.
    pub since_micros: u64,
}

/// Where a page ended. Text, so that a web service can hand it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

impl Cursor {
    /// The cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A cursor from its text. Whether it makes sense is seen when it is used.
    pub fn from_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    fn after(edge: &Edge) -> Self {
        Self(format!("{}:{}", edge.since_micros, edge.account))
    }

    fn split(cursor: Option<&Cursor>) -> Result<(&str, &str)> {
        let Some(cursor) = cursor else {
            return Ok(("", ""));
        };
        match cursor.0.split_once(':') {
            Some((since, account)) if since.parse::<u64>().is_ok() && !account.is_empty() => {
                Ok((since, account))
            }
            _ => Err(Error::config("this is no cursor of a page")),
        }
    }
}

/// Some accounts, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The accounts.
    pub edges: Vec<Edge>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Cursor>,
}

/// How many accounts follow one and are followed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Accounts that follow it.
    pub followers: u64,
    /// Accounts that it follows.
    pub following: u64,
}

/// An account that one might want to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suggestion {
    /// The account.
    pub account: String,
    /// Those that one follows and that follow it, by name.
    pub common: Vec<String>,
}

/// The three sets of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Following,
    Followers,
    Blocks,
}

impl Side {
    fn of(self, account: &str) -> String {
        let name = match self {
            Side::Following => "following",
            Side::Followers => "followers",
            Side::Blocks => "blocks",
        };
        format!("{name}:{account}")
    }
}

/// An intent as it is written down.
#[derive(Clone, Debug)]
struct Intent {
    operation: String,
    number: String,
}

/// A graph of accounts. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, social::{Graph, graph::Followed}};
/// let store = Store::connect("memory://").await?;
/// let graph = Graph::new(&store, "app", "people")?;
///
/// assert_eq!(graph.follow("ann", "bob").await?, Followed::New);
/// graph.follow("bob", "cid").await?;
/// assert!(graph.is_following("ann", "bob").await?);
/// assert_eq!(graph.counts("bob").await?.followers, 1);
/// assert_eq!(graph.suggestions("ann", 5).await?[0].account, "cid");
///
/// graph.block("cid", "ann").await?;
/// assert_eq!(graph.follow("ann", "cid").await?, Followed::Blocked);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    store: Store,
    buckets: Vec<Entity>,
}

impl Graph {
    /// The longest account in bytes.
    pub const MAX_ACCOUNT: usize = 256;
    /// The most accounts of one page.
    pub const MAX_PAGE: u32 = 1000;
    /// The most buckets.
    pub const MAX_BUCKETS: u32 = 4096;
    /// How many accounts of a list suggestions look at.
    pub const MAX_FRIENDS: u32 = 1000;

    /// The graph `name`, in one slot: every change is one script. Good for what one server holds.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name.
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::spread(store, namespace, name, 1)
    }

    /// The graph `name` over so many buckets, each in a slot of its own, for a Cluster. The number is part of the
    /// graph's name: a graph with another number is another graph.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad name, no buckets, or more than [`MAX_BUCKETS`](Self::MAX_BUCKETS).
    pub fn spread(store: &Store, namespace: &str, name: &str, buckets: u32) -> Result<Self> {
        if !(1..=Self::MAX_BUCKETS).contains(&buckets) {
            return Err(Error::config(format!(
                "a graph has 1 to {} buckets, not {buckets}",
                Self::MAX_BUCKETS
            )));
        }
        if name.is_empty() {
            return Err(Error::config("a graph's name must not be empty"));
        }
        let keys = Keys::new(namespace, "graph")?;
        let buckets = (0..buckets)
            .map(|bucket| keys.entity(&format!("{name}/{buckets}/{bucket}")))
            .collect::<Result<_>>()?;
        Ok(Self {
            store: store.clone(),
            buckets,
        })
    }

    fn bucket(&self, account: &str) -> &Entity {
        // XXH3 with seed 0: the same in every process, language and version.
        let hash = xxhash_rust::xxh3::xxh3_64(account.as_bytes());
        &self.buckets[((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize]
    }

    fn namespace(&self) -> &std::sync::Arc<str> {
        self.buckets[0].namespace()
    }

    fn share_a_bucket(&self, a: &str, b: &str) -> bool {
        self.bucket(a).key() == self.bucket(b).key()
    }

    /// `a` follows `b`. If a reply is lost on the way and the question is sent again, a new follow may be reported
    /// as [`Already`](Followed::Already) there.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account or an account that follows itself; otherwise those of the
    /// [store](Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the follow is there on both sides, on neither, or is completed by
    /// [`repair`](Self::repair).
    pub async fn follow(&self, a: &str, b: &str) -> Result<Followed> {
        check_pair(a, b)?;
        observe::operation("graph.follow", self.namespace(), async {
            let what: String = if self.share_a_bucket(a, b) {
                FOLLOW
                    .on(self.bucket(a))
                    .part(&Side::Following.of(a))
                    .part(&Side::Followers.of(b))
                    .part(&Side::Blocks.of(a))
                    .part(&Side::Blocks.of(b))
                    .arg(a)
                    .arg(b)
                    .idempotent()
                    .run(&self.store)
                    .await?
            } else {
                self.between("follow", a, b).await?
            };
            match what.as_str() {
                "new" => Ok(Followed::New),
                "already" => Ok(Followed::Already),
                "blocked" => Ok(Followed::Blocked),
                _ => Err(Error::codec("a follow was answered by something else")),
            }
        })
        .await
    }

    /// `a` no longer follows `b`; `false` if it did not.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// As [`follow`](Self::follow).
    pub async fn unfollow(&self, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.unfollow", self.namespace(), async {
            if !self.share_a_bucket(a, b) {
                return Ok(self.between("unfollow", a, b).await? == "done");
            }
            UNFOLLOW
                .on(self.bucket(a))
                .part(&Side::Following.of(a))
                .part(&Side::Followers.of(b))
                .arg(a)
                .arg(b)
                .run(&self.store)
                .await
        })
        .await
    }

    /// `a` blocks `b`: neither follows the other any more, or can. `false` if the block was there.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// As [`follow`](Self::follow).
    pub async fn block(&self, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.block", self.namespace(), async {
            if !self.share_a_bucket(a, b) {
                return Ok(self.between("block", a, b).await? == "done");
            }
            BLOCK
                .on(self.bucket(a))
                .part(&Side::Blocks.of(a))
                .part(&Side::Following.of(a))
                .part(&Side::Followers.of(a))
                .part(&Side::Following.of(b))
                .part(&Side::Followers.of(b))
                .arg(a)
                .arg(b)
                .run(&self.store)
                .await
        })
        .await
    }

    /// `a` lifts its block of `b`; `false` if there was none. Follows do not come back.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the block may or may not be lifted.
    pub async fn unblock(&self, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.unblock", self.namespace(), async {
            for _ in 0..ATTEMPTS {
                let call = UNBLOCK.on(self.bucket(a)).part(&Side::Blocks.of(a));
                let (what, operation, number): (String, String, String) =
                    call.part("intents").arg(a).arg(b).run(&self.store).await?;
                if what == "done" {
                    return Ok(number == "1");
                }
                self.finish(a, b, &Intent { operation, number }).await?;
            }
            Err(busy())
        })
        .await
    }

    /// An operation between two buckets: an intent, then [`finish`](Self::finish).
    async fn between(&self, operation: &'static str, a: &str, b: &str) -> Result<String> {
        for _ in 0..ATTEMPTS {
            let call = INTEND
                .on(self.bucket(a))
                .part(&Side::Following.of(a))
                .part(&Side::Followers.of(a))
                .part(&Side::Blocks.of(a));
            let (what, pending, number): (String, String, String) = intents(call)
                .part("number")
                .arg(operation)
                .arg(a)
                .arg(b)
                .run(&self.store)
                .await?;
            let intent = Intent {
                operation: pending,
                number,
            };
            match what.as_str() {
                "go" => {
                    let follows = self.finish(a, b, &intent).await?;
                    return Ok(match (operation, follows) {
                        ("follow", true) => "new",
                        ("follow", false) => "blocked",
                        _ => "done",
                    }
                    .to_owned());
                }
                // Somebody's unfinished business with the same account goes first, so that intents for one pair
                // are done in order.
                "pending" => drop(self.finish(a, b, &intent).await?),
                _ => return Ok(what),
            }
        }
        Err(busy())
    }

    /// The second and third step of an intent, by whomever. Returns whether `a` follows `b` then.
    async fn finish(&self, a: &str, b: &str, intent: &Intent) -> Result<bool> {
        let call = APPLY
            .on(self.bucket(b))
            .part(&Side::Following.of(b))
            .part(&Side::Followers.of(b))
            .part(&Side::Blocks.of(b))
            .part(&format!("seen:{b}"));
        let (follows, last): (u8, String) = intents(call)
            .part("number")
            .arg(&intent.operation)
            .arg(a)
            .arg(b)
            .arg(&intent.number)
            .idempotent()
            .run(&self.store)
            .await?;
        let call = COMPLETE.on(self.bucket(a)).part(&Side::Following.of(a));
        intents(call)
            .part(&format!("seen:{a}"))
            .arg(&intent.operation)
            .arg(a)
            .arg(b)
            .arg(&intent.number)
            .arg(follows)
            .arg(last)
            .idempotent()
            .run(&self.store)
            .await
    }

    /// Completes what crashed callers left half done. Run it every few seconds, in one process or in several.
    ///
    /// Intents younger than `grace` by their server's clock are left to their callers. Returns how many were
    /// completed; a bucket gives at most 100 a call.
    ///
    /// # Errors
    ///
    /// Those of the [store](Store::query); what was not completed is found by the next call.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some intents are completed and the others are found by the next call.
    pub async fn repair(&self, grace: Duration) -> Result<u64> {
        if self.buckets.len() == 1 {
            return Ok(0);
        }
        observe::operation("graph.repair", self.namespace(), async {
            let mut batch = Batch::new();
            for bucket in &self.buckets {
                let call = intents(PENDING.on(bucket));
                batch.push(call.arg(grace.as_micros() as u64).arg(100).idempotent());
            }
            let mut repaired = 0;
            for bucket in batch
                .run::<Vec<(String, String, String, String)>>(&self.store)
                .await?
            {
                for (a, b, operation, number) in bucket? {
                    self.finish(&a, &b, &Intent { operation, number }).await?;
                    repaired += 1;
                }
            }
            observe::events("graph.repaired", repaired);
            Ok(repaired)
        })
        .await
    }

    /// Whether `a` follows `b`.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    pub async fn is_following(&self, a: &str, b: &str) -> Result<bool> {
        self.has(Side::Following, a, b).await
    }

    /// Whether `a` blocks `b`.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    pub async fn is_blocking(&self, a: &str, b: &str) -> Result<bool> {
        self.has(Side::Blocks, a, b).await
    }

    async fn has(&self, side: Side, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.look", self.namespace(), async {
            let mut cmd = redis::cmd("ZSCORE");
            cmd.arg(self.bucket(a).part(&side.of(a))).arg(b);
            Ok(self.store.query::<Option<f64>>(&cmd).await?.is_some())
        })
        .await
    }

    /// How many accounts follow one and are followed by it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account; otherwise those of the [store](Store::query).
    pub async fn counts(&self, account: &str) -> Result<Counts> {
        check_account(account)?;
        observe::operation("graph.counts", self.namespace(), async {
            let bucket = self.bucket(account);
            let mut pipeline = redis::Pipeline::new();
            for side in [Side::Followers, Side::Following] {
                pipeline.cmd("ZCARD").arg(bucket.part(&side.of(account)));
            }
            let (followers, following) = self.store.pipeline(&pipeline).await?;
            Ok(Counts {
                followers,
                following,
            })
        })
        .await
    }

    /// Accounts that follow one, the newest first.
    ///
    /// A page costs the same wherever it is and however many there are. What is followed or unfollowed between two
    /// pages neither repeats nor hides others.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account or cursor or a page over [`MAX_PAGE`](Self::MAX_PAGE);
    /// otherwise those of the [store](Store::query).
    pub async fn followers(&self, account: &str, from: Option<&Cursor>, n: u32) -> Result<Page> {
        self.page(Side::Followers, account, from, n).await
    }

    /// Accounts that one follows, the newest first; as [`followers`](Self::followers).
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn following(&self, account: &str, from: Option<&Cursor>, n: u32) -> Result<Page> {
        self.page(Side::Following, account, from, n).await
    }

    /// Accounts that one blocks, the newest first; as [`followers`](Self::followers).
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn blocked(&self, account: &str, from: Option<&Cursor>, n: u32) -> Result<Page> {
        self.page(Side::Blocks, account, from, n).await
    }

    async fn page(&self, side: Side, account: &str, from: Option<&Cursor>, n: u32) -> Result<Page> {
        check_account(account)?;
        check_page(n)?;
        observe::operation("graph.page", self.namespace(), async {
            let call = self.page_call(side, None, account, from, n)?;
            let rows: Vec<(String, f64, u8)> = call.run(&self.store).await?;
            Ok(to_page(rows, n))
        })
        .await
    }

    fn page_call(
        &self,
        side: Side,
        other: Option<Side>,
        account: &str,
        from: Option<&Cursor>,
        n: u32,
    ) -> Result<Call<'_>> {
        let (since, last) = Cursor::split(from)?;
        let mut call = PAGE.on(self.bucket(account)).part(&side.of(account));
        if let Some(other) = other {
            call = call.part(&other.of(account));
        }
        Ok(call.arg(since).arg(last).arg(n).idempotent())
    }

    /// Accounts that one follows and that follow back, the newest of one's own follows first.
    ///
    /// Reads up to [`MAX_PAGE`](Self::MAX_PAGE) of one's own follows a round trip, until there are `n` or no more.
    ///
    /// # Errors
    ///
    /// As [`followers`](Self::followers).
    pub async fn mutuals(&self, account: &str, from: Option<&Cursor>, n: u32) -> Result<Page> {
        check_account(account)?;
        check_page(n)?;
        observe::operation("graph.mutuals", self.namespace(), async {
            let mut edges = Vec::new();
            let mut from = from.cloned();
            loop {
                let call = self.page_call(
                    Side::Following,
                    Some(Side::Followers),
                    account,
                    from.as_ref(),
                    Self::MAX_PAGE,
                )?;
                let rows: Vec<(String, f64, u8)> = call.run(&self.store).await?;
                let whole = rows.len() < Self::MAX_PAGE as usize;
                let count = rows.len();
                for (at, (account, since, mutual)) in rows.into_iter().enumerate() {
                    let edge = Edge {
                        account,
                        since_micros: since as u64,
                    };
                    from = Some(Cursor::after(&edge));
                    if mutual == 1 {
                        edges.push(edge);
                        if edges.len() == n as usize {
                            let last = whole && at + 1 == count;
                            return Ok(Page {
                                edges,
                                next: from.filter(|_| !last),
                            });
                        }
                    }
                }
                if whole {
                    return Ok(Page { edges, next: None });
                }
            }
        })
        .await
    }

    /// Accounts that those one follows follow, and oneself does not, by name; with who follows them. Leaves out
    /// oneself and whom one blocks.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account; otherwise those of the [store](Store::query).
    pub async fn followed_by_my_friends(&self, account: &str) -> Result<Vec<Suggestion>> {
        check_account(account)?;
        observe::operation("graph.suggestions", self.namespace(), async {
            let mut batch = Batch::new();
            for side in [Side::Following, Side::Blocks] {
                batch.push(self.page_call(side, None, account, None, Self::MAX_FRIENDS)?);
            }
            let mut lists = batch
                .run::<Vec<(String, f64, u8)>>(&self.store)
                .await?
                .into_iter();
            let mut list = || -> Result<Vec<String>> {
                let rows = lists.next().transpose()?.unwrap_or_default();
                Ok(rows.into_iter().map(|(account, _, _)| account).collect())
            };
            let (friends, blocked) = (list()?, list()?);
            let mut left_out: HashSet<&str> = friends.iter().map(String::as_str).collect();
            left_out.extend(blocked.iter().map(String::as_str));
            left_out.insert(account);

            let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
            // A hundred friends with a thousand follows each are a few megabytes; more at once would be too many.
            for friends in friends.chunks(100) {
                let mut batch = Batch::new();
                for friend in friends {
                    let side = Side::Following;
                    batch.push(self.page_call(side, None, friend, None, Self::MAX_FRIENDS)?);
                }
                let lists = batch.run::<Vec<(String, f64, u8)>>(&self.store).await?;
                for (friend, list) in friends.iter().zip(lists) {
                    for (candidate, _, _) in list? {
                        if !left_out.contains(candidate.as_str()) {
                            found.entry(candidate).or_default().push(friend.clone());
                        }
                    }
                }
            }
            let suggestions = found.into_iter().map(|(account, mut common)| {
                common.sort_unstable();
                Suggestion { account, common }
            });
            Ok(suggestions.collect())
        })
        .await
    }

    /// The `n` accounts of [`followed_by_my_friends`](Self::followed_by_my_friends) with the most common friends; by
    /// name among equals.
    ///
    /// # Errors
    ///
    /// As [`followed_by_my_friends`](Self::followed_by_my_friends).
    pub async fn suggestions(&self, account: &str, n: usize) -> Result<Vec<Suggestion>> {
        let mut all = self.followed_by_my_friends(account).await?;
        // Stable, and they come by name.
        all.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.common.len()));
        all.truncate(n);
        Ok(all)
    }
}

/// How often an operation lets another one for the same two accounts go first.
const ATTEMPTS: usize = 8;

fn busy() -> Error {
    Error::unavailable("others change the same two accounts again and again")
}

fn intents(call: Call<'_>) -> Call<'_> {
    call.part("intents").part("pending")
}

fn to_page(rows: Vec<(String, f64, u8)>, n: u32) -> Page {
    let edges: Vec<Edge> = rows
        .into_iter()
        .map(|(account, since, _)| Edge {
            account,
            since_micros: since as u64,
        })
        .collect();
    let whole = edges.len() < n as usize;
    let next = edges.last().filter(|_| !whole).map(Cursor::after);
    Page { edges, next }
}

fn check_page(n: u32) -> Result<()> {
    if (1..=Graph::MAX_PAGE).contains(&n) {
        return Ok(());
    }
    Err(Error::config(format!(
        "a page has 1 to {} accounts",
        Graph::MAX_PAGE
    )))
}

fn check_pair(a: &str, b: &str) -> Result<()> {
    check_account(a)?;
    check_account(b)?;
    if a == b {
        return Err(Error::config("an account and itself are no pair"));
    }
    Ok(())
}

fn check_account(account: &str) -> Result<()> {
    if account.is_empty() || account.len() > Graph::MAX_ACCOUNT {
        return Err(Error::config(format!(
            "an account has 1 to {} bytes, not {}",
            Graph::MAX_ACCOUNT,
            account.len()
        )));
    }
    // NUL stands between two accounts in an intent.
    if account.contains('\0') {
        return Err(Error::config("an account has no NUL in it"));
    }
    Ok(())
}
