//! `redstart engine`: the embedded engine as a server.

use std::path::PathBuf;

use crate::Failure;

/// Arguments of `redstart engine`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; one that others can reach needs --requirepass
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6380")]
    listen: String,
    /// Listen on a unix socket too
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Keep the data in this folder; without it, it lives in memory only
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// When to force the log to the disk: always, everysec or no
    #[arg(long, default_value = "everysec", requires = "data")]
    fsync: String,
    /// The password that clients must give
    #[arg(long, env = "REDSTART_REQUIREPASS", hide_env_values = true)]
    requirepass: Option<String>,
    /// Refuse what a Cluster would refuse
    #[arg(long)]
    cluster_strict: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let _ = (
        args.listen,
        args.unix,
        args.data,
        args.fsync,
        args.requirepass,
        args.cluster_strict,
    );
    Err(Failure::Other(
        "the listener is not part of this build".to_owned(),
    ))
}
