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

use std::collections::{BTreeMap, HashSet};

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::Batch,
    store::Store,
};

mod change;
mod page;

pub use change::Followed;
pub use page::{Cursor, Edge, Page};

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
