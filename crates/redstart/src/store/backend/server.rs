//! One server, or the master behind the sentinels.

use std::sync::Arc;
#[cfg(feature = "engine")]
use std::time::Duration;

use redis::Value;

#[cfg(feature = "engine")]
use crate::store::mirror::{Mirror, MirrorStatus};

use crate::{
    error::Result,
    store::{
        pool::{Link, Node, ReplicaRead, SentinelReplicas},
        request::{Body, BoxFuture, Failure, Request},
        retry::{mend, needs_mending},
        transport::Dial,
    },
};

pub(crate) struct Server {
    node: Node,
    /// If reads may be answered by them.
    replicas: Option<Arc<SentinelReplicas>>,
    /// A copy in this process, if reads may be answered by it.
    #[cfg(feature = "engine")]
    mirror: Option<Arc<Mirror>>,
}

impl Server {
    pub(crate) fn new(dial: Dial) -> Self {
        let node = Node::new(dial);
        let dial = node.dial();
        let replicas = (dial.settings().replica_reads && dial.has_sentinels())
            .then(|| SentinelReplicas::new(dial.clone()));
        Self {
            node,
            replicas,
            #[cfg(feature = "engine")]
            mirror: None,
        }
    }

    /// With a copy in this process, which answers reads while it is not older than this.
    #[cfg(feature = "engine")]
    pub(crate) fn mirrored(dial: Dial, max_age: Duration) -> Result<Self> {
        let server = Self::new(dial);
        let mirror = Mirror::new(server.node.dial().clone(), max_age)?;
        Ok(Self {
            mirror: Some(mirror),
            ..server
        })
    }

    #[cfg(feature = "engine")]
    pub(crate) fn mirror(&self) -> Option<MirrorStatus> {
        self.mirror.as_ref().map(|mirror| mirror.status())
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) async fn request(&self, request: Request<'_>) -> Result<Value> {
        #[cfg(feature = "engine")]
        if request.stale
            && let Some(mirror) = &self.mirror
        {
            let read: BoxFuture<'_, _> = Box::pin(mirror.read(request));
            if let ReplicaRead::Answered(result) = read.await {
                return result;
            }
        }
        if request.stale
            && let Some(replicas) = &self.replicas
        {
            let read: BoxFuture<'_, _> = Box::pin(replicas.read(request));
            if let ReplicaRead::Answered(result) = read.await {
                return result;
            }
        }
        let link = self.node.link();
        let first = match link.once(request).await {
            Some(Ok(value)) if !needs_mending(&request, &value) => return Ok(value),
            Some(outcome) => Some(outcome),
            None => None,
        };
        self.persist(link, request, first).await
    }

    /// What is left to do when the first attempt, if there was one, did not do it.
    fn persist<'a>(
        &'a self,
        link: &'a Arc<Link>,
        request: Request<'a>,
        first: Option<Result<Value, Failure>>,
    ) -> BoxFuture<'a, Result<Value>> {
        Box::pin(async move {
            let value = match first {
                Some(Ok(value)) => value,
                Some(Err(failure)) => link.persist(request, Some(failure)).await?,
                None => link.persist(request, None).await?,
            };
            match value {
                Value::Array(replies) if matches!(request.body, Body::Many { pipeline, .. } if !pipeline.is_transaction()) => {
                    mend(request, replies, link).await.map(Value::Array)
                }
                value => Ok(value),
            }
        })
    }
}
