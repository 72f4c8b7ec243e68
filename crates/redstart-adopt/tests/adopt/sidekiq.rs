//! Our consumer of Sidekiq's queues: killed, failing, and as Sidekiq Web shows it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::sidekiq::{JobFailure, Sidekiq, SidekiqJob, Times};
use redstart_testkit::{
    Child, Foreign, Language, Proxy, child, figure, scale, unique_namespace, wait_until,
};
use serde_json::{Value, json};

use crate::{Side, dialogue::Dialogue, library, long, on};

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

/// Ruby, which pushes jobs by its own `perform_async`.
struct Pusher(Dialogue);

impl Pusher {
    fn start(side: &Side, app: &str) -> Result<Self> {
        let port = side.port.to_string();
        let args = [port.as_str(), "q", app];
        Ok(Self(Dialogue::start(
            Language::Ruby,
            "sidekiq_push.rb",
            &args,
        )?))
    }

    async fn push(&mut self, jobs: u64) -> Result<Vec<String>> {
        Ok(serde_json::from_value(self.0.ask(json!(jobs)).await?)?)
    }
}

/// Consumers are killed with jobs in their hands, while a process of Ruby works on the same queue. Every job runs.
async fn kills(side: Side) -> Result<()> {
    let rounds = scale(3, "adopt sidekiq kills");
    let store = side.store().await?;
    let app = match child::role() {
        Some(_) => std::env::var("ADOPT_QUEUE")?,
        None => unique_namespace("kills"),
    };
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let ran = format!("{app}:ran");
    // A consumer that is to be killed ends some jobs and then holds the others, however late its killer looks.
    let left = match child::role() {
        Some(_) => AtomicU64::new(10),
        None => AtomicU64::new(u64::MAX),
    };
    let handler = |job: SidekiqJob| {
        let (store, ran, left) = (store.clone(), ran.clone(), &left);
        async move {
            let another = |left: u64| left.checked_sub(1);
            if left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, another)
                .is_err()
            {
                return std::future::pending().await;
            }
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
    let mut ruby = Pusher::start(&side, &app)?;
    let port = side.port.to_string();
    let _worker = Foreign::start(
        Language::Ruby,
        &library("sidekiq_worker.rb"),
        &[&port, "q", &app],
    )?;
    let theirs = format!("{app}:ran:q");
    let mut pushed: BTreeSet<String> = ruby.push(1).await?.into_iter().collect();
    wait_until("Ruby to run a job", long(), async || {
        (!list(&store, &theirs).await.ok()?.is_empty()).then_some(())
    })
    .await?;
    let mut in_hand = 0;
    for round in 0..rounds {
        let mut consumer = Child::of(&side.test)
            .role("consumer")
            .env("ADOPT_QUEUE", &app)
            .env("ADOPT_PORT", &side.port.to_string())
            .spawn()?;
        assert_eq!(consumer.line().await?, "ready");
        // Both sides take what they can get.
        pushed.extend(ruby.push(30).await?);
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
    let all = async || -> Result<Vec<String>> {
        let ours = list(&store, &ran).await?;
        Ok([ours, list(&store, &theirs).await?].concat())
    };
    consume(&sidekiq, "q", &handler, async || {
        let ran = all().await.unwrap_or_default();
        ran.iter().collect::<BTreeSet<_>>().len() == pushed.len()
    })
    .await?;
    let (by_us, by_ruby) = (
        list(&store, &ran).await?.len(),
        list(&store, &theirs).await?.len(),
    );
    ensure!(
        by_us > 0 && by_ruby > 1,
        "{by_us} ran here, {by_ruby} in Ruby"
    );
    let ran = all().await?;
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
        "{rounds} kills -9 of our Sidekiq consumer beside Ruby with {in_hand} jobs in hand, {} jobs from Ruby, {by_ruby} run by it, 0 lost, {} run again",
        pushed.len(),
        ran.len() - distinct.len()
    ));
    Ok(())
}
on!(kills: no_job_of_sidekiq_is_lost_when_our_consumer_is_killed);

