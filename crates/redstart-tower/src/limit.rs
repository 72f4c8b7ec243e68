mod field;

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, request::Parts};
use redstart::limiting::{DecidedBy, Decision, Limiter, Snapshot};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    BoxFuture, Problem, Subject, digest,
    problem::{Render, seconds},
    sha256,
};

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

pub use field::QuotaUnit;

type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// Puts a limiter in front of a service.
///
/// # Headers
///
/// Every response of a limited route has the fields of draft-ietf-httpapi-ratelimit-headers-11, one item for each limit:
///
/// ```text
/// RateLimit-Policy: "burst";q=20;qu="requests";w=2;pk=:3q2+78r+ur4=:, "daily";q=1000;qu="requests";w=86400;pk=:…:
/// RateLimit: "burst";r=19;t=1;pk=:3q2+78r+ur4=:, "daily";r=999;t=57000;pk=:…:
/// ```
///
/// | parameter | meaning |
/// |---|---|
/// | `q` | the quota, in the [unit](LimitLayerBuilder::quota_unit) `qu`; for a token bucket its capacity |
/// | `w` | its window in seconds; for a token bucket how long it takes to fill |
/// | `r` | what remains |
/// | `t` | the seconds until all of it is available again; in a refusal the seconds of `Retry-After`, which is never earlier |
/// | `pk` | the partition key: stands for the subject without naming it |
///
/// The partition key is the first 8 bytes of the SHA-256 of the subject's length (8 bytes, little-endian) and its text. It
/// is the same for all limits of a subject. [`hide_partition_key`](LimitLayerBuilder::hide_partition_key) leaves it out.
///
/// The fields are structured fields (RFC 9651). In the name of a limit, characters outside of ASCII are percent-encoded.
/// Layers can be nested, for example one by address and one by user: each adds its items. The older
/// `X-RateLimit-Limit`, `-Remaining` and `-Reset` are [optional](LimitLayerBuilder::legacy_headers), and are those of the
/// tightest limit.
///
/// A client that spends all of a large quota in the seconds that are left of its window stays within the limit. If that is
/// too fast, give the limiter a short limit beside the long one.
///
/// # Refusals
///
/// 429 with `Retry-After`, in whole seconds, rounded up and at least 1, and a [`Problem`] of the type `quota-exceeded`
/// with the names of the limits that refused as `violated-policies`. A request whose cost is above the capacity gets 429
/// without `Retry-After`: waiting does not help.
///
/// Requests from nobody, such as those without the header that the limit is by, share one limit. They do not pass
/// unlimited.
///
/// # While the store is down
///
/// The limiter's `on_store_down` decides: `Allow` lets the request pass without headers, `Refuse` and `Fail` answer 503
/// with `Retry-After: 1` and a problem of the type `temporary-reduced-capacity`. It is not the client's fault, so it is
/// not 429.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, routing::get};
/// use redstart::{Down, Store, limiting::{Limiter, Quota}};
/// use redstart_tower::{LimitLayer, Subject};
/// use tower::ServiceExt as _;
///
/// let store = Store::connect("memory://").await?;
/// let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(1))
///     .on_store_down(Down::Refuse)
///     .build()?;
/// let by_key = Subject::header(http::HeaderName::from_static("x-api-key"));
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(LimitLayer::new(limiter, by_key));
///
/// let request = || http::Request::get("/").header("x-api-key", "k1").body(Body::empty());
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
/// let refused = app.oneshot(request()?).await?;
/// assert_eq!(refused.status(), 429);
/// assert_eq!(refused.headers()["retry-after"], "1");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LimitLayer(Arc<Settings>);

struct Settings {
    limiter: Limiter,
    subject: Subject,
    cost: Option<Cost>,
    unit: QuotaUnit,
    partition: bool,
    legacy: bool,
    render: Option<Render>,
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("limiter", &self.0.limiter)
            .field("subject", &self.0.subject)
            .finish_non_exhaustive()
    }
}

impl LimitLayer {
    /// A layer on this limiter, by this subject.
    pub fn new(limiter: Limiter, subject: Subject) -> Self {
        Self::builder(limiter, subject).build()
    }

    /// A layer with settings.
    pub fn builder(limiter: Limiter, subject: Subject) -> LimitLayerBuilder {
        LimitLayerBuilder(Settings {
            limiter,
            subject,
            cost: None,
            unit: QuotaUnit::Requests,
            partition: true,
            legacy: false,
            render: None,
        })
    }
}

/// Settings of a [`LimitLayer`].
#[must_use = "a builder does nothing until it builds"]
pub struct LimitLayerBuilder(Settings);

impl fmt::Debug for LimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayerBuilder").finish_non_exhaustive()
    }
}

