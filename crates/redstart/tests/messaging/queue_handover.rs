//! Jobs that a waiting worker is handed in the message that wakes it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    key::{Channel, Keys},
    messaging::{JobContext, Queue, Worker},
    store::{Event, Listen},
};
use redstart_testkit::{Backend, Kind, Server, eventually, matrix};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Task, empty, open, task};

/// What the store has of a queue named `q`.
struct Inside {
    store: Store,
    namespace: String,
}

impl Inside {
    fn of(store: &Store, namespace: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
        }
    }

    fn part(&self, part: &str) -> String {
        format!("{}:queue:{{q}}:{part}", self.namespace)
    }

    fn channel(&self, worker: &str) -> Result<Channel> {
        let entity = Keys::new(&self.namespace, "queue")?.entity("q")?;
        Ok(entity.channel(&format!("wake:{}", &worker[..32])))
    }

    async fn query<T: redis::FromRedisValue>(&self, words: &[&[u8]]) -> Result<T> {
        let (name, args) = words.split_first().context("a command")?;
        let mut cmd = redis::cmd(std::str::from_utf8(name)?);
        cmd.arg(args);
        Ok(self.store.query(&cmd).await?)
    }

    async fn waiting(&self) -> Result<u64> {
        self.query(&[b"LLEN", self.part("ready").as_bytes()]).await
    }

    /// The name of the only worker.
    async fn worker(&self) -> Result<String> {
        let workers = self.part("workers");
        let names: Vec<String> = self
            .query(&[b"ZRANGE", workers.as_bytes(), b"0", b"-1"])
            .await?;
        ensure!(names.len() == 1, "{names:?}");
        Ok(names[0].clone())
    }

    async fn is_idle(&self, count: u64) -> Result<()> {
        let idle = self.part("idle");
        let idle = async || {
            self.query::<u64>(&[b"ZCARD", idle.as_bytes()])
                .await
                .is_ok_and(|n| n == count)
        };
        ensure!(eventually(LONG, idle).await, "the workers are not idle");
        Ok(())
    }

    /// A worker that waits and does nothing, as one whose process hangs; what its lease is in the store.
    async fn hanging(&self, name: &str, terms: &str, lease: Duration) -> Result<()> {
        let now = self.store.time().await?;
        let until = (now + lease).as_micros().to_string();
        let running = self.part(&format!("running:{name}"));
        self.query::<()>(&[b"HSET", running.as_bytes(), b"", terms.as_bytes()])
            .await?;
        self.query::<()>(&[
            b"ZADD",
            self.part("workers").as_bytes(),
            until.as_bytes(),
            name.as_bytes(),
        ])
        .await?;
        self.waits(name).await
    }

    async fn waits(&self, name: &str) -> Result<()> {
        self.query(&[b"ZADD", self.part("idle").as_bytes(), b"1", name.as_bytes()])
            .await
    }

    /// Gives the first job that waits to a worker, without a word; its record from byte 3 on.
    async fn give(&self, worker: &str) -> Result<Vec<u8>> {
        let (jobs, running) = (self.part("jobs"), self.part(&format!("running:{worker}")));
        let id: Vec<u8> = self
            .query(&[b"LPOP", self.part("ready").as_bytes()])
            .await?;
        let record: Vec<u8> = self.query(&[b"HGET", jobs.as_bytes(), &id]).await?;
        let held = [
            b"Jx",
            &worker.as_bytes()[..32],
            &record[2..18],
            &record[2..],
        ]
        .concat();
        self.query::<()>(&[b"HSET", running.as_bytes(), &record[34..54], b"10"])
            .await?;
        self.query::<()>(&[b"HSET", jobs.as_bytes(), &id, &held])
            .await?;
        self.query::<()>(&[b"HINCRBY", self.part("meta").as_bytes(), b"running", b"1"])
            .await?;
        Ok(record[2..].to_vec())
    }
}

/// Notes ten times the job and the attempt.
async fn noting(
    queue: &Queue,
    log: &Log,
    gate: &Arc<Semaphore>,
    lease: Duration,
) -> Result<Worker> {
    let (log, gate) = (log.clone(), gate.clone());
    let worker = queue
        .worker(move |job: Task, cx: JobContext| {
            let (log, gate) = (log.clone(), gate.clone());
            async move {
                log.push(10 * job.n + u64::from(cx.attempt()));
                gate.acquire().await.unwrap().forget();
            }
        })
        .concurrency(1)
        .lease(lease)
        .start();
    Ok(worker.await?)
}

const LEASE: Duration = Duration::from_secs(3600);