/// What the same load costs free Sidekiq: it takes jobs off their list before it runs them.
async fn free_kills(side: Side) -> Result<()> {
    let rounds = scale(1, "adopt sidekiq free kills");
    let store = side.store().await?;
    let app = unique_namespace("free");
    let mut ruby = Pusher::start(&side, &app)?;
    let port = side.port.to_string();
    let (ran, queue) = (format!("{app}:ran:q"), format!("{app}:queue:q"));
    let mut pushed = 0;
    for round in 1..=rounds {
        pushed += ruby.push(30).await?.len();
        let worker = Foreign::start(
            Language::Ruby,
            &library("sidekiq_worker.rb"),
            &[&port, "q", &app, "5", "hold"],
        )?;
        wait_until("ten jobs to end and five to begin", long(), async || {
            let ended = list(&store, &ran).await.ok()?.len() as u64;
            let waiting = list(&store, &queue).await.ok()?.len() as u64;
            let (pushed, before) = (pushed as u64, 15 * (round - 1));
            (ended >= 10 * round && pushed - waiting - before >= 15).then_some(())
        })
        .await?;
        worker.kill9();
    }
    let ended: BTreeSet<String> = list(&store, &ran).await?.into_iter().collect();
    let waiting = list(&store, &queue).await?.len();
    let lost = pushed - waiting - ended.len();
    assert_eq!(lost as u64, 5 * rounds);
    figure(format!(
        "{rounds} kills -9 of free Sidekiq with the same load, {lost} of {pushed} jobs lost"
    ));
    Ok(())
}
on!(free_kills: a_killed_process_of_free_sidekiq_loses_the_jobs_that_it_runs);

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

/// A job that failed here is retried by Ruby.
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

async fn members(store: &Store, key: &str) -> Result<Vec<String>> {
    Ok(store.query(cmd("ZRANGE").arg(key).arg(0).arg(-1)).await?)
}

/// Clones share a list and a heartbeat, so that a second run would take the jobs of the first for strays.
#[tokio::test]
async fn a_consumer_runs_once_at_a_time() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    let consumer = sidekiq.consumer("q").build()?;
    let runs = AtomicU64::new(0);
    for round in 1..=2 {
        sidekiq.push("q", "A", &[round]).await?;
        let handler = |_: SidekiqJob| async {
            runs.fetch_add(1, Ordering::Relaxed);
            let second = consumer.clone();
            let never = |_: SidekiqJob| async { Ok::<(), JobFailure>(()) };
            let refused = second.run(never, std::future::pending()).await;
            assert!(refused.is_err_and(|error| error.is_invalid()));
            Ok(())
        };
        let stop = async {
            while store
                .query::<Option<u64>>(cmd("GET").arg("stat:processed"))
                .await
                .unwrap_or(None)
                != Some(round)
            {
                tokio::time::sleep(SHORT).await;
            }
        };
        tokio::time::timeout(long(), consumer.run(handler, stop)).await??;
        assert_eq!(runs.load(Ordering::Relaxed), round);
    }
    let failed: Option<u64> = store.query(cmd("GET").arg("stat:failed")).await?;
    assert_eq!(failed, None);
    // It has left nothing behind, neither a list nor its name.
    assert_eq!(
        members(&store, "redstart:sidekiq:consumers").await?,
        [""; 0]
    );
    assert_eq!(store.scan("*working*").await?, [""; 0]);
    Ok(())
}

