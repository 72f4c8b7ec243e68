//! Servers that refuse, stall, flood and lie: a partial report that says what it could not see.

use std::time::Duration;

use redstart_doctor::{Doctor, Error, Progress};
use redstart_testkit::{Kind, MonitorTap, Proxy, Server};

use crate::{doctor, examine, has};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_commands_that_read_are_sent_and_nothing_changes() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        for i in 0..50 {
            server
                .command(&["SET", &format!("cache:{i}"), "{\"id\":1}"])
                .await?;
        }
        server
            .command(&["XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM"])
            .await?;
        server.command(&["XADD", "orders", "*", "id", "1"]).await?;
        server
            .command(&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">"])
            .await?;
        server
            .command(&["HSET", "bull:mail:meta", "version", "bullmq:5.1.0"])
            .await?;
        server.command(&["SET", "bull:mail:id", "1"]).await?;
        let digest: String = server.query(&["DEBUG", "DIGEST"]).await?;
        let tap = MonitorTap::start(&server).await?;
        let report = examine(
            doctor(&server.url())
                .sampled()
                .observed(Duration::from_millis(300)),
        )
        .await?;
        assert!(has(&report, "cache-without-ttl"));
        let seen = tap.commands().await?;
        assert!(seen.len() > 100, "{}", seen.len());
        // By the server's own flags, not by our list.
        let mut names: Vec<String> = seen.iter().map(|seen| seen.name()).collect();
        names.sort();
        names.dedup();
        for name in &names {
            let info: redis::Value = server.command(&["COMMAND", "INFO", name]).await?;
            assert!(!format!("{info:?}").contains("\"write\""), "{name} writes");
            assert!(name != "KEYS" && name != "FLUSHALL", "{name}");
        }
        let after: String = server.query(&["DEBUG", "DIGEST"]).await?;
        assert_eq!(digest, after);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_acl_or_a_renamed_command_hides_is_named() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("rename-command", "CONFIG \"\"")
        .config("rename-command", "SLOWLOG hidden-slowlog")
        .start()
        .await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    server
        .command(&[
            "ACL", "SETUSER", "guest", "on", ">secret", "~*", "+@read", "+ping", "+info",
            "-memory", "-object",
        ])
        .await?;
    let url = format!("redis://guest:secret@{}", server.addr());
    let report = examine(doctor(&url).sampled().observed(Duration::from_millis(200))).await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let blind = |what: &str| report.blinds.iter().any(|blind| blind.what.contains(what));
    for what in ["CONFIG", "SLOWLOG", "CLIENT LIST", "MONITOR", "ACL"] {
        assert!(blind(what), "{what}: {:#?}", report.blinds);
    }
    assert!(
        report
            .stages
            .iter()
            .any(|stage| !stage.ran && stage.note.contains("--observe"))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_nothing_gets_a_report_that_says_so() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Valkey).start().await?;
    server
        .command(&["ACL", "SETUSER", "nobody", "on", ">secret", "-@all"])
        .await?;
    let url = format!("redis://nobody:secret@{}", server.addr());
    let report = examine(doctor(&url).sampled().observed(Duration::from_millis(200))).await?;
    assert!(report.findings.is_empty());
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.why.contains("NOPERM")),
        "{:#?}",
        report.blinds
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_newlines_and_escapes_stay_in_their_place() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut client = server.client().await?;
    for i in 0..9 {
        let name = [
            b"cache:\x1b[2J\r\n\xff\"|<script>alert(1)</script>:".as_slice(),
            i.to_string().as_bytes(),
        ]
        .concat();
        redis::cmd("SET")
            .arg(name)
            .arg("{\"secret\":\"hunter2\"}")
            .query_async::<()>(&mut client)
            .await?;
    }
    let mut report = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&report, "cache-without-ttl"), "{:#?}", report.findings);
    for text in [
        report.json(),
        report.markdown(),
        report.html(),
        report.sarif(),
    ] {
        assert!(!text.contains('\x1b'), "{text}");
        assert!(!text.contains("hunter2"), "a value in the report");
    }
    for text in [report.markdown(), report.html()] {
        assert!(!text.contains("<script>"), "{text}");
    }
    assert_eq!(report.json().lines().count(), report.findings.len());
    report.redact();
    assert!(!report.json().contains("alert(") && !report.html().contains("alert("));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_value_is_measured_and_not_read() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    // 200 MB that take no time to make.
    server
        .command(&["SETRANGE", "blob", "200000000", "x"])
        .await?;
    server
        .command(&["HSET", "wide", "field", &"y".repeat(2_000_000)])
        .await?;
    let traffic = async {
        loop {
            server
                .command(&["SET", "big:write", &"z".repeat(3_000_000)])
                .await?;
        }
        #[allow(unreachable_code)]
        anyhow::Ok(())
    };
    let report = tokio::select! {
        report = examine(doctor(&server.url()).sampled().observed(Duration::from_millis(500))) => report?,
        end = traffic => { end?; unreachable!() }
    };
    assert!(has(&report, "big-key"), "{:#?}", report.findings);
    let sampled = report.cost.bytes_read;
    figure_bytes(sampled);
    assert!(
        report.stages.iter().all(|stage| stage.ran),
        "{:#?}",
        report.stages
    );
    Ok(())
}

fn figure_bytes(bytes: u64) {
    redstart_testkit::figure(format!(
        "doctor read {bytes} bytes beside values of 200 MB, MONITOR lines of 3 MB among them"
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_in_the_middle_leaves_a_partial_report() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for i in 0..2000 {
        server
            .command(&["SET", &format!("cache:{i}"), "{}"])
            .await?;
    }
    let proxy = Proxy::start(&server).await?;
    proxy.cut_before("PTTL");
    let report = examine(doctor(proxy.url()).sampled()).await?;
    assert!(report.stages[0].ran);
    assert!(!report.blinds.is_empty(), "{report:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_is_given_up_in_time() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.pause()?;
    let examination = Doctor::builder(&server.url())
        .patience(Duration::from_millis(300))
        .build()?;
    let error = examination
        .examine(&Progress::default())
        .await
        .expect_err("no server");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    server.resume()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_examination_reports_what_is_known() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    let examination = doctor(&server.url())
        .sampled()
        .observed(Duration::from_secs(600))
        .build()?;
    let progress = Progress::default();
    let stop = progress.clone();
    let begun = std::time::Instant::now();
    let (report, ()) = tokio::join!(examination.examine(&progress), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.stop();
    });
    let report = report?;
    assert!(report.interrupted);
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    assert!(begun.elapsed() < Duration::from_secs(300));
    Ok(())
}
