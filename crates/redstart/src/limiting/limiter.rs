//! The one type of all limiters.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    algorithm::Algorithm,
    builder::LimiterBuilder,
    decision::{DecidedBy, Decision, Grant, Snapshot, tightest},
    deny::{Asked, DenyCache, MakesRoom},
    lease::Leases,
    limit::{Limit, Limits},
    quota::Quota,
    rule::Answer,
    share::Share,
};
use crate::{
    Down,
    error::{Error, Result},
    key::{Entity, Keys},
    observe,
    script::{Call, Script},
    store::{Clock, Store},
    token::token,
};

pub(super) static CHECK_ALL: Script = Script::new(
    "limiter.check_all",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("token_bucket/whole.lua"),
        include_str!("token_bucket/exact.lua"),
        include_str!("token_bucket/ledger.lua"),
        include_str!("fixed_window/rule.lua"),
        include_str!("sliding_window/rule.lua"),
        include_str!("sliding_counter/rule.lua"),
        include_str!("limiter/check_all.lua")
    ),
);

/// How many quotas that were given with a check are kept ready.
const MAX_QUOTAS: usize = 256;

/// What [`Down::Refuse`] tells a caller to wait.
const DOWN_RETRY: Duration = Duration::from_secs(1);

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) keys: Keys,
    pub(super) limits: Arc<Limits>,
    pub(super) refundable: bool,
    pub(super) down: Down,
    pub(super) deny: Option<DenyCache>,
    /// Limits under quotas that were given with a check.
    pub(super) other_quotas: Mutex<HashMap<Quota, Arc<Limits>>>,
    pub(super) leases: Option<Leases>,
    /// What this process admits by itself while the store is down.
    pub(super) share: Option<Share>,
    /// Decisions are only counted.
    pub(super) shadow: bool,
}

/// A rate limiter with one limit or several per subject. Cheap to clone. See the [module](super).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Down, Store, limiting::{Algorithm, Decision, Limiter, Quota}};
/// let store = Store::connect("memory://").await?;
///
/// // Ten per second in bursts of 20, and a thousand per day; all or nothing, in one round trip.
/// let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10).burst(20))
///     .and("daily", Algorithm::FixedWindow, Quota::per_day(1000))
///     .on_store_down(Down::Refuse)
///     .build()?;
///
/// match limiter.check("user:42", 1).await? {
///     Decision::Allowed(grant) => assert_eq!(grant.snapshot().remaining, 19),
///     Decision::Limited { retry_after, .. } => println!("come back in {retry_after:?}"),
///     Decision::Never { max } => println!("ask for at most {max}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(super) inner: Arc<Inner>,
    /// The limiter's own, or those with another first quota.
    pub(super) limits: Arc<Limits>,
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("namespace", self.inner.keys.namespace())
            .field("limits", &self.limits.list)
            .finish_non_exhaustive()
    }
}

impl Limiter {
    /// A limiter by any algorithm.
    pub fn builder(
        store: &Store,
        namespace: &str,
        name: &str,
        algorithm: Algorithm,
        quota: Quota,
    ) -> LimiterBuilder {
        LimiterBuilder::new(store, namespace, name, algorithm, quota)
    }

    /// A [token bucket](super::token_bucket).
    pub fn token_bucket(
        store: &Store,
        namespace: &str,
        name: &str,
        quota: Quota,
    ) -> LimiterBuilder {
        Self::builder(store, namespace, name, Algorithm::TokenBucket, quota)
    }

    /// A [fixed window](super::fixed_window).
    pub fn fixed_window(
        store: &Store,
        namespace: &str,
        name: &str,
        quota: Quota,
    ) -> LimiterBuilder {
        Self::builder(store, namespace, name, Algorithm::FixedWindow, quota)
    }

    /// A [sliding window log](super::sliding_window).
    pub fn sliding_window(
        store: &Store,
        namespace: &str,
        name: &str,
        quota: Quota,
    ) -> LimiterBuilder {
        Self::builder(store, namespace, name, Algorithm::SlidingWindow, quota)
    }

