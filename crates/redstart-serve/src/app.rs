//! The service itself: what all requests share, and the life of one request.

use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use parking_lot::RwLock;
use redstart::Store;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use crate::{
    api::{Bulks, Patterns},
    audit::{Audit, Change},
    auth,
    call::{Call, Query},
    checkup::Checkup,
    config::{Config, ConfigError},
    envoy::grpc,
    foreign::Foreign,
    hot::Hot,
    idempotent::{self, Repeats},
    inventory::Looks,
    metric,
    problem::{Kind, Problem},
    rendered::{self, Rendered},
    reply::Reply,
    route::{Handler, Routes},
    sampler::Sampler,
    scan::{Searches, Turns},
    tls, trace,
    watch::Watches,
};

pub(crate) struct App {
    pub(crate) store: Store,
    config: RwLock<Arc<Config>>,
    tls: RwLock<Option<Arc<rustls::ServerConfig>>>,
    pub(crate) routes: Routes,
    pub(crate) patterns: Patterns,
    pub(crate) hot: Hot,
    pub(crate) audit: Audit,
    pub(crate) looks: Looks,
    pub(crate) foreign: Foreign,
    pub(crate) checkup: Checkup,
    pub(crate) watches: Watches,
    /// Whose turn it is to look through jobs: of the searches, and of the changes of many jobs.
    pub(crate) searching: Turns,
    pub(crate) changing_many: Turns,
    pub(crate) searches: Searches,
    pub(crate) bulks: Bulks,
    rendered: Rendered,
    pub(crate) sampler: Sampler,
    repeats: Repeats,
    long_polls: AtomicUsize,
    streams: Arc<AtomicUsize>,
    /// Changes by hand that are under way.
    pub(crate) changing: TaskTracker,
    /// The service stops: no more long polls.
    pub(crate) stop: CancellationToken,
}

const DEADLINE: &str = "request-timeout";
/// Bytes of a body that anybody may send, with a token or without: one connection can have hundreds of them under way.
pub(crate) const OPEN_BODY: usize = 4096;
/// Scripts, styles and pictures come from the service itself, and nothing is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

