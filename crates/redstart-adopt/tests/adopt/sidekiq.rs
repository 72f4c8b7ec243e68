//! Our consumer of Sidekiq's queues: killed, failing, and as Sidekiq Web shows it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::sidekiq::{JobFailure, Sidekiq, SidekiqJob, Times};
use redstart_testkit::{
    Child, Foreign, Kind, Language, child, figure, scale, unique_namespace, wait_until,
};
use serde_json::{Value, json};

use crate::{Side, library, long, on};

const SHORT: Duration = Duration::from_millis(20);

async fn list(store: &Store, key: &str) -> Result<Vec<String>> {
    Ok(store.query(cmd("LRANGE").arg(key).arg(0).arg(-1)).await?)
}

/// Runs the consumer of `queue` until `done` says so.
async fn consume<F>(
    sidekiq: &Sidekiq,
    queue: &str,
    handler: impl Fn(SidekiqJob) -> F,
    done: impl AsyncFn() -> bool,
) -> Result<()>
where
    F: Future<Output = Result<(), JobFailure>>,
{
    let consumer = sidekiq
        .consumer(queue)
        .lease(Duration::from_secs(2))
        .poll(SHORT)
        .backoff(|_| SHORT)
        .build()?;
    let stop = async {
        while !done().await {
            tokio::time::sleep(SHORT).await;
        }
    };
    Ok(tokio::time::timeout(long(), consumer.run(handler, stop)).await??)
}

/// Consumers are killed with jobs in their hands. Every job runs.
async fn kills(side: Side) -> Result<()> {
    let rounds = scale(3, "adopt sidekiq kills");
    let store = side.store().await?;
    let app = match child::role() {
        Some(_) => std::env::var("ADOPT_QUEUE")?,
        None => unique_namespace("kills"),
    };
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let ran = format!("{app}:ran");
    let handler = |job: SidekiqJob| {
        let (store, ran) = (store.clone(), ran.clone());
        async move {
            // The work of a job, in which it is killed; nothing waits for this time to pass.
            tokio::time::sleep(Duration::from_millis(30)).await;
            let _: u64 = store.query(cmd("RPUSH").arg(ran).arg(job.id())).await?;
            Ok(())
        }
    };
    if child::role().is_some() {
        let consumer = sidekiq
            .consumer("q")
            .concurrency(5)
            .lease(Duration::from_secs(1))
            .build()?;
        child::say("ready");
        consumer.run(handler, std::future::pending()).await?;
        return Ok(());
    }
    let mut pushed = BTreeSet::new();
    let mut in_hand = 0;
    for round in 0..rounds {
        for n in 0..30 {
            pushed.insert(sidekiq.push("q", "Charge", &[n]).await?);
        }
        let mut consumer = Child::of(&side.test)
            .role("consumer")
            .env("ADOPT_QUEUE", &app)
            .env("ADOPT_PORT", &side.port.to_string())
            .spawn()?;
        assert_eq!(consumer.line().await?, "ready");
        // Its own list, not those of consumers that were killed before.
        let own = format!("{app}:redstart:sidekiq:working:*:{}:*", consumer.pid());
        let jobs = async || -> Result<u64> {
            match store.scan(&own).await?.first() {
                Some(list) => Ok(store.query(cmd("LLEN").arg(list)).await?),
                None => Ok(0),
            }
        };
        // In every second round it has ended some before.
        let before = list(&store, &ran).await?.len();
        wait_until("jobs to run", long(), async || {
            let ended = list(&store, &ran).await.ok()?.len() > before;
            (jobs().await.ok()? >= 3 && (ended || round % 2 == 0)).then_some(())
        })
        .await?;
        consumer.kill9();
        in_hand += jobs().await?;
    }
    ensure!(in_hand > 0, "no job was in the hands of a killed consumer");
    consume(&sidekiq, "q", &handler, async || {
        let ran = list(&store, &ran).await.unwrap_or_default();
        ran.iter().collect::<BTreeSet<_>>().len() == pushed.len()
    })
    .await?;
    let ran = list(&store, &ran).await?;
    let distinct: BTreeSet<String> = ran.iter().cloned().collect();
    ensure!(
        distinct == pushed,
        "{} of {} jobs ran",
        distinct.len(),
        pushed.len()
    );
    let waiting: u64 = store
        .query(cmd("LLEN").arg(format!("{app}:queue:q")))
        .await?;
    ensure!(waiting == 0, "{waiting} jobs still wait");
    figure(format!(
        "{rounds} kills -9 of our Sidekiq consumer with {in_hand} jobs in hand, {} jobs, 0 lost, {} run again",
        pushed.len(),
        ran.len() - distinct.len()
    ));
    Ok(())
}
on!(kills: no_job_of_sidekiq_is_lost_when_our_consumer_is_killed);

