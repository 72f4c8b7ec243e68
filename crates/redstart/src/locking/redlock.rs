//! A lock over N independent servers, held by the owner of more than half of them.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    acquisition::Acquisition,
    fence::FenceToken,
    guard::{Guard, with_lock},
    hand_over::HandOver,
    kind::{Acquire, LockKind, Waiting, operations},
    lease::{Terms, deadline},
    settings::LockSettings,
};
use crate::{
    error::{Error, Result},
    key::Layout,
    observe,
    script::Script,
    store::Store,
};

mod quorum;

use quorum::QuorumOwner;
pub(super) use quorum::{Servers, in_background};

/// The most servers: each acquisition asks all of them.
const MAX_SERVERS: usize = 31;

pub(super) static ACQUIRE: Script = Script::new(
    "redlock.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("redlock/acquire.lua")
    ),
);
pub(super) static RAISE_FENCE: Script = Script::new(
    "redlock.raise_fence",
    include_str!("redlock/raise_fence.lua"),
);
pub(super) static EXTEND: Script = Script::new("redlock.extend", include_str!("mutex/extend.lua"));
pub(super) static RELEASE: Script =
    Script::new("redlock.release", include_str!("mutex/release.lua"));

pub(super) static REDEEM: Script = Script::new(
    "redlock.redeem",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("mutex/redeem.lua")
    ),
);
pub(super) static HOLDER: Script = Script::new("redlock.holder", include_str!("mutex/holder.lua"));
pub(super) static FORCE_RELEASE: Script = Script::new(
    "redlock.force_release",
    include_str!("mutex/force_release.lua"),
);

static REDLOCK: LockKind = LockKind {
    pattern: "redlock",
    operations: operations!("redlock"),
    parts: &["fence"],
    acquire: Acquire::Script(&ACQUIRE),
    extend: &EXTEND,
    release: &RELEASE,
    redeem: &REDEEM,
    plain: false,
    waiting: Waiting::Serial,
    poll: None,
};

/// A lock over independent servers, held by the owner of more than half of them. Cheap to clone.
///
/// A lock on one master is lost when that master fails before a replica has it. Here nothing is replicated: the servers
/// do not know each other, and a minority of them may be hung, dead, slow or empty.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Redlock};
/// // Three embedded engines take the place of three servers here.
/// let mut stores = Vec::new();
/// for _ in 0..3 {
///     stores.push(Store::connect("memory://").await?);
/// }
/// let lock = Redlock::builder(stores, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
///
/// let guard = lock.try_lock().await?.expect("nobody else holds it");
/// assert!(lock.try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - While no more than a minority of the servers misbehave, the validities of two holders never overlap. All servers are
///   asked at the same time, each within a timeout far below the ttl; the validity counts from before they were asked,
///   minus the [allowance](super::Lease::valid_until).
/// - A hung server costs at most the timeout per server, and almost nothing once a quorum has answered.
/// - A failed attempt is released on **all** servers, whether they answered or not, in the background.
/// - **A server that was restarted does not vote** until the [longest lease](RedlockBuilder::longest_lease) that it
///   could have lost has ended: an empty server would give a second owner a quorum. The script reads the server's uptime;
///   see [`durable`](RedlockBuilder::durable) for servers that lose nothing.
/// - The [fence token](FenceToken) is the highest of those that the granting servers issued, written back to a quorum
///   before it is returned, so that every later quorum counts on from it.
///
/// # Limits
///
/// Validity relies on clocks that run at about the same rate, and a process that is stopped overruns it. The token
/// protects the resource; the lock only avoids duplicate work most of the time. On several `memory://` stores, move all
/// clocks together.
///
/// Waiters leave no trace on the servers, so nobody can say how many there are. A [hand-over](super::HandOver) is
/// redeemed on a quorum of the servers, or not at all.
///
/// # Keys
///
/// On each server the keys of a [`Mutex`](super::Mutex), under the pattern `redlock`.
///
/// # Round trips
///
/// An acquisition is two rounds to all servers at once (the grant, then the token), and so is `redeem`; renewal, release,
/// `hand_over`, `holders` and `force_release` are one each. After
/// a round without a quorum it is tried again after a random delay, so that candidates do not split the vote for ever.
///
/// # While the store is down
///
/// A minority of the servers may be down. With fewer than a quorum of servers that answer, `try_lock` fails with
/// [`is_unavailable`](Error::is_unavailable).
#[derive(Clone)]
pub struct Redlock {
    pub(super) servers: Arc<Servers>,
}

