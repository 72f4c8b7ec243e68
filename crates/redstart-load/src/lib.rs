//! Load tests and capacity plans for Redstart's patterns.
//!
//! A load test that only measures speed is half a test. Each pattern of the library has a workload here that also
//! keeps a model of what must be true, and a run says whether it was: never above the limit, never two holders, stock
//! conserved, no job lost, ranks equal to those of the model.
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)] async fn main() -> Result<(), redstart_load::Error> {
//! use std::sync::Arc;
//! use redstart_load::{Length, Live, Pace, Settings, find, namespace, run};
//!
//! let settings = Settings {
//!     pace: Pace::Closed { clients: 8 },
//!     length: Length::Operations(500),
//!     keys: 10,
//!     ..Settings::default()
//! };
//! let pattern = find("token_bucket").expect("a pattern of the tour");
//! let report = run("memory://", &namespace(), pattern, &settings, &Arc::new(Live::new())).await?;
//! assert!(report.held, "{:?}", report.broken);
//! println!("{:.0} per second, p99 {:.0} µs", report.ops_per_second, report.p99_us);
//! # Ok(()) }
//! ```
//!
//! # Layout
//!
//! ```text
//! settings.rs    how a pattern is put under load: closed or open loop, keys, payload, caps
//! key_choice.rs  uniform, Zipf, one hot key
//! workload.rs    what an operation of a pattern is and what must hold; workload/<family>.rs
//! cap.rs         the highest rate and the most memory of a run
//! drive.rs       the loop that applies the load, and latency without coordinated omission
//! thread.rs      how busy the threads of this process are
//! server.rs      INFO of every server: CPU, commands, memory, round trips
//! footprint.rs   memory and slots of a run's keys, and their removal
//! run.rs         one pattern from the first key to the last; the ramp
//! report.rs      what a run found; merge.rs puts several processes together
//! baseline.rs    a verdict against an earlier run
//! html.rs        reports as a page with charts
//! capacity.rs    a table of measured costs, and plans made from it
//! address.rs     which URLs lead to this machine
//! ```

#![forbid(unsafe_code)]

mod address;
mod baseline;
mod cap;
pub mod capacity;
mod drive;
mod error;
mod footprint;
mod html;
mod key_choice;
mod merge;
mod report;
mod run;
mod server;
mod settings;
mod thread;
mod workload;

pub use address::{elsewhere, without_credentials};
pub use baseline::{Baseline, Comparison, Verdict};
pub use drive::{Live, Progress};
pub use error::{Error, Result};
pub use footprint::sweep;
pub use html::html;
pub use key_choice::{KeyChoice, Spread};
pub use merge::merge;
pub use report::{CommandCost, Hottest, LargestKey, NaiveReport, RampStep, Report, knee};
pub use run::{compare_naive, namespace, ramp, run, run_on};
pub use settings::{Length, Pace, Settings};
pub use workload::{Pattern, all, find, with_naive_form};
