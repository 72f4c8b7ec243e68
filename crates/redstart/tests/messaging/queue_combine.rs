//! Plain jobs of many callers share requests, whichever runtimes the callers are in.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::mpsc,
    task::Poll,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{JobHandle, Queue},
    testing::Faults,
};
use redstart_testkit::eventually;
use tokio::runtime::{Builder, Runtime};

use crate::queue::{LONG, Task, task};

/// Requests of a process that are on their way before jobs wait for each other.
const AT_ONCE: u64 = 4;

type Enqueueing = Pin<Box<dyn Future<Output = redstart::Result<JobHandle<Task>>> + Send>>;

fn enqueueing(queue: &Queue, n: u64) -> Enqueueing {
    let queue = queue.clone();
    Box::pin(async move { queue.enqueue(&task(n)).await })
}

/// Polls once: a request has been sent, or the job stands in line.
async fn begin(mut enqueueing: Enqueueing) -> Enqueueing {
    let begun = poll_fn(|cx| Poll::Ready(enqueueing.as_mut().poll(cx).is_pending())).await;
    assert!(begun, "the store does not answer");
    enqueueing
}

fn runtimes() -> Result<(Runtime, Runtime)> {
    let main = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let second = Builder::new_current_thread().enable_all().build()?;
    Ok((main, second))
}

async fn open(deadline: Duration) -> Result<(Queue, Faults)> {
    let store = Store::builder("memory://").deadline(deadline);
    let store = store.connect().await?;
    let (queue, faults) = (Queue::new(&store, "combine", "q")?, Faults::of(&store)?);
    // The engine knows the script after this.
    queue.enqueue(&task(0)).await?;
    Ok((queue, faults))
}

#[test]
fn callers_are_answered_after_the_runtime_of_the_request_before_theirs_stands_still() -> Result<()>
{
    let (main, second) = runtimes()?;
    let (queue, faults) = main.block_on(open(LONG))?;
    for _ in 0..=AT_ONCE {
        faults.hang();
        let others = main.block_on(async {
            let mut others = Vec::new();
            for n in 1..AT_ONCE {
                others.push(begin(enqueueing(&queue, n)).await);
            }
            others
        });
        let (begun, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                second.block_on(async {
                    let first = begin(enqueueing(&queue, 10)).await;
                    begun.send(()).unwrap();
                    first.await
                })
            });
            has_begun.recv()?;
            let waiting: Vec<_> = main.block_on(async {
                let mut waiting = Vec::new();
                for n in 20..30 {
                    waiting.push(tokio::spawn(begin(enqueueing(&queue, n)).await));
                }
                waiting
            });
            // Only the request of the second runtime ends: nobody polls the others. Nothing drives that runtime afterwards.
            faults.resume();
            first.join().unwrap()?;
            main.block_on(async {
                for waiting in waiting {
                    waiting.await??;
                }
                for other in others {
                    other.await?;
                }
                anyhow::Ok(())
            })
        })?;
    }
    let counts = main.block_on(queue.inspect().counts())?;
    assert_eq!(counts.ready, 1 + (AT_ONCE + 1) * 14);
    Ok(())
}

#[test]
fn requests_in_a_runtime_that_stands_still_stop_nobody_for_longer_than_a_deadline() -> Result<()> {
    let (main, second) = runtimes()?;
    let (queue, faults) = main.block_on(open(Duration::from_millis(500)))?;
    faults.hang();
    // One more than there are places: it waits in line, and is told to send the next request.
    let parked = second.block_on(async {
        let mut parked = Vec::new();
        for n in 0..=AT_ONCE {
            let begun = begin(enqueueing(&queue, n)).await;
            parked.push(tokio::spawn(begun));
        }
        parked
    });
    faults.resume();
    // Nothing drives the second runtime from here on.
    main.block_on(async {
        let works = async || queue.enqueue(&task(20)).await.is_ok();
        ensure!(eventually(LONG, works).await, "no job can be enqueued");
        for n in 0..20 {
            queue.enqueue(&task(n)).await?;
        }
        anyhow::Ok(())
    })?;
    // What waited too long there is not sent late.
    let before = main.block_on(queue.inspect().counts())?.ready;
    second.block_on(async {
        for parked in parked {
            let _ = parked.await?;
        }
        anyhow::Ok(())
    })?;
    let after = main.block_on(queue.inspect().counts())?.ready;
    assert!(after - before <= AT_ONCE, "{before} {after}");
    Ok(())
}

#[test]
fn a_caller_that_gives_up_leaves_the_others_their_answer() -> Result<()> {
    let (main, _) = runtimes()?;
    let (queue, faults) = main.block_on(open(LONG))?;
    faults.hang();
    main.block_on(async {
        let mut sent = Vec::new();
        for n in 0..AT_ONCE {
            sent.push(begin(enqueueing(&queue, n)).await);
        }
        let mut waiting = Vec::new();
        for n in 10..20 {
            waiting.push(begin(enqueueing(&queue, n)).await);
        }
        // A place comes free. The last in line is told to send the next request, and goes before it does.
        let told = waiting.pop();
        drop(sent.pop());
        drop(told);
        // The next one goes after it did.
        let next = waiting.pop().context("some wait")?;
        drop(begin(next).await);
        faults.resume();
        for enqueueing in waiting.into_iter().chain(sent) {
            enqueueing.await?;
        }
        anyhow::Ok(())
    })?;
    Ok(())
}
