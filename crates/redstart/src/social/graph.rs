//! Who follows whom, on both sides or on neither.

use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    store::Store,
};

mod change;
mod page;
mod repair;
mod suggestion;

pub use change::Followed;
pub use page::{Edge, EdgeCursor, EdgePage};
pub use repair::Repaired;
pub use suggestion::Suggestion;

pub(super) use change::{APPLY, CHANGE, COMPLETE, INTEND, UNBLOCK};
pub(super) use page::PAGE;
pub(super) use repair::{PENDING, POSTPONE};

/// How many accounts follow an account and are followed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowCounts {
    /// Accounts that follow it.
    pub followers: u64,
    /// Accounts that it follows.
    pub following: u64,
}

/// The three sets of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Following,
    Followers,
    Blocks,
}

impl Side {
    /// The part of the key.
    fn of(self, account: &str) -> String {
        let name = match self {
            Side::Following => "following",
            Side::Followers => "followers",
            Side::Blocks => "blocks",
        };
        format!("{name}:{account}")
    }
}

/// Who follows whom.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, social::{Followed, Graph}};
/// let store = Store::connect("memory://").await?;
/// let graph = Graph::new(&store, "app", "people")?;
///
/// assert_eq!(graph.follow("ann", "bob").await?, Followed::New);
/// let _ = graph.follow("bob", "cid").await?;
/// assert!(graph.is_following("ann", "bob").await?);
/// assert_eq!(graph.counts("bob").await?.followers, 1);
/// assert_eq!(graph.suggestions("ann", 5).await?[0].account, "cid");
///
/// graph.block("cid", "ann").await?;
/// assert_eq!(graph.follow("ann", "cid").await?, Followed::Blocked);
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - [`follow`](Self::follow) and [`unfollow`](Self::unfollow) change both accounts or neither. Accounts of one shard
///   change in one script. Between two shards an intent is written on the follower's side first; every later step can
///   be repeated by any process, so a crash in between is completed by [`repair`](Self::repair) or by the next call for
///   the same two accounts, and both sides agree again.
/// - [`block`](Self::block) removes the follows in both directions and refuses new ones, from its first step on.
/// - Counts are the sizes of the sets. There is no counter that could drift.
/// - No call blocks the server for long: pages have a limit, and lists are read page by page, by cursors that stay
///   valid while accounts come and go.
/// - The number of shards is part of the keys: a graph that is opened with another number is another, empty graph.
///
/// # Limits
///
/// Between two shards the sides differ for a moment, about two round trips. A step that arrives more than a day late may
/// be taken for a new one, and a caller that stood still for more than an hour, or while a thousand later follows of its account
/// were refused, may be told that its follow is new if another caller completed it and a block had refused it. [`suggestions`](Self::suggestions) examines the newest [`MAX_FRIENDS`](Self::MAX_FRIENDS)
/// accounts that an account follows, and the newest [`MAX_FOLLOWS`](Self::MAX_FOLLOWS) follows of each of them.
///
/// # Keys
///
/// `<ns>:graph:{<name>/<shards>/<shard>}:following:<account>`, `…:followers:<account>` and `…:blocks:<account>` are sorted
/// sets by the time in microseconds; `…:seen:<account>` is what was applied recently, and `…:refused:<account>` which
/// of its follows blocks ended, the newest thousand, for an hour. `…:intents`, `…:pending` and
/// `…:number` belong to the shard.
///
/// # Round trips
///
/// With one shard `follow` takes one; with more it takes three, unless both accounts are in one shard. A page takes one,
/// suggestions two, or three for an account with more than a thousand follows or blocks.
///
/// # While the store is down
///
/// Every call fails.
///
/// # Metrics
///
/// Operations: `graph.follow`, `graph.unfollow`, `graph.block`, `graph.unblock`, `graph.page`, `graph.counts`,
/// `graph.look`, `graph.mutuals`, `graph.suggestions`, `graph.repair`. Event: `graph.repaired`.
#[derive(Clone, Debug)]
pub struct Graph {
    store: Store,
    shards: Vec<Entity>,
}

