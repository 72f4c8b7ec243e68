//! A queue of BullMQ on a Cluster, where its prefix has a hash tag.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Result;
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, Flow, JobError, NewJob, Taken};
use redstart_testkit::{shared_cluster, unique_namespace, wait_until};

use crate::{bullmq::completed, long};

async fn open() -> Result<(Store, String)> {
    let url = shared_cluster().await?.url().to_owned();
    let store = Store::connect(&format!("{url}?timeout=10s")).await?;
    Ok((store, format!("{{{}}}", unique_namespace("bull"))))
}

/// Plain, delayed and prioritised jobs, a flow over two queues, and a pause.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_flows_on_a_cluster_are_added_and_run() -> Result<()> {
    let (store, prefix) = open().await?;
    let queue = |name: &str| BullQueue::builder(&store, name).prefix(&prefix).build();
    let (mail, parts) = (queue("mail")?, queue("parts")?);
    mail.pause().await?;
    for n in 0..30 {
        let job = NewJob::new("plain", &n)?;
        let job = match n % 3 {
            0 => job,
            1 => job.priority(5)?,
            _ => job.delay(Duration::from_millis(20)),
        };
        let _ = mail.add(job).await?;
    }
    let flow = Flow::new(NewJob::new("parent", &0)?)
        .child(&parts, NewJob::new("child", &1)?)
        .child(&mail, NewJob::new("child", &2)?);
    let parent = mail.add_flow(flow).await?;
    mail.resume().await?;

    let handler = |job: Arc<Taken>| async move {
        job.log("begun")
            .await
            .map_err(|error| JobError::new(error.to_string()))?;
        Ok::<_, JobError>(job.name().to_owned())
    };
    let (stop, _) = tokio::sync::broadcast::channel::<()>(1);
    let stopped = |mut stop: tokio::sync::broadcast::Receiver<()>| async move {
        let _ = stop.recv().await;
    };
    let (mails, part) = (
        mail.worker().concurrency(4).build()?,
        parts.worker().build()?,
    );
    let look = async {
        let done = wait_until("all jobs to be completed", long(), async || {
            let (mails, parts) = (
                completed(&store, &mail).await.ok()?,
                completed(&store, &parts).await.ok()?,
            );
            (mails.len() == 32 && parts.len() == 1).then_some(mails)
        })
        .await;
        drop(stop.send(()));
        let done: BTreeSet<String> = done?;
        assert!(done.contains(parent.id()));
        anyhow::Ok(())
    };
    let (first, second, looked) = tokio::join!(
        mails.run(handler, stopped(stop.subscribe())),
        part.run(handler, stopped(stop.subscribe())),
        look
    );
    first?;
    second?;
    looked?;
    let children = cmd("HLEN")
        .arg(format!("{}:{}:processed", mail.base(), parent.id()))
        .take();
    assert_eq!(store.query::<u64>(&children).await?, 2);
    Ok(())
}

/// Queues in different slots cannot be changed in one step.
#[tokio::test(flavor = "multi_thread")]
async fn a_flow_over_several_slots_is_refused_before_anything_is_written() -> Result<()> {
    let (store, prefix) = open().await?;
    let near = BullQueue::builder(&store, "mail").prefix(&prefix).build()?;
    let other = format!("{{{}}}", unique_namespace("other"));
    let far = BullQueue::builder(&store, "mail").prefix(&other).build()?;
    let flow = Flow::new(NewJob::new("parent", &0)?).child(&far, NewJob::new("child", &1)?);
    assert!(near.add_flow(flow).await.unwrap_err().is_invalid());
    for queue in [near, far] {
        assert_eq!(store.scan(&format!("{}:*", queue.base())).await?, [""; 0]);
    }
    Ok(())
}