impl LimitLayerBuilder {
    /// What a request costs (default: 1). 0 passes without a check. With axum, the route is in the extensions as
    /// `MatchedPath`.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.0.cost = Some(Arc::new(cost));
        self
    }

    /// What the quota counts, as the header says it (default: [`QuotaUnit::Requests`]).
    ///
    /// ```
    /// # use redstart_tower::{LimitLayer, LimitLayerBuilder, QuotaUnit};
    /// # fn by_size(builder: LimitLayerBuilder) -> LimitLayer {
    /// builder
    ///     .quota_unit(QuotaUnit::ContentBytes)
    ///     .cost(|parts| {
    ///         let length = parts.headers.get(http::header::CONTENT_LENGTH);
    ///         length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(1)
    ///     })
    ///     .build()
    /// # }
    /// ```
    pub fn quota_unit(mut self, unit: QuotaUnit) -> Self {
        self.0.unit = unit;
        self
    }

    /// Leaves the partition key out of the headers. It is a digest of the subject without a secret: anyone who sees the
    /// headers of others and can guess their subjects can check the guess.
    pub fn hide_partition_key(mut self) -> Self {
        self.0.partition = false;
        self
    }

    /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds from now) of the tightest
    /// limit.
    pub fn legacy_headers(mut self) -> Self {
        self.0.legacy = true;
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
    pub fn build(self) -> LimitLayer {
        LimitLayer(Arc::new(self.0))
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// The service that [`LimitLayer`] makes.
#[derive(Clone)]
pub struct LimitService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for LimitService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<Bytes> + 'static,
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
            let (parts, body) = request.into_parts();
            let verdict = settings.check(&parts).await;
            let request = Request::from_parts(parts, body);
            match verdict {
                Verdict::Pass(standing) => {
                    let mut response = inner.call(request).await?;
                    if let Some(standing) = standing {
                        settings.describe(response.headers_mut(), &standing);
                    }
                    Ok(response)
                }
                Verdict::Refuse(problem, standing) => {
                    let mut response = problem.respond(settings.render.as_ref());
                    if let Some(standing) = standing {
                        settings.describe(response.headers_mut(), &standing);
                    }
                    Ok(response)
                }
            }
        })
    }
}

/// How a subject stands with its limits.
struct Standing {
    subject: String,
    snapshots: Vec<Snapshot>,
}

enum Verdict {
    Pass(Option<Standing>),
    Refuse(Problem, Option<Standing>),
}

impl Settings {
    async fn check(&self, parts: &Parts) -> Verdict {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        if cost == 0 {
            return Verdict::Pass(None);
        }
        let subject = match self.subject.find(parts).await {
            // The store's names are bounded, and a client must not choose how long they are.
            Ok(Some(subject)) if subject.is_empty() || subject.len() > 256 => {
                digest(&[subject.as_bytes()])
            }
            Ok(Some(subject)) => subject,
            Ok(None) => digest(&[b"nobody"]),
            Err(problem) => return Verdict::Refuse(problem, None),
        };
        match self.limiter.check(&subject, cost).await {
            Ok(Decision::Allowed(grant)) if grant.decided_by() == DecidedBy::Policy => {
                Verdict::Pass(None)
            }
            Ok(Decision::Allowed(grant)) => {
                let snapshots = grant.snapshots().to_vec();
                Verdict::Pass(Some(Standing { subject, snapshots }))
            }
            Ok(Decision::Limited { snapshot, .. }) if snapshot.decided_by == DecidedBy::Policy => {
                Verdict::Refuse(Problem::reduced_capacity([]), None)
            }
            Ok(Decision::Limited {
                retry_after,
                snapshot,
            }) => {
                let violated = [field::policy_name(&snapshot.name)];
                let problem = Problem::quota_exceeded(violated).with_retry_after(retry_after);
                let snapshots = vec![snapshot];
                Verdict::Refuse(problem, Some(Standing { subject, snapshots }))
            }
            Ok(Decision::Never { max }) => {
                let detail =
                    format!("this request costs {cost}, and the limit admits at most {max}");
                let limits = self.limiter.limits();
                let violated = limits
                    .filter(|(_, quota)| quota.capacity() < cost)
                    .map(|(name, _)| field::policy_name(name));
                let problem = Problem::quota_exceeded(violated).with_detail(detail);
                Verdict::Refuse(problem, None)
            }
            Err(error) => {
                tracing::warn!(%error, "a request was refused because its limiter failed");
                Verdict::Refuse(Problem::reduced_capacity([]), None)
            }
        }
    }

    /// Adds this layer's items to those of a layer within it.
    fn describe(&self, headers: &mut HeaderMap, standing: &Standing) {
        let partition = match self.partition {
            true => field::partition_key(&sha256(&[standing.subject.as_bytes()])[..8]),
            false => String::new(),
        };
        let limits = self.limiter.limits();
        let policies: Vec<_> = limits
            .map(|(name, quota)| field::policy_item(name, quota, self.unit, &partition))
            .collect();
        field::append(headers, field::POLICY, &policies);
        let limits = standing.snapshots.iter().map(|limit| {
            // A refusal names the time after which the request would pass, as its `Retry-After` does.
            let window = match limit.retry_after.is_zero() {
                true => limit.reset_after,
                false => limit.retry_after,
            };
            field::limit_item(&limit.name, limit.remaining, window, &partition)
        });
        field::append(headers, field::LIMIT, &limits.collect::<Vec<_>>());
        let tightest = standing
            .snapshots
            .iter()
            .min_by(|a, b| tightness(a.remaining, a.limit, b.remaining, b.limit));
        if let (true, Some(limit)) = (self.legacy, tightest) {
            let number = |name| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
            let inner_is_tighter = match (number(X_REMAINING), number(X_LIMIT)) {
                (Some(remaining), Some(of)) => {
                    tightness(remaining, of, limit.remaining, limit.limit).is_le()
                }
                _ => false,
            };
            if !inner_is_tighter {
                headers.insert(X_LIMIT, limit.limit.into());
                headers.insert(X_REMAINING, limit.remaining.into());
                headers.insert(X_RESET, seconds(limit.reset_after).into());
            }
        }
    }
}

/// Compares `a` of `of_a` with `b` of `of_b`.
fn tightness(a: u64, of_a: u64, b: u64, of_b: u64) -> std::cmp::Ordering {
    (u128::from(a) * u128::from(of_b)).cmp(&(u128::from(b) * u128::from(of_a)))
}
