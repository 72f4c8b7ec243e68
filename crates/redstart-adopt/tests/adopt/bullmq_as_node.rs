//! What a worker of Node does when it takes or ends a job, done here: schedulers go on, parents are released, kept jobs run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{
    Added, BullQueue, BullWorkerBuilder, Deduplication, Ended, Flow, JobError, Keep, NewJob,
    Repeat, Taken,
};
use redstart_testkit::{Kind, unique_namespace, wait_until};
use serde_json::{Value, json};

use crate::{
    Side,
    bullmq::{all_run, completed, node, node_to_its_end},
    long, on,
};

const MODULES: [&str; 2] = ["bullmq5", "bullmq6"];

/// A queue of a name of its own.
fn fresh(store: &Store) -> Result<(String, BullQueue)> {
    let name = unique_namespace("as-node");
    let queue = BullQueue::new(store, &name)?;
    Ok((name, queue))
}

/// A worker that completes every job, until it is told to stop.
struct Running {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<redstart_adopt::Result<()>>,
}

impl Running {
    fn start(worker: BullWorkerBuilder) -> Result<Self> {
        let worker = worker.build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let handler = |_: Arc<Taken>| async { Ok::<_, JobError>("rust") };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        Ok(Self { stop, task })
    }

    async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(self.task.await??)
    }
}

async fn until_completed(store: &Store, queue: &BullQueue, jobs: usize) -> Result<()> {
    wait_until("jobs to be completed", long(), async || {
        (completed(store, queue).await.ok()?.len() >= jobs).then_some(())
    })
    .await
}

async fn count(store: &Store, command: &str, queue: &BullQueue, part: &str) -> Result<u64> {
    let key = format!("{}:{part}", queue.base());
    Ok(store.query(cmd(command).arg(key)).await?)
}

async fn holds(store: &Store, queue: &BullQueue, list: &str) -> Result<Vec<String>> {
    let key = format!("{}:{list}", queue.base());
    Ok(store.query(cmd("LRANGE").arg(key).arg(0).arg(-1)).await?)
}

/// The jobs of a scheduler are run here, one after the other, and Node goes on with them.
async fn a_period(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let (name, queue) = fresh(&store)?;
        let code =
            "await queue.upsertJobScheduler('tick', { every: 200 }, { name: 't', data: { a: 1 } })";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        let worker = Running::start(queue.worker())?;
        until_completed(&store, &queue, 3).await?;
        worker.stop().await?;
        // One job is to come, and the scheduler knows of it.
        let next: Vec<(String, u64)> = store
            .query(
                cmd("ZRANGE")
                    .arg(format!("{}:repeat", queue.base()))
                    .arg(0)
                    .arg(-1)
                    .arg("WITHSCORES"),
            )
            .await?;
        assert_eq!(next.len(), 1, "{module}: {next:?}");
        let id = format!("repeat:tick:{}", next[0].1);
        let job = queue.job(&id).await?.context("the next job")?;
        assert_eq!((job["name"].as_str(), job["rjk"].as_str()), ("t", "tick"));
        let mut worker = node(module, &side, &name, &["work"])?;
        assert_eq!(worker.line().await?, "ready");
        assert_eq!(worker.line().await?, format!("done {id}"), "{module}");
        assert!(worker.line().await?.starts_with("done repeat:tick:"));
        worker.wait().await?;
    }
    Ok(())
}
on!(a_period: a_scheduler_with_a_period_goes_on_when_its_jobs_are_taken_here);

