//! A lock over N independent servers, held by who has more than half of them.
//!
//! A lock on one master is lost when that master fails before a replica knew of it. Here there is nothing to
//! replicate: the servers know nothing of each other, and a minority of them may be hung, dead, slow or empty.
//!
//! # What it promises
//!
//! - While no more than a minority of the servers misbehave, no two holders' validities overlap. All servers
//!   are asked at the same time, each within a timeout far below the ttl; the validity counts from before they
//!   were asked, minus the [allowance](super::Guard::valid_until).
//! - Hung servers cost no more than the per-node timeout, and next to nothing once a quorum has answered.
//! - A failed try is given back on **all** servers, answered or not, in the background.
//! - **A server that was restarted has no vote** until the longest lease that it could have forgotten is over:
//!   an empty server would let a second owner have a quorum. The script looks at the server's uptime; see
//!   [`durable`](RedlockBuilder::durable) for servers that forget nothing.
//! - The [fence token](super::fence) is the highest of those that the granting servers issued, written back to
//!   a quorum before it is returned, so that every later quorum counts on from it.
//!
//! # What it does not
//!
//! Validity rests on clocks that run at about the same rate, and a stopped process overruns it. The token
//! protects the resource; the lock only keeps the work from being done twice most of the time.
//!
//! # Keys, round trips, stores down
//!
//! On each server the keys of a [`mutex`](super::mutex), under the pattern `redlock`. An acquisition is two
//! rounds to all servers at once (grant, then the token), renewal and release one each. After a round without a
//! quorum it is tried again after a random delay, so that candidates do not split the vote for ever. With fewer
//! than a quorum of servers that answer, `try_lock` fails with
//! [`is_unavailable`](crate::Error::is_unavailable).

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    lease::{Claim, Guard, Lease, Names, Outcome, Step, Terms, names},
    mutex::{RELEASE, RENEW},
    place::{Acquire, Answer, Ask, Attempt, Kind, Line, Place, Settings, Ticket, deadline, token},
};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
    store::Store,
};

/// The most servers: each acquisition asks all of them.
pub const MAX_NODES: usize = 31;

static ACQUIRE: Script = Script::new(
    "redlock.acquire",
    concat!(
        include_str!("fence/next.lua"),
        include_str!("redlock/acquire.lua")
    ),
);
static RAISE: Script = Script::new("redlock.raise", include_str!("redlock/raise.lua"));

static KIND: Kind = Kind {
    pattern: "redlock",
    names: names!("redlock"),
    parts: &["fence"],
    acquire: Acquire::Script(&ACQUIRE),
    renew: &RENEW,
    release: &RELEASE,
    plain: false,
    line: Line::Turns,
    poll: None,
};

/// A lock over independent servers. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::Redlock};
/// // Three engines stand for three servers here.
/// let mut stores = Vec::new();
/// for _ in 0..3 {
///     stores.push(Store::connect("memory://").await?);
/// }
/// let lock = Redlock::builder(stores, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
///
/// let guard = lock.try_lock().await?.expect("nobody else has it");
/// assert!(lock.try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Redlock {
    nodes: Arc<Nodes>,
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
    durable: bool,
    node_timeout: Option<Duration>,
    retry_delay: Duration,
}

struct Nodes {
    places: Vec<Arc<Place>>,
    terms: Terms,
    node_timeout: Duration,
    retry_delay: Duration,
}

