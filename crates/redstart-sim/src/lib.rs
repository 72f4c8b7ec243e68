//! Seeded worlds in virtual time, in which the patterns of Redstart must keep their promises.
//!
//! A world is one thread, one clock that jumps from event to event, and one seed. Its servers are real
//! engines behind simulated sockets; its clients are the real library, with its own wire, dialling, Sentinel and
//! Cluster code. The network delays, splits, cuts and swallows bytes; servers crash, hang, fail over and move their
//! slots; processes are stopped and killed; futures are dropped at any await. Every run of a seed is the same, and its
//! trace has the same hash.
//!
//! | module | what it holds |
//! |---|---|
//! | `plan` | what a seed decides beforehand: servers, clients, weather, faults |
//! | `world` | builds and runs a world, and collects the breaches |
//! | `network` | byte streams between clients and servers |
//! | `server`, `slots`, `resp` | an engine behind a socket, and a cluster's map |
//! | `fault` | lets things go wrong at their time |
//! | `client`, `workload` | what the clients do, and the judges |
//! | `history` | whether the answers of many calls can be explained |
//! | `possible` | the histories of things that have few states |
//! | `seen` | what the servers did, for judges that cannot tell from the answers alone |
//! | `late_grant` | locks that were granted once more to a request that was answered before |
//! | `lifetime` | how long keys live whose life is only ever extended |
//! | `lock_view` | the locks that have several kinds of holders or a line, as the servers gave them out |
//! | `view_lease` | who builds a sorted view, as the servers gave it out |
//! | `probe_place` | the places of a breaker's probes, as the servers gave them out |
//! | `reason` | whether a fault of the world explains an error |
//! | `trouble` | what really went wrong, with whom and when |
//! | `agenda`, `dice`, `trace` | time, chance, and the record |
//! | `campaign`, `mutation` | many worlds; worlds without one of the library's checks |
//! | `shrink`, `timeline` | a broken world made smaller, and told to a person |
//!
//! # Why not turmoil or madsim
//!
//! Both bring their own network and replace tokio's. The library's sockets, its random numbers and its tasks would have
//! to be built against them; and neither can stop a process without ending it, or drop a future at a chosen await. The
//! library has one seam for streams, one for chance and one for tasks instead, and tokio's paused clock does the rest.
#![forbid(unsafe_code)]
// Nothing outside depends on this crate: what is `pub` is so for its own modules.
#![allow(unreachable_pub)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agenda;
pub mod campaign;
mod client;
mod dice;
mod fault;
mod history;
mod late_grant;
mod lifetime;
mod lock_view;
pub mod mutation;
mod network;
pub mod plan;
mod possible;
mod probe_place;
mod reason;
mod resp;
mod seen;
mod server;
pub mod shrink;
mod slots;
pub mod timeline;
mod trace;
mod trouble;
mod view_lease;
mod workload;
mod world;

pub use plan::Plan;
pub use trace::Line;
pub use workload::Pattern;
pub use world::{Outcome, Tally, run};
