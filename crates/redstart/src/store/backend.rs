//! What is behind a store: the engine in this process, one server, a Cluster, or a connection that the application
//! made.

use std::sync::Arc;

use redis::Value;

use super::{location::Address, request::Request, transport::Dial};
use crate::error::{Error, Result};

mod cluster;
#[cfg(feature = "engine")]
pub(crate) mod embedded;
#[cfg(any(feature = "from-manager", feature = "from-cluster"))]
mod foreign;
mod server;

pub(crate) use cluster::Cluster;
pub(in crate::store) use cluster::{Touched, touched};
#[cfg(feature = "engine")]
pub(crate) use embedded::Embedded;
#[cfg(any(feature = "from-manager", feature = "from-cluster"))]
pub(crate) use foreign::Foreign;
pub(crate) use server::Server;

pub(crate) enum Backend {
    #[cfg(feature = "engine")]
    Embedded(Embedded),
    Server(Server),
    Cluster(Arc<Cluster>),
    #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
    Foreign(Foreign),
}

impl Backend {
    pub(crate) async fn request(&self, request: Request<'_>) -> Result<Value> {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(embedded) => embedded.request(request).await,
            Self::Server(server) => server.request(request).await,
            Self::Cluster(cluster) => cluster.request(request).await,
            #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
            Self::Foreign(foreign) => foreign.request(request).await,
        }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(_) => true,
            _ => false,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            Self::Cluster(_) => true,
            #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
            Self::Foreign(foreign) => foreign.is_cluster(),
            _ => false,
        }
    }

    /// The servers that this leads to now.
    pub(crate) async fn servers(&self) -> Result<Vec<Address>> {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(_) => Ok(Vec::new()),
            Self::Server(server) => server.node().dial().servers().await,
            Self::Cluster(cluster) => Ok(cluster.servers()),
            #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
            Self::Foreign(_) => Err(Error::config(
                "a connection of the application does not say where it leads",
            )),
        }
    }

    pub(crate) fn db(&self) -> i64 {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(embedded) => embedded.db(),
            Self::Server(server) => server.node().dial().db(),
            Self::Cluster(_) => 0,
            #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
            Self::Foreign(foreign) => foreign.db(),
        }
    }

    /// For messages. Never holds a credential.
    pub(crate) fn place(&self) -> String {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(_) => "embedded".to_owned(),
            Self::Server(server) => server.node().dial().place(),
            Self::Cluster(_) => "cluster".to_owned(),
            #[cfg(any(feature = "from-manager", feature = "from-cluster"))]
            Self::Foreign(_) => "connection of the application".to_owned(),
        }
    }

    /// Changes when the server behind may be another one.
    pub(crate) fn generation(&self) -> u64 {
        match self {
            Self::Server(server) => server.node().generation(),
            Self::Cluster(cluster) => cluster.generation(),
            _ => 0,
        }
    }

    /// How to connect to the owner of a slot.
    pub(crate) fn dial_for(&self, slot: u16) -> Result<Arc<Dial>> {
        match self {
            Self::Cluster(cluster) => cluster
                .owner(slot)
                .map(|node| node.dial().clone())
                .ok_or_else(|| Error::unavailable("no node of the cluster owns this slot")),
            _ => self.dial_any(),
        }
    }

    /// How to connect to the server, or to any node.
    pub(crate) fn dial_any(&self) -> Result<Arc<Dial>> {
        match self {
            Self::Server(server) => Ok(server.node().dial().clone()),
            Self::Cluster(cluster) => cluster
                .any()
                .map(|node| node.dial().clone())
                .ok_or_else(|| Error::unavailable("no node of the cluster is known")),
            _ => Err(Error::config(
                "this store was made from a connection and cannot open others: make it from a URL or a \
                 redis::Client to use blocking commands and subscriptions",
            )),
        }
    }

    /// Whether connections of its own can be made.
    pub(crate) fn can_dial(&self) -> Result<()> {
        match self {
            #[cfg(feature = "engine")]
            Self::Embedded(_) => Ok(()),
            Self::Cluster(_) => Ok(()),
            _ => self.dial_any().map(drop),
        }
    }

    /// The server that was asked named another one: how to connect there. The topology is read again.
    pub(crate) fn redirected(
        &self,
        error: &redis::RedisError,
        asked: Option<&Dial>,
    ) -> Option<Arc<Dial>> {
        match self {
            Self::Cluster(cluster) => cluster
                .redirected(error, asked.and_then(Dial::address))
                .map(|node| node.dial().clone()),
            _ => None,
        }
    }

    /// The topology may have changed; a Cluster reads it again in the background.
    pub(crate) fn troubled(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.refresh_in_background(None);
        }
    }
}
