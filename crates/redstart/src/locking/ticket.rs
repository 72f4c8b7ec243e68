//! A held lock as text, for holders that cannot keep a guard.

use std::{fmt, str::FromStr, sync::Arc};

use super::{fence::Fencing, guard::Guard, lock::Lock, owner::Owner};
use crate::{
    error::{Error, Result},
    locking::{
        FenceToken, Released,
        lease::checked_ttl,
        owner::{Ownership as _, is_token},
    },
    observe,
};

/// A held lock as text, for a holder that cannot keep a [`Guard`]: a client of an HTTP service, or a process in another
/// language. Whoever has the ticket can extend and release the lock, in any process.
///
/// Nothing renews a ticket's lease by itself, and dropping a ticket releases nothing: the lease runs out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// use redstart::{Store, locking::{Mutex, Released, Ticket}};
/// let store = Store::connect("memory://").await?;
/// let mutex = Mutex::builder(&store, "shop", "order:5001").without_renewal().build()?;
///
/// let guard = mutex.try_lock().await?.expect("nobody else holds it");
/// let text = guard.into_ticket()?.expose().to_owned();
///
/// let ticket: Ticket = text.parse()?;
/// assert!(mutex.extend_held(&ticket, Duration::from_secs(60)).await?);
/// assert_eq!(mutex.release_held(&ticket).await?, Released::Released);
/// assert_eq!(mutex.release_held(&ticket).await?, Released::AlreadyLost);
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a ticket that is not kept leaves the lock to its lease"]
pub struct Ticket(String);

impl Ticket {
    /// The text. It is a secret: whoever knows it can release the lock.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub(super) fn owner(&self, lock: &Arc<Lock>) -> Owner {
        Owner::new(lock, self.0.clone())
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if !is_token(text) {
            return Err(Error::config("this text is not the ticket of a lock"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl<F: Fencing> Guard<F> {
    /// Gives up the guard, and keeps the lock: its lease runs for what is left of it, and is no longer renewed.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a lock that is kept on several servers, which has no ticket. The lock is then
    /// released in the background.
    pub fn into_ticket(mut self) -> Result<Ticket> {
        let owner = self.owner();
        if !owner.has_ticket() {
            return Err(Error::config("a lock on several servers has no ticket"));
        }
        let ticket = Ticket(owner.token().to_owned());
        self.forget();
        Ok(ticket)
    }
}

impl super::Leadership {
    /// Gives up the guard, and keeps the office; see [`Guard::into_ticket`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::into_ticket`].
    pub fn into_ticket(self) -> Result<(Ticket, FenceToken)> {
        let term = self.term();
        Ok((self.into_guard().into_ticket()?, term))
    }
}

pub(super) async fn extend(
    lock: &Arc<Lock>,
    ticket: &Ticket,
    ttl: std::time::Duration,
) -> Result<bool> {
    let operation = lock.kind.operations.extend;
    observe::operation(operation, lock.entity.namespace(), async {
        ticket.owner(lock).extend(checked_ttl(ttl)?).await
    })
    .await
}

pub(super) async fn release(lock: &Arc<Lock>, ticket: &Ticket) -> Result<Released> {
    let operation = lock.kind.operations.release;
    observe::operation(operation, lock.entity.namespace(), async {
        Ok(match ticket.owner(lock).release().await? {
            true => Released::Released,
            false => Released::AlreadyLost,
        })
    })
    .await
}

/// The methods of a lock for holders with a [`Ticket`].
macro_rules! held_by_ticket {
    () => {
        /// Makes the lease of a [ticket](crate::locking::Ticket) run for at least `ttl` from now; `false` if the lock is
        /// no longer its own.
        ///
        /// # Errors
        ///
        /// [`is_config`](crate::Error::is_config) for a ttl out of the [limits](crate::locking::MIN_TTL), and those of the
        /// [`Store`](crate::Store).
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, the lease may have been extended.
        pub async fn extend_held(
            &self,
            ticket: &$crate::locking::Ticket,
            ttl: std::time::Duration,
        ) -> $crate::Result<bool> {
            $crate::locking::ticket::extend(&self.lock, ticket, ttl).await
        }

        /// Releases the lock of a [ticket](crate::locking::Ticket) and wakes the waiters.
        ///
        /// # Errors
        ///
        /// Those of the [`Store`](crate::Store). If the error is [in doubt](crate::Error::is_in_doubt), the lock may have
        /// been released.
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, the lock may have been released.
        pub async fn release_held(
            &self,
            ticket: &$crate::locking::Ticket,
        ) -> $crate::Result<$crate::locking::Released> {
            $crate::locking::ticket::release(&self.lock, ticket).await
        }
    };
}
pub(super) use held_by_ticket;
