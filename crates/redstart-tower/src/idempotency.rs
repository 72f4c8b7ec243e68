mod answer;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use redstart::resilience::{Idempotency, Run, WorkError};
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::{BoxFuture, Problem, Subject, digest, problem::Render};
use answer::{CREDENTIALS, KEPT, Kept};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const MAX_KEY: usize = 255;

/// Puts idempotency keys in front of a service: a request that arrives twice is carried out once.
///
/// | the header `Idempotency-Key` | response |
/// |---|---|
/// | is new | the service's, which is kept |
/// | was used for the same request, which is done | the kept one, with `Idempotency-Replayed: true` |
/// | was used for the same request, which is being carried out | 409 with `Retry-After` |
/// | was used for the same request, whose outcome is unknown | 409 |
/// | was used for another request (method, path, query or body) | 422 |
/// | is empty or over 255 bytes | 400 |
/// | is missing | the service's; 400 if keys are [required](IdempotencyLayerBuilder::required) |
/// | any, and the [`Subject`] is nobody | 401 |
///
/// Only POST and PATCH are looked at: other methods are idempotent, or only read. The handler finds the key as an
/// [`IdempotencyKey`] among the extensions; with axum it is an extractor.
///
/// # Promises
///
/// - The request is carried out in a task of its own. A client that hangs up neither stops it nor frees the key.
/// - A key whose work has started is free again only if the service says that the work was not done: by an answer of
///   500 and above, 408 or 429. It is free before that answer is sent, so a client may repeat the request at once. After
///   a panic, an error of the service, a body that breaks off or the end of the process the outcome is unknown, and stays
///   so until the keys' TTL ends or the key is [forgotten](Idempotency::forget).
/// - A key belongs to its [`Subject`]: nobody gets another's answer by guessing a key. Choose a subject that stays the
///   same when the client repeats a request, such as the user; an access token is refreshed.
/// - Credentials are neither kept nor replayed. Of the headers only a list is kept: those that describe the body and
///   `Location`, and what [`keep_header`](IdempotencyLayerBuilder::keep_header) adds.
///
/// # Limits
///
/// Both bodies are held in memory. A request above [`max_body`](IdempotencyLayerBuilder::max_body) gets 413. An answer
/// above it is delivered but not kept; repeats get 409, since the work was done and its answer is gone.
///
/// # While the store is down
///
/// The keys' [`on_store_down`](redstart::resilience::IdempotencyBuilder::on_store_down) decides: `Fail` is 503, `Refuse` is
/// 409, and `Allow` carries the request out without protection.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, routing::post};
/// use redstart::{Store, resilience::Idempotency};
/// use redstart_tower::{IdempotencyLayer, Subject};
/// use tower::ServiceExt as _;
///
/// let store = Store::connect("memory://").await?;
/// let keys = Idempotency::new(&store, "shop", "payments")?;
/// let app: Router = Router::new()
///     .route("/pay", post(|| async { "paid" }))
///     .layer(IdempotencyLayer::new(keys, Subject::everyone()));
///
/// let request = || http::Request::post("/pay").header("idempotency-key", "\"7\"").body(Body::from("5"));
/// assert!(!app.clone().oneshot(request()?).await?.headers().contains_key("idempotency-replayed"));
/// assert_eq!(app.oneshot(request()?).await?.headers()["idempotency-replayed"], "true");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(Arc<Settings>);

#[derive(Debug)]
struct Settings {
    keys: Idempotency,
    subject: Subject,
    required: bool,
    max_body: usize,
    kept: Vec<HeaderName>,
    render: Option<Render>,
}

impl IdempotencyLayer {
    /// A layer on these keys, each of which belongs to the subject that sent it.
    pub fn new(keys: Idempotency, subject: Subject) -> Self {
        Self::builder(keys, subject).build()
    }

    /// A layer with settings.
    pub fn builder(keys: Idempotency, subject: Subject) -> IdempotencyLayerBuilder {
        IdempotencyLayerBuilder(Settings {
            keys,
            subject,
            required: false,
            max_body: 1 << 20,
            kept: KEPT.to_vec(),
            render: None,
        })
    }
}

