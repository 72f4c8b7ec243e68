//! Asking several servers at once, and what a majority of their answers says.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout, timeout_at};

use super::{RAISE_FENCE, REDLOCK};
use crate::{
    error::{Error, Result},
    locking::{
        kind::Operations,
        lease::Terms,
        lock::Lock,
        owner::{Answer, Ask, Owner, Ownership, StillOwned, owner_token},
    },
    store::{Clock, Store},
};

/// The servers of a quorum lock: the same lock on each of them.
pub(in crate::locking) struct Servers {
    pub(in crate::locking) locks: Vec<Arc<Lock>>,
    pub(super) terms: Terms,
    pub(super) longest_lease: Duration,
    pub(super) server_timeout: Duration,
    pub(super) retry_delay: Duration,
}

/// The answers of one round.
struct Tally {
    servers: usize,
    yes: usize,
    no: usize,
    /// The highest number that came with a yes.
    highest: u64,
    failure: Option<Error>,
}

impl Tally {
    fn has_quorum(&self) -> bool {
        self.yes > self.servers / 2
    }

    /// Whether too many servers refused for a quorum to be reached.
    fn is_refused(&self) -> bool {
        self.no > self.servers - (self.servers / 2 + 1)
    }

    /// Whether a quorum still owned the lock; an error if too few answered to tell.
    fn still_owned(self) -> Result<bool> {
        if self.has_quorum() {
            return Ok(true);
        }
        if self.is_refused() {
            return Ok(false);
        }
        self.too_few().map_or(Ok(false), Err)
    }

    /// The failure of a round in which too few servers answered.
    fn too_few(self) -> Option<Error> {
        let (answered, servers) = (self.yes + self.no, self.servers);
        let failure = self.failure?;
        Some(
            Error::unavailable(format!("only {answered} of {servers} servers answered"))
                .with_source(failure),
        )
    }
}

impl Servers {
    pub(in crate::locking) fn namespace(&self) -> &Arc<str> {
        self.locks[0].entity.namespace()
    }

    pub(super) fn clock(&self) -> Clock {
        self.locks[0].store.clock()
    }

    /// Counts answers until the rest cannot matter any more. After a quorum of yes, the other servers get as much time
    /// again as the quorum took: the more servers hold the lock the better, but a hung one must cost little.
    async fn tally<Q>(&self, questions: impl IntoIterator<Item = Q>) -> Tally
    where
        Q: Future<Output = Result<Option<u64>>>,
    {
        let began = Instant::now();
        let mut open: FuturesUnordered<_> = questions
            .into_iter()
            .map(|question| timeout(self.server_timeout, question))
            .collect();
        let mut tally = Tally {
            servers: self.locks.len(),
            yes: 0,
            no: 0,
            highest: 0,
            failure: None,
        };
        let mut until = began + self.server_timeout * 2;
        let mut decided = false;
        while let Ok(Some(answer)) = timeout_at(until, open.next()).await {
            match answer {
                Ok(Ok(Some(number))) => {
                    tally.yes += 1;
                    tally.highest = tally.highest.max(number);
                }
                Ok(Ok(None)) => tally.no += 1,
                Ok(Err(error)) => tally.failure = Some(error),
                Err(_) => tally.failure = Some(Error::timeout("a server did not answer in time")),
            }
            if tally.is_refused() {
                break;
            }
            if tally.has_quorum() && !decided {
                decided = true;
                let now = Instant::now();
                until = until.min(now + (now - began));
            }
        }
        tally
    }
}

/// Leaves a request to the store's background work. The returned future waits for its answer.
pub(in crate::locking) fn in_background<T, R>(
    store: &Store,
    request: R,
) -> impl Future<Output = Result<T>> + use<T, R>
where
    T: Send + 'static,
    R: Future<Output = Result<T>> + Send + 'static,
{
    let (sender, answer) = tokio::sync::oneshot::channel();
    store.defer(async move {
        // Fails only if nobody waits for it.
        let _ = sender.send(request.await);
    });
    async move {
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable("the runtime is shutting down")),
        }
    }
}

/// One token that may own the lock on all servers.
pub(super) struct QuorumOwner {
    servers: Arc<Servers>,
    owners: Vec<Arc<Owner>>,
    /// Whether it was released: what it gets from then on is given back.
    over: Arc<AtomicBool>,
}

