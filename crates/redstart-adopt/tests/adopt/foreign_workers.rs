//! Jobs and tasks sent from here, run by Sidekiq and Celery themselves.

use std::time::Duration;

use anyhow::Result;
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    celery::{Celery, Task},
    sidekiq::{Sidekiq, Times},
};
use redstart_testkit::{Foreign, Language, figure, scale, unique_namespace, wait_until};
use serde_json::json;

use crate::{Side, library, on};

const LONG: Duration = Duration::from_secs(100);

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
        let result = wait_until("a result", LONG, async || celery.result(id).await.ok()?).await?;
        assert_eq!(
            (result.status.as_str(), &result.result),
            ("SUCCESS", &json!(n + 1)),
            "task {n}"
        );
    }
    let result = wait_until("a failure", LONG, async || {
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
    wait_until("sidekiq to run all jobs", LONG, async || {
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
    for (queue, class) in [("", "A"), ("q", "")] {
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
