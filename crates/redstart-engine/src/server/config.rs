//! Where a server listens, and what it allows.

use std::{net::SocketAddr, path::PathBuf};

#[cfg(feature = "tls")]
use super::Tls;

/// Where a [`Server`](super::Server) listens, and what it allows.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerConfig {
    pub(super) listen: Vec<Address>,
    pub(super) unix: Option<PathBuf>,
    pub(super) output_limit: Option<usize>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
}

/// A TCP address to listen on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) addr: SocketAddr,
    /// It may not exist on this machine.
    pub(super) optional: bool,
}

impl ServerConfig {
    /// Listens nowhere yet.
    pub fn new() -> ServerConfig {
        ServerConfig {
            listen: Vec::new(),
            unix: None,
            output_limit: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Listens on a TCP address, also. Port 0 takes a free one.
    pub fn listen(mut self, addr: SocketAddr) -> ServerConfig {
        self.listen.push(Address {
            addr,
            optional: false,
        });
        self
    }

    /// As [`ServerConfig::listen`], unless the machine has no such address.
    pub fn listen_if_possible(mut self, addr: SocketAddr) -> ServerConfig {
        self.listen.push(Address {
            addr,
            optional: true,
        });
        self
    }

    /// Encrypts every TCP connection.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> ServerConfig {
        self.tls = Some(tls);
        self
    }

    /// Listens on a unix socket. A file that an earlier server left there is replaced.
    pub fn unix(mut self, path: impl Into<PathBuf>) -> ServerConfig {
        self.unix = Some(path.into());
        self
    }

    /// How many bytes of messages may wait for a slow client before it is disconnected (default:
    /// 32 MiB, or what `client-output-buffer-limit pubsub` says).
    pub fn output_limit(mut self, bytes: usize) -> ServerConfig {
        self.output_limit = Some(bytes);
        self
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig::new()
    }
}