/// What the same costs free Sidekiq: it takes jobs off their list before it runs them.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_of_free_sidekiq_loses_the_jobs_that_it_runs() -> Result<()> {
    let rounds = scale(1, "adopt sidekiq free kills");
    let side = Side::of(Kind::Redis, "free").await?;
    let store = side.store().await?;
    let queue = unique_namespace("free");
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    let none: [u8; 0] = [];
    let port = side.port.to_string();
    let mut lost = 0;
    for round in 1..=rounds {
        for _ in 0..2 {
            sidekiq.push(&queue, "Hang", &none).await?;
        }
        let worker = Foreign::start(
            Language::Ruby,
            &library("sidekiq_worker.rb"),
            &[&port, &queue],
        )?;
        let ran = format!("ran:{queue}");
        wait_until("both jobs to begin", long(), async || {
            let begun: u64 = store.query(cmd("LLEN").arg(&ran)).await.ok()?;
            (begun >= 2 * round).then_some(())
        })
        .await?;
        worker.kill9();
        let waiting: u64 = store
            .query(cmd("LLEN").arg(format!("queue:{queue}")))
            .await?;
        lost += 2 - waiting;
    }
    assert_eq!(lost, 2 * rounds);
    figure(format!(
        "{rounds} kills -9 of free Sidekiq with {lost} jobs in hand, {lost} lost"
    ));
    Ok(())
}

/// Failures are in the retries and among the dead jobs as Sidekiq's own API shows them, and its buttons put them back.
async fn as_the_page_shows(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("web");
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let jid = sidekiq
        .clone()
        .retry(2)
        .push("q", "Boom", &(7, "ä"))
        .await?;
    let fatal = sidekiq.push("q", "Fatal", &[1]).await?;
    let count = Arc::new(AtomicU64::new(0));
    let handler = |job: SidekiqJob| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            match job.class() {
                "Fatal" => Err(JobFailure::fatal("never")),
                _ => Err(JobFailure::new("no luck").class("Net::ReadTimeout")),
            }
        }
    };
    let port = side.port.to_string();
    let page = async |action: &str| -> Result<Value> {
        let args = [port.as_str(), &app, action];
        let lines = Foreign::run(Language::Ruby, &library("sidekiq_api.rb"), &args).await?;
        Ok(serde_json::from_str(lines.first().context("a line")?)?)
    };
    // A retry that waits for an hour is still there when the page is looked at.
    let consumer = sidekiq
        .consumer("q")
        .backoff(|_| Duration::from_secs(3600))
        .build()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        wait_until("both jobs to fail", long(), async || {
            let failed: Option<u64> = store
                .query(cmd("GET").arg(format!("{app}:stat:failed")))
                .await
                .ok()?;
            (failed? >= 2).then_some(())
        })
        .await?;
        let shown = page("").await;
        drop(stop);
        shown
    };
    let (ran, shown) = tokio::join!(consumer.run(&handler, async { drop(stopped.await) }), look);
    ran?;
    let shown = shown?;
    let (retry, dead) = (&shown["retries"][0], &shown["dead"][0]);
    assert_eq!(
        (
            &retry["class"],
            &retry["jid"],
            &retry["queue"],
            &retry["args"],
            &retry["error"],
            &retry["message"],
            &retry["count"]
        ),
        (
            &json!("Boom"),
            &json!(jid),
            &json!("q"),
            &json!([7, "ä"]),
            &json!("Net::ReadTimeout"),
            &json!("no luck"),
            &json!(0)
        )
    );
    assert!(
        retry["failed_at"].is_f64() && retry["retried_at"].is_null(),
        "{retry}"
    );
    assert_eq!(
        (&dead["jid"], &dead["message"], &dead["error"]),
        (&json!(fatal), &json!("never"), &json!("RuntimeError"))
    );
    assert_eq!(
        (&shown["processed"], &shown["failed"]),
        (&json!(2), &json!(2))
    );
    let process = &shown["processes"][0];
    assert_eq!(
        (&process["identity"], &process["queues"]),
        (&json!(consumer.identity()), &json!(["q"]))
    );

    // Put back by Sidekiq: both run again, and the retries of the first are used up after three more runs.
    let after = page("retry-all").await?;
    assert_eq!(
        (&after["retries"], &after["processes"]),
        (&json!([]), &json!([]))
    );
    consume(&sidekiq, "q", &handler, async || {
        count.load(Ordering::Relaxed) >= 6
    })
    .await?;
    let shown = page("").await?;
    assert_eq!(shown["retries"], json!([]));
    let counts: BTreeSet<(String, u64)> = shown["dead"]
        .as_array()
        .context("dead jobs")?
        .iter()
        .map(|job| {
            (
                job["class"].as_str().unwrap_or_default().to_owned(),
                job["count"].as_u64().unwrap_or(99),
            )
        })
        .collect();
    assert_eq!(
        counts,
        BTreeSet::from([("Boom".to_owned(), 2), ("Fatal".to_owned(), 0)])
    );
    Ok(())
}
on!(as_the_page_shows: failures_are_shown_and_put_back_by_sidekiq_itself);

