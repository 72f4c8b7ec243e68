//! `redstart engine handover`: moves a running engine's data, and its clients, to a Redis or Valkey.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use redstart::store::{Handover, HandoverReport, HandoverStep};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Arguments of `redstart engine handover`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server that takes over: redis://[user:password@]host[:port]
    #[arg(long, value_name = "URL")]
    to: String,
    /// Where the engine listens, as the server reaches it
    #[arg(
        long,
        value_name = "URL",
        env = "REDSTART_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6380"
    )]
    from: String,
    /// Replace the data that the server has
    #[arg(long)]
    overwrite: bool,
    /// Where clients reach the server, if not under the address of --to
    #[arg(long, value_name = "HOST:PORT", value_parser = place)]
    announce: Option<(String, u16)>,
    /// Hold writes back for no longer than this, and back out otherwise
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    longest_pause: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn place(text: &str) -> Result<(String, u16), String> {
    let (host, port) = text.rsplit_once(':').ok_or("give it as HOST:PORT")?;
    let port = port.parse().map_err(|_| "the port is not a number")?;
    Ok((host.to_owned(), port))
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut builder = Handover::builder(&args.from, &args.to)
        .overwrite(args.overwrite)
        .longest_pause(Duration::from_secs(args.longest_pause));
    if let Some((host, port)) = args.announce {
        builder = builder.announce(host, port);
    }
    let handover = builder.build()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let interrupted = std::sync::atomic::AtomicBool::new(false);
    let cancelled = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        interrupted.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let bar = match args.json {
        true => ProgressBar::hidden(),
        false => ProgressBar::new_spinner().with_style(style()),
    };
    let told = |step: &HandoverStep| {
        bar.set_message(step.to_string());
        bar.tick();
    };
    let done = handover.run(told, cancelled).await;
    bar.finish_and_clear();
    match done {
        Ok(report) => {
            show(&report, args.json);
            Ok(())
        }
        Err(error) if error.is_in_doubt() => Err(Failure::Other(format!(
            "{error}: whether the engine has moved is not known; ask it with `GET x`, which it \
             refuses with REDIRECT if so"
        ))),
        Err(_) if interrupted.load(std::sync::atomic::Ordering::Relaxed) => {
            Err(Failure::Interrupted)
        }
        Err(error) => Err(error.into()),
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn show(report: &HandoverReport, json: bool) {
    let pause = report.pause.as_secs_f64() * 1000.0;
    if json {
        let report = serde_json::json!({
            "place": report.place,
            "keys": report.keys,
            "keys_in_pause": report.keys_in_pause,
            "pause_ms": pause,
            "clock_ahead_micros": report.clock_ahead_micros,
        });
        say!("{report}");
        return;
    }
    say!("moved {} keys to {}", report.keys, report.place);
    say!(
        "writes were held back for {pause:.1} ms, in which {} changed keys were compared again",
        report.keys_in_pause
    );
    let ahead = report.clock_ahead_micros as f64 / 1_000_000.0;
    if ahead.abs() >= 1.0 {
        say!(
            "the server's clock is {ahead:+.1} s ahead of the engine's: leases and limits shift by that"
        );
    }
    say!(
        "the engine refuses commands with REDIRECT {}; stop it when no client asks it any more",
        report.place
    );
}
