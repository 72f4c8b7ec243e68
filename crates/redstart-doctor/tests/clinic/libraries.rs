//! Real libraries, healthy and not, and programs whose keys only look like theirs.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use redis::AsyncCommands as _;
use redstart_doctor::Report;
use redstart_testkit::{Foreign, Kind, Language, Server, wait_until};

use crate::{client, doctor, examine, has, sure};

fn specimen(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../redstart-adopt/tests/libraries")
        .join(name)
}

pub(crate) fn program(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/libraries")
        .join(name)
}

/// BullMQ 5 and 6, Bull, redlock, rate-limiter-flexible, express-rate-limit, connect-redis; Celery, RQ, Dramatiq,
/// redis-py's Lock, limits, Django; Sidekiq.
async fn healthy_libraries(kind: Kind) -> anyhow::Result<()> {
    for (language, script, expected) in [
        (
            Language::Node,
            "specimens.js",
            &["BullMQ", "Bull", "rate-limiter-flexible", "connect-redis"][..],
        ),
        (
            Language::Python,
            "specimens.py",
            &["Celery", "RQ", "Dramatiq"],
        ),
        (Language::Ruby, "specimens.rb", &["Sidekiq"]),
    ] {
        let server = Server::builder(kind).start().await?;
        let (port, script) = (server.port().to_string(), specimen(script));
        let args = [port.as_str()];
        let observation = doctor(&server.url())
            .sampled()
            .observed(Duration::from_secs(3));
        // The first examination sees them at work, the second what they have left.
        let (at_work, done) =
            tokio::join!(examine(observation), Foreign::run(language, &script, &args));
        done?;
        let at_work = at_work?;
        assert_eq!(sure(&at_work), [] as [&str; 0], "{script:?} at work");
        let at_rest = examine(doctor(&server.url()).sampled()).await?;
        assert_eq!(sure(&at_rest), [] as [&str; 0], "{script:?} at rest");
        for library in expected {
            assert!(
                at_rest.libraries.iter().any(|known| known == library),
                "{library} of {:?}",
                at_rest.libraries
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_libraries_are_recognised_and_not_accused() -> anyhow::Result<()> {
    healthy_libraries(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_libraries_are_not_accused_on_valkey() -> anyhow::Result<()> {
    healthy_libraries(Kind::Valkey).await
}

/// Celery, RQ and Sidekiq with workers that work and clients that wait for them, while their commands are observed.
async fn workers_at_work(kind: Kind) -> anyhow::Result<()> {
    for (language, script, library) in [
        (Language::Python, "celery_busy.py", "Celery"),
        (Language::Python, "rq_busy.py", "RQ"),
        (Language::Ruby, "sidekiq_busy.rb", "Sidekiq"),
    ] {
        let server = Server::builder(kind).start().await?;
        let (port, script) = (server.port().to_string(), program(script));
        let worker = Foreign::start(language, &script, &[&port, "work"])?;
        let mut sender = Foreign::start(language, &script, &[&port, "send"])?;
        assert_eq!(sender.line().await?, "busy", "{library}");
        // The worker takes its time to start: then it is looked at again.
        let mut looks = 0;
        loop {
            looks += 1;
            let observation = doctor(&server.url())
                .sampled()
                .observed(Duration::from_secs(3));
            let report = examine(observation).await?;
            assert_eq!(sure(&report), [] as [&str; 0], "{library} at work");
            let known = report.libraries.iter().any(|known| known == library);
            if known && report.cost.lines > 100 {
                break;
            }
            let seen = (&report.libraries, &report.cost);
            assert!(looks < 10, "{library} of {seen:?}");
        }
        worker.kill9();
        sender.kill9();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn celery_rq_and_sidekiq_at_work_are_not_accused() -> anyhow::Result<()> {
    workers_at_work(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn celery_rq_and_sidekiq_at_work_are_not_accused_on_valkey() -> anyhow::Result<()> {
    workers_at_work(Kind::Valkey).await
}

/// Jobs are removed while the doctor looks at them, and move from one state to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_queue_that_removes_its_jobs_is_not_accused() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let port = server.port().to_string();
    let args = ["bullmq5", port.as_str(), "mail"];
    let mut busy = Foreign::start(Language::Node, &program("busy_bullmq.js"), &args)?;
    assert_eq!(busy.line().await?, "busy");
    for round in 0..5 {
        let report = examine(doctor(&server.url()).sampled()).await?;
        assert_eq!(sure(&report), [] as [&str; 0], "round {round}");
        assert!(
            report.libraries.iter().any(|known| known == "BullMQ"),
            "{:?}",
            report.libraries
        );
    }
    assert!(busy.wait().await?.success());
    Ok(())
}

/// The beat is taken from the time that the process's key has left, so that time can pass by giving it less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidekiq_process_that_was_killed_at_work_is_found() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let port = server.port().to_string();
    let process = Foreign::start(Language::Ruby, &program("sidekiq_sleeper.rb"), &[&port])?;
    let wait = Duration::from_secs(120);
    // The second beat writes the job.
    let identity = wait_until("Sidekiq to note its job", wait, async || {
        let known: Vec<String> = server.query(&["SMEMBERS", "processes"]).await.ok()?;
        let identity = known.into_iter().next()?;
        let work = format!("{identity}:workers");
        let jobs: u64 = server.query(&["HLEN", &work]).await.ok()?;
        (jobs > 0).then_some(identity)
    })
    .await?;
    let alive = examine(doctor(&server.url()).sampled()).await?;
    assert_eq!(sure(&alive), [] as [&str; 0]);
    assert!(
        alive.libraries.iter().any(|known| known == "Sidekiq"),
        "{:?}",
        alive.libraries
    );

    process.kill9();
    for key in [identity.clone(), format!("{identity}:workers")] {
        server.command(&["PEXPIRE", &key, "30000"]).await?;
    }
    let rule = "sidekiq-dead-process";
    let half_a_minute_later = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&half_a_minute_later, rule), "{half_a_minute_later:#?}");
    for key in [identity.clone(), format!("{identity}:workers")] {
        server.command(&["DEL", &key]).await?;
    }
    let a_minute_later = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&a_minute_later, rule), "{a_minute_later:#?}");
    Ok(())
}

/// A message that a worker of Celery itself holds: due within the default visibility time-out, or three hours from now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_celery_that_is_due_too_late_is_found_and_so_is_a_killed_worker()
-> anyhow::Result<()> {
    for (countdown, too_late) in [("600", false), ("10800", true)] {
        let server = Server::builder(Kind::Redis).start().await?;
        let port = server.port().to_string();
        let args = [port.as_str(), countdown];
        let worker = Foreign::start(Language::Python, &program("celery_sleeper.py"), &args)?;
        let wait = Duration::from_secs(120);
        wait_until("Celery to hold both messages", wait, async || {
            let held: u64 = server.query(&["HLEN", "unacked"]).await.ok()?;
            (held == 2).then_some(())
        })
        .await?;
        let alive = examine(doctor(&server.url()).sampled()).await?;
        assert!(
            alive.libraries.iter().any(|known| known == "Celery"),
            "{:?}",
            alive.libraries
        );
        let found: Vec<&str> = alive.sure().map(|finding| finding.rule.as_str()).collect();
        let expected: &[&str] = match too_late {
            true => &["celery-eta-beyond-visibility"],
            false => &[],
        };
        assert_eq!(found, expected, "{:#?}", alive.findings);
        if !too_late {
            // Two hours after it was killed, as far as its messages are concerned.
            worker.kill9();
            let held: Vec<String> = server
                .query(&["ZRANGE", "unacked_index", "0", "-1"])
                .await?;
            assert_eq!(held.len(), 2);
            for tag in &held {
                let by = ["ZINCRBY", "unacked_index", "-7200", tag];
                server.command(&by).await?;
            }
            let dead = examine(doctor(&server.url()).sampled()).await?;
            assert!(has(&dead, "celery-unacked"), "{:#?}", dead.findings);
        }
    }
    Ok(())
}

/// As the library itself blocks a key: for ever, or for ten minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_of_rate_limiter_flexible_that_never_ends_is_found() -> anyhow::Result<()> {
    for (seconds, expected) in [("600", false), ("0", true)] {
        let server = Server::builder(Kind::Redis).start().await?;
        let port = server.port().to_string();
        let args = [port.as_str(), seconds];
        Foreign::run(Language::Node, &program("flexible_blocked.js"), &args).await?;
        let report = examine(doctor(&server.url()).sampled()).await?;
        let found: Vec<&str> = report.sure().map(|finding| finding.rule.as_str()).collect();
        let rules: &[&str] = match expected {
            true => &["rate-limiter-flexible-without-ttl"],
            false => &[],
        };
        assert_eq!(found, rules, "blocked for {seconds} s: {report:#?}");
    }
    Ok(())
}

/// A message that was delivered two hours ago, as kombu keeps it.
async fn unacknowledged(server: &Server) -> anyhow::Result<()> {
    let now: Vec<u64> = server.query(&["TIME"]).await?;
    let delivered = (now[0] - 7200).to_string();
    let binding = "celery\u{6}\u{16}\u{6}\u{16}celery";
    let message =
        r#"[{"body": "W10=", "headers": {"task": "shop.report", "eta": null}}, "", "celery"]"#;
    for command in [
        &["SADD", "_kombu.binding.celery", binding][..],
        &["HSET", "unacked", "tag-1", message],
        &["ZADD", "unacked_index", &delivered, "tag-1"],
    ] {
        server.command(command).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_visibility_timeout_is_accused_only_without_a_worker() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    unacknowledged(&server).await?;
    let without = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&without, "celery-unacked"), "{:#?}", without.findings);

    // A worker waits for messages as long as it lives.
    let mut client = server.client().await?;
    let worker = tokio::spawn(async move {
        let _: redis::RedisResult<()> = client.brpop("celery", 0.0).await;
    });
    let wait = Duration::from_secs(60);
    wait_until("the worker to wait", wait, async || {
        let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
        clients.contains("cmd=brpop").then_some(())
    })
    .await?;
    let with = examine(doctor(&server.url()).sampled()).await?;
    assert_eq!(sure(&with), [] as [&str; 0]);
    worker.abort();
    Ok(())
}

fn subjects<'a>(report: &'a Report, rule: &str) -> Vec<&'a str> {
    let sure = report.sure().filter(|finding| finding.rule == rule);
    sure.map(|finding| finding.subject.as_str()).collect()
}

