//! Stores on connections and engines that the application already has.

use super::Store;
#[cfg(feature = "engine")]
use crate::error::{Error, Result};
#[cfg(any(feature = "from-manager", feature = "from-cluster", feature = "engine"))]
use crate::store::backend;
use crate::store::{
    backend::{Backend, Server},
    location::Settings,
    transport::Dial,
};

/// A store on the server of a client that the application already has, with the client's credentials and database:
/// all of a store's abilities, its own connections. A client with TLS parameters of its own keeps them to itself; calls of
/// such a store are a [configuration error](Error::is_config), and a URL with `ca=`, `cert=` and `key=` is the way.
impl From<redis::Client> for Store {
    fn from(client: redis::Client) -> Self {
        let settings = Settings::default();
        let deadline = settings.deadline;
        Self::new(
            Backend::Server(Server::new(Dial::client(
                client.get_connection_info(),
                settings,
            ))),
            deadline,
        )
    }
}

/// A store that shares the application's connection. It cannot block or subscribe.
#[cfg(feature = "from-manager")]
impl From<redis::aio::ConnectionManager> for Store {
    fn from(manager: redis::aio::ConnectionManager) -> Self {
        Self::new(
            Backend::Foreign(backend::Foreign::Manager(manager)),
            Settings::default().deadline,
        )
    }
}

/// A store that shares the application's cluster connection. It cannot block or subscribe, and redis-rs
/// repeats requests as that connection was configured to, even writes whose reply was lost.
#[cfg(feature = "from-cluster")]
impl From<redis::cluster_async::ClusterConnection> for Store {
    fn from(cluster: redis::cluster_async::ClusterConnection) -> Self {
        Self::new(
            Backend::Foreign(backend::Foreign::Cluster(cluster)),
            Settings::default().deadline,
        )
    }
}

/// A store on an engine that the application configured itself.
#[cfg(feature = "engine")]
impl TryFrom<redstart_engine::Engine> for Store {
    type Error = Error;

    fn try_from(engine: redstart_engine::Engine) -> Result<Self> {
        let embedded = backend::Embedded::on(engine, 0)?;
        Ok(Self::new(
            Backend::Embedded(embedded),
            Settings::default().deadline,
        ))
    }
}
