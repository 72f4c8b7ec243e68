use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::{
    Store,
    messaging::{Backoff, Cancelled, JobFence, JobState, Queue, Settled, UniqueUntil, Verdict},
};
use redstart_testkit::{Backend, eventually, matrix};

const PATIENCE: Duration = Duration::from_secs(30);

matrix! {
    async fn a_worker_elsewhere_takes_and_settles_jobs(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let first = queue.enqueue_raw("mail", br#"{"n":12345678901234567890}"#)
            .unique("u", UniqueUntil::Done).await?.id().context("full")?;
        let dispatcher = queue.dispatcher(["mail"]).retry(Backoff::fixed(Duration::from_millis(1)), 2).start().await?;
        let jobs = dispatcher.take(10, PATIENCE).await?;
        ensure!(jobs.len() == 1 && jobs[0].id == first && jobs[0].attempt == 1);
        assert_eq!(jobs[0].payload, br#"{"n":12345678901234567890}"#, "the payload is kept byte by byte");
        assert!(dispatcher.progress(&jobs[0].fence, 0.5).await?);
        assert_eq!(queue.inspect().list(JobState::Running, None).await?.0[0].progress, Some(0.5));

        // Through another dispatcher, as in another process, and from text.
        let other = queue.dispatcher(["mail"]).retry(Backoff::fixed(Duration::from_millis(1)), 2).start().await?;
        let fence: JobFence = jobs[0].fence.to_string().parse()?;
        assert_eq!(other.settle(&fence, Verdict::retry("no route")).await?, Settled::Done);
        assert_eq!(other.settle(&fence, Verdict::Done).await?, Settled::Lost, "a delivery ends once");

        let again = dispatcher.take(10, PATIENCE).await?;
        ensure!(again.len() == 1 && again[0].attempt == 2, "{again:?}");
        assert_eq!(other.settle(&fence, Verdict::Done).await?, Settled::Lost, "an old fence is refused");
        assert_eq!(dispatcher.settle(&again[0].fence, Verdict::retry("again")).await?, Settled::Done);
        assert_eq!(queue.inspect().counts().await?.dead, 1, "dead after its attempts");
        assert!(queue.enqueue_raw("mail", b"{}").unique("u", UniqueUntil::Done).await?.is_new(), "its unique key is free");
        let last = dispatcher.take(10, PATIENCE).await?;
        assert_eq!(dispatcher.settle(&last[0].fence, Verdict::Done).await?, Settled::Done);
        store.settle().await;
        let counts = queue.inspect().counts().await?;
        assert_eq!((counts.unfinished(), counts.workers), (0, 0), "nothing and nobody is left");
        Ok(())
    }

    async fn the_jobs_of_a_silent_worker_elsewhere_go_to_another(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        queue.enqueue_raw("mail", b"1").await?;
        let dispatcher = queue.dispatcher(["mail"]).lease(Duration::from_millis(300)).start().await?;
        let lost = dispatcher.take(1, PATIENCE).await?;
        ensure!(lost.len() == 1);
        let next = dispatcher.take(1, PATIENCE).await?;
        ensure!(next.len() == 1 && next[0].attempt == 2, "{next:?}");
        assert!(!dispatcher.extend(&lost[0].fence).await?);
        assert_eq!(dispatcher.settle(&lost[0].fence, Verdict::Done).await?, Settled::Lost);
        assert_eq!(dispatcher.settle(&next[0].fence, Verdict::Done).await?, Settled::Done);
        Ok(())
    }

    async fn the_worker_that_took_a_job_decides_how_often_it_is_tried(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let dispatcher = |attempts| {
            queue.dispatcher(["mail"]).lease(Duration::from_millis(300)).retry(Backoff::fixed(Duration::from_millis(1)), attempts)
        };
        queue.enqueue_raw("mail", b"1").await?;
        let patient = dispatcher(2).start().await?;
        ensure!(patient.take(1, PATIENCE).await?.len() == 1);
        drop(patient);
        // Whoever finds out that the worker died has another limit.
        let hasty = dispatcher(1).start().await?;
        let jobs = hasty.take(1, PATIENCE).await?;
        ensure!(jobs.len() == 1 && jobs[0].attempt == 2, "{jobs:?}");
        drop(hasty);
        let _patient = dispatcher(50).start().await?;
        let buried = eventually(PATIENCE, async || matches!(queue.inspect().counts().await, Ok(counts) if counts.dead == 1));
        ensure!(buried.await, "{:?}", queue.inspect().counts().await?);
        Ok(())
    }

    async fn a_job_that_was_told_to_stop_is_cancelled_whatever_its_worker_says(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(10, PATIENCE * 1000).build()?;
        let dispatcher = queue.dispatcher(["mail"]).retry(Backoff::fixed(Duration::from_millis(1)), 1).start().await?;
        // It gives up, or this was its last attempt.
        for verdict in [Verdict::dead("no such address"), Verdict::retry("no route")] {
            let id = queue.enqueue_raw("mail", b"1").await?.id().context("full")?;
            let taken = dispatcher.take(1, PATIENCE).await?;
            ensure!(taken.len() == 1 && taken[0].id == id);
            assert_eq!(queue.cancel(id).await?, Cancelled::Told);
            assert_eq!(dispatcher.settle(&taken[0].fence, verdict).await?, Settled::Done);
            let job = queue.job(id).await?.context("it is kept")?.job;
            assert_eq!(job.state, JobState::Cancelled);
            assert_eq!(queue.inspect().counts().await?.dead, 0, "a dead letter may be replayed");
        }
        Ok(())
    }

    async fn workers_that_do_not_wait_get_what_there_is(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        for n in 0..12 {
            queue.enqueue_raw("mail", n.to_string().as_bytes()).await?;
        }
        let dispatcher = queue.dispatcher(["mail", "other", "third"]).start().await?;
        for _ in 0..2 {
            assert_eq!(dispatcher.take(1, Duration::ZERO).await?.len(), 1, "one after another");
        }
        let mut takers = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let dispatcher = dispatcher.clone();
            takers.spawn(async move { dispatcher.take(1, Duration::ZERO).await });
        }
        while let Some(jobs) = takers.join_next().await {
            assert_eq!(jobs??.len(), 1, "all at once");
        }
        ensure!(dispatcher.take(1, Duration::ZERO).await?.is_empty());
        // Nor do they wait for one who waits.
        let waiting = tokio::spawn({
            let dispatcher = dispatcher.clone();
            async move { dispatcher.take(1, PATIENCE).await }
        });
        let waits = eventually(PATIENCE, async || matches!(queue.inspect().counts().await, Ok(counts) if counts.workers == 13));
        ensure!(waits.await, "{:?}", queue.inspect().counts().await?);
        ensure!(dispatcher.take(1, Duration::ZERO).await?.is_empty());
        queue.enqueue_raw("mail", b"1").await?;
        assert_eq!(waiting.await??.len(), 1);
        Ok(())
    }

    async fn any_number_of_kinds_can_be_asked_for(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        if backend.is_embedded() {
            for call in 0..160 {
                let kinds = (0..64).map(|kind| format!("{call}-{kind}"));
                drop(queue.dispatcher(kinds).start().await?);
            }
        }
        queue.enqueue_raw("new", b"1").await?;
        let jobs = queue.dispatcher(["new"]).start().await?.take(1, PATIENCE).await?;
        ensure!(jobs.len() == 1);
        for bad in ["", &"x".repeat(256)] {
            ensure!(queue.dispatcher([bad]).start().await.is_err_and(|error| error.is_config()));
        }
        Ok(())
    }

    async fn a_settler_knows_how_long_a_job_waited_and_ran(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").history(Duration::from_secs(3600)).build()?;
        let pause = Duration::from_millis(300);
        queue.enqueue_raw("mail", b"1").await?;
        // No less than this passes, however busy the machine is.
        tokio::time::sleep(pause).await;
        let dispatcher = queue.dispatcher(["mail"]).start().await?;
        let jobs = dispatcher.take(1, PATIENCE).await?;
        tokio::time::sleep(pause).await;
        let settler = queue.dispatcher(None::<String>).settler()?;
        assert_eq!(settler.settle(&jobs[0].fence, Verdict::Done).await?, Settled::Done);
        let minutes = queue.inspect().history().await?;
        let minute = minutes.iter().find(|minute| minute.done == 1).context("no minute")?;
        for (what, spread) in [("wait", &minute.wait), ("run", &minute.run)] {
            let half = spread.percentile(0.5).context("no percentile")?;
            ensure!(half >= pause, "{what}: {half:?}");
        }
        Ok(())
    }

    async fn kinds_of_others_are_left_to_them_and_waiting_is_woken(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let mail = queue.dispatcher(["mail"]).start().await?;
        let sms = queue.dispatcher(["sms"]).start().await?;
        assert!(mail.take(1, Duration::ZERO).await?.is_empty());
        let waiting = tokio::spawn({
            let sms = sms.clone();
            async move { sms.take(5, PATIENCE).await }
        });
        let other = tokio::spawn({
            let mail = mail.clone();
            async move { mail.take(5, PATIENCE).await }
        });
        assert!(eventually(PATIENCE, async || {
            matches!(queue.inspect().counts().await, Ok(counts) if counts.workers == 2)
        }).await);
        queue.enqueue_raw("sms", b"1").await?;
        let got = waiting.await??;
        ensure!(got.len() == 1 && got[0].kind == "sms", "{got:?}");
        queue.enqueue_raw("mail", b"2").await?;
        let got = other.await??;
        ensure!(got.len() == 1 && got[0].kind == "mail", "{got:?}");
        Ok(())
    }

    async fn a_worker_that_waits_is_woken_although_another_of_its_dispatcher_settled(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        // A worker that is not woken would look again after a third of this.
        let dispatcher = queue.dispatcher(["mail"]).lease(Duration::from_secs(3600)).start().await?;
        queue.enqueue_raw("mail", b"1").await?;
        let first = dispatcher.take(1, PATIENCE).await?;
        ensure!(first.len() == 1);
        let waiting = tokio::spawn({
            let dispatcher = dispatcher.clone();
            async move { dispatcher.take(1, PATIENCE * 2).await }
        });
        let idle = format!("{}:queue:{{q}}:idle", backend.namespace());
        let waits = async || store.query::<u64>(redis::cmd("ZCARD").arg(&idle)).await.is_ok_and(|count| count == 1);
        ensure!(eventually(PATIENCE, waits).await, "nobody waits");
        assert_eq!(dispatcher.settle(&first[0].fence, Verdict::Done).await?, Settled::Done);
        // The first worker is unregistered in the background.
        ensure!(eventually(PATIENCE, async || queue.inspect().counts().await.is_ok_and(|counts| counts.workers == 1)).await);
        ensure!(waits().await, "the other worker is no longer known to wait");
        queue.enqueue_raw("mail", b"2").await?;
        let second = tokio::time::timeout(PATIENCE, waiting).await.context("it was not woken")???;
        ensure!(second.len() == 1 && second[0].payload == b"2", "{second:?}");
        Ok(())
    }

    async fn a_worker_that_waits_is_woken_although_another_of_its_dispatcher_died(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let lease = Duration::from_secs(3600);
        let dispatcher = queue.dispatcher(["mail"]).lease(lease).start().await?;
        let waiting = tokio::spawn(async move { dispatcher.take(1, PATIENCE * 2).await });
        let key = |part: &str| format!("{}:queue:{{q}}:{part}", backend.namespace());
        let idle = async || store.query::<Vec<String>>(redis::cmd("ZRANGE").arg(key("idle")).arg(0).arg(-1)).await;
        ensure!(eventually(PATIENCE, async || idle().await.is_ok_and(|idle| idle.len() == 1)).await, "nobody waits");
        // Another worker of the same dispatcher, whose lease ended long ago.
        let waits = idle().await?.remove(0);
        let dead = format!("{}{}", &waits[..32], "0".repeat(32));
        store.query::<()>(redis::cmd("HSET").arg(key(&format!("running:{dead}"))).arg("").arg(1)).await?;
        store.query::<()>(redis::cmd("ZADD").arg(key("workers")).arg(1).arg(&dead)).await?;
        // It looks after silent workers when it starts.
        let _second = queue.dispatcher(["mail"]).lease(lease).start().await?;
        ensure!(eventually(PATIENCE, async || queue.inspect().counts().await.is_ok_and(|counts| counts.workers == 1)).await);
        assert_eq!(idle().await?, [waits], "the other worker is no longer known to wait");
        queue.enqueue_raw("mail", b"1").await?;
        let jobs = tokio::time::timeout(PATIENCE, waiting).await.context("it was not woken")???;
        ensure!(jobs.len() == 1, "{jobs:?}");
        Ok(())
    }
}
