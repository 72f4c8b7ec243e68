//! The workers of `clients/`, killed in the middle of their work, and behind a proxy that answers wrongly: no job is
//! lost, and none runs twice without need.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod proxy;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use proxy::{Fault, Proxy};
use rand::RngExt as _;
use redstart::{
    Store,
    messaging::{JobId, JobPolicy, Queue},
};
use redstart_serve::{Config, Service};
use redstart_testkit::{eventually, figure, find, scale};
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};

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

/// Works until a file is there or there is no use in going on, and writes down what happened.
const PATIENT_PYTHON: &str = r#"
import os, sys, time
sys.path.insert(0, sys.argv[1])
from redstart_worker import Worker
def note(word):
    with open(sys.argv[3], "a") as out:
        out.write(word + "\n")
def work(payload, job):
    note("begun")
    while not os.path.exists(payload["until"]) and not job.over.is_set():
        job.progress(0.5)
        time.sleep(0.1)
    note("cancelled" if job.cancelled.is_set() else "stopped" if job.over.is_set() else "done")
Worker(sys.argv[2], "q", {"wait": work}, namespace="w", lease=12, wait=5, attempts=1).run()
"#;

const PATIENT_NODE: &str = r#"
const { Worker } = await import(process.argv[1] + "/redstart-worker.mjs");
const { appendFileSync, existsSync } = await import("node:fs");
const note = (word) => appendFileSync(process.argv[3], word + "\n");
await new Worker(process.argv[2], "q", { wait: async (payload, job) => {
  note("begun");
  while (!existsSync(payload.until) && !job.signal.aborted) {
    await job.progress(0.5);
    await new Promise((done) => setTimeout(done, 100));
  }
  note(job.isCancelled() ? "cancelled" : job.signal.aborted ? "stopped" : "done");
} }, { namespace: "w", lease: 12, wait: 5, attempts: 1 }).run();
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
    run_python(PYTHON, url, out)
}

fn node(url: &str, out: &Path) -> Result<Child> {
    run_node(NODE, url, out)
}

fn patient_python(url: &str, out: &Path) -> Result<Child> {
    run_python(PATIENT_PYTHON, url, out)
}

fn patient_node(url: &str, out: &Path) -> Result<Child> {
    run_node(PATIENT_NODE, url, out)
}

fn run_python(script: &str, url: &str, out: &Path) -> Result<Child> {
    let python =
        find::on_path("python3").context("python3 is missing: cargo xtask servers installs it")?;
    let mut command = Command::new(python);
    command
        .args(["-c", script])
        .arg(clients().join("python"))
        .arg(url)
        .arg(out);
    start(command)
}

