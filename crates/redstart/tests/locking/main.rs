//! The locks: one owner at a time, as the server sees it, whatever breaks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cancel;
mod clock;
mod fair;
mod fault;
mod fence;
mod hand_over;
mod holder;
mod input;
mod leader;
mod legacy;
mod mutation;
mod mutex;
mod process;
mod redlock;
mod runtime;
mod rw;
mod semaphore;
mod ticket;
mod work;

#[path = "../served/engine.rs"]
mod served;

use std::{
    future::{Future, poll_fn},
    num::NonZeroU32,
    pin::pin,
    task::Poll,
    time::Duration,
};

use redstart::Store;
use redstart_testkit::Backend;

/// For what must happen eventually, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// For a wait that only the tested event may end: at the end of its wait a waiter asks once more.
const FOREVER: Duration = Duration::from_secs(3600);

async fn connect(backend: &Backend) -> anyhow::Result<Store> {
    // A busy machine may take longer than a second to answer; no test here is about that.
    Ok(Store::builder(backend.url())
        .deadline(Duration::from_secs(10))
        .connect()
        .await?)
}

fn permits(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("a semaphore has permits")
}

async fn exists(store: &Store, key: &str) -> bool {
    store
        .query::<bool>(redis::cmd("EXISTS").arg(key))
        .await
        .expect("EXISTS is answered")
}

/// Polls a future at most `times` times and then drops it, so that a test can stop it at each await point.
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
