//! One run: the claim, the work in a task of its own, and the record of how it ended.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt as _;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Idempotency,
    claim::{Begun, Claim, Ending, Taken},
};
use crate::{
    Down,
    codec::{Envelope, Opened, Postcard},
    error::{Error, Result},
    observe,
};

/// What [`Down::Refuse`] tells a caller to wait.
const DOWN_RETRY: Duration = Duration::from_secs(1);
/// How long the record of an ending is attempted in the background.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How long a claim that may have been made is called off in the background.
const CALL_OFF: Duration = Duration::from_secs(300);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What became of a request. See [`Idempotency::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "unless it says Done, this call did not carry the work out"]
pub enum Run<T, E> {
    /// This call carried the work out.
    Done(T),
    /// An earlier call carried the work out; this is its result.
    Replayed(T),
    /// This call's work failed and did nothing. The key is free.
    NotDone(E),
    /// Another call is carrying the work out.
    Busy {
        /// When its lease ends, unless it is renewed or the work ends.
        retry_after: Duration,
    },
    /// The work started, in this call or an earlier one, and nobody knows whether it was carried out. Its own error is
    /// here if this call ran it and it did not panic. The key stays claimed until its TTL ends or it is
    /// [forgotten](Idempotency::forget).
    Unknown(Option<E>),
    /// The key was used for a request with another fingerprint.
    Mismatch,
}

/// Why work has no result.
///
/// The `?` operator turns any error into [`Unknown`](Self::Unknown), the safe choice: name
/// [`NotDone`](Self::NotDone) where it is certain that nothing happened.
///
/// ```
/// use redstart::resilience::WorkError;
///
/// fn charge(card: &str) -> Result<u32, WorkError<String>> {
///     if card.is_empty() {
///         return Err(WorkError::NotDone("no card".to_owned()));
///     }
///     let receipt = send(card)?; // The answer may have been lost on its way: Unknown.
///     Ok(receipt)
/// }
/// # fn send(_: &str) -> Result<u32, String> { Ok(1) }
/// # assert_eq!(charge("1234"), Ok(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkError<E> {
    /// Nothing happened. The key is freed, so that a repeat carries the work out.
    NotDone(E),
    /// Nobody knows whether it happened. The key stays claimed.
    Unknown(E),
}

impl<E> From<E> for WorkError<E> {
    fn from(error: E) -> Self {
        Self::Unknown(error)
    }
}

impl Idempotency {
    /// Carries `work` out, unless a run with the same `key` has done so or is in progress. `fingerprint` is whatever
    /// tells one request from another, such as the request's body; a digest of it is stored.
    ///
    /// The work runs in a task of its own on the current runtime. It starts only after the key is claimed.
    ///
    /// # Errors
    ///
    /// The store's errors by [`on_store_down`](super::IdempotencyBuilder::on_store_down);
    /// [`is_config`](Error::is_config) for an empty or overlong key, or outside a tokio runtime;
    /// [`is_codec`](Error::is_codec) if the recorded result has a different type. After an error the work has not started,
    /// unless it is [in doubt](Error::is_in_doubt).
    ///
    /// # Cancel safety
    ///
    /// Dropped before the key is claimed, the work does not start and the key is free. Dropped later, the work continues,
    /// its result is recorded, and repeats get it. [`Store::settle`](crate::Store::settle) waits for it.
    pub async fn run<T, E, W>(&self, key: &str, fingerprint: &[u8], work: W) -> Result<Run<T, E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        W: Future<Output = Result<T, WorkError<E>>> + Send + 'static,
    {
        let inner = &self.0;
        let namespace = inner.keys.namespace();
        let claim = Claim::new(inner, key, fingerprint)
            .map_err(|error| error.during("idempotency.begin", namespace))?;
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::config("idempotent work needs a tokio runtime")
                .during("idempotency.begin", namespace));
        };
        let (answer, answered) = oneshot::channel();
        let task = crate::task::spawn_on(&runtime, claim.carry_out(work, answer));
        inner.store.defer(async move {
            // A task that was dropped with its runtime has nothing left to wait for.
            let _ = task.await;
        });
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(
                Error::unavailable("the runtime shut down while the work was running")
                    .doubt(true)
                    .during("idempotency.begin", namespace),
            ),
        }
    }
}

type Answer<T, E> = oneshot::Sender<Result<Run<T, E>>>;

