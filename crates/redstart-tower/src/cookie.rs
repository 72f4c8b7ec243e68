//! Sessions by cookie: [`redstart::sessions`] as a tower layer.
//!
//! The layer reads the token from the request's cookie and gives the handler a [`CookieSession`]; what the
//! handler does with it decides the cookie of the response.
//!
//! - The cookie is `HttpOnly`, `Secure` and `SameSite=Lax`, with the prefix `__Host-`, which binds it to this host
//!   and to HTTPS. For plain HTTP on one's own machine there is [`insecure`](CookieLayer::insecure).
//! - A token that the store does not know is never taken over: neither a planted nor a tampered cookie becomes a
//!   session. A login always makes a new token and ends the old session, so fixation finds nothing to fix.
//! - Nothing is sent to the store for a request whose handler does not ask for the session.
//! - While the store is down, the handler's own calls fail; the layer itself refuses nothing.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use cookie::{Cookie, SameSite};
use http::{HeaderValue, Request, Response, header};
use pin_project_lite::pin_project;
use redstart::sessions::{Patched, Session, SessionInfo, Sessions, Token};
use serde::{Serialize, de::DeserializeOwned};
use tower_layer::Layer;
use tower_service::Service;

/// Adds a [`CookieSession`] to each request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use axum::{Router, routing::{get, post}};
/// use redstart::{Store, sessions::Sessions};
/// use redstart_tower::cookie::{CookieLayer, CookieSession};
/// use serde_json::json;
///
/// async fn login(session: CookieSession) -> &'static str {
///     // … after the password was checked …
///     match session.login("ann", &json!({ "theme": "dark" })).await {
///         Ok(()) => "welcome",
///         Err(_) => "try again later",
///     }
/// }
///
/// async fn home(session: CookieSession) -> String {
///     match session.load::<serde_json::Value>().await {
///         Ok(Some(session)) => format!("hello {}", session.user.unwrap_or_default()),
///         _ => "hello stranger".into(),
///     }
/// }
///
/// let store = Store::connect("memory://").await?;
/// let sessions = Sessions::builder(&store, "shop").build()?;
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
}

impl CookieLayer {
    /// A layer over these sessions; the cookie is called `__Host-session`.
    pub fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            cookie: Arc::new(Settings {
                name: "__Host-session".to_owned(),
                secure: true,
            }),
        }
    }

    /// Sends the cookie over plain HTTP too, under the name `session`: for one's own machine only.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.cookie = Arc::new(Settings {
            name: "session".to_owned(),
            secure: false,
        });
        self
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
        let sent = sent_cookie(&request, &self.layer.cookie.name);
        let session = CookieSession(Arc::new(Inner {
            sessions: self.layer.sessions.clone(),
            state: Mutex::new(State {
                // What is no token is a cookie to be removed, and otherwise as good as none.
                token: sent.as_deref().and_then(|value| value.parse().ok()),
                answer: Answer::Keep,
            }),
        }));
        if sent.is_some() && session.token().is_none() {
            session.state().answer = Answer::Remove;
        }
        request.extensions_mut().insert(session.clone());
        CookieFuture {
            inner: self.inner.call(request),
            session,
            cookie: self.layer.cookie.clone(),
        }
    }
}

fn sent_cookie<B>(request: &Request<B>, name: &str) -> Option<String> {
    request
        .headers()
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(sent, _)| *sent == name)
        .map(|(_, value)| value.to_owned())
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
        let value = match &this.session.state().answer {
            Answer::Keep => None,
            Answer::Set(token) => Some(this.cookie.set(token)),
            Answer::Remove => Some(this.cookie.remove()),
        };
        // A token's letters and the cookie's name are all fit for a header.
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

impl Settings {
    fn base(&self, value: String) -> cookie::CookieBuilder<'static> {
        Cookie::build((self.name.clone(), value))
            .path("/")
            .http_only(true)
            .secure(self.secure)
            .same_site(SameSite::Lax)
    }

    /// Without an end date: the browser forgets it with its window, the server by its timeouts.
    fn set(&self, token: &Token) -> String {
        self.base(token.expose()).build().to_string()
    }

    fn remove(&self) -> String {
        let text = self.base(String::new()).build().to_string();
        format!("{text}; Max-Age=0")
    }
}

