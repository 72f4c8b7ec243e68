//! Finds the faults of programs that use Redis or Valkey, with proof, and without a write.
//!
//! ```text
//! doctor.rs        the examination: stages in order, then the rules
//! target.rs        what is examined: URLs and files
//! node.rs          the servers behind a URL: one, Sentinel, Cluster
//! wire.rs          a connection that can only read, with limits and a count of what it cost
//! collect/         one collector per source: server, keys, stream, library, monitor
//! trace.rs         MONITOR folded into sequences per connection and key; trace/key.rs is one key's history
//! pattern.rs       key patterns, and what a name says about a key's use
//! library.rs       libraries that are recognised by their keys
//! observation.rs   the facts; rules read nothing else
//! rules/           one file per rule: documentation, query, tests
//! report.rs        findings for people and programs: terminal, Markdown, HTML, JSON, SARIF
//! suppression.rs   findings that are accepted, with a reason and an end
//! baseline.rs      comparison with an earlier run
//! ```
//!
//! # Promises
//!
//! - Nothing is written: commands that could write are refused before they are sent.
//! - No own command takes the server long: names are walked in steps of 100, big keys are measured and never read, and
//!   MONITOR ends when it cannot be read as fast as it comes.
//! - No value leaves the server's data: values are looked at for their form, compared by hash, and not kept.
//! - Names are printed without control characters.
//! - What could not be seen is part of the report.
//!
//! # Limits
//!
//! A sample may miss a key that exists once among millions. MONITOR shows commands and not replies, and only what
//! happens while it runs. What a program does with its database is not visible.

#![forbid(unsafe_code)]

mod baseline;
mod budget;
mod collect;
mod cost;
mod doctor;
mod error;
mod finding;
mod library;
mod node;
mod observation;
mod pattern;
mod progress;
mod report;
mod rule;
mod rules;
mod suppression;
mod target;
mod text;
mod tls;
mod trace;
mod wire;

pub use baseline::{Baseline, Comparison};
pub use collect::Blind;
pub use cost::Cost;
pub use doctor::{Doctor, DoctorBuilder};
pub use error::{Error, Result};
pub use finding::{Finding, SURE, Severity};
pub use observation::Stage;
pub use progress::{Progress, Step};
pub use report::{PatternSummary, Report, Server, StageReport};
pub use rule::{Family, Rule};
pub use rules::{RULES, rule};
pub use suppression::Suppressions;