/// Jobs from Ruby, run here; and a retry of ours, run by Ruby.
async fn beside_ruby(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("beside");
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let queue = "q";
    sidekiq.push(queue, "Charge", &(1, "eur")).await?;
    // It fails here, and is due again at once.
    let failures = AtomicU64::new(0);
    let handler = |_: SidekiqJob| {
        failures.fetch_add(1, Ordering::Relaxed);
        async { Err(JobFailure::new("only Ruby can")) }
    };
    let consumer = sidekiq
        .consumer(queue)
        .backoff(|_| Duration::ZERO)
        .poll(long())
        .build()?;
    let stop = async {
        while failures.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(SHORT).await;
        }
    };
    tokio::time::timeout(long(), consumer.run(handler, stop)).await??;
    let port = side.port.to_string();
    let _worker = Foreign::start(
        Language::Ruby,
        &library("sidekiq_worker.rb"),
        &[&port, queue, &app],
    )?;
    let ran = format!("{app}:ran:{queue}");
    wait_until("Ruby to run the retry", long(), async || {
        let ran = list(&store, &ran).await.ok()?;
        ran.contains(&"1 eur".to_owned()).then_some(())
    })
    .await
}
on!(beside_ruby: a_retry_of_ours_is_run_by_ruby);

/// A consumer that was stopped for longer than its lease cannot end a job that others have.
#[tokio::test]
async fn a_job_that_was_given_back_is_not_ended_by_its_old_run() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Millis);
    sidekiq.push("q", "A", &[1]).await?;
    let runs = AtomicU64::new(0);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = std::sync::Mutex::new(Some(stop));
    let handler = |_: SidekiqJob| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        let (store, sidekiq, stop) = (&store, &sidekiq, &stop);
        async move {
            let processed: Option<u64> = store.query(cmd("GET").arg("stat:processed")).await?;
            assert_eq!(processed, None, "the first run has ended the job");
            if run == 0 {
                assert_eq!(sidekiq.recover().await?, 0, "its heartbeat is fresh");
                store.advance(Duration::from_secs(61))?;
                assert_eq!(sidekiq.recover().await?, 1);
            } else {
                drop(stop.lock().unwrap().take());
            }
            Ok(())
        }
    };
    let consumer = sidekiq.consumer("q").concurrency(1).build()?;
    tokio::time::timeout(long(), consumer.run(handler, async { drop(stopped.await) })).await??;
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let processed: u64 = store.query(cmd("GET").arg("stat:processed")).await?;
    assert_eq!(processed, 1);
    assert_eq!(store.scan("*working*").await?, [""; 0]);
    Ok(())
}

