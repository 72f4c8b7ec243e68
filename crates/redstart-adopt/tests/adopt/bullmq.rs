//! BullMQ 5 and 6 beside our producer and our worker, on the same keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::bullmq::{
    Added, Backoff, BullQueue, Deduplication, Ended, Flow, ForParent, JobError, Keep, NewJob,
};
use redstart_testkit::{
    Child, Foreign, Language, child, figure, scale, unique_namespace, wait_until,
};
use serde_json::{Value, json};

use crate::{Side, library, long, on};

pub(crate) fn node(module: &str, side: &Side, queue: &str, what: &[&str]) -> Result<Foreign> {
    let port = side.port.to_string();
    let args = [&[module, &port, queue], what].concat();
    Foreign::start(Language::Node, &library("bullmq.js"), &args)
}

pub(crate) async fn node_to_its_end(
    module: &str,
    side: &Side,
    queue: &str,
    what: &[&str],
) -> Result<Vec<String>> {
    let port = side.port.to_string();
    let args = [&[module, &port, queue], what].concat();
    Foreign::run(Language::Node, &library("bullmq.js"), &args).await
}

pub(crate) async fn completed(store: &Store, queue: &BullQueue) -> Result<BTreeSet<String>> {
    let key = format!("{}:completed", queue.base());
    Ok(store.query(cmd("ZRANGE").arg(key).arg(0).arg(-1)).await?)
}

