//! A connection of one's own, for commands that block.

use std::{sync::Arc, time::Duration};

use redis::{
    Cmd, FromRedisValue, Pipeline, ProtocolVersion, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::time::{Instant, timeout_at};

use super::{Backend, Store, dial::Dial, retry};
use crate::{
    error::{Error, Result},
    key::Key,
};

/// A connection that nobody shares, so that a command may wait on it.
///
/// It is made when it is first used and made anew after a failure; on a Cluster it leads to the owner of the
/// key it was asked for, wherever that slot goes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::time::Duration;
/// let store = redstart::Store::connect("memory://").await?;
/// let jobs = redstart::key::Keys::new("app", "jobs")?.entity("mail")?;
///
/// store.query::<()>(redis::cmd("LPUSH").arg(jobs.key()).arg("hello")).await?;
///
/// let mut own = store.dedicated(jobs.key());
/// let mut take = redis::cmd("BLMOVE");
/// take.arg(jobs.key()).arg(jobs.part("taken")).arg("RIGHT").arg("LEFT").arg(5);
/// let job: Option<String> = own.query(&take, Duration::from_secs(5)).await?;
/// assert_eq!(job.as_deref(), Some("hello"));
/// # Ok(()) }
/// ```
pub struct Dedicated {
    store: Store,
    slot: u16,
    line: Line,
}

enum Line {
    Closed,
    Server {
        connection: MultiplexedConnection,
        dial: Arc<Dial>,
        /// The dial's count when the connection was made.
        switches: u64,
    },
    #[cfg(feature = "engine")]
    Embedded(Box<redstart_engine::Session>),
}

impl Dedicated {
    pub(super) fn new(store: Store, key: &Key) -> Self {
        Self {
            store,
            slot: key.slot(),
            line: Line::Closed,
        }
    }

    /// Sends a command that may block for `wait` and reads its reply.
    ///
    /// The deadline is `wait` plus the store's own. A command that was refused because the server moved or
    /// is loading is sent again within it; one whose reply was lost is not.
    ///
    /// # Errors
    ///
    /// Those of [`Store::query`].
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, the connection is closed, so the server stops waiting too. An element that the
    /// server handed out at that very moment is lost with commands that remove (`BLPOP`) and safe with those
    /// that move or lend (`BLMOVE`, `XREADGROUP`). On the embedded engine nothing is lost with either.
    pub async fn query<T: FromRedisValue>(&mut self, cmd: &Cmd, wait: Duration) -> Result<T> {
        Ok(redis::from_redis_value(self.request(cmd, wait).await?)?)
    }

    async fn request(&mut self, cmd: &Cmd, wait: Duration) -> Result<Value> {
        let deadline = Instant::now() + wait + self.store.deadline();
        let mut backoff = retry::Backoff::new();
        loop {
            let (error, again) = match self.attempt(cmd, deadline).await {
                Ok(value) => return Ok(value),
                Err(refusal) => refusal,
            };
            let pause = backoff.next();
            if !again || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One attempt; the flag says whether another is safe.
    async fn attempt(&mut self, cmd: &Cmd, deadline: Instant) -> Result<Value, (Error, bool)> {
        let reads = retry::only_reads(cmd);
        let late = || Error::timeout("the store did not answer in time");
        // Taken out while it is in use: a dropped future takes the connection with it.
        match std::mem::replace(&mut self.line, Line::Closed) {
            #[cfg(feature = "engine")]
            Line::Embedded(mut session) => {
                let reply = timeout_at(deadline, session.call(super::embedded::args(cmd))).await;
                let reply = reply.map_err(|_| (late(), false))?;
                self.line = Line::Embedded(session);
                super::embedded::top(reply).map_err(|error| (error, false))
            }
            // It leads to a server that is master no more.
            Line::Server { dial, switches, .. } if dial.switches() != switches => {
                Box::pin(self.attempt(cmd, deadline)).await
            }
            Line::Server {
                mut connection,
                dial,
                switches,
            } => {
                let sent = timeout_at(deadline, connection.send_packed_command(cmd)).await;
                let error = match sent {
                    Err(_) => return Err((late().doubt(!reads), false)),
                    Ok(Ok(Value::ServerError(error))) => redis::RedisError::from(error),
                    Ok(Ok(value)) => {
                        self.line = Line::Server {
                            connection,
                            dial,
                            switches,
                        };
                        return Ok(value);
                    }
                    Ok(Err(error)) => error,
                };
                let answered = error.code().is_some();
                if answered && matches!(error.code(), Some("MOVED" | "ASK" | "UNBLOCKED")) {
                    self.refresh().await;
                    return Err((error.into(), true));
                }
                if retry::refused_for_now(&error) {
                    return Err((error.into(), true));
                }
                if answered {
                    self.line = Line::Server {
                        connection,
                        dial,
                        switches,
                    };
                    return Err((error.into(), false));
                }
                Err((
                    Error::unavailable("the connection was lost before the reply")
                        .with_source(error)
                        .doubt(!reads),
                    reads,
                ))
            }
            Line::Closed => {
                let opened = timeout_at(deadline, self.open())
                    .await
                    .map_err(|_| (late(), false))?;
                match opened {
                    Ok(line) => {
                        self.line = line;
                        Box::pin(self.attempt(cmd, deadline)).await
                    }
                    Err(error) => {
                        let again = !error.is_config();
                        self.refresh().await;
                        Err((error, again))
                    }
                }
            }
        }
    }

    async fn open(&self) -> Result<Line> {
        #[cfg(feature = "engine")]
        if let Backend::Embedded(embedded) = self.store.backend() {
            return Ok(Line::Embedded(Box::new(embedded.session()?)));
        }
        let dial = self.store.dial_for(self.slot)?;
        let switches = dial.switches();
        let connection = dial.connect(ProtocolVersion::RESP2, None).await?;
        Ok(Line::Server {
            connection,
            dial,
            switches,
        })
    }

    async fn refresh(&self) {
        if let Backend::Cluster(cluster) = self.store.backend() {
            let _ = cluster.refresh().await;
        }
    }
}

/// Commands run one at a time with the store's deadline and no time to block. Pipelines are for the
/// [`Store`]; here they are sent command by command.
impl ConnectionLike for Dedicated {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.request(cmd, Duration::ZERO)
                .await
                .map_err(Error::into_redis)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut store = self.store.clone();
            store.req_packed_commands(pipeline, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        self.store.get_db()
    }
}

impl std::fmt::Debug for Dedicated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dedicated")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
