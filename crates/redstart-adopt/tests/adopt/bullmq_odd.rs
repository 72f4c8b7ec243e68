//! Queues of BullMQ with more, or with other things, than one expects.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, Ended, JobError, NewJob};

use crate::bullmq::completed;

/// The jobs of dead workers are given back, however many run.
#[tokio::test]
async fn the_oldest_of_many_active_jobs_are_given_back() -> Result<()> {
    const JOBS: usize = 12_000;
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "many")?;
    for first in (0..JOBS).step_by(1000) {
        let mut fill = redis::pipe();
        for id in first..first + 1000 {
            let fields = ["name", "plain", "data", "0", "opts", "{}"];
            fill.cmd("HSET").arg(format!("bull:many:{id}")).arg(&fields);
            fill.cmd("LPUSH").arg("bull:many:active").arg(id);
        }
        let _: Vec<u64> = store.pipeline(&fill).await?;
    }
    let every = Duration::from_secs(30);
    let worker = queue.worker().stalled_every(every).build()?;
    assert_eq!(worker.check_stalled().await?.len(), 0);
    store.advance(every * 2)?;
    let back = worker.check_stalled().await?;
    assert!(back.iter().any(|id| id == "0"), "the oldest is forgotten");
    assert_eq!(back.len(), JOBS);
    Ok(())
}

/// What others wrote into a job cannot make its end fail half-way: it would be in no list any more.
#[tokio::test]
async fn a_job_with_odd_fields_ends_all_the_same() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "odd")?;
    let worker = queue.worker().build()?;
    let odd = [
        ["parent", "{broken"],
        ["parent", "17"],
        ["parent", r#"{"queueKey":7,"id":null}"#],
        ["atm", "many"],
        ["ats", "many"],
        ["priority", "high"],
        ["delay", "soon"],
    ];
    for ends in ["completed", "failed", "retried"] {
        for [field, value] in odd {
            let added = queue.add(NewJob::new("plain", &0)?.attempts(2)).await?;
            let key = format!("bull:odd:{}", added.id());
            let set = cmd("HSET")
                .arg(&key)
                .arg(&["parentKey", "bull:odd:none", field, value])
                .take();
            let _: u64 = store.query(&set).await?;
            let job = worker.take().await?.context(format!("{field} {value}"))?;
            assert_eq!(job.id(), added.id());
            let ended = match ends {
                "completed" => job.complete(&()).await,
                "failed" => job.fail(JobError::unrecoverable("no")).await,
                _ => job.fail(JobError::new("not yet")).await,
            };
            let ended = ended.with_context(|| format!("{ends}: {field} {value}"))?;
            if ends == "retried" {
                assert_eq!(ended, Ended::Retried, "{field} {value}");
                let job = worker.take().await?.context("the same job")?;
                assert_eq!(job.complete(&()).await?, Ended::Completed);
                continue;
            }
            let set = format!("bull:odd:{ends}");
            let at: Option<f64> = store.query(cmd("ZSCORE").arg(set).arg(added.id())).await?;
            assert!(at.is_some(), "{ends}: {field} {value}");
        }
    }
    Ok(())
}

/// The same for a job that stalls.
#[tokio::test]
async fn a_job_with_odd_fields_is_given_back() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "odd")?;
    let every = Duration::from_secs(30);
    let worker = queue.worker().stalled_every(every).build()?;
    let added = queue.add(NewJob::new("plain", &0)?).await?;
    let key = format!("bull:odd:{}", added.id());
    let _: u64 = store
        .query(cmd("HSET").arg(&key).arg("stc").arg("often"))
        .await?;
    drop(worker.take().await?.context("the job")?);
    let mut back = Vec::new();
    for _ in 0..3 {
        store.advance(every * 2)?;
        back.extend(worker.check_stalled().await?);
    }
    assert_eq!(back, [added.id()]);
    assert!(worker.take().await?.is_some());
    Ok(())
}

/// An id need not be text.
#[tokio::test]
async fn a_job_whose_id_is_not_utf_8_is_run() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "bytes")?;
    let every = Duration::from_secs(30);
    let worker = queue.worker().stalled_every(every).build()?;
    let (id, key) = (b"\xff\xfe".as_slice(), b"bull:bytes:\xff\xfe".as_slice());
    let fields = [
        &b"name"[..],
        b"plain",
        b"data",
        b"0",
        b"opts",
        b"{}",
        b"\xff",
        b"\xff",
    ];
    let _: u64 = store.query(cmd("HSET").arg(key).arg(&fields)).await?;
    let _: u64 = store
        .query(cmd("LPUSH").arg("bull:bytes:wait").arg(id))
        .await?;
    drop(worker.take().await?.context("the job")?);
    let mut back = Vec::new();
    for _ in 0..3 {
        store.advance(every * 2)?;
        back.extend(worker.check_stalled().await?);
    }
    assert_eq!(back.len(), 1);
    let job = worker.take().await?.context("the job again")?;
    assert_eq!(job.name(), "plain");
    job.progress(&1).await?;
    assert_eq!(job.complete(&()).await?, Ended::Completed);
    let done: Vec<Vec<u8>> = store
        .query(cmd("ZRANGE").arg("bull:bytes:completed").arg(0).arg(-1))
        .await?;
    assert_eq!(done, [id]);
    let _ = queue.add(NewJob::new("next", &0)?).await?;
    let next = worker.take().await?.context("the next job")?;
    assert_eq!(next.complete(&()).await?, Ended::Completed);
    assert!(completed(&store, &queue).await.is_err(), "ids are bytes");
    Ok(())
}