/// Settings of an [`IdempotencyLayer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct IdempotencyLayerBuilder(Settings);

impl IdempotencyLayerBuilder {
    /// Refuses POST and PATCH without a key with 400.
    pub fn required(mut self) -> Self {
        self.0.required = true;
        self
    }

    /// The largest body of requests and of kept answers (default: 1 MiB).
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.0.max_body = bytes;
        self
    }

    /// Keeps and replays one more header of the answer. Headers with credentials, such as `Set-Cookie`, are never kept.
    pub fn keep_header(mut self, name: HeaderName) -> Self {
        if !CREDENTIALS.contains(&name) {
            self.0.kept.push(name);
        }
        self
    }

    /// Writes the body of a refusal: its content type and its bytes.
    pub fn render_problem(
        mut self,
        render: impl Fn(&Problem) -> (HeaderValue, Bytes) + Send + Sync + 'static,
    ) -> Self {
        self.0.render = Some(Render::new(render));
        self
    }

    /// The layer.
    pub fn build(self) -> IdempotencyLayer {
        IdempotencyLayer(Arc::new(self.0))
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// The service that [`IdempotencyLayer`] makes.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: fmt::Display,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let settings = self.settings.clone();
        Box::pin(async move {
            let refuse = |problem: &Problem| Ok(problem.respond(settings.render.as_ref()));
            if !matches!(*request.method(), Method::POST | Method::PATCH) {
                return inner.call(request).await;
            }
            let key = match request.headers().get(KEY).map(IdempotencyKey::parse) {
                None if settings.required => return refuse(&missing()),
                None => return inner.call(request).await,
                Some(None) => return refuse(&malformed()),
                Some(Some(key)) => key,
            };
            let (request, name, print) = match settings.identify(request, key).await {
                Ok(identified) => identified,
                Err(problem) => return refuse(&problem),
            };
            let (whole, delivered) = oneshot::channel();
            let started = Arc::new(AtomicBool::new(false));
            let work = carry_out(inner, request, settings.clone(), started.clone(), whole);
            let ran = settings
                .keys
                .run(&name, print.as_bytes(), work.in_current_span());
            match ran.await {
                // The answer itself: what is kept of it is less.
                Ok(Run::Done(_)) => match delivered.await {
                    Ok(response) => Ok(response),
                    Err(_) => refuse(&unknown()),
                },
                Ok(Run::Replayed(kept)) => match kept.replay(&settings.kept) {
                    Some(response) => Ok(response),
                    None => refuse(&too_large_to_replay()),
                },
                Ok(Run::NotDone(Undone::Answer(response)))
                | Ok(Run::Unknown(Some(Undone::Answer(response)))) => Ok(response),
                Ok(Run::NotDone(Undone::Error(error)))
                | Ok(Run::Unknown(Some(Undone::Error(error)))) => Err(error),
                // The handler panicked.
                Ok(Run::Unknown(None)) if started.load(Ordering::Relaxed) => {
                    refuse(&Problem::plain(StatusCode::INTERNAL_SERVER_ERROR))
                }
                Ok(Run::Unknown(None)) => refuse(&unknown()),
                Ok(Run::Busy { retry_after }) => refuse(&in_flight().with_retry_after(retry_after)),
                Ok(Run::Mismatch) => refuse(&mismatch()),
                Err(error) => {
                    tracing::warn!(%error, "a request was refused: its idempotency key cannot be claimed");
                    refuse(&Problem::unavailable())
                }
            }
        })
    }
}

impl Settings {
    /// The request with its body read, the name of its key in the store, and its fingerprint.
    async fn identify<B>(
        &self,
        request: Request<B>,
        key: IdempotencyKey,
    ) -> Result<(Request<B>, String, String), Problem>
    where
        B: Body + From<Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut parts, body) = request.into_parts();
        let Some(subject) = self.subject.find(&parts).await? else {
            return Err(nobody());
        };
        let body = match Limited::new(body, self.max_body).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(Problem::plain(StatusCode::PAYLOAD_TOO_LARGE));
            }
            Err(_) => return Err(Problem::plain(StatusCode::BAD_REQUEST)),
        };
        let name = digest(&[subject.as_bytes(), key.0.as_bytes()]);
        let method = parts.method.as_str();
        let print = digest(&[method.as_bytes(), target(&parts).as_bytes(), &body]);
        parts.extensions.insert(key);
        Ok((Request::from_parts(parts, B::from(body)), name, print))
    }
}

