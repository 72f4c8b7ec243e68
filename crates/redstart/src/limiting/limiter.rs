//! The one front of all limiters.

use std::{fmt, sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    deny::DenyCache, fixed_window, quota::Quota, rule::Answer, rule::Rule, sliding_counter,
    sliding_window, token_bucket, turn::Turns,
};
use crate::{
    error::{Error, Result},
    key::{Entity, Key, Keys, Layout},
    observe,
    script::{Batch, Script},
    store::Store,
};

static CHECK_ALL: Script = Script::new(
    "limiter.check_all",
    concat!(
        token_bucket::functions!(),
        include_str!("fixed_window/rule.lua"),
        include_str!("sliding_window/rule.lua"),
        include_str!("sliding_counter/rule.lua"),
        include_str!("limiter/check_all.lua")
    ),
);

/// How many limits one limiter may have.
const MAX_LIMITS: usize = 16;

/// What [`Down::Refuse`] tells a caller to wait.
const DOWN_RETRY: Duration = Duration::from_secs(1);

/// Which arithmetic decides. Each has a page of its own: [`token_bucket`], [`fixed_window`], [`sliding_window`],
/// [`sliding_counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A burst up to the capacity, then a steady rate.
    TokenBucket,
    /// One counter for each window of the clock.
    FixedWindow,
    /// A log: exact in every rolling window.
    SlidingWindow,
    /// Two counters: close to the log in constant memory.
    SlidingCounter,
}

impl Kind {
    /// The name in keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingCounter => "sliding_counter",
        }
    }

    fn rule(self, quota: Quota, refundable: bool) -> Result<Box<dyn Rule>> {
        quota.check()?;
        match self {
            Self::TokenBucket => token_bucket::rule(quota, refundable),
            Self::FixedWindow => fixed_window::rule(quota),
            Self::SlidingWindow => sliding_window::rule(quota),
            Self::SlidingCounter => sliding_counter::rule(quota),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a check answers while the store is down: it cannot be reached, or does not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// [`Decision::Limited`] for a second: nothing gets through unprotected.
    Refuse,
    /// [`Decision::Allowed`]: nobody is turned away because of the limiter.
    Allow,
    /// The error itself: the caller decides.
    Fail,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The store.
    Store,
    /// This process, which remembers the store's refusal.
    DenyCache,
    /// The [`Down`] policy, because the store is down.
    Policy,
}

/// One limit of a subject, as it was when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The limit's name: that of its kind, unless it was given one.
    pub name: Arc<str>,
    /// The most that can be taken at once.
    pub limit: u64,
    /// What is left now.
    pub remaining: u64,
    /// How long until all of it is there again, if nothing more is taken.
    pub reset_after: Duration,
    /// How long the request has to wait; zero if it need not. For a [peek](Limiter::peek): a request of cost 1.
    pub retry_after: Duration,
    /// Who decided.
    pub source: Source,
}

/// The answer to a check.
#[derive(Debug)]
#[must_use = "a limiter that is not obeyed limits nothing"]
pub enum Decision {
    /// Go ahead.
    Allowed(Grant),
    /// Not now.
    Limited {
        /// Waiting so long is enough, and one tick less is not, unless others take or give back meanwhile.
        retry_after: Duration,
        /// The limit that makes the request wait longest.
        snapshot: Snapshot,
    },
    /// Never: the cost is above the capacity. Waiting does not help, splitting the request does.
    Never {
        /// The highest cost that can be admitted.
        max: u64,
    },
}

impl Decision {
    /// Whether the request may go ahead.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The grant, if the request may go ahead.
    pub fn allowed(self) -> Option<Grant> {
        match self {
            Self::Allowed(grant) => Some(grant),
            _ => None,
        }
    }

