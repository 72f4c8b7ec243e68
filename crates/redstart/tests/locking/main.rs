//! The locks: one owner at a time, by the server's word, whatever breaks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cancel;
mod fair;
mod fault;
mod fence;
mod input;
mod leader;
mod legacy;
// Only debug builds can break a script.
mod mutation;
mod mutex;
mod process;
mod redlock;
mod rw;
mod semaphore;

#[path = "../served/engine.rs"]
mod served;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use redstart::Store;
use redstart_testkit::Backend;

/// For what must come in the end, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// For a wait that only what the test is about can end: at its end a waiter asks once more by itself.
const FOREVER: Duration = Duration::from_secs(3600);

async fn connect(backend: &Backend) -> anyhow::Result<Store> {
    // A busy machine may take longer than a second to answer; no claim here is about that.
    Ok(Store::builder(backend.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?)
}

async fn exists(store: &Store, key: &str) -> bool {
    store
        .query::<bool>(redis::cmd("EXISTS").arg(key))
        .await
        .expect("EXISTS is answered")
}

/// Polls a future so many times and then drops it: the way to stop at each of its await points.
async fn polled<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