/// The settings of a [`Redlock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct RedlockBuilder {
    stores: Vec<Store>,
    namespace: String,
    name: String,
    ttl: Duration,
    renewed: bool,
    layout: Option<Layout>,
    label: Option<String>,
    longest_lease: Duration,
    durable: bool,
    server_timeout: Option<Duration>,
    retry_delay: Duration,
}

impl RedlockBuilder {
    /// How long the lock outlives a holder that stops renewing it (default 30 s).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The lease is not renewed automatically: it ends after its ttl unless the holder extends it.
    pub fn without_renewal(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// Uses keys that the application already has; see [`Layout`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// A name for this handle, which is shown to whoever asks who holds the lock. Anybody with access to the servers can
    /// read it. It must have 1 to 128 bytes without `+` and control characters.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// The longest lease that any user of this lock may get (default 60 s). A server that was restarted does not vote for
    /// that long, because it may have lost such a lease. All users of a lock must set the same value; a longer ttl, or a
    /// longer [`extend`](Guard::extend), is refused.
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.longest_lease = longest;
        self
    }

    /// The servers lose nothing in a restart (`appendfsync always`), so they vote again at once.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// How long one server may take to answer (default: ttl / 20, between 10 ms and 200 ms).
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = Some(timeout);
        self
    }

    /// The longest random delay before another attempt (default 100 ms, at most an hour).
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an even number of servers, fewer than 3 or more than 31, the same store given
    /// twice, a server timeout of zero or above a quarter of the ttl, a ttl out of the [limits](super::MIN_TTL) or above
    /// the longest lease, and for a label, namespace or name that breaks the [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Redlock> {
        check_servers(&self.stores)?;
        let terms = Terms::new(self.ttl, self.renewed)?;
        let longest = Terms::new(self.longest_lease, self.renewed)?.ttl;
        if terms.ttl > longest {
            return Err(Error::config(format!(
                "a lease of {:?} exceeds the longest lease of this quorum lock, {longest:?}",
                terms.ttl
            )));
        }
        let server_timeout = self.server_timeout.unwrap_or_else(|| {
            (terms.ttl / 20)
                .clamp(Duration::from_millis(10), Duration::from_millis(200))
                .min(terms.ttl / 4)
        });
        if server_timeout.is_zero() || server_timeout > terms.ttl / 4 {
            return Err(Error::config(format!(
                "the timeout per server must be above zero and at most a quarter of the ttl, not {server_timeout:?}"
            )));
        }
        let locks = self
            .stores
            .iter()
            .map(|store| {
                let mut settings = LockSettings::new(store, &self.namespace, &self.name);
                settings.ttl = self.ttl;
                settings.layout.clone_from(&self.layout);
                settings.label.clone_from(&self.label);
                // An engine in this process does not restart without the process.
                let grace = match self.durable || store.is_embedded() {
                    true => 0,
                    // The uptime is in whole seconds, rounded down.
                    false => longest.as_secs() + 1,
                };
                settings.lock(&REDLOCK, vec![grace.to_string()])
            })
            .collect::<Result<_>>()?;
        Ok(Redlock {
            servers: Arc::new(Servers {
                locks,
                terms,
                longest_lease: longest,
                server_timeout,
                retry_delay: self
                    .retry_delay
                    .clamp(Duration::from_millis(1), Duration::from_secs(3600)),
            }),
        })
    }
}

fn check_servers(stores: &[Store]) -> Result<()> {
    let n = stores.len();
    if n < 3 {
        return Err(Error::config(format!(
            "a quorum lock needs at least 3 servers, not {n}: with fewer, none may fail"
        )));
    }
    if n.is_multiple_of(2) || n > MAX_SERVERS {
        return Err(Error::config(format!(
            "a quorum lock must have an odd number of servers up to {MAX_SERVERS}, not {n}"
        )));
    }
    let twice = (1..n).any(|at| stores[..at].iter().any(|other| other.is_same(&stores[at])));
    if twice {
        return Err(Error::config(
            "the servers of a quorum lock must be independent: one was given twice",
        ));
    }
    Ok(())
}

