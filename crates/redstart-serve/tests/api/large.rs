//! Queues of a million jobs: what each screen asks of the store does not grow with them, and a live workload does not notice
//! a search.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_testkit::{Kind, MonitorTap, Server, figure, monitor::Seen, scale};

use crate::{Served, search::fill};

/// Makes dead letters of so many of the ready jobs, as a worker would by failing them.
const BURY: &str = "local base = KEYS[1] local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
    for i = 1, tonumber(ARGV[1]) do local id = redis.call('LPOP', base .. ':ready') \
    local r = redis.call('HGET', base .. ':jobs', id) redis.call('HSET', base .. ':jobs', id, 'Jz' .. r:sub(3)) \
    redis.call('HSET', base .. ':details', id .. 'x', 'code ' .. i .. ' of the gateway') \
    redis.call('ZADD', base .. ':dead', string.format('%.0f', now + i), id) end";

/// A queue with jobs in all states that can be large.
async fn large(server: &Server, store: &Store, name: &str, jobs: u64) -> Result<()> {
    let queue = Queue::new(store, "n", name)?;
    fill(&queue, jobs).await?;
    let hour = Duration::from_secs(3600);
    let later = (0..jobs / 10).map(|n| Later { n });
    queue.enqueue_many(later).delay(hour).await?;
    for _ in 0..jobs / 20 / 100 {
        let key = format!("n:queue:{{{name}}}");
        server.command(&["EVAL", BURY, "1", &key, "100"]).await?;
    }
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Later {
    n: u64,
}

impl redstart::messaging::Job for Later {
    const NAME: &'static str = "later";
}

fn screens(name: &str, job: &str) -> Vec<(&'static str, String)> {
    let at = |path: &str| format!("/queues/{name}{path}");
    vec![
        ("queues", "/queues?namespace=n".to_owned()),
        ("ready", at("?namespace=n&state=ready")),
        ("delayed", at("?namespace=n&state=delayed")),
        ("running", at("?namespace=n&state=running")),
        ("done", at("?namespace=n&state=done")),
        ("dead letters", at("/dead?namespace=n")),
        ("search", at("/search?namespace=n&state=ready&text=nobody")),
        (
            "search of delayed",
            at("/search?namespace=n&state=delayed&text=nobody"),
        ),
        (
            "search of the dead",
            at("/search?namespace=n&state=dead&text=nobody"),
        ),
        ("job", at(&format!("/jobs/{job}?namespace=n"))),
        ("change many", at("/bulk?namespace=n&state=dead")),
        (
            "delete a job",
            format!("/act/queue.delete?namespace=n&queue={name}&job={job}"),
        ),
    ]
}

/// What a screen asked of the store.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    commands: usize,
    /// Words of the largest command: what it reads at most.
    largest: usize,
    /// Commands that the largest script called.
    script: usize,
}

fn asked(seen: &[Seen], queue: &str) -> Asked {
    let mut asked = Asked::default();
    let mut script = 0;
    for command in seen {
        if command.is_from_script() {
            script += 1;
            asked.script = asked.script.max(script);
            continue;
        }
        script = 0;
        if command.mentions(queue) {
            asked.commands += 1;
            asked.largest = asked.largest.max(command.words.len());
        }
    }
    asked
}

async fn first_job(store: &Store, name: &str) -> Result<String> {
    let look = Queue::new(store, "n", name)?.inspect();
    let (jobs, _) = look
        .list(redstart::messaging::JobState::Ready, None)
        .await?;
    Ok(jobs.first().context("no job")?.id.to_string())
}

/// Counts, no times: the same number of commands for a queue ten times as large, each of which reads a page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_screen_asks_more_of_a_larger_queue() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let served = Served::on(&store, "n", "").await?;
    large(&server, &store, "small", 6_000).await?;
    large(&server, &store, "large", 60_000).await?;
    let mut client = served.client();
    let mut all = BTreeMap::new();
    for name in ["small", "large"] {
        let job = first_job(&store, name).await?;
        let tap = MonitorTap::start(&server).await?;
        for (screen, path) in screens(name, &job) {
            if screen == "queues" {
                continue;
            }
            tap.clear().await?;
            let page = client
                .send("GET", &path, &[("accept", "text/html")], b"")
                .await?;
            ensure!(page.status == 200, "{path}: {}", page.text());
            let seen = tap.commands().await?;
            all.entry(screen)
                .or_insert_with(Vec::new)
                .push(asked(&seen, &format!("n:queue:{{{name}}}")));
        }
    }
    for (screen, asked) in &all {
        let [small, large] = &asked[..] else {
            anyhow::bail!("{screen}: {asked:?}");
        };
        // The sampler looks at every queue now and then.
        ensure!(large.commands <= small.commands + 40, "{screen}: {asked:?}");
        ensure!(large.commands <= 100, "{screen} sends {large:?}");
        ensure!(
            large.largest <= 210,
            "{screen} reads more than a page at once: {large:?}"
        );
        ensure!(
            large.script <= 250,
            "a script for {screen} is long: {large:?}"
        );
    }
    figure(format!("a queue of 60,000 jobs, by screen: {all:?}"));
    served.stop().await
}

