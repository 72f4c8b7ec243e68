//! `redstart adopt` as a program: what it prints, for people and for programs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    path::Path,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use redstart::Store;
use redstart_adopt::{
    Inspector, Library,
    bullmq::{BullQueue, JobError, Taken},
};
use redstart_engine::{
    Engine,
    server::{Server as Listener, ServerConfig},
};
use redstart_testkit::{Foreign, Kind, Language, Server, figure, wait_until};
use serde_json::{Value, json};

fn redstart(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(args)
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_plan_name_a_queue_and_its_steps() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server
        .command(&["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"])
        .await?;
    let url = server.url();

    let plan = redstart(&["adopt", "plan", "--url", &url, "--json"]);
    assert!(plan.status.success(), "{plan:?}");
    let lines = String::from_utf8(plan.stdout)?;
    let item: Value = serde_json::from_str(lines.lines().next().unwrap())?;
    for field in [
        "found",
        "library",
        "version",
        "confidence",
        "subject",
        "steps",
    ] {
        assert!(item.get(field).is_some(), "no {field} in {item}");
    }
    assert_eq!(
        (item["library"].as_str(), item["version"].as_str()),
        (Some("bullmq"), Some("6.7.0"))
    );
    assert_eq!(item["steps"].as_array().unwrap().len(), 4);
    assert_eq!(item["steps"][0]["step"], "shadow");

    let text = String::from_utf8(redstart(&["adopt", "plan", "--url", &url]).stdout)?;
    assert!(
        text.starts_with("# Adoption plan") && text.contains("bull:mail"),
        "{text}"
    );
    let text = String::from_utf8(redstart(&["adopt", "list", "--url", &url]).stdout)?;
    assert!(
        text.contains("bullmq") && text.contains("1 keys looked at, all of them"),
        "{text}"
    );
    Ok(())
}

/// Pickles that an application keeps by itself, named as Django names its entries, may be the only copy.
#[tokio::test(flavor = "multi_thread")]
async fn pickles_that_may_be_the_only_copy_are_left_alone() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(server.url().as_ref()).await?;
    let keys = [
        "tenant:1:config",
        "tenant:1:rates",
        "tenant:2:config",
        "tenant:2:rates",
    ];
    for key in keys {
        let pickle = b"\x80\x04N.".as_slice();
        store
            .query::<()>(redis::cmd("SET").arg(key).arg(pickle))
            .await?;
    }
    let url = server.url();
    for _ in ["shadow", "share"] {
        let step = redstart(&["adopt", "step", "tenant:1:*", "--url", &url, "--yes"]);
        assert_eq!(step.status.code(), Some(2), "{step:?}");
        let told = String::from_utf8_lossy(&step.stderr).into_owned();
        assert!(told.contains("--as cache"), "{told}");
    }
    for key in keys {
        let left: i64 = store.query(redis::cmd("PTTL").arg(key)).await?;
        assert_eq!(left, -1, "{key}");
    }
    Ok(())
}

/// Steps that the plan left out are not done.
#[tokio::test(flavor = "multi_thread")]
async fn steps_that_are_left_out_are_named() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for command in [
        ["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"],
        ["ZADD", "bull:mail:repeat", "1794784761931", "digest"],
    ] {
        server.command(&command).await?;
    }
    let url = server.url();
    let step = || redstart(&["adopt", "step", "bull:mail", "--url", &url, "--yes"]);
    for _ in ["shadow", "share"] {
        let output = step();
        assert!(output.status.success(), "{output:?}");
    }
    let told = String::from_utf8(step().stdout)?;
    assert!(told.contains("drain and switch are left out"), "{told}");
    Ok(())
}