/// How often each job was completed, by the queue's own events.
pub(crate) async fn completions(store: &Store, queue: &BullQueue) -> Result<BTreeMap<String, u32>> {
    let key = format!("{}:events", queue.base());
    let entries: Vec<(String, Vec<String>)> = store
        .query(cmd("XRANGE").arg(key).arg("-").arg("+"))
        .await?;
    let mut counts = BTreeMap::new();
    for (_, fields) in entries {
        let pairs: BTreeMap<&str, &str> = fields
            .chunks_exact(2)
            .map(|p| (p[0].as_str(), p[1].as_str()))
            .collect();
        if pairs.get("event") == Some(&"completed") {
            *counts.entry(pairs["jobId"].to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The jobs that `kinds` of bullmq.js adds.
async fn add_kinds(queue: &BullQueue) -> Result<()> {
    let empty = json!({});
    let jobs = [
        NewJob::new("plain", &json!({"n": 1, "text": "ä"}))?,
        NewJob::new("delayed", &[1, 2])?.delay(Duration::from_secs(3600)),
        NewJob::new("prioritised", &Value::Null)?.priority(7)?,
        NewJob::new("own id", &empty)?.id("order-17")?,
        NewJob::new("last in", &empty)?.lifo(),
        NewJob::new("retried", &empty)?
            .attempts(5)
            .backoff(Backoff::Exponential(Duration::from_millis(250))),
        NewJob::new("kept", &empty)?
            .keep_completed(10)
            .keep_failed(20),
        NewJob::new("once", &empty)?.deduplicate("only"),
        NewJob::new("once", &empty)?.deduplicate("only"),
        NewJob::new("a while", &empty)?.deduplicate_for("while", Duration::from_secs(600)),
        NewJob::new("few lines", &empty)?.keep_logs(5),
        NewJob::new("some luck", &empty)?
            .attempts(2)
            .backoff(Backoff::Fixed(Duration::from_millis(250)))
            .jitter(0.5)?,
        NewJob::new("a day", &empty)?
            .keep_completed(Duration::from_secs(86_400))
            .keep_failed(Keep::from(20).and_for(Duration::from_secs(3600))),
        NewJob::new("the last", &empty)?
            .deduplicated(Deduplication::new("last").keep_last_if_active()),
        NewJob::new("replaced", &empty)?
            .deduplicated(
                Deduplication::new("newest")
                    .ttl(Duration::from_secs(600))
                    .extend()
                    .replace(),
            )
            .delay(Duration::from_secs(3600)),
    ];
    let mut outcomes = Vec::new();
    for job in jobs {
        outcomes.push(queue.add(job).await?);
    }
    assert!(
        matches!(outcomes[8], Added::Deduplicated(_)),
        "{outcomes:?}"
    );
    let child = NewJob::new("child", &json!({"c": 1}))?.fail_parent();
    let mut flow = Flow::new(NewJob::new("parent", &json!({"p": 1}))?).child(queue, child);
    for (name, rule) in [
        ("child that continues", ForParent::Continue),
        ("child that is ignored", ForParent::Ignore),
        ("child that is forgotten", ForParent::Forget),
    ] {
        flow = flow.child(queue, NewJob::new(name, &empty)?.if_it_fails(rule));
    }
    let _ = queue.add_flow(flow).await?;
    Ok(())
}

/// Every job of a queue by its name: the fields, without what differs from run to run; and where its id stands.
async fn picture(store: &Store, base: &str) -> Result<BTreeMap<String, BTreeMap<String, Value>>> {
    let mut jobs = BTreeMap::new();
    let mut names = BTreeMap::new();
    for key in store.scan(&format!("{base}:*")).await? {
        let kind: String = store.query(cmd("TYPE").arg(&key)).await?;
        if kind != "hash" || key.ends_with(":meta") {
            continue;
        }
        let fields: BTreeMap<String, String> = store.query(cmd("HGETALL").arg(&key)).await?;
        let (Some(name), Some(_)) = (fields.get("name"), fields.get("opts")) else {
            continue;
        };
        let id = key.strip_prefix(&format!("{base}:")).unwrap().to_owned();
        names.insert(id.clone(), name.clone());
        let mut seen = BTreeMap::new();
        for (field, value) in &fields {
            let value = match field.as_str() {
                "timestamp" => {
                    assert_eq!(value.len(), 13, "{key} {field}");
                    continue;
                }
                "opts" | "data" | "parent" => serde_json::from_str(value)?,
                _ => json!(value),
            };
            // Ids and names of queues differ.
            let text = value.to_string().replace(base, "QUEUE");
            seen.insert(field.clone(), serde_json::from_str(&text)?);
        }
        for set in ["delayed", "prioritized", "waiting-children"] {
            let score: Option<f64> = store
                .query(cmd("ZSCORE").arg(format!("{base}:{set}")).arg(&id))
                .await?;
            if score.is_some() {
                seen.insert(format!("in {set}"), json!(true));
            }
        }
        for list in ["wait", "paused", "active"] {
            let at: Option<u64> = store
                .query(cmd("LPOS").arg(format!("{base}:{list}")).arg(&id))
                .await?;
            if let Some(at) = at {
                seen.insert(format!("in {list}"), json!(at));
            }
        }
        jobs.insert(name.clone(), seen);
    }
    // Parents have random ids in Node and numbers here.
    for job in jobs.values_mut() {
        for (field, pointer) in [("parent", "/id"), ("opts", "/parent/id")] {
            if let Some(id) = job
                .get_mut(field)
                .and_then(|value| value.pointer_mut(pointer))
            {
                *id = json!("ID");
            }
        }
        for field in ["parentKey"] {
            if let Some(value) = job.get_mut(field) {
                *value = json!(
                    value
                        .as_str()
                        .and_then(|text| text.rsplit_once(':'))
                        .map(|(base, _)| base)
                );
            }
        }
        // A flow of Node gives its jobs ids of its own, which are then options.
        if let Some(options) = job.get_mut("opts").and_then(Value::as_object_mut)
            && options.get("jobId").and_then(Value::as_str) != Some("order-17")
        {
            options.remove("jobId");
        }
    }
    Ok(jobs)
}

async fn fields_are_equal(side: Side) -> Result<()> {
    let store = side.store().await?;
    for module in ["bullmq5", "bullmq6"] {
        let (theirs, ours) = (unique_namespace("theirs"), unique_namespace("ours"));
        node_to_its_end(module, &side, &theirs, &["kinds"]).await?;
        let queue = BullQueue::builder(&store, &ours)
            .major(module[6..].parse()?)
            .build()?;
        add_kinds(&queue).await?;
        let theirs = picture(&store, &format!("bull:{theirs}")).await?;
        let ours = picture(&store, &format!("bull:{ours}")).await?;
        assert_eq!(theirs.len(), 19);
        for (name, job) in &theirs {
            assert_eq!(Some(job), ours.get(name), "{module}: {name}");
        }
        assert_eq!(theirs.len(), ours.len());
    }
    Ok(())
}
on!(fields_are_equal: every_kind_of_job_has_the_fields_that_node_would_write);

async fn node_completes(side: Side) -> Result<()> {
    let jobs = scale(200, "adopt bullmq jobs");
    let store = side.store().await?;
    for module in ["bullmq5", "bullmq6"] {
        let name = unique_namespace("to-node");
        let queue = BullQueue::new(&store, &name)?;
        let mut worker = node(module, &side, &name, &["work"])?;
        assert_eq!(worker.line().await?, "ready");
        for n in 0..jobs {
            let job = NewJob::new("plain", &json!({"n": n}))?;
            let job = match n % 3 {
                0 => job,
                1 => job.priority(5)?,
                _ => job.delay(Duration::from_millis(20)),
            };
            let _ = queue.add(job).await?;
        }
        wait_until("node to complete all jobs", long(), async || {
            (completed(&store, &queue).await.ok()?.len() as u64 == jobs).then_some(())
        })
        .await?;
        let job = queue.job("1").await?.context("job 1")?;
        assert_eq!(
            serde_json::from_str::<Value>(&job["returnvalue"])?,
            json!({"by": "node", "n": 0})
        );
        worker.wait().await?;
    }
    figure(format!(
        "{jobs} jobs from Rust completed by BullMQ 5 and by 6"
    ));
    Ok(())
}
on!(node_completes: jobs_of_the_producer_are_completed_by_node);

async fn we_complete(side: Side) -> Result<()> {
    let jobs = scale(200, "adopt bullmq jobs");
    let store = side.store().await?;
    for module in ["bullmq5", "bullmq6"] {
        let name = unique_namespace("from-node");
        let queue = BullQueue::new(&store, &name)?;
        let mut events = node(module, &side, &name, &["listen"])?;
        assert_eq!(events.line().await?, "ready");
        node_to_its_end(module, &side, &name, &["add", &jobs.to_string()]).await?;
        let worker = queue.worker().name("rust").concurrency(8).build()?;
        let seen = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let counts = seen.clone();
        let running = tokio::spawn(async move {
            let handler = |job: Arc<redstart_adopt::bullmq::Taken>| {
                *counts
                    .lock()
                    .unwrap()
                    .entry(job.id().to_owned())
                    .or_default() += 1;
                async move {
                    let n: Value = job.data().map_err(|e| JobError::new(e.to_string()))?;
                    if job.id() == "1" {
                        job.progress(&50)
                            .await
                            .map_err(|e| JobError::new(e.to_string()))?;
                        job.log("half")
                            .await
                            .map_err(|e| JobError::new(e.to_string()))?;
                    }
                    match job.id() {
                        "2" => Err(JobError::new("no luck")),
                        _ => Ok(n),
                    }
                }
            };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        wait_until("all jobs to end", long(), async || {
            (completed(&store, &queue).await.ok()?.len() as u64 == jobs - 1).then_some(())
        })
        .await?;
        drop(stop);
        running.await??;
        assert_eq!(
            seen.lock().unwrap().values().copied().max(),
            Some(1),
            "{module}"
        );
        let failed = queue.job("2").await?.context("job 2")?;
        assert_eq!(failed["failedReason"], "no luck");
        assert_eq!(failed["pb"], "rust");
        let log: Vec<String> = store
            .query(
                cmd("LRANGE")
                    .arg(format!("{}:1:logs", queue.base()))
                    .arg(0)
                    .arg(-1),
            )
            .await?;
        assert_eq!(log, ["half"]);
        hears_all(&mut events, jobs - 1).await?;
    }
    Ok(())
}
on!(we_complete: jobs_of_node_are_completed_here_and_its_queue_events_hear_of_it);

/// Node's QueueEvents has heard of every completion, of the progress and of the failure.
async fn hears_all(events: &mut Foreign, completions: u64) -> Result<()> {
    let (mut completed, mut progress, mut failed) = (0, false, false);
    while completed < completions || !progress || !failed {
        let event: Value = serde_json::from_str(&events.line().await?)?;
        match event["kind"].as_str() {
            Some("completed") => completed += 1,
            Some("progress") => {
                assert_eq!(
                    (event["jobId"].as_str(), &event["data"]),
                    (Some("1"), &json!(50))
                );
                progress = true;
            }
            Some("failed") => {
                assert_eq!(event["failedReason"], "no luck");
                failed = true;
            }
            _ => {}
        }
    }
    events.wait().await?;
    Ok(())
}

/// Version 6 pauses, jobs are added by both, and we resume: all of them run. A resume by version 5 would rename over the ten.
async fn a_mixed_pause(side: Side) -> Result<()> {
    let store = side.store().await?;
    let name = unique_namespace("mixed");
    let queue = BullQueue::new(&store, &name)?;
    node_to_its_end("bullmq6", &side, &name, &["pause"]).await?;
    node_to_its_end("bullmq6", &side, &name, &["add", "10"]).await?;
    node_to_its_end("bullmq5", &side, &name, &["add", "5"]).await?;
    let versions = queue.versions().await?;
    assert!(versions.is_mixed(), "{versions:?}");
    assert_eq!((versions.in_wait, versions.in_paused), (10, 5));
    queue.resume().await?;
    assert!(!queue.versions().await?.is_mixed());
    all_run(&store, &queue, 15).await
}
on!(a_mixed_pause: a_queue_paused_by_two_versions_loses_nothing_when_resumed_here);

/// Version 5 pauses twice: its second pause renames what came meanwhile over the list that it paused. Ours moves.
async fn a_second_pause(side: Side) -> Result<()> {
    let store = side.store().await?;
    let name = unique_namespace("twice");
    let queue = BullQueue::builder(&store, &name).major(5).build()?;
    node_to_its_end("bullmq5", &side, &name, &["add", "8"]).await?;
    node_to_its_end("bullmq5", &side, &name, &["pause"]).await?;
    // Version 6 adds to the list that version 5 renames.
    node_to_its_end("bullmq6", &side, &name, &["add", "3"]).await?;
    queue.pause().await?;
    queue.pause().await?;
    queue.resume().await?;
    all_run(&store, &queue, 11).await
}
on!(a_second_pause: a_second_pause_here_loses_nothing);

/// What BullMQ 5 and 6 do to a queue, one after the other.
struct Sequence {
    /// Before the call that loses jobs.
    before: &'static [(&'static str, &'static [&'static str])],
    /// The call, by version 5.
    fatal: &'static str,
    jobs: usize,
    lost: usize,
}

/// Version 6 pauses, both add, version 5 resumes: it renames its list over the ten of version 6.
const RESUMED: Sequence = Sequence {
    before: &[
        ("bullmq6", &["pause"]),
        ("bullmq6", &["add", "10"]),
        ("bullmq5", &["add", "5"]),
    ],
    fatal: "resume",
    jobs: 15,
    lost: 10,
};

/// Version 5 pauses, version 6 adds, version 5 pauses again: it renames the three over what it had paused.
const PAUSED_AGAIN: Sequence = Sequence {
    before: &[
        ("bullmq5", &["add", "8"]),
        ("bullmq5", &["pause"]),
        ("bullmq6", &["add", "3"]),
    ],
    fatal: "pause",
    jobs: 11,
    lost: 8,
};

/// Ids that wait, in either list.
async fn waiting(store: &Store, queue: &BullQueue) -> Result<(usize, usize)> {
    let mut lengths = redis::pipe();
    for list in ["wait", "paused"] {
        lengths.cmd("LLEN").arg(format!("{}:{list}", queue.base()));
    }
    Ok(store.pipeline(&lengths).await?)
}

/// The losses that a Rust worker prevents are real: without one, jobs are gone from every list.
async fn losses(side: Side) -> Result<()> {
    let store = side.store().await?;
    for sequence in [RESUMED, PAUSED_AGAIN] {
        let name = unique_namespace("losses");
        let queue = BullQueue::new(&store, &name)?;
        for (module, what) in sequence.before {
            node_to_its_end(module, &side, &name, what).await?;
        }
        node_to_its_end("bullmq5", &side, &name, &[sequence.fatal]).await?;
        queue.resume().await?;
        all_run(&store, &queue, sequence.jobs - sequence.lost).await?;
        figure(format!(
            "BullMQ 5 and 6 alone: {} of {} jobs never run after a {} by 5",
            sequence.lost, sequence.jobs, sequence.fatal
        ));
    }
    Ok(())
}
on!(losses: two_versions_alone_lose_jobs);

/// The same with a Rust worker on the queue: version 5 makes the call, and all jobs run.
async fn no_losses(side: Side) -> Result<()> {
    let store = side.store().await?;
    for (sequence, last) in [
        (RESUMED, "bullmq5"),
        (PAUSED_AGAIN, "bullmq5"),
        (PAUSED_AGAIN, "bullmq6"),
    ] {
        let name = unique_namespace("no-losses");
        let queue = BullQueue::new(&store, &name)?;
        // The jobs to be paused must not run before.
        let (first, rest) = sequence.before.split_at(2);
        for (module, what) in first {
            node_to_its_end(module, &side, &name, what).await?;
        }
        let worker = queue.worker().concurrency(4).build()?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let handler = |_: Arc<redstart_adopt::bullmq::Taken>| async { Ok::<_, JobError>(()) };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        for (module, what) in rest {
            node_to_its_end(module, &side, &name, what).await?;
        }
        wait_until("one list to hold all jobs", long(), async || {
            (waiting(&store, &queue).await.ok()? == (0, sequence.jobs)).then_some(())
        })
        .await?;
        node_to_its_end("bullmq5", &side, &name, &[sequence.fatal]).await?;
        if sequence.fatal == "pause" {
            assert_eq!(waiting(&store, &queue).await?, (0, sequence.jobs));
            node_to_its_end(last, &side, &name, &["resume"]).await?;
        }
        wait_until("all jobs to be completed", long(), async || {
            (completed(&store, &queue).await.ok()?.len() == sequence.jobs).then_some(())
        })
        .await?;
        drop(stop);
        running.await??;
    }
    figure("with a Rust worker: all 15 and all 11 jobs run after the same calls");
    Ok(())
}
on!(no_losses: with_our_worker_two_versions_lose_no_job);

/// Jobs that are added here while version 6 has paused the queue run after its resume, and after one by version 5.
async fn added_to_a_pause(side: Side) -> Result<()> {
    let store = side.store().await?;
    for (paused, others, resumed) in [
        ("bullmq6", "bullmq6", "bullmq6"),
        ("bullmq6", "bullmq5", "bullmq6"),
        ("bullmq6", "bullmq5", "bullmq5"),
        ("bullmq5", "bullmq6", "bullmq5"),
    ] {
        let name = unique_namespace("added");
        let queue = BullQueue::new(&store, &name)?;
        node_to_its_end(paused, &side, &name, &["pause"]).await?;
        node_to_its_end(paused, &side, &name, &["add", "4"]).await?;
        node_to_its_end(others, &side, &name, &["add", "2"]).await?;
        for n in 0..3 {
            let _ = queue.add(NewJob::new("plain", &n)?).await?;
        }
        node_to_its_end(resumed, &side, &name, &["resume"]).await?;
        all_run(&store, &queue, 9)
            .await
            .with_context(|| format!("{paused} paused, {others} added, {resumed} resumed"))?;
    }
    Ok(())
}
on!(added_to_a_pause: jobs_added_here_to_a_paused_queue_run_after_nodes_resume);

pub(crate) async fn all_run(store: &Store, queue: &BullQueue, jobs: usize) -> Result<()> {
    let worker = queue.worker().build()?;
    let mut order = Vec::new();
    while let Some(job) = worker.take().await? {
        order.push(job.id().to_owned());
        assert_eq!(job.complete(&()).await?, Ended::Completed);
    }
    ensure!(
        order.len() == jobs,
        "{} of {jobs} ran: {order:?}",
        order.len()
    );
    assert_eq!(completed(store, queue).await?.len(), jobs);
    Ok(())
}

/// Workers of Rust and of Node are killed in turn, one at a time; no job is lost, none is completed twice.
async fn kills(side: Side) -> Result<()> {
    let rounds = scale(4, "adopt kills");
    let store = side.store().await?;
    let name = match child::role() {
        Some(_) => std::env::var("ADOPT_QUEUE")?,
        None => unique_namespace("kills"),
    };
    let queue = BullQueue::new(&store, &name)?;
    if child::role().is_some() {
        let worker = queue
            .worker()
            .concurrency(4)
            .lease(Duration::from_millis(1500))
            .stalled_every(Duration::from_millis(700))
            .max_stalled(1000)
            .build()?;
        child::say("ready");
        let handler = |_: Arc<redstart_adopt::bullmq::Taken>| async {
            // The work of a job, in which it is killed; nothing waits for this time to pass.
            tokio::time::sleep(Duration::from_millis(60)).await;
            Ok::<_, JobError>("rust")
        };
        worker.run(handler, std::future::pending()).await?;
        return Ok(());
    }
    // Enough for the one that is left while the other is started.
    let jobs = rounds * 400;
    // Every completion must still be in the stream when they are counted, whatever the number of rounds.
    let meta = format!("{}:meta", queue.base());
    let _: () = store
        .query(
            cmd("HSET")
                .arg(meta)
                .arg("opts.maxLenEvents")
                .arg(1_000_000),
        )
        .await?;
    for n in 0..jobs {
        let _ = queue.add(NewJob::new("plain", &json!({"n": n}))?).await?;
    }
    let port = side.port.to_string();
    let ours = || {
        Child::of(&side.test)
            .role("worker")
            .env("ADOPT_QUEUE", &name)
            .env("ADOPT_PORT", &port)
            .spawn()
    };
    let theirs = |round: u64| {
        let module = if round.is_multiple_of(2) {
            "bullmq5"
        } else {
            "bullmq6"
        };
        node(module, &side, &name, &["work", "60"])
    };
    let active = format!("{}:active", queue.base());
    let (mut rust, mut javascript) = (None, None);
    for round in 0..2 * rounds {
        if javascript.is_none() {
            // Versions 5 and 6 in turn.
            let mut started = theirs(round / 2)?;
            assert_eq!(started.line().await?, "ready");
            javascript = Some(started);
        }
        if rust.is_none() {
            let mut started = ours()?;
            assert_eq!(started.line().await?, "ready");
            rust = Some(started);
        }
        // Both have jobs in their hands: one of them is killed while it works, the other goes on.
        wait_until("jobs to be active", long(), async || {
            let active: u64 = store.query(cmd("LLEN").arg(&active)).await.ok()?;
            (active >= 5 || completed(&store, &queue).await.ok()?.len() as u64 == jobs)
                .then_some(())
        })
        .await?;
        match round % 2 {
            0 => rust.take().context("our worker")?.kill9(),
            _ => javascript.take().context("Node's worker")?.kill9(),
        }
    }
    drop((rust, javascript));
    let (_rust, _javascript) = (ours()?, theirs(rounds)?);
    wait_until("all jobs to be completed", long(), async || {
        (completed(&store, &queue).await.ok()?.len() as u64 == jobs).then_some(())
    })
    .await?;
    let counts = completions(&store, &queue).await?;
    ensure!(
        counts.len() as u64 == jobs,
        "{} of {jobs} were completed",
        counts.len()
    );
    let twice: Vec<_> = counts.iter().filter(|(_, times)| **times != 1).collect();
    ensure!(twice.is_empty(), "completed more than once: {twice:?}");
    // Both sides worked, and jobs were given back: the kills did hit.
    let (mut by_us, mut stalled) = (0, 0);
    for id in counts.keys() {
        let job = queue.job(id).await?.context("a completed job")?;
        by_us += u64::from(job["returnvalue"] == "\"rust\"");
        stalled += u64::from(job.contains_key("stc"));
    }
    ensure!(
        by_us > 0 && by_us < jobs,
        "{by_us} of {jobs} were completed by Rust"
    );
    ensure!(stalled > 0, "no job was in the hands of a killed worker");
    figure(format!(
        "{stalled} jobs were given back, {by_us} of {jobs} completed by Rust"
    ));
    figure(format!(
        "{} kills -9 of Rust and Node workers, {jobs} jobs, 0 lost, 0 completed twice",
        rounds * 2
    ));
    Ok(())
}
on!(kills: no_job_is_lost_or_completed_twice_when_workers_are_killed);

/// A worker that lost its lease cannot end the job that another one has.
#[tokio::test]
async fn a_worker_that_lost_its_lease_cannot_complete_the_job() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let _ = queue.add(NewJob::new("plain", &1)?).await?;
    let worker = queue
        .worker()
        .stalled_every(Duration::from_secs(1))
        .build()?;
    let first = worker.take().await?.context("a job")?;
    assert_eq!(worker.check_stalled().await?, [""; 0]);
    store.advance(Duration::from_secs(2))?;
    assert_eq!(worker.check_stalled().await?, [""; 0], "it is still locked");
    store.advance(Duration::from_secs(60))?;
    assert_eq!(worker.check_stalled().await?, ["1"]);
    let second = worker.take().await?.context("the same job")?;
    assert_eq!(second.id(), "1");
    assert_eq!(first.complete(&"late").await?, Ended::Lost);
    assert_eq!(second.complete(&"right").await?, Ended::Completed);
    let job = queue.job("1").await?.context("job 1")?;
    assert_eq!(
        (job["returnvalue"].as_str(), job["stc"].as_str()),
        ("\"right\"", "1")
    );
    Ok(())
}

/// Attempts, backoff, and what is written when they are used up.
#[tokio::test]
async fn a_job_is_tried_as_often_as_it_may_with_its_backoff() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let job = NewJob::new("plain", &1)?
        .attempts(3)
        .backoff(Backoff::Exponential(Duration::from_secs(10)));
    let _ = queue.add(job).await?;
    let worker = queue.worker().build()?;
    for (attempt, wait) in [(1, 10), (2, 20)] {
        let job = worker.take().await?.context("a job")?;
        assert_eq!(job.fail(JobError::new("no luck")).await?, Ended::Retried);
        store.advance(Duration::from_secs(wait - 1))?;
        assert!(
            worker.take().await?.is_none(),
            "attempt {attempt} came early"
        );
        store.advance(Duration::from_secs(2))?;
    }
    let job = worker.take().await?.context("a job")?;
    assert_eq!(job.attempts_made(), 2);
    assert_eq!(job.fail(JobError::new("no luck")).await?, Ended::Failed);
    let job = queue.job("1").await?.context("job 1")?;
    assert_eq!((job["atm"].as_str(), job["ats"].as_str()), ("3", "3"));
    assert_eq!(job["stacktrace"], r#"["no luck","no luck","no luck"]"#);
    Ok(())
}

/// The queue's own limits: jobs per window, jobs at a time, pause.
#[tokio::test]
async fn limits_of_the_queue_hold() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    for n in 0..6 {
        let _ = queue.add(NewJob::new("plain", &n)?).await?;
    }
    let worker = queue.worker().limit(2, Duration::from_secs(10)).build()?;
    let first = worker.take().await?.context("a job")?;
    let second = worker.take().await?.context("a job")?;
    assert!(worker.take().await?.is_none(), "a third in the window");
    store.advance(Duration::from_secs(11))?;
    let _: () = store
        .query(cmd("HSET").arg("bull:mail:meta").arg("concurrency").arg(2))
        .await?;
    assert!(worker.take().await?.is_none(), "a third at a time");
    assert_eq!(first.complete(&()).await?, Ended::Completed);
    let third = worker.take().await?.context("a job")?;
    let _: () = store
        .query(cmd("HDEL").arg("bull:mail:meta").arg("concurrency"))
        .await?;
    queue.pause().await?;
    assert!(worker.take().await?.is_none(), "while paused");
    queue.resume().await?;
    assert!(worker.take().await?.is_some());
    drop((second, third));
    Ok(())
}

/// A parent waits for its children, and fails with a child that says so.
#[tokio::test]
async fn a_parent_waits_for_its_children() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = BullQueue::new(&store, "mail")?;
    let children = BullQueue::new(&store, "parts")?;
    for fails in [false, true] {
        let child = NewJob::new("child", &1)?.fail_parent();
        let _ = queue
            .add_flow(Flow::new(NewJob::new("parent", &1)?).child(&children, child))
            .await?;
        let worker = queue.worker().build()?;
        assert!(worker.take().await?.is_none(), "the parent did not wait");
        let child = children
            .worker()
            .build()?
            .take()
            .await?
            .context("the child")?;
        if fails {
            assert_eq!(child.fail(JobError::new("broken")).await?, Ended::Failed);
            // The worker fails the parent by itself.
            assert!(worker.take().await?.is_none());
            let failed: u64 = store.query(cmd("ZCARD").arg("bull:mail:failed")).await?;
            assert_eq!(failed, 1);
        } else {
            assert_eq!(child.complete(&7).await?, Ended::Completed);
            let parent = worker.take().await?.context("the parent")?;
            assert_eq!(parent.complete(&()).await?, Ended::Completed);
        }
    }
    Ok(())
}

#[tokio::test]
async fn wrong_input_is_refused_before_anything_is_sent() -> Result<()> {
    let store = Store::connect("memory://").await?;
    for name in ["", "a:b"] {
        assert!(BullQueue::new(&store, name).unwrap_err().is_invalid());
    }
    assert!(
        BullQueue::builder(&store, "a")
            .major(4)
            .build()
            .unwrap_err()
            .is_invalid()
    );
    for id in ["", "17", "a:b"] {
        assert!(NewJob::new("x", &1)?.id(id).unwrap_err().is_invalid());
    }
    for priority in [0, 1 << 21] {
        let job = NewJob::new("x", &1)?.priority(priority);
        assert!(job.unwrap_err().is_invalid());
    }
    assert!(NewJob::new("x", &1)?.priority((1 << 21) - 1).is_ok());
    let queue = BullQueue::new(&store, "a")?;
    assert!(
        queue
            .worker()
            .concurrency(0)
            .build()
            .unwrap_err()
            .is_invalid()
    );
    assert_eq!(store.scan("*").await?, [""; 0]);
    Ok(())
}