/// The job that follows, and the scheduler, without what differs from run to run.
async fn follower(store: &Store, queue: &BullQueue) -> Result<(Value, BTreeMap<String, String>)> {
    let scheduler = format!("{}:repeat:tick", queue.base());
    let next: Vec<String> = store
        .query(
            cmd("ZRANGE")
                .arg(format!("{}:delayed", queue.base()))
                .arg(0)
                .arg(-1),
        )
        .await?;
    ensure!(next.len() == 1, "{next:?}");
    let job = queue.job(&next[0]).await?.context("the next job")?;
    let score: u64 = store
        .query(
            cmd("ZSCORE")
                .arg(format!("{}:repeat", queue.base()))
                .arg("tick"),
        )
        .await?;
    assert_eq!(next[0], format!("repeat:tick:{score}"));
    let mut seen = serde_json::Map::new();
    for (field, value) in job {
        match field.as_str() {
            "timestamp" | "delay" => assert!(value.parse::<u64>()? > 0, "{field} {value}"),
            "opts" => {
                let mut options: Value = serde_json::from_str(&value)?;
                assert_eq!(options["jobId"], json!(next[0]));
                for differs in ["jobId", "delay", "timestamp"] {
                    let gone = options.as_object_mut().and_then(|all| all.remove(differs));
                    assert!(gone.is_some(), "no {differs} in {value}");
                }
                // It depends on the time of day.
                if let Some(offset) = options.pointer_mut("/repeat/offset") {
                    *offset = json!("some");
                }
                seen.insert(field, options);
            }
            _ => drop(seen.insert(field, json!(value))),
        }
    }
    let mut about: BTreeMap<String, String> = store.query(cmd("HGETALL").arg(scheduler)).await?;
    about
        .entry("offset".to_owned())
        .and_modify(|offset| *offset = "some".to_owned());
    Ok((Value::Object(seen), about))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_that_follows_is_the_one_that_node_would_write() -> Result<()> {
    let side = Side::of(Kind::Redis, "follows").await?;
    let store = side.store().await?;
    for module in MODULES {
        let code = "await queue.upsertJobScheduler('tick', { every: 3600000, limit: 9 }, { name: 't', data: { a: 1 }, \
             opts: { attempts: 3, priority: 4, backoff: { type: 'fixed', delay: 10 } } })";
        let (theirs, ours) = (fresh(&store)?, fresh(&store)?);
        for (name, _) in [&theirs, &ours] {
            node_to_its_end(module, &side, name, &["run", code]).await?;
        }
        let mut worker = node(module, &side, &theirs.0, &["work"])?;
        assert_eq!(worker.line().await?, "ready");
        assert!(worker.line().await?.starts_with("done"));
        worker.wait().await?;
        all_run(&store, &ours.1, 1).await?;
        assert_eq!(
            follower(&store, &theirs.1).await?,
            follower(&store, &ours.1).await?,
            "{module}"
        );
    }
    Ok(())
}

/// A scheduler that may run twice runs twice; a job that is tried again is not followed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_ends_at_its_limit_and_retries_do_not_count() -> Result<()> {
    let side = Side::of(Kind::Redis, "limit").await?;
    let store = side.store().await?;
    let (name, queue) = fresh(&store)?;
    let code = "await queue.upsertJobScheduler('tick', { every: 100, limit: 2 }, { name: 't', opts: { attempts: 2 } })";
    node_to_its_end("bullmq6", &side, &name, &["run", code]).await?;
    let worker = queue.worker().build()?;
    let mut ids = BTreeSet::new();
    while completed(&store, &queue).await?.len() < 2 {
        let take = async || worker.take().await.ok()?;
        let job = wait_until("a job of the scheduler", long(), take).await?;
        ids.insert(job.id().to_owned());
        let ended = match job.attempts_made() {
            0 => job.fail(JobError::new("no luck")).await?,
            _ => job.complete(&()).await?,
        };
        assert_ne!(ended, Ended::Lost);
    }
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(count(&store, "ZCARD", &queue, "delayed").await?, 0);
    assert!(worker.take().await?.is_none());
    Ok(())
}

/// A job of a scheduler with a cron pattern waits for Node, and the others do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_cron_pattern_is_left_to_node_and_holds_nothing_up() -> Result<()> {
    let side = Side::of(Kind::Redis, "pattern").await?;
    let store = side.store().await?;
    for module in MODULES {
        let (name, queue) = fresh(&store)?;
        let code =
            "await queue.upsertJobScheduler('cron', { pattern: '* * * * * *' }, { name: 'c' })";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        let ours = Running::start(queue.worker())?;
        // The worker promotes it when it is due, and leaves it there.
        wait_until("the job of the pattern to wait", long(), async || {
            (holds(&store, &queue, "wait").await.ok()?.len() == 1).then_some(())
        })
        .await?;
        let mut ids = BTreeSet::new();
        for n in 0..5 {
            let job = NewJob::new("plain", &n)?;
            let job = if n == 4 { job.priority(3)? } else { job };
            ids.insert(queue.add(job).await?.id().to_owned());
        }
        wait_until("the other jobs", long(), async || {
            (completed(&store, &queue).await.ok()? == ids).then_some(())
        })
        .await?;
        assert_eq!(holds(&store, &queue, "wait").await?.len(), 1);
        // Node runs it, beside the worker here, and goes on with the pattern.
        let mut worker = node(module, &side, &name, &["work"])?;
        assert_eq!(worker.line().await?, "ready");
        for _ in 0..2 {
            assert!(worker.line().await?.starts_with("done repeat:cron:"));
        }
        worker.wait().await?;
        ours.stop().await?;
    }
    Ok(())
}

