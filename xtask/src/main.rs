//! What CI and people run.
//!
//! ```text
//! servers.rs   finds redis-server, valkey-server and Postgres, or installs them
//! test.rs      everything that must hold before a commit
//! suite.rs     the whole suite round after round, without retries
//! soak.rs      the fault and race campaigns: the same tests with larger counts
//! api.rs       the public API against its committed list
//! feature.rs   each cargo feature alone and all together
//! deny.rs      licences and sources of the dependencies
//! picture.rs   the tour's output as an SVG for the README
//! weight.rs    what the library adds to a service
//! step.rs      runs commands, times them, sums them up
//! ```

#![forbid(unsafe_code)]

mod api;
mod deny;
mod feature;
mod picture;
mod report;
mod servers;
mod soak;
mod step;
mod suite;
mod test;
mod weight;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::step::cargo;

/// Tasks of this repository.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Find redis-server, valkey-server and Postgres; install what is missing
    Servers,
    /// Check formatting, lints and docs; run unit, matrix and doc tests and the examples
    Test(test::Options),
    /// Run the fault and race campaigns with larger counts
    Soak(soak::Options),
    /// Send random commands to the embedded engine and to real servers, and compare
    Fuzz {
        /// How many commands to send to each server; with --parser, how many inputs
        #[arg(long, default_value_t = 1_000_000)]
        commands: u64,
        /// The seed; the same seed gives the same commands
        #[arg(long)]
        seed: Option<u64>,
        /// Feed random input to the request parser instead
        #[arg(long)]
        parser: bool,
    },
    /// Run seeded worlds in which servers, processes and the network fail
    Sim {
        /// `--seeds N`, `--seed S`, `--pattern P`, `--minutes M`; `--help` shows all
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Compare the public API with its committed list
    Api(api::Options),
    /// Check each cargo feature of the library alone, all together, and none
    Features,
    /// Check licences and sources of all dependencies by cargo-deny
    Deny,
    /// Write docs/tour.svg from the output of the tour
    Picture,
    /// Build small services with and without the library: CPU time of the build, size of the program
    Weight,
    /// Run the side-by-side benchmarks
    Bench {
        /// Names of benchmarks, and options for them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if all went well; failures have been printed.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::Servers => servers::ensure().map(|()| true),
        Task::Test(options) => test::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Fuzz {
            commands,
            seed,
            parser,
        } => {
            let mut command = cargo(&["test", "-p", "redstart-engine"]);
            if parser {
                command.args(["--lib", "--", "fuzz_parser", "--nocapture"]);
                command.env("REDSTART_SCALE_PARSER", commands.to_string());
            } else {
                servers::ensure()?;
                command.args(["--test", "differential"]);
                command.args(["--", "fresh_sequences", "--nocapture"]);
                command.env("REDSTART_FUZZ_COMMANDS", commands.to_string());
            }
            if let Some(seed) = seed {
                command.env("REDSTART_FUZZ_SEED", seed.to_string());
            }
            Ok(command.status()?.success())
        }
        Task::Sim { args } => {
            let mut command = cargo(&["run", "--profile", "sim", "-q", "-p", "redstart-sim", "--"]);
            Ok(command.args(args).status()?.success())
        }
        Task::Api(options) => api::run(&options),
        Task::Features => feature::run(),
        Task::Deny => deny::run(),
        Task::Picture => picture::run(),
        Task::Weight => weight::run(),
        Task::Bench { args } => {
            servers::ensure()?;
            let mut command = cargo(&["run", "--release", "-p", "redstart-bench", "--"]);
            Ok(command.args(args).status()?.success())
        }
    }
}
