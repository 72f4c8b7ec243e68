//! `redstart queue` against `redstart engine`.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use redstart::{
    Store,
    messaging::{
        Backoff, Flow, Job, JobContext, JobLimit, JobPolicy, JobState, MissedTicks, Outcome, Queue,
        QueueEventKind, UniqueUntil, Verdict,
    },
};
use redstart_engine::{
    Clock, Engine,
    server::{Server, ServerConfig},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

#[derive(Serialize, Deserialize)]
struct Mail {
    n: u64,
}

impl Job for Mail {
    const NAME: &'static str = "mail";
}

struct Listening {
    process: Child,
    url: String,
}

impl Listening {
    fn start() -> Listening {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(["engine", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = process.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("ready: ").unwrap().to_owned();
        Listening { process, url }
    }

    /// Runs `redstart queue …` with this standard input.
    fn queue(&self, args: &[&str], input: &str) -> Output {
        self.queue_of("mail", args, input)
    }

    /// The same for another queue.
    fn queue_of(&self, name: &str, args: &[&str], input: &str) -> Output {
        redstart_queue(&self.url, name, args, input)
    }

    /// What it prints, line by line, as JSON.
    fn json(&self, args: &[&str]) -> Vec<Value> {
        let output = self.queue(&[args, &["--json"]].concat(), "");
        assert!(output.status.success(), "{args:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.queue(args, "");
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Runs `redstart queue …` with this standard input.
fn redstart_queue(url: &str, name: &str, args: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(["queue", "--url", url, "--namespace", "shop", "--name", name])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    process.wait_with_output().unwrap()
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_looks_into_a_queue_and_repairs_it() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    // Nine dead letters of one bad deploy, and one of another kind.
    let worker = queue
        .worker(|mail: Mail, _: JobContext| async move {
            match mail.n {
                9 => Verdict::dead("no such address \"eve\""),
                n => Verdict::dead(format!("timeout after {} ms", 1000 + n)),
            }
        })
        .start()
        .await
        .unwrap();
    for n in 0..10 {
        queue.enqueue(&Mail { n }).await.unwrap();
    }
    let died = redstart_testkit::eventually(Duration::from_secs(30), async || {
        queue
            .inspect()
            .counts()
            .await
            .is_ok_and(|counts| counts.dead == 10)
    });
    assert!(died.await, "the jobs do not die");
    worker.shutdown(Duration::from_secs(5)).await.unwrap();

    let groups = server.json(&["dead"]);
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert_eq!(
        (&groups[0]["count"], &groups[0]["error"]),
        (&9.into(), &"timeout after # ms".into())
    );
    assert!(server.text(&["dead"]).contains("timeout after # ms"));
    assert_eq!(
        server
            .json(&["dead", "--each", "--error", "no such*"])
            .len(),
        1
    );

    assert!(
        server
            .text(&["retry", "--error", "timeout*", "--dry-run"])
            .contains('9')
    );
    assert_eq!(
        queue.inspect().counts().await.unwrap().dead,
        10,
        "a dry run changes nothing"
    );
    assert_eq!(
        server.json(&["retry", "--error", "timeout*"])[0]["count"],
        9
    );
    assert!(
        !server.queue(&["retry"], "").status.success(),
        "which ones?"
    );

    let jobs = server.json(&["list", "--state", "ready"]);
    assert_eq!(jobs.len(), 9);
    let id = jobs[0]["id"].as_str().unwrap();
    assert_eq!(server.json(&["show", id])[0]["payload"], jobs[0]["payload"]);
    assert!(server.text(&["show", id]).contains("mail"));
    assert_eq!(
        server.json(&["cancel", "--yes", id])[0]["outcome"],
        "cancelled"
    );
    assert!(!server.queue(&["cancel", "--yes", id], "").status.success());
    assert!(!server.queue(&["show", id], "").status.success());

    server.text(&["pause"]);
    assert_eq!(server.json(&["stats"])[0]["paused"], true);
    server.text(&["resume"]);
    let stats = server.json(&["stats"]);
    assert_eq!(
        (&stats[0]["ready"], &stats[0]["dead"]),
        (&8.into(), &1.into())
    );
    assert!(server.text(&["stats"]).contains("ready"));

    // Out of one queue and into it again: eight that wait and the dead one.
    let exported = server.text(&["export"]);
    assert_eq!(exported.lines().count(), 9);
    assert!(
        !server.queue(&["drain"], "").status.success(),
        "nobody confirmed it"
    );
    assert!(server.text(&["drain", "--dry-run"]).contains("8 jobs"));
    let looked = &server.json(&["drain", "--dry-run"])[0];
    assert_eq!(looked["would"], "delete 8 jobs that wait");
    assert_eq!(server.json(&["drain", "--yes"])[0]["count"], 8);
    assert_eq!(server.json(&["purge", "--all", "--yes"])[0]["count"], 1);
    let imported = server.queue(&["import"], &exported);
    assert!(imported.status.success(), "{imported:?}");
    assert_eq!(queue.inspect().counts().await.unwrap().ready, 9);
    assert!(!server.queue(&["import"], "{\"kind\":1}\n").status.success());

    queue
        .cron("nightly", "0 3 * * *", &Mail { n: 1 }, MissedTicks::Skip)
        .await
        .unwrap();
    server.text(&["cron", "pause", "nightly"]);
    assert_eq!(server.json(&["cron"])[0]["paused"], true);
    server.text(&["cron", "run", "nightly"]);
    assert_eq!(queue.inspect().counts().await.unwrap().ready, 10);
    assert!(
        !server
            .queue(&["cron", "run", "weekly"], "")
            .status
            .success()
    );
}

/// Payloads belong to the workers: they may have signed these bytes, or count in larger numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_payload_is_imported_byte_by_byte() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let payloads: [&[u8]; 9] = [
        b"\"hello\"",
        b"[255]",
        b"null",
        b"{\"n\":123456789012345678901234567890,\"b\":1,\"a\":1,\"a\":2.50}",
        b" {\"a\": 1} ",
        b"{\n  \"a\": 1\n}",
        "\"\u{e4}\\u00e4\"".as_bytes(),
        b"1e2",
        b"0.10000000000000000555",
    ];
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    for payload in payloads {
        queue.enqueue_raw("any", payload).await.unwrap();
    }
    let exported = server.text(&["export"]);
    assert_eq!(exported.lines().count(), payloads.len(), "{exported}");
    for name in ["moved", "again"] {
        let imported = server.queue_of(name, &["import"], &exported);
        assert!(imported.status.success(), "{imported:?}");
        let moved = Queue::new(&store, "shop", name).unwrap();
        let jobs = moved.inspect().search(JobState::Ready, "", 100).await;
        let mut found: Vec<Vec<u8>> = jobs
            .unwrap()
            .into_iter()
            .map(|job| job.payload.to_vec())
            .collect();
        let mut wanted = payloads.map(<[u8]>::to_vec);
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted, "{exported}");
    }
    for refused in [
        r#"{"kind":"a"}"#,
        r#"{"kind":"a","payload":1,"payload_base64":"MQ=="}"#,
        r#"{"kind":"a","payload_base64":"?"}"#,
    ] {
        let output = server.queue(&["import"], &format!("{refused}\n"));
        assert_eq!(output.status.code(), Some(2), "{refused}");
    }
    assert_eq!(queue.inspect().counts().await.unwrap().ready, 9);
}

/// A backup that a full disk cut short must not be taken for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_written_is_a_failure() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    for n in 0..500 {
        queue.enqueue(&Mail { n }).await.unwrap();
    }
    let run = |args: &[&str], out: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(args)
            .env("REDSTART_URL", &server.url)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let full = || Stdio::from(std::fs::File::create("/dev/full").unwrap());
    let of_queue = |args: &[&'static str]| [&["queue", "-s", "shop", "-n", "mail"], args].concat();
    for args in [
        of_queue(&["export"]),
        of_queue(&["list", "--json"]),
        of_queue(&["stats"]),
        of_queue(&["dead"]),
        vec!["adopt", "plan", "--json"],
        vec!["script", "mutex.acquire"],
        vec!["guide"],
        vec!["completions", "bash"],
        vec!["queue", "--help"],
        vec!["--version"],
    ] {
        let output = run(&args, full()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{args:?}: {said}");
        assert!(said.contains("No space left"), "{args:?}: {said}");
    }
    // A pager that was closed is not a failure, but half an export is one.
    for (args, code) in [
        (of_queue(&["list", "--json", "--limit", "500"]), Some(0)),
        (of_queue(&["export"]), Some(4)),
    ] {
        let mut process = run(&args, Stdio::piped());
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{args:?}: {output:?}");
    }
}

/// The same choice by the command and by the API: all that is said must be true of a letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_chosen_by_all_that_is_said() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let handler = |mail: Mail, _: JobContext| async move {
        match mail.n {
            0 => Verdict::dead("timeout of \"a\""),
            1 => Verdict::dead("timeout of 7"),
            _ => Verdict::dead("refused"),
        }
    };
    let worker = queue.worker(handler).start().await.unwrap();
    let mut ids = Vec::new();
    for n in 0..3 {
        let added = queue.enqueue(&Mail { n }).await.unwrap();
        ids.push(added.id().unwrap().to_string());
    }
    let dead = async || queue.inspect().counts().await.unwrap().dead;
    let died = redstart_testkit::eventually(Duration::from_secs(60), async || dead().await == 3);
    assert!(died.await, "the jobs do not die");
    worker.shutdown(Duration::from_secs(5)).await.unwrap();
    let count = |args: &[&str]| {
        let line = &server.json(&[&["retry", "--dry-run"], args].concat())[0];
        line["count"].as_u64().unwrap()
    };
    assert_eq!(count(&["--error", "timeout*"]), 2);
    assert_eq!(
        count(&["--error", "timeout*", "--group", "timeout of #"]),
        1
    );
    assert_eq!(count(&["--error", "refused", &ids[0]]), 0);
    assert_eq!(count(&["--error", "timeout*", &ids[0]]), 1);
    assert_eq!(count(&["--all"]), 3);
    for more in [&["--error", "timeout*"][..], &["--group", "x"], &[&ids[0]]] {
        let args = [&["purge", "--yes", "--all"], more].concat();
        assert_eq!(server.queue(&args, "").status.code(), Some(2), "{more:?}");
    }
    assert_eq!(dead().await, 3);
}

/// Whoever runs a command without `--yes`, and cannot be asked, changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_undone_is_not_done_unconfirmed() {
    use redstart::{
        locking::Mutex as Lock,
        sessions::{Login, Sessions},
    };
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let hour = Duration::from_secs(3600);
    let job = queue.enqueue(&Mail { n: 1 }).delay(hour).await.unwrap();
    let job = job.id().unwrap().to_string();
    let sessions = Sessions::new(&store, "shop", "web").unwrap();
    let nothing = serde_json::json!({});
    sessions.login(Login::new("ann"), &nothing).await.unwrap();
    let handle = sessions.list("ann").await.unwrap()[0].handle.clone();
    let lock = async |name: &str| {
        let lock = Lock::builder(&store, "shop", name).label("stuck").build();
        lock.unwrap().try_lock().await.unwrap().unwrap()
    };
    let guard = lock("m").await;
    // Any client can write a label that would rewrite the line, and the question.
    let _evil = lock("evil").await;
    let key = store.scan("shop:*{evil}").await.unwrap().remove(0);
    let get = redstart::redis::cmd("GET").arg(&key).take();
    let value: String = store.query(&get).await.unwrap();
    let value = value.replace("stuck", "\u{1b}[2K\rfree");
    let set = redstart::redis::cmd("SET")
        .arg(&key)
        .arg(value)
        .arg("KEEPTTL")
        .take();
    store.query::<()>(&set).await.unwrap();
    let run = |args: &[&str], more: &[&str]| {
        let mut all = vec![args[0], "-s", "shop"];
        all.extend(&args[1..]);
        all.extend(more);
        Command::new(env!("CARGO_BIN_EXE_redstart"))
            .args(all)
            .env("REDSTART_URL", &server.url)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    for args in [
        &["queue", "-n", "mail", "delete", &job][..],
        &["queue", "-n", "mail", "cancel", &job],
        &["queue", "-n", "mail", "drain"],
        &["session", "-n", "web", "revoke", "--user", "ann", "--all"],
        &[
            "session", "-n", "web", "revoke", "--user", "ann", "--handle", &handle,
        ],
        &["limiter", "-n", "api", "--quota", "1/h", "reset", "ann"],
        &["breaker", "-n", "pay", "force-open"],
        &["breaker", "-n", "pay", "reset"],
        &["cache", "-n", "product", "invalidate", "--tag", "t"],
        &["lock", "-n", "m", "force-release"],
        &["lock", "-n", "evil", "force-release"],
    ] {
        let refused = run(args, &[]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("confirm with --yes"), "{args:?}: {said}");
        assert!(!said.trim_end().contains(char::is_control), "{said:?}");
        let looked = run(args, &["--dry-run"]);
        let said = String::from_utf8_lossy(&looked.stdout).into_owned();
        assert!(looked.status.success(), "{args:?}: {looked:?}");
        assert!(said.starts_with("would "), "{args:?}: {said}");
    }
    assert_eq!(queue.inspect().counts().await.unwrap().delayed, 1);
    assert_eq!(sessions.list("ann").await.unwrap().len(), 1);
    assert!(guard.extend(hour).await.unwrap().is_some());
    let breaker = run(&["breaker", "-n", "pay", "show"], &[]);
    assert_eq!(String::from_utf8_lossy(&breaker.stdout).trim(), "closed");
    let show = |name: &str| {
        let shown = run(&["lock", "-n", name, "show"], &[]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.starts_with("held by"), "{shown:?}");
        assert!(!shown.trim_end().contains(char::is_control), "{shown:?}");
        shown
    };
    show("evil");
    let shown = show("m");
    // Of another lease nothing is ended, and of this one it is.
    let other = [
        "lock",
        "-n",
        "m",
        "force-release",
        "--yes",
        "--holder",
        "0123456789abcdef",
    ];
    assert_eq!(run(&other, &[]).status.code(), Some(4));
    assert!(guard.extend(hour).await.unwrap().is_some());
    let id = shown.trim_end().rsplit(' ').next().unwrap().to_owned();
    let this = ["lock", "-n", "m", "force-release", "--yes", "--holder", &id];
    assert!(run(&this, &[]).status.success());
    assert!(guard.extend(hour).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_works_as_the_workers_have_their_queue_set() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::builder(&store, "shop", "mail")
        .keep_done(100, Duration::from_secs(3600))
        .keep_events(1000)
        .kind_limit("mail", JobLimit::concurrency(1))
        .build()
        .unwrap();
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let seen = most.clone();
    let worker = queue
        .worker(move |_: Mail, _: JobContext| {
            let (running, seen) = (running.clone(), seen.clone());
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                seen.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                running.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .start()
        .await
        .unwrap();
    queue.pause().await.unwrap();
    let handle = queue.enqueue(&Mail { n: 1 }).await.unwrap();
    let id = handle.id().unwrap().to_string();
    assert_eq!(
        server.json(&["cancel", "--yes", &id])[0]["outcome"],
        "cancelled"
    );
    assert_eq!(handle.ended().await.unwrap(), Outcome::Cancelled);
    let events = queue.inspect().events(None).await.unwrap();
    assert!(
        events
            .iter()
            .any(|event| event.kind == QueueEventKind::Cancelled),
        "{events:?}"
    );
    // What it adds waits in the line of its kind, and runs one at a time.
    let lines: String = (0..5)
        .map(|n| format!("{{\"kind\":\"mail\",\"payload\":{{\"n\":{n}}}}}\n"))
        .collect();
    assert!(server.queue(&["import"], &lines).status.success());
    queue.resume().await.unwrap();
    let ran = redstart_testkit::eventually(Duration::from_secs(30), async || {
        queue
            .inspect()
            .counts()
            .await
            .is_ok_and(|counts| counts.done == 6)
    });
    assert!(ran.await, "{:?}", queue.inspect().counts().await);
    assert_eq!(most.load(Ordering::SeqCst), 1);
    worker.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_job_has_the_options_of_the_exported_one() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let hour = Duration::from_secs(3600);
    let policy = JobPolicy::new()
        .attempts(7)
        .backoff(Backoff::exponential(Duration::from_secs(2), hour))
        .timeout(Duration::from_secs(9))
        .keep(hour)
        .priority(5);
    queue
        .enqueue(&Mail { n: 1 })
        .policy(policy)
        .unique("one", UniqueUntil::Started)
        .await
        .unwrap();
    queue
        .enqueue(&Mail { n: 2 })
        .policy(
            JobPolicy::new()
                .backoff_named("slowly")
                .expires_after(2 * hour),
        )
        .throttle("two", 3 * hour)
        .await
        .unwrap();
    queue
        .enqueue(&Mail { n: 3 })
        .group("tenant")
        .delay(hour)
        .unique("three", UniqueUntil::Done)
        .await
        .unwrap();
    queue.enqueue(&Mail { n: 4 }).await.unwrap();
    let exported = server.text(&["export"]);
    let imported = server.queue_of("moved", &["import"], &exported);
    assert!(imported.status.success(), "{imported:?}");
    let again = server.queue_of("moved", &["export"], "");
    let again = String::from_utf8(again.stdout).unwrap();
    let sorted = |text: &str| {
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut lines: Vec<Value> = lines.collect();
        lines.sort_by_key(|line| line["payload"]["n"].as_u64());
        lines
    };
    let (before, after) = (sorted(&exported), sorted(&again));
    assert_eq!((before.len(), after.len()), (4, 4));
    for (before, after) in before.iter().zip(&after) {
        for field in [
            "kind",
            "state",
            "priority",
            "max_attempts",
            "unique",
            "group",
        ] {
            assert_eq!(before[field], after[field], "{field} of {before}");
        }
        for field in ["attempts", "backoff", "timeout", "keep", "priority"] {
            let of = |line: &Value| line["policy"][field].clone();
            assert_eq!(of(before), of(after), "{field} of {before}");
        }
        // Times are the same but for what the commands took.
        for field in ["due", "expires", "unique_until"] {
            match (before[field].as_f64(), after[field].as_f64()) {
                (Some(a), Some(b)) => assert!((a - b).abs() < 600.0, "{field} of {before}: {b}"),
                _ => assert_eq!(before[field], after[field], "{field} of {before}"),
            }
        }
    }
    assert_eq!(before[0]["unique_until"], "started");
    assert!(before[1]["unique_until"].is_number() && before[1]["expires"].is_number());
    assert_eq!(before[2]["unique_until"], "done");
    assert_eq!(before[0]["policy"]["timeout"], 9000);
    // A job that would expire before it may run is left out, not run early.
    let late = before[2].clone();
    let mut late: serde_json::Map<String, Value> = late.as_object().unwrap().clone();
    late.insert("expires".to_owned(), 1.0.into());
    late.insert("unique".to_owned(), Value::Null);
    let line = format!("{}\n", Value::Object(late));
    let output = server.queue(&["import", "--json"], &line);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("expire") && said.contains("\"count\":0"),
        "{said}"
    );
}

/// Times of jobs are of the server's clock; that of the machine with the command may be wrong by hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_job_keeps_its_times_whatever_the_clock_of_this_machine_shows() {
    let hour = Duration::from_secs(3600);
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let there = here.unwrap().saturating_sub(2 * hour);
    let engine = Engine::builder()
        .clock(Clock::live_at(there.as_micros() as i64))
        .build()
        .unwrap();
    let listen = ServerConfig::new().listen("127.0.0.1:0".parse().unwrap());
    let server = Server::bind(engine, listen).await.unwrap();
    let url = format!("redis://{}", server.local_addr().unwrap());
    tokio::spawn(server.run(std::future::pending()));
    let store = Store::connect(&url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    queue.enqueue(&Mail { n: 1 }).delay(hour).await.unwrap();
    let mail = Mail { n: 2 };
    let expiring = queue.enqueue(&mail).expires_after(hour);
    expiring.throttle("two", hour).await.unwrap();
    let run = async |name: &str, command: &'static str, input: String| {
        let (url, name) = (url.clone(), name.to_owned());
        let run = move || redstart_queue(&url, &name, &[command], &input);
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let exported = run("mail", "export", String::new()).await;
    run("moved", "import", exported.clone()).await;
    let again = run("moved", "export", String::new()).await;
    let times = |text: &str| {
        let mut times = Vec::new();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let n = line["payload"]["n"].as_u64().unwrap();
            for field in ["due", "expires", "unique_until"] {
                times.push((n, field, line[field].as_f64()));
            }
            times.push((n, "is delayed", (line["state"] == "delayed").then_some(0.0)));
        }
        times.sort_by_key(|(n, field, _)| (*n, *field));
        times
    };
    let (before, after) = (times(&exported), times(&again));
    assert_eq!(before.len(), 8);
    for (before, after) in before.iter().zip(&after) {
        // The same but for what the commands took.
        match (before.2, after.2) {
            (Some(a), Some(b)) => assert!((a - b).abs() < 600.0, "{before:?} {after:?}"),
            _ => assert_eq!(before, after),
        }
    }
    let (time, until) = (store.time().await.unwrap(), before[7].2.unwrap());
    assert!(
        (until - (time + hour).as_secs_f64()).abs() < 600.0,
        "{until}"
    );
}

/// `drain` deletes what waits, and nothing else: not what runs, not dead letters; and it makes no parent run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_deletes_what_waits_and_starts_nothing() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let (gate, ran) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let start = async |queue: &Queue| {
        let (gate, ran) = (gate.clone(), ran.clone());
        queue
            .worker(move |mail: Mail, _: JobContext| {
                let (gate, ran) = (gate.clone(), ran.clone());
                async move {
                    ran.lock().unwrap().push(mail.n);
                    match mail.n {
                        0 => gate.acquire().await.unwrap().forget(),
                        1 => return Verdict::dead("no such address"),
                        _ => {}
                    }
                    Verdict::Done
                }
            })
            .concurrency(1)
            .start()
            .await
            .unwrap()
    };
    let counts = async || queue.inspect().counts().await.unwrap();
    let worker = start(&queue).await;
    // One is dead, one runs, and holds the only slot.
    queue.enqueue(&Mail { n: 1 }).await.unwrap();
    queue.enqueue(&Mail { n: 0 }).await.unwrap();
    let begun = redstart_testkit::eventually(Duration::from_secs(30), async || {
        let counts = counts().await;
        (counts.dead, counts.running) == (1, 1)
    });
    assert!(begun.await, "{:?}", counts().await);
    // Everything that can wait: a flow of two levels, delayed, by priority, in a group, with a unique key.
    let leaf = |n| Flow::new(&Mail { n }).unwrap();
    let inner = leaf(20).child(leaf(21)).child(leaf(22));
    let flow = leaf(23).child(inner).child(leaf(24));
    let _ = queue.add_flow(flow).await.unwrap();
    let hour = Duration::from_secs(3600);
    queue.enqueue(&Mail { n: 30 }).delay(hour).await.unwrap();
    queue.enqueue(&Mail { n: 31 }).priority(9).await.unwrap();
    queue.enqueue(&Mail { n: 32 }).group("a").await.unwrap();
    let unique = async || {
        let enqueue = queue.enqueue(&Mail { n: 33 });
        enqueue.unique("key", UniqueUntil::Done).await.unwrap()
    };
    assert!(unique().await.is_new());
    let before = counts().await;
    assert_eq!(
        (before.waiting, before.unfinished() - before.running),
        (2, 9)
    );
    assert_eq!(server.json(&["drain", "--yes"])[0]["count"], 9);
    let after = counts().await;
    assert_eq!((after.unfinished(), after.running, after.dead), (1, 1, 1));
    assert!(unique().await.is_new(), "the key of a deleted job is free");
    assert_eq!(server.json(&["drain", "--yes"])[0]["count"], 1);
    assert_eq!(server.json(&["drain", "--yes"])[0]["count"], 0);
    gate.add_permits(1);
    let over = redstart_testkit::eventually(Duration::from_secs(30), async || {
        counts().await.unfinished() == 0
    });
    assert!(over.await, "{:?}", counts().await);
    worker.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), [1, 0], "nothing that was deleted ran");
    assert_eq!(queue.inspect().counts().await.unwrap().dead, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_figures_follow_the_queue_until_they_are_interrupted() {
    let server = Listening::start();
    let store = Store::connect(&server.url).await.unwrap();
    let queue = Queue::new(&store, "shop", "mail").unwrap();
    let mut watching = Command::new(env!("CARGO_BIN_EXE_redstart"))
        .args(["queue", "--url", &server.url, "--namespace", "shop"])
        .args(["--name", "mail", "--json", "stats", "--watch"])
        .args(["--every", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let figures: Value = serde_json::from_str(&line).unwrap();
            if sender.send(figures).is_err() {
                return;
            }
        }
    });
    // They are written again and again; each count is seen some time after it is true.
    for n in 0..3 {
        let shown = async {
            while let Some(figures) = seen.recv().await {
                if figures["ready"] == n {
                    return true;
                }
            }
            false
        };
        let shown = tokio::time::timeout(Duration::from_secs(30), shown).await;
        assert!(
            shown.is_ok_and(|shown| shown),
            "{n} ready jobs are not seen"
        );
        queue.enqueue(&Mail { n }).await.unwrap();
    }
    redstart_testkit::interrupt(watching.id()).unwrap();
    assert!(watching.wait().unwrap().success(), "Ctrl-C is how it ends");
}
