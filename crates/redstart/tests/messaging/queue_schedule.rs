//! What is due in a queue whether or not a worker is free.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart::messaging::{Job, JobContext, MissedTicks, Queue};
use redstart_testkit::{Backend, eventually, matrix};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::queue::{LONG, Log, Task, empty, logging, open, task};

matrix! {
    async fn ticks_are_enqueued_while_every_worker_is_busy(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let (gate, log) = (Arc::new(Semaphore::new(0)), Log::default());
        let worker = {
            let (gate, log) = (gate.clone(), log.clone());
            queue
                .worker(move |job: Task, _: JobContext| {
                    let (gate, log) = (gate.clone(), log.clone());
                    async move {
                        log.push(job.n);
                        if job.n == 0 { let _ = gate.acquire().await; }
                    }
                })
                .concurrency(1)
                .lease(Duration::from_secs(3600))
                .start()
                .await?
        };
        queue.enqueue(&task(0)).await?;
        log.reaches(1).await?;
        // The only worker is busy until the gate opens. Ticks come meanwhile, and none is missed: the policy that
        // drops missed ticks drops nothing.
        queue.cron("skip", "* * * * * *", &task(1), MissedTicks::Skip).await?;
        for ticks in 1..=3 {
            if backend.is_embedded() { store.advance(Duration::from_secs(1))?; }
            let came = eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.ready >= ticks)).await;
            ensure!(came, "{:?}", queue.inspect().counts().await?);
        }
        assert!(queue.remove_cron("skip").await?);
        gate.add_permits(1);
        empty(&queue).await?;
        assert!(log.len() >= 4);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_changed_payload_keeps_an_overdue_tick(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        // So far from now that no tick comes while this runs.
        let minutes = (store.time().await?.as_secs() + 43_200) / 60;
        let daily = format!("{} {} * * *", minutes % 60, minutes / 60 % 24);
        assert!(queue.cron("daily", &daily, &task(1), MissedTicks::RunOnce).await?);
        let cron = format!("{}:queue:{{q}}:cron", backend.namespace());
        store.query::<()>(redis::cmd("ZINCRBY").arg(&cron).arg(-86_400_000_000i64).arg("daily")).await?;
        // A new version of the program changes the payload before any worker saw the tick.
        assert!(queue.cron("daily", &daily, &task(2), MissedTicks::RunOnce).await?);
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        log.reaches(1).await?;
        empty(&queue).await?;
        assert_eq!(log.all(), [2]);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    /// A failover loses the move of an entry to its next tick, and with it what happened to the job, or all but that.
    async fn a_tick_that_fires_again_is_the_same_job(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(1000, LONG * 1000).build()?;
        let minutes = (store.time().await?.as_secs() + 43_200) / 60;
        let daily = format!("{} {} * * *", minutes % 60, minutes / 60 % 24);
        assert!(queue.cron("daily", &daily, &task(1), MissedTicks::RunOnce).await?);
        let key = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let (log, ids) = (Log::default(), Arc::new(Mutex::new(Vec::new())));
        let start = async || {
            let (log, ids) = (log.clone(), ids.clone());
            let run = move |job: Task, cx: JobContext| {
                ids.lock().unwrap().push(cx.id());
                log.push(job.n);
                async {}
            };
            queue.worker(run).start().await
        };
        let next = async || queue.cron_entries().await.ok()?.first()?.next;
        let tomorrow = next().await.context("a tick")?;
        let yesterday = (tomorrow - Duration::from_secs(86_400)).as_micros() as u64;
        // A worker that starts looks at once.
        let again = async || -> Result<()> {
            store.query::<()>(redis::cmd("ZADD").arg(key("cron")).arg(yesterday).arg("daily")).await?;
            let worker = start().await?;
            ensure!(eventually(LONG, async || next().await == Some(tomorrow)).await, "it did not fire");
            empty(&queue).await?;
            worker.shutdown(LONG).await?;
            Ok(())
        };
        again().await?;
        assert_eq!(log.all(), [1]);
        again().await?;
        assert_eq!(log.all(), [1], "the job that is known is not added again");
        // Nothing is known of it any more.
        store.query::<()>(redis::cmd("DEL").arg(key("ended")).arg(key("done"))).await?;
        again().await?;
        let ids = ids.lock().unwrap().clone();
        assert_eq!((log.len(), ids[0]), (2, ids[1]), "it is another job");
        // The next tick is another job.
        store.query::<()>(redis::cmd("ZADD").arg(key("cron")).arg(yesterday - 86_400_000_000).arg("daily")).await?;
        let worker = start().await?;
        log.reaches(3).await?;
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn done_jobs_are_kept_no_longer_on_an_idle_queue(backend: &Backend) -> Result<()> {
        let (store, _) = open(backend).await?;
        let period = Duration::from_millis(if backend.is_embedded() { 60_000 } else { 500 });
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(1000, period).build()?;
        let log = Log::default();
        let worker = {
            let log = log.clone();
            queue
                .worker(move |job: Task, _: JobContext| { let log = log.clone(); async move { log.push(job.n) } })
                .lease(Duration::from_millis(500))
                .start()
                .await?
        };
        queue.enqueue_many((0..10).map(task)).await?;
        log.reaches(10).await?;
        empty(&queue).await?;
        // Without its TTL only the workers can remove the records.
        let done = format!("{}:queue:{{q}}:done", backend.namespace());
        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&done)).await?;
        assert!(ttl == -2 || (ttl > 0 && ttl <= period.as_millis() as i64), "{ttl}");
        store.query::<()>(redis::cmd("PERSIST").arg(&done)).await?;
        if backend.is_embedded() {
            assert_eq!(queue.inspect().counts().await?.done, 10);
            store.advance(period)?;
        }
        ensure!(eventually(LONG, async || queue.inspect().counts().await.is_ok_and(|c| c.done == 0)).await);
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

matrix! {
    async fn a_schedule_is_paused_alone_and_runs_now_on_demand(backend: &Backend) -> Result<()> {
        let (store, queue) = open(backend).await?;
        let hour = Duration::from_secs(3600);
        queue.every("a", hour, &task(1), MissedTicks::RunAll).await?;
        queue.every("b", hour, &task(2), MissedTicks::RunAll).await?;
        assert!(queue.pause_cron("a").await?);
        assert!(!queue.pause_cron("none").await?);
        // A program that puts its entries when it starts does not resume one.
        queue.every("a", hour, &task(3), MissedTicks::RunAll).await?;
        let entries = queue.cron_entries().await?;
        assert_eq!((entries[0].paused, entries[0].next, entries[0].upcoming(3).len()), (true, None, 0));
        let runs = entries[1].upcoming(3);
        assert_eq!((runs[1] - runs[0], runs[2] - runs[1]), (hour, hour));
        let log = Log::default();
        let worker = logging(&queue, &log, 1).await?;
        assert!(queue.run_cron("a").await?.is_some_and(|enqueued| enqueued.is_new()));
        assert!(queue.run_cron("none").await?.is_none());
        log.reaches(1).await?;
        if backend.is_embedded() {
            store.advance(hour)?;
            log.reaches(2).await?;
            assert_eq!(log.all(), [3, 2], "the paused one has no tick");
            assert!(queue.resume_cron("a").await?);
            store.advance(hour)?;
            log.reaches(4).await?;
        } else {
            assert!(queue.resume_cron("a").await?);
            assert!(queue.cron_entries().await?[0].next.is_some());
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Big {
    text: String,
}

impl Job for Big {
    const NAME: &'static str = "big";
}

/// The ticks that are made up for do not fit into one script.
#[tokio::test]
async fn many_missed_ticks_of_a_large_job_are_enqueued_in_pieces_each_once() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Queue::new(&store, "pieces", "q")?;
    let (hour, big) = (
        Duration::from_secs(3600),
        Big {
            text: "x".repeat(200_000),
        },
    );
    queue.every("big", hour, &big, MissedTicks::RunAll).await?;
    queue
        .every("small", hour, &task(1), MissedTicks::RunAll)
        .await?;
    let first = queue.cron_entries().await?[0].next.context("a next tick")?;
    store.advance(hour * 9)?;
    let now = store.time().await?;
    let ticks = 1 + (now - first).as_secs() / 3600;
    let (bigs, smalls) = (Arc::new(AtomicU64::new(0)), Log::default());
    let (counted, log) = (bigs.clone(), smalls.clone());
    // Several look after the entries; of each piece one is fired by one of them.
    let mut workers = Vec::new();
    for _ in 0..3 {
        let (counted, log) = (counted.clone(), log.clone());
        let worker = queue
            .worker(move |big: Big, _: JobContext| {
                let counted = counted.clone();
                async move {
                    assert_eq!(big.text.len(), 200_000);
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            })
            .handler(move |job: Task, _: JobContext| {
                let log = log.clone();
                async move { log.push(job.n) }
            })
            .start()
            .await?;
        workers.push(worker);
    }
    let done = eventually(LONG, async || {
        bigs.load(Ordering::SeqCst) >= ticks && smalls.len() as u64 >= ticks
    });
    ensure!(
        done.await,
        "{} of {ticks} ticks",
        bigs.load(Ordering::SeqCst)
    );
    empty(&queue).await?;
    assert_eq!(
        (bigs.load(Ordering::SeqCst), smalls.len() as u64),
        (ticks, ticks)
    );
    let next: Vec<_> = queue
        .cron_entries()
        .await?
        .iter()
        .map(|entry| entry.next)
        .collect();
    assert_eq!(
        next,
        [Some(first + hour * ticks as u32); 2],
        "the entries stand at the same tick"
    );
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    Ok(())
}

/// Many results, dead letters and keys that end at the same time go as fast as they came: whoever finds as many as it
/// may remove at once looks again at once.
#[tokio::test]
async fn what_was_kept_long_enough_goes_as_fast_as_it_came() -> Result<()> {
    const SCRIPT: &str = concat!(
        include_str!("../../src/script/now.lua"),
        include_str!("../../src/messaging/queue/record.lua"),
        include_str!("../../src/messaging/queue/wake.lua"),
        include_str!("../../src/messaging/queue/place.lua"),
        include_str!("../../src/messaging/queue/schedule.lua"),
    );
    let store = Store::connect("memory://").await?;
    // The keys by their numbers, as in `place.lua` and `schedule.lua`.
    let key = |number: usize| format!("{{k}}:{number}");
    let look = async || {
        let mut eval = redis::cmd("EVAL");
        eval.arg(SCRIPT).arg(25);
        for number in 1..=25 {
            eval.arg(key(number));
        }
        for argument in ["wake", "0", "0", "-1", "0", "w", "1000", "1000", "0", "0"] {
            eval.arg(argument);
        }
        let reply: Vec<redis::Value> = store.query(&eval).await?;
        anyhow::Ok(reply[0] == redis::Value::Int(0))
    };
    for (number, most) in [(9, 50), (22, 40), (8, 50), (15, 20), (23, 100)] {
        let mut put = redis::cmd("ZADD");
        put.arg(key(number));
        for n in 0..most * 5 / 2 {
            put.arg(1).arg(format!("{n:016}"));
        }
        store.query::<()>(&put).await?;
        for more in [true, true, false] {
            assert_eq!(look().await?, more, "set {number}");
        }
        let left: u64 = store.query(redis::cmd("EXISTS").arg(key(number))).await?;
        assert_eq!(left, 0, "set {number}");
    }
    Ok(())
}