impl App {
    pub(crate) fn new(store: &Store, config: Config) -> Result<Self, ConfigError> {
        metric::record_metrics();
        let tls = config.tls.as_ref().map(tls::load).transpose()?;
        let mut routes = Routes::default();
        crate::api::add_routes(&mut routes);
        Ok(Self {
            patterns: Patterns::default(),
            hot: Hot::default(),
            audit: Audit::new(store)?,
            looks: Looks::default(),
            foreign: Foreign::default(),
            checkup: Checkup::default(),
            watches: Watches::default(),
            searching: Turns::default(),
            changing_many: Turns::default(),
            searches: Searches::default(),
            bulks: Bulks::default(),
            rendered: Rendered::default(),
            sampler: Sampler::default(),
            repeats: Repeats::new(store)?,
            store: store.clone(),
            config: RwLock::new(Arc::new(config)),
            tls: RwLock::new(tls),
            routes,
            long_polls: AtomicUsize::new(0),
            streams: Arc::default(),
            changing: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.read().clone()
    }

    /// The store's clock, to show how old things are. On a Cluster a master that hangs may have been asked: the clock of
    /// this machine will do then.
    pub(crate) async fn now(&self) -> redstart::Result<Duration> {
        match self.store.time().await {
            Err(error) if self.store.is_cluster() => {
                tracing::debug!(%error, "the clock of the store cannot be read");
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                Ok(since.unwrap_or_default())
            }
            told => told,
        }
    }

    pub(crate) fn reload(&self, config: Config) -> Result<(), ConfigError> {
        replaceable(&self.config(), &config)?;
        // The files are read again even if their names are the same, and before any request has to wait: that may take
        // forever. Established connections keep their certificate.
        let tls = config.tls.as_ref().map(tls::load).transpose()?;
        let mut current = self.config.write();
        // Another reload may have been faster.
        replaceable(&current, &config)?;
        *self.tls.write() = tls;
        *current = Arc::new(config);
        Ok(())
    }

    /// How new connections are encrypted, if they are.
    pub(crate) fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.read().clone()
    }

    /// Answers one request.
    pub(crate) async fn handle(
        self: Arc<Self>,
        mut request: Request<Body>,
        peer: SocketAddr,
    ) -> Response<Body> {
        // HTTP/2 has no Host of its own; what is there is a second opinion.
        if request.version() == Version::HTTP_2
            && let Some(authority) = request.uri().authority()
            && let Ok(host) = HeaderValue::try_from(authority.as_str())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        let span = trace::request_span(&request);
        let working = span.clone();
        async move {
            let begun = Instant::now();
            let method = request.method().clone();
            let path = request.uri().path().to_owned();
            let (route, status, mut response) = match grpc::is_grpc(request.headers()) {
                true => self.answer_call(request, peer).await,
                false => self.answer_request(request, peer).await,
            };
            metrics::counter!("redstart_http_requests_total", "route" => route, "status" => status)
                .increment(1);
            metrics::histogram!("redstart_http_request_seconds", "route" => route)
                .record(begun.elapsed().as_secs_f64());
            tracing::info!(target: "redstart_serve::request", %method, path, route,
                status = response.status().as_u16(), ms = begun.elapsed().as_secs_f64() * 1e3, "request");
            trace::answered(&working, &method, route, &response);
            protect(response.headers_mut());
            response
        }
        .instrument(span)
        .await
    }

    /// The route, the status for people, and the response.
    async fn answer_request(
        self: Arc<Self>,
        request: Request<Body>,
        peer: SocketAddr,
    ) -> (&'static str, String, Response<Body>) {
        let config = self.config();
        let is_head = request.method() == Method::HEAD;
        let path = request.uri().path().to_owned();
        let wants_page = wants_page(request.headers());
        let answered = AssertUnwindSafe(self.clone().answer(request, config.clone(), peer));
        let (route, reply) = match answered.catch_unwind().await {
            Ok((route, Ok(reply))) => (route, reply),
            Ok((route, Err(problem))) => (route, self.refuse(&config, problem, wants_page, &path)),
            Err(_) => ("panic", Problem::new(Kind::Failed).into_reply()),
        };
        let mut response = reply.into_response();
        if is_head {
            *response.body_mut() = Body::empty();
        }
        (route, response.status().as_u16().to_string(), response)
    }

    /// The same for a call by gRPC.
    async fn answer_call(
        self: Arc<Self>,
        request: Request<Body>,
        peer: SocketAddr,
    ) -> (&'static str, String, Response<Body>) {
        let config = self.config();
        let answered = AssertUnwindSafe(grpc::answer(self.clone(), request, config, peer));
        let (route, response) = match answered.catch_unwind().await {
            Ok(answered) => answered,
            Err(_) => ("panic", tonic::Status::internal("failed").into_http()),
        };
        let status = format!("grpc-{}", grpc::code(&response));
        (route, status, response)
    }

    /// The reply to a request that is refused: a problem, or a page for a browser.
    fn refuse(&self, config: &Config, problem: Problem, page: bool, path: &str) -> Reply {
        if !page {
            return problem.into_reply();
        }
        crate::page::refusal(config, problem, path)
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Body>,
        config: Arc<Config>,
        peer: SocketAddr,
    ) -> (&'static str, Result<Reply, Problem>) {
        let (parts, body) = request.into_parts();
        let Some(path) = parts.uri.path().strip_prefix(config.base_path.0.as_str()) else {
            return ("none", Err(Problem::not_found("resource")));
        };
        let path = if path.is_empty() { "/" } else { path }.to_owned();
        let found = match self.routes.find(&parts.method, &path, config.limits.name) {
            Ok(found) => found,
            Err(problem) => return ("none", Err(problem)),
        };
        let route = found.route;
        let params = found.params;
        let work = async {
            let open = matches!(route.path, "/healthz" | "/readyz" | "/login")
                || route.path.starts_with("/assets/");
            // A load balancer's health check may have no Host.
            if !open || route.writes {
                auth::same_site(&config, &parts.method, &parts.headers)?;
            }
            let identity = match auth::identify(&config, &parts.headers, Some(peer.ip())) {
                Ok(identity) => identity,
                Err(_) if open => auth::Identity::nobody(),
                Err(problem) => return Err(problem),
            };
            if !open {
                identity.require(route.role)?;
            }
            if route.writes && config.read_only && route.path != "/login" {
                return Err(Problem::new(Kind::ReadOnly));
            }
            if route.writes && !route.repeatable && parts.headers.contains_key(idempotent::HEADER) {
                return Err(Problem::invalid(
                    "this request takes no Idempotency-Key: what it grants ends by itself, so a repeat is a new request",
                ));
            }
            let deadline = deadline(&parts.headers)?;
            let most = match open {
                true => OPEN_BODY.min(config.limits.body),
                false => config.limits.body,
            };
            let body = self
                .body(&config, &parts.headers, body, most, route.doc.is_some())
                .await?;
            let call = Call {
                app: self.clone(),
                config: config.clone(),
                identity,
                method: parts.method.clone(),
                path: path.clone(),
                query: Query::parse(parts.uri.query().unwrap_or_default()),
                headers: parts.headers.clone(),
                params,
                body,
                deadline,
                logged: Arc::default(),
            };
            self.carry_out(call, route).await
        };
        (route.path, work.await)
    }

    async fn carry_out(
        self: &Arc<Self>,
        call: Call,
        route: &crate::route::Route,
    ) -> Result<Reply, Problem> {
        let _place = match route.waits {
            true => Some(Place::take(
                &self.long_polls,
                call.config.limits.long_polls,
            )?),
            false => None,
        };
        let limits = &call.config.limits;
        let longest = match route.waits {
            true => limits.wait.0.saturating_add(limits.request_time.0),
            false => limits.request_time.0,
        };
        let time = call.deadline.map_or(longest, |asked| asked.min(longest));
        let writes = route.writes;
        let key = call.headers.get(idempotent::HEADER).cloned();
        let handler = match route.is_by_hand() {
            true => self.to_its_end(route),
            false => route.handler.clone(),
        };
        let work = async {
            if rendered::is_tick(&call, route) {
                let key = Rendered::key(&call);
                return self.rendered.get(key, handler(call)).await;
            }
            match route.repeatable {
                true => self.repeats.run(call, &handler).await,
                false => handler(call).await,
            }
        };
        let late = || match (writes, key.as_ref().and_then(|key| key.to_str().ok())) {
            (true, Some(key)) => Problem::new(Kind::InDoubt).with("id", key.trim_matches('"')),
            (true, None) => Problem::new(Kind::InDoubt),
            (false, _) => Problem::new(Kind::Deadline),
        };
        tokio::select! {
            biased;
            reply = work => reply,
            () = tokio::time::sleep(time) => Err(late()),
            () = self.stop.cancelled(), if route.waits => Err(Problem::new(Kind::Stopping)),
        }
    }

    /// A handler that goes on when its client leaves: what is changed by hand is written down after it was done. If it is
    /// not known whether it was done, that is written down.
    fn to_its_end(self: &Arc<Self>, route: &crate::route::Route) -> Handler {
        let (app, handler, change) = (self.clone(), route.handler.clone(), route.change);
        Arc::new(move |call| {
            let (app, logged) = (app.clone(), call.logged.clone());
            let who = call.identity.name.clone();
            let namespace = call.namespace().unwrap_or_default();
            let names = call.params.iter().map(|(_, name)| name.as_str());
            let on: Vec<&str> = std::iter::once(namespace.as_str()).chain(names).collect();
            let on = format!("{} (failed)", on.join(" "));
            let work = AssertUnwindSafe(handler(call)).catch_unwind();
            let changing = app.changing.clone();
            let work = async move {
                // A panic was reported by its own hook.
                let done = work
                    .await
                    .unwrap_or_else(|_| Err(Problem::new(Kind::Failed)));
                let in_doubt =
                    |problem: &Problem| matches!(problem.kind, Kind::InDoubt | Kind::Failed);
                if let Some(change) = change
                    && done.as_ref().is_err_and(in_doubt)
                    && !logged.load(Ordering::Relaxed)
                {
                    app.note(who, change, on, 0, None).await;
                }
                done
            };
            Box::pin(async move {
                // It begins when it is asked for, not before.
                let work = changing.spawn(work.in_current_span()).await;
                work.unwrap_or(Err(Problem::new(Kind::Failed)))
            })
        })
    }

    /// The body, within its limits of size and time.
    pub(crate) async fn body(
        &self,
        config: &Config,
        headers: &HeaderMap,
        body: Body,
        most: usize,
        json: bool,
    ) -> Result<Bytes, Problem> {
        let collected = Limited::new(body, most).collect();
        let body = match tokio::time::timeout(config.limits.body_time.0, collected).await {
            Err(_) => return Err(Problem::new(Kind::SlowRequest)),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(Problem::new(Kind::TooLarge));
            }
            Ok(Err(_)) => return Err(Problem::invalid("the body broke off")),
            Ok(Ok(body)) => body.to_bytes(),
        };
        if json && !body.is_empty() {
            let kind = headers
                .get(header::CONTENT_TYPE)
                .and_then(|v| v.to_str().ok());
            let kind = kind
                .unwrap_or_default()
                .split(';')
                .next()
                .unwrap_or_default()
                .trim();
            // A browser sends text/plain to another site without asking first; it never does that with JSON.
            if !kind.eq_ignore_ascii_case("application/json") {
                return Err(Problem::new(Kind::MediaType));
            }
        }
        Ok(body)
    }