impl RedlockBuilder {
    /// For how long the lock outlives a holder that says nothing more (default 30 s).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The lease is not renewed by itself: it ends after its ttl, unless the holder extends it.
    pub fn fixed(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// The servers lose nothing in a restart (`appendfsync always`), so they vote again at once.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// How long one server may take to answer (default: ttl / 20, between 10 ms and 200 ms).
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// The longest random delay before another try (default 100 ms).
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Makes the lock. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for an even number of servers, fewer than 3 or more than
    /// [`MAX_NODES`], the same store given twice, a node timeout of zero or above a quarter of the ttl, a ttl
    /// out of the [limits](super::MIN_TTL), and for a namespace or name that breaks the
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Redlock> {
        let n = self.stores.len();
        if n < 3 {
            return Err(Error::config(format!(
                "a quorum lock needs at least 3 servers, not {n}: fewer cannot lose one"
            )));
        }
        if n.is_multiple_of(2) || n > MAX_NODES {
            return Err(Error::config(format!(
                "a quorum lock has an odd number of servers up to {MAX_NODES}, not {n}"
            )));
        }
        let twice = (1..n).any(|at| {
            self.stores[..at]
                .iter()
                .any(|s| s.is_same(&self.stores[at]))
        });
        if twice {
            return Err(Error::config(
                "the servers of a quorum lock are independent: one was given twice",
            ));
        }
        let terms = Terms::new(self.ttl, self.renewed)?;
        let node_timeout = self.node_timeout.unwrap_or_else(|| {
            (terms.ttl / 20)
                .clamp(Duration::from_millis(10), Duration::from_millis(200))
                .min(terms.ttl / 4)
        });
        if node_timeout.is_zero() || node_timeout > terms.ttl / 4 {
            return Err(Error::config(format!(
                "a node's timeout is above zero and at most a quarter of the ttl, not {node_timeout:?}"
            )));
        }
        let places = self
            .stores
            .iter()
            .map(|store| {
                let mut settings = Settings::new(store, &self.namespace, &self.name);
                settings.ttl = self.ttl;
                // An engine in this process does not restart without it.
                let grace = match self.durable || store.is_embedded() {
                    true => 0,
                    false => terms.ttl.as_secs() + 1,
                };
                settings.place(&KIND, vec![grace.to_string()])
            })
            .collect::<Result<_>>()?;
        Ok(Redlock {
            nodes: Arc::new(Nodes {
                places,
                terms,
                node_timeout,
                retry_delay: self.retry_delay.max(Duration::from_millis(1)),
            }),
        })
    }
}

/// What a round of questions came to.
struct Tally {
    yes: usize,
    no: usize,
    /// The highest number that came with a yes.
    highest: u64,
    failure: Option<Error>,
}

impl Nodes {
    fn quorum(&self) -> usize {
        self.places.len() / 2 + 1
    }

    /// Counts answers until the rest cannot matter any more. After a quorum of yes, stragglers get as much time
    /// again as the quorum took: the more servers hold the lock the better, but a hung one shall cost little.
    async fn tally<Q>(&self, questions: impl IntoIterator<Item = Q>) -> Tally
    where
        Q: Future<Output = Result<Option<u64>>>,
    {
        let (n, quorum) = (self.places.len(), self.quorum());
        let began = Instant::now();
        let mut open: FuturesUnordered<_> = questions
            .into_iter()
            .map(|question| timeout(self.node_timeout, question))
            .collect();
        let mut tally = Tally {
            yes: 0,
            no: 0,
            highest: 0,
            failure: None,
        };
        let mut until = began + self.node_timeout * 2;
        while let Ok(Some(answer)) = tokio::time::timeout_at(until, open.next()).await {
            match answer {
                Ok(Ok(Some(number))) => {
                    tally.yes += 1;
                    tally.highest = tally.highest.max(number);
                    if tally.yes == quorum {
                        let now = Instant::now();
                        until = until.min(now + (now - began));
                    }
                }
                Ok(Ok(None)) => tally.no += 1,
                Ok(Err(error)) => tally.failure = Some(error),
                Err(_) => tally.failure = Some(Error::timeout("a server did not answer in time")),
            }
            if tally.no > n - quorum {
                break;
            }
        }
        tally
    }
}

/// One owner's claim on all servers.
struct Votes {
    nodes: Arc<Nodes>,
    tickets: Vec<Arc<Ticket>>,
}

impl Votes {
    fn new(nodes: &Arc<Nodes>) -> Self {
        let token = token();
        Self {
            tickets: nodes
                .places
                .iter()
                .map(|place| Arc::new(Ticket::new(place, token.clone())))
                .collect(),
            nodes: nodes.clone(),
        }
    }

    /// Asks every server once. `Ok(None)` if there is no quorum for it.
    async fn ask(&self) -> Result<Option<u64>> {
        let granted = self
            .nodes
            .tally(self.tickets.iter().map(|ticket| async move {
                match ticket.ask(Ask::Once).await? {
                    Answer::Granted(fence) => Ok(Some(fence)),
                    Answer::Busy(_) => Ok(None),
                }
            }))
            .await;
        let (n, quorum) = (self.tickets.len(), self.nodes.quorum());
        if granted.yes < quorum {
            return match granted.failure {
                // A refusal by those who answered is a no; too few answers are a failure.
                Some(failure) if granted.yes + granted.no < quorum => {
                    Err(too_few(granted.yes + granted.no, n, failure))
                }
                _ => Ok(None),
            };
        }
        let fence = granted.highest;
        let raised = self
            .nodes
            .tally(self.tickets.iter().map(|ticket| async move {
                let place = &ticket.place;
                let raised: i64 = ticket
                    .call(&RAISE)
                    .arg(fence)
                    .idempotent()
                    .run(&place.store)
                    .await?;
                Ok((raised == 1).then_some(fence))
            }))
            .await;
        Ok((raised.yes >= quorum).then_some(fence))
    }
}

fn too_few(answered: usize, n: usize, failure: Error) -> Error {
    Error::unavailable(format!("only {answered} of {n} servers answered")).with_source(failure)
}

impl Claim for Votes {
    fn renew(&self, ttl: Duration) -> Step<'_> {
        Box::pin(async move {
            let renewed = self
                .nodes
                .tally(
                    self.tickets
                        .iter()
                        .map(|ticket| async move { Ok(ticket.renew(ttl).await?.then_some(0)) }),
                )
                .await;
            let (n, quorum) = (self.tickets.len(), self.nodes.quorum());
            if renewed.yes >= quorum {
                return Ok(true);
            }
            match renewed.failure {
                Some(failure) if renewed.no <= n - quorum => {
                    Err(too_few(renewed.yes + renewed.no, n, failure))
                }
                _ => Ok(false),
            }
        })
    }

