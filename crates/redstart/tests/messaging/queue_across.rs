//! Flows whose jobs are in several queues.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, ChildFailure, ChildResult, Flow, Job, JobContext, JobOutput, JobState,
        Outcome, Queue, Returned, Worker,
    },
};
use redstart_testkit::{Backend, Child, Cluster, Kind, child, eventually, key_slot, matrix, scale};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    queue::{LONG, empty},
    queue_result::Square,
};

const KEEP: Duration = Duration::from_secs(3600);

/// Adds up what its children returned; a failed child counts as 1000.
#[derive(Serialize, Deserialize)]
struct Total;

impl Job for Total {
    const NAME: &'static str = "total";
}

impl JobOutput for Total {
    type Output = u64;
}

/// Queues in different slots.
async fn queues(backend: &Backend) -> Result<(Store, [Queue; 3])> {
    let store = Store::connect(backend.url()).await?;
    let queue = |name: &str| {
        Queue::builder(&store, backend.namespace(), name)
            .keep_done(100_000, KEEP)
            .build()
    };
    let queues = [queue("pages")?, queue("images")?, queue("mails")?];
    Ok((store, queues))
}

type Seen = Arc<Mutex<Vec<Vec<ChildResult<u64>>>>>;

/// A worker of a queue. 13 fails; 7 waits for the gate.
async fn worker(queue: &Queue, seen: &Seen, gate: &Arc<Semaphore>) -> Result<Worker> {
    worker_with(2, queue, seen, gate).await
}

async fn worker_with(
    attempts: u16,
    queue: &Queue,
    seen: &Seen,
    gate: &Arc<Semaphore>,
) -> Result<Worker> {
    let (seen, gate) = (seen.clone(), gate.clone());
    Ok(queue
        .worker(move |Square(n): Square, _: JobContext| {
            let gate = gate.clone();
            async move {
                match n {
                    13 => anyhow::bail!("unlucky"),
                    7 => gate.acquire().await?.forget(),
                    _ => {}
                }
                Ok(Returned::<Square>(n * n))
            }
        })
        .handler(move |_: Total, cx: JobContext| {
            let seen = seen.clone();
            async move {
                let children = cx.children::<u64>().await?;
                seen.lock().unwrap().push(children.clone());
                let total = children.into_iter().map(|child| match child {
                    ChildResult::Failed { .. } => 1000,
                    child => child.done().unwrap_or(0),
                });
                anyhow::Ok(Returned::<Total>(total.sum()))
            }
        })
        .retry(Backoff::fixed(Duration::from_millis(1)), attempts)
        .lease(Duration::from_secs(2))
        .start()
        .await?)
}

/// A parent in one queue, its children in others, one of which is a parent too.
fn tree([pages, images, mails]: &[Queue; 3], from: u64) -> redstart::Result<Flow> {
    let leaf = |n: u64| Flow::new(&Square(n));
    let inner = Flow::new(&Total)?
        .queue(mails)
        .child(leaf(from)?)
        .child(leaf(from + 1)?.queue(images))
        .child(leaf(from + 2)?.queue(pages));
    Ok(Flow::new(&Total)?
        .child(leaf(from + 3)?.queue(images))
        .child(inner)
        .child(leaf(from + 4)?)
        .child(leaf(from + 5)?.queue(images)))
}

fn total(from: u64) -> u64 {
    (from..from + 6).map(|n| n * n).sum()
}