/// The session of one request. Cheap to clone.
///
/// With axum it is an extractor; elsewhere it is in the request's extensions.
#[derive(Clone)]
pub struct CookieSession(Arc<Inner>);

struct Inner {
    sessions: Sessions,
    state: Mutex<State>,
}

struct State {
    token: Option<Token>,
    answer: Answer,
}

enum Answer {
    Keep,
    Set(Token),
    Remove,
}

impl CookieSession {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self) -> Option<Token> {
        self.state().token.clone()
    }

    fn became(&self, token: Option<Token>) {
        let mut state = self.state();
        state.answer = match &token {
            Some(token) => Answer::Set(token.clone()),
            None => Answer::Remove,
        };
        state.token = token;
    }

    /// The session, if there is one. Renews its idle timeout.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::load`].
    pub async fn load<T: DeserializeOwned>(&self) -> redstart::Result<Option<Session<T>>> {
        let Some(token) = self.token() else {
            return Ok(None);
        };
        let session = self.0.sessions.load(&token).await?;
        if session.is_none() {
            self.became(None);
        }
        Ok(session)
    }

    /// Sets single fields, and makes an anonymous session if there is none.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::patch`].
    pub async fn patch<T: Serialize + ?Sized>(&self, data: &T) -> redstart::Result<()> {
        if let Some(token) = self.token()
            && self.0.sessions.patch(&token, data).await? == Patched::Done
        {
            return Ok(());
        }
        let token = self.0.sessions.create_anonymous(data).await?;
        self.became(Some(token));
        Ok(())
    }

    /// Logs a user in: a new token, whatever the request brought. The fields of an anonymous session are kept,
    /// those of another user's are not.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::elevate`]; the cookie stays as it was.
    pub async fn login<T: Serialize + ?Sized>(&self, user: &str, data: &T) -> redstart::Result<()> {
        let old = self.token();
        let token = self.0.sessions.elevate(old.as_ref(), user, data).await?;
        self.became(Some(token));
        Ok(())
    }

    /// Gives the session a new token, for a change of privileges; `false` if there is no session.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::rotate`].
    pub async fn rotate(&self) -> redstart::Result<bool> {
        let Some(token) = self.token() else {
            return Ok(false);
        };
        let new = self.0.sessions.rotate(&token).await?;
        let rotated = new.is_some();
        self.became(new);
        Ok(rotated)
    }

    /// Ends the session and removes the cookie.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::revoke`]; the cookie stays as it was.
    pub async fn logout(&self) -> redstart::Result<()> {
        if let Some(token) = self.token() {
            self.0.sessions.revoke(&token).await?;
            self.became(None);
        }
        Ok(())
    }

    /// Ends all sessions of the user of this one, this one too; how many. 0 if nobody is logged in.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::revoke_all`]; the cookie stays as it was.
    pub async fn logout_everywhere(&self) -> redstart::Result<u64> {
        let Some(user) = self.user().await? else {
            return Ok(0);
        };
        let ended = self.0.sessions.revoke_all(&user).await?;
        self.became(None);
        Ok(ended)
    }

    /// All sessions of the user of this one. Empty if nobody is logged in.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::list`].
    pub async fn everywhere(&self) -> redstart::Result<Vec<SessionInfo>> {
        match self.user().await? {
            Some(user) => self.0.sessions.list(&user).await,
            None => Ok(Vec::new()),
        }
    }

    /// Who is logged in.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::load`].
    pub async fn user(&self) -> redstart::Result<Option<String>> {
        let session = self.load::<serde::de::IgnoredAny>().await?;
        Ok(session.and_then(|session| session.user))
    }
}

impl std::fmt::Debug for CookieSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CookieSession").field(&self.token()).finish()
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for CookieSession {
    type Rejection = (http::StatusCode, &'static str);

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or((
            http::StatusCode::INTERNAL_SERVER_ERROR,
            "the cookie layer is missing",
        ))
    }
}