    /// A [sliding window counter](super::sliding_counter).
    pub fn sliding_counter(
        store: &Store,
        namespace: &str,
        name: &str,
        quota: Quota,
    ) -> LimiterBuilder {
        Self::builder(store, namespace, name, Algorithm::SlidingCounter, quota)
    }

    /// The limits by name, in order.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Quota)> {
        let limits = self.limits.list.iter();
        limits.map(|limit| (&*limit.name, limit.quota))
    }

    /// Takes `cost` of every limit of the subject, or of none.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a cost of zero or a bad subject; the store's error if the policy is
    /// [`Down::Fail`], or if the store works and answered with an error.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the cost may have been taken.
    pub async fn check(&self, subject: &str, cost: u64) -> Result<Decision> {
        self.check_before(subject, cost, None).await
    }

    /// As [`check`](Self::check), and waits for others of this process until `patience` ends.
    async fn check_before(
        &self,
        subject: &str,
        cost: u64,
        patience: Option<Instant>,
    ) -> Result<Decision> {
        if let Some(leases) = self.leases() {
            if cost > 0
                && let Some(snapshot) = leases.spend(subject, cost, self.inner.clock.now())
            {
                return Ok(self.leased_decision(subject, cost, snapshot));
            }
            if let Some(denied) = self.denied(subject, &[cost]) {
                return Ok(denied);
            }
            let namespace = self.inner.keys.namespace();
            let work = self.check_leased(leases, subject, cost, patience);
            return observe::operation("limiter.check", namespace, work).await;
        }
        match self.limits.list.len() {
            1 => self.check_costs(subject, &[cost]).await,
            n => self.check_costs(subject, &vec![cost; n]).await,
        }
    }

    /// The blocks of this process, which are of the limiter's own quota.
    fn leases(&self) -> Option<&Leases> {
        let leases = self.inner.leases.as_ref();
        leases.filter(|_| Arc::ptr_eq(&self.limits, &self.inner.limits))
    }

    /// Takes a block for the subject, hands the cost out of it and keeps the rest. One caller at a time asks; those who wait
    /// get what it brings, or the refusal that it got. Who has waited for half of its deadline asks for itself.
    async fn check_leased(
        &self,
        leases: &Leases,
        subject: &str,
        cost: u64,
        patience: Option<Instant>,
    ) -> Result<Decision> {
        let (inner, limits) = (&*self.inner, &*self.limits);
        let clock = &inner.clock;
        check_input(limits, &[cost])?;
        let entity = inner.keys.entity(subject)?;
        if let Some(max) = limits.never(&[cost]) {
            return Ok(self.refused(subject, &[cost], Decision::Never { max }));
        }
        // One deadline for the wait and for both questions: it is one call.
        let ends = inner.store.ends();
        let turn = leases.turn(subject);
        let before = turn.as_ref().map_or(0, |turn| turn.heard());
        let taken = match &turn {
            None => None,
            Some(turn) => {
                // Half of the time is left for the request's own question: who has the turn may not be polled.
                let half = ends.saturating_duration_since(Instant::now()) / 2;
                let line_ends = ends.checked_sub(half).unwrap_or(ends);
                let patience = patience.filter(|patience| *patience < line_ends);
                let taken = timeout_at(patience.unwrap_or(line_ends), turn.take()).await;
                if let Some(snapshot) = leases.spend(subject, cost, clock.now()) {
                    return Ok(self.leased_decision(subject, cost, snapshot));
                }
                let refusal = match &taken {
                    Ok(_) => turn.refused_since(before, cost, clock.now()),
                    Err(_) => turn.too_late(before, cost, clock.now()),
                };
                if let Some(snapshot) = refusal {
                    return Ok(self.limited(subject, &[cost], snapshot));
                }
                if taken.is_err() && patience.is_some() {
                    return self.out_of_patience(subject, &[cost]).await;
                }
                if taken.is_err() && turn.heard() == before {
                    leases.leave_line(subject, turn);
                }
                taken.ok()
            }
        };
        let ask = async |units: u64| {
            let left = ends.saturating_duration_since(Instant::now());
            let asked = self.asks(subject);
            let answer = question(limits, &entity, &[units])
                .run(&inner.store.within(left))
                .await;
            let answers = answer.and_then(|value| read(limits, &[units], value));
            (asked, answers)
        };
        let is_refused = |answers: &Result<Vec<Answer>>| {
            let answers = answers.as_ref();
            answers.is_ok_and(|answers| answers.iter().any(|answer| answer.wait > 0))
        };
        let limit = &limits.list[0];
        // Only the one whose turn it is asks for a block.
        let units = match &taken {
            Some(_) => leases.units(subject, cost, clock.now()),
            None => cost,
        };
        let mut units = units.min(limit.rule.capacity()).max(cost);
        let forgotten = leases.forgotten(subject);
        let (mut asked, mut answers) = ask(units).await;
        if units > cost && is_refused(&answers) {
            // The store has answered, also if the next question is not answered in time.
            if let (Some(turn), Ok(answers)) = (&turn, &answers) {
                turn.hear(units, clock.now(), limit.snapshot(&answers[0]));
            }
            // There may be room for the request itself.
            units = cost;
            (asked, answers) = ask(cost).await;
        }
        match (&turn, &answers) {
            (Some(turn), Ok(answers)) => turn.hear(cost, clock.now(), limit.snapshot(&answers[0])),
            // The line, or the question for a block, has left it too little time.
            (Some(turn), Err(error)) if error.is_timeout() => {
                if let Some(snapshot) = turn.too_late(before, cost, clock.now()) {
                    return Ok(self.limited(subject, &[cost], snapshot));
                }
            }
            _ => {}
        }
        // While the store is down, only the request itself is decided: a block is kept nowhere.
        let decision = self.decide(subject, &[cost], asked, answers)?;
        // One that went past the line leaves alone what those in line have brought since.
        if let Decision::Allowed(grant) = &decision
            && grant.decided_by() == DecidedBy::Store
            && (taken.is_some() || turn.is_none())
        {
            let snapshot = grant.snapshot().clone();
            let sent = Asked { forgotten, ..asked };
            leases.put(subject, units - cost, limit, sent, clock.now(), snapshot);
        }
        Ok(decision)
    }

    fn leased_decision(&self, subject: &str, cost: u64, snapshot: Snapshot) -> Decision {
        Decision::Allowed(Grant {
            limiter: self.clone(),
            subject: subject.into(),
            costs: [cost].into(),
            receipts: Vec::new(),
            snapshots: vec![snapshot],
        })
    }

    /// In shadow mode, what would be refused is counted and admitted; nothing is taken for it.
    pub(super) fn refused(&self, subject: &str, costs: &[u64], refusal: Decision) -> Decision {
        if !self.inner.shadow {
            return refusal;
        }
        observe::event("limiter.shadowed");
        let mut snapshots = match refusal {
            Decision::Limited { snapshot, .. } => vec![snapshot],
            _ => {
                let limits = self.limits.list.iter();
                limits
                    .map(|limit| limit.unknown(0, Duration::ZERO))
                    .collect()
            }
        };
        for snapshot in &mut snapshots {
            snapshot.decided_by = DecidedBy::Shadow;
        }
        Decision::Allowed(Grant {
            limiter: self.clone(),
            subject: subject.into(),
            costs: costs.into(),
            receipts: Vec::new(),
            snapshots,
        })
    }

    /// Takes from each limit of the subject its own cost, or nothing from any. One script, one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check), and [`is_config`](Error::is_config) if the number of costs is not that of the
    /// limits.
    ///
    /// # Cancel safety
    ///
    /// That of [`check`](Self::check).
    pub async fn check_all(&self, subject: &str, costs: &[u64]) -> Result<Decision> {
        self.check_costs(subject, costs).await
    }

    /// Takes `cost` from the subject under a quota of its own, such as that of its plan: the shortcut for
    /// [`with_quota`](Self::with_quota) and [`check`](Self::check).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, limiting::{Limiter, Quota}};
    /// let store = Store::connect("memory://").await?;
    /// let api = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(1)).build()?;
    ///
    /// let premium = Quota::per_second(100);
    /// assert!(api.check_quota("ann", 50, premium).await?.is_allowed());
    /// assert!(!api.check("bob", 50).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check) and of [`with_quota`](Self::with_quota).
    ///
    /// # Cancel safety
    ///
    /// That of [`check`](Self::check).
    pub async fn check_quota(&self, subject: &str, cost: u64, quota: Quota) -> Result<Decision> {
        self.with_quota(quota)?.check(subject, cost).await
    }

    /// This limiter with another quota in place of that of its first limit, such as that of a plan. Further limits hold as
    /// they are, and all calls work as usual. Cheap, so there is no need to keep it.
    ///
    /// The state belongs to the subject and the quota: a subject whose quota changes starts with fresh state. A limiter that
    /// [leases blocks](LimiterBuilder::lease_blocks) does so under its own quota; others are checked at the store.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, limiting::{Limiter, Quota}};
    /// let store = Store::connect("memory://").await?;
    /// let api = Limiter::token_bucket(&store, "shop", "api", Quota::per_hour(10)).build()?;
    ///
    /// let premium = api.with_quota(Quota::per_hour(1000))?;
    /// assert!(premium.check("ann", 50).await?.is_allowed());
    /// assert_eq!(premium.peek("ann").await?.remaining, 950);
    /// assert_eq!(api.peek("ann").await?.remaining, 10);
    /// // The subjects of each plan in one round trip.
    /// let decisions = premium.check_many(&[("ann", 20), ("eve", 20)]).await;
    /// # assert!(decisions.into_iter().all(|decision| decision.is_ok_and(|decision| decision.is_allowed())));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a quota that [`build`](LimiterBuilder::build) would refuse.
    pub fn with_quota(&self, quota: Quota) -> Result<Self> {
        Ok(Self {
            inner: self.inner.clone(),
            limits: self.limits_with(quota)?,
        })
    }

    /// The limits with another first quota. Few quotas are in use, so they are kept.
    fn limits_with(&self, quota: Quota) -> Result<Arc<Limits>> {
        let inner = &*self.inner;
        let old = &inner.limits.list;
        if quota == old[0].quota {
            return Ok(inner.limits.clone());
        }
        let mut known = inner.other_quotas.lock();
        if let Some(limits) = known.get(&quota) {
            return Ok(limits.clone());
        }
        let refundable = inner.refundable;
        let mut list = vec![Limit::new(
            &old[0].name,
            false,
            old[0].algorithm,
            quota,
            refundable,
        )?];
        for limit in &old[1..] {
            let (algorithm, quota) = (limit.algorithm, limit.quota);
            list.push(Limit::new(&limit.name, true, algorithm, quota, refundable)?);
        }
        let limits = Arc::new(Limits::new(list));
        if known.len() >= MAX_QUOTAS
            && let Some(one) = known.keys().next().copied()
        {
            known.remove(&one);
        }
        known.insert(quota, limits.clone());
        Ok(limits)
    }

    pub(super) async fn check_costs(&self, subject: &str, costs: &[u64]) -> Result<Decision> {
        let (inner, limits) = (&*self.inner, &*self.limits);
        // A repeat of what was refused is not an operation: it is over before one could begin.
        if let Some(denied) = self.denied(subject, costs) {
            return Ok(denied);
        }
        observe::operation("limiter.check", inner.keys.namespace(), async {
            check_input(limits, costs)?;
            let entity = inner.keys.entity(subject)?;
            if let Some(max) = limits.never(costs) {
                return Ok(self.refused(subject, costs, Decision::Never { max }));
            }
            let asked = self.asks(subject);
            let answers = match question(limits, &entity, costs).run(&inner.store).await {
                Ok(value) => read(limits, costs, value),
                Err(error) => Err(error),
            };
            self.decide(subject, costs, asked, answers)
        })
        .await
    }

    /// The answer of the deny cache, if it has one.
    pub(super) fn denied(&self, subject: &str, costs: &[u64]) -> Option<Decision> {
        let limits = &*self.limits;
        let deny = self.inner.deny.as_ref()?;
        if costs.len() != limits.list.len() || limits.never(costs).is_some() {
            return None;
        }
        let (retry_after, mut snapshot) =
            deny.get(subject, limits.id, costs, self.inner.clock.now())?;
        observe::event("limiter.denied_locally");
        snapshot.decided_by = DecidedBy::DenyCache;
        snapshot.retry_after = retry_after;
        let refusal = Decision::Limited {
            retry_after,
            snapshot,
        };
        Some(self.refused(subject, costs, refusal))
    }

    /// To be called before the store is asked about a subject.
    pub(super) fn asks(&self, subject: &str) -> Asked {
        let deny = self.inner.deny.as_ref();
        Asked {
            forgotten: deny.map_or(0, |deny| deny.forgotten(subject)),
            at: self.inner.clock.now(),
        }
    }

    /// Turns what the store said, or that it did not, into a decision.
    pub(super) fn decide(
        &self,
        subject: &str,
        costs: &[u64],
        asked: Asked,
        answers: Result<Vec<Answer>>,
    ) -> Result<Decision> {
        let limits = &*self.limits;
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) if error.is_store_down() => {
                return self.without_store(subject, costs, error);
            }
            Err(error) => return Err(error),
        };
        let pairs = limits.list.iter().zip(&answers);
        let snapshots: Vec<Snapshot> = pairs
            .map(|(limit, answer)| limit.snapshot(answer))
            .collect();
        if answers.iter().all(|answer| answer.wait == 0) {
            let account = limits.list.iter().any(|l| l.rule.refund_script().is_some());
            return Ok(Decision::Allowed(Grant {
                limiter: self.clone(),
                subject: subject.into(),
                costs: costs.into(),
                receipts: match account {
                    true => answers.into_iter().map(|answer| answer.receipt).collect(),
                    false => Vec::new(),
                },
                snapshots,
            }));
        }
        let snapshot = tightest(&snapshots).clone();
        if let Some(deny) = &self.inner.deny {
            let now = self.inner.clock.now();
            deny.put(subject, limits.id, costs, asked, now, &snapshot);
        }
        Ok(self.limited(subject, costs, snapshot))
    }

    /// The store refused.
    fn limited(&self, subject: &str, costs: &[u64], snapshot: Snapshot) -> Decision {
        observe::event("limiter.limited");
        let refusal = Decision::Limited {
            retry_after: snapshot.retry_after,
            snapshot,
        };
        self.refused(subject, costs, refusal)
    }

    pub(super) fn without_store(
        &self,
        subject: &str,
        costs: &[u64],
        error: Error,
    ) -> Result<Decision> {
        let (inner, limits) = (&*self.inner, &*self.limits);
        observe::event("limiter.store_down");
        tracing::debug!(%error, policy = ?inner.down, "a limiter's store is down");
        let refuse = |retry_after| {
            let refusal = Decision::Limited {
                retry_after,
                snapshot: limits.list[0].unknown(0, retry_after),
            };
            Ok(self.refused(subject, costs, refusal))
        };
        if let Some(share) = &inner.share
            && let Err(wait) = share.take(limits, subject, costs, inner.clock.now())
        {
            return refuse(wait);
        }
        match inner.down {
            Down::Fail => Err(error),
            Down::Refuse => refuse(DOWN_RETRY),
            Down::Allow | Down::Local(_) => Ok(Decision::Allowed(Grant {
                limiter: self.clone(),
                subject: subject.into(),
                costs: costs.into(),
                receipts: Vec::new(),
                snapshots: limits
                    .list
                    .iter()
                    .map(|limit| limit.unknown(limit.rule.capacity(), Duration::ZERO))
                    .collect(),
            })),
        }
    }

    /// Looks at the tightest limit of the subject and takes nothing.
    ///
    /// # Errors
    ///
    /// The store's errors, whatever the policy, and [`is_config`](Error::is_config) for a bad subject.
    pub async fn peek(&self, subject: &str) -> Result<Snapshot> {
        let snapshots = self.peek_all(subject).await?;
        Ok(tightest(&snapshots).clone())
    }

    /// Looks at all limits of the subject, in order, and takes nothing.
    ///
    /// # Errors
    ///
    /// Those of [`peek`](Self::peek).
    pub async fn peek_all(&self, subject: &str) -> Result<Vec<Snapshot>> {
        let (inner, limits) = (&*self.inner, &*self.limits);
        observe::operation("limiter.peek", inner.keys.namespace(), async {
            let entity = inner.keys.entity(subject)?;
            let costs = vec![1; limits.list.len()];
            let call = question_all(limits, &entity, &costs, "look");
            let answers = read_all(limits, &costs, call.run(&inner.store).await?)?;
            let pairs = limits.list.iter().zip(&answers);
            Ok(pairs
                .map(|(limit, answer)| limit.snapshot(answer))
                .collect())
        })
        .await
    }

    /// Waits until the request is admitted, but not longer than `within`. A question that was sent to the store by then is waited
    /// for; a caller whose turn has not come by then looks once at the store, to say how long the wait still is. Both end with the
    /// deadline of the store, so a call lasts up to `within` and that deadline.
    ///
    /// Waiters of one subject in one process wait in line: only the first asks the store, and they are admitted in the
    /// order in which they came. Between processes there is no order.
    ///
    /// If the request cannot be admitted in time, the answer is [`Decision::Limited`], at once where that is known.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, nothing was taken and the place in line is free; dropped while it asks, the cost may have
    /// been taken.
    pub async fn acquire(&self, subject: &str, cost: u64, within: Duration) -> Result<Decision> {
        let limits = &*self.limits;
        let costs = vec![cost; limits.list.len()];
        // No place in line makes room for this.
        if let Some(max) = limits.never(&costs) {
            let never = Decision::Never { max };
            return Ok(self.refused(subject, &costs, never));
        }
        let clock = &self.inner.clock;
        let deadline = clock.now().checked_add(within);
        let mut place = limits.waiters.join(subject);
        let in_time = tokio::select! {
            biased;
            () = place.reach_head() => true,
            () = until(clock, deadline) => false,
        };
        if !in_time {
            return self.out_of_patience(subject, &costs).await;
        }
        loop {
            let decision = match self.leases() {
                Some(_) => {
                    // A line of this process is waited for by tokio's clock, like the store.
                    let left = deadline.map(|at| at.saturating_duration_since(clock.now()));
                    let patience = left.and_then(|left| Instant::now().checked_add(left));
                    self.check_before(subject, cost, patience).await?
                }
                None => self.check_costs(subject, &costs).await?,
            };
            let Decision::Limited { retry_after, .. } = &decision else {
                return Ok(decision);
            };
            let Some(again) = clock.now().checked_add(*retry_after) else {
                return Ok(decision);
            };
            if deadline.is_some_and(|deadline| again > deadline) {
                return Ok(decision);
            }
            clock.sleep_until(again).await;
        }
    }

    /// The refusal of a caller that has waited for as long as it may. Those in front still wait, so this one would have to wait at
    /// least as long.
    async fn out_of_patience(&self, subject: &str, costs: &[u64]) -> Result<Decision> {
        match self.peek(subject).await {
            Ok(snapshot) => {
                let refusal = Decision::Limited {
                    retry_after: snapshot.retry_after.max(Duration::from_millis(1)),
                    snapshot,
                };
                Ok(self.refused(subject, costs, refusal))
            }
            Err(error) if error.is_store_down() => self.without_store(subject, costs, error),
            Err(error) => Err(error),
        }
    }

    /// Forgets all that the subject has taken: under the limiter's own quota, under further limits, and under every other
    /// quota that this process has given to [`with_quota`](Self::with_quota) or [`check_quota`](Self::check_quota), of which
    /// it remembers up to 256.
    ///
    /// Nothing keeps a list of the quotas that other processes gave. One that this process may not have used is named first, as
    /// in `limiter.with_quota(premium)?.reset("ann")`.
    ///
    /// # Errors
    ///
    /// The store's errors, and [`is_config`](Error::is_config) for a bad subject.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the subject may or may not be forgotten.
    pub async fn reset(&self, subject: &str) -> Result<()> {
        let inner = &*self.inner;
        observe::operation("limiter.reset", inner.keys.namespace(), async {
            let entity = inner.keys.entity(subject)?;
            let mut all = vec![inner.limits.clone(), self.limits.clone()];
            all.extend(inner.other_quotas.lock().values().cloned());
            let parts: BTreeSet<&str> = all
                .iter()
                .flat_map(|limits| &limits.list)
                .map(|limit| limit.part.as_str())
                .collect();
            let mut cmd = redis::cmd("DEL");
            for part in parts {
                cmd.arg(entity.part(part));
            }
            let _room = MakesRoom {
                deny: inner.deny.as_ref(),
                subject,
            };
            // A block is of what was taken before, and so is one that is on its way.
            let _blocks = inner.leases.as_ref().map(|leases| leases.void(subject));
            inner.store.query::<()>(&cmd).await
        })
        .await
    }
}