    /// How long to wait; `None` if the request was allowed, or never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

/// What was taken. Keep it to [give it back](Limiter::refund); otherwise drop it.
#[must_use = "drop it explicitly if it will not be refunded"]
pub struct Grant {
    limiter: Limiter,
    subject: Box<str>,
    costs: Box<[u64]>,
    receipts: Vec<String>,
    snapshots: Vec<Snapshot>,
}

impl Grant {
    /// The tightest of the limits, after this request was admitted.
    pub fn snapshot(&self) -> &Snapshot {
        tightest(&self.snapshots)
    }

    /// All limits, in the order in which the limiter was given them.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// What the request cost in each limit.
    pub fn costs(&self) -> &[u64] {
        &self.costs
    }

    /// Who decided.
    pub fn source(&self) -> Source {
        self.snapshots[0].source
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("costs", &self.costs)
            .field("snapshots", &self.snapshots)
            .finish_non_exhaustive()
    }
}

/// The limit with the least left in proportion; a limiter has at least one.
fn tightest(snapshots: &[Snapshot]) -> &Snapshot {
    let share = |s: &Snapshot| u128::from(s.remaining) * 1_000_000 / u128::from(s.limit.max(1));
    snapshots
        .iter()
        .min_by_key(|s| (std::cmp::Reverse(s.retry_after), share(s)))
        .unwrap_or(&snapshots[0])
}

/// Settings of a [`Limiter`]. See [`build`](Self::build) for what is checked.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Store,
    namespace: String,
    layout: Option<Layout>,
    limits: Vec<(Option<String>, Kind, Quota)>,
    refundable: bool,
    down: Option<Down>,
    deny: Option<usize>,
}

impl Builder {
    /// What a check answers while the store is down. It must be chosen.
    pub fn on_store_down(mut self, down: Down) -> Self {
        self.down = Some(down);
        self
    }

    /// Adds a limit that every request must keep too, such as one per day beside one per second. All limits
    /// of a limiter are asked in one script, and a request takes from all of them or from none.
    pub fn and(mut self, name: &str, kind: Kind, quota: Quota) -> Self {
        self.limits.push((Some(name.to_owned()), kind, quota));
        self
    }

    /// Names the first limit; without that its name is that of its kind. Names go into snapshots and headers.
    pub fn name(mut self, name: &str) -> Self {
        if let Some(first) = self.limits.first_mut() {
            first.0 = Some(name.to_owned());
        }
        self
    }

    /// Lets token buckets keep the account that a [refund](Limiter::refund) needs, at some cost for each
    /// check. Windows need none.
    pub fn refundable(mut self) -> Self {
        self.refundable = true;
        self
    }

    /// Remembers up to `subjects` refusals in this process and answers their repeats without a round trip,
    /// never longer than the server itself said. Under attack this is the fast path.
    ///
    /// It counts by this process's monotonic clock; [`Store::advance`] does not move that. Room that a
    /// refund of another process made is seen only when the server's answer has run out.
    pub fn deny_cache(mut self, subjects: usize) -> Self {
        self.deny = Some(subjects);
        self
    }

    /// Keeps the subject's state at the keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Makes the limiter. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if no policy for a store that is down was chosen, a quota is zero, too
    /// long or too large to be counted exactly, a window has a burst or is no whole number of milliseconds,
    /// a name is empty, doubled or not of letters, digits and `- _ .`, or the namespace breaks its
    /// [rules](crate::key#rules-for-names).
    pub fn build(self) -> Result<Limiter> {
        let Some(down) = self.down else {
            return Err(Error::config(
                "choose what a limiter does while the store is down: on_store_down(..)",
            ));
        };
        if self.limits.len() > MAX_LIMITS {
            return Err(Error::config(format!(
                "a limiter has at most {MAX_LIMITS} limits"
            )));
        }
        if self.deny == Some(0) {
            return Err(Error::config(
                "a deny cache of zero subjects remembers nothing",
            ));
        }
        let mut limits: Vec<Limit> = Vec::with_capacity(self.limits.len());
        for (at, (name, kind, quota)) in self.limits.into_iter().enumerate() {
            let rule = kind.rule(quota, self.refundable)?;
            let name = name.unwrap_or_else(|| kind.as_str().to_owned());
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
                return Err(Error::config(
                    "a limit's name has 1 to 64 letters, digits and - _ . only",
                ));
            }
            if limits.iter().any(|limit| *limit.name == *name) {
                return Err(Error::config(format!(
                    "two limits of one limiter are named {name:?}"
                )));
            }
            let part = match (at, rule.part()) {
                (0, part) => part,
                (_, None) => Some(name.clone()),
                (_, Some(part)) => Some(format!("{name}:{part}")),
            };
            limits.push(Limit {
                name: name.into(),
                quota,
                rule,
                part,
            });
        }
        let mut keys = Keys::new(&self.namespace, limits[0].rule.kind().as_str())?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Limiter(Arc::new(Inner {
            store: self.store,
            keys,
            limits,
            down,
            deny: self.deny.map(DenyCache::new),
            turns: Turns::default(),
        })))
    }
}

