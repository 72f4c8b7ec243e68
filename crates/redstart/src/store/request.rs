//! What is sent, and why there is no reply.

use std::{future::Future, pin::Pin, time::Duration};

use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisFuture, ServerErrorKind, Value,
    aio::ConnectionLike,
};
use tokio::time::Instant;

use super::command;
use crate::error::{Error, Result, forget_arguments, reason_of_abort};

/// Futures that are boxed because they are rare, so that those of all patterns need no room for them.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request: what is sent, what is known about it, and when it ends.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) body: Body<'a>,
    /// The Cluster slot, where the caller knows it already.
    pub(crate) slot: Option<u16>,
    /// Carrying it out twice is the same as once, so it may be sent again after a lost reply.
    idempotent: bool,
    pub(crate) deadline: Instant,
    /// How much sooner that is than by the store's own deadline.
    hurry: Duration,
    /// A replica may answer, with what was true a moment ago.
    pub(crate) stale: bool,
}

/// One command, or several in one write.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    One(&'a Cmd),
    Many {
        pipeline: &'a Pipeline,
        /// Which of the replies the caller wants.
        offset: usize,
        count: usize,
    },
}

impl<'a> Body<'a> {
    /// A pipeline with all its replies; of a transaction, the one reply that holds them.
    pub(crate) fn all(pipeline: &'a Pipeline) -> Self {
        let (offset, count) = if pipeline.is_transaction() {
            (pipeline.len() + 1, 1)
        } else {
            (0, pipeline.len())
        };
        Self::Many {
            pipeline,
            offset,
            count,
        }
    }

    /// How many replies the server sends.
    pub(crate) fn replies(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many { pipeline, .. } => match (pipeline.len(), pipeline.is_transaction()) {
                (0, _) => 0,
                (len, true) => len + 2,
                (len, false) => len,
            },
        }
    }

    fn only_reads(&self) -> bool {
        match self {
            Self::One(cmd) => command::only_reads(cmd),
            Self::Many { pipeline, .. } => pipeline.cmd_iter().all(command::only_reads),
        }
    }

    /// Refuses what would change the connection for everybody on it, or break the order of replies.
    pub(crate) fn check(&self, connection: command::Connection) -> Result<()> {
        match self {
            Self::One(cmd) => command::check(cmd, connection),
            Self::Many {
                pipeline,
                offset,
                count,
            } => {
                if offset
                    .checked_add(*count)
                    .is_none_or(|end| end > self.replies())
                {
                    return Err(Error::config(
                        "the pipeline has fewer replies than asked for",
                    ));
                }
                // The transaction brings MULTI and EXEC itself.
                let inside = if pipeline.is_transaction() {
                    command::Connection::Shared
                } else {
                    connection
                };
                pipeline
                    .cmd_iter()
                    .try_for_each(|cmd| command::check(cmd, inside))
            }
        }
    }
}

impl<'a> Request<'a> {
    pub(crate) fn new(body: Body<'a>, deadline: Instant) -> Self {
        Self {
            body,
            slot: None,
            idempotent: false,
            deadline,
            hurry: Duration::ZERO,
            stale: false,
        }
    }

    pub(crate) fn one(cmd: &'a Cmd, deadline: Instant) -> Self {
        Self::new(Body::One(cmd), deadline)
    }

    pub(crate) fn slot(mut self, slot: Option<u16>) -> Self {
        self.slot = slot;
        self
    }

    pub(crate) fn idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// States that its deadline is this much shorter than the store's own.
    pub(crate) fn hurry(mut self, hurry: Duration) -> Self {
        self.hurry = hurry;
        self
    }

    /// The same request with an earlier deadline.
    pub(crate) fn by(mut self, deadline: Instant) -> Self {
        self.hurry += self.deadline.saturating_duration_since(deadline);
        self.deadline = deadline;
        self
    }

    /// The same request, sent so much later than it was made. Its deadline stays; what a new connection does not answer in
    /// the rest of it says nothing about that connection.
    pub(crate) fn delayed(mut self, by: Duration) -> Self {
        self.hurry += by;
        self
    }

    /// When a request of the store's own deadline ends that began with this one, or was sent then: only then does it say something about
    /// the server that there is no answer.
    pub(crate) fn store_deadline(&self) -> Instant {
        self.deadline + self.hurry
    }