fn run(program: &str, args: &[&str]) -> bool {
    let mut command = std::process::Command::new(program);
    let command = command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The value below which so many of a hundred are.
fn percentile(took: &mut [u64], percent: usize) -> u64 {
    took.sort_unstable();
    took.get(took.len() * percent / 100).copied().unwrap_or(0)
}

/// Nanoseconds of processor time that a process has used, and all of its threads.
fn worked(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that has just ended is not counted.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        sum += text.split(' ').next().context("no time")?.parse::<u64>()?;
    }
    Ok(sum)
}

/// Microseconds that the server has spent on the commands of searches, and how many there were.
async fn spent(server: &Server) -> Result<(u64, u64)> {
    let mut sums = (0, 0);
    for command in ["cmdstat_lrange", "cmdstat_hmget"] {
        let stats = server.info(command).await.unwrap_or_default();
        for part in stats.split(',') {
            match part.split_once('=') {
                Some(("usec", number)) => sums.0 += number.parse::<u64>()?,
                Some(("calls", number)) => sums.1 += number.parse::<u64>()?,
                _ => {}
            }
        }
    }
    Ok(sums)
}

/// A live workload: jobs that are added, one after the other, until it is told to end. Microseconds of each.
async fn workload(store: Store, end: Arc<AtomicBool>) -> Result<Vec<u64>> {
    let queue = Queue::new(&store, "n", "live")?;
    let mut took = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !end.load(Ordering::Relaxed) {
        ticks.tick().await;
        let begun = Instant::now();
        let id = queue.enqueue_raw("k", b"1").await?.id().context("full")?;
        took.push(begun.elapsed().as_micros() as u64);
        if took.len().is_multiple_of(16) {
            queue.inspect().delete(id).await?;
        }
    }
    Ok(took)
}

/// A workload for this long on a thread of its own, with searches or without; its latencies, and what was searched.
async fn window(
    served: &Served,
    url: &str,
    searches: usize,
    length: Duration,
) -> Result<(Vec<u64>, u64)> {
    let end = Arc::new(AtomicBool::new(false));
    let (url, ends) = (url.to_owned(), end.clone());
    let live = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let store = Store::connect(&url).await?;
            let clients = (0..4).map(|_| workload(store.clone(), ends.clone()));
            Ok::<_, anyhow::Error>(futures_util::future::try_join_all(clients).await?.concat())
        })
    });
    let scanned = Arc::new(AtomicU64::new(0));
    let mut searching = Vec::new();
    for _ in 0..searches {
        let (mut client, scanned, ends) = (served.client(), scanned.clone(), end.clone());
        searching.push(tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let mut events = client
                    .events("/v1/queues/large/jobs:search?state=ready&search=nobody")
                    .await?;
                while let Some(line) = events.line().await? {
                    if let Some((_, rest)) = line.split_once("\"scanned\":") {
                        let number = rest.split([',', '}']).next().unwrap_or_default();
                        scanned.fetch_max(number.parse()?, Ordering::Relaxed);
                    }
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            anyhow::Ok(())
        }));
    }
    tokio::time::sleep(length).await;
    end.store(true, Ordering::Relaxed);
    let took = live.await??;
    for one in searching {
        one.await??;
    }
    Ok((took, scanned.load(Ordering::Relaxed)))
}

