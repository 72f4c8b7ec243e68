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
//! | `engine.rs` | [`Engine`], its builder, and `State`: all that the one lock protects |
//! | `session.rs`, `client.rs` | [`Session`] and what the engine knows of a client between commands |
//! | `dispatch.rs` | the way of a command: found, checked, queued or run, its consequences settled |
//! | `registry.rs` | the table of commands, assembled from one `COMMANDS` table a family |
//! | `context.rs` | `Ctx`, what a handler works with |
//! | `keyspace.rs` | a database: keys, values, deadlines, watchers, queues of waiting clients |
//! | `blocking.rs` | clients that wait, and how they are served |
//! | `effect.rs` | what changed, as commands that repeat it: the source of the log |
//! | `aof.rs` | the append-only log: files that Redis and Valkey load |
//! | `notify.rs`, `pubsub.rs`, `tracking.rs` | keyspace events; channels; client-side caching |
//! | `memory.rs` | how much the data takes up, and what goes when that is too much |
//! | `resp.rs`, `server.rs` | the protocol on the wire; the listener |
//! | `clock.rs` | the one clock |
//! | `script.rs` | Lua: the sandbox, its libraries, compiled scripts, limits |
//! | `types/` | data structures; `types/dict.rs` is the hash table under most of them |
//! | `commands/` | one file a family: parse arguments, call the type, shape the reply |
//! | `number.rs`, `glob.rs`, `slot.rs`, `murmur.rs`, `partial_sort.rs`, `error.rs` | parsing and printing numbers, patterns, hash slots, hashing, sorting a part, shared error texts |
//!
//! ## To add a command
//!
//! Write `fn name(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult` in the family's file in
//! `commands/`, and a line in its `COMMANDS` table with the arity, flags and key positions that
//! Redis 7.0's `COMMAND INFO` prints. `args[0]` is the command's name, and the arity has been checked.
//! Errors are `return Err("ERR text".into())` or `?` on `number::int_arg` and the like.
//! Return the rich reply (`Reply::Map`, `Set`, `Double`): `Reply::into_resp2` flattens it for RESP2
//! sessions. Branch on `cx.is_resp3()` only where Redis nests differently.
//!
//! Keys: `cx.get::<List>(key)?` reads (`None` if absent or expired, WRONGTYPE if of another type),
//! `cx.get_mut`, `cx.get_or_create` change in place, `cx.put` replaces, `cx.delete` and
//! `cx.delete_emptied` remove. Time is `cx.now_ms()` and never anything else.
//!
//! ## To change something
//!
//! After a change in place call `cx.changed(key, class, "event")`: it tells watchers, publishes the
//! event and counts one change. In parts: `cx.modified(key)`, `cx.notify(class, event, key)`,
//! `cx.dirty(n)`. A handler that counted a change is recorded as an effect word for word. Where
//! that would not repeat the change (relative times, chance, floats) it says what to record
//! by `cx.propagate([…])`, as often as needed, or `cx.propagate_nothing()`.
//!
//! ## To block
//!
//! A handler first tries to serve itself. If it cannot, it returns
//! `cx.block(Wait { keys, deadline, on_timeout, serve })`. `serve` is called with one of the keys
//! whenever it was created, deleted or signalled by `cx.signal_ready(key)`, after the unit that did
//! so; it checks the type, takes, records its effects by `cx.record(args)` and returns the reply with
//! an `undo`, which puts back what it took if the client is gone before it has the reply. Inside
//! MULTI and scripts `cx.block` answers `on_timeout` at once.
//!
//! ## To call a command from a command (EXEC, scripts)
//!
//! `registry::resolve(args)` finds and checks it, `cx.call(spec, args)` runs it and records its
//! effect. `cx.nested(&mut client, Origin::Script)` gives a context for a client of its own (own
//! database and protocol) at the same moment. All effects of the outermost command form one unit.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aof;
mod blocking;
mod client;
mod clock;
mod commands;
mod config;
mod context;
mod dispatch;
mod effect;
mod engine;
mod error;
mod free;
mod glob;
mod keyspace;
mod long_double;
mod memory;
mod murmur;
mod notify;
mod number;
mod partial_sort;
mod pubsub;
mod random;
mod registry;
mod reply;
mod resp;
mod scan;
mod script;
pub mod server;
mod session;
mod slot;
mod tracking;
mod types;

pub use clock::Clock;
pub use config::MemoryPolicy;
pub use engine::{Engine, EngineBuilder, Fsync};
pub use error::EngineError;
pub use reply::{Protocol, Reply};
pub use session::{Blocked, Outcome, PushReceiver, Session};
