//! One run's hold on a key: what it writes to the store.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{BEGIN, DOUBT, FINISH, Inner, RELEASE, RENEW};
use crate::{
    duration::{micros, millis},
    error::{Error, Result},
    key::Entity,
    observe,
    token::token,
};

/// How often a run claims its request because the reply came after the claim's end.
const CLAIMS: usize = 8;

/// How long, at least, a claim that was called off is refused if it arrives after that: longer than a request may stay in
/// the buffers of a network that was interrupted or of a server that hung.
pub(super) const LATE_CLAIM: Duration = Duration::from_secs(60);

/// What the store says to a run that wants to begin.
pub(super) enum Begun {
    Started,
    Taken(Taken),
}

/// Why a request is not this run's to carry out.
pub(super) enum Taken {
    Replay(Vec<u8>),
    Busy(Duration),
    Unknown,
    Mismatch,
}

/// How a run ended, as it is recorded.
pub(super) enum Ending {
    Result(Vec<u8>),
    NotDone,
    Unknown,
}

/// One run of one request. Its token tells it from every other run.
pub(super) struct Claim {
    pub(super) inner: Arc<Inner>,
    entity: Entity,
    token: String,
    fingerprint: [u8; 32],
}

impl Claim {
    pub(super) fn new(inner: &Arc<Inner>, key: &str, fingerprint: &[u8]) -> Result<Self> {
        use sha2::Digest as _;
        Ok(Self {
            inner: inner.clone(),
            entity: inner.keys.entity(key)?,
            token: token(),
            fingerprint: sha2::Sha256::digest(fingerprint).into(),
        })
    }

    /// A claim that is not finished is kept for a TTL after its lease has ended.
    fn keep(&self) -> u64 {
        millis(self.inner.ttl.saturating_add(self.inner.lease))
    }

    /// Claims the request. A process may stand still before it reads the reply, for longer than the lease: others were told
    /// by then that the outcome is unknown, and one of them may have the request now. So it is claimed again before the work
    /// begins.
    pub(super) async fn begin(&self) -> Result<Begun> {
        let clock = self.inner.store.clock();
        // This clock may be slower than the server's.
        let lasts = self.inner.lease - self.inner.lease / 100;
        for claim in 0..CLAIMS {
            // The lease begins later than this, so it ends later too.
            let asked = clock.now();
            let begun = self.claim().await;
            // If this claim was not sent, an earlier one was.
            let begun = begun.map_err(|error| match claim {
                0 => error,
                _ => error.unsent(false),
            })?;
            let ended = clock.now().saturating_duration_since(asked) >= lasts
                && !crate::mend::is_missing("late work is claimed again");
            if !(ended && matches!(begun, Begun::Started)) {
                return Ok(begun);
            }
        }
        Err(
            Error::timeout("the store takes longer to answer than the lease of a request lasts")
                .during("idempotency.begin", self.entity.namespace()),
        )
    }

    async fn claim(&self) -> Result<Begun> {
        let call = BEGIN
            .on(&self.entity)
            .key()
            .arg(&self.fingerprint[..])
            .arg(&self.token)
            .arg(micros(self.inner.lease))
            .arg(self.keep())
            .arg(u32::from(self.inner.repeat_unknown))
            .idempotent();
        observe::operation("idempotency.begin", self.entity.namespace(), async {
            let answer: Vec<Value> = call.run(&self.inner.store).await?;
            let mut answer = answer.into_iter();
            let mut next = || answer.next().unwrap_or(Value::Nil);
            let what: String = redis::from_redis_value(next())?;
            Ok(Begun::Taken(match what.as_str() {
                "started" => return Ok(Begun::Started),
                "replay" => {
                    observe::event("idempotency.replayed");
                    Taken::Replay(redis::from_redis_value(next())?)
                }
                "mismatch" => {
                    observe::event("idempotency.mismatch");
                    Taken::Mismatch
                }
                "unknown" => {
                    observe::event("idempotency.unknown");
                    Taken::Unknown
                }
                // `void` cannot come before this run was called off, and then nobody listens.
                _ => {
                    observe::event("idempotency.busy");
                    let left: i64 = redis::from_redis_value(next()).unwrap_or(0);
                    Taken::Busy(Duration::from_micros(u64::try_from(left).unwrap_or(0)))
                }
            }))
        })
        .await
    }

    /// Renews the lease for as long as it is polled.
    pub(super) async fn keep_renewing(&self) {
        loop {
            self.inner.store.clock().sleep(self.inner.lease / 3).await;
            let call = RENEW.on(&self.entity).key().arg(&self.token);
            let call = call.arg(micros(self.inner.lease)).arg(self.keep());
            // A failed renewal is tried again; a claim that is lost is noticed at the end.
            if let Err(error) = call.idempotent().run::<u32>(&self.inner.store).await {
                tracing::debug!(%error, "the lease of an idempotency key was not renewed");
            }
        }
    }

    pub(super) async fn end(&self, ending: &Ending) -> Result<()> {
        let (name, call) = match ending {
            Ending::Result(bytes) => {
                let call = FINISH.on(&self.entity).key().arg(&self.token);
                let call = call.arg(&self.fingerprint[..]).arg(bytes);
                ("idempotency.finish", call.arg(millis(self.inner.ttl)))
            }
            Ending::NotDone => {
                let call = RELEASE.on(&self.entity).key().arg(&self.token);
                let refused_for = self.inner.lease.max(LATE_CLAIM);
                ("idempotency.release", call.arg(millis(refused_for)))
            }
            Ending::Unknown => {
                let call = DOUBT.on(&self.entity).key().arg(&self.token);
                ("idempotency.doubt", call.arg(self.keep()))
            }
        };
        let call = call.idempotent().run::<u32>(&self.inner.store);
        let has = observe::operation(name, self.entity.namespace(), call).await?;
        if has == 0 && matches!(ending, Ending::Result(_)) {
            observe::event("idempotency.lost");
            tracing::warn!("a result was not recorded: another run has its idempotency key");
        }
        Ok(())
    }
}
