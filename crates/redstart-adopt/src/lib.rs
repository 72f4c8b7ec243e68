//! Works within what a project already keeps in Redis or Valkey.
//!
//! Most projects come with keys, clients and libraries. This crate respects them: it says which library keeps what,
//! reads queues through one interface, and shares keys with the library that owns them, so that old and new processes run side
//! by side.
//!
//! ```text
//! recognise.rs    which library keeps what; catalogue/<library>.rs has what each one leaves behind
//! library.rs      the libraries and their names
//! found.rs        what was found: confidence, evidence, the keys that belong to it
//! pattern.rs      keys into patterns: user:17:session becomes user:*:session
//! budget.rs       how much a look may cost
//! look.rs         bounded, read-only looks at keys; glimpse.rs is what one shows, source.rs is who is asked
//! inspect.rs      queues of other libraries through one interface that only reads
//! guess.rs        what keys may be that no library owns
//! plan.rs         what to do about what was found
//! scenario.rs     scripts that try a step of a plan on a copy of the data
//! migration.rs    the steps of a plan, carried out and taken back
//! lock.rs         locks that redis-py, redlock and others take too; who blocks
//! limiter.rs      a limiter on the keys of rate-limiter-flexible
//! sessions.rs     sessions of connect-redis, read, extended and rotated
//! cache.rs        cache entries that others write too, with stampede protection
//! bullmq.rs       BullMQ both ways: a producer, and a worker beside Node's
//! sidekiq.rs      jobs for Sidekiq, pushed from Rust
//! celery.rs       tasks for Celery, sent from Rust, and their results
//! text.rs         names from a server, made safe to print
//! script.rs       Lua on keys that another library lays out
//! error.rs        the one error
//! ```
//!
//! # Recognise
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
//! use redstart::Store;
//! use redstart_adopt::{Budget, recognise};
//!
//! let store = Store::connect("memory://").await?;
//! let recognition = recognise(&store, &Budget::default()).await?;
//! for found in &recognition.found {
//!     println!("{} keeps {} ({:.2})", found.library, found.subject, found.confidence);
//! }
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

pub mod bullmq;
pub mod cache;
pub mod celery;
pub mod limiter;
pub mod lock;
pub mod sessions;

mod budget;
mod catalogue;
mod error;
mod found;
mod glimpse;
mod guess;
mod inspect;
mod library;
mod look;
mod migration;
pub mod pattern;
mod plan;
mod recognise;
mod scenario;
mod script;
pub mod sidekiq;
mod source;
mod text;

pub use budget::Budget;
pub use catalogue::lock_token_made_at;
pub use error::{Error, Result};
pub use found::{Found, KeySet, Recognition};
pub use guess::Guess;
pub use inspect::{Inspector, JobView, Overview, Payload, State};
pub use library::{Library, Purpose, UnknownLibrary};
pub use migration::{Declared, Migration, Outcome, Progress, StepReport, Tell};
pub use plan::{Plan, PlanItem, PlanStep};
pub use recognise::{recognise, recognise_from};
pub use scenario::Scenario;
pub use source::{Answer, Source};
pub use text::printable;
