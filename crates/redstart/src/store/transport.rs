//! From an address to replies: streams, the shared wire, connecting, and the sentinels' word on the master.

mod client;
mod dial;
mod line;
mod reply;
mod sentinel;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub(crate) use dial::Dial;
pub(crate) use line::Line;
