//! Settings of a store before it connects.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "engine")]
use super::backend::Embedded;
use super::{
    backend::{Backend, Cluster, Server},
    credentials::CredentialsProvider,
    location::{Location, Target},
    transport::Dial,
};
#[cfg(not(feature = "engine"))]
use crate::error::Error;
use crate::error::Result;

/// Settings that a URL has too, for programs that keep them elsewhere. What is set here wins.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct StoreBuilder {
    url: String,
    deadline: Option<Duration>,
    connect_timeout: Option<Duration>,
    pool: Option<usize>,
    credentials: Option<(Option<String>, String)>,
    provider: Option<Arc<dyn CredentialsProvider>>,
    client_name: Option<String>,
    replica_reads: bool,
    wait_for_server: bool,
}

impl StoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            deadline: None,
            connect_timeout: None,
            pool: None,
            credentials: None,
            provider: None,
            client_name: None,
            replica_reads: false,
            wait_for_server: true,
        }
    }

    /// The deadline of every call, at most an hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long one attempt to connect may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How many multiplexed connections to keep to each server.
    pub fn pool(mut self, connections: usize) -> Self {
        self.pool = Some(connections);
        self
    }

    /// The user (if any) and the password, so that they need not be part of the URL.
    pub fn credentials(mut self, user: Option<&str>, password: &str) -> Self {
        self.credentials = Some((user.map(str::to_owned), password.to_owned()));
        self
    }

    /// Where the credentials of each connection come from. They may change while the store is connected.
    pub fn credentials_provider(mut self, provider: impl CredentialsProvider) -> Self {
        self.provider = Some(Arc::new(provider));
        self
    }

    /// What the servers call this store's connections, as in `CLIENT LIST`.
    pub fn client_name(mut self, name: &str) -> Self {
        self.client_name = Some(name.to_owned());
        self
    }

    /// Lets replicas answer reads that may be stale, on Sentinel and Cluster: see [Replica reads](crate::store#replica-reads).
    /// Elsewhere it changes nothing.
    pub fn replica_reads(mut self) -> Self {
        self.replica_reads = true;
        self
    }

    /// Connect when the first call is made, so that a program can start before its server does.
    pub fn lazy(mut self) -> Self {
        self.wait_for_server = false;
        self
    }

    /// The backend of the store, its deadline, and whether to wait for the server.
    pub(super) async fn open(self) -> Result<(Backend, Duration, bool)> {
        let Location {
            target,
            mut settings,
        } = Location::parse(&self.url)?;
        if let Some(deadline) = self.deadline {
            settings.set_deadline(deadline)?;
        }
        if let Some(timeout) = self.connect_timeout {
            settings.set_connect_timeout(timeout)?;
        }
        if let Some(pool) = self.pool {
            settings.set_pool(pool)?;
        }
        if let Some((user, password)) = self.credentials {
            settings.username = user;
            settings.password = Some(password);
        }
        if let Some(name) = self.client_name {
            settings.set_client_name(name)?;
        }
        settings.provider = self.provider;
        settings.replica_reads |= self.replica_reads;
        let deadline = settings.deadline;
        let backend = match target {
            #[cfg(feature = "engine")]
            Target::Memory { .. } | Target::File { .. } => {
                Backend::Embedded(Embedded::open(&target, settings.db)?)
            }
            #[cfg(not(feature = "engine"))]
            Target::Memory { .. } | Target::File { .. } => {
                return Err(Error::config(
                    "memory:// and file:// need the cargo feature `engine`",
                ));
            }
            Target::Single(address) => {
                let mirror = settings.mirror;
                let dial = Dial::server(address, settings);
                Backend::Server(match mirror {
                    None => Server::new(dial),
                    #[cfg(feature = "engine")]
                    Some(max_age) => Server::mirrored(dial, max_age)?,
                    #[cfg(not(feature = "engine"))]
                    Some(_) => {
                        return Err(Error::config(
                            "mirror+redis:// needs the cargo feature `engine`",
                        ));
                    }
                })
            }
            Target::Sentinel { sentinels, master } => {
                Backend::Server(Server::new(Dial::sentinel(sentinels, master, settings)))
            }
            // The slot table is needed before anything can be sent, so a cluster is never lazy.
            Target::Cluster { seeds } => Backend::Cluster(Cluster::connect(seeds, settings).await?),
        };
        Ok((backend, deadline, self.wait_for_server))
    }
}

/// Without the URL and the credentials, since both may hold a password.
impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder")
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .field("pool", &self.pool)
            .field("replica_reads", &self.replica_reads)
            .field("wait_for_server", &self.wait_for_server)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;

    use super::*;

    #[test]
    fn a_builder_prints_no_password() {
        let builder =
            Store::builder("redis://:hunter2@localhost").credentials(Some("ann"), "hunter3");
        let text = format!("{builder:?}");
        assert!(!text.contains("hunter"), "{text}");
    }

    #[tokio::test]
    async fn a_time_of_zero_is_refused_and_any_other_is_taken() {
        for zero in [
            Store::builder("memory://").deadline(Duration::ZERO),
            Store::builder("memory://").connect_timeout(Duration::ZERO),
        ] {
            assert!(zero.connect().await.unwrap_err().is_config());
        }
        let long = Store::builder("memory://").deadline(Duration::MAX);
        let store = long.connect().await.unwrap();
        assert!(store.time().await.is_ok());
    }
}