/// Settings of [`Graph`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct GraphBuilder {
    store: Store,
    namespace: String,
    name: String,
    shards: u32,
}

impl GraphBuilder {
    /// The number of shards, each in a slot of its own, for a Cluster. 1 by default: every change is one script,
    /// which is right for what one server holds. The number is part of the keys.
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// Builds the graph.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad namespace or name, no shards, or more than [`Graph::MAX_SHARDS`].
    pub fn build(self) -> Result<Graph> {
        let count = self.shards;
        if !(1..=Graph::MAX_SHARDS).contains(&count) {
            return Err(Error::config(format!(
                "a graph must have 1 to {} shards, not {count}",
                Graph::MAX_SHARDS
            )));
        }
        if self.name.is_empty() {
            return Err(Error::config("the name of a graph must not be empty"));
        }
        let keys = Keys::new(&self.namespace, "graph")?;
        let shards = (0..count)
            .map(|shard| keys.entity(&format!("{}/{count}/{shard}", self.name)))
            .collect::<Result<_>>()?;
        Ok(Graph {
            store: self.store,
            shards,
        })
    }
}

impl Graph {
    /// The longest account in bytes.
    pub const MAX_ACCOUNT: usize = 256;
    /// The most accounts of one page.
    pub const MAX_PAGE: u32 = 1000;
    /// The most shards.
    pub const MAX_SHARDS: u32 = 4096;
    /// How many of an account's follows its suggestions are made from.
    pub const MAX_FRIENDS: u32 = 1000;
    /// How many follows of each of those are examined.
    pub const MAX_FOLLOWS: u32 = 200;

    /// Builds the graph `name`.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> GraphBuilder {
        GraphBuilder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            shards: 1,
        }
    }

    /// The graph `name` with default settings: one shard.
    ///
    /// # Errors
    ///
    /// As [`GraphBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    fn shard(&self, account: &str) -> &Entity {
        // XXH3 with seed 0: the same in every process, language and version.
        let hash = xxhash_rust::xxh3::xxh3_64(account.as_bytes());
        &self.shards[((u128::from(hash) * self.shards.len() as u128) >> 64) as usize]
    }

    fn namespace(&self) -> &std::sync::Arc<str> {
        self.shards[0].namespace()
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
            cmd.arg(self.shard(a).part(&side.of(a))).arg(b);
            Ok(self.store.query::<Option<f64>>(&cmd).await?.is_some())
        })
        .await
    }

    /// How many accounts follow an account and are followed by it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account; otherwise those of the [store](Store::query).
    pub async fn counts(&self, account: &str) -> Result<FollowCounts> {
        check_account(account)?;
        observe::operation("graph.counts", self.namespace(), async {
            let shard = self.shard(account);
            let mut pipeline = redis::Pipeline::new();
            for side in [Side::Followers, Side::Following] {
                pipeline.cmd("ZCARD").arg(shard.part(&side.of(account)));
            }
            let (followers, following) = self.store.stale_reads().pipeline(&pipeline).await?;
            Ok(FollowCounts {
                followers,
                following,
            })
        })
        .await
    }
}

fn check_pair(a: &str, b: &str) -> Result<()> {
    check_account(a)?;
    check_account(b)?;
    if a == b {
        return Err(Error::config("the two accounts must differ"));
    }
    Ok(())
}

fn check_account(account: &str) -> Result<()> {
    if account.is_empty() || account.len() > Graph::MAX_ACCOUNT {
        return Err(Error::config(format!(
            "an account must have 1 to {} bytes, not {}",
            Graph::MAX_ACCOUNT,
            account.len()
        )));
    }
    // NUL separates two accounts in an intent.
    if account.contains('\0') {
        return Err(Error::config("an account must not contain NUL"));
    }
    Ok(())
}
