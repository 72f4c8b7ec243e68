//! The store: the connection that every pattern uses.
//!
//! A [`Store`] is made from a URL and is cheap to clone. The same program runs on each of these:
//!
//! | URL | what it is |
//! |---|---|
//! | `memory://` | the embedded engine, volatile, private to this store and its clones; `memory://name` is shared by name within the process |
//! | `file:///dir?fsync=always` | the embedded engine with an append-only log (`always`, `everysec`, `no`) |
//! | `redis://` `rediss://` `redis+unix://` | one server |
//! | `redis+sentinel://h1,h2,h3/master-name/db` | Sentinel: follows the master through a failover |
//! | `redis+cluster://h1:p,h2:p` | Cluster |
//! | `mirror+redis://` `mirror+rediss://` | one server, and [a copy of it in the process](#a-mirror-in-the-process) for reads that may be stale |
//!
//! `valkey` may replace `redis` in each of them. Redis 7.0 and Valkey 7.2 and later are supported.
//!
//! | part of the URL | meaning | default |
//! |---|---|---|
//! | `user:password@` | credentials, percent-encoded | none |
//! | `/3` or `db=3` | the database | 0 |
//! | `timeout=500ms` | the deadline of every call | 1 s |
//! | `connect_timeout=2s` | how long one attempt to connect may take | the deadline, at least 1 s |
//! | `client_name=orders` | what the server calls the connections, as in `CLIENT LIST` | none |
//! | `pool=4` | multiplexed connections to each server | 1 |
//! | `replica_reads=1` | Sentinel and Cluster: replicas answer [reads that may be stale](#replica-reads) | off |
//! | `max_age=2s` | mirror only: how old an answer of the copy may be, at least 100 ms | 5 s |
//! | `ca=/path.pem`, `cert=`, `key=` | TLS: the trusted CA, and a client's certificate | the system's CAs |
//! | `sentinel_user=`, `sentinel_password=` | credentials of the sentinels themselves | none |
//! | `cluster_strict=1` | embedded only: refuse what a Cluster would refuse | off |
//! | `compat=valkey-9` | embedded only: have the commands of 7.0, 7.4, 8.0, 8.2 or valkey-9, and tell its version | 7.0 |
//!
//! # What a call promises
//!
//! Every call ends within its deadline, whichever runtime it is made in. Lost connections are re-established
//! automatically.
//! Within the deadline a request is sent again where that is safe: when nothing was sent, when the server
//! said that it did nothing (LOADING, READONLY after a failover, MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or when
//! the command only reads. A write whose reply was lost is **not** sent again: the error is
//! [in doubt](crate::Error::is_in_doubt), unless the script declared itself
//! [idempotent](crate::script::Call::idempotent).
//!
//! A write whose connection died before any of it was sent is known to be not sent, and is sent again.
//!
//! A part of a pipeline that may have been carried out makes the error of the whole pipeline in doubt.
//!
//! # While the store is down
//!
//! The first calls wait for it within their deadlines. After one deadline without success the server counts as down:
//! all further calls fail at once, and a background task keeps trying to connect. Its first success ends this state.
//! On a Cluster this applies to each node separately. The deadline that counts is the store's own: a handle with a
//! [shorter one](Store::within) fails alone.
//!
//! # How requests travel
//!
//! All tasks share one connection to a server (`pool=` gives more). Each writes its request and sends it
//! itself; concurrent requests are sent in one write, and one task distributes the replies. Large requests
//! wait for each other once 4 MiB wait to be sent. Plain TCP, TLS and unix sockets behave the same.
//!
//! All subscriptions share one more connection to each node: waits for locks, invalidations of caches, topics.
//! It is opened by the first of them and closed ten seconds after the last.
//!
//! Since the connection is shared, commands that change it are refused: `WATCH` and `MULTI` are for
//! [`dedicated`](Store::dedicated), `SUBSCRIBE` and `CLIENT TRACKING` for [`subscribe`](Store::subscribe), and
//! `SELECT` and `AUTH` for the URL.
//!
//! # Replica reads
//!
//! With `replica_reads=1`, or [`StoreBuilder::replica_reads`], replicas answer these reads on Sentinel and Cluster, so that
//! the masters have more time for writes:
//!
//! - [`Leaderboard`](crate::ranking::Leaderboard): `rank`, `top`, `page`, `slice`, `around`, `len`;
//! - [`Counter`](crate::counting::Counter)`::get`, and what [`CheckIns`](crate::counting::CheckIns) tells of a user;
//! - [`Places`](crate::location::Places): position, distance and geohash of members;
//! - [`Graph`](crate::social::Graph): `followers`, `following`, `mutuals` and `counts`;
//! - [`query_stale`](Store::query_stale), for commands of your own.
//!
//! Such an answer is as old as the replica is behind its master, mostly milliseconds; it may lack a write that this
//! program made just before. Replicas are cut off too: one that lost its master answers with old values until the
//! sentinels or the other nodes have noticed, unless it has `replica-serve-stale-data no`. Everything else is asked of the masters,
//! whatever the setting: locks, limiters, caches, sessions, queues, stock, breakers, idempotency keys, filters, and all that writes.
//!
//! A replica is used once its connection stands, which is made in the background. If none answers within half of the
//! deadline, the master does.
//!
//! # A mirror in the process
//!
//! `mirror+redis://host:port` is a store of one server that keeps a copy of all its data in this process: an embedded engine
//! that follows the server as a replica does. The copy answers the reads listed under [replica reads](#replica-reads), and
//! [`query_stale`](Store::query_stale), by a function call, without the network. Everything else goes to the server.
//! [`Store::mirror`] says how old the copy is.
//!
//! ## Promises
//!
//! - A read from the copy reflects every write, from any client, that the server acknowledged at least `max_age` before the read. The
//!   store does not trust a link that is merely open: four times per `max_age`, at least once a second, it asks the server for its
//!   replication offset and compares. While the server hangs, is cut off or restarts, the copy grows old, and from `max_age` on the server is asked.
//! - The server also answers while the copy is being made, and whatever the copy cannot answer: a command that the embedded
//!   engine does not have, or a value that it does not know. It does so as well while the copy is busy for more than a few
//!   milliseconds, with a large change or a slow script, and from the moment that a change could not be applied.
//! - The copy follows a server that restarts, is reached again, or [hands over](#through-a-hand-over) its data, and uses new
//!   credentials of a [provider](StoreBuilder::credentials_provider). What was missed is fetched alone if the server still has it.
//!
//! ## Limits
//!
//! - The process holds all data of the server, of all its databases, and applies all of its changes.
//! - A program may read its own write from the server and then miss it in the copy, or see an older value than before when
//!   the copy takes over from the server.
//! - TTLs, and the time in scripts that read, go by the clock of this process.
//! - The user needs `PSYNC`, `REPLCONF`, `PING` and `INFO`. The server has two connections more, and sends a copy after up to
//!   `repl-diskless-sync-delay`, 5 s by default.
//! - A link that is swallowed without a word is made again after a minute of silence. Data that cannot be followed, such as
//!   values of modules, leaves all reads to the server; [`MirrorStatus::error`] says why.
//! - One server over TCP, with or without TLS: no Cluster, no Sentinel, no unix socket.
//!
//! # Through a hand-over
//!
//! A server that answers `REDIRECT <host>:<port>` says that it did nothing and that its data is there now: so does the
//! embedded engine behind its listener after a [`Handover`]. A store of a single server follows: requests, subscriptions
//! and dedicated connections go to that place from then on, with the same credentials, database and TLS settings.
//!
//! # Through a failover
//!
//! With Sentinel the store listens to each sentinel from the first connection on. When they name a new master,
//! requests, subscriptions and dedicated connections leave the old one at once, even if it is alive and does
//! not know yet that it was replaced. The master is the one that a majority of the sentinels names. Fewer decide only if the
//! others do not answer within half of the time to connect; until then, what one of those said last still counts. If no
//! sentinel knows the master, that is a [configuration error](crate::Error::is_config) only if all of them answered.
//!
//! On a Cluster, a node that does not answer makes the store read the slot table
//! again in the background until the node answers or has been replaced. While there are subscriptions, the table is also
//! read once or twice a minute: a master that was replaced while it is cut off from the other nodes, but not from this
//! process, keeps its connections and is silent. A write that it took before is gone with it: a failover can lose
//! what was not replicated.

mod backend;
mod builder;
mod capability;
mod clock;
mod command;
mod credentials;
mod dedicated;
mod extension;
pub(crate) mod handle;
mod handover;
mod location;
#[cfg(feature = "engine")]
mod mirror;
mod pool;
mod request;
mod retry;
mod subscription;
mod transport;
mod walk;

pub use builder::StoreBuilder;
pub use capability::{Capabilities, Optional, ServerKind};
pub(crate) use clock::Clock;
#[cfg(any(feature = "locking", feature = "messaging"))]
pub(crate) use clock::valid_until;
pub use credentials::{Credentials, CredentialsFuture, CredentialsProvider, RotatingCredentials};
pub use dedicated::Dedicated;
pub(crate) use handle::Store;
pub use handle::{Health, Sample};
pub use handover::{Handover, HandoverBuilder, HandoverReport, HandoverStep};
#[cfg(feature = "engine")]
pub use mirror::MirrorStatus;
pub(crate) use request::{BoxFuture, convert};
#[cfg(feature = "locking")]
pub(crate) use retry::Backoff;
pub use subscription::{Event, Listen, Message, Subscription};
pub use walk::{Walk, WalkPart};