matrix! {
    async fn a_parent_runs_once_after_its_children_in_other_queues_with_their_results(backend: &Backend) -> Result<()> {
        let (_store, queues) = queues(backend).await?;
        let [pages, images, mails] = &queues;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let root = pages.add_flow(tree(&queues, 20)?).await?.root().context("added")?;
        assert_eq!(pages.inspect().counts().await?.waiting, 1);
        assert_eq!(images.inspect().counts().await?.ready, 3);
        assert_eq!(mails.inspect().counts().await?.waiting, 1);
        let mut workers = Vec::new();
        for queue in &queues {
            workers.push(worker(queue, &seen, &gate).await?);
        }
        assert_eq!(pages.handle::<Total>(root).result_within(LONG).await?, Outcome::Done(total(20)));
        // Whoever was told forgets it.
        for queue in &queues {
            empty(queue).await?;
        }
        let seen = seen.lock().unwrap().clone();
        let squares = |ns: &[u64]| ns.iter().map(|n| ChildResult::Done(Some(n * n))).collect::<Vec<_>>();
        assert_eq!(seen[0], squares(&[20, 21, 22]), "in the order of the children");
        assert_eq!(seen.len(), 2, "each parent ran once");
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn a_failed_child_in_another_queue_fails_its_parent_or_is_seen_or_ignored(backend: &Backend) -> Result<()> {
        let (_store, queues) = queues(backend).await?;
        let [pages, images, _] = &queues;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let workers = [worker(pages, &seen, &gate).await?, worker(images, &seen, &gate).await?];
        let flow = |failure| -> redstart::Result<Flow> {
            Ok(Flow::new(&Total)?
                .child(Flow::new(&Square(13))?.on_failure(failure).queue(images))
                .child(Flow::new(&Square(2))?))
        };
        let add = async |flow: Flow| anyhow::Ok(pages.handle::<Total>(pages.add_flow(flow).await?.root().context("added")?));
        let failed = add(flow(ChildFailure::FailParent)?).await?;
        let Outcome::Dead { reason } = failed.result_within(LONG).await? else { panic!("not dead") };
        assert!(reason.contains("a child failed") && reason.contains("unlucky"), "{reason}");
        assert_eq!(add(flow(ChildFailure::Continue)?).await?.result_within(LONG).await?, Outcome::Done(1004));
        assert_eq!(add(flow(ChildFailure::Ignore)?).await?.result_within(LONG).await?, Outcome::Done(4));
        // One that waits is cancelled.
        images.pause().await?;
        let waiting = Flow::new(&Square(3))?.on_failure(ChildFailure::Continue).queue(images);
        let id = waiting.id();
        let handle = add(Flow::new(&Total)?.child(waiting)).await?;
        assert_eq!(images.cancel(id).await?, Cancelled::Ended);
        assert_eq!(handle.result_within(LONG).await?, Outcome::Done(1000));
        // A parent that failed is replayed with its child: it waits for it, and has its result.
        images.resume().await?;
        let flow = Flow::new(&Total)?.child(Flow::new(&Square(13))?.queue(images)).child(Flow::new(&Square(7))?.queue(images));
        let handle = add(flow).await?;
        assert!(matches!(handle.result_within(LONG).await?, Outcome::Dead { .. }));
        let root = handle.id().context("an id")?;
        let is_root = |letter: &redstart::messaging::DeadLetter| letter.job.as_ref().is_some_and(|job| job.id == root);
        assert_eq!(pages.inspect().dead_letters().replay(is_root).await?, 1);
        gate.add_permits(1);
        ensure!(eventually(LONG, async || images.inspect().counts().await.is_ok_and(|c| c.unfinished() == 0)).await);
        assert_eq!(pages.job(root).await?.context("it is there")?.job.state, JobState::Waiting, "one child is dead");
        // Deleted, the child is gone: the parent fails for good, as it asked for.
        let deleted = images.inspect().dead_letters().purge(|_| true).await?;
        assert!(deleted >= 1);
        ensure!(eventually(LONG, async || pages.job(root).await.is_ok_and(|found| found.is_some_and(|found| found.job.state == JobState::Dead))).await);
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    /// A worker died after it told the parent and before it could forget that: the parent hears of the child again.
    async fn a_child_that_is_heard_of_again_counts_once(backend: &Backend) -> Result<()> {
        let (store, queues) = queues(backend).await?;
        let [pages, images, _] = &queues;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let (first, second) = (Flow::new(&Square(5))?.queue(images), Flow::new(&Square(7))?.queue(images));
        let (first_id, second_id) = (first.id(), second.id());
        let root = pages.add_flow(Flow::new(&Total)?.child(first).child(second)).await?.root().context("added")?;
        let workers = [worker(pages, &seen, &gate).await?, worker(images, &seen, &gate).await?];
        ensure!(eventually(LONG, async || images.job(first_id).await.is_ok_and(|f| f.is_some_and(|f| f.job.state == JobState::Done))).await);
        let key = |queue: &str, part: &str| format!("{}:queue:{{{queue}}}:{part}", backend.namespace());
        let marks = async || {
            let fields: Vec<(Vec<u8>, Vec<u8>)> = store.query(redis::cmd("HGETALL").arg(key("pages", "details"))).await?;
            anyhow::Ok(fields.into_iter().filter(|(_, value)| value == b"counted").count())
        };
        ensure!(eventually(LONG, async || marks().await.is_ok_and(|n| n == 1)).await, "the first child is counted");
        // As `place.lua` writes it.
        let raw = |id: redstart::messaging::JobId| -> Result<Vec<u8>> {
            let text = id.to_string();
            (0..16).map(|at| Ok(u8::from_str_radix(&text[2 * at..2 * at + 2], 16)?)).collect()
        };
        let mut link = raw(root)?;
        link.extend_from_slice(b"f0\0");
        link.extend_from_slice(backend.namespace().as_bytes());
        link.extend_from_slice(b"\0pages");
        for (stamp, letter, text) in [("1763193600000000", "d", "25"), ("1763193600000001", "z", "unlucky")] {
            let mut message = [stamp.as_bytes(), letter.as_bytes()].concat();
            message.extend_from_slice(&(link.len() as u16).to_be_bytes());
            message.extend_from_slice(&link);
            message.extend_from_slice(text.as_bytes());
            let field = [&raw(first_id)?[..], b"q"].concat();
            store.query::<()>(redis::cmd("HSET").arg(key("images", "details")).arg(&field).arg(message)).await?;
            let member = [b">", &raw(first_id)?[..]].concat();
            store.query::<()>(redis::cmd("ZADD").arg(key("images", "parents")).arg(1).arg(member)).await?;
            let told = async || store.query::<u64>(redis::cmd("ZCARD").arg(key("images", "parents"))).await.is_ok_and(|n| n == 0);
            ensure!(eventually(LONG, told).await, "the message was not told");
            assert_eq!(pages.job(root).await?.context("it waits")?.job.state, JobState::Waiting);
        }
        gate.add_permits(1);
        assert_eq!(pages.handle::<Total>(root).result_within(LONG).await?, Outcome::Done(25 + 49));
        assert_eq!(images.job(second_id).await?.context("kept")?.job.state, JobState::Done);
        assert_eq!(seen.lock().unwrap().len(), 1, "the parent ran once");
        assert_eq!(marks().await?, 0, "nothing is left of it");
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn a_queue_whose_settings_cannot_be_read_keeps_no_other_parent_waiting(backend: &Backend) -> Result<()> {
        let (store, queues) = queues(backend).await?;
        let [pages, images, mails] = &queues;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let add = async |queue: &Queue, n: u64| {
            let flow = Flow::new(&Total)?.child(Flow::new(&Square(n))?.queue(images));
            queue.add_flow(flow).await?.root().context("added")
        };
        let (unreadable, healthy) = (add(pages, 2).await?, add(mails, 3).await?);
        let meta = format!("{}:queue:{{pages}}:meta", backend.namespace());
        store.query::<()>(redis::cmd("SET").arg(&meta).arg("not a hash")).await?;
        let mut workers = vec![worker(images, &seen, &gate).await?, worker(mails, &seen, &gate).await?];
        assert_eq!(mails.handle::<Total>(healthy).result_within(LONG).await?, Outcome::Done(9));
        store.query::<()>(redis::cmd("DEL").arg(&meta)).await?;
        workers.push(worker(pages, &seen, &gate).await?);
        assert_eq!(pages.handle::<Total>(unreadable).result_within(LONG).await?, Outcome::Done(4));
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }

    async fn what_a_parent_is_to_be_told_is_no_job_that_waits(backend: &Backend) -> Result<()> {
        let (store, queues) = queues(backend).await?;
        let [pages, images, _] = &queues;
        let child = Flow::new(&Square(2))?.queue(images);
        let id = child.id();
        assert!(pages.add_flow(Flow::new(&Total)?.child(child)).await?.root().is_some());
        // No worker runs that would tell the parent.
        assert_eq!(images.cancel(id).await?, Cancelled::Ended);
        let counts = images.inspect().counts().await?;
        assert_eq!((counts.waiting, counts.unfinished()), (0, 0), "{counts:?}");
        let (waiting, _) = images.inspect().list(JobState::Waiting, None).await?;
        assert!(waiting.is_empty());
        assert_eq!(pages.inspect().counts().await?.waiting, 1);
        // Nor does it take up room.
        let small = Queue::builder(&store, backend.namespace(), "images").capacity(1).build()?;
        assert!(small.add_flow(Flow::new(&Square(3))?).await?.root().is_some());
        Ok(())
    }

    /// A worker of a version without flows across queues looks after the child's queue too.
    async fn a_scheduler_that_knows_no_messages_removes_none(backend: &Backend) -> Result<()> {
        let (store, queues) = queues(backend).await?;
        let [pages, images, _] = &queues;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let child = Flow::new(&Square(2))?.on_failure(ChildFailure::Continue).queue(images);
        let id = child.id();
        let root = pages.add_flow(Flow::new(&Total)?.child(child)).await?.root().context("added")?;
        assert_eq!(images.cancel(id).await?, Cancelled::Ended);
        // It takes whatever is due there for a flow that was not added completely.
        let schedule = "local time = redis.call('TIME') \
            local now = time[1] .. string.format('%06d', time[2]) \
            local due = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, 20) \
            for _, id in ipairs(due) do redis.call('ZREM', KEYS[1], id) end \
            return #due";
        let parents = format!("{}:queue:{{images}}:parents", backend.namespace());
        let taken: u64 = store.query(redis::cmd("EVAL").arg(schedule).arg(1).arg(parents)).await?;
        assert_eq!(taken, 0);
        let workers = [worker(pages, &seen, &gate).await?, worker(images, &seen, &gate).await?];
        assert_eq!(pages.handle::<Total>(root).result_within(LONG).await?, Outcome::Done(1000));
        empty(images).await?;
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn what_cannot_be_told_is_refused_before_anything_is_sent() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let (pages, images) = (
        Queue::new(&store, "a", "pages")?,
        Queue::new(&store, "a", "images")?,
    );
    let child = |failure| anyhow::Ok(Flow::new(&Square(1))?.on_failure(failure).queue(&images));
    let flow = Flow::new(&Total)?.child(child(ChildFailure::Count)?);
    assert!(pages.add_flow(flow).await.unwrap_err().is_config());
    let full = Queue::builder(&store, "a", "full").capacity(10).build()?;
    let flow = Flow::new(&Total)?.child(child(ChildFailure::Ignore)?);
    assert!(full.add_flow(flow).await.unwrap_err().is_config());
    // A queue of another store, be its name another or the same.
    let elsewhere = Store::connect("memory://").await?;
    for name in ["images", "pages"] {
        let child = Flow::new(&Square(1))?.queue(&Queue::new(&elsewhere, "a", name)?);
        let flow = Flow::new(&Total)?.child(child);
        assert!(pages.add_flow(flow).await.unwrap_err().is_config());
    }
    assert_eq!(pages.inspect().counts().await?.unfinished(), 0);
    assert_eq!(images.inspect().counts().await?.unfinished(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_parent_hears_of_its_child_while_the_node_of_other_parents_does_not_answer()
-> Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .masters(2)
        .node_timeout(Duration::from_secs(3600))
        .start()
        .await?;
    let store = Store::connect(&cluster.url()).await?;
    let mut names = [Vec::new(), Vec::new()];
    for name in (0..100).map(|n| format!("q{n}")) {
        names[cluster.owner(key_slot(name.as_bytes())).await?].push(name);
    }
    let queue = |name: &str| {
        let builder = Queue::builder(&store, "nodes", name);
        builder.keep_done(1000, KEEP).build()
    };
    let (images, pages) = (queue(&names[0][0])?, queue(&names[0][1])?);
    let silent = queue(&names[1][0])?;
    let add = async |queue: &Queue| {
        let flow = Flow::new(&Total)?.child(Flow::new(&Square(2))?.queue(&images));
        queue.add_flow(flow).await?.root().context("added")
    };
    // More than are told at a time, and before the others.
    let mut waiting = Vec::new();
    for _ in 0..60 {
        waiting.push(add(&silent).await?);
    }
    let root = add(&pages).await?;
    cluster.node(1).pause()?;
    let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
    let mut workers = vec![
        worker(&images, &seen, &gate).await?,
        worker(&pages, &seen, &gate).await?,
    ];
    let outcome = pages.handle::<Total>(root).result_within(LONG).await;
    cluster.node(1).resume()?;
    assert_eq!(outcome?, Outcome::Done(4));
    workers.push(worker(&silent, &seen, &gate).await?);
    for root in waiting {
        let outcome = silent.handle::<Total>(root).result_within(LONG * 2).await?;
        assert_eq!(outcome, Outcome::Done(4));
    }
    for worker in workers {
        worker.shutdown(LONG).await?;
    }
    Ok(())
}

matrix! {
    processes:
    async fn processes_killed_between_any_two_steps_lose_no_flow_across_queues(backend: &Backend) -> Result<()> {
        // A job may die with its worker many times.
        const ATTEMPTS: u16 = 1000;
        let (_store, queues) = queues(backend).await?;
        let (seen, gate) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let mut workers = Vec::new();
        if child::role().is_some() {
            for queue in &queues {
                workers.push(worker_with(ATTEMPTS, queue, &seen, &gate).await?);
            }
            child::say("ready");
            std::future::pending::<()>().await;
        }
        let mut roots = Vec::new();
        for round in 0..scale(2, "worker kills with flows across queues") {
            let mut child = Child::of(backend.test()).role("worker").namespace(backend.namespace()).spawn()?;
            assert_eq!(child.line().await?, "ready");
            for n in 0..10 {
                let from = 20 + 100 * round + n;
                let root = queues[0].add_flow(tree(&queues, from)?).await?.root().context("added")?;
                roots.push((root, total(from)));
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..60))).await;
            child.kill9();
        }
        for queue in &queues {
            workers.push(worker_with(ATTEMPTS, queue, &seen, &gate).await?);
        }
        for (root, expected) in roots {
            let outcome = queues[0].handle::<Total>(root).result_within(LONG).await?;
            assert_eq!(outcome, Outcome::Done(expected));
        }
        for queue in &queues {
            empty(queue).await?;
        }
        for worker in workers {
            worker.shutdown(LONG).await?;
        }
        Ok(())
    }
}