/// Node pauses, something is added here, and Node resumes, while the queue does not tell its version, or is of another family.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_added_to_a_paused_queue_of_no_known_version_survive_nodes_resume() -> Result<()> {
    let side = Side::of(Kind::Redis, "undeclared").await?;
    let store = side.store().await?;
    for declared in [None, Some("bullmq-pro:7.1.0")] {
        let (name, queue) = fresh(&store)?;
        let meta = format!("{}:meta", queue.base());
        let code = "for (let n = 0; n < 3; n++) await queue.add('plain', n); await queue.pause()";
        node_to_its_end("bullmq5", &side, &name, &["run", code]).await?;
        let _: () = match declared {
            None => store.query(cmd("HDEL").arg(&meta).arg("version")).await?,
            Some(version) => {
                let set = cmd("HSET").arg(&meta).arg("version").arg(version).take();
                store.query(&set).await?
            }
        };
        let _ = queue.add(NewJob::new("plain", &1)?).await?;
        assert_eq!(holds(&store, &queue, "paused").await?.len(), 4);
        assert_eq!(holds(&store, &queue, "wait").await?, [""; 0]);
        node_to_its_end("bullmq5", &side, &name, &["resume"]).await?;
        all_run(&store, &queue, 4).await?;
    }
    Ok(())
}

/// A child that failed and is not kept does not hold up its parent, as in Node.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_child_that_is_removed_releases_its_parent() -> Result<()> {
    let side = Side::of(Kind::Redis, "removed").await?;
    let store = side.store().await?;
    for module in MODULES {
        let (name, queue) = fresh(&store)?;
        let parts = BullQueue::new(&store, &format!("{name}-parts"))?;
        // The second child is removed when the third one fails, since only one is kept.
        let code = "for (const removeOnFail of [true, 1]) await flow.add({ name: 'parent', queueName: queue.name, children: [\
               { name: 'child', queueName: queue.name + '-parts', opts: { removeOnFail } } ] })";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        let worker = parts.worker().build()?;
        let fail = async || -> Result<()> {
            let child = worker.take().await?.context("a child")?;
            let ended = child.fail(JobError::unrecoverable("broken")).await?;
            assert_eq!(ended, Ended::Failed);
            Ok(())
        };
        assert_eq!(holds(&store, &queue, "wait").await?, [""; 0]);
        fail().await?;
        assert_eq!(holds(&store, &queue, "wait").await?.len(), 1, "{module}");
        fail().await?;
        assert_eq!(holds(&store, &queue, "wait").await?.len(), 1, "{module}");
        let _ = parts.add(NewJob::new("plain", &1)?.keep_failed(1)).await?;
        // Of two that end in the same millisecond, either is the older one.
        let before = store.time().await?.as_millis();
        wait_until("the next millisecond", long(), async || {
            (store.time().await.ok()?.as_millis() > before).then_some(())
        })
        .await?;
        fail().await?;
        assert_eq!(holds(&store, &queue, "wait").await?.len(), 2, "{module}");
        let mut worker = node(module, &side, &name, &["work"])?;
        until_completed(&store, &queue, 2).await?;
        worker.wait().await?;
    }
    Ok(())
}

/// The last job that was refused while another one ran comes after it.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_that_is_kept_while_another_runs_comes_after_it() -> Result<()> {
    let side = Side::of(Kind::Redis, "kept").await?;
    let store = side.store().await?;
    for module in MODULES {
        let (name, queue) = fresh(&store)?;
        let add = async |data: &str| {
            let code = format!(
                "await queue.add('sync', '{data}', {{ priority: 2, deduplication: {{ id: 'shop7', keepLastIfActive: true }} }})"
            );
            node_to_its_end(module, &side, &name, &["run", &code]).await
        };
        add("a").await?;
        let worker = queue.worker().build()?;
        let first = worker.take().await?.context("the first")?;
        add("b").await?;
        add("c").await?;
        assert!(worker.take().await?.is_none());
        assert_eq!(first.complete(&()).await?, Ended::Completed);
        assert_eq!(count(&store, "EXISTS", &queue, "dn:shop7").await?, 0);
        let guard: String = store
            .query(cmd("GET").arg(format!("{}:de:shop7", queue.base())))
            .await?;
        let second = worker.take().await?.context("the job that was kept")?;
        assert_eq!(second.data::<String>()?, "c");
        assert_eq!(
            (second.id(), second.fields()["deid"].as_str()),
            (&*guard, "shop7")
        );
        assert_eq!(second.fields()["priority"], "2");
        assert_eq!(second.complete(&()).await?, Ended::Completed);
        assert!(worker.take().await?.is_none());
        assert_eq!(count(&store, "EXISTS", &queue, "de:shop7").await?, 0);
    }
    Ok(())
}

