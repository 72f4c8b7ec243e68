//! Our worker beside Node's on one queue: limits that both share, leases, and what Node reads of jobs that ended here.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, Ended, JobError, Taken};
use redstart_testkit::{unique_namespace, wait_until};
use serde_json::{Value, json};

use crate::{
    Side,
    bullmq::{completed, node, node_to_its_end},
    long, on,
};

const MODULES: [&str; 2] = ["bullmq5", "bullmq6"];

/// A lease that a busy machine does not exceed.
const PATIENT: Duration = Duration::from_secs(60);

/// The same in Node.
const UNHURRIED: &str = r#"{"lockDuration":60000,"stalledInterval":60000}"#;

async fn length(store: &Store, command: &str, queue: &BullQueue, part: &str) -> Result<u64> {
    let key = format!("{}:{part}", queue.base());
    Ok(store.query(cmd(command).arg(key)).await?)
}

/// A worker of ours and one of Node share a limit of jobs per window: together they take that many, and not one more.
async fn a_common_limit(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let name = unique_namespace("limit");
        let queue = BullQueue::new(&store, &name)?;
        node_to_its_end(module, &side, &name, &["add", "40"]).await?;
        let options = r#"{"concurrency":1,"limiter":{"max":10,"duration":600000},"lockDuration":60000,"stalledInterval":60000}"#;
        let mut worker = node(module, &side, &name, &["work", "20", options])?;
        assert_eq!(worker.line().await?, "ready");
        let count = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let ours = queue.worker().limit(10, Duration::from_secs(600)).build()?;
        let ran = count.clone();
        let running = tokio::spawn(async move {
            let handler = |_: Arc<Taken>| {
                ran.fetch_add(1, Ordering::Relaxed);
                // Both sides are to get jobs.
                async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Ok::<_, JobError>("rust")
                }
            };
            ours.run(handler, async { drop(stopped.await) }).await
        });
        for window in 1..=3_u64 {
            wait_until("the window to be used up", long(), async || {
                (completed(&store, &queue).await.ok()?.len() as u64 >= 10 * window).then_some(())
            })
            .await?;
            // Whoever asks now is refused.
            assert!(
                queue
                    .worker()
                    .limit(10, Duration::from_secs(600))
                    .build()?
                    .take()
                    .await?
                    .is_none()
            );
            let taken = completed(&store, &queue).await?.len() as u64
                + length(&store, "LLEN", &queue, "active").await?;
            assert_eq!(taken, 10 * window, "{module}");
            // The window ends.
            let _: u64 = length(&store, "DEL", &queue, "limiter").await?;
            let marker = format!("{}:marker", queue.base());
            let _: u64 = store.query(cmd("ZADD").arg(marker).arg(0).arg("0")).await?;
        }
        let ours = count.load(Ordering::Relaxed);
        ensure!((1..30).contains(&ours), "{ours} of 30 jobs ran here");
        drop(stop);
        running.await??;
        worker.wait().await?;
    }
    Ok(())
}
on!(a_common_limit: a_limit_of_jobs_per_window_is_shared_with_node);

/// The queue's own limit of jobs at a time holds for both sides together: what one side runs, the other may not.
async fn a_common_concurrency(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let name = unique_namespace("concurrency");
        let queue = BullQueue::new(&store, &name)?;
        let code = "await queue.setGlobalConcurrency(3)";
        node_to_its_end(module, &side, &name, &["run", code]).await?;
        node_to_its_end(module, &side, &name, &["add", "12"]).await?;
        let ours = queue.worker().lease(PATIENT).build()?;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(ours.take().await?.context("a job")?);
        }
        assert!(ours.take().await?.is_none(), "{module}: a fourth job");
        let active = async || length(&store, "LLEN", &queue, "active").await;
        let mut worker = node(module, &side, &name, &["work", "200", UNHURRIED])?;
        assert_eq!(worker.line().await?, "ready");
        assert_eq!(active().await?, 3, "{module}");
        assert_eq!(completed(&store, &queue).await?.len(), 0, "{module}");
        // A job that ends here makes room for one there; two of the three places are still ours.
        let job = held.pop().context("a job")?;
        assert_eq!(job.complete(&"rust").await?, Ended::Completed);
        wait_until("all that Node can run", long(), async || {
            let active = active().await.ok()?;
            assert!(active <= 3, "{module}: {active} jobs at a time");
            (length(&store, "LLEN", &queue, "wait").await.ok()? == 0).then_some(())
        })
        .await?;
        worker.wait().await?;
    }
    Ok(())
}
on!(a_common_concurrency: a_limit_of_jobs_at_a_time_is_shared_with_node);

/// The fields of a finished job, without times.
async fn finished(queue: &BullQueue, id: &str) -> Result<BTreeMap<String, Value>> {
    let mut job = BTreeMap::new();
    for (field, value) in queue.job(id).await?.context("the job")? {
        let value = match field.as_str() {
            "timestamp" | "processedOn" | "finishedOn" => json!(value.len()),
            // Node keeps stacks of JavaScript, of which ours has the first lines.
            "stacktrace" => json!(serde_json::from_str::<Vec<String>>(&value)?.len()),
            "opts" | "data" | "returnvalue" => serde_json::from_str(&value)?,
            _ => json!(value),
        };
        job.insert(field, value);
    }
    Ok(job)
}

