//! Flows: parents run after their children, with their results.

use std::{
    future::Future as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, Cancelled, ChildFailure, ChildResult, DeadLetter, Flow, Job, JobContext, JobId,
        JobOutput, JobPolicy, JobState, Outcome, Queue, Returned, Worker,
    },
};
use redstart_testkit::{Backend, eventually, matrix, scale};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    queue::{LONG, empty},
    queue_result::Square,
};

const KEEP: Duration = Duration::from_secs(3600);

/// Adds up what its children returned; a failed child counts as 1000.
#[derive(Serialize, Deserialize)]
struct Sum;

impl Job for Sum {
    const NAME: &'static str = "sum";
}

impl JobOutput for Sum {
    type Output = u64;
}

async fn keeping(backend: &Backend) -> Result<Queue> {
    let store = Store::connect(backend.url()).await?;
    Ok(Queue::builder(&store, backend.namespace(), "q")
        .keep_done(100_000, KEEP)
        .build()?)
}

/// Whether the queue keeps nothing of any job, now or soon: workers remove what is left some at a time.
async fn nothing_left(store: &Store, backend: &Backend) -> bool {
    let mut left = redis::cmd("EXISTS");
    for part in ["details", "jobs", "parents"] {
        left.arg(format!("{}:queue:{{q}}:{part}", backend.namespace()));
    }
    eventually(LONG, async || {
        store.query::<u64>(&left).await.is_ok_and(|left| left == 0)
    })
    .await
}

type Seen = Arc<Mutex<Vec<Vec<ChildResult<u64>>>>>;

async fn adding(queue: &Queue, seen: &Seen) -> Result<Worker> {
    let seen = seen.clone();
    Ok(queue
        .worker(|Square(n): Square, _: JobContext| async move {
            match n {
                13 => anyhow::bail!("unlucky"),
                _ => Ok(Returned::<Square>(n * n)),
            }
        })
        .handler(move |_: Sum, cx: JobContext| {
            let seen = seen.clone();
            async move {
                let children = cx.children::<u64>().await?;
                seen.lock().unwrap().push(children.clone());
                let sum = children.into_iter().map(|child| match child {
                    ChildResult::Failed { .. } => 1000,
                    child => child.done().unwrap_or(0),
                });
                anyhow::Ok(Returned::<Sum>(sum.sum()))
            }
        })
        .retry(Backoff::fixed(Duration::from_millis(1)), 2)
        .concurrency(50)
        .start()
        .await?)
}

/// Of a batch: how many of its jobs failed.
#[derive(Serialize, Deserialize)]
struct Report;

impl Job for Report {
    const NAME: &'static str = "report";
}

impl JobOutput for Report {
    type Output = u64;
}

