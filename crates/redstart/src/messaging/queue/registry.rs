//! Handlers that say in their arguments what they need, with shared state and middleware.

use std::{
    error::Error as StdError,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    IntoVerdict, Job, JobContext, JobId, Queue, Verdict,
    worker::{Runner, WorkerBuilder},
};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
};

type BoxError = Box<dyn StdError + Send + Sync>;
type BoxRun = Pin<Box<dyn Future<Output = std::result::Result<Verdict, BoxError>> + Send>>;

/// A job on its way to its handler: what layers and arguments are made from. Cheap to clone.
#[derive(Clone)]
pub struct JobRequest {
    record: Arc<Vec<u8>>,
    payload: usize,
    kind: &'static str,
    context: JobContext,
}

impl JobRequest {
    /// The name of the job's kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The payload: JSON.
    pub fn payload(&self) -> &[u8] {
        &self.record[self.payload..]
    }

    /// What is known of the run.
    pub fn context(&self) -> &JobContext {
        &self.context
    }
}

impl fmt::Debug for JobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRequest")
            .field("kind", &self.kind)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// An argument of a handler, made from the job and the registry's state.
pub trait FromJob<S>: Sized {
    /// Makes the argument.
    ///
    /// # Errors
    ///
    /// If it cannot be made: the job is then left to a worker that can run it, as one that cannot be decoded.
    fn from_job(request: &JobRequest, state: &S) -> Result<Self>;
}

/// The job itself; the first argument of every handler of a [`JobRegistry`].
#[derive(Clone, Copy, Debug)]
pub struct Payload<J>(pub J);

/// The registry's state, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct State<T>(pub T);

/// A part of a state. Each state is a part of itself.
pub trait FromRef<S> {
    /// The part.
    fn from_ref(state: &S) -> Self;
}

impl<T: Clone> FromRef<T> for T {
    fn from_ref(state: &T) -> Self {
        state.clone()
    }
}

impl<J: Job, S> FromJob<S> for Payload<J> {
    fn from_job(request: &JobRequest, _: &S) -> Result<Self> {
        Json::decode(request.payload()).map(Self)
    }
}

impl<S, T: FromRef<S>> FromJob<S> for State<T> {
    fn from_job(_: &JobRequest, state: &S) -> Result<Self> {
        Ok(Self(T::from_ref(state)))
    }
}

impl<S> FromJob<S> for JobContext {
    fn from_job(request: &JobRequest, _: &S) -> Result<Self> {
        Ok(request.context.clone())
    }
}

impl<S> FromJob<S> for JobId {
    fn from_job(request: &JobRequest, _: &S) -> Result<Self> {
        Ok(request.context.id())
    }
}

/// A handler: an async function whose first argument is the [`Payload`] of a job, and whose others are [`FromJob`].
pub trait JobFunction<J, Arguments, S>: Send + Sync + 'static {
    /// Makes the arguments and starts the run.
    ///
    /// # Errors
    ///
    /// If an argument cannot be made.
    fn call(
        &self,
        request: &JobRequest,
        state: &S,
    ) -> Result<Pin<Box<dyn Future<Output = Verdict> + Send>>>;
}

macro_rules! job_function {
    ($($argument:ident),*) => {
        impl<F, Run, J, S, $($argument),*> JobFunction<J, ($($argument,)*), S> for F
        where
            F: Fn(Payload<J>, $($argument),*) -> Run + Send + Sync + 'static,
            Run: Future + Send + 'static,
            Run::Output: IntoVerdict<J>,
            J: Job,
            $($argument: FromJob<S>,)*
        {
            fn call(
                &self,
                request: &JobRequest,
                state: &S,
            ) -> Result<Pin<Box<dyn Future<Output = Verdict> + Send>>> {
                let run = self(
                    Payload::from_job(request, state)?,
                    $($argument::from_job(request, state)?),*
                );
                Ok(Box::pin(async move { run.await.into_verdict() }))
            }
        }
    };
}

job_function!();
job_function!(A);
job_function!(A, B);
job_function!(A, B, C);
job_function!(A, B, C, D);

/// An argument could not be made.
#[derive(Debug)]
struct Undecodable(Error);

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Undecodable {}

/// A handler with its layers, as a tower service.
#[derive(Clone)]
pub struct JobService(Arc<dyn Fn(JobRequest) -> BoxRun + Send + Sync>);

impl Service<JobRequest> for JobService {
    type Response = Verdict;
    type Error = BoxError;
    type Future = BoxRun;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: JobRequest) -> BoxRun {
        (self.0)(request)
    }
}

impl fmt::Debug for JobService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobService")
    }
}

