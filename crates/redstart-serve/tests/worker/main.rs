//! The workers of `clients/`, killed in the middle of their work: no job is lost.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rand::RngExt as _;
use redstart::{Store, messaging::Queue};
use redstart_serve::{Config, Service};
use redstart_testkit::{eventually, figure, find, scale};
use tokio::process::{Child, Command};

/// For what must happen eventually, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(150);

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

/// Writes the job's number to a file before it is done. Every tenth job fails once.
const PYTHON: &str = r#"
import sys, time
sys.path.insert(0, sys.argv[1])
from redstart_worker import Worker, Retry
def work(payload, job):
    job.progress(0.5)
    time.sleep(0.02)
    if payload["n"] % 10 == 0 and job.attempt == 1:
        raise Retry("not yet", after=0)
    with open(sys.argv[3], "a") as out:
        out.write("%d\n" % payload["n"])
Worker(sys.argv[2], "q", {"count": work}, namespace="w", lease=1, wait=5, attempts=1000).run()
"#;

const NODE: &str = r#"
const { Worker, Retry } = await import(process.argv[1] + "/redstart-worker.mjs");
const { appendFileSync } = await import("node:fs");
await new Worker(process.argv[2], "q", { count: async (payload, job) => {
  await job.progress(0.5);
  await new Promise((done) => setTimeout(done, 20));
  if (payload.n % 10 === 0 && job.attempt === 1) throw new Retry("not yet", 0);
  appendFileSync(process.argv[3], payload.n + "\n");
} }, { namespace: "w", lease: 1, wait: 5, attempts: 1000 }).run();
"#;

fn python(url: &str, out: &Path) -> Result<Child> {
    let python =
        find::on_path("python3").context("python3 is missing: cargo xtask servers installs it")?;
    let mut command = Command::new(python);
    command
        .args(["-c", PYTHON])
        .arg(clients().join("python"))
        .arg(url)
        .arg(out);
    start(command)
}

fn node(url: &str, out: &Path) -> Result<Child> {
    let node =
        find::on_path("node").context("Node.js is missing: cargo xtask servers installs it")?;
    let mut command = Command::new(node);
    command
        .args(["--input-type=module", "-e", NODE, "--"])
        .arg(clients().join("node"))
        .arg(url)
        .arg(out);
    start(command)
}

fn start(mut command: Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

async fn no_job_is_lost(start: fn(&str, &Path) -> Result<Child>) -> Result<()> {
    let store = Store::connect("memory://").await?;
    let service = Service::new(&store, Config::default())?;
    let listener = service.bind("127.0.0.1:0".parse()?).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(async move { service.run(listener, std::future::pending()).await });
    let queue = Queue::new(&store, "w", "q")?;
    let (jobs, kills) = (scale(60, "WORKER_JOBS"), scale(4, "WORKER_KILLS"));
    for n in 0..jobs {
        queue
            .enqueue_raw("count", format!("{{\"n\":{n}}}").as_bytes())
            .await?;
    }
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("done");
    let mut workers = [start(&url, &out)?, start(&url, &out)?];
    let lines = || {
        std::fs::read_to_string(&out)
            .unwrap_or_default()
            .lines()
            .count()
    };
    let mut killed = 0;
    for kill in 0..kills {
        // In the middle of the work: some jobs are done since the last kill, and not all.
        let goal = (jobs as usize * kill as usize / kills as usize / 2).max(1);
        ensure!(
            eventually(PATIENCE, async || lines() >= goal).await,
            "the workers do nothing"
        );
        let pause = rand::rng().random_range(0..60);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let victim = kill as usize % workers.len();
        workers[victim].kill().await?;
        killed += 1;
        workers[victim] = start(&url, &out)?;
    }
    let ended = eventually(
        PATIENCE,
        async || matches!(queue.inspect().counts().await, Ok(counts) if counts.unfinished() == 0),
    );
    ensure!(
        ended.await,
        "{:?} after {} lines",
        queue.inspect().counts().await?,
        lines()
    );
    let counts = queue.inspect().counts().await?;
    ensure!(counts.dead == 0, "{counts:?}");
    let mut times: HashMap<u64, u64> = HashMap::new();
    for line in std::fs::read_to_string(&out)?.lines() {
        *times.entry(line.parse()?).or_default() += 1;
    }
    let lost: Vec<u64> = (0..jobs).filter(|n| !times.contains_key(n)).collect();
    ensure!(lost.is_empty(), "lost: {lost:?}");
    let twice = times.values().filter(|times| **times > 1).count();
    figure(format!(
        "{killed} kills, {jobs} jobs, 0 lost, {twice} ran twice"
    ));
    serving.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_workers_that_are_killed_lose_no_job() -> Result<()> {
    no_job_is_lost(python).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_workers_that_are_killed_lose_no_job() -> Result<()> {
    no_job_is_lost(node).await
}
