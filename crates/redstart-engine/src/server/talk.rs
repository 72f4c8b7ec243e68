//! The life of a connection, from the accepted socket to its end.

#[cfg(feature = "tls")]
use std::time::Duration;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

#[cfg(feature = "tls")]
use super::Tls;
use super::connection::Connection;
use crate::session::{Announced, Session, TOO_MANY_CLIENTS};

/// How long a client may take for a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection that is about to begin.
pub(super) struct Talk {
    pub(super) session: Session,
    pub(super) who: Who,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    pub(super) stop: Stop,
}

/// Tells connections that the server stops.
#[derive(Clone, Default)]
pub(super) struct Stop {
    pub(super) token: CancellationToken,
    /// Looked at with each request: the token has a lock that all connections share.
    told: Arc<AtomicBool>,
}

impl Stop {
    pub(super) fn tell(&self) {
        self.told.store(true, Ordering::Release);
        self.token.cancel();
    }

    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    pub(super) fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }
}

impl Talk {
    /// The life of a TCP connection.
    pub(super) async fn over_tcp(self, socket: TcpStream) {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(socket)) => shaken,
                () = self.stop.cancelled() => return,
            };
            return match shaken {
                Ok(Ok(socket)) => self.with(socket).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            };
        }
        self.with(socket).await;
    }

    /// The life of a connection.
    pub(super) async fn with<S: AsyncRead + AsyncWrite + Unpin>(mut self, mut socket: S) {
        let Who {
            addr,
            laddr,
            unix,
            denied,
        } = &self.who;
        if *denied {
            let _ = socket.write_all(DENIED.as_bytes()).await;
            let _ = socket.shutdown().await;
            return;
        }
        let (profile, announced) = self.session.announce(addr, laddr, *unix);
        let allowed = match announced {
            Announced::Welcome(allowed) => Some(allowed),
            Announced::Later => None,
            Announced::Refused => return refuse(&mut socket).await,
        };
        let inbox = self.session.take_inbox();
        let connection = Connection::new(socket, self.session, profile, inbox, allowed);
        connection.run(self.stop).await;
    }
}

pub(super) struct Who {
    pub(super) addr: String,
    pub(super) laddr: String,
    pub(super) unix: bool,
    /// It comes from another machine, and protected mode is on.
    pub(super) denied: bool,
}

/// Protected mode: without a password only this machine may connect.
pub(super) fn is_denied(peer: SocketAddr, protected: bool) -> bool {
    protected && !peer.ip().to_canonical().is_loopback()
}

const DENIED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled \
     and no password is set for the default user. In this mode connections are only accepted from \
     the loopback interface. Set a password for the default user, or turn protected mode off from \
     this machine: CONFIG SET protected-mode no. Do that only if the server cannot be reached from \
     the internet.\r\n";

async fn refuse<S: AsyncWrite + Unpin>(socket: &mut S) {
    let text = format!("-{TOO_MANY_CLIENTS}\r\n");
    let _ = socket.write_all(text.as_bytes()).await;
    let _ = socket.shutdown().await;
}