/// The handlers of several kinds of job, with the state they share and layers around them. Cheap to clone, so that the
/// workers of several queues may have the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use redstart::{Store, messaging::{Job, JobContext, JobRegistry, Payload, Queue, State}};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)] struct Mail { to: String }
/// impl Job for Mail { const NAME: &'static str = "mail"; }
/// #[derive(Serialize, Deserialize)] struct Report { month: u8 }
/// impl Job for Report { const NAME: &'static str = "report"; }
///
/// #[derive(Clone, Default)] struct App { sent: Arc<AtomicU64> }
///
/// async fn send(Payload(mail): Payload<Mail>, State(app): State<App>) {
///     app.sent.fetch_add(mail.to.len() as u64, Ordering::Relaxed);
/// }
///
/// async fn report(Payload(report): Payload<Report>, cx: JobContext) -> redstart::Result<()> {
///     cx.log(&format!("month {}", report.month)).await?;
///     Ok(())
/// }
///
/// let app = App::default();
/// let registry = JobRegistry::new(app.clone()).on(send).on(report);
/// let queue = Queue::new(&Store::connect("memory://").await?, "shop", "work")?;
/// queue.enqueue(&Mail { to: "ann".into() }).await?;
/// queue.enqueue(&Report { month: 5 }).await?;
/// let worker = queue.serve(&registry).start().await?;
/// while queue.inspect().counts().await?.unfinished() > 0 { tokio::task::yield_now().await; }
/// assert_eq!(app.sent.load(Ordering::Relaxed), 3);
/// # worker.shutdown(std::time::Duration::from_secs(1)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a registry does nothing until a worker serves it"]
pub struct JobRegistry<S = ()> {
    state: S,
    services: Vec<(&'static str, JobService)>,
}

impl<S: Clone + Send + Sync + 'static> JobRegistry<S> {
    /// A registry without handlers.
    pub fn new(state: S) -> Self {
        Self {
            state,
            services: Vec::new(),
        }
    }

    /// Adds the handler of the kind of job that is its first argument. A kind with two handlers is an error of
    /// [`WorkerBuilder::start`].
    pub fn on<J: Job, Arguments>(mut self, handler: impl JobFunction<J, Arguments, S>) -> Self {
        const { assert!(!J::NAME.is_empty() && J::NAME.len() <= 255) };
        let (handler, state) = (Arc::new(handler), self.state.clone());
        let service = JobService(Arc::new(move |request: JobRequest| -> BoxRun {
            let run = handler.call(&request, &state);
            Box::pin(async move {
                match run {
                    Ok(run) => Ok(run.await),
                    Err(error) => Err(BoxError::from(Undecodable(error))),
                }
            })
        }));
        self.services.push((J::NAME, service));
        self
    }

    /// Puts a tower layer around each handler that was added so far: tracing, time limits, limits of concurrency. If the
    /// layer fails, the run has failed, and is tried again.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<JobService>,
        L::Service: Service<JobRequest, Response = Verdict> + Clone + Send + Sync + 'static,
        <L::Service as Service<JobRequest>>::Error: Into<BoxError>,
        <L::Service as Service<JobRequest>>::Future: Send,
    {
        for (_, service) in &mut self.services {
            let layered = layer.layer(service.clone());
            *service = JobService(Arc::new(move |request| -> BoxRun {
                let mut service = layered.clone();
                Box::pin(async move {
                    poll_fn(|cx| service.poll_ready(cx))
                        .await
                        .map_err(Into::into)?;
                    service.call(request).await.map_err(Into::into)
                })
            }));
        }
        self
    }
}

impl<S> fmt::Debug for JobRegistry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.services.iter().map(|(kind, _)| kind).collect();
        f.debug_struct("JobRegistry")
            .field("kinds", &kinds)
            .finish_non_exhaustive()
    }
}

impl Queue {
    /// Starts a worker's settings with all handlers of a registry.
    pub fn serve<S>(&self, registry: &JobRegistry<S>) -> WorkerBuilder {
        let mut worker = WorkerBuilder::new(self.clone());
        for (kind, service) in &registry.services {
            let runner = Served {
                kind,
                service: service.clone(),
            };
            worker = worker.runner(kind, Arc::new(runner));
        }
        worker
    }
}

struct Served {
    kind: &'static str,
    service: JobService,
}

impl Runner for Served {
    fn run(
        &self,
        record: Vec<u8>,
        payload: usize,
        context: JobContext,
    ) -> Pin<Box<dyn Future<Output = Result<Verdict>> + Send + '_>> {
        let request = JobRequest {
            record: Arc::new(record),
            payload,
            kind: self.kind,
            context,
        };
        let run = (self.service.0)(request);
        Box::pin(async move {
            match run.await {
                Ok(verdict) => Ok(verdict),
                Err(error) => match error.downcast::<Undecodable>() {
                    Ok(undecodable) => Err(undecodable.0),
                    Err(error) => Ok(Verdict::retry(error)),
                },
            }
        })
    }
}