/// Jobs that were completed, retried with a backoff and failed here are what Node would have left, and Node reads them.
async fn endings(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let code = "
            await queue.add('plain', { n: 7 }, { jobId: 'good' });
            await queue.add('fails', {}, { jobId: 'bad', attempts: 3, backoff: { type: 'exponential', delay: 100 } });
            await queue.add('fails', {}, { jobId: 'once' });";
        let (theirs, ours) = (unique_namespace("theirs"), unique_namespace("ours"));
        for name in [&theirs, &ours] {
            node_to_its_end(module, &side, name, &["run", code]).await?;
        }
        let ended = async |queue: &BullQueue| -> Result<()> {
            wait_until("all jobs to end", long(), async || {
                let failed = length(&store, "ZCARD", queue, "failed").await.ok()?;
                (failed == 2 && completed(&store, queue).await.ok()?.len() == 1).then_some(())
            })
            .await
        };
        let mut worker = node(module, &side, &theirs, &["work", "0", UNHURRIED])?;
        assert_eq!(worker.line().await?, "ready");
        let theirs = BullQueue::new(&store, &theirs)?;
        ended(&theirs).await?;
        worker.wait().await?;

        let queue = BullQueue::new(&store, &ours)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let worker = queue.worker().build()?;
        let running = tokio::spawn(async move {
            let handler = |job: Arc<Taken>| async move {
                let told = |error: redstart_adopt::Error| JobError::new(error.to_string());
                if job.name() == "fails" {
                    return Err(JobError::new("no luck"));
                }
                job.log("one").await.map_err(told)?;
                job.log("two").await.map_err(told)?;
                Ok(json!({"by": "node", "n": 7}))
            };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        ended(&queue).await?;
        drop(stop);
        running.await??;
        for id in ["good", "bad", "once"] {
            assert_eq!(
                finished(&theirs, id).await?,
                finished(&queue, id).await?,
                "{module}: {id}"
            );
        }
        // Waits of 100 ms and of 200 ms.
        let bad = queue.job("bad").await?.context("the job")?;
        let time = |field: &str| bad[field].parse::<u64>();
        ensure!(time("finishedOn")? - time("timestamp")? >= 300, "{bad:?}");
        let code = "
            const good = await queue.getJob('good'), bad = await queue.getJob('bad');
            const { logs } = await queue.getJobLogs('good');
            console.log(JSON.stringify([good.returnvalue, await good.getState(), logs, bad.failedReason, bad.attemptsMade, await bad.getState()]));";
        let lines = node_to_its_end(module, &side, &ours, &["run", code]).await?;
        let read: Value = serde_json::from_str(lines.last().context("a line")?)?;
        let expected =
            json!([{"by": "node", "n": 7}, "completed", ["one", "two"], "no luck", 3, "failed"]);
        assert_eq!(read, expected, "{module}");
    }
    Ok(())
}
on!(endings: finished_jobs_are_as_node_leaves_them_and_node_reads_them);

/// A job that runs three times as long as its lease is renewed: Node's stalled checks leave it alone.
async fn a_long_job(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in MODULES {
        let name = unique_namespace("long");
        let queue = BullQueue::new(&store, &name)?;
        node_to_its_end(module, &side, &name, &["add", "1"]).await?;
        let lease = Duration::from_secs(4);
        let worker = queue.worker().lease(lease).build()?;
        let job = worker.take().await?.context("the job")?;
        let began = tokio::time::Instant::now();
        let options = r#"{"stalledInterval":200}"#;
        let mut javascript = node(module, &side, &name, &["work", "0", options])?;
        assert_eq!(javascript.line().await?, "ready");
        // Checks of Node go on meanwhile: it has marked the job, and a renewal has taken the mark away.
        wait_until("three leases", long(), async || {
            (began.elapsed() >= 3 * lease).then_some(())
        })
        .await?;
        assert!(!job.is_lost());
        assert_eq!(job.complete(&"late").await?, Ended::Completed);
        let events: Vec<(String, Vec<String>)> = store
            .query(
                cmd("XRANGE")
                    .arg(format!("{}:events", queue.base()))
                    .arg("-")
                    .arg("+"),
            )
            .await?;
        let stalled = events
            .iter()
            .filter(|(_, fields)| fields.contains(&"stalled".to_owned()));
        assert_eq!(stalled.count(), 0, "{module}: {events:?}");
        let job = queue.job("1").await?.context("the job")?;
        assert_eq!(
            (job["ats"].as_str(), job["returnvalue"].as_str()),
            ("1", "\"late\"")
        );
        javascript.wait().await?;
    }
    Ok(())
}
on!(a_long_job: a_job_longer_than_its_lease_is_not_taken_for_stalled_by_node);