/// A step is looked at, refused without a confirmation, done, and taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_shown_confirmed_done_and_taken_back() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "product:7", "{}"]).await?;
    let url = server.url();
    let run = |action: &str, more: &[&str]| {
        let args = [
            &["adopt", action, "product:*", "--as", "cache", "--url", &url],
            more,
        ]
        .concat();
        let output = redstart(&args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (status, text) = run("step", &["--dry-run"]);
    assert!(
        status == Some(0) && text.contains("would do the step shadow"),
        "{text}"
    );
    // Nobody can be asked.
    assert_eq!(run("step", &[]).0, Some(2));
    assert_eq!(run("step", &["--yes"]).0, Some(0));
    let (status, text) = run("step", &["--dry-run", "--ttl", "2h"]);
    assert!(
        status == Some(0) && text.contains("change: gives 1 entries a TTL of up to 7200 s"),
        "{text}"
    );
    let ttl = async || -> anyhow::Result<String> {
        Ok(format!(
            "{:?}",
            server.command(&["TTL", "product:7"]).await?
        ))
    };
    let before = ttl().await?;
    assert!(before.contains("-1"), "{before}");
    let (status, line) = run("step", &["--yes", "--ttl", "2h", "--json"]);
    let report: Value = serde_json::from_str(line.trim())?;
    assert_eq!(
        (status, &report["outcome"], &report["step"]),
        (Some(0), &Value::from("done"), &Value::from("share"))
    );
    assert_ne!(ttl().await?, before);
    assert!(run("step", &["--yes"]).1.contains("all steps are done"));
    assert_eq!(run("back", &["--yes"]).0, Some(0));
    assert_eq!(ttl().await?, before);
    assert_eq!(run("back", &["--yes"]).0, Some(0));
    assert!(run("back", &["--yes"]).1.contains("no step was done"));

    // A subject that the plan does not have, and a step that is blocked.
    let unknown = redstart(&["adopt", "step", "bull:none", "--url", &url, "--yes"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    server
        .command(&["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"])
        .await?;
    server.command(&["LPUSH", "bull:mail:wait", "1"]).await?;
    let mail = |more: &[&str]| {
        redstart(
            &[
                &["adopt", "step", "bull:mail", "--url", &url, "--yes"],
                more,
            ]
            .concat(),
        )
    };
    for _ in ["shadow", "share", "drain"] {
        let output = mail(&[]);
        assert!(output.status.success(), "{output:?}");
    }
    let blocked = mail(&[]);
    let text = String::from_utf8_lossy(&blocked.stdout).into_owned();
    assert!(
        !blocked.status.success() && text.contains("blocked: 1 jobs are not finished"),
        "{blocked:?}"
    );

    let held = redstart(&["adopt", "lock", "product:7", "--url", &url]);
    let text = String::from_utf8_lossy(&held.stdout).into_owned();
    assert!(text.contains("without a TTL"), "{text}");
    let free = redstart(&["adopt", "lock", "product:8", "--url", &url, "--json"]);
    assert_eq!(
        String::from_utf8_lossy(&free.stdout).trim(),
        r#"{"held":false}"#
    );
    Ok(())
}

/// What was begun is remembered: its keys need not be there for the next step or the way back.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_whose_keys_are_gone_goes_on_and_back() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = server.url();
    let meta = ["HSET", "bull:mail:meta", "version", "bullmq:6.7.0"];
    server.command(&meta).await?;
    let run = |action: &str| {
        let output = redstart(&["adopt", action, "bull:mail", "--url", &url, "--yes"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    assert_eq!(run("step").0, Some(0));
    server.command(&["DEL", "bull:mail:meta"]).await?;
    for step in ["share", "drain", "switch"] {
        let (status, text) = run("step");
        assert!(
            status == Some(0) && text.contains(&format!("done: {step}")),
            "{step}: {text}"
        );
    }
    for step in ["switch", "drain", "share", "shadow"] {
        let (status, text) = run("back");
        assert!(
            status == Some(0) && text.contains(&format!("taken back: {step}")),
            "{step}: {text}"
        );
    }
    let left: u64 = server.query(&["DBSIZE"]).await?;
    assert_eq!(left, 0, "the record is gone");
    assert_eq!(run("back").0, Some(2), "nothing is known of it any more");
    Ok(())
}

/// Whoever may write to the server chooses names of keys and versions: they steer neither the terminal nor the plan.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_keys_steer_neither_the_terminal_nor_the_plan() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let key = "bull:x\x1b]0;owned\x07\x1b[2J\n\n# Title\n\n1. **share**: run FLUSHALL:meta";
    let version = "bullmq:\x1b[31m9\n# Title";
    server.command(&["HSET", key, "version", version]).await?;
    server.command(&["SET", "turn\u{202e}ed", "1"]).await?;
    let url = server.url();
    for action in ["list", "plan"] {
        let output = redstart(&["adopt", action, "--url", &url]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        assert!(
            text.contains("FLUSHALL"),
            "{action} does not show the queue: {text}"
        );
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{action}: {text:?}");
        if action == "plan" {
            let titles = text.lines().filter(|line| line.starts_with("# "));
            assert_eq!(titles.count(), 1, "{text}");
            assert!(!text.contains("\n1. **share**"), "{text}");
        }
    }
    Ok(())
}

/// The old application of the tests of redstart-adopt.
fn old_app(language: Language, name: &str, port: u16) -> Result<Foreign> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../redstart-adopt/tests/libraries");
    Foreign::start(language, &folder.join(name), &[&port.to_string()])
}

async fn told(program: &mut Foreign, line: &str) -> Result<()> {
    program.tell(line)?;
    ensure!(program.line().await? == "ok", "{line}");
    Ok(())
}

/// The command, on a server with the old application.
struct Adopt {
    url: String,
}

impl Adopt {
    fn plan(&self) -> Result<Vec<Value>> {
        let plan = redstart(&["adopt", "plan", "--url", &self.url, "--json"]);
        ensure!(plan.status.success(), "{plan:?}");
        let text = String::from_utf8(plan.stdout)?;
        let items = text.lines().map(serde_json::from_str);
        Ok(items.collect::<Result<_, _>>()?)
    }

    /// `step` or `back`; whether it succeeded, and what it says.
    fn walk(&self, action: &str, subject: &str, more: &[&str]) -> Result<(bool, Value)> {
        let args = [
            "adopt", action, subject, "--url", &self.url, "--json", "--yes",
        ];
        let output = redstart(&[&args[..], more].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().next().with_context(|| format!("{output:?}"))?;
        Ok((output.status.success(), serde_json::from_str(line)?))
    }

    fn done(&self, step: &str, subject: &str, more: &[&str]) -> Result<Value> {
        let (ok, report) = self.walk("step", subject, more)?;
        ensure!(
            ok && report["outcome"] == "done" && report["step"] == step,
            "{step}: {report}"
        );
        Ok(report)
    }

    /// Takes these steps back, the last first.
    fn back(&self, subject: &str, steps: &[&str]) -> Result<()> {
        for step in steps.iter().rev() {
            let (ok, report) = self.walk("back", subject, &[])?;
            ensure!(
                ok && report["outcome"] == "done" && report["step"] == *step,
                "{step}: {report}"
            );
        }
        // The record is gone, so nothing is known of the subject but what the plan says.
        let list = redstart(&[
            "adopt", "back", subject, "--url", &self.url, "--yes", "--as", "cache",
        ]);
        ensure!(
            String::from_utf8_lossy(&list.stdout).contains("no step was done"),
            "{list:?}"
        );
        Ok(())
    }
}

/// A worker of ours on the queue of the old application, and how many jobs it ran.
struct Ours {
    ran: Arc<AtomicU64>,
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<redstart_adopt::Result<()>>,
}

impl Ours {
    fn start(store: &Store) -> Result<Self> {
        let worker = BullQueue::new(store, "mail")?
            .worker()
            .concurrency(4)
            .build()?;
        let ran = Arc::<AtomicU64>::default();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let count = ran.clone();
        let task = tokio::spawn(async move {
            let handler = |_: Arc<Taken>| {
                count.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, JobError>("rust") }
            };
            worker.run(handler, async { drop(stopped.await) }).await
        });
        Ok(Self { ran, stop, task })
    }

    async fn stop(self) -> Result<u64> {
        drop(self.stop);
        self.task.await??;
        Ok(self.ran.load(Ordering::Relaxed))
    }
}

/// The scripts for every step go as they should, beside the old application.
async fn scenarios(adopt: &Adopt, python: &mut Foreign, node: &mut Foreign) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path().to_str().context("a path")?;
    let plan = redstart(&["adopt", "plan", "--url", &adopt.url, "--scenarios", at]);
    ensure!(plan.status.success(), "{plan:?}");
    // What the last steps of a lock and of a queue wait for.
    told(python, "locks off").await?;
    told(node, "adders off").await?;
    let store = Store::connect(&adopt.url).await?;
    let queue = BullQueue::new(&store, "mail")?;
    wait_until(
        "the queue to be empty",
        Duration::from_secs(100),
        async || {
            let versions = queue.versions().await.ok()?;
            (versions.in_wait == 0).then_some(())
        },
    )
    .await?;
    told(node, "workers off").await?;
    let steps = [
        ("product", &["1-shadow", "2-share"][..]),
        ("sess", &["1-shadow", "2-share"]),
        ("lock-report", &["1-shadow", "2-share", "3-switch"]),
        ("bull-mail", &["1-shadow", "2-share", "3-drain", "4-switch"]),
    ];
    for (subject, steps) in steps {
        for step in steps {
            let script = folder.path().join(format!("{subject}-{step}.sh"));
            let output = Command::new(&script)
                .env("REDSTART", env!("CARGO_BIN_EXE_redstart"))
                .env("REDSTART_URL", &adopt.url)
                .output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                output.status.success() && said == "success: ok\nfailure: ok\nrace: ok\n",
                "{subject} {step}: {output:?}"
            );
        }
    }
    told(node, "workers on").await?;
    told(node, "adders on").await?;
    told(python, "locks on").await
}

/// Every step of the plan, by the command, while the old application works; then its way back.
async fn seeded(port: u16) -> Result<()> {
    let url = format!("redis://127.0.0.1:{port}?timeout=10s");
    let store = Store::connect(&url).await?;
    let adopt = Adopt { url };
    let mut python = old_app(Language::Python, "old_app.py", port)?;
    let mut node = old_app(Language::Node, "old_app.js", port)?;
    for program in [&mut python, &mut node] {
        ensure!(program.line().await? == "ready");
    }
    let subjects = ["product:*", "lock:report", "bull:mail", "sess:*"];
    let plan = wait_until(
        "the plan to know the whole application",
        Duration::from_secs(100),
        async || {
            let plan = adopt.plan().ok()?;
            let knows = |subject: &&str| plan.iter().any(|item| item["subject"] == **subject);
            subjects.iter().all(knows).then_some(plan)
        },
    )
    .await?;
    let item = |subject: &str| plan.iter().find(|item| item["subject"] == subject);
    for (subject, found, declare) in [
        ("product:*", "cache", "cache"),
        ("lock:report", "locks", "lock"),
    ] {
        let item = item(subject).context("in the plan")?;
        ensure!(
            item["found"] == found && item["declare"] == declare,
            "{item}"
        );
        ensure!(
            item["library"].is_null() && item["confidence"].as_f64() <= Some(0.6),
            "{item}"
        );
        for part in ["evidence", "risks", "steps"] {
            ensure!(
                item[part].as_array().is_some_and(|lines| lines.len() > 1),
                "{part} of {item}"
            );
        }
        // A guess is not acted upon until somebody says that it is right.
        let args = ["adopt", "step", subject, "--url", &adopt.url, "--yes"];
        let refused = redstart(&args);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            refused.status.code() == Some(2) && why.contains("--as"),
            "{refused:?}"
        );
    }

    scenarios(&adopt, &mut python, &mut node).await?;

    // The cache and the sessions.
    adopt.done("shadow", "product:*", &["--as", "cache"])?;
    let shared = adopt.done("share", "product:*", &["--as", "cache"])?;
    ensure!(shared["changes"] != json!([]), "{shared}");
    adopt.back("product:*", &["shadow", "share"])?;
    adopt.done("shadow", "sess:*", &[])?;
    adopt.done("share", "sess:*", &[])?;
    adopt.back("sess:*", &["shadow", "share"])?;

    // The lock: an old holder blocks the switch.
    let lock = ["--as", "lock"];
    adopt.done("shadow", "lock:report", &lock)?;
    adopt.done("share", "lock:report", &lock)?;
    let (ok, report) = adopt.walk("step", "lock:report", &lock)?;
    ensure!(!ok && report["outcome"] == "blocked", "{report}");
    told(&mut python, "locks off").await?;
    adopt.done("switch", "lock:report", &lock)?;
    adopt.back("lock:report", &["shadow", "share", "switch"])?;
    told(&mut python, "locks on").await?;

    // The queue, which two versions have paused and added to: version 5 resumes it after the step and loses nothing.
    told(&mut node, "pause bullmq6").await?;
    let queue = BullQueue::new(&store, "mail")?;
    wait_until("jobs in both lists", Duration::from_secs(100), async || {
        let versions = queue.versions().await.ok()?;
        (versions.is_mixed() && versions.in_wait > 9 && versions.in_paused > 9).then_some(())
    })
    .await?;
    told(&mut node, "adders off").await?;
    adopt.done("shadow", "bull:mail", &[])?;
    let shared = adopt.done("share", "bull:mail", &[])?;
    ensure!(
        shared["changes"][0]
            .as_str()
            .is_some_and(|line| line.starts_with("moves ")),
        "{shared}"
    );
    told(&mut node, "resume bullmq5").await?;
    told(&mut node, "adders on").await?;
    let ours = Ours::start(&store)?;
    let (ok, report) = adopt.walk("step", "bull:mail", &["--wait", "100ms"])?;
    ensure!(
        !ok && report["blocked"]
            .as_str()
            .is_some_and(|why| why.contains("Node workers")),
        "{report}"
    );
    told(&mut node, "workers off").await?;
    adopt.done("drain", "bull:mail", &[])?;
    told(&mut node, "adders off").await?;
    wait_until(
        "the queue to be empty",
        Duration::from_secs(100),
        async || {
            adopt
                .walk("step", "bull:mail", &[])
                .ok()
                .filter(|(ok, _)| *ok)
        },
    )
    .await?;
    told(&mut node, "adders on").await?;
    told(&mut node, "workers on").await?;
    adopt.back("bull:mail", &["shadow", "share", "drain", "switch"])?;
    let ran = ours.stop().await?;

    // Nobody has seen an error, and every job has run once.
    told(&mut node, "adders off").await?;
    let mail = Inspector::new(&store, Library::BullMq, "bull:mail")?;
    wait_until(
        "the queue to be empty",
        Duration::from_secs(100),
        async || {
            let states = mail.overview().await.ok()?.states;
            let ended = ["completed", "failed"];
            let unfinished = states.iter().filter(|state| !ended.contains(&state.name));
            (unfinished.map(|state| state.count).sum::<u64>() == 0).then_some(())
        },
    )
    .await?;
    let mut all = 0;
    for program in [&mut python, &mut node] {
        program.tell("end")?;
        let end: Value = serde_json::from_str(&program.line().await?)?;
        ensure!(
            end["errors"] == json!([]),
            "the old clients saw errors: {end}"
        );
        for (what, count) in end["done"].as_object().context("what was done")? {
            ensure!(count.as_u64() > Some(0), "nothing was done for {what}");
            all += count.as_u64().unwrap_or(0);
        }
        if let (Some(added), Some(run)) =
            (end["done"]["added"].as_u64(), end["done"]["run"].as_u64())
        {
            ensure!(
                added == run + ran,
                "{added} jobs were added, {run} run by Node and {ran} here"
            );
        }
    }
    ensure!(
        store.scan("redstart:adopt:*").await?.is_empty(),
        "nothing is left behind"
    );
    figure(format!(
        "every step and its way back by the command, {all} operations of the old clients, 0 errors, no job lost"
    ));
    Ok(())
}

mod the_plan_of_a_seeded_application_is_carried_out_and_taken_back_under_load {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis() -> Result<()> {
        let server = Server::builder(Kind::Redis).start().await?;
        seeded(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn valkey() -> Result<()> {
        let server = Server::builder(Kind::Valkey).start().await?;
        seeded(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn engine() -> Result<()> {
        let engine = Engine::builder().build()?;
        let listen = ServerConfig::new().listen(([127, 0, 0, 1], 0).into());
        let server = Listener::bind(engine, listen).await?;
        let port = server.local_addr().context("it has an address")?.port();
        let serving = tokio::spawn(async move { server.run(std::future::pending()).await });
        let outcome = seeded(port).await;
        serving.abort();
        outcome
    }
}

#[test]
fn a_server_that_is_not_there_has_its_own_exit_status() {
    let output = redstart(&["adopt", "list", "--url", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
