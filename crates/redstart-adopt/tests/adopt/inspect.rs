//! Queues as the libraries left them, through one interface; and the plan for them.

use anyhow::{Context as _, Result};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    Budget, Inspector, Library, Payload, Plan, recognise,
    sidekiq::{Sidekiq, Times},
};
use redstart_testkit::{Foreign, Kind, Language, MonitorTap, Server, unique_namespace, wait_until};

use crate::{
    Side, library, long, on,
    recognise::{fill, only_reads},
};

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_four_libraries_are_shown_without_a_write() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=10s", server.url())).await?;
    fill(server.port(), &store).await?;
    let tap = MonitorTap::start(&server).await?;

    // What specimens.js, specimens.py and specimens.rb have left.
    for (library, subject, counts) in [
        (
            Library::BullMq,
            "bull:mail-five",
            &[
                ("waiting", 1),
                ("delayed", 1),
                ("completed", 2),
                ("failed", 0),
            ][..],
        ),
        (
            Library::BullMq,
            "bull:mail-six",
            &[("waiting", 1), ("delayed", 1), ("completed", 2)],
        ),
        (
            Library::Bull,
            "bull:mail-four",
            &[("waiting", 1), ("delayed", 1), ("completed", 1)],
        ),
        (
            Library::Sidekiq,
            "queue:default",
            &[("enqueued", 1), ("scheduled", 1), ("dead", 0)],
        ),
        (Library::Celery, "celery", &[("waiting", 3), ("unacked", 0)]),
        (
            Library::Rq,
            "rq:queue:default",
            &[("queued", 2), ("failed", 0)],
        ),
    ] {
        let inspector = Inspector::new(&store, library, subject)?;
        let overview = inspector.overview().await?;
        for (state, count) in counts {
            assert_eq!(
                overview.count(state),
                *count,
                "{subject} {state}: {overview:?}"
            );
            let jobs = inspector.jobs(state, 0, 50).await?;
            assert_eq!(jobs.len() as u64, *count, "{subject} {state}: {jobs:?}");
            assert!(jobs.iter().all(|job| !job.id.is_empty()), "{jobs:?}");
        }
        let has_age = library != Library::Celery;
        assert_eq!(
            overview.oldest_ms.is_some_and(|ms| ms < 600_000),
            has_age,
            "{overview:?}"
        );
        let error = inspector.jobs("nonsense", 0, 1).await.unwrap_err();
        assert!(error.is_invalid(), "{error}");
    }
    payloads_are_shown(&store).await?;
    only_reads(tap, &["lindex", "hget", "hexists", "hvals", "xrevrange"]).await
}

