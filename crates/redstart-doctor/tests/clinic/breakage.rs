//! Faults that real libraries make: killed processes, and keys that somebody deleted.

use std::time::Duration;

use redstart_testkit::{Foreign, Kind, Language, Server, wait_until};

use crate::{doctor, examine, has, libraries::program};

const PATIENCE: Duration = Duration::from_secs(120);

/// The rules that an examination is sure of, with their subjects.
async fn found(server: &Server) -> anyhow::Result<Vec<(String, String)>> {
    let report = examine(doctor(&server.url()).sampled()).await?;
    let sure = report.sure();
    Ok(sure
        .map(|one| (one.rule.clone(), one.subject.clone()))
        .collect())
}

fn pair(rule: &str, subject: &str) -> (String, String) {
    (rule.to_owned(), subject.to_owned())
}

/// BullMQ 5 and 6: the job of a worker that was killed stays active when its lock has ended, because nobody looks for it; and
/// an id stays when somebody deletes its job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_killed_bullmq_worker_and_a_deleted_job_are_found() -> anyhow::Result<()> {
    for version in ["bullmq5", "bullmq6"] {
        let server = Server::builder(Kind::Redis).start().await?;
        let port = server.port().to_string();
        let args = [version, port.as_str(), "mail"];
        let mut worker = Foreign::start(Language::Node, &program("bullmq_holder.js"), &args)?;
        assert_eq!(worker.line().await?, "active", "{version}");
        wait_until("the other jobs to wait", PATIENCE, async || {
            let waiting: u64 = server.query(&["LLEN", "bull:mail:wait"]).await.ok()?;
            (waiting == 2).then_some(())
        })
        .await?;
        assert_eq!(found(&server).await?, [], "{version} at work");

        worker.kill9();
        wait_until("the lock to end", PATIENCE, async || {
            let locks: u64 = server.query(&["EXISTS", "bull:mail:1:lock"]).await.ok()?;
            (locks == 0).then_some(())
        })
        .await?;
        let queue = "BullMQ queue bull:mail";
        let stuck = pair("bullmq-active-without-lock", queue);
        assert_eq!(
            found(&server).await?,
            std::slice::from_ref(&stuck),
            "{version} killed"
        );

        server.command(&["DEL", "bull:mail:2"]).await?;
        let mut both = found(&server).await?;
        both.sort();
        let missing = pair("bullmq-missing-jobs", queue);
        assert_eq!(both, [stuck, missing], "{version} without a job");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_redis_py_whose_holder_died_is_found() -> anyhow::Result<()> {
    for (seconds, expected) in [(None, true), (Some("600"), false)] {
        let server = Server::builder(Kind::Redis).start().await?;
        let port = server.port().to_string();
        let mut args = vec![port.as_str(), "nightly:lock"];
        args.extend(seconds);
        Foreign::run(Language::Python, &program("redis_py_lock.py"), &args).await?;
        let locked: u64 = server.query(&["EXISTS", "nightly:lock"]).await?;
        assert_eq!(locked, 1);
        let expected = match expected {
            true => vec![pair("redis-py-lock-without-ttl", "nightly:lock")],
            false => Vec::new(),
        };
        assert_eq!(found(&server).await?, expected, "{seconds:?}");
    }
    Ok(())
}

/// Writes or requests that are refused now are a small share of all that a busy server has ever done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_go_on_are_sure_without_a_sample_and_past_ones_are_not() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let many = "for i = 1, 1000000 do redis.call('ping') end";
    server.command(&["EVAL", many, "0"]).await?;
    let refused = "return redis.error_reply('CROSSSLOT the keys are in different slots')";
    let refuse = async || server.command(&["EVAL", refused, "0"]).await.is_err();
    assert!(refuse().await);
    let past = examine(doctor(&server.url())).await?;
    let of_past = |report: &redstart_doctor::Report| {
        let mut all = report.findings.iter();
        all.any(|finding| finding.rule == "crossslot-errors")
    };
    assert!(
        of_past(&past) && !has(&past, "crossslot-errors"),
        "{:#?}",
        past.findings
    );
    let goes_on = async {
        while refuse().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let now = tokio::select! {
        report = examine(doctor(&server.url())) => report?,
        () = goes_on => anyhow::bail!("a request was not refused"),
    };
    assert!(has(&now, "crossslot-errors"), "{:#?}", now.findings);
    Ok(())
}