matrix! {
    async fn the_callback_of_a_batch_runs_after_all_of_it_and_reads_how_many_failed(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let ran = Arc::new(Mutex::new(Vec::new()));
        let (squares, reports) = (ran.clone(), ran.clone());
        let worker = queue
            .worker(move |Square(n): Square, _: JobContext| {
                squares.lock().unwrap().push(n);
                async move {
                    anyhow::ensure!(n % 3 != 0, "a third of them fails");
                    Ok(Returned::<Square>(n * n))
                }
            })
            .handler(move |_: Report, cx: JobContext| {
                reports.lock().unwrap().push(u64::MAX);
                async move {
                    assert_eq!(cx.children::<u64>().await?, [], "what each returned is not kept");
                    Ok::<_, redstart::Error>(Returned::<Report>(cx.failed_children().await?))
                }
            })
            .retry(Backoff::fixed(Duration::from_millis(1)), 1)
            .start()
            .await?;
        let jobs: Vec<Square> = (1..=30).map(Square).collect();
        let batch = Flow::new(&Report)?.batch(&jobs)?;
        let report = queue.handle::<Report>(queue.add_flow(batch).await?.root().context("it is added")?);
        assert_eq!(report.result_within(LONG).await?, Outcome::Done(10));
        let ran = ran.lock().unwrap().clone();
        assert_eq!((ran.len(), ran.last()), (31, Some(&u64::MAX)), "it runs once, after the last");
        // Of an empty one, at once.
        let none = queue.add_flow(Flow::new(&Report)?.batch::<Square>(&[])?).await?.root().context("it is added")?;
        assert_eq!(queue.handle::<Report>(none).result_within(LONG).await?, Outcome::Done(0));
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_clone_of_a_flow_is_a_flow_of_its_own(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let flow = Flow::new(&Sum)?.child(Flow::new(&Square(2))?).child(Flow::new(&Square(3))?);
        let roots = [flow.clone(), flow];
        let ids: Vec<JobId> = roots.iter().map(Flow::id).collect();
        let mut added = Vec::new();
        for root in roots {
            added.push(queue.add_flow(root).await?.root().context("it is added")?);
        }
        assert_eq!(added, ids);
        let counts = queue.inspect().counts().await?;
        assert_eq!((counts.ready, counts.waiting), (4, 2));
        let worker = adding(&queue, &Seen::default()).await?;
        for id in added {
            assert_eq!(queue.handle::<Sum>(id).result_within(LONG).await?, Outcome::Done(13));
        }
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_parent_runs_once_after_all_children_with_their_results(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let seen = Seen::default();
        // A tree: each inner job adds up its children.
        let leaf = |n: u64| Flow::new(&Square(n));
        let inner = |from: u64| -> redstart::Result<Flow> {
            Ok(Flow::new(&Sum)?.children((from..from + 10).map(leaf).collect::<redstart::Result<Vec<_>>>()?))
        };
        let flow = Flow::new(&Sum)?.child(inner(20)?).child(inner(40)?).child(leaf(3)?);
        let root = queue.add_flow(flow).await?.root().context("added")?;
        let counts = queue.inspect().counts().await?;
        assert_eq!((counts.ready, counts.waiting), (21, 3));
        assert_eq!(queue.job(root).await?.unwrap().job.state, JobState::Waiting);
        let worker = adding(&queue, &seen).await?;
        let expected: u64 = (20..30).chain(40..50).map(|n: u64| n * n).sum::<u64>() + 9;
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(expected));
        empty(&queue).await?;
        assert_eq!(seen.lock().unwrap().len(), 3, "each parent ran once");
        // In the order in which the children were added.
        let first: Vec<_> = (20..30).map(|n| ChildResult::Done(Some(n * n))).collect();
        assert!(seen.lock().unwrap().contains(&first));
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_chain_runs_step_by_step(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let seen = Seen::default();
        let mut chain = Flow::new(&Square(7))?;
        for _ in 0..20 {
            chain = chain.then(&Sum)?;
        }
        let root = queue.add_flow(chain).await?.root().context("added")?;
        let worker = adding(&queue, &seen).await?;
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(49));
        let steps = seen.lock().unwrap().clone();
        assert_eq!(steps, vec![vec![ChildResult::Done(Some(49))]; 20]);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_failed_child_fails_its_parent_or_is_seen_or_ignored(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let seen = Seen::default();
        let worker = adding(&queue, &seen).await?;
        let flow = |failure| -> redstart::Result<Flow> {
            Ok(Flow::new(&Sum)?
                .child(Flow::new(&Square(13))?.on_failure(failure))
                .child(Flow::new(&Square(2))?))
        };
        let add = async |flow: Flow| anyhow::Ok(queue.handle::<Sum>(queue.add_flow(flow).await?.root().unwrap()));
        // Up to the root.
        let failed = add(Flow::new(&Sum)?.child(flow(ChildFailure::FailParent)?)).await?;
        let Outcome::Dead { reason } = failed.result_within(LONG).await? else { panic!("not dead") };
        assert!(reason.contains("a child failed") && reason.contains("unlucky"), "{reason}");
        let seen_by_parent = add(flow(ChildFailure::Continue)?).await?;
        assert_eq!(seen_by_parent.result_within(LONG).await?, Outcome::Done(1004));
        let ignored = add(flow(ChildFailure::Ignore)?).await?;
        assert_eq!(ignored.result_within(LONG).await?, Outcome::Done(4));
        empty(&queue).await?;
        // The root, its child and the three that failed.
        assert_eq!(queue.inspect().counts().await?.dead, 5);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_parent_whose_child_expired_runs_whatever_its_priority(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::builder(&store, backend.namespace(), "q").keep_done(1000, KEEP).build()?;
        let soon = Duration::from_millis(20);
        let mut roots = Vec::new();
        // The parent comes before its child in rank, after it, in the same group, and in the plain list.
        for (parent, child, group) in [(10, 1, ""), (1, 10, ""), (0, 0, "g"), (0, 5, ""), (5, 0, "")] {
            let mut last = Flow::new(&Square(2))?
                .policy(JobPolicy::new().priority(child).expires_after(soon))
                .on_failure(ChildFailure::Continue);
            let mut root = Flow::new(&Sum)?.policy(JobPolicy::new().priority(parent));
            if !group.is_empty() {
                (last, root) = (last.group(group), root.group(group));
            }
            roots.push(queue.add_flow(root.child(last)).await?.root().context("added")?);
        }
        let others = queue.enqueue_many((0..5).map(Square)).priority(1).await?.added;
        if backend.is_embedded() {
            store.advance(Duration::from_secs(60))?;
        } else {
            // Nothing but time lets them expire.
            tokio::time::sleep(soon * 2).await;
        }
        let seen = Seen::default();
        let worker = adding(&queue, &seen).await?;
        // A job that is in no container is not counted, and does not run.
        empty(&queue).await?;
        let expected = roots.into_iter().map(|id| (id, 1000));
        let expected = expected.chain(others.into_iter().zip([0, 1, 4, 9, 16]));
        for (number, (id, result)) in expected.enumerate() {
            let found = queue.job(id).await?.context("kept")?;
            ensure!(found.decode_result::<u64>()? == Some(result), "number {number}: {found:?}");
        }
        assert_eq!(seen.lock().unwrap().len(), 5, "each parent ran once");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_cancelled_child_counts_as_failed_and_a_cancelled_parent_does_not_run(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let (first, second) = (Flow::new(&Square(1))?, Flow::new(&Square(2))?.on_failure(ChildFailure::Continue));
        let cancelled = second.id();
        let root = queue.add_flow(Flow::new(&Sum)?.child(first).child(second)).await?.root().unwrap();
        let other = queue.add_flow(Flow::new(&Sum)?.child(Flow::new(&Square(3))?)).await?.root().unwrap();
        assert_eq!(queue.cancel(cancelled).await?, Cancelled::Ended);
        assert_eq!(queue.cancel(other).await?, Cancelled::Ended);
        let seen = Seen::default();
        let worker = adding(&queue, &seen).await?;
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(1001));
        empty(&queue).await?;
        assert_eq!(seen.lock().unwrap().len(), 1);
        assert_eq!(queue.job(other).await?.unwrap().job.state, JobState::Cancelled);
        worker.shutdown(LONG).await?;
        Ok(())
    }

    async fn a_large_flow_is_added_in_steps_and_leaves_no_details(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let seen = Seen::default();
        let jobs = scale(2500, "jobs of a flow");
        let mut root = Flow::new(&Sum)?.policy(redstart::messaging::JobPolicy::new().keep(KEEP));
        for from in (0..jobs).step_by(500) {
            let mut inner = Flow::new(&Sum)?;
            for n in from..from + 500 {
                inner = inner.child(Flow::new(&Square(100 + n % 10))?);
            }
            root = root.child(inner);
        }
        let root = queue.add_flow(root).await?.root().context("added")?;
        let worker = adding(&queue, &seen).await?;
        let expected: u64 = (0..jobs).map(|n| (100 + n % 10) * (100 + n % 10)).sum();
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG * 4).await?, Outcome::Done(expected));
        empty(&queue).await?;
        ensure!(nothing_left(&store, backend).await, "details stay");
        worker.shutdown(LONG).await?;
        Ok(())
    }

    /// What became of thousands of children is not removed by one script.
    async fn a_parent_of_thousands_leaves_nothing_when_it_is_done_or_deleted(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let queue = Queue::new(&store, backend.namespace(), "q")?;
        let healed = Arc::new(AtomicBool::new(false));
        let seen = healed.clone();
        let worker = queue
            .worker(|Square(n): Square, _: JobContext| async move { Returned::<Square>(n) })
            .handler(move |_: Sum, _: JobContext| {
                let healed = seen.load(Ordering::SeqCst);
                async move { if healed { Ok(()) } else { Err(anyhow::anyhow!("not yet")) } }
            })
            .retry(Backoff::fixed(Duration::from_millis(1)), 1)
            .start()
            .await?;
        let flow = || -> Result<Flow> {
            let mut root = Flow::new(&Sum)?;
            for n in 0..3000 {
                root = root.child(Flow::new(&Square(n))?);
            }
            Ok(root)
        };
        let look = queue.inspect();
        let purged = queue.add_flow(flow()?).await?.root().context("added")?;
        ensure!(eventually(LONG, async || look.counts().await.is_ok_and(|c| c.dead == 1)).await);
        assert_eq!(look.dead_letters().purge_many(&[purged]).await?, 1);
        ensure!(nothing_left(&store, backend).await, "a letter that was deleted leaves details");
        assert_eq!(look.counts().await?.waiting, 0);

        healed.store(true, Ordering::SeqCst);
        let _ = queue.add_flow(flow()?).await?;
        empty(&queue).await?;
        ensure!(nothing_left(&store, backend).await, "a job that is done leaves details");
        worker.shutdown(LONG).await?;
        Ok(())
    }
}

matrix! {
    processes:
    async fn a_large_flow_that_is_cut_off_anywhere_is_added_whole_or_not_at_all(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        let (parents, leaves) = (300, 900);
        let (mut whole, mut nothing) = (0, 0);
        // It goes on only when it is polled, so it can be dropped between any two steps.
        for polls in 0.. {
            let name = format!("cut{polls}");
            let queue = Queue::new(&store, backend.namespace(), &name)?;
            let look = queue.inspect();
            let mut root = Flow::new(&Sum)?.policy(JobPolicy::new().keep(KEEP));
            let id = root.id();
            for _ in 1..parents {
                root = root.child(Flow::new(&Sum)?.children((1..4).map(|n| Flow::new(&Square(n))).collect::<redstart::Result<Vec<_>>>()?));
            }
            let mut adding_flow = Box::pin(queue.add_flow(root));
            let mut added = false;
            for _ in 0..polls {
                if std::future::poll_fn(|cx| Poll::Ready(adding_flow.as_mut().poll(cx))).await.is_ready() {
                    added = true;
                    break;
                }
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            drop(adding_flow);
            // What was sent is carried out.
            store.settle().await;
            let part = |part: &str| format!("{}:queue:{{{name}}}:{part}", backend.namespace());
            let staged = part(&format!("staged:{id}"));
            let is_complete: u64 = store.query(redis::cmd("HEXISTS").arg(&staged).arg("")).await?;
            if is_complete == 0 && !added {
                let counts = look.counts().await?;
                if counts.unfinished() > 0 {
                    // The last of it has just been handed out.
                    added = true;
                } else {
                    assert_eq!(counts.dead, 0);
                    let keys = store.scan(&part("*")).await?;
                    ensure!(keys.iter().all(|key| *key == staged || *key == part("flows")), "{keys:?}");
                    if keys.contains(&staged) {
                        let ttl: i64 = store.query(redis::cmd("PTTL").arg(&staged)).await?;
                        ensure!(ttl != -1, "it stays for ever");
                        // A worker removes it when it is time for that, some at a time.
                        store.query::<()>(redis::cmd("ZADD").arg(part("flows")).arg("XX").arg(1).arg(&id_bytes(id)?[..])).await?;
                        let seen = Seen::default();
                        let worker = adding(&queue, &seen).await?;
                        let gone = eventually(LONG, async || {
                            let mut left = redis::cmd("EXISTS");
                            left.arg(&staged).arg(part("flows"));
                            store.query::<u64>(&left).await.is_ok_and(|left| left == 0)
                        });
                        ensure!(gone.await, "what was added in part is not removed");
                        ensure!(seen.lock().unwrap().is_empty());
                        worker.shutdown(LONG).await?;
                    }
                    nothing += 1;
                }
            }
            if is_complete == 1 || added {
                whole += 1;
                if is_complete == 1 {
                    // Nobody has handed out anything of it for a while.
                    store.query::<()>(redis::cmd("ZADD").arg(part("flows")).arg("XX").arg(1).arg(&id_bytes(id)?[..])).await?;
                }
                let seen = Seen::default();
                let worker = adding(&queue, &seen).await?;
                let expected = (parents - 1) * (1 + 4 + 9);
                ensure!(eventually(LONG, async || queue.job(id).await.is_ok_and(|job| job.is_some())).await, "it is not handed out");
                assert_eq!(queue.handle::<Sum>(id).result_within(LONG * 2).await?, Outcome::Done(expected));
                empty(&queue).await?;
                assert_eq!((look.counts().await?.dead, seen.lock().unwrap().len() as u64), (0, parents));
                worker.shutdown(LONG).await?;
                let left: u64 = store.query(redis::cmd("EXISTS").arg(part("flows")).arg(part(&format!("staged:{id}"))).arg(part("jobs"))).await?;
                assert_eq!(left, 0);
            }
            if added && is_complete == 0 && whole > 2 {
                break;
            }
            ensure!(polls < 2000, "{leaves} leaves are never added");
        }
        ensure!(nothing > 1 && whole > 2, "cut {nothing} times before it was complete, {whole} times after that");
        Ok(())
    }

    async fn a_flow_in_two_queues_that_is_cut_off_while_it_is_added_becomes_dead_letters(backend: &Backend) -> Result<()> {
        let store = Store::connect(backend.url()).await?;
        // Parents are added first, a thousand jobs at a time.
        for (kind, parents, leaves_are_there) in [("parents", 1501, false), ("leaves", 801, true)] {
            let mut tries = 0;
            let (name, queue, others, id, waiting, ready) = loop {
                tries += 1;
                ensure!(tries < 50, "no cut was in time");
                let name = format!("{kind}-{tries}");
                let queue = Queue::builder(&store, backend.namespace(), &name).keep_done(100_000, KEEP).build()?;
                let others = Queue::builder(&store, backend.namespace(), &format!("{name}-leaves")).keep_done(100_000, KEEP).build()?;
                let (look, look_at_leaves) = (queue.inspect(), others.inspect());
                let mut root = Flow::new(&Sum)?;
                let id = root.id();
                for _ in 1..parents {
                    let leaf = |n| anyhow::Ok(Flow::new(&Square(n))?.queue(&others));
                    root = root.child(Flow::new(&Sum)?.child(leaf(1)?).child(leaf(2)?));
                }
                // It goes on only when it is polled, so it can be dropped after a step that is known.
                let mut adding_flow = Box::pin(queue.add_flow(root));
                let (waiting, ready) = loop {
                    let added = std::future::poll_fn(|cx| Poll::Ready(adding_flow.as_mut().poll(cx))).await;
                    let (waiting, ready) = (look.counts().await?.waiting, look_at_leaves.counts().await?.ready);
                    if added.is_ready() || waiting > 0 && (ready > 0 || !leaves_are_there) {
                        break (waiting, ready);
                    }
                };
                drop(adding_flow);
                // A busy server may have carried out two steps between two looks.
                if (waiting, ready > 0) == (parents.min(1000), leaves_are_there) && ready < 2 * (parents - 1) {
                    break (name, queue, others, id, waiting, ready);
                }
            };
            let (look, look_at_leaves) = (queue.inspect(), others.inspect());

            // Their minute is over.
            let mut late = redis::cmd("EVAL");
            late.arg("for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, id) end")
                .arg(1)
                .arg(format!("{}:queue:{{{name}}}:parents", backend.namespace()));
            store.query::<()>(&late).await?;
            let seen = Seen::default();
            let worker = adding(&queue, &seen).await?;
            let worker_of_leaves = adding(&others, &seen).await?;
            empty(&others).await?;
            empty(&queue).await?;
            // Each parent is a dead letter, or ran because all of its children were there and over in time.
            let counts = look.counts().await?;
            let ran = seen.lock().unwrap().len() as u64;
            assert_eq!(counts.dead + ran, waiting, "{counts:?}");
            assert_eq!((counts.done, look_at_leaves.counts().await?.done), (ran, ready), "leaves that are there run");
            assert!(leaves_are_there || ran == 0, "{ran} parents ran without their children");
            let letters = look.dead_letters();
            let of_root = queue.job(id).await?.context("the root")?;
            assert_eq!(of_root.job.state, JobState::Dead);
            // A parent whose child is such a letter fails with it.
            let is_why = |reason: &str| reason.ends_with("its flow was not added completely");
            assert!(of_root.reason.as_deref().is_some_and(is_why), "{:?}", of_root.reason);
            for letter in letters.list(None).await? {
                assert!(is_why(&letter.reason), "{}", letter.reason);
            }
            // Replayed, they do not wait for children that never come.
            assert_eq!(letters.replay(|_| true).await?, counts.dead);
            empty(&queue).await?;
            assert_eq!(look.counts().await?.dead, 0);
            assert_eq!(seen.lock().unwrap().len() as u64, waiting);
            worker.shutdown(LONG).await?;
            worker_of_leaves.shutdown(LONG).await?;
        }
        Ok(())
    }
}

/// The bytes of an id.
fn id_bytes(id: JobId) -> Result<Vec<u8>> {
    let text = id.to_string();
    let pairs = (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16));
    Ok(pairs.collect::<std::result::Result<_, _>>()?)
}

matrix! {
    async fn a_replayed_parent_runs_after_its_children_with_their_results(backend: &Backend) -> Result<()> {
        let queue = keeping(backend).await?;
        let (healed, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
        let (is_healed, open) = (healed.clone(), gate.clone());
        let worker = queue
            .worker(move |Square(n): Square, _: JobContext| {
                let (healed, gate) = (is_healed.clone(), open.clone());
                async move {
                    if n == 13 && !healed.load(Ordering::SeqCst) {
                        return Err(anyhow::anyhow!("unlucky"));
                    }
                    if n == 7 {
                        gate.acquire().await?.forget();
                    }
                    Ok(Returned::<Square>(n * n))
                }
            })
            .handler(|_: Sum, cx: JobContext| async move {
                let sum = cx.children::<u64>().await?.into_iter().map(|child| match child {
                    ChildResult::Failed { .. } => 1000,
                    child => child.done().unwrap_or(0),
                });
                anyhow::Ok(Returned::<Sum>(sum.sum()))
            })
            .retry(Backoff::fixed(Duration::from_millis(1)), 1)
            .start()
            .await?;
        let look = queue.inspect();
        let dead = async |count: u64| eventually(LONG, async || look.counts().await.is_ok_and(|c| c.dead == count)).await;
        let state = async |id: JobId| queue.job(id).await.ok().flatten().map(|found| found.job.state);

        // A child dies, and so does the parent, while the other child runs.
        let (unlucky, slow) = (Flow::new(&Square(13))?, Flow::new(&Square(7))?);
        let (child, other) = (unlucky.id(), slow.id());
        let root = queue.add_flow(Flow::new(&Sum)?.child(unlucky).child(slow)).await?.root().context("added")?;
        ensure!(dead(2).await);
        healed.store(true, Ordering::SeqCst);
        assert_eq!(look.dead_letters().replay(|_| true).await?, 2);
        ensure!(eventually(LONG, async || state(child).await == Some(JobState::Done)).await);
        assert_eq!(state(root).await, Some(JobState::Waiting), "it does not wait for its other child");
        gate.add_permits(1);
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(169 + 49));
        assert_eq!(state(other).await, Some(JobState::Done));

        // The other child ends while the parent is dead; only the child is replayed, and then the parent.
        healed.store(false, Ordering::SeqCst);
        let flow = Flow::new(&Sum)?.child(Flow::new(&Square(13))?).child(Flow::new(&Square(2))?);
        let root = queue.add_flow(flow).await?.root().context("added")?;
        ensure!(dead(2).await);
        healed.store(true, Ordering::SeqCst);
        let is_child = |letter: &DeadLetter| letter.job.as_ref().is_some_and(|job| job.name == "square");
        assert_eq!(look.dead_letters().replay(is_child).await?, 1);
        empty(&queue).await?;
        assert_eq!(state(root).await, Some(JobState::Dead));
        assert_eq!(look.dead_letters().replay(|_| true).await?, 1);
        assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(169 + 4));

        // The dead child is deleted, while the parent is dead and while it waits.
        healed.store(false, Ordering::SeqCst);
        for replayed_first in [false, true] {
            let flow = Flow::new(&Sum)?.child(Flow::new(&Square(13))?).child(Flow::new(&Square(2))?);
            let root = queue.add_flow(flow).await?.root().context("added")?;
            ensure!(dead(2).await);
            empty(&queue).await?;
            if replayed_first {
                assert_eq!(look.dead_letters().replay(|letter| !is_child(letter)).await?, 1);
                assert_eq!(state(root).await, Some(JobState::Waiting));
                assert_eq!(look.dead_letters().purge(is_child).await?, 1);
                ensure!(dead(1).await, "a child that fails it is gone for good");
            } else {
                assert_eq!(look.dead_letters().purge(is_child).await?, 1);
            }
            assert_eq!(look.dead_letters().replay(|_| true).await?, 1);
            assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(1000 + 4));
        }

        // A cancelled child leaves no letter.
        let waits = Flow::new(&Square(7))?;
        let cancelled = waits.id();
        let root = queue.add_flow(Flow::new(&Sum)?.child(waits).child(Flow::new(&Square(2))?)).await?.root().context("added")?;
        let _ = queue.cancel(cancelled).await?;
        gate.add_permits(1);
        empty(&queue).await?;
        match state(cancelled).await {
            Some(JobState::Cancelled) => {
                assert_eq!(look.dead_letters().replay(|_| true).await?, 1);
                assert_eq!(queue.handle::<Sum>(root).result_within(LONG).await?, Outcome::Done(1000 + 4));
            }
            // It was done before it was told.
            other => assert_eq!(other, Some(JobState::Done)),
        }
        empty(&queue).await?;
        assert_eq!(look.counts().await?.dead, 0);
        worker.shutdown(LONG).await?;
        let details = format!("{}:queue:{{q}}:details", backend.namespace());
        assert_eq!(Store::connect(backend.url()).await?.query::<u64>(redis::cmd("EXISTS").arg(details)).await?, 0);
        Ok(())
    }
}

