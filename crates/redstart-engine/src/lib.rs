//! Redis's commands inside the process.
//!
//! An [`Engine`] is a server without a socket: databases behind one lock. A [`Session`] is a
//! client of it. [`Session::execute`] runs a command and never waits; [`Session::call`] is a future
//! that waits where the command blocks.
//!
//! ```
//! use bytes::Bytes;
//! use redstart_engine::{Engine, Outcome, Reply};
//!
//! let engine = Engine::new();
//! let mut session = engine.session();
//! let set = ["SET", "greeting", "hello"].map(Bytes::from);
//! assert!(matches!(session.execute(&set), Outcome::Reply(Reply::Status(_))));
//! let get = ["GET", "greeting"].map(Bytes::from);
//! assert_eq!(session.execute(&get).into_reply(), Some(Reply::Bulk("hello".into())));
//! ```
//!
//! # How it is built
//!
//! | file | what it holds |
//! |---|---|
//! | `engine.rs` | [`Engine`], its builder, and `State`: everything behind the one lock |
//! | `session.rs`, `client.rs` | [`Session`], and what the engine knows of a client between commands |
//! | `dispatch.rs` | life of a command: found, checked, queued or run, its consequences settled |
//! | `registry.rs` | the table of commands, assembled from one `COMMANDS` table per family |
//! | `context.rs` | `Ctx`, what a handler works with |
//! | `keyspace.rs` | a database: keys, values, deadlines, watchers, queues of waiting clients |
//! | `blocking.rs` | clients that wait, and how they are served |
//! | `effect.rs` | changes as commands that repeat them: the source of the log |
//! | `config.rs` | the settings, by Redis's names; the configuration file |
//! | `aof.rs` | the append-only log: files that Redis and Valkey load |
//! | `rdb.rs` | values and databases in binary form: DUMP, snapshots, bases of logs |
//! | `acl.rs` | users and what they may do |
//! | `stats.rs` | what is counted and measured: for INFO, SLOWLOG, LATENCY and MONITOR |
//! | `replica.rs` | other servers' data: copied once, or followed |
//! | `feed.rs`, `handover.rs` | being followed: the stream of changes; the move to another server |
//! | `notify.rs`, `pubsub.rs`, `tracking.rs` | keyspace events; channels; client-side caching |
//! | `memory.rs`, `eviction.rs`, `free.rs` | how much memory is in use; what goes when that is too much; freeing in the background |
//! | `resp.rs`, `answer.rs`, `server.rs` | the protocol; replies that are written without a detour; the listener |
//! | `clock.rs`, `compat.rs` | the one clock; which server's version the engine emulates |
//! | `script.rs` | Lua: the sandbox, its libraries, compiled scripts, functions, limits |
//! | `types/` | data structures; `types/dict.rs` is the hash table under most of them |
//! | `commands/` | one file per family: parse arguments, call the type, shape the reply |
//! | `number.rs`, `glob.rs`, `hash_slot.rs`, `murmur.rs`, `partial_sort.rs`, `error.rs` | parsing and printing numbers, patterns, Cluster's hash slots, hashing, sorting a part, shared error texts |
//!
//! ## To add a command
//!
//! Write `fn name(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult` in the family's file in
//! `commands/`, and a line in its `COMMANDS` table with the arity, flags and key positions that
//! Redis 7.0's `COMMAND INFO` prints. `args[0]` is the command's name, and the arity has been checked.
//! Errors are `return Err("ERR text".into())`, or `?` on a parser such as `number::int_arg`.
//! Return the rich reply (`Reply::Map`, `Set`, `Double`): `Reply::into_resp2` flattens it for RESP2
//! sessions. Branch on `cx.is_resp3()` only where Redis nests differently. A command that reads many
//! strings uses `cx.read::<List>(key)?`, which gives an `Answer` beside the value: it writes the reply
//! as bytes where the command came from a socket.
//!
//! Keys: `cx.get::<List>(key)?` reads (`None` if absent or expired, WRONGTYPE if of another type),
//! `cx.get_mut` and `cx.get_or_create` change in place, `cx.put` replaces, `cx.delete` and
//! `cx.delete_emptied` remove, `cx.take` removes and returns. The time is always `cx.now_ms()`.
//!
//! ## To change something
//!
//! A change has three audiences, and a verb for each; most handlers need only `changed`.
//!
//! | verb | who is told | when to call it |
//! |---|---|---|
//! | `cx.modified(key)` | WATCH, client-side caches, the memory count | once per key that changed; `put` and `delete` do it |
//! | `cx.notify(class, event, key)` | subscribers of keyspace events | as often as Redis publishes one |
//! | `cx.dirty(n)` | the log: the command had an effect | once, with the number of changes |
//! | `cx.changed(key, class, event)` | all of them | the usual case: `modified`, `notify` and `dirty(1)` |
//! | `cx.propagate(args)` | the log: record this instead of the command | where repeating the command would not repeat the change (relative times, chance, floats); `cx.propagate_nothing()` records nothing |
//! | `cx.record(args)` | the log: record this as well | outside a command: serving or undoing for a client that waits |
//!
//! ## To block
//!
//! A handler first tries to serve itself. If it cannot, it returns `cx.block(Wait { … })`. `serve`
//! is called with one of the keys whenever that was created, deleted or signalled by
//! `cx.signal_ready(key)`, after the unit that did so. It checks the type, takes, records its effects
//! by `cx.record(args)` and returns the reply with an `undo`, which puts back what it took if the
//! client is gone before it has the reply. Inside MULTI and scripts `cx.block` answers `on_timeout`
//! at once.
//!
//! ## To call a command from a command (EXEC, scripts)
//!
//! `registry::resolve(args, compat)` finds and checks it, `cx.call(spec, args)` runs it and records its
//! effect. All effects of the outermost command form one unit.
//!
//! # Complexity
//!
//! Commands have the complexity that Redis documents, with these differences: what looks for a rank, adds to
//! a sorted set or removes from it (ZRANK, ZREVRANK, ranges by rank, ZADD, ZREM) costs O(log n) plus a walk
//! over groups of blocks, O(n / 16k), which is below the logarithm's cost up to some million members. What asks for
//! the keys of a slot (CLUSTER COUNTKEYSINSLOT, GETKEYSINSLOT, FLUSHSLOT and SLOT-STATS) looks at all keys of the
//! database, O(n): slots have no counts and lists of their own.
//! Growing and shrinking a table, freeing a large value and active expiry are spread over many commands or
//! done on another thread.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod acl;
mod answer;
mod aof;
mod blocking;
mod client;
mod clock;
mod commands;
mod compat;
#[cfg(test)]
mod complexity;
mod config;
mod context;
mod crc64;
mod digest;
mod dispatch;
mod effect;
mod engine;
mod error;
mod eviction;
mod feed;
mod free;
mod glob;
mod handover;
mod hash_slot;
mod keyspace;
mod long_double;
mod memory;
mod murmur;
mod notify;
mod number;
mod partial_sort;
mod pubsub;
mod random;
mod rdb;
mod registry;
mod replica;
mod reply;
mod resp;
mod scan;
mod script;
pub mod server;
mod session;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod sim;
mod stats;

mod tracking;
mod types;

pub use aof::Backup;
pub use clock::Clock;
pub use compat::Compat;
pub use config::{MemoryPolicy, Settings, SettingsError};
pub use engine::{Engine, EngineBuilder, Fsync};
pub use error::EngineError;
pub use rdb::Summary;
pub use replica::{Following, Master, MasterTls};
pub use reply::{Protocol, Reply};
pub use session::{Blocked, HELD_BACK, LogPosition, Outcome, PushReceiver, Session};
