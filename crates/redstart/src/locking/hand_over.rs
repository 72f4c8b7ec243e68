//! Giving a held lock to another process.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use super::{
    Leadership,
    fence::Fencing,
    guard::{Guard, granted_ttl},
    lock::Lock,
    owner,
};
use crate::{
    error::{Error, Result},
    observe,
};

const MARK: &str = "rsh-";
const LONGEST: usize = 320;

/// A held lock on its way to another process, made by [`Guard::hand_over`]. Whoever redeems it gets a [`Guard`] of the
/// same lock with a higher [fence token](super::FenceToken), once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::{HandOver, Mutex}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::new(&store, "shop", "order:5001")?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else holds it");
/// let fence = guard.fence();
/// let given = guard.hand_over(Duration::from_secs(10)).await?.expect("it was still held");
/// let text = given.expose();
///
/// // Another process has received the text.
/// let given: HandOver = text.parse()?;
/// let guard = mutex.redeem(&given).await?.expect("nobody redeemed it before");
/// assert!(guard.fence() > fence);
/// assert!(mutex.redeem(&given).await?.is_none());
/// # guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Promises
///
/// - The lock is never free in between, and no two guards are valid at once: the giver's lease ends before the text
///   exists.
/// - It is redeemed once. That replaces the owner on the server in one step, so all later attempts get `None`, and
///   nothing that the giver sent before can extend or release the lock.
/// - The fence token is a new one, so that a write of the giver that arrives late is refused by a resource to which the
///   new holder has written.
/// - If nobody redeems it in time, the lease ends and the lock is free.
///
/// # Limits
///
/// The text is a secret of 128 random bits: whoever has it gets the lock. A [`Ticket`](super::Ticket) is for holders that
/// never have a guard.
///
/// The [limits](super#limits) of the family hold here too: if a failover loses the redemption and not the hand-over, the text is
/// good once more, and two guards are valid until the first is told by its next renewal. The second has the higher fence
/// token.
///
/// A [`Redlock`](super::Redlock) is redeemed on more than half of its servers. Of several processes that redeem at the same
/// time, and while servers fail, it may be that none reaches as many; then the lock is free as soon as they have given up
/// what they got, or when its lease ends.
#[must_use = "a lock that is handed over to nobody is blocked until its lease ends"]
pub struct HandOver {
    token: String,
    /// Whether the giver had a fence token.
    fenced: bool,
}

impl HandOver {
    /// The text, which [`parse`](str::parse) reads. It is a secret: whoever knows it gets the lock.
    pub fn expose(&self) -> String {
        format!("{MARK}{}-{}", u8::from(self.fenced), self.token)
    }

    /// The token of the giver, for a handle whose guards have fence tokens or not.
    pub(super) fn token<F: Fencing>(&self) -> Result<&str> {
        if F::IS_FENCED && !self.fenced {
            return Err(Error::config(
                "this lock was handed over without a fence token: redeem it by an unfenced handle",
            ));
        }
        Ok(&self.token)
    }
}

impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandOver")
    }
}

impl FromStr for HandOver {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::config("this text does not hand a lock over");
        let ours = text.strip_prefix(MARK).filter(|_| text.len() <= LONGEST);
        let (fenced, token) = ours.and_then(|rest| rest.split_once('-')).ok_or_else(bad)?;
        if !["0", "1"].contains(&fenced) || !owner::is_token(token) {
            return Err(bad());
        }
        Ok(Self {
            token: token.to_owned(),
            fenced: fenced == "1",
        })
    }
}

impl<F: Fencing> Guard<F> {
    /// Gives the lock up for another process to take over, without releasing it: see [`HandOver`]. It has to be redeemed
    /// before the lease ends, which runs for at least `within` from now. `None` if the lock was lost.
    ///
    /// The lease of this guard ends when the call begins, whatever becomes of it.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a time out of the [limits](super::MIN_TTL) or above the
    /// [longest lease](super::RedlockBuilder::longest_lease) of a quorum lock, and those of the [`Store`](crate::Store). The
    /// lock is then released in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released in the background.
    pub async fn hand_over(mut self, within: Duration) -> Result<Option<HandOver>> {
        let owner = self.owner();
        let operations = owner.operations();
        observe::operation(operations.hand_over, owner.namespace(), async {
            let within = granted_ttl(&*owner, within)?;
            let given = HandOver {
                token: owner.token().to_owned(),
                fenced: F::IS_FENCED,
            };
            // Before the request: nobody may believe in this lease once another process can have the lock.
            if !self.stop() {
                return Ok(None);
            }
            let still_owned = owner.extend(within).await?;
            self.forget();
            if !still_owned {
                observe::event(operations.lost);
            }
            Ok(still_owned.then_some(given))
        })
        .await
    }
}

impl Leadership {
    /// Gives the office to another candidate, who gets a new term: see [`Guard::hand_over`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::hand_over`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the candidate resigns in the background.
    pub async fn hand_over(self, within: Duration) -> Result<Option<HandOver>> {
        self.into_guard().hand_over(within).await
    }
}

pub(super) async fn redeem<F: Fencing>(
    lock: &Arc<Lock>,
    given: &HandOver,
) -> Result<Option<Guard<F>>> {
    let (namespace, kind) = (lock.entity.namespace(), lock.kind);
    observe::operation(kind.operations.redeem, namespace, async {
        let giver = given.token::<F>()?;
        let mut acquisition = lock.acquisition();
        let asked = lock.store.clock().now();
        acquisition.recorded = true;
        let Some(fence) = acquisition.owner().redeem(giver).await? else {
            acquisition.recorded = false;
            return Ok(None);
        };
        acquisition.into_guard(fence, asked, lock.terms).map(Some)
    })
    .await
}

/// The method of a lock by which a [`HandOver`] becomes a guard.
macro_rules! redeemed_by {
    ($redeem:ident, $lock:ident, $fence:ty) => {
        /// Takes over a lock that another process [handed over](crate::locking::HandOver). `None` if it was redeemed
        /// before, or its lease has ended.
        ///
        /// # Errors
        ///
        /// [`is_config`](crate::Error::is_config) if the lock was handed over without a fence token and this handle needs
        /// one, and those of the [`Store`](crate::Store). If the lock was granted anyway, it is released.
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, a lock that was granted is released in the background.
        pub async fn $redeem(
            &self,
            given: &$crate::locking::HandOver,
        ) -> $crate::Result<Option<$crate::locking::Guard<$fence>>> {
            $crate::locking::hand_over::redeem(&self.$lock, given).await
        }
    };
}
pub(super) use redeemed_by;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back_and_any_other_is_refused() {
        for (label, fenced) in [
            (None, false),
            (Some("worker-7"), true),
            (Some("a-b:c"), true),
        ] {
            let token = owner::owner_token(label);
            let given = HandOver {
                token: token.clone(),
                fenced,
            };
            let read: HandOver = given.expose().parse().expect("it is ours");
            assert_eq!((read.token, read.fenced), (token, fenced));
            assert!(!format!("{given:?}").contains("rs-"), "a text is a secret");
        }
        let token = owner::owner_token(None);
        for bad in [
            String::new(),
            "rsh-".to_owned(),
            token.clone(),
            format!("rsh-x-{token}"),
            format!("rsh-2-{token}"),
            format!("rsh-1-{token}+"),
            format!("rsh-1-{token}\n"),
            "rsh-1-theirs".to_owned(),
            format!("rsh-1-{token}{}", "x".repeat(400)),
        ] {
            assert!(bad.parse::<HandOver>().is_err(), "{bad:?}");
        }
    }
}
