//! Connections that the application already had. Their retries are their own; the deadline is the store's.

use redis::{Value, aio::ConnectionLike};

use crate::{
    error::{Error, Result},
    store::{
        command,
        request::{Body, BoxFuture, Request},
    },
};

pub(crate) enum Foreign {
    #[cfg(feature = "from-manager")]
    Manager(redis::aio::ConnectionManager),
    #[cfg(feature = "from-cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Foreign {
    pub(crate) fn request<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Value>> {
        if self.is_cluster()
            && let Body::One(cmd) = request.body
            && command::name(cmd).is_some_and(|name| name.eq_ignore_ascii_case(b"SCAN"))
        {
            return Box::pin(std::future::ready(Err(Error::config(
                "SCAN would ask any node of the Cluster for each page, and none knows the cursor of another: make the store \
                 from a redis+cluster:// URL and use store.scan()",
            ))));
        }
        match self {
            #[cfg(feature = "from-manager")]
            Self::Manager(manager) => Box::pin(send(manager.clone(), request)),
            #[cfg(feature = "from-cluster")]
            Self::Cluster(cluster) => Box::pin(send(cluster.clone(), request)),
        }
    }

    pub(crate) fn db(&self) -> i64 {
        match self {
            #[cfg(feature = "from-manager")]
            Self::Manager(manager) => manager.get_db(),
            #[cfg(feature = "from-cluster")]
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "from-manager")]
            Self::Manager(_) => false,
            #[cfg(feature = "from-cluster")]
            Self::Cluster(_) => true,
        }
    }
}

async fn send(mut connection: impl ConnectionLike, request: Request<'_>) -> Result<Value> {
    if request.body.replies() == 0 {
        return Ok(Value::Array(Vec::new()));
    }
    let work = async {
        match request.body {
            Body::One(cmd) => match connection.req_packed_command(cmd).await {
                Ok(Value::ServerError(error)) => Err(error.into()),
                result => result,
            },
            Body::Many {
                pipeline,
                offset,
                count,
            } => connection
                .req_packed_commands(pipeline, offset, count)
                .await
                .map(Value::Array),
        }
    };
    let in_doubt = !request.is_harmless();
    match tokio::time::timeout_at(request.deadline, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let lost = error.code().is_none() && error.is_io_error();
            Err(Error::from(error).doubt(lost && in_doubt))
        }
        Err(_) => Err(Error::timeout("the store did not answer in time").doubt(in_doubt)),
    }
}