/// A parent does not wait for a child that is done, and waits for one that exists.
#[tokio::test]
async fn a_flow_counts_children_that_exist() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (queue, parts) = (
        BullQueue::new(&store, "mail")?,
        BullQueue::new(&store, "parts")?,
    );
    let child = || NewJob::new("child", &1)?.id("invoice-17");
    let (worker, parts_worker) = (queue.worker().build()?, parts.worker().build()?);

    let _ = parts.add(child()?).await?;
    let added = queue
        .add_flow(Flow::new(NewJob::new("waits", &1)?).child(&parts, child()?))
        .await?;
    assert!(matches!(added, Added::New(_)));
    assert!(worker.take().await?.is_none(), "the child is not done");
    let job = parts_worker.take().await?.context("the child")?;
    assert_eq!(job.complete(&7).await?, Ended::Completed);
    let parent = worker.take().await?.context("the parent")?;
    assert_eq!(parent.name(), "waits");
    assert_eq!(parent.complete(&()).await?, Ended::Completed);
    // It had a parent that is gone.
    let gone = format!("bull:mail:{}", parent.id());
    let _: () = store.query(cmd("DEL").arg(gone)).await?;

    let flow = Flow::new(NewJob::new("at once", &1)?).child(&parts, child()?);
    let _ = queue.add_flow(flow).await?;
    let parent = worker.take().await?.context("the child is done")?;
    let done: String = store
        .query(
            cmd("HGET")
                .arg(format!("bull:mail:{}:processed", parent.id()))
                .arg("bull:parts:invoice-17"),
        )
        .await?;
    assert_eq!(done, "7");
    let _: () = store
        .query(cmd("DEL").arg(format!("bull:mail:{}", parent.id())))
        .await?;

    // The one that is done comes first, and does not release the parent before the other is there.
    let flow = Flow::new(NewJob::new("two", &1)?)
        .child(&parts, child()?)
        .child(&parts, NewJob::new("new", &1)?);
    let _ = queue.add_flow(flow).await?;
    assert!(worker.take().await?.is_none());
    let job = parts_worker.take().await?.context("the new child")?;
    assert_eq!(job.complete(&()).await?, Ended::Completed);
    assert!(worker.take().await?.is_some());
    Ok(())
}

/// A worker sees the whole of a flow or nothing: a parent never runs before all of its children have.
#[tokio::test(flavor = "multi_thread")]
async fn a_flow_is_added_as_a_whole() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (queue, parts) = (
        BullQueue::new(&store, "mail")?,
        BullQueue::new(&store, "parts")?,
    );
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let worker = parts.worker().build()?;
    // It ends each child as soon as it is there.
    let eager = tokio::spawn(async move {
        while !*stopped.borrow() {
            match worker.take().await? {
                Some(job) => drop(job.complete(&()).await?),
                None => tokio::task::yield_now().await,
            }
        }
        anyhow::Ok(())
    });
    let parents = queue.worker().build()?;
    for _ in 0..20 {
        let mut flow = Flow::new(NewJob::new("parent", &1)?);
        for n in 0..10 {
            flow = flow.child(&parts, NewJob::new("child", &n)?);
        }
        let added = queue.add_flow(flow).await?;
        let parent = loop {
            if let Some(parent) = parents.take().await? {
                break parent;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(parent.id(), added.id());
        let done: u64 = store
            .query(cmd("HLEN").arg(format!("bull:mail:{}:processed", parent.id())))
            .await?;
        assert_eq!(done, 10, "it ran before its children");
        assert_eq!(parent.complete(&()).await?, Ended::Completed);
    }
    stop.send(true)?;
    eager.await??;
    let mut large = Flow::new(NewJob::new("parent", &1)?);
    for n in 0..1000 {
        large = large.child(&parts, NewJob::new("child", &n)?);
    }
    assert!(queue.add_flow(large).await.unwrap_err().is_invalid());
    Ok(())
}

/// A flow whose parent would wait for ever is refused before anything is written.
#[tokio::test]
async fn a_flow_with_a_child_of_another_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (queue, parts) = (
        BullQueue::new(&store, "mail")?,
        BullQueue::new(&store, "parts")?,
    );
    let child = || NewJob::new("child", &1)?.id("invoice-17");
    let parent = || NewJob::new("parent", &1)?.id("p-1");
    let flow = || Ok::<_, anyhow::Error>(Flow::new(parent()?).child(&parts, child()?));
    assert!(matches!(queue.add_flow(flow()?).await?, Added::New(_)));
    assert!(matches!(queue.add_flow(flow()?).await?, Added::Exists(_)));
    let _ = parts.add(NewJob::new("x", &1)?.deduplicate("only")).await?;

    let mut before = store.scan("*").await?;
    before.sort();
    let once = || Ok::<_, anyhow::Error>(NewJob::new("x", &1)?.deduplicate("only"));
    let twice = || Ok::<_, anyhow::Error>(NewJob::new("x", &1)?.deduplicate("two"));
    let other = || NewJob::new("other", &1);
    for flow in [
        Flow::new(other()?).child(&parts, child()?),
        Flow::new(other()?).child(&parts, once()?),
        Flow::new(other()?)
            .child(&parts, twice()?)
            .child(&parts, twice()?),
        Flow::new(other()?).child(&queue, Flow::new(other()?).child(&parts, child()?)),
        Flow::new(other()?)
            .child(&parts, NewJob::new("x", &1)?.id("same")?)
            .child(
                &queue,
                Flow::new(other()?).child(&parts, NewJob::new("x", &1)?.id("same")?),
            ),
    ] {
        assert!(queue.add_flow(flow).await.unwrap_err().is_invalid());
    }
    let mut after = store.scan("*").await?;
    after.sort();
    assert_eq!(before, after);
    Ok(())
}