    /// Makes an event stream of this service, within the limit of open ones; it ends when the service stops.
    pub(crate) fn stream(
        self: &Arc<Self>,
        events: impl futures_util::Stream<Item = crate::reply::Event> + Send + 'static,
    ) -> Result<Reply, Problem> {
        use futures_util::StreamExt as _;
        let place = OwnedPlace::take(&self.streams, self.config().limits.streams)?;
        let stop = self.stop.clone();
        let events = events
            .map(move |event| {
                let _ = &place;
                event
            })
            .take_until(async move { stop.cancelled().await });
        Ok(Reply::events(events))
    }

    /// Writes a change by hand to the audit log.
    pub(crate) async fn changed(
        &self,
        call: &Call,
        what: &str,
        on: String,
        count: u64,
        expected: Option<u64>,
    ) {
        call.logged.store(true, Ordering::Relaxed);
        let who = call.identity.name.clone();
        self.note(who, what, on, count, expected).await;
    }

    pub(crate) async fn note(
        &self,
        who: String,
        what: &str,
        on: String,
        count: u64,
        expected: Option<u64>,
    ) {
        self.rendered.clear();
        let change = Change {
            who,
            what: what.to_owned(),
            on,
            count,
            expected,
        };
        self.audit.write(change).await;
    }

