//! Finds the faults of programs that use Redis or Valkey, with proof, and without a write.
//!
//! ```text
//! doctor.rs        the examination: stages in order, then the rules
//! target.rs        what is examined: URLs and files
//! node.rs          the servers behind a URL: one, Sentinel, Cluster
//! wire.rs          a connection that can only read, with limits and a count of what it cost
//! collect/         one collector per source: server, keys, stream, recognition, library, monitor
//! snapshot.rs      an RDB file in an engine of its own; aof.rs is the same for an append-only file
//! trace.rs         MONITOR folded into sequences per connection and key; trace/key.rs is one key's history
//! pattern.rs       key patterns, and what a name says about a key's use
//! library.rs       libraries that are recognised by what their keys hold; library/sign.rs has what names say
//! observation.rs   the facts; rules read nothing else
//! rules/           one file per rule: documentation, query, tests
//! report.rs        findings for people and programs: terminal, Markdown, HTML, JSON, SARIF
//! suppression.rs   findings that are accepted, with a reason and an end
//! baseline.rs      comparison with an earlier run
//! ```
//!
//! # Sources
//!
//! A server by its URL, an RDB file, an append-only file (with or without a base in RDB format), and a log of commands for
//! the observed stage where MONITOR may not run. The log is what MONITOR printed, or what an application or a proxy writes
//! itself, one JSON object per line:
//!
//! ```json
//! {"time":1767268800.25,"client":"api-1","command":["GET","product:7"]}
//! ```
//!
//! `time` is in seconds since 1970 or in RFC 3339, with fractions: the order of the lines is the order of the commands, and
//! times decide which locks and entries had expired. `client` names the connection, because races are told by which
//! connection sent what. `db` is optional.
//!
//! # Promises
//!
//! - Nothing is written: commands that could write are refused before they are sent.
//! - No own command takes the server long: names are walked in steps of 100, big keys are measured and never read, and
//!   lists of very many clients, groups or consumers are not asked for. How large the entries of a stream are is only known
//!   from its first and its last one, which come with `XINFO STREAM`: that takes the server about 0.2 ms per megabyte of the two.
//! - A server keeps little for MONITOR: it is asked ten times a second how much that is, and the observation ends at 32 MB,
//!   or when what is read is a second old. A server before version 6.2 does not say it; the age decides there.
//! - Every command is counted in the report. Names and samples are read from replicas where there are any that follow their
//!   master; a server that has `CLIENT NO-TOUCH` keeps the idle times of its keys.
//! - The keys of a recognised library get no general findings. A name alone recognises nothing: findings about keys that are
//!   only named like a library's are reported, with a confidence too low to fail a run.
//! - No value leaves the server's data: values are looked at for their form, compared by hash, and not kept.
//! - Names are printed without control characters.
//! - What could not be seen is part of the report.
//!
//! # Limits
//!
//! A sample may miss a key that exists once among millions. MONITOR shows commands and not replies, and only what
//! happens while it runs. What a program does with its database is not visible, nor are settings of clients: Celery's
//! visibility time-out is taken to be the default unless a connected worker shows that it is longer, and a counter
//! without TTL may be meant.
//!
//! Between two questions about MONITOR's backlog a server can be made to keep more than 32 MB, as much as its clients write in
//! a tenth of a second.
//!
//! A step of the walk takes the server 0.1 to 0.2 ms, and no command takes it a millisecond as long as it has a processor: of
//! 1,452 commands over 100,000 keys none did. On a machine with ten times as much to do as it has processors, 48 of 10,532
//! commands over a million keys did, as did 17 of as many scripts of half the length that only count.
//! The goal for a live workload is that one examination raises its p99 by at most 5 %. That is measured and not promised: on a
//! machine with two busy processors, two windows without an examination differ by 10 to 80 % in p99, and MONITOR costs a server
//! that is at its limit part of its throughput. `cargo nextest run -p redstart-doctor --test clinic cost --no-capture` prints
//! what each stage costs the clients of a server here, beside what the machine does on its own;
//! `REDSTART_SCALE_DOCTOR_LIVE_KEYS` sets how many keys it has.

#![forbid(unsafe_code)]

mod aof;
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
mod snapshot;
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