async fn payloads_are_shown(store: &Store) -> Result<()> {
    let json = |text: &str| Payload::Json {
        text: text.to_owned(),
    };
    let first = async |library, subject, state| -> Result<_> {
        let jobs = Inspector::new(store, library, subject)?
            .jobs(state, 0, 1)
            .await?;
        jobs.into_iter().next().context("a job")
    };
    let bullmq = first(Library::BullMq, "bull:mail-six", "waiting").await?;
    assert_eq!(
        (bullmq.name.as_str(), bullmq.payload),
        ("waits", json(r#"{"to":"d@example.org"}"#))
    );
    let sidekiq = first(Library::Sidekiq, "queue:default", "enqueued").await?;
    assert_eq!(
        (sidekiq.name.as_str(), sidekiq.payload),
        ("Charge", json("[1]"))
    );
    let celery = first(Library::Celery, "celery", "waiting").await?;
    assert_eq!(celery.name, "shop.charge");
    assert!(
        matches!(&celery.payload, Payload::Json { text } if text.starts_with("[[1]")),
        "{celery:?}"
    );
    let rq = first(Library::Rq, "rq:queue:default", "queued").await?;
    assert_eq!(rq.name, "shop.charge(1)");
    // A compressed pickle stays what it is.
    assert!(
        matches!(rq.payload, Payload::Bytes { format: "zlib", .. }),
        "{rq:?}"
    );
    Ok(())
}

/// Attempts, errors and ages of jobs that failed, that are tried again and that run, as each library leaves them.
async fn failures(side: Side) -> Result<()> {
    let store = side.store().await?;
    let name = unique_namespace("failures");
    let port = side.port.to_string();
    let mut python = Foreign::start(Language::Python, &library("failures.py"), &[&port, &name])?;
    for module in ["bullmq5", "bullmq6"] {
        let queue = format!("{name}-{module}");
        let script = library("failures.js");
        let mut node = Foreign::start(Language::Node, &script, &[module, &port, &queue])?;
        assert_eq!(node.line().await?, "ready");
        let subject = format!("bull:{queue}");
        let inspector = Inspector::new(&store, Library::BullMq, &subject)?;
        let overview = inspector.overview().await?;
        assert!(overview.oldest_active_ms.is_some(), "{overview:?}");
        assert!(overview.oldest_ms.is_some(), "of a priority: {overview:?}");
        for (state, job) in [("failed", "fails"), ("delayed", "again")] {
            let jobs = inspector.jobs(state, 0, 10).await?;
            assert_eq!((jobs.len(), jobs[0].name.as_str()), (1, job));
            assert_eq!(jobs[0].attempts, Some(1), "{jobs:?}");
            assert_eq!(jobs[0].error.as_deref(), Some("no luck"));
        }
        node.wait().await?;
    }
    failures_of_sidekiq(&side, &store, &name).await?;

    assert_eq!(python.line().await?, "ready");
    let rq = Inspector::new(&store, Library::Rq, &format!("rq:queue:{name}"))?;
    for (state, attempts, error) in [
        (
            "failed",
            Some(1),
            Some("ZeroDivisionError: division by zero"),
        ),
        // RQ keeps neither the number nor the reason of attempts that are followed by another one.
        ("scheduled", None, None),
    ] {
        let jobs = rq.jobs(state, 0, 10).await?;
        assert_eq!(jobs.len(), 1, "{state}");
        assert_eq!(
            (jobs[0].attempts, jobs[0].error.as_deref()),
            (attempts, error),
            "{state}"
        );
    }
    let held = Inspector::new(&store, Library::Rq, &format!("rq:queue:{name}-held"))?;
    let overview = held.overview().await?;
    assert_eq!(overview.count("started"), 1);
    assert!(
        overview.oldest_active_ms.is_some_and(|ms| ms < 600_000),
        "{overview:?}"
    );
    // The worker of Celery has taken the second attempt and waits until it is due.
    let celery = Inspector::new(&store, Library::Celery, &name)?;
    let task = wait_until("the second attempt to be taken", long(), async || {
        let tasks = celery.jobs("unacked", 0, 100).await.ok()?;
        tasks
            .into_iter()
            .find(|task| task.name == "shop.again" && task.attempts == Some(1))
    })
    .await?;
    assert_eq!(task.error.as_deref(), Some("ValueError: no luck"));
    let overview = celery.overview().await?;
    assert!(overview.oldest_active_ms.is_some(), "{overview:?}");
    python.wait().await?;
    Ok(())
}
on!(failures: attempts_errors_and_ages_of_failed_and_running_jobs_are_shown);

async fn failures_of_sidekiq(side: &Side, store: &Store, name: &str) -> Result<()> {
    let none: [u8; 0] = [];
    let sidekiq = Sidekiq::new(store, Times::Seconds).namespace(name);
    for class in ["Again", "Hang"] {
        sidekiq.push("q", class, &none).await?;
    }
    let port = side.port.to_string();
    let script = library("sidekiq_worker.rb");
    let ruby = Foreign::start(Language::Ruby, &script, &[&port, "q", name])?;
    let inspector = Inspector::new(store, Library::Sidekiq, &format!("{name}:queue:q"))?;
    let job = wait_until("a retry", long(), async || {
        inspector.jobs("retry", 0, 1).await.ok()?.pop()
    })
    .await?;
    assert_eq!((job.name.as_str(), job.attempts), ("Again", Some(1)));
    assert_eq!(job.error.as_deref(), Some("no luck"));
    // Processes of Sidekiq write down what they run with their heartbeats.
    wait_until("the heartbeat of the process", long(), async || {
        inspector.overview().await.ok()?.oldest_active_ms
    })
    .await?;
    ruby.kill9();
    Ok(())
}

/// A payload that is large is not read, and a page is bounded.
#[tokio::test]
async fn large_payloads_are_not_read() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let large = "x".repeat(100_000);
    for id in 0..150 {
        let mut job = cmd("HSET");
        job.arg(format!("bull:mail:{id}"))
            .arg(&["name", "n", "data"])
            .arg(if id == 0 { large.as_str() } else { "{}" });
        let _: () = store.query(&job).await?;
        let _: () = store
            .query(cmd("LPUSH").arg("bull:mail:wait").arg(id))
            .await?;
    }
    let inspector = Inspector::new(&store, Library::BullMq, "bull:mail")?;
    let jobs = inspector.jobs("waiting", 0, 1_000).await?;
    assert_eq!(jobs.len(), 100);
    assert_eq!(jobs[0].payload, Payload::Large { len: 100_000 });
    let rest = inspector.jobs("waiting", 100, 1_000).await?;
    assert_eq!((rest.len(), rest[0].id.as_str()), (50, "100"));
    assert!(
        Inspector::new(&store, Library::ConnectRedis, "sess:*")
            .unwrap_err()
            .is_invalid()
    );
    Ok(())
}

/// Where sharing works there are steps with a check and a way back. Where nothing shares the keys the advice is to stay, which the tests
/// of the plan itself check.
#[tokio::test]
async fn a_plan_has_steps_with_a_way_back_or_says_to_stay() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let _: () = store
        .query(
            cmd("HSET")
                .arg("bull:mail:meta")
                .arg("version")
                .arg("bullmq:5.81.5"),
        )
        .await?;
    let session = r#"{"cookie":{"originalMaxAge":1,"path":"/"}}"#;
    let _: () = store
        .query(
            cmd("SET")
                .arg("sess:u8Zk3PqWmVtR0yXbN5cE2aLhJ7sDgF1o")
                .arg(session),
        )
        .await?;
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    let queue = plan
        .items
        .iter()
        .find(|item| item.library == Some(Library::BullMq))
        .context("the queue")?;
    let names: Vec<&str> = queue.steps.iter().map(|step| step.step).collect();
    assert_eq!(names, ["shadow", "share", "drain", "switch"]);
    assert!(
        queue
            .steps
            .iter()
            .all(|step| !step.check.is_empty() && !step.back.is_empty())
    );
    let sessions = plan
        .items
        .iter()
        .find(|item| item.library == Some(Library::ConnectRedis))
        .context("sessions")?;
    assert!(sessions.advice.starts_with("Stay"));
    let names: Vec<&str> = sessions.steps.iter().map(|step| step.step).collect();
    assert_eq!(names, ["shadow", "share"]);
    let text = plan.markdown();
    assert!(
        text.contains("## queue `bull:mail`") && text.contains("1. **shadow**"),
        "{text}"
    );
    Ok(())
}

/// A namespace may end as the key of a queue begins.
#[tokio::test]
async fn a_namespace_that_ends_in_queue_is_a_namespace() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let subject = "jobqueue:queue:default";
    let _: u64 = store
        .query(cmd("ZADD").arg("jobqueue:retry").arg(1).arg("{}"))
        .await?;
    let _: u64 = store.query(cmd("LPUSH").arg(subject).arg("{}")).await?;
    let overview = Inspector::new(&store, Library::Sidekiq, subject)?
        .overview()
        .await?;
    let count = |name: &str| overview.states.iter().find(|state| state.name == name);
    assert_eq!(count("retry").map(|state| state.count), Some(1));
    assert_eq!(count("enqueued").map(|state| state.count), Some(1));
    Ok(())
}

#[tokio::test]
async fn queues_of_rq_are_paused_while_their_workers_are_suspended() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let queue = Inspector::new(&store, Library::Rq, "rq:queue:default")?;
    assert!(!queue.overview().await?.paused);
    let () = store.query(cmd("SET").arg("rq:suspended").arg(1)).await?;
    assert!(queue.overview().await?.paused);
    Ok(())
}
