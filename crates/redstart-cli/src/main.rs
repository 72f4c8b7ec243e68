//! The `redstart` command.
//!
//! ```text
//! main.rs      arguments, exit status
//! output.rs    what is printed, and whether it could be written
//! adopt.rs     what other libraries keep on a server, and what to do about it
//! tour.rs      runs every pattern and checks its promises; tour/<family>.rs has the steps
//! guide.rs     which pattern for which need; guide/entries.rs has the table, guide/anti.rs the anti-patterns
//! script.rs    the exact Lua of each pattern, for other languages
//! engine.rs    the embedded engine as a server
//! breaker.rs, cache.rs, limiter.rs, lock.rs, session.rs: one pattern by hand; target.rs is what they share
//! bench.rs     patterns under load, and whether their promises held
//! capacity.rs  how much a deployment needs
//! doctor.rs    finds the faults of programs that use Redis or Valkey
//! queue.rs     a job queue: look, repair, export
//! serve.rs     the patterns over HTTP, with a dashboard
//! ```

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

#[macro_use]
mod output;

mod adopt;
mod bench;
mod breaker;
mod cache;
mod capacity;
mod careful;
mod doctor;
mod engine;
mod guide;
mod limiter;
mod lock;
mod queue;
mod script;
mod serve;
mod session;
mod target;
mod tour;

/// The patterns people build on Redis and Valkey, done right.
///
/// `redstart tour` runs every pattern, on the embedded engine by default.
/// `redstart guide` finds the pattern for a need.
#[derive(Parser)]
#[command(
    name = "redstart",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once, when the program starts"
)]
enum Command {
    /// Recognise which libraries keep data on a server, plan what to do about it, and do it step by step
    Adopt(adopt::Args),
    /// Put patterns under load: speed, cost, memory, and whether their promises held
    Bench(bench::Args),
    /// Look at a circuit breaker, force it open, or reset it
    Breaker(breaker::Args),
    /// Drop a key or a tag of a cache
    Cache(cache::Args),
    /// Plan memory, nodes and hot spots from measured costs: `redstart capacity --sessions 20M`
    Capacity(capacity::Args),
    /// Run every pattern for real and check that its promise holds
    Tour(tour::Args),
    /// Find the pattern for a need: `redstart guide only one worker`
    Guide(guide::Args),
    /// Look at a subject of a rate limiter, or forget what it took
    Limiter(limiter::Args),
    /// Look at a lock, or end its holder's lease
    Lock(lock::Args),
    /// Look into a job queue, retry and cancel jobs, export them
    Queue(queue::Args),
    /// Print the Lua scripts of the patterns: `redstart script mutex.acquire`
    Script(script::Args),
    /// Find the faults of programs that use Redis or Valkey, with proof, and without a write
    Doctor(doctor::Args),
    /// Run the embedded engine as a server that redis-cli and every client can talk to
    Engine(engine::Args),
    /// Serve the patterns over HTTP, with a dashboard and metrics: `redstart serve --demo`
    Serve(serve::Args),
    /// List the sessions of a user, or end them
    Session(session::Args),
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What went wrong, for the exit status.
#[derive(Debug)]
enum Failure {
    /// A promise did not hold.
    Claim,
    /// Invalid arguments or URL.
    Usage(String),
    /// The store cannot be reached.
    Unavailable(String),
    /// Something else.
    Other(String),
    /// Nothing failed, but not everything was looked at.
    Incomplete(String),
    /// Ctrl-C.
    Interrupted,
}

impl From<redstart::Error> for Failure {
    fn from(error: redstart::Error) -> Self {
        if error.is_config() {
            Self::Usage(error.to_string())
        } else if error.is_unavailable() || error.is_timeout() {
            Self::Unavailable(error.to_string())
        } else {
            Self::Other(error.to_string())
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // The help is one of these.
        Err(refusal) => {
            let printed = refusal.print();
            if !refusal.use_stderr() {
                output::note(printed);
            }
            return match refusal.exit_code() {
                0 => exit(Ok(())),
                code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
            };
        }
    };
    let serves = matches!(cli.command, Command::Serve(_));
    let filter = tracing_subscriber::EnvFilter::try_from_env("REDSTART_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let spans = redstart_serve::Spans::default();
    // A service's log is read by programs, and its spans may be sent to a collector.
    match serves {
        true => tracing_subscriber::registry()
            .with(log.json().with_filter(filter))
            .with(spans.layer())
            .init(),
        false => tracing_subscriber::registry()
            .with(log.with_filter(filter))
            .init(),
    }

    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if matches!(cli.command, Command::Engine(_)) {
        runtime.worker_threads(engine::threads());
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit(Err(error.into())),
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Adopt(args) => adopt::run(args).await,
            Command::Bench(args) => Box::pin(bench::run(args)).await,
            Command::Breaker(args) => breaker::run(args).await,
            Command::Cache(args) => cache::run(args).await,
            Command::Capacity(args) => Box::pin(capacity::run(args)).await,
            Command::Tour(args) => tour::run(args).await,
            Command::Guide(args) => guide::run(args),
            Command::Limiter(args) => limiter::run(args).await,
            Command::Lock(args) => lock::run(args).await,
            Command::Queue(args) => queue::run(args).await,
            Command::Script(args) => script::run(args),
            Command::Doctor(args) => doctor::run(args).await,
            Command::Engine(args) => engine::run(args).await,
            Command::Serve(args) => serve::run(args, spans).await,
            Command::Session(args) => session::run(args).await,
            Command::Completions { shell } => {
                let mut out = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "redstart", &mut out);
                say!("{}", String::from_utf8_lossy(&out));
                Ok(())
            }
        }
    });
    // A step that hangs must not keep the command from ending.
    runtime.shutdown_background();
    exit(result)
}

/// One line for a person, one number for a program.
fn exit(result: Result<(), Failure>) -> ExitCode {
    let written = output::written()
        .map_err(|error| Failure::Other(format!("the output could not be written: {error}")));
    let (code, line) = match result.and(written) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Claim) => return ExitCode::from(1),
        Err(Failure::Usage(line)) => (2, line),
        Err(Failure::Unavailable(line)) => (
            3,
            format!(
                "{line} (check the server and the URL; without --url everything runs in this process)"
            ),
        ),
        Err(Failure::Other(line)) => (4, line),
        Err(Failure::Incomplete(line)) => (5, line),
        Err(Failure::Interrupted) => (130, "interrupted".to_owned()),
    };
    anstream::eprintln!("redstart: {line}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(command: &clap::Command, seen: &mut usize) {
        for arg in command
            .get_arguments()
            .filter(|arg| arg.get_env().is_some())
        {
            *seen += 1;
            let (command, arg_name) = (command.get_name(), arg.get_id());
            assert!(
                arg.is_hide_env_values_set(),
                "`{command} --help` prints the value of the variable of {arg_name}, which may have a password"
            );
        }
        for one in command.get_subcommands() {
            walk(one, seen);
        }
    }

    #[test]
    fn help_never_prints_the_value_of_a_variable() {
        let mut seen = 0;
        walk(&Cli::command(), &mut seen);
        assert!(seen > 10, "{seen} arguments with a variable");
    }
}
