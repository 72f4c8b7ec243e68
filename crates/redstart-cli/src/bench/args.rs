//! The arguments of `redstart bench`.

use std::{path::PathBuf, time::Duration};

use redstart_load::{Length, Pace, Settings, Spread};

use crate::Failure;

/// Arguments of `redstart bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The patterns, by their names in the tour; all of them if none is given. `get` is one GET, as a yardstick
    pub(super) patterns: Vec<String>,
    /// The store: memory://, redis://host, redis+sentinel://…, redis+cluster://…
    #[arg(
        long,
        default_value = "memory://",
        env = "REDSTART_URL",
        hide_env_values = true
    )]
    pub(super) url: String,
    /// Closed loop: number of clients, each with one operation at a time
    #[arg(long, default_value_t = 64)]
    pub(super) clients: usize,
    /// Open loop: operations per second, with latency counted from when each was due
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// How many operations of an open loop may be under way
    #[arg(long, default_value_t = 1000, requires = "rate")]
    pub(super) in_flight: usize,
    /// How long each pattern runs
    #[arg(long, default_value_t = 5.0)]
    pub(super) seconds: f64,
    /// Number of operations to run, instead of a time
    #[arg(long, conflicts_with = "seconds")]
    pub(super) operations: Option<u64>,
    /// How many entities operations choose from; patterns that keep a model of each have a highest number
    #[arg(long, default_value_t = 1000)]
    pub(super) keys: u64,
    /// How they are chosen: uniform, zipf, zipf:<exponent>, hot, hot:<share>
    #[arg(long, default_value = "uniform")]
    pub(super) spread: Spread,
    /// Bytes of a value, where the pattern has values
    #[arg(long, default_value_t = 100)]
    pub(super) payload: usize,
    /// The share of writes from 0 to 1; by default the pattern's own
    #[arg(long)]
    pub(super) writes: Option<f64>,
    /// Double the load step by step and find where more brings little more; --seconds is the length of a step
    #[arg(long)]
    pub(super) ramp: bool,
    /// Run each pattern on this store too, and compare
    #[arg(long, value_name = "URL", conflicts_with = "ramp")]
    pub(super) against: Option<String>,
    /// Number of processes that put load on the server, each with --clients and a namespace of its own
    #[arg(long, default_value_t = 1, conflicts_with_all = ["ramp", "against", "naive"])]
    pub(super) processes: usize,
    /// Add the histogram to the JSON
    #[arg(long, hide = true, requires = "json")]
    pub(super) histogram: bool,
    /// Be one of several processes: wait for a line at the end of each stage, and tell how the load goes on
    #[arg(long, hide = true, requires = "json")]
    pub(super) together: bool,
    /// How many bytes the preparation may write, for one of several processes
    #[arg(long, hide = true, requires = "json")]
    pub(super) max_written: Option<u64>,
    /// The namespace of the keys, for one of several processes
    #[arg(long, hide = true, requires = "json")]
    pub(super) namespace: Option<String>,
    /// Run the form that people write by hand beside ours, and count what goes wrong; without names, all that have one
    #[arg(long, conflicts_with_all = ["ramp", "against"])]
    pub(super) naive: bool,
    /// Compare with earlier results, as --json wrote them; exit code 1 if a pattern is slower
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,
    /// The share in percent by which a pattern may be slower than the baseline
    #[arg(long, default_value_t = 10.0, requires = "baseline")]
    pub(super) tolerance: f64,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// The most operations per second; 10,000 on a server that is not this machine. What an open loop could not send during a
    /// stall is not sent on top of it, so a cap somewhat above --rate lets it catch up
    #[arg(long)]
    pub(super) max_rate: Option<f64>,
    /// Stop a run when the server's memory has grown by this many MiB, or its preparation has written as many
    #[arg(long, default_value_t = 256)]
    pub(super) max_memory: u64,
    /// Do not ask before putting load on a server that is not this machine
    #[arg(long)]
    pub(super) yes: bool,
    /// The same seed draws the same keys
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// One JSON object per pattern and line, for programs
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let seconds = Duration::try_from_secs_f64(self.seconds)
            .map_err(|_| Failure::Usage("--seconds must be a positive number".to_owned()))?;
        Ok(Settings {
            pace: match self.rate {
                Some(rate) => Pace::Open {
                    rate,
                    in_flight: self.in_flight,
                },
                None => Pace::Closed {
                    clients: self.clients,
                },
            },
            length: match self.operations {
                Some(operations) => Length::Operations(operations),
                None => Length::Time(seconds),
            },
            keys: self.keys,
            spread: self.spread,
            payload: self.payload,
            writes: self.writes,
            max_rate: self.max_rate,
            idle: Duration::from_secs(1),
            max_memory: self.max_memory.saturating_mul(1 << 20),
            max_written: self.max_written,
            seed: self.seed,
        })
    }

    /// The arguments of one of several processes: its share of a rate, and keys of its own.
    pub(super) fn repeated(&self, settings: &Settings, process: usize) -> Vec<String> {
        let share = |rate: f64| (rate / self.processes as f64).to_string();
        let mut args: Vec<String> = Vec::new();
        let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        add("--clients", self.clients.to_string());
        if let Some(rate) = self.rate {
            add("--rate", share(rate));
            add("--in-flight", self.in_flight.to_string());
        }
        match self.operations {
            // The first ones take what does not divide.
            Some(operations) => {
                let processes = self.processes as u64;
                let rest = u64::from((process as u64) < operations % processes);
                add("--operations", (operations / processes + rest).to_string());
            }
            None => add("--seconds", self.seconds.to_string()),
        }
        add("--keys", self.keys.to_string());
        add("--spread", self.spread.to_string());
        add("--payload", self.payload.to_string());
        if let Some(writes) = self.writes {
            add("--writes", writes.to_string());
        }
        if let Some(rate) = settings.max_rate {
            add("--max-rate", share(rate));
        }
        add("--max-memory", self.max_memory.to_string());
        // Each sees the memory of the whole server, but only what it writes itself.
        let written = settings.max_memory / self.processes as u64;
        add("--max-written", written.to_string());
        add("--seed", (self.seed + process as u64).to_string());
        args
    }

    pub(super) fn urls(&self) -> impl Iterator<Item = &str> {
        [self.url.as_str()]
            .into_iter()
            .chain(self.against.as_deref())
    }
}
