//! `redstart breaker`: the state of a circuit, and changing it by hand.

use std::time::Duration;

use redstart::resilience::{Breaker, CircuitState};

use crate::{Failure, careful::Careful, target::ByHand};

/// Arguments of `redstart breaker`.
pub(crate) type Args = ByHand<Command>;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show whether the circuit is closed, open or half-open
    Show,
    /// Refuse all calls of all instances for some time; the circuit is then probed as usual
    ForceOpen {
        /// For how many seconds
        #[arg(long = "for", value_name = "SECONDS", default_value_t = 60.0)]
        time: f64,
        #[command(flatten)]
        careful: Careful,
    },
    /// Close the circuit for all instances, and forget what they saw
    Reset {
        #[command(flatten)]
        careful: Careful,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let target = &args.target;
    let (store, namespace, name) = target.open("breaker").await?;
    let breaker = Breaker::builder(&store, namespace, name).open().await?;
    match args.command {
        Command::Show => {
            let state = match breaker.state() {
                CircuitState::Closed => "closed",
                CircuitState::Open => "open",
                CircuitState::HalfOpen => "half-open",
            };
            match target.json {
                true => say!("{}", serde_json::json!({ "state": state })),
                false => say!("{state}"),
            }
            Ok(())
        }
        Command::ForceOpen { time, careful } => {
            let time = Duration::try_from_secs_f64(time)
                .map_err(|_| Failure::Usage("--for must be a number of seconds".to_owned()))?;
            let what = format!("refuse all calls through {name:?} for {time:?}");
            if !careful.confirm(&what, args.target.json)? {
                return Ok(());
            }
            breaker.force_open(time).await?;
            target.done("opened", 1)
        }
        Command::Reset { careful } => {
            if !careful.confirm(&format!("close the circuit {name:?}"), args.target.json)? {
                return Ok(());
            }
            breaker.reset().await?;
            target.done("closed", 1)
        }
    }
}