    fn release(&self) -> Step<'_> {
        Box::pin(async move {
            // Each server gets its release on its own time, also when nobody waits for the answer any more.
            let answers: Vec<_> = self
                .tickets
                .iter()
                .map(|ticket| {
                    let (told, answer) = tokio::sync::oneshot::channel();
                    let mine = ticket.clone();
                    ticket.place.store.defer(async move {
                        // Nobody may be listening any more.
                        let _ = told.send(mine.release().await);
                    });
                    answer
                })
                .collect();
            let released = self
                .nodes
                .tally(answers.into_iter().map(|answer| async move {
                    match answer.await {
                        Ok(released) => Ok(released?.then_some(0)),
                        Err(_) => Err(Error::unavailable("the runtime is shutting down")),
                    }
                }))
                .await;
            let (n, quorum) = (self.tickets.len(), self.nodes.quorum());
            if released.yes >= quorum {
                return Ok(true);
            }
            match released.failure {
                Some(failure) if released.no <= n - quorum => {
                    Err(too_few(released.yes + released.no, n, failure))
                }
                _ => Ok(false),
            }
        })
    }

    fn store(&self) -> &Store {
        &self.nodes.places[0].store
    }

    fn names(&self) -> &'static Names {
        &KIND.names
    }

    fn namespace(&self) -> &Arc<str> {
        self.nodes.places[0].entity.namespace()
    }
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
            durable: false,
            node_timeout: None,
            retry_delay: Duration::from_millis(100),
        }
    }

    /// Takes the lock if a quorum of the servers grants it; `None` if it is taken.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if fewer than a quorum of the servers answered.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted is given back on all servers in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        observe::operation(KIND.names.acquire, self.namespace(), self.round()).await
    }

    /// Takes the lock as soon as a quorum grants it; `None` if none did within `wait`.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if fewer than a quorum of the servers answered at the last
    /// try.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, what was granted is given back on all servers in the background.
    pub async fn lock(&self, wait: Duration) -> Result<Option<Guard>> {
        observe::operation(KIND.names.acquire, self.namespace(), async {
            let deadline = deadline(wait);
            loop {
                let tried = self.round().await;
                let again = match &tried {
                    Ok(guard) => guard.is_none(),
                    Err(error) => error.is_unavailable() || error.is_timeout(),
                };
                let longest = self.nodes.retry_delay;
                let pause = longest.mul_f64(rand::random_range(0.0..1.0)) + longest / 20;
                if !again || Instant::now() >= deadline {
                    return tried;
                }
                sleep_until((Instant::now() + pause).min(deadline)).await;
            }
        })
        .await
    }

    async fn round(&self) -> Result<Option<Guard>> {
        let mut attempt = Attempt::new(Votes::new(&self.nodes));
        let asked = Instant::now();
        // Whatever comes of it, what any server granted has to be given back.
        attempt.noted = true;
        match attempt.claim().ask().await? {
            Some(fence) => attempt.win(fence, asked, self.nodes.terms).map(Some),
            None => {
                observe::event(KIND.names.busy);
                Ok(None)
            }
        }
    }

    /// Runs `work` under the lock and gives it back. When the lock is lost the work is dropped where it is.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock): the work was not begun.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the work is dropped and the lock is given back in the background.
    pub async fn with<T, W>(
        &self,
        wait: Duration,
        work: impl FnOnce(Lease) -> W,
    ) -> Result<Outcome<T>>
    where
        W: Future<Output = T>,
    {
        Ok(match self.lock(wait).await? {
            Some(guard) => guard.run(work).await,
            None => Outcome::Busy,
        })
    }

    fn namespace(&self) -> &Arc<str> {
        self.nodes.places[0].entity.namespace()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("key", self.nodes.places[0].entity.key())
            .field("servers", &self.nodes.places.len())
            .finish_non_exhaustive()
    }
}
