//! `redstart serve`: the patterns over HTTP, with a dashboard and metrics.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use redstart::Store;
use redstart_serve::{Config, ConfigError, Service, Spans};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Arguments of `redstart serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; one that others can reach needs a token in the configuration
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8380")]
    listen: SocketAddr,
    /// The store; `memory://` runs the engine in this process
    #[arg(
        long,
        env = "REDSTART_URL",
        hide_env_values = true,
        default_value = "memory://"
    )]
    url: String,
    /// The configuration file (TOML); it is read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The certificate of the listener with those that lead to its authority (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Send spans to this OpenTelemetry collector, by OTLP over HTTP
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true
    )]
    otlp: Option<String>,
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

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

pub(crate) async fn run(args: Args, spans: Spans) -> Result<(), Failure> {
    if args.hash_token {
        return hash_token();
    }
    // Looked at before they are read: what changes from here on is read again.
    let before = args.config.as_deref().map(state);
    let config = read(&args)?;
    let named = config.files();
    let taken: Vec<State> = named.iter().map(|path| state(path)).chain(before).collect();
    let scheme = if config.has_tls() { "https" } else { "http" };
    redstart_serve::record_metrics();
    let store = Store::connect(&args.url).await?;
    let service = Service::new(&store, config.clone())?;
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
    service.examine(&args.url)?;
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
    say!("ready: {scheme}://{address}");
    if demo.is_some() {
        say!("the demo shop is in the namespace `shop`: {scheme}://{address}/?namespace=shop");
    }
    spans.start(&config)?;
    let reloading = tokio::spawn(reload(args, service.clone(), named, taken));
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
    spans.stop().await;
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
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        config.tls(certificate, key);
    }
    if let Some(endpoint) = &args.otlp {
        config.otlp(endpoint)?;
    }
    Ok(config)
}

/// Reads the configuration and the certificate again on SIGHUP and when one of the files changes. A file with an error
/// changes nothing.
async fn reload(args: Args, service: Service, files: Vec<PathBuf>, taken: Vec<State>) {
    let mut watched = Watched::new(args, service, files, taken);
    if watched.files.is_empty() {
        return;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return;
    };
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(Duration::from_secs(2)) => false,
        };
        // Files may be on a file system that does not answer, and requests go on meanwhile.
        let looked = tokio::task::spawn_blocking(move || {
            watched.look(asked);
            watched
        });
        watched = match looked.await {
            Ok(watched) => watched,
            Err(error) => {
                tracing::error!(%error, "the files are not looked at any more");
                return;
            }
        };
    }
}

/// When a file changed, and its size; none if it is not there.
type State = Option<(SystemTime, u64)>;

/// The files of the configuration.
struct Watched {
    args: Args,
    service: Service,
    /// Those of the configuration in force.
    in_force: Vec<PathBuf>,
    /// These, and those that the newest file names: what is missing there may come later.
    files: Vec<PathBuf>,
    /// As they were when they were read, and at the last look.
    taken: Vec<State>,
    before: Vec<State>,
}

impl Watched {
    fn new(args: Args, service: Service, mut in_force: Vec<PathBuf>, taken: Vec<State>) -> Self {
        in_force.extend(args.config.clone());
        Self {
            args,
            service,
            files: in_force.clone(),
            in_force,
            before: taken.clone(),
            taken,
        }
    }

    /// Reads the files if they changed, or if that is asked for.
    fn look(&mut self, asked: bool) {
        let now: Vec<State> = self.files.iter().map(|path| state(path)).collect();
        // A file that changed since the last look may still be written.
        let is_whole = now == std::mem::replace(&mut self.before, now.clone());
        if !asked && (now == self.taken || !is_whole) {
            return;
        }
        self.taken = now;
        match read(&self.args) {
            Ok(config) => self.take(config),
            Err(Failure::Usage(error)) => {
                tracing::error!(error, "the configuration is unchanged: the file is invalid");
            }
            Err(_) => {}
        }
    }

    fn take(&mut self, config: Config) {
        let mut files = config.files();
        files.extend(self.args.config.clone());
        match self.service.reload(config) {
            Ok(()) => {
                tracing::info!("the configuration was read again");
                self.in_force.clone_from(&files);
            }
            Err(error) => {
                tracing::error!(%error, "the configuration is unchanged");
                let missing = self.in_force.iter().filter(|path| !files.contains(path));
                let missing: Vec<PathBuf> = missing.cloned().collect();
                files.extend(missing);
            }
        }
        if files != self.files {
            // Nobody has looked at the new ones, so they are read once more.
            self.files = files;
            self.taken.clear();
        }
    }
}

fn state(path: &Path) -> State {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}
