//! Jobs and tasks sent from here, run by Sidekiq and Celery themselves.

use std::time::Duration;

use anyhow::Result;
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    Budget, Inspector, Library,
    celery::{Celery, Task},
    recognise,
    sidekiq::{Sidekiq, Times},
};
use redstart_testkit::{Foreign, Kind, Language, figure, scale, unique_namespace, wait_until};
use serde_json::json;

use crate::{Side, library, long, on};

async fn celery_runs(side: Side) -> Result<()> {
    let tasks = scale(50, "adopt celery tasks");
    let store = side.store().await?;
    let queue = unique_namespace("celery");
    let celery = Celery::new(&store).queue(&queue);
    let mut ids = Vec::new();
    for n in 0..tasks {
        let task = match n % 3 {
            0 => Task::new("shop.add").args(&(n, 1))?,
            1 => Task::new("shop.add")
                .args(&[n])?
                .kwargs(&json!({"b": 1}))?
                .priority(6)?,
            _ => Task::new("shop.add")
                .args(&(n, 1))?
                .delay(Duration::from_millis(200)),
        };
        ids.push(celery.send(task).await?);
    }
    let failing = celery.send(Task::new("shop.fail")).await?;
    let port = side.port.to_string();
    let _worker = Foreign::start(
        Language::Python,
        &library("celery_worker.py"),
        &[&port, &queue],
    )?;
    for (n, id) in ids.iter().enumerate() {
        let result = wait_until("a result", long(), async || celery.result(id).await.ok()?).await?;
        assert_eq!(
            (result.status.as_str(), &result.result),
            ("SUCCESS", &json!(n + 1)),
            "task {n}"
        );
    }
    let result = wait_until("a failure", long(), async || {
        celery.result(&failing).await.ok()?
    })
    .await?;
    assert_eq!(result.status, "FAILURE");
    assert!(
        result
            .traceback
            .is_some_and(|trace| trace.contains("no luck"))
    );
    figure(format!(
        "{tasks} tasks from Rust run by Celery, results read back"
    ));
    Ok(())
}
on!(celery_runs: celery_runs_tasks_sent_from_here_and_its_results_are_read);

async fn sidekiq_runs(side: Side) -> Result<()> {
    let jobs = scale(50, "adopt sidekiq jobs");
    let store = side.store().await?;
    let queue = unique_namespace("sidekiq");
    // Debian's is version 6.
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    for n in 0..jobs {
        match n % 5 {
            4 => {
                sidekiq
                    .push_in(Duration::from_millis(200), &queue, "Charge", &(n, "eur"))
                    .await?
            }
            _ => sidekiq.push(&queue, "Charge", &(n, "eur")).await?,
        };
    }
    let port = side.port.to_string();
    let _worker = Foreign::start(
        Language::Ruby,
        &library("sidekiq_worker.rb"),
        &[&port, &queue],
    )?;
    let ran = format!("ran:{queue}");
    wait_until("sidekiq to run all jobs", long(), async || {
        let count: u64 = store.query(cmd("LLEN").arg(&ran)).await.ok()?;
        (count >= jobs).then_some(())
    })
    .await?;
    let mut ran: Vec<String> = store.query(cmd("LRANGE").arg(&ran).arg(0).arg(-1)).await?;
    ran.sort();
    let mut expected: Vec<String> = (0..jobs).map(|n| format!("{n} eur")).collect();
    expected.sort();
    assert_eq!(ran, expected);
    figure(format!("{jobs} jobs from Rust run by Sidekiq"));
    Ok(())
}
on!(sidekiq_runs: sidekiq_runs_jobs_pushed_from_here);