struct Limit {
    name: Arc<str>,
    quota: Quota,
    rule: Box<dyn Rule>,
    part: Option<String>,
}

impl Limit {
    fn key(&self, entity: &Entity) -> Key {
        match &self.part {
            Some(part) => entity.part(part),
            None => entity.key().clone(),
        }
    }

    fn snapshot(&self, answer: &Answer) -> Snapshot {
        Snapshot {
            name: self.name.clone(),
            limit: self.rule.capacity(),
            remaining: self.rule.remaining(answer.state),
            reset_after: self.rule.reset(answer.state, answer.reset),
            retry_after: match answer.wait {
                0 => Duration::ZERO,
                wait => self.rule.wait(wait),
            },
            source: Source::Store,
        }
    }

    fn policy(&self, remaining: u64, retry_after: Duration) -> Snapshot {
        Snapshot {
            name: self.name.clone(),
            limit: self.rule.capacity(),
            remaining,
            reset_after: retry_after,
            retry_after,
            source: Source::Policy,
        }
    }
}

struct Inner {
    store: Store,
    keys: Keys,
    limits: Vec<Limit>,
    down: Down,
    deny: Option<DenyCache>,
    turns: Turns,
}

/// A rate limiter: one limit or several of each subject. Cheap to clone. See the [module](super).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, limiting::{Decision, Down, Kind, Limiter, Quota}};
/// let store = Store::connect("memory://").await?;
///
/// // Ten a second in bursts of 20, and a thousand a day; all or nothing, in one round trip.
/// let limiter = Limiter::token_bucket(&store, "api", Quota::per_second(10).burst(20))
///     .and("daily", Kind::FixedWindow, Quota::per_day(1000))
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
pub struct Limiter(Arc<Inner>);

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("namespace", self.0.keys.namespace())
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Limiter {
    /// A limiter of any kind.
    #[allow(
        clippy::new_ret_no_self,
        reason = "the pattern is made through its builder"
    )]
    pub fn new(store: &Store, namespace: &str, kind: Kind, quota: Quota) -> Builder {
        Builder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            layout: None,
            limits: vec![(None, kind, quota)],
            refundable: false,
            down: None,
            deny: None,
        }
    }

    /// A [token bucket](token_bucket).
    pub fn token_bucket(store: &Store, namespace: &str, quota: Quota) -> Builder {
        Self::new(store, namespace, Kind::TokenBucket, quota)
    }

    /// A [fixed window](fixed_window).
    pub fn fixed_window(store: &Store, namespace: &str, quota: Quota) -> Builder {
        Self::new(store, namespace, Kind::FixedWindow, quota)
    }

    /// A [sliding window log](sliding_window).
    pub fn sliding_window(store: &Store, namespace: &str, quota: Quota) -> Builder {
        Self::new(store, namespace, Kind::SlidingWindow, quota)
    }

    /// A [sliding window counter](sliding_counter).
    pub fn sliding_counter(store: &Store, namespace: &str, quota: Quota) -> Builder {
        Self::new(store, namespace, Kind::SlidingCounter, quota)
    }

    /// The limits by name, in order.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Quota)> {
        self.0
            .limits
            .iter()
            .map(|limit| (&*limit.name, limit.quota))
    }

    /// Takes `cost` of every limit of the subject, or of none.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a cost of zero or a bad subject; the store's error if the policy is
    /// [`Down::Fail`] or the store answered with an error.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the cost may have been taken.
    pub async fn check(&self, subject: &str, cost: u64) -> Result<Decision> {
        match self.0.limits.len() {
            1 => self.check_costs(subject, &[cost]).await,
            n => self.check_costs(subject, &vec![cost; n]).await,
        }
    }

    /// Takes from each limit of the subject its own cost, or nothing from any. One script, one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check), and [`is_config`](Error::is_config) if there are not as many costs as
    /// limits.
    ///
    /// # Cancel safety
    ///
    /// That of [`check`](Self::check).
    pub async fn check_all(&self, subject: &str, costs: &[u64]) -> Result<Decision> {
        self.check_costs(subject, costs).await
    }

    async fn check_costs(&self, subject: &str, costs: &[u64]) -> Result<Decision> {
        let inner = &*self.0;
        // A repeat of what was refused is no operation: it is over before one could begin.
        if let Some(deny) = &inner.deny
            && costs.len() == inner.limits.len()
            && self.never(costs).is_none()
            && let Some((retry_after, mut snapshot)) = deny.get(subject, costs)
        {
            observe::event("limiter.denied_locally");
            snapshot.source = Source::DenyCache;
            snapshot.retry_after = retry_after;
            return Ok(Decision::Limited {
                retry_after,
                snapshot,
            });
        }
        observe::operation("limiter.check", inner.keys.namespace(), async {
            if costs.len() != inner.limits.len() {
                return Err(Error::config(format!(
                    "this limiter has {} limits, so it takes as many costs, not {}",
                    inner.limits.len(),
                    costs.len()
                )));
            }
            if costs.contains(&0) {
                return Err(Error::config("a cost of zero takes nothing: peek instead"));
            }
            let entity = inner.keys.entity(subject)?;
            if let Some(max) = self.never(costs) {
                return Ok(Decision::Never { max });
            }
            let sent = Instant::now();
            match self.ask(&entity, costs).await {
                Ok(answers) => Ok(self.decide(subject, costs, sent, answers)),
                Err(error) if error.is_timeout() || error.is_unavailable() => {
                    self.without_store(subject, costs, error)
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// The highest possible cost, if one of these is above its limit's capacity.
    fn never(&self, costs: &[u64]) -> Option<u64> {
        let limits = self.0.limits.iter().zip(costs);
        limits
            .filter(|(limit, cost)| **cost > limit.rule.capacity())
            .map(|(limit, _)| limit.rule.capacity())
            .min()
    }

    async fn ask(&self, entity: &Entity, costs: &[u64]) -> Result<Vec<Answer>> {
        let inner = &*self.0;
        if let [limit] = &inner.limits[..] {
            let mut call = limit.rule.check().on(entity);
            call = match &limit.part {
                Some(part) => call.part(part),
                None => call.key(),
            };
            call = call.arg(&limit.rule.args(costs[0])[..]);
            if limit.rule.names_requests() {
                call = call.arg(request_id());
            }
            let value: Value = call.run(&inner.store).await?;
            return Ok(vec![Answer::read(value, &*limit.rule, costs[0])?]);
        }
        self.ask_all(entity, costs, "take").await
    }

    async fn ask_all(&self, entity: &Entity, costs: &[u64], what: &str) -> Result<Vec<Answer>> {
        let inner = &*self.0;
        let mut call = CHECK_ALL.on(entity);
        for limit in &inner.limits {
            call = match &limit.part {
                Some(part) => call.part(part),
                None => call.key(),
            };
        }
        let id = request_id();
        call = call.arg(what);
        for (limit, cost) in inner.limits.iter().zip(costs) {
            call = call
                .arg(limit.rule.name())
                .arg(&limit.rule.args(*cost)[..])
                .arg(&id);
        }
        let values: Vec<Value> = call.run(&inner.store).await?;
        let mut answers = Vec::with_capacity(values.len());
        for ((value, limit), cost) in values.into_iter().zip(&inner.limits).zip(costs) {
            answers.push(Answer::read(value, &*limit.rule, *cost)?);
        }
        if answers.len() != inner.limits.len() {
            return Err(Error::codec("the limiter's script left out a limit"));
        }
        Ok(answers)
    }

    fn decide(
        &self,
        subject: &str,
        costs: &[u64],
        sent: Instant,
        answers: Vec<Answer>,
    ) -> Decision {
        let limits = &self.0.limits;
        let snapshots: Vec<Snapshot> = limits
            .iter()
            .zip(&answers)
            .map(|(limit, answer)| limit.snapshot(answer))
            .collect();
        if answers.iter().all(|answer| answer.wait == 0) {
            return Decision::Allowed(Grant {
                limiter: self.clone(),
                subject: subject.into(),
                costs: costs.into(),
                receipts: match limits.iter().any(|limit| limit.rule.refund().is_some()) {
                    true => answers.into_iter().map(|answer| answer.receipt).collect(),
                    false => Vec::new(),
                },
                snapshots,
            });
        }
        observe::event("limiter.limited");
        let snapshot = tightest(&snapshots).clone();
        let retry_after = snapshot.retry_after;
        if let Some(deny) = &self.0.deny {
            deny.put(subject, costs, sent, retry_after, &snapshot);
        }
        Decision::Limited {
            retry_after,
            snapshot,
        }
    }

    fn without_store(&self, subject: &str, costs: &[u64], error: Error) -> Result<Decision> {
        observe::event("limiter.store_down");
        let policy = |remaining: fn(&Limit) -> u64, wait| -> Vec<Snapshot> {
            let limits = self.0.limits.iter();
            limits
                .map(|limit| limit.policy(remaining(limit), wait))
                .collect()
        };
        match self.0.down {
            Down::Fail => Err(error),
            Down::Refuse => {
                tracing::debug!(%error, "a limiter refuses while the store is down");
                Ok(Decision::Limited {
                    retry_after: DOWN_RETRY,
                    snapshot: policy(|_| 0, DOWN_RETRY).swap_remove(0),
                })
            }
            Down::Allow => {
                tracing::debug!(%error, "a limiter allows while the store is down");
                Ok(Decision::Allowed(Grant {
                    limiter: self.clone(),
                    subject: subject.into(),
                    costs: costs.into(),
                    receipts: Vec::new(),
                    snapshots: policy(|limit| limit.rule.capacity(), Duration::ZERO),
                }))
            }
        }
    }

    /// Looks at the tightest limit of the subject and takes nothing.
    ///
    /// # Errors
    ///
    /// Those of the store, whatever the policy, and [`is_config`](Error::is_config) for a bad subject.
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
        let inner = &*self.0;
        observe::operation("limiter.peek", inner.keys.namespace(), async {
            let entity = inner.keys.entity(subject)?;
            let answers = self
                .ask_all(&entity, &vec![1; inner.limits.len()], "look")
                .await?;
            let limits = inner.limits.iter().zip(&answers);
            Ok(limits
                .map(|(limit, answer)| limit.snapshot(answer))
                .collect())
        })
        .await
    }

    /// Gives back what a grant took, as far as it still weighs, and says how much that was (of the limit that
    /// got least). It never lifts a limit above its capacity.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the grant is of another limiter, or of a token bucket that is not
    /// [refundable](Builder::refundable); otherwise the store's errors. An error that is
    /// [in doubt](Error::is_in_doubt) means that it may have been credited; it is not tried twice.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the grant may or may not have been credited, never twice.
    pub async fn refund(&self, grant: Grant) -> Result<u64> {
        let inner = &*self.0;
        observe::operation("limiter.refund", inner.keys.namespace(), async {
            if !Arc::ptr_eq(&self.0, &grant.limiter.0) {
                return Err(Error::config("the grant is of another limiter"));
            }
            if !inner
                .limits
                .iter()
                .all(|limit| limit.rule.refund().is_some())
            {
                return Err(no_account());
            }
            // The policy granted it: nothing was taken.
            if grant.source() == Source::Policy {
                return Ok(0);
            }
            let entity = inner.keys.entity(&grant.subject)?;
            let mut batch = Batch::new();
            let limits = inner.limits.iter().zip(&grant.costs).zip(&grant.receipts);
            for ((limit, cost), receipt) in limits {
                let script = limit.rule.refund().ok_or_else(no_account)?;
                let mut call = script.on(&entity);
                call = match &limit.part {
                    Some(part) => call.part(part),
                    None => call.key(),
                };
                for arg in limit.rule.refund_args(*cost, receipt) {
                    call = call.arg(arg);
                }
                batch.push(call);
            }
            let answers = batch.run::<u64>(&inner.store).await?;
            if let Some(deny) = &inner.deny {
                deny.forget(&grant.subject);
            }
            let mut credited = u64::MAX;
            for (answer, limit) in answers.into_iter().zip(&inner.limits) {
                credited = credited.min(limit.rule.credited(answer?));
            }
            Ok(credited)
        })
        .await
    }

    /// Waits until the request is admitted, but not longer than `within`.
    ///
    /// Waiters of one subject in one process stand in line: only the first asks the store, and they are
    /// admitted in the order in which they came. Between processes whoever asks first is first.
    ///
    /// If the turn cannot come in time, [`Decision::Limited`] is the answer, at once where that is known.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, nothing was taken and the place in line is free; dropped while it asks, the cost
    /// may have been taken.
    pub async fn acquire(&self, subject: &str, cost: u64, within: Duration) -> Result<Decision> {
        let deadline = Instant::now().checked_add(within);
        let turn = async {
            match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, self.0.turns.wait(subject))
                    .await
                    .ok(),
                None => Some(self.0.turns.wait(subject).await),
            }
        };
        let Some(_turn) = turn.await else {
            // Those in front still wait, so what this one would have to wait is at least what they do.
            let snapshot = self.peek(subject).await?;
            return Ok(Decision::Limited {
                retry_after: snapshot.retry_after.max(Duration::from_millis(1)),
                snapshot,
            });
        };
        loop {
            let decision = self.check(subject, cost).await?;
            let Decision::Limited { retry_after, .. } = &decision else {
                return Ok(decision);
            };
            let Some(again) = Instant::now().checked_add(*retry_after) else {
                return Ok(decision);
            };
            if deadline.is_some_and(|deadline| again > deadline) {
                return Ok(decision);
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// Forgets all that the subject has taken.
    ///
    /// # Errors
    ///
    /// Those of the store, and [`is_config`](Error::is_config) for a bad subject.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the subject may or may not be forgotten.
    pub async fn reset(&self, subject: &str) -> Result<()> {
        let inner = &*self.0;
        observe::operation("limiter.reset", inner.keys.namespace(), async {
            let entity = inner.keys.entity(subject)?;
            let mut cmd = redis::cmd("DEL");
            for limit in &inner.limits {
                cmd.arg(limit.key(&entity));
            }
            inner.store.query::<()>(&cmd).await?;
            if let Some(deny) = &inner.deny {
                deny.forget(subject);
            }
            Ok(())
        })
        .await
    }
}

/// Unique to a request: the name of what it admits.
fn request_id() -> String {
    format!("{:x}", rand::random::<u128>())
}

fn no_account() -> Error {
    Error::config("this token bucket keeps no account for refunds: build it refundable()")
}