    /// The newest changes by hand, of the namespaces that this caller may use.
    pub(crate) async fn changes(
        &self,
        identity: &auth::Identity,
    ) -> redstart::Result<Vec<(String, Change)>> {
        let mut changes = self.audit.newest(200).await?;
        changes.retain(|(_, change)| {
            let namespace = change.on.split(' ').next().unwrap_or_default();
            identity.may_use(namespace).is_ok()
        });
        Ok(changes)
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.long_polls.load(Ordering::Relaxed)
    }
}

/// Whether a running service may take the new configuration.
fn replaceable(current: &Config, new: &Config) -> Result<(), ConfigError> {
    if current.has_authentication() && !new.has_authentication() {
        return Err(ConfigError::new(
            "it has no [[token]] and no [trusted_header], so everybody would be an admin; restart the service \
             to run it without authentication",
        ));
    }
    if current.has_tls() != new.has_tls() {
        return Err(ConfigError::new(
            "[tls] was added or removed; restart the service to listen with TLS or without it",
        ));
    }
    Ok(())
}

fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get(DEADLINE) else {
        return Ok(None);
    };
    let seconds = value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    match seconds {
        Some(seconds) if (0.001..=3600.0).contains(&seconds) => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        _ => Err(Problem::invalid(
            "Request-Timeout must be a number of seconds from 0.001 to 3600",
        )),
    }
}

fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// One of a limited number of places.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(taken: &'a AtomicUsize, most: usize) -> Result<Self, Problem> {
        // A refusal must not count for a moment, or it would refuse others.
        let add = |taken| (taken < most).then_some(taken + 1);
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Self(taken)),
            Err(_) => Err(Problem::new(Kind::TooManyWaiting).retry_after(Duration::from_secs(1))),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The same, for a stream that outlives its request.
struct OwnedPlace(Arc<AtomicUsize>);

impl OwnedPlace {
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Result<Self, Problem> {
        std::mem::forget(Place::take(taken, most)?);
        Ok(Self(taken.clone()))
    }
}

impl Drop for OwnedPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
