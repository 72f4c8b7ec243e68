//! A layer that limits requests: 429, `Retry-After`, and the `RateLimit` headers.
//!
//! # Headers
//!
//! Every answer of a limited route carries the fields of the IETF draft *RateLimit header fields for HTTP*, one
//! item for each limit:
//!
//! ```text
//! RateLimit-Policy: "burst";q=20;w=2, "daily";q=1000;w=86400
//! RateLimit: "burst";r=19;t=1, "daily";r=999;t=57000
//! ```
//!
//! `q` is the quota and `w` its window in seconds (for a token bucket: the capacity, and how long it takes to fill),
//! `r` is what remains and `t` the seconds until all of it is there again. A refusal is 429 with `Retry-After`, in
//! whole seconds, rounded up and at least 1. The older `X-RateLimit-Limit`, `-Remaining` and `-Reset` are sent
//! [by option](LimitLayer::legacy_headers).
//!
//! # Who is limited
//!
//! | by | subject |
//! |---|---|
//! | [`ip`](LimitLayer::by_ip) | the peer's address: the IPv4 address, or the /64 network of an IPv6 one |
//! | [`header`](LimitLayer::by_header) | a digest of a header's value, so that no API key becomes a key of the store |
//! | [`closure`](LimitLayer::by) | what the application says |
//!
//! Requests that have no such subject share one limit among them all; they are not let through unlimited.
//!
//! # While the store is down
//!
//! What the limiter's [`Down`](redstart::Down) policy says: `Allow` lets the request through without
//! headers, `Refuse` and `Fail` answer 503 with `Retry-After: 1`. That is not the client's fault, so it is no 429.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, body::Body, routing::get};
//! use redstart::{Down, Store, limiting::{Limiter, Quota}};
//! use redstart_tower::LimitLayer;
//! use tower::ServiceExt as _;
//!
//! let store = Store::connect("memory://").await?;
//! let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(1))
//!     .on_store_down(Down::Refuse)
//!     .build()?;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(LimitLayer::new(limiter).by_header("x-api-key")?);
//!
//! let request = || http::Request::get("/").header("x-api-key", "k1").body(Body::empty());
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//! let refused = app.oneshot(request()?).await?;
//! assert_eq!(refused.status(), 429);
//! assert_eq!(refused.headers()["retry-after"], "1");
//! # Ok(()) }
//! ```

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, request::Parts};
use redstart::limiting::{DecidedBy, Decision, Limiter, Snapshot};
use tower_layer::Layer;
use tower_service::Service;

use crate::digest;

type Subject = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// What requests without a subject share.
const ANONYMOUS: &str = "anonymous";

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Puts a limiter before a service. See the [module](self).
#[derive(Clone)]
pub struct LimitLayer(Arc<Settings>);

#[derive(Clone)]
struct Settings {
    limiter: Limiter,
    subject: Subject,
    policy: Option<HeaderValue>,
    legacy: bool,
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("limiter", &self.0.limiter)
            .field("legacy", &self.0.legacy)
            .finish_non_exhaustive()
    }
}

impl LimitLayer {
    /// A layer that limits by the peer's address, until told otherwise.
    pub fn new(limiter: Limiter) -> Self {
        let items: Vec<String> = limiter
            .limits()
            .map(|(name, quota)| {
                let fill = quota.period().as_nanos() * u128::from(quota.capacity());
                let window = fill.div_ceil(u128::from(quota.units()) * 1_000_000_000);
                format!("\"{name}\";q={};w={}", quota.capacity(), window.max(1))
            })
            .collect();
        Self(Arc::new(Settings {
            limiter,
            subject: Arc::new(|parts| peer(parts).map(subnet)),
            policy: HeaderValue::try_from(items.join(", ")).ok(),
            legacy: false,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Limits by the address of the peer: axum's `ConnectInfo<SocketAddr>`, or a `SocketAddr` among the
    /// request's extensions. Behind a proxy that is the proxy's; use [`by`](Self::by) and the header that
    /// your proxy sets and clients cannot.
    #[must_use]
    pub fn by_ip(self) -> Self {
        self.with(|settings| settings.subject = Arc::new(|parts| peer(parts).map(subnet)))
    }

    /// Limits by the value of a header, such as an API key. A digest of it is stored, not the value.
    ///
    /// # Errors
    ///
    /// If this is no name of a header.
    pub fn by_header(self, name: &str) -> Result<Self, http::header::InvalidHeaderName> {
        let name = HeaderName::try_from(name)?;
        Ok(self.with(|settings| {
            settings.subject = Arc::new(move |parts| {
                let value = parts.headers.get(&name)?;
                Some(digest(&[value.as_bytes()]))
            });
        }))
    }

    /// Limits by what a function of the request says, such as the user of a session.
    #[must_use]
    pub fn by(self, subject: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.subject = Arc::new(subject))
    }

    /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from now) of
    /// the tightest limit.
    #[must_use]
    pub fn legacy_headers(self) -> Self {
        self.with(|settings| settings.legacy = true)
    }
}

fn peer(parts: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = parts
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0.ip());
    }
    let address = parts.extensions.get::<SocketAddr>()?;
    Some(address.ip())
}