/// Every request of the consumer hangs; its handlers do not.
async fn hanging_store(side: Side) -> Result<()> {
    let app = unique_namespace("hang");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", side.port)).await?;
    let url = format!("{}?timeout=100s", proxy.url());
    let sidekiq = Sidekiq::new(&Store::connect(&url).await?, Times::Seconds).namespace(&app);
    sidekiq.push("q", "Tick", &[1]).await?;
    let (ticks, runs, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let handler = |_: SidekiqJob| async {
        runs.fetch_add(1, Ordering::Relaxed);
        while !is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ticks.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<(), JobFailure>(())
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let look = async {
        let more = async |count: u64| {
            let from = ticks.load(Ordering::Relaxed);
            let within = Duration::from_secs(40);
            wait_until("the handler to go on", within, async || {
                (ticks.load(Ordering::Relaxed) >= from + count).then_some(())
            })
            .await
        };
        more(1).await?;
        proxy.stall();
        // Longer than the interval at which it looks for due jobs, and much less than a request may take.
        let stalled = more(100).await;
        // Nor does it wait for those requests when it is to stop.
        drop(stop);
        let stopping = match stalled {
            Ok(()) => more(100).await,
            stalled => stalled,
        };
        proxy.pass().await;
        is_over.store(true, Ordering::Relaxed);
        stopping
    };
    let consumer = sidekiq.consumer("q").poll(SHORT).build()?;
    let run = consumer.run(handler, async { drop(stopped.await) });
    let (ran, looked) = tokio::time::timeout(long(), async { tokio::join!(run, look) }).await?;
    looked?;
    ran?;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let done = cmd("GET").arg(format!("{app}:stat:processed")).take();
    assert_eq!(side.store().await?.query::<u64>(&done).await?, 1);
    Ok(())
}
on!(hanging_store: handlers_go_on_while_the_store_hangs);

/// Many jobs that become due at once are moved in few steps.
#[tokio::test]
async fn due_jobs_are_moved_a_hundred_at_a_time() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    let mut fill = redis::pipe();
    for n in 0..1050 {
        let queue = if n % 2 == 0 { "even" } else { "odd" };
        let job = json!({"class": "A", "jid": n.to_string(), "args": [], "queue": queue});
        let job = if n == 7 {
            "no job".to_owned()
        } else {
            job.to_string()
        };
        fill.cmd("ZADD").arg("schedule").arg(n).arg(job).ignore();
    }
    let () = store.pipeline(&fill).await?;
    let calls = async || -> Result<u64> {
        let info: String = store.query(cmd("INFO").arg("commandstats")).await?;
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            // What a script calls is no round trip.
            let sent = ["eval", "evalsha", "time", "zrangebyscore"].contains(&name);
            sent.then(|| rest.split(',').next()?.parse::<u64>().ok())?
        });
        Ok(calls.sum())
    };
    let before = calls().await?;
    assert_eq!(sidekiq.promote().await?, 1000);
    let sent = calls().await? - before;
    assert!(sent <= 40, "{sent} round trips for 1000 jobs");
    assert_eq!(sidekiq.promote().await?, 50);
    assert_eq!(members(&store, "schedule").await?, [""; 0]);
    assert_eq!(members(&store, "dead").await?, ["no job"]);
    for (queue, count) in [("even", 525), ("odd", 524)] {
        let jobs = list(&store, &format!("queue:{queue}")).await?;
        assert_eq!(jobs.len(), count);
        // The first that was due is taken first.
        let first: Value = serde_json::from_str(jobs.last().context("a job")?)?;
        assert_eq!(first["jid"], if queue == "even" { "0" } else { "1" });
    }
    Ok(())
}