/// The worker's retention holds for jobs that say nothing, and the job's own before it.
#[tokio::test]
async fn a_worker_keeps_as_many_jobs_as_it_was_told() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let worker = queue
        .worker()
        .keep_completed(5)
        .keep_failed(Keep::from(3).and_for(Duration::from_secs(60)))
        .build()?;
    for n in 0..50 {
        let _ = queue.add(NewJob::new("plain", &n)?).await?;
        let job = worker.take().await?.context("a job")?;
        let _ = match n % 2 {
            0 => job.complete(&()).await?,
            _ => job.fail(JobError::new("no luck")).await?,
        };
    }
    assert_eq!(count(&store, "ZCARD", &queue, "completed").await?, 5);
    assert_eq!(count(&store, "ZCARD", &queue, "failed").await?, 3);
    let _ = queue
        .add(NewJob::new("plain", &1)?.keep_completed(20))
        .await?;
    let job = worker.take().await?.context("a job")?;
    assert_eq!(job.complete(&()).await?, Ended::Completed);
    assert_eq!(count(&store, "ZCARD", &queue, "completed").await?, 6);
    store.advance(Duration::from_secs(61))?;
    let _ = queue.add(NewJob::new("plain", &1)?).await?;
    let job = worker.take().await?.context("a job")?;
    assert_eq!(job.fail(JobError::new("no luck")).await?, Ended::Failed);
    assert_eq!(count(&store, "ZCARD", &queue, "failed").await?, 1);
    Ok(())
}

/// A job that Node would retry by a function of the application's is not taken without one.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_a_backoff_of_its_own_needs_a_rule() -> Result<()> {
    let side = Side::of(Kind::Redis, "backoff").await?;
    let store = side.store().await?;
    let (name, queue) = fresh(&store)?;
    let code = "await queue.add('a', 1, { attempts: 3, backoff: { type: 'custom' } }); \
         await queue.add('b', 1, { backoff: { type: 'custom' } })";
    node_to_its_end("bullmq6", &side, &name, &["run", code]).await?;
    let without = queue.worker().build()?;
    let job = without.take().await?.context("a job without retries")?;
    assert_eq!(job.name(), "b");
    assert_eq!(job.complete(&()).await?, Ended::Completed);
    assert!(without.take().await?.is_none());
    let with = queue
        .worker()
        .backoff(|job, made| {
            assert_eq!((job.name(), made), ("a", 1));
            Duration::from_secs(600)
        })
        .build()?;
    let job = with.take().await?.context("the other job")?;
    assert_eq!(job.fail(JobError::new("no luck")).await?, Ended::Retried);
    assert_eq!(queue.job(job.id()).await?.context("it")?["delay"], "600000");
    assert_eq!(count(&store, "ZCARD", &queue, "delayed").await?, 1);
    Ok(())
}

