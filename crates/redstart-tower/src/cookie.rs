mod session;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use cookie::Cookie;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use pin_project_lite::pin_project;
use redstart::sessions::{Sessions, Token};
use tower_layer::Layer;
use tower_service::Service;

pub use cookie::SameSite;
pub use session::CookieSession;

use session::Answer;

/// Sessions by cookie: [`redstart::sessions`] as a layer.
///
/// The layer reads the token from the request's cookie and gives the handler a [`CookieSession`]. What the handler does
/// with it decides the cookie of the response.
///
/// # Promises
///
/// - The cookie is `HttpOnly`, `Secure` and `SameSite=Lax`, and has the strongest name prefix that its settings allow:
///   `__Host-`, or `__Secure-` with a domain or a path. It reveals nothing about the user.
/// - A token that the store does not know never becomes a session, whether it was planted or tampered with. A login
///   always makes a new token and ends the old session.
/// - No request logs out another. Only [`logout`](CookieSession::logout) and
///   [`logout_everywhere`](CookieSession::logout_everywhere) remove the cookie: a request that was sent with a token that
///   another request has just replaced leaves the new cookie alone, and for a short grace it still finds the session.
/// - A response that sets or removes the cookie is `Cache-Control: no-store`, unless the handler says otherwise.
///
/// # Round trips
///
/// None for a request whose handler does not use the session.
///
/// # While the store is down
///
/// The handler's own calls fail; the layer itself refuses nothing.
///
/// # Which of the two session routes?
///
/// Use this one for a new application: fields that are patched one by one, an absolute timeout, devices, step-up,
/// logout everywhere. Use [`SessionStore`](crate::SessionStore) if the application is written for `tower-sessions`.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use axum::{Router, routing::{get, post}};
/// use redstart::{Store, sessions::Sessions};
/// use redstart_tower::{CookieLayer, CookieSession, LoggedIn, Problem};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Data { theme: String }
///
/// async fn login(session: CookieSession) -> Result<&'static str, Problem> {
///     // … after the password was checked …
///     session.login("ann", &Data { theme: "dark".into() }).await?;
///     Ok("welcome")
/// }
///
/// async fn home(ann: LoggedIn<Data>) -> String {
///     format!("hello {}, your theme is {}", ann.user, ann.session.data.theme)
/// }
///
/// let store = Store::connect("memory://").await?;
/// let sessions = Sessions::new(&store, "shop", "web")?;
/// let app: Router = Router::new()
///     .route("/login", post(login))
///     .route("/", get(home))
///     .layer(CookieLayer::new(sessions));
/// # let _ = app;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CookieLayer {
    sessions: Sessions,
    cookie: Arc<Settings>,
}

#[derive(Clone, Debug)]
struct Settings {
    name: String,
    secure: bool,
    domain: Option<String>,
    path: String,
    same_site: SameSite,
}

impl CookieLayer {
    /// A layer over these sessions; the cookie is called `__Host-session`.
    pub fn new(sessions: Sessions) -> Self {
        let builder = Self::builder(sessions);
        Self {
            cookie: Arc::new(builder.settings()),
            sessions: builder.sessions,
        }
    }

    /// A layer with settings.
    pub fn builder(sessions: Sessions) -> CookieLayerBuilder {
        CookieLayerBuilder {
            sessions,
            name: "session".to_owned(),
            secure: true,
            domain: None,
            path: "/".to_owned(),
            same_site: SameSite::Lax,
        }
    }
}

/// Settings of a [`CookieLayer`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct CookieLayerBuilder {
    sessions: Sessions,
    name: String,
    secure: bool,
    domain: Option<String>,
    path: String,
    same_site: SameSite,
}

/// Settings that make no valid cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCookie(&'static str);

impl fmt::Display for InvalidCookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid session cookie: {}", self.0)
    }
}

impl std::error::Error for InvalidCookie {}

impl CookieLayerBuilder {
    /// The name (default: `session`), without the prefix `__Host-` or `__Secure-`, which is added to it.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Shares the cookie with the subdomains of a domain (default: this host only). The prefix is then `__Secure-`.
    pub fn domain(mut self, domain: &str) -> Self {
        self.domain = Some(domain.to_owned());
        self
    }

    /// Sends the cookie for paths below this one only (default: `/`). The prefix is then `__Secure-`.
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Whether requests from other sites carry the cookie (default: [`SameSite::Lax`]).
    pub fn same_site(mut self, same_site: SameSite) -> Self {
        self.same_site = same_site;
        self
    }

