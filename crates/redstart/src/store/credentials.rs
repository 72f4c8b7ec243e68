//! Who a store is to its servers, also when that changes while it is connected.

use std::{error::Error as StdError, fmt, future::Future, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::location::Settings;
use crate::error::{Error, Result};

/// A user's name and password. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// The password of a user, or of the default user.
    pub fn new(user: Option<&str>, password: &str) -> Self {
        Self {
            user: user.map(str::to_owned),
            password: password.to_owned(),
        }
    }

    /// The user and the password.
    #[cfg(feature = "engine")]
    pub(super) fn parts(&self) -> (Option<&str>, &str) {
        (self.user.as_deref(), &self.password)
    }

    /// The command that presents them.
    pub(super) fn auth(&self) -> redis::Cmd {
        let mut cmd = redis::cmd("AUTH");
        cmd.arg(&self.user).arg(&self.password);
        cmd
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// What [`CredentialsProvider::credentials`] returns.
pub type CredentialsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'a>>;

/// Gives the credentials of each connection, such as tokens of a cloud that end after a while.
///
/// [`RotatingCredentials`] is enough for a program that gets them from elsewhere. Set it with
/// [`StoreBuilder::credentials_provider`](super::StoreBuilder::credentials_provider).
pub trait CredentialsProvider: Send + Sync + 'static {
    /// The credentials of now. Asked for each new connection, within its connect time-out, and after each rotation.
    fn credentials(&self) -> CredentialsFuture<'_>;

    /// Announces new credentials by changing the value. Connections that are open then present them with `AUTH`, without
    /// being closed. If the server refuses them, the connections stay as they are, and try again.
    fn rotations(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Credentials that the application replaces. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use redstart::{Store, store::{Credentials, RotatingCredentials}};
///
/// let credentials = RotatingCredentials::new(Credentials::new(Some("app"), "first token"));
/// let store = Store::builder("redis://localhost")
///     .credentials_provider(credentials.clone())
///     .lazy()
///     .connect()
///     .await?;
/// // From now on, and on the connections that are open already:
/// credentials.rotate(Credentials::new(Some("app"), "second token"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RotatingCredentials(Arc<Rotating>);

#[derive(Debug)]
struct Rotating {
    current: Mutex<Credentials>,
    rotations: watch::Sender<u64>,
}

impl RotatingCredentials {
    /// Begins with these.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(Rotating {
            current: Mutex::new(credentials),
            rotations: watch::Sender::new(0),
        }))
    }

    /// Replaces them, on all connections.
    pub fn rotate(&self, credentials: Credentials) {
        *self.0.current.lock() = credentials;
        self.0.rotations.send_modify(|rotations| *rotations += 1);
    }
}

impl CredentialsProvider for RotatingCredentials {
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(std::future::ready(Ok(self.0.current.lock().clone())))
    }

    fn rotations(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.rotations.subscribe())
    }
}

/// Changes when there are new credentials.
pub(crate) type Rotations = watch::Receiver<u64>;

impl Settings {
    /// What a new connection presents.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>> {
        match &self.provider {
            Some(provider) => {
                let given = provider.credentials().await.map_err(|error| {
                    Error::unavailable("no credentials were provided").with_source(error)
                })?;
                Ok(Some(given))
            }
            None => Ok(self.password.as_ref().map(|password| Credentials {
                user: self.username.clone(),
                password: password.clone(),
            })),
        }
    }

    /// Changes with each rotation from now on.
    pub(super) fn rotations(&self) -> Option<Rotations> {
        let mut rotations = self.provider.as_ref()?.rotations()?;
        rotations.borrow_and_update();
        Some(rotations)
    }
}

/// Ends at the next rotation.
pub(super) async fn rotated(rotations: &mut Option<Rotations>) {
    if let Some(rotations) = rotations
        && rotations.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
