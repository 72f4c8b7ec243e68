//! `redstart serve`: the patterns over HTTP, with a dashboard and metrics.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use redstart::Store;
use redstart_serve::{Config, Service};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Arguments of `redstart serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; one that others can reach needs a token in the configuration
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8380")]
    listen: SocketAddr,
    /// The store; `memory://` runs the engine in this process
    #[arg(long, env = "REDSTART_URL", default_value = "memory://")]
    url: String,
    /// The configuration file (TOML); it is read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and the store, and end
    #[arg(long)]
    check: bool,
    /// Fill the store with a small living shop
    #[arg(long)]
    demo: bool,
    /// Refuse all changes
    #[arg(long, conflicts_with = "demo")]
    read_only: bool,
    /// Print the hash of a token read from standard input, for the configuration, and end
    #[arg(long, exclusive = true)]
    hash_token: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if args.hash_token {
        return hash_token();
    }
    let config = read(&args)?;
    let store = Store::connect(&args.url).await?;
    let service = Service::new(&store, config)?;
    if args.check {
        let health = store.health().await?;
        let (major, minor, patch) = health.version;
        say!(
            "configuration and store are in order: {:?} {major}.{minor}.{patch}, answered in {:?}",
            health.server,
            health.round_trip
        );
        return Ok(());
    }
    let listener = service.bind(args.listen).await.map_err(|error| {
        match error.kind() == std::io::ErrorKind::PermissionDenied {
            true => Failure::Usage(error.to_string()),
            false => Failure::Unavailable(format!("cannot listen on {}: {error}", args.listen)),
        }
    })?;
    let address = listener.local_addr()?;
    let demo = match args.demo {
        true => Some(redstart_serve::Demo::start(&store).await?),
        false => None,
    };
    // The line that a script waits for.
    say!("ready: http://{address}");
    if demo.is_some() {
        say!("the demo shop is in the namespace `shop`: http://{address}/?namespace=shop");
    }
    let reloading = tokio::spawn(reload(args, service.clone()));
    let mut terminate = signal(SignalKind::terminate())?;
    service
        .run(listener, async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        })
        .await;
    reloading.abort();
    if let Some(demo) = demo {
        demo.stop().await;
    }
    store.settle().await;
    say!("stopped");
    Ok(())
}

fn hash_token() -> Result<(), Failure> {
    let mut token = String::new();
    std::io::stdin().read_line(&mut token)?;
    let token = token.trim_end_matches(['\r', '\n']);
    if token.len() < 16 {
        return Err(Failure::Usage(
            "a token must have at least 16 characters; try `openssl rand -hex 32`".to_owned(),
        ));
    }
    say!("{}", redstart_serve::hash_token(token));
    Ok(())
}

fn read(args: &Args) -> Result<Config, Failure> {
    let mut config = match &args.config {
        None => Config::default(),
        Some(path) => {
            let shown = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("cannot read {shown}: {error}")))?;
            Config::parse(&text).map_err(|error| Failure::Usage(format!("{shown}: {error}")))?
        }
    };
    if args.read_only {
        config.read_only();
    }
    Ok(config)
}

/// Reads the configuration again on SIGHUP and when the file changes. A file with an error changes nothing.
async fn reload(args: Args, service: Service) {
    let Some(path) = args.config.clone() else {
        return;
    };
    let look = || {
        let file = std::fs::metadata(&path).ok()?;
        Some((file.modified().ok()?, file.len()))
    };
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return;
    };
    let mut taken = look();
    let mut before = taken;
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(Duration::from_secs(2)) => false,
        };
        let now = look();
        // A file that changed since the last look may still be written.
        let is_whole = now == std::mem::replace(&mut before, now);
        if !asked && (now == taken || !is_whole) {
            continue;
        }
        taken = now;
        match read(&args) {
            Ok(config) => match service.reload(config) {
                Ok(()) => tracing::info!("the configuration was read again"),
                Err(error) => tracing::error!(%error, "the configuration is unchanged"),
            },
            Err(Failure::Usage(error)) => {
                tracing::error!(error, "the configuration is unchanged: the file is invalid");
            }
            Err(_) => {}
        }
    }
}
