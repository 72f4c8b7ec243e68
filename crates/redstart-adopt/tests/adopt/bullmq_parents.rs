//! Parents that run before their children have ended.

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{BullQueue, Ended, Flow, ForParent, JobError, NewJob, Taken};
use redstart_testkit::{unique_namespace, wait_until};

use crate::{Side, bullmq::node_to_its_end, long, on};

/// A flow whose parent goes on when its first child fails; the second child waits for an hour and has a child of its own.
async fn released(queue: &BullQueue, parent: NewJob) -> Result<Taken> {
    let hour = std::time::Duration::from_secs(3600);
    let first = NewJob::new("fails", &0)?.if_it_fails(ForParent::Continue);
    let below =
        Flow::new(NewJob::new("waits", &0)?).child(queue, NewJob::new("below", &0)?.delay(hour));
    let flow = Flow::new(parent).child(queue, first).child(queue, below);
    let added = queue.add_flow(flow).await?;
    let worker = queue.worker().build()?;
    let child = worker.take().await?.context("the first child")?;
    assert_eq!(child.name(), "fails");
    assert_eq!(child.fail(JobError::new("no luck")).await?, Ended::Failed);
    let parent = worker.take().await?.context("the parent")?;
    assert_eq!(parent.id(), added.id());
    Ok(parent)
}

async fn reason(store: &Store, queue: &BullQueue, job: &Taken) -> Result<String> {
    let key = format!("{}:{}", queue.base(), job.id());
    let get = cmd("HGET").arg(key).arg("failedReason").take();
    Ok(store.query(&get).await?)
}

/// What Node's own worker writes as the reason of such a parent.
async fn reason_in_node(side: &Side, store: &Store, module: &str) -> Result<String> {
    let name = unique_namespace("parents");
    let code = "
        await flow.add({ name: 'parent', queueName: queue.name, data: {}, opts: { jobId: 'parent' }, children: [
          { name: 'fails', queueName: queue.name, data: {}, opts: { continueParentOnFailure: true } },
          { name: 'waits', queueName: queue.name, data: {}, opts: { delay: 3600000 } },
        ] });
        const { Worker } = process.mainModule.require(process.argv[2]);
        const worker = new Worker(queue.name, async (job) => { if (job.name === 'fails') throw new Error('no luck'); },
          { connection: queue.opts.connection });
        await new Promise((go) => worker.on('failed', (job) => { if (job.name === 'parent') go(); }));
        await worker.close();";
    node_to_its_end(module, side, &name, &["run", code]).await?;
    let get = cmd("HGET")
        .arg(format!("bull:{name}:parent"))
        .arg("failedReason")
        .take();
    wait_until("Node to fail the parent", long(), async || {
        store.query::<Option<String>>(&get).await.ok().flatten()
    })
    .await
}

async fn parents(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in ["bullmq5", "bullmq6"] {
        let queue = BullQueue::new(&store, &unique_namespace("parents"))?;
        let parent = released(&queue, NewJob::new("parent", &0)?).await?;
        assert_eq!(parent.complete(&()).await?, Ended::Failed);
        let (ours, theirs) = (
            reason(&store, &queue, &parent).await?,
            reason_in_node(&side, &store, module).await?,
        );
        let theirs = theirs.replace("Job parent ", &format!("Job {} ", parent.id()));
        ensure!(theirs.starts_with(&ours), "{ours} | {theirs}");
    }

    // With attempts left it is tried again.
    let queue = BullQueue::new(&store, &unique_namespace("parents"))?;
    let parent = released(&queue, NewJob::new("parent", &0)?.attempts(2)).await?;
    assert_eq!(parent.complete(&()).await?, Ended::Retried);

    // It is completed when the children that nobody has begun are gone, with what is below them.
    let again = queue.worker().build()?.take().await?;
    let parent = again.context("the parent again")?;
    assert_eq!(parent.remove_unprocessed_children().await?, 2);
    let left = store.scan(&format!("{}:*", queue.base())).await?;
    let mut jobs = Vec::new();
    for key in left {
        let name: Result<Option<String>, _> = store.query(cmd("HGET").arg(&key).arg("name")).await;
        jobs.extend(name.ok().flatten());
    }
    jobs.sort();
    assert_eq!(jobs, ["fails", "parent"]);
    let delayed: u64 = store
        .query(cmd("ZCARD").arg(format!("{}:delayed", queue.base())))
        .await?;
    assert_eq!(delayed, 0);
    assert_eq!(parent.complete(&()).await?, Ended::Completed);
    Ok(())
}
on!(parents: a_parent_with_unfinished_children_is_not_completed);

/// A child that is to fail its parent does so, whatever attempts the parent has left.
#[tokio::test]
async fn a_parent_of_a_failed_child_is_not_completed() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "failed-child")?;
    let _ = queue.add(NewJob::new("parent", &0)?.attempts(5)).await?;
    let parent = queue
        .worker()
        .build()?
        .take()
        .await?
        .context("the parent")?;
    let key = format!("{}:{}:unsuccessful", queue.base(), parent.id());
    let _: u64 = store
        .query(cmd("ZADD").arg(key).arg(1).arg("bull:failed-child:child"))
        .await?;
    assert_eq!(parent.complete(&()).await?, Ended::Failed);
    let why = reason(&store, &queue, &parent).await?;
    assert!(why.contains("failed child"), "{why}");
    Ok(())
}
