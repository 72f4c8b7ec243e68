//! Giving back what a grant took.

use std::sync::Arc;

use super::{
    decision::{DecidedBy, Grant},
    deny::MakesRoom,
    limiter::Limiter,
};
use crate::{
    error::{Error, Result},
    observe,
    script::Batch,
};

impl Limiter {
    /// Gives back what a grant took, as far as it still counts, and says how much that was (of the limit that got least).
    /// It never lifts a limit above its capacity. Drop grants from before a [reset](Self::reset) instead: see the
    /// [limits](super#limits).
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if the grant belongs to another limiter, or of a token bucket that is not
    /// [refundable](super::LimiterBuilder::refundable); otherwise the store's errors. An error that is
    /// [in doubt](Error::is_in_doubt) means that it may have been credited; it is not tried twice.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the grant may or may not have been credited, never twice.
    pub async fn refund(&self, grant: Grant) -> Result<u64> {
        let inner = &*self.inner;
        observe::operation("limiter.refund", inner.keys.namespace(), async {
            if !Arc::ptr_eq(&self.inner, &grant.limiter.inner) {
                return Err(Error::config("the grant belongs to another limiter"));
            }
            let limits = &grant.limiter.limits.list;
            if limits
                .iter()
                .any(|limit| limit.rule.refund_script().is_none())
            {
                return Err(no_account());
            }
            // The policy granted it, or shadow mode: nothing was taken. What was taken as part of a block is not given back.
            if grant.decided_by() != DecidedBy::Store {
                return Ok(0);
            }
            let entity = inner.keys.entity(&grant.subject)?;
            let mut batch = Batch::new();
            let taken = limits.iter().zip(&grant.costs).zip(&grant.receipts);
            for ((limit, cost), receipt) in taken {
                let script = limit.rule.refund_script().ok_or_else(no_account)?;
                let call = script.on(&entity).part(&limit.part);
                batch.push(call.arg(limit.rule.refund_args(*cost, receipt)));
            }
            let _room = MakesRoom {
                deny: inner.deny.as_ref(),
                subject: &grant.subject,
            };
            let answers = batch.run::<u64>(&inner.store).await?;
            let mut credited = u64::MAX;
            for (answer, limit) in answers.into_iter().zip(limits) {
                credited = credited.min(limit.rule.credited(answer?));
            }
            Ok(credited)
        })
        .await
    }
}

pub(super) fn no_account() -> Error {
    Error::config("this token bucket keeps no account for refunds; build it with refundable()")
}
