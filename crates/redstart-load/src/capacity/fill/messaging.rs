//! Jobs, items and events.

use std::time::Duration;

use redstart::{
    Result, Store,
    messaging::{
        EventStream, Job, JobContext, NotifySet, PriorityQueue, Queue, ReliableList, Ring, Verdict,
        Worker,
    },
};
use serde::{Deserialize, Serialize};

use super::{Fill, Filling, LONG, MANY, PAYLOADS, body, user};

/// A payload that takes as many bytes in JSON as it has.
fn text(bytes: u64) -> String {
    "x".repeat(bytes as usize)
}

#[derive(Serialize, Deserialize)]
struct Task {
    body: String,
}

impl Job for Task {
    const NAME: &'static str = "task";
}

/// A queue whose jobs all die at their first attempt.
struct Dying {
    queue: Queue,
    /// It ends with the filling.
    _worker: Worker,
    payload: u64,
}

impl Dying {
    async fn open(store: &Store, namespace: &str, payload: u64) -> Result<Self> {
        let queue = Queue::new(store, namespace, "tasks")?;
        let worker = queue
            .worker(|_: Task, _: JobContext| async { Verdict::dead("refused") })
            .concurrency(64)
            .start()
            .await?;
        Ok(Self {
            queue,
            _worker: worker,
            payload,
        })
    }

    /// Waits until all jobs are dead letters.
    async fn all(&self, jobs: u64) -> Result<()> {
        let inspect = self.queue.inspect();
        while inspect.counts().await?.dead < jobs {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// A table with one entry per kind.
pub(super) fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "job_queue",
            "job",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (Queue::new(&store, &ns, "tasks")?, value),
            |it, n| {
                let _ =
                    it.0.enqueue(&Task {
                        body: text(it.1 + n % 2),
                    })
                    .await?;
            }
        ),
        filling!(
            "delayed_jobs",
            "job",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (Queue::new(&store, &ns, "tasks")?, value),
            |it, n| {
                let task = Task {
                    body: text(it.1 + n % 2),
                };
                let _ = it.0.enqueue(&task).delay(LONG).await?;
            }
        ),
        filling!(
            "dead_letter",
            "dead letter",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| Dying::open(&store, &ns, value).await?,
            |it, n| {
                let task = Task {
                    body: text(it.payload + n % 2),
                };
                let _ = it.queue.enqueue(&task).await?;
            },
            |it, all| it.all(all).await?
        ),
        filling!(
            "priority_queue",
            "item",
            None,
            &[0],
            MANY,
            |store, ns, value| PriorityQueue::<String>::new(&store, &ns, "items")?,
            |it, n| {
                it.push(&user(n), (n % 10) as i32).await?;
            }
        ),
        filling!(
            "reliable_list",
            "item",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (ReliableList::new(&store, &ns, "items")?, body(value)),
            |it, n| {
                let _ = n;
                it.0.push(&it.1).await?;
            }
        ),
        filling!(
            "event_stream",
            "event",
            Some("bytes of the payload"),
            PAYLOADS,
            MANY,
            |store, ns, value| (
                EventStream::<String>::new(&store, &ns, "events")?,
                text(value)
            ),
            |it, n| {
                let _ = n;
                it.0.append(&it.1).await?;
            }
        ),
        filling!(
            "ring",
            "item",
            None,
            &[0],
            MANY,
            |store, ns, value| Ring::new(&store, &ns, "items")?,
            |it, n| {
                it.add(&user(n)).await?;
            }
        ),
        filling!(
            "notification",
            "member",
            None,
            &[0],
            MANY,
            |store, ns, value| NotifySet::new(&store, &ns, "changed")?,
            |it, n| {
                it.add(&[user(n)]).await?;
            }
        ),
    ]
}
