//! Background tasks. They are all spawned here, so that a simulation knows which process each belongs to.

use std::future::Future;

use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
};

/// The work as a task of the simulated process that runs now; without a simulation, the work itself.
pub(crate) fn owned<F: Future>(work: F) -> impl Future<Output = F::Output> + use<F> {
    #[cfg(feature = "sim")]
    let work = crate::sim::Owned::new(work);
    work
}

/// As `tokio::spawn`.
pub(crate) fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(owned(work))
}

/// As [`Handle::spawn`].
pub(crate) fn spawn_on<F>(runtime: &Handle, work: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(owned(work))
}

/// As [`JoinSet::spawn`].
pub(crate) fn spawn_into<F>(tasks: &mut JoinSet<F::Output>, work: F)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tasks.spawn(owned(work));
}
