//! The byte streams that a [`Wire`](super::wire::Wire) runs on.

use std::{
    io,
    task::{Context, Poll},
};

use tokio::net::{TcpStream, UnixStream};

/// A connected stream that several tasks may read from and write to without waiting.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    pub(super) fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(room),
            Self::Unix(stream) => stream.try_read(room),
        }
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Hands on what `try_write` accepted and kept. Nothing is kept here by plain streams.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        Ok(())
    }
}