/// The scripts of a flow that is added in steps, by themselves: the clock stands between any two of them.
struct Steps {
    store: Store,
}

impl Steps {
    async fn run(&self, script: &str, keys: usize, arguments: &[&[u8]]) -> Result<redis::Value> {
        let fragments = concat!(
            include_str!("../../src/script/now.lua"),
            include_str!("../../src/messaging/queue/record.lua"),
            include_str!("../../src/messaging/queue/wake.lua"),
            include_str!("../../src/messaging/queue/place.lua"),
        );
        let mut eval = redis::cmd("EVAL");
        eval.arg(format!("{fragments}{script}")).arg(keys);
        for number in 1..=keys {
            eval.arg(format!("{{k}}:{number}"));
        }
        // Channel, boost, events, how long and how many done jobs are kept.
        for argument in ["wake", "0", "0", "-1", "0"] {
            eval.arg(argument);
        }
        for argument in arguments {
            eval.arg(*argument);
        }
        Ok(self.store.query(&eval).await?)
    }

    /// Adds a parent of one child, open for a minute.
    async fn parent(&self, id: &[u8; 16]) -> Result<()> {
        let flow = concat!(
            include_str!("../../src/messaging/queue/flow_jobs.lua"),
            include_str!("../../src/messaging/queue/flow.lua"),
        );
        // From byte 35 on: id, no attempts, priority 0, no flags, no limits, no extras, kind.
        let record = [&id[..], &[0; 4], &[128, 0], &[0; 9], b"\x04node{}"].concat();
        let added = self
            .run(flow, 17, &[b"0", b"60000000", b"1000", b"1", &record])
            .await?;
        ensure!(added == redis::Value::Int(1), "{added:?}");
        // The mark of the request: the next one is another.
        self.store
            .query::<()>(redis::cmd("DEL").arg("{k}:17"))
            .await?;
        Ok(())
    }