/// Hash tags and common words do not make a key Redstart's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_made_by_hand_with_names_of_a_library_are_examined() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "shop:lock:{report}", "1"]).await?;
    server.command(&["SET", "flower:17:lock", "1"]).await?;
    for i in 0..30 {
        let key = format!("shop:cache:{{u{i}}}");
        server.command(&["SET", &key, "{\"id\":1}"]).await?;
    }
    let report = examine(doctor(&server.url()).sampled()).await?;
    let locks = subjects(&report, "lock-without-ttl");
    assert!(
        locks.contains(&"shop:lock:{report}") && locks.contains(&"flower:*:lock"),
        "{:#?}",
        report.findings
    );
    assert_eq!(
        subjects(&report, "cache-without-ttl"),
        ["shop:cache:{u*}"],
        "{:#?}",
        report.findings
    );
    assert_eq!(report.libraries, [] as [&str; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_made_by_hand_with_names_of_bullmq_is_examined() -> anyhow::Result<()> {
    for sampled in [true, false] {
        let server = Server::builder(Kind::Redis).start().await?;
        server.command(&["RPUSH", "app:jobs:failed", "{}"]).await?;
        let url = server.url();
        let (mut producer, mut worker) = (client(&url).await?, client(&url).await?);
        let traffic = async {
            loop {
                let id: u64 = producer.incr("app:jobs:id", 1).await?;
                let job = format!("{{\"id\":{id}}}");
                let _: u64 = producer.lpush("app:jobs:wait", job).await?;
                let _: Option<(String, String)> = worker.brpop("app:jobs:wait", 1.0).await?;
            }
            #[allow(unreachable_code)]
            redis::RedisResult::Ok(())
        };
        let mut examination = doctor(&server.url()).observed(Duration::from_millis(700));
        if sampled {
            examination = examination.sampled();
        }
        let report = tokio::select! {
            report = examine(examination) => report?,
            end = traffic => { end?; unreachable!() }
        };
        assert!(
            subjects(&report, "queue-loses-jobs").contains(&"app:jobs:wait"),
            "{:#?}",
            report.findings
        );
        assert!(!has(&report, "bullmq-missing-jobs"));
        assert_eq!(report.libraries, [] as [&str; 0]);
    }
    Ok(())
}

/// Where a file cannot be asked, names are a hint: the finding stays, and is not sure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_in_a_log_makes_a_finding_less_sure_and_does_not_hide_it() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("monitor.log");
    let mut lines = String::new();
    for i in 0..9 {
        for command in [
            "\"INCR\" \"app:jobs:id\"".to_owned(),
            format!("\"LPUSH\" \"app:jobs:wait\" \"j{i}\""),
            "\"BRPOP\" \"app:jobs:wait\" \"1\"".to_owned(),
        ] {
            lines += &format!("17000000{i:02}.1 [0 10.0.0.1:5] {command}\n");
        }
    }
    std::fs::write(&log, lines)?;
    let report = examine(doctor(&log.display().to_string())).await?;
    let found = report
        .findings
        .iter()
        .find(|finding| finding.rule == "queue-loses-jobs")
        .ok_or_else(|| anyhow::anyhow!("{:#?}", report.findings))?;
    assert!(
        found.confidence < redstart_doctor::SURE && found.evidence.contains("BullMQ"),
        "{found:#?}"
    );
    Ok(())
}

/// BullMQ 5 and 6 on one queue, as they leave it themselves: jobs in both lists, and a version that changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_of_bullmq_on_one_queue_are_found() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let (port, script) = (server.port().to_string(), specimen("bullmq.js"));
    let bullmq = async |module: &str, what: &[&str]| {
        let args = [&[module, &port, "mail"], what].concat();
        Foreign::run(Language::Node, &script, &args).await
    };
    for (module, what) in [
        ("bullmq6", &["pause"][..]),
        ("bullmq6", &["add", "10"]),
        ("bullmq5", &["add", "5"]),
    ] {
        bullmq(module, what).await?;
    }
    let report = examine(doctor(&server.url()).sampled()).await?;
    let finding = report
        .findings
        .iter()
        .find(|finding| finding.rule == "bullmq-paused-and-waiting");
    let finding = finding.context("jobs in both lists")?;
    assert_eq!(finding.evidence, "10 jobs wait and 5 are paused");

    let code = "
        const [five, six] = ['bullmq5', 'bullmq6'].map((name) => process.mainModule.require(name));
        console.log('mixed');
        for (let n = 0; ; n++) {
          const mail = new (n % 2 ? five : six).Queue('mail', { connection: queue.opts.connection });
          await mail.add('plain', {});
          if (n % 100 === 0) await mail.drain();
          await mail.close();
        }";
    let args = ["bullmq5", &port, "mail", "run", code];
    let mut mixed = Foreign::start(Language::Node, &script, &args)?;
    assert_eq!(mixed.line().await?, "mixed");
    wait_until(
        "the version to change",
        Duration::from_secs(100),
        async || {
            let report = examine(doctor(&server.url()).sampled()).await.ok()?;
            has(&report, "bullmq-mixed-versions").then_some(())
        },
    )
    .await?;
    mixed.kill9();
    Ok(())
}
