//! A call policy around a service.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use redstart::resilience::{CallPolicy, PolicyError};
use tower_layer::Layer;
use tower_service::Service;

/// Calls the service by a [`CallPolicy`]: timeout, repetitions within a budget, bulkhead, hedging and circuit breaker in
/// one layer. For clients of a dependency; requests are cloned for repetitions and hedges.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{num::NonZeroU32, time::Duration};
/// use redstart::resilience::{CallPolicy, RetryPlan};
/// use redstart_tower::PolicyLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// let policy = CallPolicy::builder()
///     .timeout(Duration::from_millis(300))
///     .retry(RetryPlan::attempts(NonZeroU32::new(3).unwrap()))
///     .build();
/// let client = ServiceBuilder::new()
///     .layer(PolicyLayer::new(policy))
///     .service(service_fn(|name: String| async move { Ok::<_, std::io::Error>(format!("hello {name}")) }));
/// assert_eq!(client.oneshot("ann".to_owned()).await?, "hello ann");
/// # Ok(()) }
/// ```
///
/// The service is always ready: a full bulkhead refuses a request with [`PolicyError::Full`].
#[derive(Clone, Debug)]
pub struct PolicyLayer<F = ()> {
    policy: CallPolicy,
    is_failure: F,
}

impl PolicyLayer {
    /// A layer for which every error, and nothing else, is a failure.
    pub fn new(policy: CallPolicy) -> Self {
        Self {
            policy,
            is_failure: (),
        }
    }

    /// A layer with a predicate for failures: a response with a status of 503 is one, an error may be none.
    pub fn with_failures<F>(policy: CallPolicy, is_failure: F) -> PolicyLayer<Arc<F>> {
        PolicyLayer {
            policy,
            is_failure: Arc::new(is_failure),
        }
    }
}

impl<S, F: Clone> Layer<S> for PolicyLayer<F> {
    type Service = PolicyService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyService {
            inner,
            policy: self.policy.clone(),
            is_failure: self.is_failure.clone(),
        }
    }
}

/// Made by [`PolicyLayer`].
#[derive(Clone, Debug)]
pub struct PolicyService<S, F = ()> {
    inner: S,
    policy: CallPolicy,
    is_failure: F,
}

type PolicyFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, PolicyError<E>>> + Send>>;

impl<S, R> Service<R> for PolicyService<S>
where
    S: Service<R> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    R: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = PolicyError<S::Error>;
    type Future = PolicyFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (policy, inner) = (self.policy.clone(), self.inner.clone());
        Box::pin(async move { policy.call(|| once(inner.clone(), request.clone())).await })
    }
}

impl<S, R, F> Service<R> for PolicyService<S, Arc<F>>
where
    S: Service<R> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    R: Clone + Send + Sync + 'static,
    F: Fn(&Result<S::Response, S::Error>) -> bool + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = PolicyError<S::Error>;
    type Future = PolicyFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (policy, inner) = (self.policy.clone(), self.inner.clone());
        let is_failure = self.is_failure.clone();
        Box::pin(async move {
            let call = || once(inner.clone(), request.clone());
            policy.call_if(call, |result| is_failure(result)).await
        })
    }
}

/// One attempt, by a clone of the service that is ready for it.
async fn once<S: Service<R>, R>(mut service: S, request: R) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}
