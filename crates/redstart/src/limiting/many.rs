//! Many checks in one call: independent ones, and ones that are taken together or not at all.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::Value;

use super::{
    decision::{Decision, Grant, Snapshot},
    deny::Asked,
    limiter::{Limiter, check_input, question, read},
    refund::no_account,
};
use crate::{
    error::{Error, Result},
    key::Entity,
    observe,
    script::Batch,
};

/// The answer to [`Limiter::check_together`].
#[derive(Debug)]
#[must_use = "a limiter whose decision is ignored limits nothing"]
pub enum Together {
    /// Go ahead. One grant for each request, in order.
    Allowed(Vec<Grant>),
    /// Not now: nothing was taken from any limiter.
    Limited {
        /// Which request has to wait longest.
        at: usize,
        /// How long it has to wait. Others may have to wait too, so this may not be enough.
        retry_after: Duration,
        /// Its tightest limit.
        snapshot: Snapshot,
    },
    /// Never: the cost of a request is above its limiter's capacity.
    Never {
        /// Which request.
        at: usize,
        /// The highest cost that can be admitted.
        max: u64,
    },
}

impl Together {
    /// Whether all requests may go ahead.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

impl Limiter {
    /// Checks many subjects with their costs, each on its own, in one round trip per node. The answers are in order. For
    /// subjects with another quota there is [`with_quota`](Self::with_quota).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, limiting::{Limiter, Quota}};
    /// let store = Store::connect("memory://").await?;
    /// let mails = Limiter::fixed_window(&store, "shop", "mail", Quota::per_day(2)).build()?;
    ///
    /// let decisions = mails.check_many(&[("ann", 1), ("bob", 3)]).await;
    /// assert!(decisions[0].as_ref().is_ok_and(|decision| decision.is_allowed()));
    /// assert!(decisions[1].as_ref().is_ok_and(|decision| !decision.is_allowed()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Each answer has its own error, as [`check`](Self::check) would return it.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the costs may have been taken.
    pub async fn check_many(&self, requests: &[(&str, u64)]) -> Vec<Result<Decision>> {
        let inner = &*self.inner;
        let work = async { Ok(self.ask_many(requests).await) };
        // As a whole it cannot fail.
        observe::operation("limiter.check_many", inner.keys.namespace(), work)
            .await
            .unwrap_or_default()
    }

    async fn ask_many(&self, requests: &[(&str, u64)]) -> Vec<Result<Decision>> {
        let (inner, limits) = (&*self.inner, &*self.limits);
        let namespace = inner.keys.namespace();
        let named = |error: Error| error.during("limiter.check_many", namespace);
        let mut answers: Vec<Option<Result<Decision>>> = Vec::with_capacity(requests.len());
        let mut asked: Vec<(usize, Entity, Vec<u64>, Asked)> = Vec::new();
        for (at, (subject, cost)) in requests.iter().enumerate() {
            let costs = vec![*cost; limits.list.len()];
            answers.push(match self.without_asking(subject, &costs) {
                Ok(None) => match inner.keys.entity(subject) {
                    Ok(entity) => {
                        asked.push((at, entity, costs, self.asks(subject)));
                        None
                    }
                    Err(error) => Some(Err(named(error))),
                },
                Ok(Some(decision)) => Some(Ok(decision)),
                Err(error) => Some(Err(named(error))),
            });
        }
        let mut batch = Batch::new();
        for (_, entity, costs, _) in &asked {
            batch.push(question(limits, entity, costs));
        }
        let values: Vec<Result<Value>> = match batch.run(&inner.store).await {
            Ok(values) => values,
            Err(error) => {
                let error = Arc::new(error);
                asked.iter().map(|_| Err(Error::shared(&error))).collect()
            }
        };
        for ((at, _, costs, asked), value) in asked.iter().zip(values) {
            let said = value.and_then(|value| read(limits, costs, value));
            let decision = self.decide(requests[*at].0, costs, *asked, said);
            answers[*at] = Some(decision.map_err(named));
        }
        answers.into_iter().flatten().collect()
    }

