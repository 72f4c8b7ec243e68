use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde::de::IgnoredAny;
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxFuture, CookieSession, Problem, problem::Render};

/// Refuses requests without a login, or without a recent step-up.
///
/// | request | response |
/// |---|---|
/// | a user is logged in | the service's |
/// | nobody is logged in | 401, or 303 to the [login page](LoginLayerBuilder::redirect) |
/// | the session is not [elevated](LoginLayerBuilder::elevated), and has to be | 403 |
/// | the store is down | 503 |
///
/// It goes inside the [`CookieLayer`](crate::CookieLayer).
#[derive(Clone, Debug)]
pub struct LoginLayer(Arc<Settings>);

#[derive(Debug)]
struct Settings {
    elevated: bool,
    redirect: Option<HeaderValue>,
    render: Option<Render>,
}

impl LoginLayer {
    /// A layer that asks for a login.
    #[expect(
        clippy::new_without_default,
        reason = "layers are made by `new` or `builder`"
    )]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A layer with settings.
    pub fn builder() -> LoginLayerBuilder {
        LoginLayerBuilder(Settings {
            elevated: false,
            redirect: None,
            render: None,
        })
    }
}

/// Settings of a [`LoginLayer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LoginLayerBuilder(Settings);

impl LoginLayerBuilder {
    /// Asks for a step-up as well: [`CookieSession::elevate`], not too long ago.
    pub fn elevated(mut self) -> Self {
        self.0.elevated = true;
        self
    }

    /// Sends a visitor who is not logged in to this page instead of 401.
    pub fn redirect(mut self, page: HeaderValue) -> Self {
        self.0.redirect = Some(page);
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
    pub fn build(self) -> LoginLayer {
        LoginLayer(Arc::new(self.0))
    }
}

impl<S> Layer<S> for LoginLayer {
    type Service = LoginService<S>;

    fn layer(&self, inner: S) -> LoginService<S> {
        LoginService {
            inner,
            settings: self.0.clone(),
        }
    }
}

/// The service that [`LoginLayer`] makes.
#[derive(Clone, Debug)]
pub struct LoginService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for LoginService<S>
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
            let session = request.extensions().get::<CookieSession>().cloned();
            match settings.check(session).await {
                Ok(()) => inner.call(request).await,
                Err(problem) => Ok(settings.refuse(&problem)),
            }
        })
    }
}

impl Settings {
    async fn check(&self, session: Option<CookieSession>) -> Result<(), Problem> {
        let session = session.ok_or_else(Problem::no_cookie_layer)?;
        if !self.elevated {
            return match session.user().await? {
                Some(_) => Ok(()),
                None => Err(login_required()),
            };
        }
        match session.load::<IgnoredAny>().await? {
            Some(session) if session.user.is_some() => match session.elevated {
                Some(_) => Ok(()),
                None => Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "urn:redstart:step-up-required",
                    "Step-up is required",
                )),
            },
            _ => Err(login_required()),
        }
    }

    fn refuse<R: From<Bytes>>(&self, problem: &Problem) -> Response<R> {
        let mut response = problem.respond(self.render.as_ref());
        if let (StatusCode::UNAUTHORIZED, Some(page)) = (problem.status(), &self.redirect) {
            *response.status_mut() = StatusCode::SEE_OTHER;
            let headers: &mut HeaderMap = response.headers_mut();
            headers.insert(header::LOCATION, page.clone());
        }
        response
    }
}

fn login_required() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "urn:redstart:login-required",
        "Login is required",
    )
}

/// An extractor for the session of a user who is logged in, with its data.
///
/// It rejects with 401 if nobody is logged in; `Option<LoggedIn<T>>` does not.
#[cfg(feature = "axum")]
#[derive(Clone, Debug)]
pub struct LoggedIn<T> {
    /// Who is logged in.
    pub user: String,
    /// The session.
    pub session: redstart::sessions::Session<T>,
}

#[cfg(feature = "axum")]
impl<T, S> axum::extract::FromRequestParts<S> for LoggedIn<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        state: &S,
    ) -> Result<Self, Problem> {
        let found =
            <Self as axum::extract::OptionalFromRequestParts<S>>::from_request_parts(parts, state);
        found.await?.ok_or_else(login_required)
    }
}

#[cfg(feature = "axum")]
impl<T, S> axum::extract::OptionalFromRequestParts<S> for LoggedIn<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Option<Self>, Problem> {
        let session = parts.extensions.get::<CookieSession>().cloned();
        let session = session.ok_or_else(Problem::no_cookie_layer)?;
        // A session that is anonymous need not have the data of one that is not.
        if session.user().await?.is_none() {
            return Ok(None);
        }
        let loaded = session.load::<T>().await?;
        Ok(loaded.and_then(|session| {
            let user = session.user.clone()?;
            Some(Self { user, session })
        }))
    }
}
