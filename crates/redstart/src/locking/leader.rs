//! One leader among many candidates.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    fence::FenceToken,
    guard::{Guard, LockedRun, Released},
    hand_over::{self, HandOver},
    kind::{Acquire, LockKind, Waiting, operations},
    lease::Lease,
    lock::Lock,
    owner::owner_token,
    settings::{LockSettings, lock_settings},
    ticket::held_by_ticket,
};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
    store::Store,
};

mod observer;

pub use observer::LeaderObserver;

pub(super) static CAMPAIGN: Script = Script::new(
    "leader.campaign",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("leader/campaign.lua")
    ),
);
pub(super) static EXTEND: Script = Script::new("leader.extend", include_str!("leader/extend.lua"));
pub(super) static RESIGN: Script = Script::new("leader.resign", include_str!("leader/resign.lua"));
pub(super) static REDEEM: Script = Script::new(
    "leader.redeem",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("leader/redeem.lua")
    ),
);
pub(super) static FORCE_RELEASE: Script = Script::new(
    "leader.force_release",
    include_str!("leader/force_release.lua"),
);

static LEADER: LockKind = LockKind {
    pattern: "leader",
    operations: operations!("leader", "campaign", "extend", "resign", "redeem"),
    parts: &["fence"],
    acquire: Acquire::Script(&CAMPAIGN),
    extend: &EXTEND,
    release: &RESIGN,
    redeem: &REDEEM,
    plain: false,
    waiting: Waiting::Serial,
    poll: None,
};

/// A candidate, or an observer, for one office. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Leader};
/// let store = Store::connect("memory://").await?;
/// let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
///
/// let leadership = office.campaign(Duration::from_secs(1)).await?.expect("there is no other candidate");
/// let elected = office.leader().await?.expect("there is a leader");
/// assert_eq!((elected.id.as_str(), elected.term), ("node-1", leadership.term()));
/// leadership.resign().await?;
/// assert!(office.leader().await?.is_none());
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// What all locks promise is on the [family's page](super). This one adds:
///
/// - The leader has a name ([`LeaderBuilder::id`]) and a term, which rises from leader to leader: it is the
///   [fence token](FenceToken) of what the leader writes.
/// - [`Leader::observe`] reports every change: by message when a leader is elected or resigns, at the end of its lease
///   when it died, and in any case within a ttl.
/// - A leader that cannot renew is told before another one is elected, as every holder is. It must stop then:
///   [`Leader::run`] drops its work, [`Leadership::lost`] returns.
///
/// # Keys
///
/// | key | type | TTL |
/// |---|---|---|
/// | `<namespace>:leader:{<name>}` | hash: `token`, `id`, `term` | the leader's lease |
/// | `…:fence` | string: the last term | none: a term must never be issued twice |
/// | `…:wake` | sharded channel | |
///
/// # Round trips
///
/// One for each campaign, renewal and resignation, each a script of 2 to 5 commands. An observer asks once for each
/// message and at the end of each lease.
///
/// # While the store is down
///
/// Nobody is elected, and the leader's lease runs out.
#[derive(Clone)]
pub struct Leader {
    pub(super) lock: Arc<Lock>,
}

/// The settings of a [`Leader`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LeaderBuilder {
    settings: LockSettings,
    id: Option<String>,
}

impl LeaderBuilder {
    lock_settings!();

    /// The name under which observers know this candidate (default: 128 random bits).
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Makes the candidate. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an id that is empty or over 1024 bytes, a ttl out of the
    /// [limits](super::MIN_TTL), and for a namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Leader> {
        let id = self.id.unwrap_or_else(|| owner_token(None));
        if id.is_empty() || id.len() > 1024 {
            return Err(Error::config(
                "the id of a candidate must have 1 to 1024 bytes",
            ));
        }
        Ok(Leader {
            lock: self.settings.lock(&LEADER, vec![id])?,
        })
    }
}

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elected {
    /// The candidate's id.
    pub id: String,
    /// The term, higher than all earlier ones.
    pub term: FenceToken,
}

impl Leader {
    /// Starts with the office `name` in `namespace`, with a lease of 30 s.
    pub fn builder(store: &Store, namespace: &str, name: &str) -> LeaderBuilder {
        LeaderBuilder {
            settings: LockSettings::new(store, namespace, name),
            id: None,
        }
    }

