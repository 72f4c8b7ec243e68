//! Versions 5 and 6 pause and resume a queue in a hurry, whatever our worker is doing at that moment.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, BullWorkerBuilder, JobError, NewJob, Taken};
use redstart_testkit::{unique_namespace, wait_until};
use tokio::sync::Semaphore;

use crate::{
    Side,
    bullmq::{completed, node_to_its_end},
    long, on,
};

/// Version 6 pauses, both add, and version 5 resumes as soon as the jobs of 6 are where it keeps them; after a second and a half in any case, which is less than
/// a worker waits before it asks again.
fn hurried(jobs: usize) -> String {
    format!(
        r"
        const {{ Queue }} = process.mainModule.require('bullmq5');
        const five = new Queue(queue.name, {{ connection: queue.opts.connection }});
        await five.waitUntilReady();
        await queue.pause();
        await queue.addBulk(Array.from({{ length: {jobs} }}, (_, n) => ({{ name: 'plain', data: {{ n }} }})));
        for (let n = 0; n < 5; n++) await five.add('plain', {{ n }});
        const client = await five.client;
        for (let n = 0; n < 150 && await client.llen(five.toKey('wait')) > 0; n++) await new Promise((go) => setTimeout(go, 10));
        await five.resume();
        await five.close();
        "
    )
}

/// Jobs in any state, at one moment.
async fn kept(store: &Store, queue: &BullQueue) -> Result<usize> {
    let script = "local all = redis.call('ZCARD', KEYS[4]) \
        for n = 1, 3 do all = all + redis.call('LLEN', KEYS[n]) end return all";
    let mut count = cmd("EVAL");
    count.arg(script).arg(4);
    for part in ["wait", "paused", "active", "completed"] {
        count.arg(format!("{}:{part}", queue.base()));
    }
    Ok(store.query(&count).await?)
}

/// A worker whose jobs end when they may.
struct Busy {
    queue: BullQueue,
    store: Store,
    name: String,
    may_end: Arc<Semaphore>,
    stop: tokio::sync::oneshot::Sender<()>,
    running: tokio::task::JoinHandle<redstart_adopt::Result<()>>,
}

impl Busy {
    async fn start(
        side: &Side,
        set: impl FnOnce(BullWorkerBuilder) -> BullWorkerBuilder,
    ) -> Result<Self> {
        let store = side.store().await?;
        let name = unique_namespace("hurried");
        let queue = BullQueue::new(&store, &name)?;
        let worker = set(queue.worker()).build()?;
        let may_end = Arc::new(Semaphore::new(0));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let gate = may_end.clone();
        let running = tokio::spawn(async move {
            let handler = move |_: Arc<Taken>| {
                let gate = gate.clone();
                async move {
                    let may = gate.acquire().await;
                    may.map(tokio::sync::SemaphorePermit::forget).ok();
                    Ok::<_, JobError>(())
                }
            };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        Ok(Self {
            queue,
            store,
            name,
            may_end,
            stop,
            running,
        })
    }

    /// Adds a job here, and waits until it runs.
    async fn run_one(&self) -> Result<()> {
        let _ = self.queue.add(NewJob::new("plain", &0)?).await?;
        let active = format!("{}:active", self.queue.base());
        wait_until("a job to run", long(), async || {
            let running: u64 = self.store.query(cmd("LLEN").arg(&active)).await.ok()?;
            (running == 1).then_some(())
        })
        .await?;
        Ok(())
    }

    async fn end(self) -> Result<()> {
        drop(self.stop);
        self.may_end.add_permits(100);
        self.running.await??;
        Ok(())
    }

    async fn none_is_lost(&self, side: &Side, of_six: usize, before: usize) -> Result<()> {
        node_to_its_end("bullmq6", side, &self.name, &["run", &hurried(of_six)]).await?;
        let kept = kept(&self.store, &self.queue).await?;
        ensure!(
            kept == of_six + 5 + before,
            "{kept} of {} jobs are left",
            of_six + 5 + before
        );
        Ok(())
    }
}

async fn busy(side: Side) -> Result<()> {
    let worker = Busy::start(&side, |worker| worker.concurrency(1)).await?;
    worker.run_one().await?;
    worker.none_is_lost(&side, 10, 1).await?;
    worker.end().await
}
on!(busy: a_worker_that_runs_as_many_jobs_as_it_may_keeps_those_of_a_pause);

async fn idle(side: Side) -> Result<()> {
    let worker = Busy::start(&side, |worker| worker.concurrency(100)).await?;
    worker.may_end.add_permits(1000);
    for round in 1..=3 {
        // It waits for a job when the pause comes.
        worker.none_is_lost(&side, 10, (round - 1) * 15).await?;
        wait_until("all jobs to be completed", long(), async || {
            let done = completed(&worker.store, &worker.queue).await.ok()?;
            (done.len() == round * 15).then_some(())
        })
        .await?;
    }
    worker.end().await
}
on!(idle: a_worker_that_waits_for_a_job_keeps_those_of_a_pause);

async fn limited(side: Side) -> Result<()> {
    let hour = Duration::from_secs(3600);
    let worker = Busy::start(&side, |worker| worker.concurrency(4).limit(1, hour)).await?;
    worker.run_one().await?;
    worker.none_is_lost(&side, 10, 1).await?;
    worker.end().await
}
on!(limited: a_worker_that_may_run_no_more_for_now_keeps_those_of_a_pause);

async fn many(side: Side) -> Result<()> {
    let worker = Busy::start(&side, |worker| worker.concurrency(1)).await?;
    worker.run_one().await?;
    worker.none_is_lost(&side, 4500, 1).await?;
    worker.end().await
}
on!(many: thousands_of_jobs_of_a_pause_are_kept);
