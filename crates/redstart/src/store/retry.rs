//! The one loop that sends a request again where that is safe.
//!
//! Three cases are safe: nothing was sent; the server said that it did nothing (LOADING, READONLY, MOVED …); or the
//! request is harmless, because it only reads or is idempotent. Any other request whose reply is lost is in doubt and
//! is reported so.

use std::{collections::HashMap, future::Future, time::Duration};

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use super::{
    backend::{Touched, touched},
    command,
    request::{Body, BoxFuture, Failure, Request, is_refusal, refused_whole},
};
use crate::error::Result;

/// Pauses between attempts, with jitter, so that a fleet that lost its server does not return in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) const FIRST: Duration = Duration::from_millis(5);
    const MAX: Duration = Duration::from_millis(400);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let cap = self.next;
        self.next = (self.next * 2).min(Self::MAX);
        cap.mul_f64(crate::chance::range(0.5..=1.0))
    }
}

/// Where a request is sent, and what is learned from a failure.
pub(crate) trait Destination: Send {
    /// Sends once and ends by the request's deadline.
    fn attempt<'a>(
        &'a mut self,
        request: Request<'a>,
    ) -> impl Future<Output = Result<Value, Failure>> + Send + 'a;

    /// The server names another place to ask. `true` if the next attempt goes there, at once.
    fn redirected(&mut self, request: &Request<'_>, error: &RedisError) -> bool {
        let _ = (request, error);
        false
    }

    /// The attempt failed in a way that a change of the topology would explain.
    fn troubled(&mut self) {}

    /// Waits before the next attempt; may end early if the topology changed meanwhile.
    fn pause(&mut self, pause: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(pause)
    }

    /// For messages.
    fn place(&self) -> String;
}

/// Sends until there is a reply, an error that stays, or the deadline. `first` is the outcome of an attempt that was
/// made already.
///
/// It is boxed where it is called: it is rare, and the futures of all patterns need no room for it then.
pub(crate) async fn persist<D: Destination>(
    to: &mut D,
    request: Request<'_>,
    mut first: Option<Failure>,
) -> Result<Value> {
    let harmless = request.is_harmless();
    let mut backoff = Backoff::new();
    let mut redirects = 0;
    // Some attempt may have reached a server.
    let mut sent = false;
    loop {
        let failure = match first.take() {
            Some(failure) => failure,
            None => match to.attempt(request).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            },
        };
        sent |= !matches!(failure, Failure::NotSent(_) | Failure::Down(_));
        let (again, pause) = match &failure {
            Failure::Answer(error) if to.redirected(&request, error) => {
                redirects += 1;
                metrics::counter!("redstart_store_redirects_total").increment(1);
                // Nodes that name each other do not agree yet.
                let pause = match redirects {
                    1..=3 => Duration::ZERO,
                    _ => backoff.next(),
                };
                (true, pause)
            }
            Failure::Answer(error) => {
                let again = refused_whole(error);
                if again {
                    to.troubled();
                }
                (again, backoff.next())
            }
            Failure::NotSent(error) => {
                to.troubled();
                // The attempt itself waits for the connection.
                (!error.is_config(), Backoff::FIRST)
            }
            Failure::Lost(_) => {
                to.troubled();
                let blindly = crate::mend::is_missing("a write is not resent");
                (harmless || blindly, backoff.next())
            }
            Failure::TimedOut | Failure::Down(_) => {
                to.troubled();
                (false, Duration::ZERO)
            }
        };
        if !again || Instant::now() + pause >= request.deadline {
            let many = matches!(request.body, Body::Many { .. });
            let certain = harmless
                || crate::mend::is_missing("doubt about a lost reply")
                || many && crate::mend::is_missing("doubt about a lost pipeline");
            return Err(failure.into_error(|| to.place(), certain).unsent(!sent));
        }
        metrics::counter!("redstart_store_retries_total").increment(1);
        if !pause.is_zero() {
            to.pause(pause).await;
        }
    }
}

/// Sends a command of a pipeline alone, by all the rules.
pub(crate) trait Alone {
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Value>>;
}

/// A pipeline that is no transaction may be refused in part: the server began to load, was demoted or gave a slot
/// away half-way. What was refused did not happen; it is sent again, alone and in order.
///
/// The order of commands with a key in common is kept: what was read behind a refused write is read again, and a command
/// that was refused before a write was carried out stays refused, since it would come too late. Of a command of a module, only
/// the first key is known.
///
/// # Errors
///
/// If it is in doubt whether one of them was carried out.
pub(crate) async fn mend(
    request: Request<'_>,
    mut replies: Vec<Value>,
    alone: &(impl Alone + Sync),
) -> Result<Vec<Value>> {
    let Body::Many { pipeline, .. } = request.body else {
        return Ok(replies);
    };
    if !replies.iter().any(is_refusal) {
        return Ok(replies);
    }
    let commands: Vec<&Cmd> = pipeline.cmd_iter().take(replies.len()).collect();
    let touched: Vec<Touched<'_>> = commands.iter().map(|cmd| touched(cmd)).collect();
    let mut written = Marks::default();
    for (at, cmd) in commands.iter().enumerate() {
        if !matches!(replies[at], Value::ServerError(_)) && !command::only_reads(cmd) {
            written.mark(&touched[at], at);
        }
    }
    let mut again = Marks::default();
    for at in 0..commands.len() {
        let resend = match is_refusal(&replies[at]) {
            true => written.last(&touched[at]).is_none_or(|last| last < at),
            false => {
                let is_old = again.last(&touched[at]).is_some();
                is_old && command::only_reads(commands[at])
            }
        };
        if !resend {
            continue;
        }
        again.mark(&touched[at], at);
        match alone
            .send(request.with(Body::One(commands[at]), None))
            .await
        {
            Ok(value) => replies[at] = value,
            Err(error) if error.is_in_doubt() => return Err(error),
            // Nothing happened, and the last answer says why.
            Err(error) => {
                if let Some(answer) = error.answer() {
                    replies[at] = answer;
                }
            }
        }
    }
    Ok(replies)
}

/// Where in a pipeline keys were touched last.
#[derive(Default)]
struct Marks<'a> {
    keys: HashMap<&'a [u8], usize>,
    /// The last command that touched any key at all, and the last one that touched all of them.
    any: Option<usize>,
    all: Option<usize>,
}

impl<'a> Marks<'a> {
    /// Commands are marked in order.
    fn mark(&mut self, touched: &Touched<'a>, at: usize) {
        match touched {
            Touched::All => (self.any, self.all) = (Some(at), Some(at)),
            Touched::Keys(keys) => {
                if !keys.is_empty() {
                    self.any = Some(at);
                }
                self.keys.extend(keys.iter().map(|key| (*key, at)));
            }
        }
    }

    fn last(&self, touched: &Touched<'a>) -> Option<usize> {
        match touched {
            Touched::All => self.any,
            Touched::Keys(keys) if keys.is_empty() => None,
            Touched::Keys(keys) => {
                let last = keys.iter().filter_map(|key| self.keys.get(key)).max();
                last.copied().max(self.all)
            }
        }
    }
}

/// Whether a part of the pipeline was refused and has to be sent again.
pub(crate) fn needs_mending(request: &Request<'_>, value: &Value) -> bool {
    match (request.body, value) {
        (Body::Many { pipeline, .. }, Value::Array(replies)) => {
            !pipeline.is_transaction() && replies.iter().any(is_refusal)
        }
        _ => false,
    }
}
