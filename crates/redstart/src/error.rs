//! The one error type of the crate.
//!
//! An ordinary "no" — a limited request, a lock that is taken, a sold-out item — is a value, never an
//! [`Error`]. An `Error` means that something failed: the store did not answer, the answer was not what the
//! pattern can work with, or the request was wrong before it was sent.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, without the details that callers should not match on.
///
/// The message names the operation and the namespace it worked in. It never contains a value, a token or a
/// credential. Ask what kind of failure it is with [`is_timeout`](Error::is_timeout),
/// [`is_unavailable`](Error::is_unavailable), [`is_config`](Error::is_config) and
/// [`is_in_doubt`](Error::is_in_doubt); the cause is [`source`](StdError::source).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let error = redstart::Store::connect("redis://localhost?tiemout=1s").await.unwrap_err();
/// assert!(error.is_config());
/// assert!(error.to_string().contains("tiemout"));
/// # }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    operation: Cow<'static, str>,
    /// The operation is named by its script, until the operation that ran it names itself.
    by_script: bool,
    namespace: Option<Arc<str>>,
    message: Cow<'static, str>,
    in_doubt: bool,
    /// No attempt of the request left this process.
    unsent: bool,
    source: Option<Box<dyn StdError + Send + Sync + 'static>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The deadline passed.
    Timeout,
    /// The store could not be reached, or it said that it cannot serve now.
    Unavailable,
    /// The request or the configuration is wrong; asking again cannot help.
    Config,
    /// The server refused or failed the command.
    Server,
    /// Stored bytes could not be decoded, or a value could not be encoded.
    Codec,
    /// Code of the application that the pattern ran (a loader, a sink) failed.
    User,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            operation: Cow::Borrowed(""),
            by_script: false,
            namespace: None,
            message: message.into(),
            in_doubt: false,
            unsent: false,
            source: None,
        }))
    }

    /// A wrong request or configuration, found before anything was sent.
    pub(crate) fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Config, message)
    }

    pub(crate) fn timeout(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Timeout, message)
    }

    pub(crate) fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    pub(crate) fn codec(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Codec, message)
    }

    /// A failure of the application's own code, run on behalf of a pattern.
    #[cfg(feature = "caching")]
    pub(crate) fn user(
        message: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync + 'static>>,
    ) -> Self {
        Self::new(Kind::User, message).with_source(source)
    }

    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn StdError + Send + Sync + 'static>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error for each of several callers that waited for one piece of work.
    pub(crate) fn shared(this: &Arc<Self>) -> Self {
        Self(Box::new(Inner {
            kind: this.0.kind,
            operation: this.0.operation.clone(),
            by_script: this.0.by_script,
            namespace: this.0.namespace.clone(),
            message: this.0.message.clone(),
            in_doubt: this.0.in_doubt,
            unsent: this.0.unsent,
            source: this
                .0
                .source
                .is_some()
                .then(|| Box::new(SharedCause(this.clone())) as _),
        }))
    }

    /// Marks that the request was or may have been carried out, although its caller has no answer.
    pub(crate) fn doubt(mut self, in_doubt: bool) -> Self {
        self.0.in_doubt = in_doubt;
        self
    }

    /// Marks that no attempt of the request left this process. An error in doubt is never marked: the embedded engine may have
    /// carried the request out.
    pub(crate) fn unsent(mut self, unsent: bool) -> Self {
        self.0.unsent = unsent && !self.0.in_doubt;
        self
    }

    /// Names the operation (`"mutex.acquire"`) and the namespace it worked in.
    pub(crate) fn during(
        mut self,
        operation: impl Into<Cow<'static, str>>,
        namespace: &Arc<str>,
    ) -> Self {
        if self.0.operation.is_empty() || self.0.by_script {
            self.0.operation = operation.into();
            self.0.by_script = false;
        }
        if self.0.namespace.is_none() {
            self.0.namespace = Some(namespace.clone());
        }
        self
    }

    /// Names the script that failed. The operation that ran it, if there is one, overrides this with its own name, so
    /// that errors, spans and metrics agree.
    pub(crate) fn during_script(mut self, script: &'static str, namespace: &Arc<str>) -> Self {
        if self.0.operation.is_empty() {
            self = self.during(script, namespace);
            self.0.by_script = true;
        }
        self
    }

    /// The deadline of the call passed before the answer came.
    pub fn is_timeout(&self) -> bool {
        self.0.kind == Kind::Timeout
    }

    /// The store could not be reached, or it answered that it cannot serve now: it is loading, failing over, out of
    /// memory, busy with a script, unable to write its disk, or a part of the cluster is down.
    pub fn is_unavailable(&self) -> bool {
        self.0.kind == Kind::Unavailable
    }

    /// The request or the configuration is wrong, and nothing was sent; or the store is in a state that only an operator
    /// can change, such as a Bloom filter that lost a part. Repeating it cannot help.
    pub fn is_config(&self) -> bool {
        self.0.kind == Kind::Config
    }

    /// Stored bytes could not be decoded, or a value could not be encoded.
    pub fn is_codec(&self) -> bool {
        self.0.kind == Kind::Codec
    }

    /// Code of the application that the pattern ran (a loader, a sink, a handler) failed.
    pub fn is_user(&self) -> bool {
        self.0.kind == Kind::User
    }

    /// The request was or may have been carried out, although this is an error: to repeat it may be to do it twice.
    ///
    /// | what happened | the error is also |
    /// |---|---|
    /// | it was sent, and the answer did not come | [a time-out](Self::is_timeout) or [unavailable](Self::is_unavailable) |
    /// | a part of a pipeline was or may have been carried out, and another part failed | what the other part is |
    /// | it was carried out, and the answer is not of the type that was asked for | [codec](Self::is_codec) |
    /// | it was carried out, and the engine could not write it to its log | [unavailable](Self::is_unavailable) |
    /// | it was carried out, and the engine's log was not on the disk in time (`fsync=always`) | [a time-out](Self::is_timeout) |
    ///
    /// The store never repeats such a write on its own. Repeat it only if doing it twice is harmless, or through a pattern
    /// that carries an idempotency token. A request that only reads is never in doubt.
    ///
    /// A request that is [idempotent](crate::script::Call::idempotent) is never in doubt. If it failed it may have been carried
    /// out all the same, or be carried out later: repeat it.
    pub fn is_in_doubt(&self) -> bool {
        self.0.in_doubt
    }

    /// It is certain that nothing of the request left this process, so the store knows nothing of it. Unlike
    /// [`is_in_doubt`](Self::is_in_doubt), this is known of idempotent requests too.
    #[cfg(feature = "resilience")]
    pub(crate) fn is_unsent(&self) -> bool {
        self.0.unsent
    }

    /// The store is down, in the sense of [`Down`](crate::Down): it did not answer in time, cannot be reached, or
    /// says that it cannot serve now. Policies for that case ask this, and nothing else.
    pub(crate) fn is_store_down(&self) -> bool {
        matches!(self.0.kind, Kind::Timeout | Kind::Unavailable)
    }

    /// The server does not have the command, as an older node of a mixed cluster may not.
    pub(crate) fn is_unknown_command(&self) -> bool {
        self.redis().is_some_and(|error| {
            error.code() == Some("ERR")
                && error
                    .detail()
                    .is_some_and(|detail| detail.contains("unknown command"))
        })
    }

    /// The operation that failed, such as `"mutex.acquire"`; empty for plain commands.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The error code of the server's answer (`WRONGTYPE`, `NOPERM`, `OOM` …), if the server answered.
    pub fn server_code(&self) -> Option<&str> {
        self.redis().and_then(redis::RedisError::code)
    }

    pub(crate) fn redis(&self) -> Option<&redis::RedisError> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// The server's answer as the reply that it was, if this is one.
    pub(crate) fn answer(&self) -> Option<redis::Value> {
        let error = self.redis()?;
        let line = format!(
            "-{} {}\r\n",
            error.code()?,
            error.detail().unwrap_or_default()
        );
        redis::parse_redis_value(line.as_bytes()).ok()
    }

    /// For `ConnectionLike`, whose signature asks for the client's own error type.
    pub(crate) fn into_redis(self) -> redis::RedisError {
        if let Some(error) = self.redis() {
            return error.clone();
        }
        let text = self.to_string();
        match self.0.kind {
            Kind::Timeout => std::io::Error::new(std::io::ErrorKind::TimedOut, text).into(),
            Kind::Unavailable => std::io::Error::new(std::io::ErrorKind::NotConnected, text).into(),
            Kind::Config => (redis::ErrorKind::InvalidClientConfig, "redstart", text).into(),
            Kind::Codec => (redis::ErrorKind::Parse, "redstart", text).into(),
            Kind::Server | Kind::User => (redis::ErrorKind::Client, "redstart", text).into(),
        }
    }
}