impl QuorumOwner {
    pub(super) fn new(servers: &Arc<Servers>) -> Self {
        let token = owner_token(servers.locks[0].label.as_deref());
        Self {
            owners: servers
                .locks
                .iter()
                .map(|lock| Arc::new(Owner::new(lock, token.clone())))
                .collect(),
            servers: servers.clone(),
            over: Arc::default(),
        }
    }

    /// Asks every server once. Returns the fence token, or `None` if there is no quorum.
    pub(super) async fn ask(&self) -> Result<Option<u64>> {
        self.agree(self.owners.iter().map(grant)).await
    }

    /// Takes the place of the owner that handed the lock over, on every server that still has it. Each of them gives it
    /// once, so of several that redeem no two have a quorum.
    ///
    /// Each server gets its request in the background, even after a quorum has answered: what a server keeps for the giver
    /// would stay there until its lease ends.
    pub(super) async fn redeem(&self, giver: &str) -> Result<Option<u64>> {
        let requests = self.owners.iter().map(|owner| {
            let (store, owner, giver) = (owner.lock.store.clone(), owner.clone(), giver.to_owned());
            let over = self.over.clone();
            in_background(&store, async move {
                let redeemed = owner.redeem(&giver).await;
                if over.load(Ordering::SeqCst) {
                    // The release may have arrived before it.
                    owner.release().await?;
                }
                redeemed
            })
        });
        let requests: Vec<_> = requests.collect();
        self.agree(requests).await
    }

    /// The highest fence token that a quorum issued, written back to a quorum.
    async fn agree<Q>(&self, questions: impl IntoIterator<Item = Q>) -> Result<Option<u64>>
    where
        Q: Future<Output = Result<Option<u64>>>,
    {
        let granted = self.servers.tally(questions).await;
        if !granted.has_quorum() {
            // A refusal by a quorum is a no; too few answers are a failure.
            let answered = granted.yes + granted.no;
            let too_few = answered <= granted.servers / 2;
            return match too_few.then(|| granted.too_few()).flatten() {
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        let fence = granted.highest;
        let raised = self
            .servers
            .tally(self.owners.iter().map(|owner| raise_fence(owner, fence)))
            .await;
        Ok(raised.has_quorum().then_some(fence))
    }
}

async fn grant(owner: &Arc<Owner>) -> Result<Option<u64>> {
    match owner.ask(Ask::Once).await? {
        Answer::Granted(fence) => Ok(Some(fence)),
        Answer::Busy(_) => Ok(None),
    }
}

async fn raise_fence(owner: &Arc<Owner>, fence: u64) -> Result<Option<u64>> {
    let raised: i64 = owner
        .call(&RAISE_FENCE)
        .arg(fence)
        .idempotent()
        .run(&owner.lock.store)
        .await?;
    Ok((raised == 1).then_some(fence))
}

impl Ownership for QuorumOwner {
    fn extend(&self, ttl: Duration) -> StillOwned<'_> {
        Box::pin(async move {
            let extended = self.owners.iter().map(|owner| async move {
                let still_owned = owner.extend(ttl).await?;
                Ok(still_owned.then_some(0))
            });
            self.servers.tally(extended).await.still_owned()
        })
    }

    fn release(&self) -> StillOwned<'_> {
        self.over.store(true, Ordering::SeqCst);
        Box::pin(async move {
            // Each server gets its release in the background, even if nobody waits for the answer any more.
            let released: Vec<_> = self
                .owners
                .iter()
                .map(|owner| {
                    let (store, owner) = (owner.lock.store.clone(), owner.clone());
                    in_background(
                        &store,
                        async move { Ok(owner.release().await?.then_some(0)) },
                    )
                })
                .collect();
            self.servers.tally(released).await.still_owned()
        })
    }

    fn token(&self) -> &str {
        &self.owners[0].token
    }

    fn has_ticket(&self) -> bool {
        false
    }

    fn store(&self) -> &Store {
        &self.servers.locks[0].store
    }

    fn operations(&self) -> &'static Operations {
        &REDLOCK.operations
    }

    fn namespace(&self) -> &Arc<str> {
        self.servers.namespace()
    }

    fn longest_lease(&self) -> Duration {
        self.servers.longest_lease
    }
}