    /// A candidate for the office `name` in `namespace`, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`LeaderBuilder::build`].
    pub fn new(store: &Store, namespace: &str, name: &str) -> Result<Self> {
        Self::builder(store, namespace, name).build()
    }

    /// Waits until it is elected; `None` if another candidate led for all of `wait`.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. While the store cannot be reached, the candidate asks again until `wait` has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a candidate that was elected resigns in the background.
    pub async fn campaign(&self, wait: Duration) -> Result<Option<Leadership>> {
        let guard = self.lock.lock(wait).await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Leads if there is no leader.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a candidate that was elected resigns in the background.
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        let guard = self.lock.try_lock().await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Runs `work` whenever this candidate leads, until the work returns; then resigns and returns its result.
    ///
    /// When the leadership is lost, the work is dropped at its current await point, before another candidate is elected,
    /// and `work` is called again for the next term. While the store is down the candidate keeps asking.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, locking::Leader};
    /// let store = Store::connect("memory://").await?;
    /// let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
    ///
    /// let report = office
    ///     .run(|lease| async move { format!("scheduled in term {}", lease.fence()) })
    ///     .await?;
    /// println!("{report}");
    /// assert!(office.leader().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the [`Store`] that asking again cannot mend.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the work is dropped and the candidate resigns in the background.
    pub async fn run<T, W>(&self, mut work: impl FnMut(Lease) -> W) -> Result<T>
    where
        W: Future<Output = T>,
    {
        loop {
            let Some(leadership) = self.campaign(Duration::MAX).await? else {
                continue;
            };
            match leadership.guard.run(&mut work).await {
                LockedRun::Done(result) | LockedRun::Lost(Some(result)) => return Ok(result),
                LockedRun::Lost(None) | LockedRun::Busy => {}
            }
        }
    }

    /// The current leader, as the server sees it.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`].
    pub async fn leader(&self) -> Result<Option<Elected>> {
        observe::operation("leader.read", self.lock.entity.namespace(), async {
            Ok(read(&self.lock).await?.map(|(elected, _)| elected))
        })
        .await
    }

    held_by_ticket!();

    /// Takes over an office that another candidate [handed over](HandOver), with a new term and this candidate's id.
    /// `None` if it was redeemed before, or its lease has ended.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. If the office was granted anyway, it is resigned.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, an office that was granted is resigned in the background.
    pub async fn redeem(&self, given: &HandOver) -> Result<Option<Leadership>> {
        let guard = hand_over::redeem(&self.lock, given).await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Watches who leads. The first answer is the current leader.
    pub fn observe(&self) -> LeaderObserver {
        LeaderObserver::new(self.lock.clone())
    }
}

/// The leader, and how long its lease still runs.
async fn read(lock: &Lock) -> Result<Option<(Elected, Option<Duration>)>> {
    let key = lock.entity.key();
    let mut both = redis::pipe();
    both.cmd("HMGET").arg(key).arg("id").arg("term");
    both.cmd("PTTL").arg(key);
    let ((id, term), pttl): ((Option<String>, Option<u64>), i64) =
        lock.store.pipeline(&both).await?;
    let (Some(id), Some(term)) = (id, term) else {
        return Ok(None);
    };
    let left = u64::try_from(pttl).ok().map(Duration::from_millis);
    let term = FenceToken::new(term)?;
    Ok(Some((Elected { id, term }, left)))
}

/// A term of office. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "a leadership that is not kept ends at once"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The term: the [fence token](FenceToken) of what this leader writes.
    pub fn term(&self) -> FenceToken {
        self.guard.fence()
    }

    /// Whether this candidate certainly leads now; see [`Lease::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// The lease, to pass to the work.
    pub fn lease(&self) -> Lease {
        self.guard.lease()
    }

    /// Waits until the leadership is lost; see [`Lease::lost`].
    ///
    /// # Cancel safety
    ///
    /// Waiting changes nothing.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    pub(super) fn into_guard(self) -> Guard {
        self.guard
    }

    /// Resigns; the next candidate is elected at once.
    ///
    /// # Errors
    ///
    /// Those of the [`Store`]. The lease is not renewed any more in any case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the resignation continues in the background.
    pub async fn resign(self) -> Result<Released> {
        self.guard.release().await
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leader")
            .field(self.lock.entity.key())
            .finish()
    }
}
