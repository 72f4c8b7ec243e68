//! `redstart limiter`: how a subject stands, and forgetting what it took.

use redstart::limiting::{Algorithm, Limiter};

use crate::{Failure, careful::Careful, target::Target};

/// Arguments of `redstart limiter`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    limit: Limit,
    #[command(subcommand)]
    command: Command,
}

/// The settings of a limiter. Its keys have them in their names, so they must be those of the programs that use it.
#[derive(clap::Args)]
struct Limit {
    /// How it counts
    #[arg(long, global = true, value_enum, default_value_t)]
    algorithm: AlgorithmName,
    /// Units per period: 100/s, 20/m, 5/15m
    #[arg(long, global = true)]
    quota: Option<String>,
    /// How many may come at once; for token buckets
    #[arg(long, global = true)]
    burst: Option<u64>,
    /// What it grants can be given back
    #[arg(long, global = true)]
    refundable: bool,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum AlgorithmName {
    #[default]
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show what a subject has left, and take nothing
    Show {
        /// Whose limit it is
        subject: String,
    },
    /// Forget what subjects took: they have the whole limit again
    Reset {
        /// Whose limits they are
        #[arg(required = true)]
        subjects: Vec<String>,
        #[command(flatten)]
        careful: Careful,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (target, limit) = (&args.target, &args.limit);
    let quota = limit.quota.as_deref().ok_or_else(|| {
        Failure::Usage("`redstart limiter` needs --quota, such as 100/m".to_owned())
    })?;
    let quota = redstart_serve::parse_quota(quota, limit.burst)?;
    let algorithm = match limit.algorithm {
        AlgorithmName::TokenBucket => Algorithm::TokenBucket,
        AlgorithmName::FixedWindow => Algorithm::FixedWindow,
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::SlidingCounter => Algorithm::SlidingCounter,
    };
    let (store, namespace, name) = target.open("limiter").await?;
    let builder = Limiter::builder(&store, namespace, name, algorithm, quota);
    let limiter = match limit.refundable {
        true => builder.refundable().build()?,
        false => builder.build()?,
    };
    match args.command {
        Command::Show { subject } => {
            let now = limiter.peek(&subject).await?;
            let whole = now.reset_after.as_secs_f64();
            match target.json {
                true => say!(
                    "{}",
                    serde_json::json!({ "limit": now.limit, "remaining": now.remaining, "reset_after": whole })
                ),
                false => say!(
                    "{} of {} left, whole again in {whole:.1} s",
                    now.remaining,
                    now.limit
                ),
            }
            Ok(())
        }
        Command::Reset { subjects, careful } => {
            let count = subjects.len();
            if !careful.confirm(
                &format!("forget what {count} subjects took"),
                args.target.json,
            )? {
                return Ok(());
            }
            for subject in &subjects {
                limiter.reset(subject).await?;
            }
            target.done("reset", subjects.len() as u64)
        }
    }
}