impl Redlock {
    /// Starts with the lock `name` in `namespace` over these servers, with a lease of 30 s.
    pub fn builder(
        stores: impl IntoIterator<Item = Store>,
        namespace: &str,
        name: &str,
    ) -> RedlockBuilder {
        RedlockBuilder {
            stores: stores.into_iter().collect(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ttl: Duration::from_secs(30),
            renewed: true,
            layout: None,
            label: None,
            longest_lease: Duration::from_secs(60),
            durable: false,
            server_timeout: None,
            retry_delay: Duration::from_millis(100),
        }
    }

    /// The lock `name` in `namespace` over these servers, with all defaults.
    ///
    /// # Errors
    ///
    /// Those of [`RedlockBuilder::build`].
    pub fn new(
        stores: impl IntoIterator<Item = Store>,
        namespace: &str,
        name: &str,
    ) -> Result<Self> {
        Self::builder(stores, namespace, name).build()
    }

    /// Takes the lock if a quorum of the servers grants it; `None` if it is held.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if fewer than a quorum of the servers answered.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released on all servers in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        observe::operation(
            REDLOCK.operations.acquire,
            self.servers.namespace(),
            self.ask(),
        )
        .await
    }

    /// Takes the lock as soon as a quorum grants it; `None` if none did within `wait`.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if fewer than a quorum of the servers answered at the last attempt.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released on all servers in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        observe::operation(
            REDLOCK.operations.acquire,
            self.servers.namespace(),
            async {
                let clock = self.servers.clock();
                let deadline = deadline(clock.now(), wait);
                loop {
                    let tried = self.ask().await;
                    let again = match &tried {
                        Ok(guard) => guard.is_none(),
                        Err(error) => error.is_store_down(),
                    };
                    let longest = self.servers.retry_delay;
                    let pause = longest.mul_f64(crate::chance::range(0.0..1.0)) + longest / 20;
                    let now = clock.now();
                    if !again || now >= deadline {
                        return tried;
                    }
                    clock.sleep_until((now + pause).min(deadline)).await;
                }
            },
        )
        .await
    }

    with_lock!(with, lock, FenceToken);

    /// Takes over a lock that another process [handed over](HandOver). `None` if it was redeemed before, its lease has
    /// ended, or no quorum of the servers gave it to this process.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if fewer than a quorum of the servers answered. What the others gave is then
    /// released, and the lock is free when its lease ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what was granted is released on all servers in the background.
    pub async fn redeem(&self, given: &HandOver) -> Result<Option<Guard>> {
        let namespace = self.servers.namespace();
        observe::operation(REDLOCK.operations.redeem, namespace, async {
            let giver = given.token::<FenceToken>()?;
            let (acquisition, asked) = self.acquisition();
            let fence = acquisition.owner().redeem(giver).await?;
            self.granted(acquisition, asked, fence)
        })
        .await
    }

    /// Asks all servers once.
    async fn ask(&self) -> Result<Option<Guard>> {
        let (acquisition, asked) = self.acquisition();
        let fence = acquisition.owner().ask().await?;
        if fence.is_none() {
            observe::event(REDLOCK.operations.busy);
        }
        self.granted(acquisition, asked, fence)
    }

    /// A new owner, and when it began to ask.
    fn acquisition(&self) -> (Acquisition<QuorumOwner>, Instant) {
        let mut acquisition = Acquisition::new(QuorumOwner::new(&self.servers));
        // Whatever the result, what any server granted has to be released.
        acquisition.recorded = true;
        (acquisition, self.servers.clock().now())
    }

    /// The guard of an owner that has a quorum, with this fence token.
    fn granted(
        &self,
        acquisition: Acquisition<QuorumOwner>,
        asked: Instant,
        fence: Option<u64>,
    ) -> Result<Option<Guard>> {
        let terms = self.servers.terms;
        fence
            .map(|fence| acquisition.into_guard(fence, asked, terms))
            .transpose()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("key", self.servers.locks[0].entity.key())
            .field("servers", &self.servers.locks.len())
            .finish_non_exhaustive()
    }
}
