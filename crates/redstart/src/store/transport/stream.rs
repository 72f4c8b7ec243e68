//! The byte streams that a [`Wire`](super::wire::Wire) runs on.

use std::{
    io,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BufMut as _;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};

#[cfg(feature = "tls")]
use super::tls::TlsStream;
use crate::{
    error::{Error, Result},
    store::location::{Address, Settings},
};

/// An idle connection is checked after this time, and then this often; three checks without an answer end it.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// What was sent and not acknowledged by the other side's system for this long ends the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// A connected stream that several tasks may read from and write to without waiting.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
    #[cfg(any(test, feature = "sim"))]
    Simulated(Box<dyn crate::socket::Socket>),
}

impl Stream {
    pub(super) async fn connect(address: &Address, settings: &Settings) -> Result<Self> {
        let io = |error| Error::from(redis::RedisError::from(error));
        match address {
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await.map_err(io)?)),
            Address::Tcp { host, port } => {
                #[cfg(feature = "sim")]
                if let Some(network) = crate::sim::network() {
                    let socket = network.dial(host.clone(), *port).await;
                    return Ok(Self::Simulated(socket.map_err(io)?));
                }
                let connected = TcpStream::connect((host.as_str(), *port)).await;
                let stream = connected.map_err(io)?;
                tune(&stream).map_err(io)?;
                if !settings.tls {
                    return Ok(Self::Tcp(stream));
                }
                #[cfg(feature = "tls")]
                {
                    let stream = TlsStream::connect(stream, host, settings).await?;
                    Ok(Self::Tls(Box::new(stream)))
                }
                #[cfg(not(feature = "tls"))]
                Err(Error::config("TLS needs the cargo feature `tls`"))
            }
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.try_write(bytes),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(socket) => socket.try_write(bytes),
        }
    }

    /// Hands on what `try_write` accepted and kept.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.try_flush(),
            _ => Ok(()),
        }
    }

    pub(super) fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(room),
            Self::Unix(stream) => stream.try_read(room),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.try_read(room),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(socket) => socket.try_read(room),
        }
    }

    /// Reads up to `most` bytes to the end of `bytes`, which has room for some.
    pub(super) fn try_read_into(&self, bytes: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        let most = most.min(bytes.capacity() - bytes.len());
        match self {
            Self::Tcp(stream) => stream.try_read_buf(&mut bytes.limit(most)),
            Self::Unix(stream) => stream.try_read_buf(&mut bytes.limit(most)),
            #[cfg(any(test, feature = "tls", feature = "sim"))]
            _ => fill(bytes, most, |room| self.try_read(room)),
        }
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.tcp().poll_read_ready(cx),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(socket) => socket.poll_read_ready(cx),
        }
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.tcp().poll_write_ready(cx),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(socket) => socket.poll_write_ready(cx),
        }
    }
}

/// Reads to the end of `bytes` by a function that needs a slice. Of what is unused, only as much is made one as is read at
/// a time: the rest of a long string may be many megabytes, and a piece of it a few kilobytes.
#[cfg(any(test, feature = "tls", feature = "sim"))]
fn fill(
    bytes: &mut Vec<u8>,
    most: usize,
    read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let before = bytes.len();
    bytes.resize(before + most.min(super::input::ROOM), 0);
    let received = read(&mut bytes[before..]);
    bytes.truncate(before + *received.as_ref().unwrap_or(&0));
    received
}

/// Requests leave at once, and a peer that vanished without a word is noticed: a network that forgot the connection
/// would otherwise swallow what is sent for a quarter of an hour.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_a_long_string_costs_what_it_is_long() {
        let mut bytes = Vec::with_capacity(64 * 1024 * 1024);
        bytes.extend_from_slice(b"so far ");
        let most = bytes.capacity() - bytes.len();
        let received = fill(&mut bytes, most, |room| {
            assert!(room.len() <= super::super::input::ROOM, "{}", room.len());
            room[..5].copy_from_slice(b"piece");
            Ok(5)
        });
        assert_eq!((received.unwrap(), &bytes[..]), (5, &b"so far piece"[..]));
        let nothing = fill(&mut bytes, 1, |room| {
            assert_eq!(room.len(), 1, "no more than there is to read");
            Err(io::ErrorKind::WouldBlock.into())
        });
        assert!(nothing.is_err() && bytes == b"so far piece");
    }

    #[tokio::test]
    async fn a_peer_that_vanished_is_noticed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
        };
        let stream = Stream::connect(&address, &Settings::default())
            .await
            .unwrap();
        let Stream::Tcp(stream) = stream else {
            panic!("not a TCP stream");
        };
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
        }
    }
}