    /// A part of this request, or another way to send it, by the same rules.
    pub(crate) fn with<'b>(&self, body: Body<'b>, slot: Option<u16>) -> Request<'b> {
        Request {
            body,
            slot,
            idempotent: self.idempotent,
            deadline: self.deadline,
            hurry: self.hurry,
            stale: self.stale,
        }
    }

    /// Sending it again does no harm, so there is never a doubt to report.
    pub(crate) fn is_harmless(&self) -> bool {
        self.idempotent || self.body.only_reads()
    }
}

/// Why there is no reply. The transport makes it, the retry loop decides by it, and the caller gets the [`Error`]
/// that it turns into.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing left this process.
    NotSent(Error),
    /// Nothing left this process, because the server is known to be down; trying again now does not help.
    Down(Error),
    /// It was sent, at least in part, and the connection is gone.
    Lost(RedisError),
    /// It was sent, and its deadline passed.
    TimedOut,
    /// The server answered with an error.
    Answer(RedisError),
}

impl Failure {
    /// The error for the caller. `harmless` says that there is no doubt to report.
    pub(crate) fn into_error(self, place: impl FnOnce() -> String, harmless: bool) -> Error {
        match self {
            Self::NotSent(error) | Self::Down(error) => error,
            Self::Lost(error) => Error::unavailable("the connection was lost before the reply")
                .with_source(error)
                .doubt(!harmless),
            Self::TimedOut => {
                Error::timeout(format!("{} did not answer in time", place())).doubt(!harmless)
            }
            Self::Answer(error) => {
                let error = Error::from(error);
                let in_doubt = error.is_in_doubt() && !harmless;
                error.doubt(in_doubt)
            }
        }
    }
}

/// The server's own word that it did nothing, and that asking again later may help.
pub(crate) fn refused_for_now(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        )
    ) || matches!(error.code(), Some("BUSY" | "REDIRECT"))
}

/// The server did nothing, and says where else or that later it would.
pub(crate) fn elsewhere_or_later(error: &RedisError) -> bool {
    refused_for_now(error)
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
        )
}

/// The server said that nothing happened: to a command, or to all of a transaction.
pub(crate) fn refused_whole(error: &RedisError) -> bool {
    refused_for_now(error) || aborted_by(error).is_some_and(|error| refused_for_now(&error))
}

/// For a transaction that was aborted, the refusal that says where or when to try again.
pub(crate) fn aborted_by(error: &RedisError) -> Option<RedisError> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::ExecAbort) {
        return None;
    }
    if let Some(reason) = reason_of_abort(error) {
        return Some(reason).filter(elsewhere_or_later);
    }
    error
        .clone()
        .into_server_errors()?
        .iter()
        .map(|(_, error)| RedisError::from(error.clone()))
        .find(elsewhere_or_later)
}

/// READONLY means that the connection leads to a replica.
pub(crate) fn wrong_server(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Whether this reply says that its command has to be sent elsewhere or later.
pub(crate) fn is_refusal(reply: &Value) -> bool {
    match reply {
        Value::ServerError(error) => elsewhere_or_later(&error.clone().into()),
        _ => false,
    }
}

/// The replies of a pipeline.
pub(crate) fn array(reply: Value) -> Result<Vec<Value>> {
    match reply {
        Value::Array(replies) => Ok(replies),
        _ => Err(Error::codec("the reply to a pipeline is not an array")),
    }
}

/// Reads the reply to a command, or to a script that `repeats` without harm.
///
/// # Errors
///
/// The reply is not a `T`. What it answers was carried out, so the error is in doubt like one whose reply was lost: who repeats
/// the command carries it out twice.
pub(crate) fn convert<T: FromRedisValue>(reply: Value, repeats: bool) -> Result<T> {
    redis::from_redis_value(reply).map_err(|error| {
        let error = Error::from(error).doubt(!repeats);
        count_doubt(&error);
        error
    })
}

/// Takes the replies of a pipeline apart as the client does, which alone knows what the pipeline ignores.
///
/// # Errors
///
/// A command of it failed, or a reply is not what the caller expects. If a command wrote, the error is in doubt: who repeats the
/// pipeline writes that again.
pub(crate) async fn compose<T: FromRedisValue>(pipeline: &Pipeline, reply: Value) -> Result<T> {
    /// A connection that has the replies already.
    struct Answered(Vec<Value>);

    impl ConnectionLike for Answered {
        fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
            Box::pin(std::future::ready(Ok(Value::Nil)))
        }

        fn req_packed_commands<'a>(
            &'a mut self,
            _: &'a Pipeline,
            _: usize,
            _: usize,
        ) -> RedisFuture<'a, Vec<Value>> {
            Box::pin(std::future::ready(Ok(std::mem::take(&mut self.0))))
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    let mut replies = array(reply)?;
    let answers = match &mut replies[..] {
        [Value::Array(inside)] if pipeline.is_transaction() => &mut inside[..],
        replies => replies,
    };
    answers.iter_mut().for_each(forget_arguments);
    let half_done = is_half_done(pipeline, &replies);
    let not_kept = inside(pipeline, &replies).iter().any(is_not_kept);
    let aborted = pipeline.is_transaction() && replies[..] == [Value::Nil];
    let composed = match &replies[..] {
        // EXEC itself failed. The client would report only that this is not a list of replies.
        [Value::ServerError(error)] if pipeline.is_transaction() => Err(error.clone().into()),
        _ => pipeline.query_async(&mut Answered(replies)).await,
    };
    composed.map_err(|error: RedisError| {
        let error = Error::from(error);
        let only_reads = pipeline.cmd_iter().all(command::only_reads);
        // All went well there, and here it cannot be read.
        let unread = error.is_codec() && !aborted;
        let in_doubt = half_done || ((not_kept || unread) && !only_reads);
        let error = error.doubt(in_doubt);
        count_doubt(&error);
        error
    })
}

