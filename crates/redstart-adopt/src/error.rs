//! The one error type of the crate.

use std::{borrow::Cow, fmt};

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The message never contains a value, a token or a credential.
pub struct Error(Kind);

enum Kind {
    /// The store failed, or refused a command.
    Store(redstart::Error),
    /// The request is wrong; nothing was sent.
    Invalid(Cow<'static, str>),
}

impl Error {
    /// A wrong request, found before anything was sent.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self(Kind::Invalid(message.into()))
    }

    /// The request was wrong: asking again cannot help, and nothing was sent.
    pub fn is_invalid(&self) -> bool {
        match &self.0 {
            Kind::Invalid(_) => true,
            Kind::Store(error) => error.is_config(),
        }
    }

    /// The store's own error, if it is one, or this one again.
    ///
    /// # Errors
    ///
    /// This error, if it is not the store's.
    pub fn into_store(self) -> std::result::Result<redstart::Error, Self> {
        match self.0 {
            Kind::Store(error) => Ok(error),
            kind => Err(Self(kind)),
        }
    }

    /// The store's own error, if it is one: [`is_timeout`](redstart::Error::is_timeout),
    /// [`is_in_doubt`](redstart::Error::is_in_doubt) and the others tell what kind.
    pub fn store(&self) -> Option<&redstart::Error> {
        match &self.0 {
            Kind::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<redstart::Error> for Error {
    fn from(error: redstart::Error) -> Self {
        Self(Kind::Store(error))
    }
}

impl From<redis::ParsingError> for Error {
    fn from(error: redis::ParsingError) -> Self {
        Self(Kind::Store(redstart::Error::from(error)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Store(error) => error.fmt(f),
            Kind::Invalid(message) => f.write_str(message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Store(error) => f.debug_tuple("Store").field(error).finish(),
            Kind::Invalid(message) => f.debug_tuple("Invalid").field(message).finish(),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Store(error) => Some(error),
            _ => None,
        }
    }
}