/// One customer has a whole /64 of IPv6 addresses to come from.
fn subnet(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let network = u128::from(ip) >> 64 << 64;
            format!("{}/64", std::net::Ipv6Addr::from(network))
        }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// A service behind a limiter; made by [`LimitLayer`].
#[derive(Clone)]
pub struct Limit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for Limit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Limit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Default + 'static,
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
            let (parts, body) = request.into_parts();
            let subject = match (settings.subject)(&parts) {
                // The store's names have a bound, and a client shall not choose how long they are.
                Some(subject) if subject.is_empty() || subject.len() > 256 => {
                    digest(&[subject.as_bytes()])
                }
                Some(subject) => subject,
                None => ANONYMOUS.to_owned(),
            };
            let decision = settings.limiter.check(&subject, 1).await;
            let request = Request::from_parts(parts, body);
            match decision {
                Ok(Decision::Allowed(grant)) => {
                    let mut response = inner.call(request).await?;
                    if grant.decided_by() != DecidedBy::Policy {
                        settings.describe(response.headers_mut(), grant.snapshots());
                    }
                    Ok(response)
                }
                Ok(Decision::Limited { snapshot, .. })
                    if snapshot.decided_by == DecidedBy::Policy =>
                {
                    Ok(refuse(
                        StatusCode::SERVICE_UNAVAILABLE,
                        snapshot.retry_after,
                    ))
                }
                Ok(Decision::Limited {
                    retry_after,
                    snapshot,
                }) => {
                    let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, retry_after);
                    settings.describe(response.headers_mut(), &[snapshot]);
                    Ok(response)
                }
                // A cost of one is never above a capacity.
                Ok(Decision::Never { .. }) => {
                    Ok(refuse(StatusCode::TOO_MANY_REQUESTS, Duration::ZERO))
                }
                Err(error) => {
                    tracing::warn!(%error, "a request was refused because its limiter failed");
                    Ok(refuse(StatusCode::SERVICE_UNAVAILABLE, Duration::ZERO))
                }
            }
        })
    }
}

impl Settings {
    fn describe(&self, headers: &mut HeaderMap, snapshots: &[Snapshot]) {
        if let Some(policy) = &self.policy {
            headers.insert(POLICY, policy.clone());
        }
        let items: Vec<String> = snapshots
            .iter()
            .map(|s| {
                format!(
                    "\"{}\";r={};t={}",
                    s.name,
                    s.remaining,
                    seconds(s.reset_after)
                )
            })
            .collect();
        if let Ok(value) = HeaderValue::try_from(items.join(", ")) {
            headers.insert(LIMIT, value);
        }
        let tightest = snapshots
            .iter()
            .min_by(|a, b| (a.remaining * b.limit).cmp(&(b.remaining * a.limit)));
        if let (true, Some(tightest)) = (self.legacy, tightest) {
            headers.insert(X_LIMIT, tightest.limit.into());
            headers.insert(X_REMAINING, tightest.remaining.into());
            headers.insert(X_RESET, seconds(tightest.reset_after).into());
        }
    }
}

pub(crate) fn refuse<R: Default>(status: StatusCode, retry_after: Duration) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    let wait = seconds(retry_after).max(1);
    response
        .headers_mut()
        .insert(http::header::RETRY_AFTER, wait.into());
    response
}

/// Whole seconds, rounded up: earlier would be too early.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_customer_is_one_subject_and_a_mapped_ipv4_is_itself() {
        let of = |ip: &str| subnet(ip.parse().unwrap());
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_micros(1)), 1);
        assert_eq!(seconds(Duration::from_millis(2001)), 3);
    }
}
