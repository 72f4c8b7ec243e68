//! A layer for the `Idempotency-Key` header: a request that comes twice is carried out once.
//!
//! | the key | answer |
//! |---|---|
//! | is new | the service's, which is kept |
//! | was finished with the same request | the kept one, with `Idempotency-Replayed: true` |
//! | is being worked on | 409 with `Retry-After` |
//! | came with another request (method, path or body) | 422 |
//! | is empty or over 255 bytes | 400 |
//! | is missing | the service's; 400 if keys are [required](IdempotencyLayer::required) |
//!
//! Only POST and PATCH are looked at: other methods are idempotent by themselves, or read.
//!
//! A key belongs to who sent it: the digest of `Authorization` and `Cookie` is part of it, so that nobody gets
//! another's answer by guessing a key. [`scope`](IdempotencyLayer::scope) sets another owner.
//!
//! Answers of 500 and above, 408 and 429 are not kept: the work was not done, and a repeat may try again.
//!
//! Both bodies are held in memory. A request above the [bound](IdempotencyLayer::max_body) gets 413. An answer above
//! it is delivered but not kept; repeats get 409, since the work was done and its answer is gone.
//!
//! # While the store is down
//!
//! By the keys' own [policy](redstart::resilience::IdempotencyBuilder::on_store_down): `Fail` is 503, `Refuse` is 409,
//! and `Allow` carries requests out without protection.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, body::Body, routing::post};
//! use redstart::{Store, resilience::Idempotency};
//! use redstart_tower::IdempotencyLayer;
//! use tower::ServiceExt as _;
//!
//! let store = Store::connect("memory://").await?;
//! let keys = Idempotency::new(&store, "shop", "payments")?;
//! let app: Router = Router::new()
//!     .route("/pay", post(|| async { "paid" }))
//!     .layer(IdempotencyLayer::new(keys));
//!
//! let request = || http::Request::post("/pay").header("idempotency-key", "\"7\"").body(Body::from("5"));
//! assert!(!app.clone().oneshot(request()?).await?.headers().contains_key("idempotency-replayed"));
//! assert_eq!(app.oneshot(request()?).await?.headers()["idempotency-replayed"], "true");
//! # Ok(()) }
//! ```

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts,
};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use redstart::resilience::{Idempotency, Run, WorkError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;

use crate::{digest, limit::refuse};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY: usize = 255;

type Scope = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// Puts idempotency keys before a service. See the [module](self).
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    keys: Idempotency,
    required: bool,
    max_body: usize,
    scope: Scope,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("keys", &self.0.keys)
            .field("required", &self.0.required)
            .field("max_body", &self.0.max_body)
            .finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// A layer on these keys.
    pub fn new(keys: Idempotency) -> Self {
        Self(Arc::new(Settings {
            keys,
            required: false,
            max_body: 1 << 20,
            scope: Arc::new(|parts| {
                let of = |name| parts.headers.get(name).map_or(&b""[..], |v| v.as_bytes());
                digest(&[of(header::AUTHORIZATION), of(header::COOKIE)])
            }),
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Refuses POST and PATCH without a key with 400.
    #[must_use]
    pub fn required(self) -> Self {
        self.with(|settings| settings.required = true)
    }

    /// The largest body, of requests and of kept answers. A mebibyte, unless set.
    #[must_use]
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// Whose key it is, such as the user of a session.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.scope = Arc::new(scope))
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// A service behind idempotency keys; made by [`IdempotencyLayer`].
#[derive(Clone)]
pub struct Idempotent<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

/// An answer as it is kept. Without a body if that was too large.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: Body + From<Bytes> + Default + Send + 'static,
    R::Data: Send,
    R::Error: fmt::Display,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let settings = self.settings.clone();
        Box::pin(async move {
            if !matches!(*request.method(), Method::POST | Method::PATCH) {
                return inner.call(request).await;
            }
            let key = match request.headers().get(KEY).map(key_of) {
                None if settings.required => return Ok(answer(StatusCode::BAD_REQUEST)),
                None => return inner.call(request).await,
                Some(None) => return Ok(answer(StatusCode::BAD_REQUEST)),
                Some(Some(key)) => key,
            };
            let (parts, body) = request.into_parts();
            let body = match Limited::new(body, settings.max_body).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Ok(answer(StatusCode::PAYLOAD_TOO_LARGE));
                }
                Err(_) => return Ok(answer(StatusCode::BAD_REQUEST)),
            };
            let name = digest(&[(settings.scope)(&parts).as_bytes(), key.as_bytes()]);
            let uri = parts.uri.to_string();
            let print = digest(&[parts.method.as_str().as_bytes(), uri.as_bytes(), &body]);
            let request = Request::from_parts(parts, B::from(body));
            let (whole, delivered) = oneshot::channel();
            let work = carry_out(inner, request, settings.max_body, whole);
            match settings.keys.run(&name, print.as_bytes(), work).await {
                // The answer itself: what is kept may lack its body.
                Ok(Run::Done(_)) => match delivered.await {
                    Ok(response) => Ok(response),
                    Err(_) => Ok(answer(StatusCode::CONFLICT)),
                },
                Ok(Run::Replayed(kept)) => Ok(replay(kept)),
                Ok(Run::NotDone(Undone::Answer(response))) => Ok(response),
                Ok(
                    Run::NotDone(Undone::Error(error)) | Run::Unknown(Some(Undone::Error(error))),
                ) => Err(error),
                Ok(Run::Unknown(Some(Undone::Answer(response)))) => Ok(response),
                Ok(Run::Unknown(None)) => Ok(answer(StatusCode::CONFLICT)),
                Ok(Run::Busy { retry_after }) => Ok(refuse(StatusCode::CONFLICT, retry_after)),
                Ok(Run::Mismatch) => Ok(answer(StatusCode::UNPROCESSABLE_ENTITY)),
                Err(error) => {
                    tracing::warn!(%error, "a request was refused: its idempotency key cannot be kept");
                    Ok(refuse(StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO))
                }
            }
        })
    }
}

/// Why an answer is not kept.
enum Undone<R, E> {
    /// The service's answer says that the work was not done, or it broke off.
    Answer(Response<R>),
    Error(E),
}

/// Calls the service. Its answer goes to `whole`; what is kept of it is returned.
async fn carry_out<S, B, R>(
    mut inner: S,
    request: Request<B>,
    max_body: usize,
    whole: oneshot::Sender<Response<R>>,
) -> Result<Kept, WorkError<Undone<R, S::Error>>>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + From<Bytes> + Default,
    R::Error: fmt::Display,
{
    let response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => return Err(WorkError::Unknown(Undone::Error(error))),
    };
    let (parts, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            tracing::warn!(%error, "the answer to a request with an idempotency key broke off");
            let broken = answer(StatusCode::BAD_GATEWAY);
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
    let headers = parts.headers.iter();
    let kept = Kept {
        status: parts.status.as_u16(),
        headers: headers
            .filter(|(name, _)| **name != header::DATE)
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        body: (body.len() <= max_body).then(|| body.to_vec()),
    };
    // A client that has hung up needs no answer.
    let _ = whole.send(Response::from_parts(parts, R::from(body)));
    Ok(kept)
}

/// The key, bare or as the quoted string that the IETF draft asks for.
fn key_of(value: &HeaderValue) -> Option<String> {
    let text = value.to_str().ok()?.trim();
    let key = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text);
    (!key.is_empty() && key.len() <= MAX_KEY).then(|| key.to_owned())
}

fn answer<R: Default>(status: StatusCode) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    response
}

fn replay<R: From<Bytes> + Default>(kept: Kept) -> Response<R> {
    let Some(body) = kept.body else {
        return answer(StatusCode::CONFLICT);
    };
    let mut response = Response::new(R::from(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    for (name, value) in kept.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(&value))
        {
            response.headers_mut().append(name, value);
        }
    }
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
