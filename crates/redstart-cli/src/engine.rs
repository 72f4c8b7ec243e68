//! `redstart engine`: the embedded engine as a server, and what else can be done with its data.

use std::{net::SocketAddr, path::PathBuf};

use redstart_engine::{
    Compat, Engine, Fsync, Settings, SettingsError,
    server::{ClientCertificates, Server, ServerConfig, ServerError, Tls},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

mod backup;
mod export;
mod handover;
mod import;
mod summary;

/// Arguments of `redstart engine`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// A configuration file in Redis's format
    #[arg(value_name = "REDIS.CONF")]
    config: Option<PathBuf>,
    /// Change a setting by Redis's name; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// The address to listen on; one that others can reach needs --requirepass [default:
    /// 127.0.0.1:6380, or what the configuration file says]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
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
    /// The server whose commands to have and whose version to tell: 7.0, 7.4, 8.0, 8.2 or valkey-9
    #[arg(long, value_name = "VERSION", default_value_t = Compat::default())]
    compat: Compat,
    /// Read the users from this file; ACL SAVE writes it
    #[arg(long, value_name = "FILE")]
    aclfile: Option<PathBuf>,
    /// Be a cluster of one node, for cluster clients
    #[arg(long)]
    cluster: bool,
    /// Encrypt TCP connections: the certificate chain, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authority that signs the certificates of clients
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Whether clients show a certificate [default: yes with --tls-ca, otherwise no]
    #[arg(long, value_enum, requires = "tls_cert")]
    tls_auth_clients: Option<AuthClients>,
    /// Refuse what a Cluster would refuse
    #[arg(long)]
    cluster_strict: bool,
}

/// What can be done with an engine's data besides serving it.
#[derive(clap::Subcommand)]
enum Action {
    /// Copy the data of a running engine, as of one moment, while it is being used
    Backup(backup::Args),
    /// Write the data of a folder, or of a running server, as an RDB file
    Export(export::Args),
    /// Move all data and all clients of a running engine to a Redis or Valkey, without stopping
    Handover(handover::Args),
    /// Take over an RDB file, or all data of a running Redis or Valkey, into a folder
    Import(import::Args),
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum AuthClients {
    /// They are not asked for one
    No,
    /// One that is shown must be valid
    Optional,
    /// Each must show one
    Yes,
}

impl Args {
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let usual = match self.tls_ca {
            Some(_) => AuthClients::Yes,
            None => AuthClients::No,
        };
        let clients = match self.tls_auth_clients.unwrap_or(usual) {
            AuthClients::No => ClientCertificates::Ignored,
            AuthClients::Optional => ClientCertificates::Optional,
            AuthClients::Yes => ClientCertificates::Required,
        };
        let tls = match &self.tls_ca {
            Some(ca) => Tls::read_with_clients(cert, key, ca, clients),
            None if clients == ClientCertificates::Ignored => Tls::read(cert, key),
            None => {
                let text = "--tls-auth-clients needs --tls-ca, the authority of the clients";
                return Err(Failure::Usage(text.into()));
            }
        };
        tls.map(Some)
            .map_err(|error| Failure::Usage(error.to_string()))
    }
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

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// How many threads serve connections: half of the processors. Commands run one at a time whatever their
/// number, so more of them mostly wait for each other, and clients on this machine need the rest.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).clamp(1, 8))
}

fn engine(args: &Args, settings: Settings) -> Result<Engine, Failure> {
    let mut builder = Engine::builder()
        .settings(settings)
        .give_back(redstart_allocator::give_back)
        .compat(args.compat)
        .cluster_strict(args.cluster_strict);
    if args.cluster {
        builder = builder.cluster(true);
    }
    if let Some(path) = &args.aclfile {
        builder = builder.acl_file(std::path::absolute(path)?);
    }
    if let Some(dir) = &args.data {
        let fsync = match args.fsync {
            FsyncArg::Always => Fsync::Always,
            FsyncArg::Everysec => Fsync::EverySec,
            FsyncArg::No => Fsync::No,
        };
        std::fs::create_dir_all(dir)?;
        builder = builder.append_only(dir, fsync);
    }
    builder
        .build()
        .map_err(|error| Failure::Other(error.to_string()))
}

pub(crate) async fn run(mut args: Args) -> Result<(), Failure> {
    match args.action.take() {
        Some(Action::Backup(args)) => return backup::run(args).await,
        Some(Action::Export(args)) => return export::run(args).await,
        Some(Action::Import(args)) => return import::run(args).await,
        Some(Action::Handover(args)) => return Box::pin(handover::run(args)).await,
        None => {}
    }
    let wrong = |error: SettingsError| Failure::Usage(error.to_string());
    let mut settings = match &args.config {
        Some(path) => Settings::read(path).map_err(wrong)?,
        None => Settings::new(),
    };
    for (name, value) in &args.set {
        settings.set(name, value).map_err(wrong)?;
    }
    if let Some(password) = &args.requirepass {
        settings.set("requirepass", password).map_err(wrong)?;
    }
    let says_where = args.config.is_some() || args.set.iter().any(|(name, _)| name == "port");
    let mut config = match args.listen {
        None if says_where => settings.listener().map_err(wrong)?,
        listen => {
            let usual = SocketAddr::from(([127, 0, 0, 1], 6380));
            let config = ServerConfig::new().listen(listen.unwrap_or(usual));
            // Another address does not take the place of the socket.
            match settings.get("unixsocket").filter(|path| !path.is_empty()) {
                Some(path) => config.unix(path),
                None => config,
            }
        }
    };
    let engine = engine(&args, settings)?;
    if let Some(path) = &args.unix {
        config = config.unix(path);
    }
    let tls = args.tls()?;
    let scheme = if tls.is_some() { "rediss" } else { "redis" };
    if let Some(tls) = tls {
        config = config.tls(tls);
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
    say!("ready: {scheme}://{address}");
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