/// Times are figures: each window with searches is compared with the mean of those beside it, and windows without in the same
/// way, which is what the machine does on its own. What is asserted is that both go on, and how often the store was asked. Of a
/// million jobs, each screen takes at most 300 ms of work, and a search may add 5 % to the p99 of the workload: the interval of
/// the ratios must not lie above that, after what the machine does on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_workload_goes_on_while_a_large_queue_is_searched() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    // A busy machine is no reason to give up.
    let url = format!("{}?timeout=60s", server.url());
    let store = Store::connect(&url).await?;
    let served = Served::on(&store, "n", "").await?;
    let jobs = scale(20_000, "JOBS_OF_A_LARGE_QUEUE");
    // What the limits are about. An ordinary run has too few samples for them.
    let is_full = jobs >= 1_000_000;
    large(&server, &store, "large", jobs).await?;
    let length = Duration::from_millis(scale(500, "SEARCH_MILLIS"));
    let rounds = scale(1, "SEARCH_ROUNDS");
    let pinned = server
        .pid()
        .is_some_and(|pid| run("taskset", &["-a", "-c", "-p", "0", &pid.to_string()]))
        && run(
            "taskset",
            &["-a", "-c", "-p", "1", &std::process::id().to_string()],
        );

    // The screens first, on an idle server.
    let looks = scale(2, "SCREEN_LOOKS");
    let mut client = served.client();
    let job = first_job(&store, "large").await?;
    for (screen, path) in screens("large", &job) {
        let (mut took, mut work) = (Vec::new(), Vec::new());
        for _ in 0..looks {
            let all = || {
                Ok::<_, anyhow::Error>(
                    worked(std::process::id())? + server.pid().map_or(Ok(0), worked)?,
                )
            };
            let (begun, before) = (Instant::now(), all()?);
            let page = client
                .send("GET", &path, &[("accept", "text/html")], b"")
                .await?;
            took.push(begun.elapsed().as_micros() as u64);
            // What a thread that has ended had used is in no sum.
            work.push(all()?.saturating_sub(before) / 1000);
            ensure!(page.status == 200, "{path}");
        }
        let millis = |took: &mut Vec<u64>, percent| percentile(took, percent) as f64 / 1e3;
        // Work, not time: what else the machine does counts for nothing.
        let worst = millis(&mut work, 99);
        ensure!(
            !is_full || worst <= 300.0,
            "{screen} takes {worst:.1} ms of work"
        );
        figure(format!(
            "{screen} of {jobs} jobs, {looks} looks: work of client, service and server p50 {:.1} ms, p99 {:.1} ms; until the answer p50 {:.1} ms, p99 {:.1} ms",
            millis(&mut work, 50),
            millis(&mut work, 99),
            millis(&mut took, 50),
            millis(&mut took, 99),
        ));
    }

    window(&served, &url, 0, length).await?;
    let mut own = 1.0;
    for searches in [0, 1, 8] {
        let (mut ratios, mut without, mut scanned, mut share) =
            (Vec::new(), Vec::new(), 0, 0.0_f64);
        let mut each = 0.0_f64;
        let (mut before, _) = window(&served, &url, 0, length).await?;
        for _ in 0..rounds {
            let (was, begun) = (spent(&server).await?, Instant::now());
            let (mut with, read) = window(&served, &url, searches, length).await?;
            let now = spent(&server).await?;
            share = share.max((now.0 - was.0) as f64 / begun.elapsed().as_micros() as f64);
            each = each.max((now.0 - was.0) as f64 / (now.1 - was.1).max(1) as f64);
            let (mut after, _) = window(&served, &url, 0, length).await?;
            // On a busy machine a window may be short for both.
            ensure!(!with.is_empty(), "the workload stands still");
            let beside = percentile(&mut before, 99) + percentile(&mut after, 99);
            ratios.push(2000 * percentile(&mut with, 99) / beside.max(1));
            without.push(beside / 2);
            scanned = scanned.max(read);
            before = after;
        }
        let (low, middle, high) = (
            percentile(&mut ratios, 25),
            percentile(&mut ratios, 50),
            percentile(&mut ratios, 75),
        );
        figure(format!(
            "{searches} searches over {jobs} jobs, {rounds} windows of {} ms{}: p99 of enqueue is {:.3} ({:.3} to {:.3}) of that without, which is {} us; at most {scanned} jobs searched; their commands took at most {:.2} % of the server's time, {each:.0} us each",
            length.as_millis(),
            if pinned {
                ", the server on a core of its own"
            } else {
                ""
            },
            middle as f64 / 1e3,
            low as f64 / 1e3,
            high as f64 / 1e3,
            percentile(&mut without, 50),
            share * 100.0,
        ));
        match searches {
            0 => own = f64::max(1.0, middle as f64 / 1e3),
            1 => ensure!(
                !is_full || low as f64 / 1e3 <= 1.05 * own,
                "a search adds more than 5 % to the p99 of a live workload: {:.3} ({:.3} to {:.3}), and without one {own:.3}",
                middle as f64 / 1e3,
                low as f64 / 1e3,
                high as f64 / 1e3,
            ),
            _ => {}
        }
    }
    served.stop().await
}
