//! Examinations of servers that work, of servers that race, and of servers that do not help.

mod breakage;
mod budget;
mod cost;
mod hostile;
mod libraries;
mod live;
mod page;
mod race;

use std::time::Duration;

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use redstart_doctor::{Doctor, DoctorBuilder, Progress, Report, SURE};
use redstart_testkit::{Kind, Server};

/// A client over TCP, as programs on other hosts are, with time for a busy machine.
async fn client(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(60)))
        .set_response_timeout(Some(Duration::from_secs(60)));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&patient)
        .await
}

/// An examination with time for a busy machine, and of a server that is there for it. Tests of what it costs set its share.
fn doctor(url: &str) -> DoctorBuilder {
    Doctor::builder(url)
        .gap(Duration::from_millis(100))
        .patience(Duration::from_secs(60))
        .share(50)
}

async fn examine(builder: DoctorBuilder) -> anyhow::Result<Report> {
    Ok(builder.build()?.examine(&Progress::default()).await?)
}

/// What the report is sure of, in words.
fn sure(report: &Report) -> Vec<String> {
    report
        .findings
        .iter()
        .filter(|finding| finding.confidence >= SURE)
        .map(|finding| format!("{} {}: {}", finding.rule, finding.subject, finding.evidence))
        .collect()
}

fn has(report: &Report, rule: &str) -> bool {
    report
        .findings
        .iter()
        .any(|finding| finding.rule == rule && finding.confidence >= SURE)
}

/// The sizes and the times of all files of a folder.
fn files(
    folder: &std::path::Path,
) -> anyhow::Result<Vec<(std::ffi::OsString, u64, std::time::SystemTime)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        all.push((entry.file_name(), meta.len(), meta.modified()?));
    }
    all.sort();
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_rdb_file_is_examined_as_it_was_when_it_was_written() -> anyhow::Result<()> {
    // Of yesterday: whatever had a TTL of a minute has expired since, and must not be missed.
    let yesterday = jiff::Timestamp::now().as_microsecond() - 86_400_000_000;
    let engine = redstart_engine::Engine::builder()
        .clock(redstart_engine::Clock::manual_at(yesterday))
        .build()?;
    let mut session = engine.session();
    let mut run = |line: &str| {
        let words: Vec<_> = line.split(' ').map(|word| word.to_owned().into()).collect();
        session.execute(&words);
    };
    run("SET lock:report 1");
    for i in 0..200 {
        run(&format!("SET shop:cache:{i} {{\"id\":{i}}} EX 60"));
        run(&format!("SET forum:cache:{i} {{\"id\":{i}}}"));
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dump.rdb");
    engine.save_rdb(std::fs::File::create(&file)?, |_| {})?;
    let before = files(folder.path())?;
    let report = examine(doctor(&file.display().to_string())).await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let caches = report
        .sure()
        .filter(|finding| finding.rule == "cache-without-ttl");
    let caches: Vec<&str> = caches.map(|finding| finding.subject.as_str()).collect();
    assert_eq!(caches, ["forum:cache:*"], "{:#?}", report.patterns);
    let shop = report
        .patterns
        .iter()
        .find(|known| known.pattern == "shop:cache:*");
    assert!(
        shop.is_some_and(|shop| shop.seen == 200 && shop.without_ttl == 0.0),
        "{:#?}",
        report.patterns
    );
    // What needs a live server is named.
    let notes: Vec<(bool, &str)> = report
        .stages
        .iter()
        .map(|stage| (stage.ran, stage.note.as_str()))
        .collect();
    assert!(!notes[0].0 && notes[0].1.contains("a file has no server"));
    assert!(notes[1].0 && !notes[2].0 && notes[2].1.contains("a file has no traffic"));
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.why.contains("live server"))
    );
    assert_eq!(before, files(folder.path())?, "the file was touched");
    // A damaged one is an error and not a report.
    let bytes = std::fs::read(&file)?;
    std::fs::write(&file, &bytes[..bytes.len() / 2])?;
    let damaged = examine(doctor(&file.display().to_string())).await;
    let message = damaged.err().map(|error| error.to_string());
    assert!(
        message
            .as_deref()
            .is_some_and(|text| text.contains("cannot be loaded")),
        "{message:?}"
    );
    Ok(())
}

/// Other writers leave the time out, and keep keys in other databases. The report says what it could not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_known_of_an_rdb_file_is_told() -> anyhow::Result<()> {
    let yesterday = jiff::Timestamp::now().as_microsecond() - 86_400_000_000;
    let engine = redstart_engine::Engine::builder()
        .clock(redstart_engine::Clock::manual_at(yesterday))
        .build()?;
    let mut session = engine.session();
    for line in ["SET a 1", "SET b 1 EX 60", "SELECT 3", "SET c 1"] {
        let words: Vec<_> = line.split(' ').map(|word| word.to_owned().into()).collect();
        session.execute(&words);
    }
    let mut bytes = Vec::new();
    engine.save_rdb(&mut bytes, |_| {})?;
    let field = b"\xfa\x05ctime";
    let at = bytes.windows(field.len()).position(|part| part == field);
    let at = at.ok_or_else(|| anyhow::anyhow!("no time in the file"))?;
    bytes.drain(at..at + field.len() + 5);
    // A checksum of zero is not checked.
    let end = bytes.len() - 8;
    bytes[end..].fill(0);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dump.rdb");
    std::fs::write(&file, &bytes)?;
    let path = file.display().to_string();
    let report = examine(doctor(&path)).await?;
    let told: Vec<String> = report
        .blinds
        .iter()
        .map(|blind| format!("{}: {}", blind.what, blind.why))
        .collect();
    for expected in [
        "the time of the file",
        "1 keys: they had expired",
        "only database 0 of a file",
    ] {
        assert!(
            told.iter().any(|line| line.contains(expected)),
            "{expected} is not in {told:#?}"
        );
    }
    let refused = doctor(&format!("file://{path}?db=3")).build();
    assert!(refused.is_err(), "it would be database 0");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_redis_and_of_valkey_are_read() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        server.command(&["SET", "lock:report", "1"]).await?;
        server.command(&["RPUSH", "jobs:mail", "a", "b"]).await?;
        server.command(&["SAVE"]).await?;
        let file = server.dir().join("dump.rdb");
        let report = examine(doctor(&file.display().to_string())).await?;
        assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
        assert_eq!(report.patterns.len(), 2, "{:#?}", report.patterns);
    }
    Ok(())
}
