//! Redstart beside its peers: every number is a ratio of two measurements of one run.
//!
//! ```text
//! measure.rs   rounds in which the contestants alternate, and the rows they make
//! peer.rs      the connection under a peer that is written by hand
//! report.rs    the rows as a table, and as a page with a chart
//! store.rs     the cost of the seam
//! client.rs    other clients, TLS and a Cluster
//! engine.rs    the embedded engine against a server on loopback
//! limiting.rs  the token bucket against the script that people copy
//! locking.rs   the mutex against a bare loop, rslock and redisson; hand-over between processes
//! caching.rs   caches beside bare moka, GET and XADD
//! database.rs  write-behind to SQLite beside a batching writer
//! messaging.rs the job queue and sessions beside bare loops and other queues
//! data.rs      leaderboards, filters
//! serve.rs     a check over HTTP and gRPC against the library
//! ```
//!
//! A family adds a file with `pub async fn run(bench: &mut Bench) -> anyhow::Result<()>` and a line in
//! `FAMILIES`.

#![forbid(unsafe_code)]

use std::{future::Future, pin::Pin};

use clap::Parser;

mod caching;
mod client;
mod data;
mod database;
mod engine;
mod goal;
mod limiting;
mod locking;
mod measure;
mod messaging;
mod peer;
mod report;
mod serve;
mod store;

use measure::Bench;

type Run = for<'a> fn(&'a mut Bench) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

const FAMILIES: &[(&str, Run)] = &[
    ("store", |bench| Box::pin(store::run(bench))),
    ("client", |bench| Box::pin(client::run(bench))),
    ("engine", |bench| Box::pin(engine::run(bench))),
    ("limiting", |bench| Box::pin(limiting::run(bench))),
    ("locking", |bench| Box::pin(locking::run(bench))),
    ("caching", |bench| Box::pin(caching::run(bench))),
    ("database", |bench| Box::pin(database::run(bench))),
    ("messaging", |bench| Box::pin(messaging::run(bench))),
    ("data", |bench| Box::pin(data::run(bench))),
    ("serve", |bench| Box::pin(serve::run(bench))),
];

/// Measures Redstart beside its peers. Exits with 1 if a ratio is below its floor.
#[derive(Parser)]
struct Args {
    /// Families to run; all of them if none is named.
    families: Vec<String>,
    /// Length of one measurement in milliseconds.
    #[arg(long, default_value_t = 150)]
    millis: u64,
    /// How many rounds; the median counts.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Only comparisons of rates whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Write a page with a chart; docs/benchmarks.md unless a file is named.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/benchmarks.md")]
    report: Option<std::path::PathBuf>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    if let Some(child) = locking::Contender::from_env() {
        return child.run();
    }
    let args = Args::parse();
    if let Some(unknown) = args
        .families
        .iter()
        .find(|name| !FAMILIES.iter().any(|(n, _)| n == name))
    {
        let known: Vec<_> = FAMILIES.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("no family {unknown:?}; there are {}", known.join(", "));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut bench = Bench::new(args.millis, args.rounds, args.json, args.only);
    runtime.block_on(async {
        for (name, run) in FAMILIES {
            if args.families.is_empty() || args.families.iter().any(|wanted| wanted == name) {
                bench.family(name);
                run(&mut bench).await?;
            }
        }
        anyhow::Ok(())
    })?;
    let held = bench.finish(args.report.as_deref())?;
    std::process::exit(if held { 0 } else { 1 })
}
