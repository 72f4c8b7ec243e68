//! A byte stream that is not the system's: of a simulated network, or of a test of the wire.

#![allow(missing_docs)]
#![cfg_attr(not(feature = "sim"), allow(unreachable_pub))]

use std::{
    io,
    task::{Context, Poll},
};

/// A connected byte stream, as the wire needs it: never waits, wakes whoever asked.
pub trait Socket: Send + Sync {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    fn try_read(&self, room: &mut [u8]) -> io::Result<usize>;
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
