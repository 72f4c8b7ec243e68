//! Idempotency keys: a request that comes twice is carried out once, and answered twice.
//!
//! A client that got no answer does not know whether its request was carried out. It repeats it under the same key;
//! the first one claims the key and leaves its result there, and the repeat gets that result.
//!
//! # What it promises
//!
//! - Of all requests with one key, one at a time is worked on. A repeat meanwhile is told so, and until when.
//! - The result of a finished request is given to every repeat until its TTL ends.
//! - A key that comes with another request (another fingerprint) is a mistake and is told apart.
//! - The claim of a process that died is free when its lease ends. A living one renews its own.
//!
//! It does not make the work itself atomic: a process that dies after the effect and before
//! [`finish`](Claim::finish) leaves a request that will be carried out again.
//!
//! # Keys and cost
//!
//! `<namespace>:idempotency:{<key>}`, a hash. One round trip to begin and one to finish. While the store is down
//! `begin` fails: the caller decides whether to refuse or to go unprotected.
//!
//! Operations: `idempotency.begin`, `idempotency.finish`. Events: `idempotency.replayed`,
//! `idempotency.busy`, `idempotency.mismatch`.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::task::AbortHandle;

use crate::{
    error::{Error, Result},
    key::{Entity, Keys, Layout},
    observe,
    script::Script,
    store::Store,
};

static BEGIN: Script = Script::new("idempotency.begin", include_str!("idempotency/begin.lua"));
static FINISH: Script = Script::new("idempotency.finish", include_str!("idempotency/finish.lua"));
static ABANDON: Script = Script::new(
    "idempotency.abandon",
    include_str!("idempotency/abandon.lua"),
);
static RENEW: Script = Script::new("idempotency.renew", include_str!("idempotency/renew.lua"));

/// The longest TTL.
const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

/// Settings of [`Idempotency`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Store,
    namespace: String,
    ttl: Duration,
    lease: Duration,
    layout: Option<Layout>,
}

impl Builder {
    /// How long results are kept. A day, unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a claim outlives the process that made it. 30 seconds, unless set. A living process renews
    /// its claim.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Uses keys that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Checks the settings. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a TTL or a lease below 10 ms or above a year, or a bad namespace.
    pub fn build(self) -> Result<Idempotency> {
        for (what, time) in [("ttl", self.ttl), ("lease", self.lease)] {
            if time < Duration::from_millis(10) || time > MAX_TTL {
                return Err(Error::config(format!("the {what} is from 10 ms to a year")));
            }
        }
        let mut keys = Keys::new(&self.namespace, "idempotency")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        Ok(Idempotency(Arc::new(Inner {
            store: self.store,
            keys,
            ttl: self.ttl,
            lease: self.lease,
        })))
    }
}

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: Keys,
    ttl: Duration,
    lease: Duration,
}

/// Carries a request out once, however often it comes. Cheap to clone. See the [module](self).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, resilience::idempotency::{Begin, Idempotency}};
/// let store = Store::connect("memory://").await?;
/// let payments = Idempotency::new(&store, "payments").build()?;
///
/// let Begin::Started(claim) = payments.begin("key-1", b"pay 5").await? else { panic!() };
/// assert!(matches!(payments.begin("key-1", b"pay 5").await?, Begin::Busy { .. }));
/// claim.finish(b"paid").await?;
///
/// let Begin::Replay(result) = payments.begin("key-1", b"pay 5").await? else { panic!() };
/// assert_eq!(result, b"paid");
/// assert!(matches!(payments.begin("key-1", b"pay 500").await?, Begin::Mismatch));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Idempotency(Arc<Inner>);

/// What became of a request.
#[derive(Debug)]
#[must_use = "only a started request may be carried out"]
pub enum Begin {
    /// It is this caller's to carry out.
    Started(Claim),
    /// It was carried out; this is what it left.
    Replay(Vec<u8>),
    /// Someone is at it.
    Busy {
        /// When its claim ends, unless it is renewed or finished.
        retry_after: Duration,
    },
    /// The key was used for another request.
    Mismatch,
}