    /// Sends the cookie over plain HTTP too, without a prefix: only for a developer's own machine.
    pub fn insecure(mut self) -> Self {
        self.secure = false;
        self
    }

    fn settings(&self) -> Settings {
        let prefix = match (self.secure, &self.domain, self.path.as_str()) {
            (false, ..) => "",
            (true, None, "/") => "__Host-",
            (true, ..) => "__Secure-",
        };
        Settings {
            name: format!("{prefix}{}", self.name),
            secure: self.secure,
            domain: self.domain.clone(),
            path: self.path.clone(),
            same_site: self.same_site,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// For a name, domain or path that a cookie cannot have, and for `SameSite=None` over plain HTTP.
    pub fn build(self) -> Result<CookieLayer, InvalidCookie> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if self.name.is_empty() || !self.name.chars().all(token) {
            return Err(InvalidCookie(
                "a name must consist of letters, digits and characters such as - and _",
            ));
        }
        let text = |c: char| c.is_ascii_graphic() && c != ';' && c != ',';
        if !self.path.starts_with('/') || !self.path.chars().all(text) {
            return Err(InvalidCookie("a path must start with / and be plain ASCII"));
        }
        if let Some(domain) = &self.domain
            && (domain.is_empty() || !domain.chars().all(text))
        {
            return Err(InvalidCookie("a domain must be plain ASCII"));
        }
        if self.same_site == SameSite::None && !self.secure {
            return Err(InvalidCookie("SameSite=None needs a secure cookie"));
        }
        Ok(CookieLayer {
            cookie: Arc::new(self.settings()),
            sessions: self.sessions,
        })
    }
}

impl Settings {
    fn base(&self, value: String) -> cookie::CookieBuilder<'static> {
        let cookie = Cookie::build((self.name.clone(), value))
            .path(self.path.clone())
            .http_only(true)
            .secure(self.secure)
            .same_site(self.same_site);
        match &self.domain {
            Some(domain) => cookie.domain(domain.clone()),
            None => cookie,
        }
    }

    /// Without `max_age` the browser forgets the cookie when it is closed, and the server by its timeouts.
    fn set(&self, token: &Token, max_age: Option<Duration>) -> String {
        let text = self.base(token.expose()).build().to_string();
        match max_age {
            Some(age) => format!("{text}; Max-Age={}", age.as_secs()),
            None => text,
        }
    }

    fn remove(&self) -> String {
        let text = self.base(String::new()).build().to_string();
        format!("{text}; Max-Age=0")
    }

    /// The first cookie of our name that is a token. Bytes, not text: other applications on the host may put anything
    /// into their cookies.
    fn sent(&self, headers: &HeaderMap) -> Option<Token> {
        headers
            .get_all(header::COOKIE)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'))
            .filter_map(|pair| {
                let pair = pair.trim_ascii();
                let value = pair
                    .strip_prefix(self.name.as_bytes())?
                    .strip_prefix(b"=")?;
                std::str::from_utf8(value).ok()?.parse().ok()
            })
            .next()
    }
}

impl<S> Layer<S> for CookieLayer {
    type Service = CookieService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CookieService {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service that [`CookieLayer`] makes.
#[derive(Clone, Debug)]
pub struct CookieService<S> {
    inner: S,
    layer: CookieLayer,
}

impl<S, B, R> Service<Request<B>> for CookieService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = CookieFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let token = self.layer.cookie.sent(request.headers());
        let session = CookieSession::new(self.layer.sessions.clone(), token);
        request.extensions_mut().insert(session.clone());
        CookieFuture {
            inner: self.inner.call(request),
            session,
            cookie: self.layer.cookie.clone(),
        }
    }
}

pin_project! {
    /// The future of [`CookieService`].
    pub struct CookieFuture<F> {
        #[pin]
        inner: F,
        session: CookieSession,
        cookie: Arc<Settings>,
    }
}

impl<F, R, E> Future for CookieFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<R>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx))?;
        let value = match this.session.answer() {
            Answer::Keep => None,
            Answer::Set(token, max_age) => Some(this.cookie.set(&token, max_age)),
            Answer::Remove => Some(this.cookie.remove()),
        };
        // The settings were checked, and a token is plain text.
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            let headers = response.headers_mut();
            headers.append(header::SET_COOKIE, value);
            // A cache between here and the browser must not hand this cookie to others.
            headers
                .entry(header::CACHE_CONTROL)
                .or_insert(HeaderValue::from_static("no-store"));
        }
        Poll::Ready(Ok(response))
    }
}