async fn until(clock: &Clock, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(super) fn check_input(limits: &Limits, costs: &[u64]) -> Result<()> {
    if costs.len() != limits.list.len() {
        return Err(Error::config(format!(
            "a limiter with {} limits takes {} costs, not {}",
            limits.list.len(),
            limits.list.len(),
            costs.len()
        )));
    }
    if costs.contains(&0) {
        return Err(Error::config("a cost of zero takes nothing; use peek"));
    }
    Ok(())
}

/// The call that takes `costs`, which are not above the capacities.
pub(super) fn question<'a>(limits: &Limits, entity: &'a Entity, costs: &[u64]) -> Call<'a> {
    let [limit] = &limits.list[..] else {
        return question_all(limits, entity, costs, "take");
    };
    let rule = &limit.rule;
    let call = rule.check_script().on(entity).part(&limit.part);
    let call = call.arg(&rule.args(costs[0])[..]);
    match rule.needs_id() {
        true => call.arg(token()),
        false => call,
    }
}

fn question_all<'a>(limits: &Limits, entity: &'a Entity, costs: &[u64], what: &str) -> Call<'a> {
    let mut call = CHECK_ALL.on(entity);
    for limit in &limits.list {
        call = call.part(&limit.part);
    }
    let id = token();
    call = call.arg(what);
    for (limit, cost) in limits.list.iter().zip(costs) {
        let rule = &limit.rule;
        call = call.arg(rule.name()).arg(&rule.args(*cost)[..]).arg(&id);
    }
    call
}

