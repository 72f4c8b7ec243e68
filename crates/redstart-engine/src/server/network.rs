//! The runtime that connections are served on.

use tokio::{
    net::{TcpStream, UnixStream},
    runtime::RuntimeFlavor,
};
use tokio_util::task::TaskTracker;

use super::talk::Talk;

/// Where connections are served.
pub(super) enum Network {
    /// On the runtime that the server runs on.
    Here,
    /// On one of the server's own.
    Own(tokio::runtime::Runtime),
}

impl Network {
    pub(super) fn current() -> Network {
        if tokio::runtime::Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            return Network::Here;
        }
        let own = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redstart-network")
            .enable_all()
            .build();
        match own {
            Ok(own) => Network::Own(own),
            Err(error) => {
                tracing::warn!(%error, "slow scripts will hold up all connections");
                Network::Here
            }
        }
    }

    pub(super) fn spawn(&self, tasks: &TaskTracker, socket: TcpStream, talk: Talk) {
        match self {
            Network::Here => drop(tasks.spawn(talk.over_tcp(socket))),
            Network::Own(runtime) => {
                let moved = async move {
                    // A socket belongs to the runtime that it was made on.
                    match socket.into_std().and_then(TcpStream::from_std) {
                        Ok(socket) => talk.over_tcp(socket).await,
                        Err(error) => tracing::warn!(%error, "a connection was lost"),
                    }
                };
                tasks.spawn_on(moved, runtime.handle());
            }
        }
    }

    pub(super) fn spawn_unix(&self, tasks: &TaskTracker, socket: UnixStream, talk: Talk) {
        match self {
            Network::Here => drop(tasks.spawn(talk.with(socket))),
            Network::Own(runtime) => {
                let moved = async move {
                    match socket.into_std().and_then(UnixStream::from_std) {
                        Ok(socket) => talk.with(socket).await,
                        Err(error) => tracing::warn!(%error, "a connection was lost"),
                    }
                };
                tasks.spawn_on(moved, runtime.handle());
            }
        }
    }

    /// A runtime cannot be dropped where nothing may block.
    pub(super) fn end(self) {
        if let Network::Own(runtime) = self {
            runtime.shutdown_background();
        }
    }
}