/// Workers that have a list for each priority, another separator and a prefix read what is sent with the same settings.
#[tokio::test(flavor = "multi_thread")]
async fn celery_finds_tasks_of_every_priority_under_its_transport_options() -> Result<()> {
    let side = Side::of(Kind::Redis, "options").await?;
    let store = side.store().await?;
    let (queue, app) = (unique_namespace("celery"), unique_namespace("app"));
    let prefix = format!("{app}:");
    let broker = json!({
        "sep": ":", "priority_steps": (0..10).collect::<Vec<_>>(), "queue_order_strategy": "priority",
        "global_keyprefix": prefix,
    });
    let results = json!({"global_keyprefix": app});
    let args = [
        side.port.to_string(),
        queue.clone(),
        broker.to_string(),
        results.to_string(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let _worker = Foreign::start(Language::Python, &library("celery_worker.py"), &args)?;
    let binding = format!("{prefix}_kombu.binding.{queue}");
    wait_until("the worker to bind its queue", long(), async || {
        let bound: u64 = store.query(cmd("SCARD").arg(&binding)).await.ok()?;
        (bound > 0).then_some(())
    })
    .await?;
    // A worker would not look there.
    let other = Celery::new(&store).queue(&queue).key_prefix(&prefix);
    let refused = other
        .send(Task::new("shop.add").args(&[1])?.priority(9)?)
        .await;
    assert!(refused.unwrap_err().is_invalid());
    // Bindings of earlier settings stay where they are.
    let earlier = format!("{queue}\u{6}\u{16}\u{6}\u{16}{queue}");
    let _: () = store.query(cmd("SADD").arg(&binding).arg(earlier)).await?;
    let celery = other
        .separator(":")
        .priority_steps(0..10)
        .result_key_prefix(&app);
    let mut ids = Vec::new();
    for priority in 0..10 {
        let task = Task::new("shop.add")
            .args(&(priority, 1))?
            .priority(priority)?;
        ids.push(celery.send(task).await?);
    }
    for (n, id) in ids.iter().enumerate() {
        let result = wait_until("a result", long(), async || celery.result(id).await.ok()?).await?;
        assert_eq!(result.result, json!(n + 1), "priority {n}");
    }
    Ok(())
}

/// Recognition and inspection follow the binding to the lists of other settings.
#[tokio::test]
async fn a_queue_of_celery_with_other_settings_is_recognised_and_counted() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let _: () = store
        .query(cmd("SADD").arg("app:_kombu.binding.mail").arg("mail::mail"))
        .await?;
    let celery = Celery::new(&store)
        .queue("mail")
        .key_prefix("app:")
        .separator(":")
        .priority_steps(0..10);
    for priority in 0..10 {
        celery.send(Task::new("x").priority(priority)?).await?;
    }
    let keys = store.scan("app:mail*").await?;
    assert_eq!(keys.len(), 10, "{keys:?}");
    let overview = Inspector::new(&store, Library::Celery, "app:mail")?;
    assert_eq!(overview.overview().await?.count("waiting"), 10);
    assert_eq!(overview.jobs("waiting", 0, 50).await?.len(), 10);
    let recognition = recognise(&store, &Budget::default()).await?;
    let found: Vec<&str> = recognition
        .of(Library::Celery)
        .map(|one| one.subject.as_str())
        .collect();
    assert_eq!(found, ["app:mail"]);
    assert_eq!(recognition.unowned, []);
    Ok(())
}

/// A class that is not to be retried is not; the keys are those of the namespace.
#[tokio::test(flavor = "multi_thread")]
async fn sidekiq_retries_as_the_class_says_and_is_reached_in_its_namespace() -> Result<()> {
    let side = Side::of(Kind::Redis, "namespace").await?;
    let store = side.store().await?;
    let (queue, app) = (unique_namespace("sidekiq"), unique_namespace("app"));
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let none: [u8; 0] = [];
    // One at a time, in this order: when the last one runs, the others have been dealt with.
    sidekiq.push(&queue, "Once", &none).await?;
    sidekiq.push(&queue, "Again", &none).await?;
    sidekiq.clone().retry(3).push(&queue, "Once", &none).await?;
    sidekiq.push(&queue, "Charge", &(1, "eur")).await?;
    let later = Duration::from_millis(100);
    sidekiq
        .push_in(later, &queue, "Charge", &(2, "eur"))
        .await?;
    let port = side.port.to_string();
    let _worker = Foreign::start(
        Language::Ruby,
        &library("sidekiq_worker.rb"),
        &[&port, &queue, &app],
    )?;
    let ran = format!("{app}:ran:{queue}");
    let ran = wait_until("sidekiq to run the jobs", long(), async || {
        let ran: Vec<String> = store
            .query(cmd("LRANGE").arg(&ran).arg(0).arg(-1))
            .await
            .ok()?;
        ran.contains(&"2 eur".to_owned()).then_some(ran)
    })
    .await?;
    assert!(ran.contains(&"1 eur".to_owned()), "{ran:?}");
    let retried: Vec<String> = store
        .query(cmd("ZRANGE").arg(format!("{app}:retry")).arg(0).arg(-1))
        .await?;
    let mut retried: Vec<(String, serde_json::Value)> = retried
        .iter()
        .map(|job| {
            let job: serde_json::Value = serde_json::from_str(job).unwrap();
            (
                job["class"].as_str().unwrap().to_owned(),
                job["retry"].clone(),
            )
        })
        .collect();
    retried.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("Again".to_owned(), json!(true)),
        ("Once".to_owned(), json!(3)),
    ];
    assert_eq!(retried, expected);
    Ok(())
}

/// Version 8 writes milliseconds.
#[tokio::test]
async fn times_are_in_the_format_of_the_version() -> Result<()> {
    let store = Store::connect("memory://").await?;
    Sidekiq::new(&store, Times::Seconds)
        .push("a", "Charge", &[1])
        .await?;
    Sidekiq::new(&store, Times::Millis)
        .push("a", "Charge", &[1])
        .await?;
    let jobs: Vec<String> = store
        .query(cmd("LRANGE").arg("queue:a").arg(0).arg(-1))
        .await?;
    let at =
        |job: &str| serde_json::from_str::<serde_json::Value>(job).unwrap()["created_at"].clone();
    assert!(at(&jobs[0]).is_u64() && at(&jobs[0]).as_u64() > Some(1_000_000_000_000));
    assert!(at(&jobs[1]).is_f64() && at(&jobs[1]).as_f64() < Some(1e11));
    Ok(())
}

#[tokio::test]
async fn what_the_library_could_not_run_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let late = Task::new("x").delay(Duration::from_secs(3600));
    assert!(
        Celery::new(&store)
            .send(late.clone())
            .await
            .unwrap_err()
            .is_invalid()
    );
    let patient = Celery::new(&store).visibility_timeout(Duration::from_secs(7200));
    assert!(patient.send(late).await.is_ok());
    assert!(Task::new("x").args(&1).unwrap_err().is_invalid());
    assert!(Task::new("x").kwargs(&[1]).unwrap_err().is_invalid());
    assert!(Task::new("x").priority(10).unwrap_err().is_invalid());
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    for (queue, class) in [("", "A"), ("q", ""), ("queue:q", "A"), ("app:queue:q", "A")] {
        assert!(
            sidekiq
                .push(queue, class, &[1])
                .await
                .unwrap_err()
                .is_invalid()
        );
    }
    assert!(sidekiq.push("q", "A", &1).await.unwrap_err().is_invalid());
    Ok(())
}