    /// Closes a flow, or keeps it open for so many microseconds more; how many parents were late.
    async fn close(&self, more: &str, ids: &[&[u8; 16]]) -> Result<i64> {
        let close = include_str!("../../src/messaging/queue/flow_close.lua");
        let mut arguments = vec![more.as_bytes()];
        arguments.extend(ids.iter().map(|id| &id[..]));
        Ok(redis::from_redis_value(
            self.run(close, 16, &arguments).await?,
        )?)
    }

    /// What workers do from time to time.
    async fn look(&self) -> Result<()> {
        let schedule = include_str!("../../src/messaging/queue/schedule.lua");
        self.run(schedule, 25, &[b"w", b"1000", b"0", b"0", b"0"])
            .await?;
        Ok(())
    }

    async fn state(&self, id: &[u8; 16]) -> Result<u8> {
        let record: Vec<u8> = self
            .store
            .query(redis::cmd("HGET").arg("{k}:1").arg(id))
            .await?;
        Ok(record[1])
    }
}

#[tokio::test]
async fn a_flow_in_steps_that_is_closed_in_time_waits_and_one_that_is_not_is_reported() -> Result<()>
{
    let steps = Steps {
        store: Store::connect("memory://").await?,
    };
    let (closed, longer, late) = (
        b"closed__________",
        b"longer__________",
        b"late____________",
    );
    for id in [closed, longer, late] {
        steps.parent(id).await?;
    }
    steps.store.advance(Duration::from_secs(50))?;
    assert_eq!(steps.close("0", &[closed]).await?, 0);
    assert_eq!(steps.close("60000000", &[longer]).await?, 0);
    // The minute of the third is over.
    steps.store.advance(Duration::from_secs(11))?;
    steps.look().await?;
    assert_eq!(
        (
            steps.state(closed).await?,
            steps.state(longer).await?,
            steps.state(late).await?
        ),
        (b'w', b'w', b'z')
    );
    assert_eq!(
        steps.close("0", &[longer, late]).await?,
        1,
        "whoever adds it hears of the one that is buried"
    );
    // The others wait for as long as it takes.
    steps.store.advance(Duration::from_secs(86_400))?;
    steps.look().await?;
    assert_eq!(
        (steps.state(closed).await?, steps.state(longer).await?),
        (b'w', b'w')
    );
    assert_eq!(
        steps.close("0", &[closed, longer]).await?,
        0,
        "saying it again is harmless"
    );
    Ok(())
}