/// Nothing is left behind, whatever a job says about its retries; times are in the format of the version.
#[tokio::test]
async fn a_failed_job_goes_where_it_says() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Millis);
    let push = async |job: &str| {
        store
            .query::<u64>(cmd("LPUSH").arg("queue:q").arg(job))
            .await
    };
    push(r#"{"class":"Dropped","jid":"a","args":[],"retry":false}"#).await?;
    push(r#"{"class":"Dead","jid":"b","args":[12345678901234567890123],"retry":0}"#).await?;
    push(r#"{"class":"Gone","jid":"c","args":[],"retry":0,"dead":false}"#).await?;
    push(r#"{"class":"Low","jid":"d","args":[],"retry":true,"retry_queue":"low","retry_count":3}"#)
        .await?;
    push("no job").await?;
    let _: u64 = store
        .query(cmd("LPUSH").arg("queue:q").arg(b"\xff\xfe".as_slice()))
        .await?;
    let handler = |_: SidekiqJob| async { Err(JobFailure::new("no luck")) };
    let consumer = sidekiq
        .consumer("q")
        .poll(long())
        .backoff(|count| Duration::from_secs(count.into()))
        .build()?;
    let stop = async {
        loop {
            let processed: Option<u64> = store
                .query(cmd("GET").arg("stat:processed"))
                .await
                .unwrap_or(None);
            if processed == Some(6) {
                break;
            }
            tokio::time::sleep(SHORT).await;
        }
    };
    tokio::time::timeout(long(), consumer.run(handler, stop)).await??;
    let zset = async |key: &str| {
        store
            .query::<Vec<Vec<u8>>>(cmd("ZRANGE").arg(key).arg(0).arg(-1))
            .await
    };
    let retries = zset("retry").await?;
    let low: Value = serde_json::from_slice(&retries[0])?;
    assert_eq!(
        (retries.len(), &low["queue"], &low["retry_count"]),
        (1, &json!("low"), &json!(4))
    );
    assert!(
        low["retried_at"].is_u64() && low["failed_at"].is_null(),
        "{low}"
    );
    let dead = zset("dead").await?;
    assert_eq!(dead.len(), 3);
    assert!(dead.contains(&b"no job".to_vec()) && dead.contains(&b"\xff\xfe".to_vec()));
    let kept = dead
        .iter()
        .find(|job| job.starts_with(b"{"))
        .context("the dead job")?;
    assert!(String::from_utf8_lossy(kept).contains("[12345678901234567890123]"));
    let failed: u64 = store.query(cmd("GET").arg("stat:failed")).await?;
    assert_eq!(failed, 6);

    // The retry is due: it goes to its queue, in one step, with the time of that.
    assert_eq!(sidekiq.promote().await?, 0);
    store.advance(Duration::from_secs(10))?;
    assert_eq!(sidekiq.promote().await?, 1);
    let low: Value = serde_json::from_str(&list(&store, "queue:low").await?[0])?;
    assert!(low["enqueued_at"].is_u64(), "{low}");
    assert!(zset("retry").await?.is_empty());
    let queues: Vec<String> = store.query(cmd("SMEMBERS").arg("queues")).await?;
    assert_eq!(queues, ["low"]);
    Ok(())
}

#[tokio::test]
async fn a_consumer_that_could_not_work_is_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    for queue in ["", "queue:q", "app:queue:q"] {
        assert!(
            sidekiq.consumer(queue).build().unwrap_err().is_invalid(),
            "{queue}"
        );
    }
    assert!(
        sidekiq
            .consumer("q")
            .concurrency(0)
            .build()
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        sidekiq
            .consumer("q")
            .lease(SHORT)
            .build()
            .unwrap_err()
            .is_invalid()
    );
    assert!(
        sidekiq
            .consumer("q")
            .poll(Duration::ZERO)
            .build()
            .unwrap_err()
            .is_invalid()
    );
    Ok(())
}