/// The cause of an error that several callers have.
#[derive(Debug)]
struct SharedCause(Arc<Error>);

impl fmt::Display for SharedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.0.source {
            Some(source) => fmt::Display::fmt(source, f),
            None => Ok(()),
        }
    }
}

impl StdError for SharedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source().and_then(StdError::source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            operation,
            namespace,
            message,
            in_doubt,
            source,
            ..
        } = &*self.0;
        if !operation.is_empty() {
            write!(f, "{operation}")?;
            if let Some(namespace) = namespace {
                write!(f, " in {namespace:?}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(message)?;
        if let Some(source) = source {
            write!(f, ": {source}")?;
        }
        if *in_doubt {
            f.write_str(" (the request may have been carried out)")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.to_string())
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Codes by which a server says that it cannot serve for now, beside those that the client knows.
const CANNOT_SERVE: [&str; 4] = ["OOM", "MISCONF", "NOREPLICAS", "BUSY"];

impl From<redis::RedisError> for Error {
    fn from(error: redis::RedisError) -> Self {
        use redis::{ErrorKind, ServerError, ServerErrorKind};
        let error = without_arguments(reason_of_abort(&error).unwrap_or(error));
        // The client knows the codes of single answers only.
        let first = first_failure(&error);
        let code = error.code().or(first.as_ref().map(ServerError::code));
        let (kind, message) = match error.kind() {
            ErrorKind::Io if error.is_timeout() => {
                (Kind::Timeout, "the store did not answer in time")
            }
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => {
                (Kind::Unavailable, "the store cannot be reached")
            }
            ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::NoValidReplicasFoundBySentinel => {
                (Kind::Unavailable, "no sentinel knows a usable master")
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ) => (Kind::Unavailable, "the store cannot serve this now"),
            ErrorKind::AuthenticationFailed => (Kind::Config, "the server refused the credentials"),
            ErrorKind::InvalidClientConfig
            | ErrorKind::EmptySentinelList
            | ErrorKind::RESP3NotSupported => (Kind::Config, "invalid store configuration"),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                (Kind::Codec, "the reply has an unexpected shape")
            }
            _ if code == Some("NOAUTH") || code == Some("WRONGPASS") => {
                (Kind::Config, "the server refused the credentials")
            }
            _ if code.is_some_and(|code| CANNOT_SERVE.contains(&code)) => {
                (Kind::Unavailable, "the store cannot serve this now")
            }
            _ => (Kind::Server, "the server refused the command"),
        };
        let done = was_carried_out(&error);
        Self::new(kind, message).with_source(error).doubt(done)
    }
}

/// The engine answers this if a command was carried out in memory and the log could not be written. With any other MISCONF
/// nothing happened.
fn was_carried_out(error: &redis::RedisError) -> bool {
    error.code() == Some("MISCONF")
        && !crate::mend::is_missing("doubt about what is not kept")
        && error
            .detail()
            .is_some_and(|detail| detail.contains("; the command was carried out"))
}

/// Why the server carried out nothing of a transaction, where EXEC itself was refused: the answer names another error.
pub(crate) fn reason_of_abort(error: &redis::RedisError) -> Option<redis::RedisError> {
    if error.code() != Some("EXECABORT") {
        return None;
    }
    let (_, reason) = error.detail()?.split_once("because of: ")?;
    match redis::parse_redis_value(format!("-{reason}\r\n").as_bytes()) {
        Ok(redis::Value::ServerError(reason)) => Some(reason.into()),
        _ => None,
    }
}

/// The first command of a pipeline that failed.
fn first_failure(error: &redis::RedisError) -> Option<redis::ServerError> {
    let failures = error.clone().into_server_errors()?;
    failures.first().map(|(_, failure)| failure.clone())
}

/// A server that does not know a command repeats its arguments, and those may be values or tokens.
fn without_arguments(error: redis::RedisError) -> redis::RedisError {
    let code = error.code().unwrap_or("ERR");
    match shortened(code, error.detail()) {
        Some(answer) => answer.into(),
        None => error,
    }
}

/// The same for the answer to one command of a pipeline.
pub(crate) fn forget_arguments(reply: &mut redis::Value) {
    if let redis::Value::ServerError(error) = reply
        && let Some(answer) = shortened(error.code(), error.details())
    {
        *reply = redis::Value::ServerError(answer);
    }
}

/// The answer without what it repeats; `None` if it repeats nothing.
fn shortened(code: &str, detail: Option<&str>) -> Option<redis::ServerError> {
    let detail = detail?;
    let at = detail.find(", with args beginning with:")?;
    let line = format!("-{code} {}\r\n", &detail[..at]);
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(redis::Value::ServerError(answer)) => Some(answer),
        _ => None,
    }
}

impl From<redis::ParsingError> for Error {
    fn from(error: redis::ParsingError) -> Self {
        Self::from(redis::RedisError::from(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &str) -> Error {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => redis::RedisError::from(error).into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_that_cannot_serve_counts_as_down() {
        for line in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script.",
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
        ] {
            assert!(answered(line).is_store_down(), "{line}");
        }
        for line in ["WRONGTYPE no", "ERR syntax error", "NOPERM no"] {
            assert!(!answered(line).is_store_down(), "{line}");
        }
    }

    #[test]
    fn what_was_carried_out_and_not_kept_is_in_doubt() {
        let text = "MISCONF Errors writing to the AOF file";
        assert!(!answered(text).is_in_doubt());
        assert!(!answered(&format!("{text}: no storage space")).is_in_doubt());
        let kept = "; the command was carried out, and what it wrote or read is not on the disk";
        assert!(answered(&format!("{text}: no storage space{kept}")).is_in_doubt());
    }

    #[test]
    fn an_unknown_command_is_recognised_and_its_arguments_are_not_repeated() {
        let error = answered(
            "ERR unknown command 'DELIFEQ', with args beginning with: 'app:lock:{x}' 'secret-token' ",
        );
        assert!(error.is_unknown_command());
        let text = format!("{error} {error:?} {:?}", error.redis());
        assert!(
            text.contains("DELIFEQ") && !text.contains("secret-token"),
            "{text}"
        );
    }
}