impl Idempotency {
    /// Idempotency keys in a namespace.
    #[allow(
        clippy::new_ret_no_self,
        reason = "the pattern is made through its builder"
    )]
    pub fn new(store: &Store, namespace: &str) -> Builder {
        Builder {
            store: store.clone(),
            namespace: namespace.to_owned(),
            ttl: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(30),
            layout: None,
        }
    }

    /// Claims the request `key`, or says what became of it. `fingerprint` is anything that tells one request
    /// from another; a digest of it is stored.
    ///
    /// # Errors
    ///
    /// The store's errors, and [`is_config`](Error::is_config) for an empty or overlong key.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the key may be claimed until the lease ends.
    pub async fn begin(&self, key: &str, fingerprint: &[u8]) -> Result<Begin> {
        let inner = &*self.0;
        observe::operation("idempotency.begin", inner.keys.namespace(), async {
            use sha2::Digest as _;
            let entity = inner.keys.entity(key)?;
            let token = format!("{:032x}", rand::random::<u128>());
            let digest = sha2::Sha256::digest(fingerprint);
            let answer: Vec<Value> = BEGIN
                .on(&entity)
                .key()
                .arg(&digest[..])
                .arg(&token)
                .arg(millis(inner.lease))
                .idempotent()
                .run(&inner.store)
                .await?;
            let mut answer = answer.into_iter();
            let what: String = redis::from_redis_value(answer.next().unwrap_or(Value::Nil))?;
            let mut rest = || answer.next().unwrap_or(Value::Nil);
            match what.as_str() {
                "started" => Ok(Begin::Started(Claim::new(inner, entity, token))),
                "replay" => {
                    observe::event("idempotency.replayed");
                    Ok(Begin::Replay(redis::from_redis_value(rest())?))
                }
                "busy" => {
                    observe::event("idempotency.busy");
                    let left: i64 = redis::from_redis_value(rest())?;
                    Ok(Begin::Busy {
                        retry_after: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
                    })
                }
                _ => {
                    observe::event("idempotency.mismatch");
                    Ok(Begin::Mismatch)
                }
            }
        })
        .await
    }
}

/// A claimed request. Finish it; dropped, it is given up, so that a repeat may try at once.
#[derive(Debug)]
#[must_use = "a claim that is dropped is given up"]
pub struct Claim {
    store: Store,
    entity: Entity,
    token: String,
    ttl: Duration,
    renewal: Option<AbortHandle>,
    open: bool,
}

impl Claim {
    fn new(inner: &Inner, entity: Entity, token: String) -> Self {
        let renewal = inner.store.runtime().map(|runtime| {
            let (store, entity, token) = (inner.store.clone(), entity.clone(), token.clone());
            let lease = inner.lease;
            let renew = async move {
                loop {
                    tokio::time::sleep(lease / 3).await;
                    let call = RENEW.on(&entity).key().arg(&token).arg(millis(lease));
                    // A failed renewal is tried again; a lost claim is noticed by `finish`.
                    if let Ok(0) = call.idempotent().run::<u32>(&store).await {
                        return;
                    }
                }
            };
            runtime.spawn(renew).abort_handle()
        });
        Self {
            store: inner.store.clone(),
            entity,
            token,
            ttl: inner.ttl,
            renewal,
            open: true,
        }
    }

    /// Leaves the result for all repeats. `false` if the claim was lost meanwhile to another, whose result
    /// counts.
    ///
    /// # Errors
    ///
    /// The store's errors. The claim then ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the result may or may not have been kept.
    pub async fn finish(mut self, result: &[u8]) -> Result<bool> {
        self.open = false;
        let namespace = self.entity.namespace().clone();
        let finish = FINISH
            .on(&self.entity)
            .key()
            .arg(&self.token)
            .arg(result)
            .arg(millis(self.ttl))
            .idempotent();
        let kept = observe::operation(
            "idempotency.finish",
            &namespace,
            finish.run::<u32>(&self.store),
        );
        Ok(kept.await? == 1)
    }

    /// Gives the claim up, so that a repeat may try at once.
    ///
    /// # Errors
    ///
    /// The store's errors. The claim then ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the claim may last until its lease ends.
    pub async fn abandon(mut self) -> Result<()> {
        self.open = false;
        let abandon = ABANDON.on(&self.entity).key().arg(&self.token);
        abandon.idempotent().run::<u32>(&self.store).await?;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
        if self.open {
            let (store, entity) = (self.store.clone(), self.entity.clone());
            let token = std::mem::take(&mut self.token);
            self.store.defer(async move {
                let abandon = ABANDON.on(&entity).key().arg(&token).idempotent();
                if let Err(error) = abandon.run::<u32>(&store).await {
                    tracing::debug!(%error, "a dropped claim lasts until its lease ends");
                }
            });
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
