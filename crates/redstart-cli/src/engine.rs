//! `redstart engine`: the embedded engine as a server.

use std::{net::SocketAddr, path::PathBuf};

use redstart_engine::{
    Engine, Fsync,
    server::{Server, ServerConfig, ServerError},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Arguments of `redstart engine`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; one that others can reach needs --requirepass
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6380")]
    listen: SocketAddr,
    /// Listen on a unix socket too
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Keep the data in this folder; without it, it lives in memory only
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// When to force the log to the disk
    #[arg(long, value_enum, default_value_t = FsyncArg::Everysec, requires = "data")]
    fsync: FsyncArg,
    /// The password that clients must give
    #[arg(long, env = "REDSTART_REQUIREPASS", hide_env_values = true)]
    requirepass: Option<String>,
    /// Refuse what a Cluster would refuse
    #[arg(long)]
    cluster_strict: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum FsyncArg {
    /// Before a write is acknowledged
    Always,
    /// Within about a second
    Everysec,
    /// When the operating system decides
    No,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let mut builder = Engine::builder()
        .cluster_strict(args.cluster_strict)
        .password(args.requirepass);
    if let Some(dir) = &args.data {
        let fsync = match args.fsync {
            FsyncArg::Always => Fsync::Always,
            FsyncArg::Everysec => Fsync::EverySec,
            FsyncArg::No => Fsync::No,
        };
        std::fs::create_dir_all(dir)?;
        builder = builder.append_only(dir, fsync);
    }
    let engine = builder
        .build()
        .map_err(|error| Failure::Other(error.to_string()))?;
    let mut config = ServerConfig::new().listen(args.listen);
    if let Some(path) = &args.unix {
        config = config.unix(path);
    }
    let server = Server::bind(engine, config)
        .await
        .map_err(|error| match error {
            ServerError::Listen(..) => Failure::Unavailable(error.to_string()),
            error => Failure::Usage(error.to_string()),
        })?;
    let mut terminate = signal(SignalKind::terminate())?;
    // The line that a script waits for.
    let address = server
        .local_addr()
        .map_or_else(String::new, |address| address.to_string());
    say!("ready: redis://{address}");
    server
        .run(async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        })
        .await;
    say!("stopped");
    Ok(())
}