matrix! {
    async fn a_worker_that_waits_is_handed_the_job_in_the_message_that_wakes_it(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let inside = Inside::of(&store, backend.namespace());
        let name = "f".repeat(64);
        let mut heard = store.subscribe([Listen::Sharded(inside.channel(&name)?)]).await?;
        let mut message = async || -> Result<Vec<u8>> {
            loop {
                let event = tokio::time::timeout(LONG, heard.next()).await?;
                if let Event::Message(message) = event.context("the subscription ended")? {
                    return Ok(message.payload);
                }
            }
        };
        let lease = Duration::from_secs(60);
        let terms = "3 10 60000000";
        inside.hanging(&name, terms, lease).await?;
        // Of the first one only the script knows who waits.
        ensure!(queue.enqueue(&task(1)).await?.is_new());
        assert_eq!((message().await?, inside.waiting().await?), (vec![], 1));
        let running = inside.part(&format!("running:{name}"));
        // Other jobs wait; the worker is of a version that knows nothing of this; it may be about to lose its lease.
        for (state, terms, left) in [("waits", terms, lease), ("old", "3", lease), ("late", terms, lease / 3)] {
            if state != "waits" {
                inside.query::<()>(&[b"DEL", inside.part("ready").as_bytes()]).await?;
            }
            inside.hanging(&name, terms, left).await?;
            let before = inside.waiting().await?;
            ensure!(queue.enqueue(&task(2)).await?.is_new());
            assert_eq!((message().await?, inside.waiting().await?), (vec![], before + 1), "{state}");
        }
        inside.query::<()>(&[b"DEL", inside.part("ready").as_bytes(), inside.part("jobs").as_bytes()]).await?;
        inside.hanging(&name, terms, lease).await?;
        // It would be dead if the worker were.
        ensure!(queue.enqueue(&task(3)).attempts(1).await?.is_new());
        assert_eq!((message().await?, inside.waiting().await?), (vec![], 1));
        inside.query::<()>(&[b"DEL", inside.part("ready").as_bytes(), inside.part("jobs").as_bytes()]).await?;
        inside.waits(&name).await?;
        queue.pause().await?;
        ensure!(queue.enqueue(&task(4)).await?.is_new());
        assert_eq!((message().await?, inside.waiting().await?), (vec![], 1));
        inside.query::<()>(&[b"DEL", inside.part("ready").as_bytes(), inside.part("jobs").as_bytes()]).await?;
        queue.resume().await?;
        inside.waits(&name).await?;
        let added = queue.enqueue(&task(5)).await?;
        let text = message().await?;
        ensure!(text.starts_with(format!("job {name} 3 ").as_bytes()), "{}", String::from_utf8_lossy(&text));
        assert_eq!(inside.waiting().await?, 0);
        let held: u64 = inside.query(&[b"HLEN", running.as_bytes()]).await?;
        assert_eq!((queue.inspect().counts().await?.running, held), (1, 2));
        // It is the worker's, and comes back when the lease ends.
        inside.query::<()>(&[b"ZADD", inside.part("workers").as_bytes(), b"1", name.as_bytes()]).await?;
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(1)));
        let worker = noting(&queue, &log, &gate, LEASE).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [52]);
        ensure!(queue.job(added.id().context("no id")?).await?.is_none());
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_job_that_is_handed_over_to_a_full_worker_goes_back_unstarted(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let inside = Inside::of(&store, backend.namespace());
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
        let worker = noting(&queue, &log, &gate, LEASE).await?;
        ensure!(queue.enqueue(&task(1)).await?.is_new());
        log.reaches(1).await?;
        ensure!(queue.enqueue(&task(2)).await?.is_new());
        let name = inside.worker().await?;
        let record = inside.give(&name).await?;
        let message = [format!("job {name} 1 ").as_bytes(), &record].concat();
        let channel = inside.part(&format!("wake:{}", &name[..32]));
        inside.query::<()>(&[b"SPUBLISH", channel.as_bytes(), &message]).await?;
        let back = eventually(LONG, async || inside.waiting().await.is_ok_and(|count| count == 1)).await;
        ensure!(back, "the job is not handed back");
        // The same message again: the job is not the worker's any more.
        inside.query::<()>(&[b"SPUBLISH", channel.as_bytes(), &message]).await?;
        gate.add_permits(1);
        log.reaches(2).await?;
        gate.add_permits(1);
        empty(&queue).await?;
        assert_eq!(log.all(), [11, 21]);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn jobs_that_are_handed_over_while_workers_come_and_go_run_once(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let log = Log::default();
        let (producers, jobs) = (4, 150);
        let mut producing = tokio::task::JoinSet::new();
        for producer in 0..producers {
            let queue = Queue::new(&store, backend.namespace(), "q")?;
            producing.spawn(async move {
                for n in 0..jobs {
                    queue.enqueue(&task(producer * jobs + n)).await?;
                    if n % 3 == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                anyhow::Ok(())
            });
        }
        let mut workers = Vec::new();
        while workers.is_empty() || !producing.is_empty() {
            let (some, concurrency) = (log.clone(), 1 + workers.len() % 2);
            let worker = queue
                .worker(move |job: Task, _: JobContext| {
                    let some = some.clone();
                    async move { some.push(job.n) }
                })
                .concurrency(concurrency)
                .lease(LEASE)
                .start();
            workers.push(worker.await?);
            if workers.len() > 3 {
                workers.remove(0).shutdown(LONG).await?;
            }
            while let Some(done) = producing.try_join_next() {
                done??;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        empty(&queue).await?;
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        let mut ran = log.all();
        ran.sort_unstable();
        ensure!(ran.iter().copied().eq(0..producers * jobs), "{} runs", ran.len());
        Ok(())
    }
}

/// Messages are lost with a connection. The worker cannot know whether there was a job in one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_message_is_lost_comes_back_when_the_worker_listens_again() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let queue = Queue::new(&store, "lost", "q")?;
    let inside = Inside::of(&store, "lost");
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
    // So long that no heartbeat finds it.
    let worker = noting(&queue, &log, &gate, LEASE).await?;
    inside.is_idle(1).await?;
    let name = inside.worker().await?;
    // Nobody is woken for it.
    inside
        .query::<()>(&[b"DEL", inside.part("idle").as_bytes()])
        .await?;
    ensure!(queue.enqueue(&task(1)).await?.is_new());
    inside.give(&name).await?;
    inside
        .query::<()>(&[b"CLIENT", b"KILL", b"TYPE", b"pubsub"])
        .await?;
    log.reaches(1).await?;
    empty(&queue).await?;
    assert_eq!(log.all(), [11]);
    worker.shutdown(LONG).await?;
    Ok(())
}
