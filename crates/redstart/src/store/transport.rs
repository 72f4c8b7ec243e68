//! From an address to replies: streams, the shared wire, connections on which the server speaks first, connecting, and
//! the sentinels' word on the master.

mod dial;
mod duplex;
mod input;
mod moved;
mod reply;
mod sentinel;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub(crate) use dial::Dial;
pub(crate) use duplex::Duplex;
pub(crate) use reply::push;
pub(crate) use wire::Wire;