/// The answers to a [`question`].
pub(super) fn read(limits: &Limits, costs: &[u64], value: Value) -> Result<Vec<Answer>> {
    let [Limit { rule, .. }] = &limits.list[..] else {
        return read_all(limits, costs, value);
    };
    Ok(vec![Answer::read(value, &**rule, costs[0])?])
}

fn read_all(limits: &Limits, costs: &[u64], value: Value) -> Result<Vec<Answer>> {
    let values: Vec<Value> = redis::from_redis_value(value)?;
    if values.len() != limits.list.len() {
        return Err(Error::codec(
            "the reply of a limiter's script is missing a limit",
        ));
    }
    let limits = limits.list.iter().zip(costs);
    limits
        .zip(values)
        .map(|((limit, cost), value)| Answer::read(value, &*limit.rule, *cost))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_from_before_a_reset_or_a_refund_is_not_remembered() -> Result<()> {
        let store = Store::connect("memory://").await?;
        let limiter = Limiter::fixed_window(&store, "app", "day", Quota::per_day(1))
            .deny_cache(64)
            .build()?;
        for refunds in [false, true] {
            let grant = limiter
                .check("s", 1)
                .await?
                .allowed()
                .expect("there is room");
            let asked = limiter.asks("s");
            let entity = limiter.inner.keys.entity("s")?;
            let reply = question(&limiter.limits, &entity, &[1]).run(&store).await?;
            match refunds {
                true => assert_eq!(limiter.refund(grant).await?, 1),
                false => limiter.reset("s").await?,
            }
            // The reply is late.
            let answers = read(&limiter.limits, &[1], reply);
            let late = limiter.decide("s", &[1], asked, answers)?;
            assert!(!late.is_allowed());
            assert!(limiter.check("s", 1).await?.is_allowed());
            limiter.reset("s").await?;
        }
        Ok(())
    }
}