/// A panic is the failure of one job; the others do not notice.
async fn panics(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("panics");
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    sidekiq.push("q", "Bomb", &[0]).await?;
    for n in 1..10 {
        sidekiq.push("q", "Calm", &[n]).await?;
    }
    let (runs, has_exploded) = (AtomicU64::new(0), AtomicBool::new(false));
    let handler = |job: SidekiqJob| {
        runs.fetch_add(1, Ordering::Relaxed);
        let has_exploded = &has_exploded;
        async move {
            if job.class() == "Bomb" {
                has_exploded.store(true, Ordering::Relaxed);
                panic!("boom");
            }
            while !has_exploded.load(Ordering::Relaxed) {
                tokio::time::sleep(SHORT).await;
            }
            Ok(())
        }
    };
    let consumer = sidekiq.consumer("q").poll(long()).build()?;
    let processed = cmd("GET").arg(format!("{app}:stat:processed")).take();
    let stop = async {
        while store.query::<Option<u64>>(&processed).await.unwrap_or(None) != Some(10) {
            tokio::time::sleep(SHORT).await;
        }
    };
    tokio::time::timeout(long(), consumer.run(handler, stop)).await??;
    assert_eq!(runs.load(Ordering::Relaxed), 10);
    let retries = members(&store, &format!("{app}:retry")).await?;
    assert_eq!(retries.len(), 1);
    let bomb: Value = serde_json::from_str(&retries[0])?;
    assert_eq!(
        (
            &bomb["class"],
            &bomb["retry_count"],
            &bomb["error_class"],
            &bomb["error_message"]
        ),
        (&json!("Bomb"), &json!(0), &json!("Panic"), &json!("boom"))
    );
    Ok(())
}
on!(panics: a_handler_that_panics_fails_its_job_alone);

/// Consumers die with the same jobs in their hands, again and again.
async fn deaths(side: Side) -> Result<()> {
    let store = side.store().await?;
    let app = unique_namespace("deaths");
    let sidekiq = Sidekiq::new(&store, Times::Seconds).namespace(&app);
    let key = |name: &str| format!("{app}:{name}");
    sidekiq.push("q", "Bomb", &[0]).await?;
    let once = r#"{"class":"Once","jid":"o","args":[],"retry":false}"#;
    let _: u64 = store
        .query(cmd("LPUSH").arg(key("queue:q")).arg(once))
        .await?;
    for death in 1..=3 {
        let begun = AtomicU64::new(0);
        let handler = |_: SidekiqJob| {
            begun.fetch_add(1, Ordering::Relaxed);
            std::future::pending()
        };
        let consumer = sidekiq.consumer("q").concurrency(2).build()?;
        let both = wait_until("both jobs to begin", long(), async || {
            (begun.load(Ordering::Relaxed) == 2).then_some(())
        });
        tokio::select! {
            ran = consumer.run(handler, std::future::pending()) => ran?,
            both = both => both?,
        }
        assert_eq!(sidekiq.recover().await?, 0, "its heartbeat is there");
        let _: u64 = store
            .query(cmd("DEL").arg(key(consumer.identity())))
            .await?;
        assert_eq!(sidekiq.recover().await?, 2);
        let waiting = list(&store, &key("queue:q")).await?;
        assert_eq!(waiting.len(), if death < 3 { 2 } else { 0 });
    }
    let retries = members(&store, &key("retry")).await?;
    let dead = members(&store, &key("dead")).await?;
    assert_eq!((retries.len(), dead.len()), (1, 1), "{retries:?} {dead:?}");
    for (kept, class) in [(&retries[0], "Bomb"), (&dead[0], "Once")] {
        let job: Value = serde_json::from_str(kept)?;
        assert_eq!(
            (&job["class"], &job["error_class"], &job["retry_count"]),
            (&json!(class), &json!("Killed"), &json!(0))
        );
    }
    // Nothing is remembered of jobs that have ended.
    let counts: u64 = store
        .query(cmd("HLEN").arg(key("redstart:sidekiq:recovered")))
        .await?;
    assert_eq!(counts, 0);
    Ok(())
}
on!(deaths: a_job_that_kills_its_consumers_goes_to_the_retries);