/// Counts an error that a caller gets and that is in doubt.
pub(super) fn count_doubt(error: &Error) {
    if error.is_in_doubt() {
        metrics::counter!("redstart_store_doubts_total").increment(1);
    }
}

/// The replies to the commands, without the frame of a transaction.
fn inside<'a>(pipeline: &Pipeline, replies: &'a [Value]) -> &'a [Value] {
    match replies {
        [Value::Array(inside)] if pipeline.is_transaction() => inside,
        replies => replies,
    }
}

/// The command was carried out, and what it did may not be kept. Looked for in each reply: of several errors, the client makes one
/// that tells neither.
fn is_not_kept(reply: &Value) -> bool {
    match reply {
        Value::ServerError(error) => {
            let error: RedisError = error.clone().into();
            Error::from(error).is_in_doubt()
        }
        _ => false,
    }
}

/// One command failed, and another one that writes did not.
fn is_half_done(pipeline: &Pipeline, replies: &[Value]) -> bool {
    let replies = inside(pipeline, replies);
    let failed = |reply: &Value| matches!(reply, Value::ServerError(_));
    replies.iter().any(failed)
        && pipeline
            .cmd_iter()
            .zip(replies)
            .any(|(cmd, reply)| !failed(reply) && !command::only_reads(cmd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_transaction_whose_exec_fails_has_the_error_of_the_server() {
        let error = "MISCONF Errors writing to the AOF file: no storage space";
        let reply = redis::parse_redis_value(format!("*1\r\n-{error}\r\n").as_bytes()).unwrap();
        let mut pipeline = redis::pipe();
        pipeline.atomic().cmd("GET").arg("a");
        let composed = compose::<Vec<Value>>(&pipeline, reply).await;
        let error = composed.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(!error.is_in_doubt(), "{error}");
    }

    #[tokio::test]
    async fn a_reply_that_cannot_be_read_is_in_doubt_if_something_was_carried_out() {
        let mut pipeline = redis::pipe();
        pipeline.atomic().cmd("INCR").arg("a");
        for (reply, in_doubt) in [("*1\r\n*1\r\n:7\r\n", true), ("*1\r\n$-1\r\n", false)] {
            let reply = redis::parse_redis_value(reply.as_bytes()).unwrap();
            let error = compose::<((i64, i64),)>(&pipeline, reply)
                .await
                .unwrap_err();
            assert!(error.is_codec(), "{error}");
            assert_eq!(error.is_in_doubt(), in_doubt, "{error}");
        }
    }

    #[test]
    fn a_transaction_that_was_refused_as_a_whole_has_the_servers_reason() {
        let answer = |text: &str| -> RedisError {
            let line = format!("-EXECABORT Transaction discarded because of: {text}\r\n");
            match redis::parse_redis_value(line.as_bytes()) {
                Ok(Value::ServerError(error)) => error.into(),
                other => panic!("{other:?}"),
            }
        };
        for text in [
            "MISCONF no room",
            "OOM command not allowed",
            "READONLY a replica",
        ] {
            let error = Error::from(answer(text));
            assert!(error.is_unavailable(), "{error}");
        }
        assert!(refused_whole(&answer("READONLY a replica")));
        assert!(!refused_whole(&answer("OOM command not allowed")));
        assert!(aborted_by(&answer("MOVED 7 127.0.0.1:7000")).is_some());
    }
}