/// A job of a scheduler may lose its worker as often as it likes, as in BullMQ.
#[tokio::test]
async fn a_job_of_a_scheduler_is_not_failed_for_stalling() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let worker = queue.worker().max_stalled(0).build()?;
    for recurs in [false, true] {
        let added = queue.add(NewJob::new("plain", &1)?).await?;
        if recurs {
            let key = format!("bull:mail:{}", added.id());
            let _: () = store
                .query(cmd("HSET").arg(key).arg("rjk").arg("tick"))
                .await?;
            let scheduler = cmd("HSET")
                .arg("bull:mail:repeat:tick")
                .arg("ic")
                .arg(1)
                .take();
            let _: () = store.query(&scheduler).await?;
        }
        let taken = worker.take().await?.context("a job")?;
        drop(taken);
        // The first check suspects it, the second one gives it back.
        store.advance(Duration::from_secs(60))?;
        worker.check_stalled().await?;
        store.advance(Duration::from_secs(60))?;
        assert_eq!(worker.check_stalled().await?, [added.id()]);
        let job = queue.job(added.id()).await?.context("it")?;
        assert_eq!(job.contains_key("defa"), !recurs);
        // The first one is failed here.
        assert_eq!(worker.take().await?.is_some(), recurs);
    }
    Ok(())
}

/// Options that are not what BullMQ writes do not stop a worker.
#[tokio::test]
async fn a_job_with_broken_options_does_not_hold_up_the_queue() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let worker = queue.worker().build()?;
    for (id, opts, scheduler) in [
        ("a", "not JSON \"repeat\"", None),
        ("b", "[\"repeat\"]", None),
        ("c", r#"{"repeat":null,"backoff":7,"attempts":3}"#, None),
        ("d", r#"{"backoff":[],"repeat":null,"attempts":"x"}"#, None),
        (
            "repeat:tick:1000",
            r#"{"repeat":7,"de":7,"delay":"x"}"#,
            Some("tick"),
        ),
        ("e", "not JSON", Some("gone")),
        ("f", "", None),
    ] {
        let mut job = cmd("HSET");
        job.arg(format!("bull:mail:{id}"))
            .arg(&["name", "n", "data", "{}", "opts", opts]);
        if let Some(scheduler) = scheduler {
            job.arg("rjk").arg(scheduler);
        }
        let _: () = store.query(&job).await?;
        let _: () = store
            .query(cmd("LPUSH").arg("bull:mail:wait").arg(id))
            .await?;
    }
    let about = ["name", "n", "every", "3600000", "ic", "1"];
    let _: () = store
        .query(cmd("HSET").arg("bull:mail:repeat:tick").arg(&about))
        .await?;
    let _: () = store
        .query(cmd("ZADD").arg("bull:mail:repeat").arg(1000).arg("tick"))
        .await?;
    all_run(&store, &queue, 7).await?;
    assert_eq!(count(&store, "ZCARD", &queue, "delayed").await?, 1);
    assert!(worker.take().await?.is_none());
    Ok(())
}

/// Everything that deduplication leaves: the guards and their times, what is kept, and the jobs by name.
async fn deduplicated(store: &Store, queue: &BullQueue) -> Result<BTreeMap<String, Value>> {
    let mut left = BTreeMap::new();
    for id in ["newest", "longer", "last"] {
        let guard = format!("{}:de:{id}", queue.base());
        let held: Option<String> = store.query(cmd("GET").arg(&guard)).await?;
        let ttl: i64 = store.query(cmd("PTTL").arg(&guard)).await?;
        let held = held.context(id)?;
        let name = queue.job(&held).await?.context("the holder")?["name"].clone();
        // A minute has room for slow machines.
        left.insert(
            format!("{id} guards"),
            json!([name, (ttl + 59_999) / 60_000]),
        );
        let kept = format!("{}:dn:{id}", queue.base());
        let kept: BTreeMap<String, String> = store.query(cmd("HGETALL").arg(kept)).await?;
        for (field, value) in kept {
            let value = match field.as_str() {
                "opts" | "data" => serde_json::from_str(&value)?,
                _ => json!(value),
            };
            left.insert(format!("{id} keeps {field}"), value);
        }
    }
    let mut names = Vec::new();
    for part in ["wait", "active"] {
        names.extend(holds(store, queue, part).await?);
    }
    let delayed = format!("{}:delayed", queue.base());
    let delayed: Vec<String> = store
        .query(cmd("ZRANGE").arg(delayed).arg(0).arg(-1))
        .await?;
    names.extend(delayed);
    for id in names {
        let job = queue.job(&id).await?.context("a job")?;
        left.insert(format!("job {}", job["name"]), json!(id));
    }
    Ok(left)
}

/// Replaced, extended and kept jobs are what Node would have left.
async fn rules_of_deduplication(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let (name, theirs) = fresh(&store)?;
        let (_, ours) = fresh(&store)?;
        let minutes = |n: u64| Duration::from_secs(60 * n);
        // The holder of `last` runs.
        let code = "await queue.add('last 1', {}, { deduplication: { id: 'last', keepLastIfActive: true } })";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        let last = || Deduplication::new("last").keep_last_if_active();
        let _ = ours
            .add(NewJob::new("last 1", &json!({}))?.deduplicated(last()))
            .await?;
        let _held = [
            theirs.worker().build()?.take().await?.context("a job")?,
            ours.worker().build()?.take().await?.context("a job")?,
        ];
        let code = "
            for (const n of [2, 3]) await queue.add('last ' + n, { n }, { deduplication: { id: 'last', keepLastIfActive: true } });
            for (const n of [1, 2]) await queue.add('newest ' + n, {}, { delay: 3600000, deduplication: { id: 'newest', ttl: n * 600000, replace: true } });
            for (const n of [1, 3]) await queue.add('longer ' + n, {}, { deduplication: { id: 'longer', ttl: n * 600000, extend: true } });";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        for n in [2, 3] {
            let job = NewJob::new(&format!("last {n}"), &json!({"n": n}))?.deduplicated(last());
            assert!(matches!(ours.add(job).await?, Added::Deduplicated(_)));
        }
        for n in [1, 2] {
            let rule = Deduplication::new("newest").ttl(minutes(10 * n)).replace();
            let job = NewJob::new(&format!("newest {n}"), &json!({}))?
                .delay(minutes(60))
                .deduplicated(rule);
            assert!(matches!(ours.add(job).await?, Added::New(_)));
        }
        for n in [1, 3] {
            let rule = Deduplication::new("longer").ttl(minutes(10 * n)).extend();
            let job = NewJob::new(&format!("longer {n}"), &json!({}))?.deduplicated(rule);
            let _ = ours.add(job).await?;
        }
        let (theirs, ours) = (
            deduplicated(&store, &theirs).await?,
            deduplicated(&store, &ours).await?,
        );
        assert_eq!(theirs, ours, "{module}");
        assert_eq!(ours["last keeps name"], json!("last 3"));
        assert_eq!(ours["longer guards"], json!(["longer 1", 30]));
    }
    Ok(())
}
on!(rules_of_deduplication: replaced_extended_and_kept_jobs_are_as_node_leaves_them);

