//! Redstart over HTTP: the patterns as an API for every language, a dashboard, and metrics.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redstart::Store;
//! use redstart_serve::{Config, Service};
//!
//! redstart_serve::record_metrics();
//! let store = Store::connect("memory://").await?;
//! let service = Service::new(&store, Config::default())?;
//! let listener = service.bind("127.0.0.1:0".parse()?).await?;
//! println!("http://{}", listener.local_addr()?);
//! service.run(listener, async {}).await;
//! # Ok(()) }
//! ```
//!
//! # Where to look
//!
//! ```text
//! server.rs      connections, their limits, the graceful end      tls.rs    the certificate
//!    │                                                             trace.rs  spans for OpenTelemetry
//!    ▼
//! app.rs         the life of a request: who asks, may they, body, deadline, Idempotency-Key, handler, headers
//!    │  auth.rs  tokens, roles, cross-site checks        idempotent.rs  a change that arrives twice is made once
//!    │  route.rs paths, and what the document says       config.rs      the TOML file
//!    ▼
//! api/<family>.rs   the handlers of the API, with their types       problem.rs  what can go wrong
//! page/<screen>.rs  the dashboard                                   openapi.rs  the document
//! envoy.rs          Envoy's rate-limit service; envoy/grpc.rs and envoy/json.rs are its two forms
//! ```

#![forbid(unsafe_code)]

use std::{net::SocketAddr, sync::Arc};

use redstart::Store;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

mod api;
mod app;
mod audit;
mod auth;
mod call;
mod chart;
mod checkup;
mod config;
mod demo;
mod envoy;
mod foreign;
mod held;
mod hot;
mod idempotent;
mod inventory;
mod metric;
mod network;
mod openapi;
mod opened;
mod page;
mod pretty;
mod problem;
mod rendered;
mod reply;
mod route;
mod sampler;
mod scan;
mod server;
mod tls;
mod trace;
mod watch;

pub use auth::{Role, hash_token};
pub use config::{Config, ConfigError, parse_quota};
pub use demo::Demo;
pub use metric::record_metrics;
pub use trace::Spans;

/// The service: the API, the dashboard and the metrics, on one store. Cheap to clone.
///
/// # Promises
///
/// - Nothing is kept in this process that another instance needs, except what is documented at its route: grants that may
///   be refunded, calls that a breaker admitted, loads and claims under way. Locks and jobs are in the store. The hot
///   subjects of limiters are those of this instance.
/// - A change whose reply from the store was lost is a problem of the type `in-doubt`, never a success and never a plain
///   failure.
/// - On an address that others can reach, it does not start without authentication.
///
/// # While the store is down
///
/// Requests are answered with 503; `/readyz` too, `/healthz` not. Where one master of a Cluster is down, that concerns the
/// requests for its keys; the dashboard shows the rest, and which master does not answer.
///
/// # Metrics
///
/// `redstart_http_requests_total` by route and status, `redstart_http_request_seconds` by route, `redstart_http_streams`,
/// `redstart_http_waiting`, `redstart_ratelimit_descriptors_total` by domain and outcome, `redstart_otlp_spans_total` by
/// outcome, `process_resident_memory_bytes`, `process_open_fds`, and those of the
/// [patterns](redstart::observe).
#[derive(Clone)]
pub struct Service(Arc<app::App>);

impl Service {
    /// A service on this store.
    ///
    /// # Errors
    ///
    /// If the files of the certificate cannot be used.
    pub fn new(store: &Store, config: Config) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(app::App::new(store, config)?)))
    }

    /// Takes another configuration from now on, and reads the files of the certificate again. Requests under way keep
    /// their configuration, connections their certificate. `[otlp]` is read only at the start.
    ///
    /// It blocks while the files are read; requests go on meanwhile.
    ///
    /// # Errors
    ///
    /// If the service has authentication and the new configuration has none: a file that is cut short while it is
    /// written must not open the service. The same for TLS, and if the certificate cannot be used. The old configuration
    /// stays in force.
    pub fn reload(&self, config: Config) -> Result<(), ConfigError> {
        self.0.reload(config)
    }

    /// Examines the server of this URL once a minute while the service runs, and shows on the overview what
    /// [`redstart_doctor`] finds without looking at keys. The engine of this process is not examined.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn examine(&self, url: &str) -> Result<(), ConfigError> {
        let set = self.0.checkup.of(url);
        set.map_err(|error| ConfigError::new(&error.to_string()))
    }

    /// Listens on an address.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on, or if others can reach it and the configuration has no authentication.
    pub async fn bind(&self, address: SocketAddr) -> std::io::Result<TcpListener> {
        if !address.ip().is_loopback() && !self.0.config().has_authentication() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                format!(
                    "{address} can be reached by others: add a [[token]] to the configuration, or listen on 127.0.0.1"
                ),
            ));
        }
        TcpListener::bind(address).await
    }

    /// Serves until `shutdown` ends. Then long polls and event streams end at once, and other requests have 10 s.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, connections end as if `shutdown` had ended, in the background.
    pub async fn run(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let app = self.0.clone();
        let _stop = app.stop.clone().drop_guard();
        let upkeep = tokio::spawn(async move {
            let mut turn = 0_u64;
            loop {
                // Looking at the keys costs more than looking at what is known. A look reads a part of them: all are
                // wanted soon after the start, and from then on what is new.
                let inventory = match app.looks.any(&app.store).await {
                    Ok(known) if !turn.is_multiple_of(if known.partial { 2 } else { 5 }) => {
                        Ok(known)
                    }
                    _ => app.looks.get(&app.store).await,
                };
                if let Ok(inventory) = inventory {
                    app.sampler.sample(&app.store, &inventory).await;
                    app.sampler.sample_breakers(&app, &inventory).await;
                }
                app.patterns.sweep();
                metric::upkeep();
                if turn.is_multiple_of(1200) {
                    app.audit.trim(app.config().audit.0).await;
                }
                turn += 1;
                tokio::time::sleep(sampler::EVERY).await;
            }
        });
        let _upkeep = AbortOnDropHandle::new(upkeep);
        let app = self.0.clone();
        let _checkups = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                app.checkup.look().await;
                tokio::time::sleep(checkup::EVERY).await;
            }
        }));
        server::run(self.0.clone(), listener, shutdown).await;
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Service").field(&self.0.store).finish()
    }
}
