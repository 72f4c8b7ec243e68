//! What the operations on sessions return.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::super::token::Token;
#[cfg(doc)]
use super::super::{Login, Sessions};

/// A session that was loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Session<T> {
    /// Whose session it is; `None` before a login.
    pub user: Option<String>,
    /// The application's data.
    pub data: T,
    /// When it was made, since the Unix epoch.
    pub created: Duration,
    /// How long it lives on if it is not used again.
    pub left: Duration,
    /// How long the rights of an [elevation](Sessions::elevate) last; `None` without one.
    pub elevated: Option<Duration>,
    /// Whether it is a [remembered](Login::remember) session.
    pub remembered: bool,
}

/// What became of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the session may be gone"]
pub enum Patched {
    /// The fields are written.
    Done,
    /// There is no such session; nothing was written.
    Gone,
    /// The session would have more than 1,000 fields or 1 MiB; nothing was written.
    Full,
}

/// What became of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the new token must reach the client"]
pub enum Rotated {
    /// The session has this token now.
    To(Token),
    /// Another call has just rotated the session; its client gets the new token. Nothing was changed.
    Already,
    /// There is no such session.
    Gone,
}

impl Rotated {
    /// The new token, if this call made one.
    pub fn token(self) -> Option<Token> {
        match self {
            Self::To(token) => Some(token),
            Self::Already | Self::Gone => None,
        }
    }
}

/// A session in the list of its user, for a page that shows where a user is logged in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Names the session without opening it; see [`Sessions::revoke_one`] and [`Token::handle`].
    pub handle: String,
    /// The [label](Login::label) of the login, such as the name of the device.
    pub label: Option<String>,
    /// When it was made, since the Unix epoch.
    pub created: Duration,
    /// When it was last used, since the Unix epoch, exact to a second.
    pub seen: Duration,
    /// Whether it is a [remembered](Login::remember) session.
    pub remembered: bool,
    /// The application's fields.
    pub fields: Map<String, Json>,
}