/// A scheduler and its next job, without what differs from run to run.
async fn scheduled(store: &Store, queue: &BullQueue, id: &str) -> Result<BTreeMap<String, Value>> {
    let base = format!("{}:repeat", queue.base());
    let turn: u64 = store.query(cmd("ZSCORE").arg(&base).arg(id)).await?;
    let hash: BTreeMap<String, String> = store
        .query(cmd("HGETALL").arg(format!("{base}:{id}")))
        .await?;
    let job = queue
        .job(&format!("repeat:{id}:{turn}"))
        .await?
        .context("the next job")?;
    let every = hash.contains_key("every");
    let mut all = BTreeMap::new();
    for (of, fields) in [("scheduler", hash), ("job", job)] {
        for (field, value) in fields {
            let value = match (field.as_str(), every) {
                // The time at which it was made.
                ("offset", true) | ("timestamp" | "delay", _) => json!("time"),
                ("opts", _) => {
                    let mut options: Value = serde_json::from_str(&value)?;
                    for time in ["timestamp", "delay"] {
                        options[time] = json!(options[time].is_number());
                    }
                    let job_id = options["jobId"]
                        .as_str()
                        .map(|id| id.ends_with(&turn.to_string()));
                    options["jobId"] = json!(job_id);
                    options
                }
                _ => json!(value),
            };
            all.insert(format!("{of} {field}"), value);
        }
    }
    if !every {
        all.insert("turn".to_owned(), json!(turn));
    }
    let due: Option<f64> = store
        .query(
            cmd("ZSCORE")
                .arg(format!("{}:delayed", queue.base()))
                .arg(format!("repeat:{id}:{turn}")),
        )
        .await?;
    all.insert("is delayed".to_owned(), json!(due.is_some()));
    Ok(all)
}