impl Claim {
    async fn carry_out<T, E, W>(self, work: W, answer: Answer<T, E>)
    where
        T: Serialize + DeserializeOwned,
        W: Future<Output = Result<T, WorkError<E>>>,
    {
        match self.begin().await {
            // The caller left before anything happened.
            Ok(Begun::Started) if answer.is_closed() => {
                drop(work);
                return self.record(&Ending::NotDone, CALL_OFF, || ()).await;
            }
            Ok(Begun::Started) => {}
            Ok(Begun::Taken(taken)) => return tell(answer, repeat(taken)),
            Err(error) => {
                let down = match error.is_store_down() {
                    true => {
                        observe::event("idempotency.store_down");
                        self.inner.down
                    }
                    false => Down::Fail,
                };
                if down != Down::Allow || answer.is_closed() {
                    // What it holds, such as a request's body, must not wait for the store.
                    drop(work);
                    let unsent = error.is_unsent();
                    let refusal = Run::Busy {
                        retry_after: DOWN_RETRY,
                    };
                    tell(
                        answer,
                        match down {
                            Down::Refuse => Ok(refusal),
                            // The work did not start, whatever became of the claim.
                            _ => Err(error.doubt(false)),
                        },
                    );
                    // Otherwise the claim may have been made, or may still be on its way.
                    if !unsent {
                        self.record(&Ending::NotDone, CALL_OFF, || ()).await;
                    }
                    return;
                }
                tracing::debug!(%error, "work is carried out without its idempotency key");
            }
        }
        let work = AssertUnwindSafe(work).catch_unwind();
        let ended = tokio::select! {
            biased;
            ended = work => ended,
            () = self.keep_renewing() => unreachable!("renewing has no end"),
        };
        let (ending, run) = match ended {
            Ok(Ok(value)) => match Envelope::seal::<Postcard, T>(schema::<T>(), &value) {
                Ok(bytes) => (Ending::Result(bytes), Run::Done(value)),
                Err(error) => {
                    tracing::warn!(%error, "the result of idempotent work cannot be recorded");
                    (Ending::Unknown, Run::Done(value))
                }
            },
            Ok(Err(WorkError::NotDone(error))) => (Ending::NotDone, Run::NotDone(error)),
            Ok(Err(WorkError::Unknown(error))) => (Ending::Unknown, Run::Unknown(Some(error))),
            // The panic's own hook has reported it.
            Err(_) => (Ending::Unknown, Run::Unknown(None)),
        };
        let ending = match answer.is_closed() && crate::mend::is_missing("a drop frees no claim") {
            true => Ending::NotDone,
            false => ending,
        };
        self.record(&ending, PATIENCE, || tell(answer, Ok(run)))
            .await;
    }

    /// Records how the run ended. `told` is called after the first attempt: the caller does not wait for a store that
    /// is down. Further attempts are made in the background, for as long as `patience`.
    async fn record(&self, ending: &Ending, patience: Duration, told: impl FnOnce()) {
        let mut attempt = self.end(ending).await;
        told();
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        while let Err(error) = attempt {
            if pause == FIRST_PAUSE {
                observe::event("idempotency.late");
                tracing::warn!(%error, "the end of a run was not recorded yet; it is attempted again");
            }
            if started.elapsed() > patience.min(self.inner.ttl.saturating_add(self.inner.lease)) {
                tracing::error!(%error, "the end of a run could not be recorded");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            attempt = self.end(ending).await;
        }
    }
}

fn tell<T, E>(answer: Answer<T, E>, run: Result<Run<T, E>>) {
    // A caller that has gone away needs no answer.
    let _ = answer.send(run);
}

/// The answer to a run whose request is not its own to carry out.
fn repeat<T: DeserializeOwned, E>(taken: Taken) -> Result<Run<T, E>> {
    Ok(match taken {
        Taken::Replay(bytes) => match Envelope::open::<Postcard, T>(schema::<T>(), &bytes)? {
            Opened::Value(value) => Run::Replayed(value),
            Opened::Foreign => {
                return Err(Error::codec("the recorded result has a different type"));
            }
        },
        Taken::Mismatch => Run::Mismatch,
        Taken::Unknown => Run::Unknown(None),
        Taken::Busy(retry_after) => Run::Busy { retry_after },
    })
}

/// Tells the results of one type from those of another.
fn schema<T>() -> u32 {
    (xxhash_rust::xxh3::xxh3_64(std::any::type_name::<T>().as_bytes()) >> 32) as u32
}