    /// The answer to a request that needs no round trip.
    fn without_asking(&self, subject: &str, costs: &[u64]) -> Result<Option<Decision>> {
        let limits = &*self.limits;
        check_input(limits, costs)?;
        if let Some(max) = limits.never(costs) {
            let never = Decision::Never { max };
            return Ok(Some(self.refused(subject, costs, never)));
        }
        Ok(self.denied(subject, costs))
    }

    /// Takes from several limiters, each with a subject and a cost of its own, or from none of them: a user, an address
    /// and a tenant.
    ///
    /// The limiters may live on different nodes and stores. They are asked at once; if one refuses, what the others took
    /// is refunded, so token buckets must be [refundable](super::LimiterBuilder::refundable). No limit is ever exceeded.
    /// Until the refund, a refused request counts in the limits that would have admitted it. A limiter that
    /// [leases blocks](super::LimiterBuilder::lease_blocks) is asked at the store, past the blocks that this process has.
    /// What a [local limit](crate::Down::Local) granted while its store is down is not given back to it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, limiting::{Limiter, Quota}};
    /// let store = Store::connect("memory://").await?;
    /// let users = Limiter::fixed_window(&store, "shop", "user", Quota::per_minute(10)).build()?;
    /// let tenants = Limiter::fixed_window(&store, "shop", "tenant", Quota::per_minute(1)).build()?;
    ///
    /// let costs = [(&users, "ann", 1), (&tenants, "acme", 1)];
    /// assert!(Limiter::check_together(&costs).await?.is_allowed());
    /// assert!(!Limiter::check_together(&costs).await?.is_allowed());
    /// // The tenant's limit refused, and the user was not charged.
    /// assert_eq!(users.peek("ann").await?.remaining, 9);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check) of any of them; what the others took is refunded.
    /// [`is_config`](Error::is_config) if a limiter cannot be refunded.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the costs may have been taken.
    pub async fn check_together(requests: &[(&Limiter, &str, u64)]) -> Result<Together> {
        for (at, (limiter, _, cost)) in requests.iter().enumerate() {
            let (inner, limits) = (&limiter.inner, &limiter.limits);
            if limits.list.iter().any(|l| l.rule.refund_script().is_none()) {
                return Err(no_account().during("limiter.check", inner.keys.namespace()));
            }
            if let Some(max) = limits.never(&vec![*cost; limits.list.len()]) {
                return Ok(Together::Never { at, max });
            }
        }
        // Past the blocks of this process: what is taken out of one cannot be given back.
        let costs: Vec<Vec<u64>> = requests
            .iter()
            .map(|(limiter, _, cost)| vec![*cost; limiter.limits.list.len()])
            .collect();
        let checks = requests
            .iter()
            .zip(&costs)
            .map(|((limiter, subject, _), costs)| limiter.check_costs(subject, costs));
        let (mut grants, mut refusal, mut failure) = (Vec::new(), None, None);
        for (at, decision) in join_all(checks).await.into_iter().enumerate() {
            match decision {
                Ok(Decision::Allowed(grant)) => grants.push(grant),
                Ok(Decision::Never { max }) => refusal = Some(Together::Never { at, max }),
                Ok(Decision::Limited {
                    retry_after,
                    snapshot,
                }) => match &refusal {
                    Some(Together::Limited {
                        retry_after: longest,
                        ..
                    }) if *longest >= retry_after => {}
                    Some(Together::Never { .. }) => {}
                    _ => {
                        refusal = Some(Together::Limited {
                            at,
                            retry_after,
                            snapshot,
                        });
                    }
                },
                Err(error) => failure = Some(error),
            }
        }
        if refusal.is_none() && failure.is_none() {
            return Ok(Together::Allowed(grants));
        }
        let refunds = grants.into_iter().map(|grant| async {
            let limiter = grant.limiter.clone();
            if let Err(error) = limiter.refund(grant).await {
                // Charged for nothing, until time gives it back; never admitted for nothing.
                observe::event("limiter.refund_failed");
                tracing::warn!(%error, "a limiter that was charged for a refused request keeps the charge");
            }
        });
        join_all(refunds).await;
        match (failure, refusal) {
            (Some(error), _) => Err(error),
            (None, Some(refusal)) => Ok(refusal),
            (None, None) => Ok(Together::Allowed(Vec::new())),
        }
    }
}
