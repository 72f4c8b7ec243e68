//! Sessions and trails, on every backend.

mod session;
mod trail;