/// Schedulers that are made here are what Node would have written, and Node goes on with them.
async fn schedulers(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let (name, theirs) = fresh(&store)?;
        let (ours_name, ours) = fresh(&store)?;
        let code = "
            await queue.upsertJobScheduler('tick', { every: 3600000 }, { name: 't', data: { a: 1 }, opts: { attempts: 3 } });
            await queue.upsertJobScheduler('bare', { every: 3600000, limit: 7 }, { name: 'b' });
            await queue.upsertJobScheduler('night', { pattern: '30 4 * * *' }, { name: 'n', data: {} });
            await queue.upsertJobScheduler('berlin', { pattern: '0 15 9-17/2 * * 1-5', tz: 'Europe/Berlin' }, { name: 'z', data: [1] });
            await queue.upsertJobScheduler('gone', { pattern: '0 0 1 1 *' }, { name: 'g' });
            await queue.removeJobScheduler('gone');";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        let hour = || Repeat::every(Duration::from_secs(3600));
        let empty = json!({});
        let template = |name: &str, data: &Value| NewJob::new(name, data);
        let tick = template("t", &json!({"a": 1}))?.attempts(3);
        ours.upsert_scheduler("tick", &hour()?, &tick).await?;
        ours.upsert_scheduler("bare", &hour()?.limit(7), &template("b", &empty)?)
            .await?;
        ours.upsert_scheduler(
            "night",
            &Repeat::cron("30 4 * * *")?,
            &template("n", &empty)?,
        )
        .await?;
        let berlin = Repeat::cron("0 15 9-17/2 * * 1-5")?.time_zone("Europe/Berlin")?;
        ours.upsert_scheduler("berlin", &berlin, &template("z", &json!([1]))?)
            .await?;
        ours.upsert_scheduler("gone", &Repeat::cron("0 0 1 1 *")?, &template("g", &empty)?)
            .await?;
        assert!(ours.remove_scheduler("gone").await?);
        assert!(!ours.remove_scheduler("gone").await?);
        for id in ["tick", "bare", "night", "berlin"] {
            let (theirs, ours) = (
                scheduled(&store, &theirs, id).await?,
                scheduled(&store, &ours, id).await?,
            );
            assert_eq!(theirs, ours, "{module}: {id}");
        }
        for queue in [&theirs, &ours] {
            assert_eq!(count(&store, "ZCARD", queue, "repeat").await?, 4);
            assert_eq!(count(&store, "ZCARD", queue, "delayed").await?, 2);
        }
        // Another period replaces the job; the same once more changes nothing.
        let often = Repeat::every(Duration::from_millis(200))?;
        let first = ours.upsert_scheduler("tick", &often, &tick).await?;
        assert_eq!(ours.upsert_scheduler("tick", &often, &tick).await?, first);
        let (one, code) = (
            "const one = await queue.getJobScheduler('tick'); if (one.every !== 200 || one.template.data.a !== 1) throw one;",
            "await queue.removeJobScheduler('bare')",
        );
        node_to_its_end(module, &side, &ours_name, &["run", one]).await?;
        node_to_its_end(module, &side, &ours_name, &["run", code]).await?;
        let mut worker = node(module, &side, &ours_name, &["work"])?;
        assert_eq!(worker.line().await?, "ready");
        let mut ticks = 0;
        while ticks < 3 {
            ticks += usize::from(worker.line().await?.starts_with("done repeat:tick:"));
        }
        worker.wait().await?;
    }
    Ok(())
}
on!(schedulers: schedulers_made_here_are_what_node_would_write_and_node_goes_on_with_them);

#[tokio::test]
async fn a_scheduler_that_could_not_work_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let hour = Repeat::every(Duration::from_secs(3600))?;
    assert!(Repeat::every(Duration::ZERO).unwrap_err().is_invalid());
    assert!(Repeat::cron("often").unwrap_err().is_invalid());
    assert!(hour.clone().time_zone("UTC").unwrap_err().is_invalid());
    let zone = Repeat::cron("* * * * *")?.time_zone("Moon/Base");
    assert!(zone.unwrap_err().is_invalid());
    let job = || NewJob::new("t", &1);
    for template in [
        job()?.id("own")?,
        job()?.delay(Duration::from_secs(1)),
        job()?.deduplicate("d"),
    ] {
        let refused = queue.upsert_scheduler("tick", &hour, &template).await;
        assert!(refused.unwrap_err().is_invalid());
    }
    let refused = queue.upsert_scheduler("", &hour, &job()?).await;
    assert!(refused.unwrap_err().is_invalid());
    let never = Repeat::cron("0 0 30 2 *")?;
    let refused = queue.upsert_scheduler("never", &never, &job()?).await;
    assert!(refused.unwrap_err().is_invalid());
    assert_eq!(store.scan("*").await?, [""; 0]);
    Ok(())
}
