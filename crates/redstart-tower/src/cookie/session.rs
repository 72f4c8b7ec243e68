use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redstart::sessions::{Login, Patched, Rotated, Session, SessionInfo, Sessions, Token};
use serde::{Serialize, de::DeserializeOwned};

/// The session of one request. Cheap to clone.
///
/// With axum it is an extractor; elsewhere it is among the request's extensions.
#[derive(Clone)]
pub struct CookieSession(Arc<Inner>);

struct Inner {
    sessions: Sessions,
    state: Mutex<State>,
}

struct State {
    token: Option<Token>,
    /// Who is logged in, once that was asked.
    user: Option<Option<String>>,
    answer: Answer,
}

/// What the response does with the cookie.
#[derive(Clone)]
pub(super) enum Answer {
    Keep,
    /// With its `Max-Age`, if the session is remembered.
    Set(Token, Option<Duration>),
    Remove,
}

impl CookieSession {
    pub(super) fn new(sessions: Sessions, token: Option<Token>) -> Self {
        let state = State {
            token,
            user: None,
            answer: Answer::Keep,
        };
        Self(Arc::new(Inner {
            sessions,
            state: Mutex::new(state),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn answer(&self) -> Answer {
        self.state().answer.clone()
    }

    fn token(&self) -> Option<Token> {
        self.state().token.clone()
    }

    fn set(&self, token: Token, max_age: Option<Duration>) {
        let mut state = self.state();
        state.answer = Answer::Set(token.clone(), max_age);
        state.token = Some(token);
        state.user = None;
    }

    fn remove(&self) {
        let mut state = self.state();
        state.answer = Answer::Remove;
        state.token = None;
        state.user = Some(None);
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
        let user = session
            .as_ref()
            .map(|session: &Session<T>| session.user.clone());
        self.state().user = Some(user.flatten());
        Ok(session)
    }

    /// Who is logged in. Asks the store once per request.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::load`].
    pub async fn user(&self) -> redstart::Result<Option<String>> {
        let known = self.state().user.clone();
        match known {
            Some(user) => Ok(user),
            None => {
                let session = self.load::<serde::de::IgnoredAny>().await?;
                Ok(session.and_then(|session| session.user))
            }
        }
    }

    /// Sets single fields. A request without a cookie gets an anonymous session for them.
    ///
    /// The session of a cookie that was sent may be gone: it expired, or another request of the same browser has just
    /// logged in or out. Then nothing is written and no cookie is set, which could replace the one of that other request.
    /// Where a visitor has nothing to lose by it, [`start_anonymous`](Self::start_anonymous) makes a new session.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::patch`].
    pub async fn patch<T: Serialize + ?Sized>(&self, data: &T) -> redstart::Result<Patched> {
        if let Some(token) = self.token() {
            return self.0.sessions.patch(&token, data).await;
        }
        self.start_anonymous(data).await?;
        Ok(Patched::Done)
    }

    /// Makes an anonymous session in place of whatever the request's cookie opens. That session is not ended.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::create_anonymous`].
    pub async fn start_anonymous<T: Serialize + ?Sized>(&self, data: &T) -> redstart::Result<()> {
        let token = self.0.sessions.create_anonymous(data).await?;
        self.set(token, None);
        Ok(())
    }

    /// Logs a user in: makes a new session and ends the one of the request. The fields of an anonymous session are kept,
    /// those of another user's are not. A [remembered](Login::remember) login gets a cookie that outlives the browser.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::login`]; the cookie stays as it was.
    pub async fn login<T: Serialize + ?Sized>(
        &self,
        login: impl Into<Login>,
        data: &T,
    ) -> redstart::Result<()> {
        let mut login = login.into();
        if let Some(old) = self.token() {
            login = login.replacing(&old);
        }
        let max_age = login.is_remembered().then(|| self.0.sessions.remember());
        let token = self.0.sessions.login(login, data).await?;
        self.set(token, max_age);
        Ok(())
    }

    /// Gives the session a new token, for a change of privileges. `false` if there is no session. If another request has
    /// just rotated it, that one's response has the new cookie.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::rotate`].
    pub async fn rotate(&self) -> redstart::Result<bool> {
        let rotated = self.turn(async |token| self.0.sessions.rotate(token).await);
        Ok(rotated.await? != Rotated::Gone)
    }

    /// Step-up: notes that the user has proven again who they are, for this long, and gives the session a new token.
    /// `false` if there is no session, or if another request has just rotated it: the user has to try again.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::elevate`].
    pub async fn elevate(&self, lasting: Duration) -> redstart::Result<bool> {
        let elevated = self.turn(async |token| self.0.sessions.elevate(token, lasting).await);
        Ok(matches!(elevated.await?, Rotated::To(_)))
    }

    async fn turn(
        &self,
        rotate: impl AsyncFnOnce(&Token) -> redstart::Result<Rotated>,
    ) -> redstart::Result<Rotated> {
        let Some(token) = self.token() else {
            return Ok(Rotated::Gone);
        };
        // The new cookie lasts as long as the one that it replaces.
        let Some(session) = self.load::<serde::de::IgnoredAny>().await? else {
            return Ok(Rotated::Gone);
        };
        let rotated = rotate(&token).await?;
        if let Rotated::To(token) = &rotated {
            let max_age = session.remembered.then_some(session.left);
            self.set(token.clone(), max_age);
        }
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
            self.remove();
        }
        Ok(())
    }

    /// Ends all sessions of the user of this one, including this one, and returns how many; 0 if nobody is logged in.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::revoke_all`]; the cookie stays as it was.
    pub async fn logout_everywhere(&self) -> redstart::Result<u64> {
        let Some(user) = self.user().await? else {
            return Ok(0);
        };
        let ended = self.0.sessions.revoke_all(&user).await?;
        self.remove();
        Ok(ended)
    }

    /// All sessions of the user of this one, with the [handle](Self::handle) of each; empty if nobody is logged in.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::list`].
    pub async fn devices(&self) -> redstart::Result<Vec<SessionInfo>> {
        match self.user().await? {
            Some(user) => self.0.sessions.list(&user).await,
            None => Ok(Vec::new()),
        }
    }

    /// Ends another session of the same user by its handle; `false` if the user has no such session.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::revoke_one`].
    pub async fn logout_device(&self, handle: &str) -> redstart::Result<bool> {
        match self.user().await? {
            Some(user) => self.0.sessions.revoke_one(&user, handle).await,
            None => Ok(false),
        }
    }

    /// The handle of this session in the list of [devices](Self::devices). `None` without a cookie.
    pub fn handle(&self) -> Option<String> {
        self.token().map(|token| token.handle())
    }

    /// The token against cross-site request forgery that is bound to this session: put it into forms, or into a page for
    /// its scripts. `None` without a session. Each call returns another text, with a fresh mask, so that compressed pages
    /// do not reveal it (BREACH); all of them are valid as long as the session. See [`CsrfLayer`](crate::CsrfLayer).
    pub fn csrf(&self) -> Option<String> {
        self.token().map(|token| token.csrf())
    }

    /// Whether this text is one of the session's [`csrf`](Self::csrf) tokens; for one that came in a form.
    pub fn is_csrf(&self, text: &str) -> bool {
        self.token().is_some_and(|token| token.is_csrf(text))
    }

    /// Whether the request has a token, of a session that may be gone.
    pub(crate) fn has_token(&self) -> bool {
        self.state().token.is_some()
    }
}

impl std::fmt::Debug for CookieSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CookieSession").field(&self.token()).finish()
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for CookieSession {
    type Rejection = crate::Problem;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        let session = parts.extensions.get().cloned();
        session.ok_or_else(crate::Problem::no_cookie_layer)
    }
}
