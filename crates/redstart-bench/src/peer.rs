//! The connection under a peer that is written by hand.
//!
//! Such a peer runs twice: on redis-rs, which people would use instead of us, and on our own store, so that a pattern is not
//! credited with the wire below it.

use redis::{Cmd, FromRedisValue, Pipeline, ScriptInvocation, aio::MultiplexedConnection};
use redstart::Store;
use redstart_testkit::Server;

/// One connection for all tasks, as users of either library have it.
#[derive(Clone)]
pub(crate) enum Line {
    RedisRs(MultiplexedConnection),
    OurStore(Store),
}

impl Line {
    pub(crate) async fn redis_rs(server: &Server) -> anyhow::Result<Self> {
        let client = redis::Client::open(server.url())?;
        // Its users set the time-outs; without them it would have less to do than we.
        let config = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(std::time::Duration::from_secs(1)));
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Self::RedisRs(connection))
    }

    /// Both.
    pub(crate) async fn all(server: &Server, store: &Store) -> anyhow::Result<[Self; 2]> {
        Ok([Self::redis_rs(server).await?, Self::OurStore(store.clone())])
    }

    /// A peer's name in the table: what it does, and on what.
    pub(crate) fn name(&self, peer: &str) -> String {
        match self {
            Self::RedisRs(_) => format!("{peer}, redis-rs"),
            Self::OurStore(_) => format!("{peer}, our store"),
        }
    }

    pub(crate) async fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> anyhow::Result<T> {
        Ok(match self {
            Self::RedisRs(connection) => cmd.query_async(connection).await?,
            Self::OurStore(store) => store.query(cmd).await?,
        })
    }

    pub(crate) async fn pipeline<T: FromRedisValue>(
        &mut self,
        pipeline: &Pipeline,
    ) -> anyhow::Result<T> {
        Ok(match self {
            Self::RedisRs(connection) => pipeline.query_async(connection).await?,
            Self::OurStore(store) => store.pipeline(pipeline).await?,
        })
    }

    pub(crate) async fn script<T: FromRedisValue>(
        &mut self,
        call: &ScriptInvocation<'_>,
    ) -> anyhow::Result<T> {
        Ok(match self {
            Self::RedisRs(connection) => call.invoke_async(connection).await?,
            Self::OurStore(store) => call.invoke_async(store).await?,
        })
    }
}
