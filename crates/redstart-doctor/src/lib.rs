//! Finds the faults of programs that use Redis or Valkey, with proof, and without a write.
//!
//! ```text
//! doctor.rs        the examination: stages in order, then the rules
//! target.rs        what is examined: URLs and files
//! node.rs          the servers behind a URL: one, Sentinel, Cluster
//! wire.rs          a connection that can only read, with limits and a count of what it cost; throttle.rs has its rests
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
//! - A server works for the doctor about a hundredth of the time: a connection rests 99 times as long as the server worked for
//!   it, and what leaves together is small. So about one request of a hundred of a live workload meets one of the doctor's, and
//!   waits for the twentieth part of a millisecond.
//! - No own command takes the server long: names are walked in steps of ten, big keys are measured and never read, and
//!   lists of very many clients, groups or consumers are not asked for. How large the entries of a stream are is only known
//!   from its first and its last one, which come with `XINFO STREAM`: that takes the server about 0.2 ms per megabyte of the two.
//! - A server keeps little for MONITOR: it is asked ten times a second how much that is, and the observation ends at 32 MB,
//!   or when what is read is a second old. A server before version 6.2 does not say it; the age decides there. A server that does
//!   not answer delays neither the reading of the others nor the questions to them.
//! - Every command is counted in the report. Names and samples are read from replicas where there are any that follow their
//!   master; a server that has `CLIENT NO-TOUCH` keeps the idle times of its keys.
//! - The keys of a recognised library get no general findings. A name alone recognises nothing: findings about keys that are
//!   only named like a library's are reported, with a confidence too low to fail a run.
//! - No value leaves the server's data: values are looked at for their form, compared by hash, and not kept.
//! - Names are printed without control characters.
//! - What could not be seen is part of the report. An observation that ended early, on one server too, is not complete:
//!   [`Report::is_complete`] is false, and nothing counts as gone since a baseline.
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
//! Because of the rests, about 3,000 names are walked per second: 200,000 in the minute that the walk has by default. Of a
//! larger database that is a sample, taken at random places, and on a Cluster at random slots of every shard; `walk` gives it
//! more time, and `share` more of the server's. The report says how many of the names were seen. The look at keys, the look at
//! streams and the second look at keys have as much time each, and the report says how far they came. A line whose round trips vary
//! by milliseconds looks like a busy server, and the walk is slower over it. After one command alone a rest is at most 5 ms, and
//! after a step of a walk 25 ms, however long it took. MONITOR is no command of that kind: what it costs grows with the traffic,
//! and a server that is at its limit loses part of its throughput to it as long as it runs.
//!
//! A step of the walk takes the server 20 to 40 us, and no command takes it a millisecond as long as it has a processor. On a
//! machine with ten times as much to do as it has processors some do, as do scripts of the same length that only count. The
//! list of 990 clients takes 0.4 to 0.7 ms; one of more than 1,000 is not asked for.
//! The goal for a live workload is that an examination raises its p99 by at most 5 %. The campaign `doctor-live` measures it on ten
//! million keys: four clients send some 7,000 requests per second at random moments, and windows of half a second beside
//! examinations alternate with windows without. The server has one core, the clients another one, and both go before everything else, so
//! that what is measured are the doctor's commands and not the doctor's own work, which is on another machine in production. Of each
//! stage there are the p99 and the server's time per request as ratios of neighbouring windows (the middle of 120 of them, with an interval
//! of 95 %), and the part of the server's core that is busy more; then the time of each own command by SLOWLOG. It fails
//! where a stage raises the p99 by more than 5 %, where the first two stages take more than 2 % of the core, where one of a thousand own
//! commands takes a millisecond, and where windows without examinations differ by 5 % among themselves, because then nothing is shown.
//! `docs/reliability.md` has its numbers. `cargo nextest run -p redstart-doctor --test clinic live --no-capture` prints them for this
//! machine; `REDSTART_SCALE_DOCTOR_LIVE_KEYS` and `REDSTART_SCALE_DOCTOR_LIVE_ROUNDS` make it larger.
//!
//! MONITOR costs a server time for each command of its clients, and nothing that a reader does avoids all of it: the server has to
//! write each command down. The doctor reads in turns, so that the server sends very many lines at once; a reader that takes each line
//! when it comes makes small requests a third dearer. A server that is at its limit, with requests that are pipelined, still loses up
//! to half of its throughput. So where its main thread works for 90 % of two seconds the observation ends, unless `share` is 50 and
//! more. A server before version 7 does not say how much its main thread works.
//!
//! Of very many queues, processes or channels some are looked at, and the report says so. The commands of 50,000 keys are
//! followed, those of the first 50,000 connections, and those of 10,000 channels; with very many clients at work on each key at once, fewer of a key's open reads.
//!
//! No other tool is compared with: redis-doctor, the nearest one on PyPI, cannot be had from there any more.

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
mod throttle;
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
