//! What an examination costs a server, and files instead of servers.

use std::time::Duration;

use redstart_testkit::{Kind, Server, figure, redis_cli, scale};

use crate::{doctor, examine, has};

/// Fills a server with small keys, by one script per ten thousand.
async fn fill(server: &Server, keys: u64) -> anyhow::Result<()> {
    const LUA: &str = "for i = ARGV[1], ARGV[2] do redis.call('set', 'user:' .. i .. ':name', 'ann', 'EX', 86400) end";
    for from in (0..keys).step_by(10_000) {
        let to = (from + 9_999).min(keys - 1);
        server
            .command(&["EVAL", LUA, "0", &from.to_string(), &to.to_string()])
            .await?;
    }
    Ok(())
}

/// The server's own clock decides: SLOWLOG of everything above a millisecond, by the doctor's connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_faults_are_found_among_many_keys_and_no_own_command_is_slow() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let keys = scale(100_000, "doctor keys");
    fill(&server, keys).await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    server.command(&["LPUSH", "jobs", "1"]).await?;
    server
        .command(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])
        .await?;
    server
        .command(&["CONFIG", "SET", "slowlog-max-len", "1000"])
        .await?;
    server.command(&["SLOWLOG", "RESET"]).await?;
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    let report = examine(
        doctor(&server.url())
            .sampled()
            .walk(Duration::from_secs(600))
            .names(keys * 2),
    )
    .await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let slow: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "1000"]).await?;
    let scans = server.info("cmdstat_scan").await?;
    figure(format!(
        "doctor over {keys} keys: {} commands, {} bytes read, {:.1} s, longest round trip {:?} ({}), {} above 1 ms on the server's clock; SCAN {scans}",
        report.cost.commands,
        report.cost.bytes_read,
        report.took.as_secs_f64(),
        report.cost.slowest,
        report.cost.slowest_command,
        slow.len(),
    ));
    // A busy machine takes the processor away in the middle of a command now and then: the median decides here.
    let scan = server.info("latency_percentiles_usec_scan").await?;
    let median = scan
        .split(',')
        .find_map(|pair| pair.strip_prefix("p50=")?.parse::<f64>().ok());
    assert!(median.is_some_and(|micros| micros < 1000.0), "{scan}");
    Ok(())
}

/// Asks the server again and again until it is told to end; returns the latencies in microseconds.
async fn work(
    url: String,
    end: std::sync::Arc<std::sync::atomic::AtomicBool>,
) -> redis::RedisResult<Vec<u64>> {
    let mut client = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let mut took = Vec::new();
    for i in 0u64.. {
        if end.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
        let begun = std::time::Instant::now();
        let key = format!("user:{}:name", i.wrapping_mul(7919) % 10_000);
        redis::cmd("GET")
            .arg(&key)
            .query_async::<Option<String>>(&mut client)
            .await?;
        took.push(begun.elapsed().as_micros() as u64);
    }
    Ok(took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_workload_goes_on_during_every_stage() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    fill(&server, scale(20_000, "doctor live keys")).await?;
    let seconds = Duration::from_secs(scale(1, "doctor live seconds"));
    for stage in ["none", "free", "sampled", "observed"] {
        let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            workers.spawn(work(server.url(), std::sync::Arc::clone(&end)));
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < seconds {
            match stage {
                "none" => tokio::time::sleep(seconds).await,
                "free" => drop(examine(doctor(&server.url())).await?),
                "sampled" => drop(examine(doctor(&server.url()).sampled()).await?),
                _ => drop(examine(doctor(&server.url()).observed(seconds)).await?),
            }
        }
        let elapsed = begun.elapsed().as_secs_f64();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut took = Vec::new();
        while let Some(worker) = workers.join_next().await {
            took.extend(worker??);
        }
        took.sort_unstable();
        let rate = took.len() as f64 / elapsed;
        let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or(0);
        figure(format!(
            "stage {stage}: {rate:.0} requests a second, p99 {p99} us, over {elapsed:.1} s"
        ));
        assert!(took.len() > 20, "the workload stood still in stage {stage}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_log_and_an_append_only_file_are_examined_too() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("monitor.log");
    let mut lines = String::from("OK\n");
    for i in 0..20 {
        lines += &format!(
            "17000000{i:02}.1 [0 10.0.0.1:5] \"GET\" \"rate:7\"\n17000000{i:02}.2 [0 10.0.0.2:5] \"INCR\" \"rate:7\"\n17000000{i:02}.3 [0 10.0.0.1:5] \"INCR\" \"rate:7\"\n"
        );
    }
    std::fs::write(&log, lines)?;
    let report = examine(doctor(&log.display().to_string())).await?;
    assert!(
        has(&report, "check-then-increment"),
        "{:#?}",
        report.findings
    );
    assert!(!report.stages[0].ran && report.stages[2].ran);

    let server = Server::builder(Kind::Redis)
        .config("appendonly", "yes")
        .config("aof-use-rdb-preamble", "no")
        .start()
        .await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    redis_cli(
        &["-p", &server.port().to_string(), "shutdown", "nosave"],
        "",
    )
    .ok();
    let dir = server.dir().join("appendonlydir");
    let before: u64 = std::fs::read_dir(&dir)?
        .map(|entry| {
            entry
                .and_then(|entry| entry.metadata())
                .map_or(0, |meta| meta.len())
        })
        .sum();
    let report = examine(doctor(&server.dir().display().to_string())).await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let after: u64 = std::fs::read_dir(&dir)?
        .map(|entry| {
            entry
                .and_then(|entry| entry.metadata())
                .map_or(0, |meta| meta.len())
        })
        .sum();
    assert_eq!(before, after);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_is_examined() -> anyhow::Result<()> {
    let cluster = redstart_testkit::shared_cluster().await?;
    let client = redstart::Store::connect(cluster.url()).await?;
    let namespace = redstart_testkit::unique_namespace("doctor");
    for i in 0..60 {
        let key = format!("{namespace}:cache:{i}");
        client
            .query::<()>(redis::cmd("SET").arg(&key).arg("{\"id\":1}"))
            .await?;
    }
    let report = examine(
        doctor(cluster.url())
            .sampled()
            .observed(Duration::from_millis(300)),
    )
    .await?;
    assert!(report.servers.len() >= 3, "{:?}", report.servers);
    let subject = format!("{}:cache:*", namespace);
    let found = report.findings.iter().any(|finding| {
        finding.rule == "cache-without-ttl"
            && (finding.subject == subject || finding.subject.contains(":cache:"))
    });
    assert!(found, "{subject}: {:#?}", report.findings);
    Ok(())
}