fn run_node(script: &str, url: &str, out: &Path) -> Result<Child> {
    let node =
        find::on_path("node").context("Node.js is missing: cargo xtask servers installs it")?;
    let mut command = Command::new(node);
    command
        .args(["--input-type=module", "-e", script, "--"])
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

/// A service, a proxy before it, and one patient worker behind that.
struct Setting {
    queue: Queue,
    proxy: Proxy,
    worker: Child,
    folder: tempfile::TempDir,
    serving: JoinHandle<()>,
}

impl Setting {
    async fn start(start: fn(&str, &Path) -> Result<Child>) -> Result<Self> {
        let store = Store::connect("memory://").await?;
        let service = Service::new(&store, Config::default())?;
        let listener = service.bind("127.0.0.1:0".parse()?).await?;
        let address = listener.local_addr()?;
        let serving =
            tokio::spawn(async move { service.run(listener, std::future::pending()).await });
        let proxy = Proxy::start(address).await?;
        let folder = tempfile::tempdir()?;
        Ok(Self {
            queue: Queue::new(&store, "w", "q")?,
            worker: start(&proxy.url, &folder.path().join("notes"))?,
            proxy,
            folder,
            serving,
        })
    }

    /// A job that runs until `let_go` is called with its name.
    async fn add(&self, name: &str, policy: JobPolicy) -> Result<JobId> {
        let until = self.folder.path().join(name);
        let payload = serde_json::json!({"until": until}).to_string();
        let added = self.queue.enqueue_raw("wait", payload.as_bytes());
        added
            .policy(policy)
            .await?
            .id()
            .context("the queue is full")
    }

    fn let_go(&self, name: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join(name), "")?)
    }

    fn notes(&self) -> Vec<String> {
        let notes = std::fs::read_to_string(self.folder.path().join("notes"));
        notes
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    async fn until(&mut self, what: &str, mut happened: impl FnMut(&Self) -> bool) -> Result<()> {
        let this = &*self;
        let ended = eventually(PATIENCE, async || happened(this)).await;
        let worker = self.worker.try_wait()?;
        ensure!(ended, "{what}: {:?}, the worker: {worker:?}", self.notes());
        Ok(())
    }

    async fn ended(&mut self, done: u64, dead: u64) -> Result<()> {
        let queue = self.queue.clone();
        let ended = eventually(
            PATIENCE,
            async || matches!(queue.inspect().counts().await, Ok(counts) if counts.unfinished() == 0),
        );
        ensure!(ended.await, "{:?}", queue.inspect().counts().await?);
        let counts = queue.inspect().counts().await?;
        ensure!((counts.done, counts.dead) == (done, dead), "{counts:?}");
        ensure!(self.worker.try_wait()?.is_none(), "the worker has ended");
        Ok(())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn replies_that_are_not_the_services_end_nothing(
    start: fn(&str, &Path) -> Result<Child>,
) -> Result<()> {
    use Fault::{Closed, Cut, Foreign, Null, Page};
    let mut setting = Setting::start(start).await?;
    let faults = [Page, Null, Foreign, Cut, Closed];
    for verb in ["lease", "progress", "extend", "ack"] {
        setting.proxy.break_next(verb, &faults);
    }
    setting.add("first", JobPolicy::new()).await?;
    // The lease is extended after all that, and only then may the handler end.
    setting
        .until("no extension", |s| s.proxy.answered("extend", 200) > 0)
        .await?;
    setting.let_go("first")?;
    setting.ended(1, 0).await?;
    for verb in ["lease", "progress", "extend", "ack"] {
        assert_eq!(setting.proxy.answered(verb, 0), faults.len(), "{verb}");
    }
    setting.let_go("second")?;
    setting.add("second", JobPolicy::new()).await?;
    setting.ended(2, 0).await?;
    assert_eq!(setting.notes(), ["begun", "done", "begun", "done"]);
    Ok(())
}

async fn an_outage_ends_no_heartbeat(start: fn(&str, &Path) -> Result<Child>) -> Result<()> {
    let mut setting = Setting::start(start).await?;
    setting.add("job", JobPolicy::new()).await?;
    setting.until("no job", |s| !s.notes().is_empty()).await?;
    // More than any worker that gives up would try.
    setting.proxy.break_next("extend", &[Fault::Closed; 9]);
    setting.proxy.break_next("progress", &[Fault::Closed; 9]);
    setting
        .until("no extension", |s| {
            s.proxy.answered("extend", 0) == 9 && s.proxy.answered("extend", 200) > 0
        })
        .await?;
    setting.let_go("job")?;
    setting.ended(1, 0).await?;
    assert_eq!(setting.notes(), ["begun", "done"]);
    Ok(())
}

async fn a_handler_hears_of_its_end(start: fn(&str, &Path) -> Result<Child>) -> Result<()> {
    let mut setting = Setting::start(start).await?;
    let cancelled = setting.add("cancelled", JobPolicy::new()).await?;
    setting.until("no job", |s| s.notes().len() == 1).await?;
    let told = setting.queue.cancel(cancelled).await?;
    assert_eq!(told, redstart::messaging::Cancelled::Told);
    setting.until("not told", |s| s.notes().len() == 2).await?;
    // It returned, so it counts as done.
    setting.ended(1, 0).await?;
    let policy = JobPolicy::new().timeout(Duration::from_millis(300));
    setting.add("late", policy).await?;
    setting
        .until("not stopped", |s| s.notes().len() == 4)
        .await?;
    setting.ended(1, 1).await?;
    let letters = setting.queue.inspect().dead_letters().list(None).await?;
    assert!(
        letters[0].reason.contains("timed out"),
        "{}",
        letters[0].reason
    );
    assert_eq!(setting.notes(), ["begun", "cancelled", "begun", "stopped"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_not_the_services_end_no_python_worker() -> Result<()> {
    replies_that_are_not_the_services_end_nothing(patient_python).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_not_the_services_end_no_node_worker() -> Result<()> {
    replies_that_are_not_the_services_end_nothing(patient_node).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_ends_no_python_heartbeat() -> Result<()> {
    an_outage_ends_no_heartbeat(patient_python).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_ends_no_node_heartbeat() -> Result<()> {
    an_outage_ends_no_heartbeat(patient_node).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_handler_hears_of_its_end() -> Result<()> {
    a_handler_hears_of_its_end(patient_python).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_handler_hears_of_its_end() -> Result<()> {
    a_handler_hears_of_its_end(patient_node).await
}