/// The path and the query that the client asked for. The URI itself differs: in a nested router it lacks the beginning of
/// the path, and over HTTP/2 it has a scheme and a host.
fn target(parts: &Parts) -> &str {
    let uri = &parts.uri;
    #[cfg(feature = "axum")]
    let uri = match parts.extensions.get::<axum::extract::OriginalUri>() {
        Some(axum::extract::OriginalUri(original)) => original,
        None => uri,
    };
    uri.path_and_query().map_or("", |target| target.as_str())
}

/// Why an answer is not kept.
enum Undone<R, E> {
    /// The service's answer says that the work was not done, or broke off.
    Answer(Response<R>),
    Error(E),
}

/// Calls the service. Its answer goes to `whole`; what is kept of it is returned.
async fn carry_out<S, B, R>(
    mut inner: S,
    request: Request<B>,
    settings: Arc<Settings>,
    started: Arc<AtomicBool>,
    whole: oneshot::Sender<Response<R>>,
) -> Result<Kept, WorkError<Undone<R, S::Error>>>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + From<Bytes>,
    R::Error: fmt::Display,
{
    started.store(true, Ordering::Relaxed);
    let response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => return Err(WorkError::Unknown(Undone::Error(error))),
    };
    let (parts, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            tracing::warn!(%error, "the answer to a request with an idempotency key was cut off");
            let broken = Problem::plain(StatusCode::BAD_GATEWAY).respond(settings.render.as_ref());
            return Err(WorkError::Unknown(Undone::Answer(broken)));
        }
    };
    let undone = parts.status.is_server_error()
        || parts.status == StatusCode::TOO_MANY_REQUESTS
        || parts.status == StatusCode::REQUEST_TIMEOUT;
    if undone {
        let response = Response::from_parts(parts, R::from(body));
        return Err(WorkError::NotDone(Undone::Answer(response)));
    }
    let kept = Kept::new(&parts, &body, &settings.kept, settings.max_body);
    // A client that has hung up needs no answer.
    let _ = whole.send(Response::from_parts(parts, R::from(body)));
    Ok(kept)
}

/// The key of a request, without the quotes that the draft asks for. Among the extensions of a request that has passed
/// the [`IdempotencyLayer`]; with axum it is an extractor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?.trim();
        let key = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'))
            .unwrap_or(text);
        (!key.is_empty() && key.len() <= MAX_KEY).then(|| Self(key.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

fn missing() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "urn:redstart:idempotency-key-missing",
        "Idempotency-Key is missing",
    )
    .with_detail("this operation needs an Idempotency-Key header")
}

fn malformed() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "urn:redstart:idempotency-key-malformed",
        "Idempotency-Key is malformed",
    )
    .with_detail("a key must have 1 to 255 visible ASCII characters")
}

fn nobody() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "urn:redstart:login-required",
        "Login is required",
    )
    .with_detail("an Idempotency-Key belongs to a caller, and this caller is not known")
}

fn mismatch() -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "urn:redstart:idempotency-key-reused",
        "Idempotency-Key is already used",
    )
    .with_detail("the key was used for another request; use a new key for a new request")
}

fn in_flight() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "urn:redstart:idempotency-in-flight",
        "A request is outstanding for this Idempotency-Key",
    )
}

fn unknown() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "urn:redstart:idempotency-outcome-unknown",
        "The outcome of the first request is unknown",
    )
    .with_detail("it may have been carried out; it is not carried out again under this key")
}

fn too_large_to_replay() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "urn:redstart:idempotency-answer-not-kept",
        "The answer to the first request was too large to keep",
    )
    .with_detail("the request was carried out")
}
