//! The command handlers, one file per family. `pop.rs` is shared by lists and sorted sets.

pub(crate) mod acl;
pub(crate) mod bitmap;
pub(crate) mod bloom;
pub(crate) mod client;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod database;
pub(crate) mod debug;
pub(crate) mod dump;
pub(crate) mod function;
pub(crate) mod geo;
pub(crate) mod hash;
pub(crate) mod hyperloglog;
pub(crate) mod introspection;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod pop;
pub(crate) mod pubsub;
pub(crate) mod scripting;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod sort;
pub(crate) mod sorted_set;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod transaction;