/// Consumers of long ago cost no script each, and one of all consumers looks for the dead.
#[tokio::test]
async fn looking_for_dead_consumers_is_cheap_and_done_by_one() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    let consumers = "redstart:sidekiq:consumers";
    let now = store.time().await?.as_secs();
    let mut fill = redis::pipe();
    for n in 0..2000 {
        let beat = if n < 10 { now - 4000 } else { now - 60 };
        fill.cmd("ZADD").arg(consumers).arg(beat);
        fill.arg(format!("host:{n}:x|q")).ignore();
    }
    let lost = "redstart:sidekiq:working:host:1500:x|q";
    let job = r#"{"class":"A","jid":"a","args":[]}"#;
    fill.cmd("LPUSH").arg(lost).arg(job).ignore();
    let () = store.pipeline(&fill).await?;
    let scripts = async || -> Result<u64> {
        let info: String = store.query(cmd("INFO").arg("commandstats")).await?;
        let calls = info.lines().filter_map(|line| {
            let rest = line.strip_prefix("cmdstat_eval")?;
            let rest = rest.strip_prefix("sha").unwrap_or(rest);
            rest.strip_prefix(":calls=")?
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        });
        Ok(calls.sum())
    };
    let before = scripts().await?;
    assert_eq!(sidekiq.recover().await?, 1);
    let sent = scripts().await? - before;
    // One for the dead one, one for each that is forgotten, and one that the server did not know yet.
    assert!(sent <= 12, "{sent} scripts");
    assert_eq!(members(&store, consumers).await?.len(), 1990);

    // While another one has just looked, a consumer does not.
    let _: u64 = store.query(cmd("DEL").arg("queue:q")).await?;
    let _: u64 = store.query(cmd("LPUSH").arg(lost).arg(job)).await?;
    let claim = "redstart:sidekiq:recovering";
    let () = store.query(cmd("SET").arg(claim).arg("other")).await?;
    let consumer = sidekiq
        .consumer("other")
        .lease(Duration::from_secs(1))
        .build()?;
    let beat = cmd("HGET").arg(consumer.identity()).arg("beat").take();
    let stop = async {
        let mut beats = BTreeSet::new();
        wait_until("three heartbeats", long(), async || {
            beats.extend(store.query::<Option<String>>(&beat).await.ok()?);
            (beats.len() >= 3).then_some(())
        })
        .await?;
        assert_eq!(list(&store, lost).await?.len(), 1);
        let () = store.query(cmd("DEL").arg(claim)).await?;
        wait_until("the job to be given back", long(), async || {
            let waiting = list(&store, "queue:q").await.ok()?;
            (waiting.len() == 1).then_some(())
        })
        .await
    };
    let (done, stopped) = tokio::sync::oneshot::channel();
    let stop = async { drop(done.send(stop.await)) };
    let handler = |_: SidekiqJob| async { Ok::<(), JobFailure>(()) };
    tokio::time::timeout(long(), consumer.run(handler, stop)).await??;
    stopped.await?
}

/// From version 7.1 on a job may say for how long it is retried; then the number of retries does not count.
#[tokio::test]
async fn a_job_is_retried_for_as_long_as_it_says() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let now = store.time().await?.as_secs_f64();
    for (n, factor) in [1.0, 1000.0].into_iter().enumerate() {
        let times = [
            ("within", 3600, now - 60.0, 90),
            ("over", 60, now - 3600.0, 0),
        ];
        for (class, time, first, count) in times {
            let job = json!({
                "class": class, "jid": format!("{class}-{n}"), "args": [], "queue": "q", "retry": 5,
                "retry_for": time, "failed_at": first * factor, "retry_count": count,
                "created_at": first * factor,
            });
            let push = cmd("LPUSH").arg("queue:q").arg(job.to_string()).take();
            let _: u64 = store.query(&push).await?;
        }
    }
    let sidekiq = Sidekiq::new(&store, Times::Seconds);
    let handler = |_: SidekiqJob| async { Err(JobFailure::new("no luck")) };
    consume(&sidekiq, "q", handler, async || {
        let count = cmd("GET").arg("stat:processed").take();
        store.query::<Option<u64>>(&count).await.ok().flatten() == Some(4)
    })
    .await?;
    for (set, class) in [("retry", "within"), ("dead", "over")] {
        let jobs = members(&store, set).await?;
        assert_eq!(jobs.len(), 2, "{set}: {jobs:?}");
        assert!(jobs.iter().all(|job| job.contains(class)), "{jobs:?}");
    }
    Ok(())
}
