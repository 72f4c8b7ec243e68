use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxFuture, CookieSession, Problem, problem::Render};

/// Refuses requests that change something without the session's token against cross-site request forgery.
///
/// A request that carries a session cookie and is not GET, HEAD, OPTIONS or TRACE must have the header `X-CSRF-Token`
/// with a value of [`CookieSession::csrf`]; otherwise it gets 403. Pages of other sites can make the browser send the
/// cookie, but cannot read that value. A form that sends it as a field is checked by its handler, with
/// [`CookieSession::is_csrf`], outside this layer.
///
/// Every value has a fresh mask, so that no two pages contain the same text: the length of a compressed page does not
/// reveal the token (BREACH). Values are compared in constant time.
///
/// It needs no round trip. It goes inside the [`CookieLayer`](crate::CookieLayer).
#[derive(Clone, Debug)]
pub struct CsrfLayer(Arc<Settings>);

#[derive(Debug)]
struct Settings {
    header: HeaderName,
    render: Option<Render>,
}

impl CsrfLayer {
    /// A layer that reads the header `X-CSRF-Token`.
    #[expect(
        clippy::new_without_default,
        reason = "layers are made by `new` or `builder`"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A layer with settings.
    pub fn builder() -> CsrfLayerBuilder {
        CsrfLayerBuilder(Settings {
            header: HeaderName::from_static("x-csrf-token"),
            render: None,
        })
    }
}

/// Settings of a [`CsrfLayer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct CsrfLayerBuilder(Settings);

impl CsrfLayerBuilder {
    /// The header that has the token (default: `X-CSRF-Token`).
    pub fn header(mut self, name: HeaderName) -> Self {
        self.0.header = name;
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
    pub fn build(self) -> CsrfLayer {
        CsrfLayer(Arc::new(self.0))
    }
}

impl<S> Layer<S> for CsrfLayer {
    type Service = CsrfService<S>;

    fn layer(&self, inner: S) -> CsrfService<S> {
        CsrfService {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// The service that [`CsrfLayer`] makes.
#[derive(Clone, Debug)]
pub struct CsrfService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for CsrfService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
        );
        let refusal = match request.extensions().get::<CookieSession>() {
            _ if reads => None,
            None => Some(Problem::no_cookie_layer()),
            Some(session) => {
                let passes = !session.has_token() || self.settings.has(session, request.headers());
                (!passes).then(|| {
                    Problem::new(
                        StatusCode::FORBIDDEN,
                        "urn:redstart:csrf-token",
                        "CSRF token is missing or wrong",
                    )
                })
            }
        };
        match refusal {
            None => Box::pin(self.inner.call(request)),
            Some(problem) => {
                let response = problem.respond(self.settings.render.as_ref());
                Box::pin(async move { Ok(response) })
            }
        }
    }
}

impl Settings {
    fn has(&self, session: &CookieSession, headers: &HeaderMap) -> bool {
        headers
            .get(&self.header)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|text| session.is_csrf(text))
    }
}
