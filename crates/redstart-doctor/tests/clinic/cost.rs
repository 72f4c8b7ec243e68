//! What an examination costs a server, and files instead of servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redstart_testkit::{Kind, Server, figure, redis_cli, scale, wait_until};

use crate::{client, doctor, examine, has};

/// Fills a server with small keys, by one script per ten thousand.
pub(crate) async fn fill(server: &Server, keys: u64) -> anyhow::Result<()> {
    const LUA: &str = "for i = ARGV[1], ARGV[2] do redis.call('set', 'user:' .. i .. ':name', 'ann', 'EX', 86400) end";
    for from in (0..keys).step_by(10_000) {
        let to = (from + 9_999).min(keys - 1);
        server
            .command(&["EVAL", LUA, "0", &from.to_string(), &to.to_string()])
            .await?;
    }
    Ok(())
}

/// Commands in SLOWLOG, by connections of this name: how many of each.
async fn slow(server: &Server, name: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let entries: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "10000"]).await?;
    let mut found = BTreeMap::new();
    for entry in entries {
        let part = |i: usize| entry.get(i).cloned().unwrap_or(redis::Value::Nil);
        let client: String = redis::from_redis_value(part(5))?;
        let words: Vec<String> = redis::from_redis_value(part(3))?;
        if client == name {
            *found.entry(words[0].to_ascii_uppercase()).or_default() += 1;
        }
    }
    Ok(found)
}

/// A percentile of the calls of each command since the last `CONFIG RESETSTAT`, in microseconds of the server's own clock.
///
/// That clock goes on while another process has the processor. The shortest of several calls is what the command takes when it
/// is left alone, or nearly so; the median of very many is hardly longer.
async fn percentile(server: &Server, percent: u8) -> anyhow::Result<BTreeMap<String, f64>> {
    let percent = percent.to_string();
    let setting = "latency-tracking-info-percentiles";
    server
        .command(&["CONFIG", "SET", setting, &percent])
        .await?;
    let stats: String = server.query(&["INFO", "latencystats"]).await?;
    let lines = stats.lines().filter_map(|line| {
        let (name, time) = line
            .strip_prefix("latency_percentiles_usec_")?
            .split_once(':')?;
        Some((
            name.to_owned(),
            time.split_once('=')?.1.trim().parse().ok()?,
        ))
    });
    Ok(lines.collect())
}

async fn shortest(server: &Server) -> anyhow::Result<BTreeMap<String, f64>> {
    percentile(server, 0).await
}

/// The unit of what is long: a script that only counts, for about a millisecond where it has a processor to itself. How long it
/// takes here and now is measured beside what is compared with it: a slow or busy machine makes both longer.
const MILLISECOND: &str = "local n = 0 for i = 1, 320000 do n = n + i end return n";

async fn count_for_a_millisecond(server: &Server, times: u64) -> anyhow::Result<()> {
    for _ in 0..times {
        server.command(&["EVAL", MILLISECOND, "0"]).await?;
    }
    Ok(())
}

/// Commands by connections of the doctor that are in SLOWLOG, with their first words.
async fn slow_words(server: &Server) -> anyhow::Result<BTreeSet<String>> {
    let entries: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "10000"]).await?;
    let mut found = BTreeSet::new();
    for entry in entries {
        let part = |i: usize| entry.get(i).cloned().unwrap_or(redis::Value::Nil);
        let client: String = redis::from_redis_value(part(5))?;
        let words: Vec<String> = redis::from_redis_value(part(3))?;
        if client == "redstart-doctor" {
            found.insert(words.iter().take(3).cloned().collect::<Vec<_>>().join(" "));
        }
    }
    Ok(found)
}

/// XINFO GROUPS lists all groups, and MEMORY USAGE walks all consumers of all groups; neither has a limit. Here they would take
/// the server tens of milliseconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_with_very_many_groups_or_consumers_cost_the_server_little() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("slowlog-max-len", "10000")
        .start()
        .await?;
    const LUA: &str = "redis.call('xadd', 'wide', '*', 'f', 'v') redis.call('xadd', 'deep', '*', 'f', 'v') \
        for i = 1, 20000 do redis.call('xgroup', 'create', 'wide', 'g' .. i, '0') end \
        redis.call('xgroup', 'create', 'deep', 'g', '0') \
        for i = 1, 120000 do redis.call('xgroup', 'createconsumer', 'deep', 'g', 'c' .. i) end";
    server.command(&["EVAL", LUA, "0"]).await?;
    // A busy machine stops any command now and then; one that takes long does so in every run.
    let mut always: Option<BTreeSet<String>> = None;
    for _ in 0..3 {
        server.command(&["CONFIG", "RESETSTAT"]).await?;
        count_for_a_millisecond(&server, 20).await?;
        let unit = (shortest(&server).await?["eval"] as u64)
            .max(1000)
            .to_string();
        let slower_than = ["CONFIG", "SET", "slowlog-log-slower-than", &unit];
        server.command(&slower_than).await?;
        server.command(&["SLOWLOG", "RESET"]).await?;
        let report = examine(doctor(&server.url()).sampled()).await?;
        let told: Vec<&str> = report
            .blinds
            .iter()
            .map(|blind| blind.what.as_str())
            .collect();
        for what in ["groups of streams", "consumers of groups"] {
            assert!(
                told.iter().any(|told| told.starts_with(what)),
                "{what}: {told:?}"
            );
        }
        let slow = slow_words(&server).await?;
        always = Some(match always {
            Some(always) => &always & &slow,
            None => slow,
        });
    }
    assert_eq!(always, Some(BTreeSet::new()));
    Ok(())
}

/// The server's own clock decides: the shortest call of every command is shorter than a script that counts for a millisecond,
/// and of all calls few take a millisecond and more. A busy machine takes the processor away in the middle of a command now and
/// then, as often as from any other of its length: scripts that only count show how often that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_faults_are_found_among_many_keys_and_no_own_command_is_slow() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("slowlog-max-len", "10000")
        .start()
        .await?;
    let keys = scale(20_000, "doctor keys");
    fill(&server, keys).await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    server.command(&["LPUSH", "jobs", "1"]).await?;
    // What could take long if it were read: large collections of every type, streams, and many clients. There are some of each,
    // because a busy machine may stop any one command.
    const LUA: &str = "for _, one in ipairs({ 'red', 'green', 'blue', 'white' }) do \
        for i = 1, 100000 do redis.call('rpush', one .. 'list', i) redis.call('zadd', one .. 'ranks', i, i) \
        redis.call('hset', one .. 'wide', i, i) redis.call('sadd', one .. 'tags', i) end \
        for i = 1, 20000 do redis.call('xadd', one .. 'orders', '*', 'id', i) end end";
    server.command(&["EVAL", LUA, "0"]).await?;
    let mut others = Vec::new();
    for _ in 0..300 {
        others.push(tokio::net::TcpStream::connect(server.addr()).await?);
    }
    for line in [
        "CONFIG SET slowlog-log-slower-than 1000",
        "SLOWLOG RESET",
        "CONFIG RESETSTAT",
    ] {
        server.command(&line.split(' ').collect::<Vec<_>>()).await?;
    }
    let report = examine(
        doctor(&server.url())
            .sampled()
            .share(1)
            .walk(Duration::from_secs(3600))
            .names(keys * 2),
    )
    .await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let slow_ones = slow(&server, "redstart-doctor").await?;
    let scans = server.info("cmdstat_scan").await?;
    let stats: String = server.query(&["INFO", "commandstats"]).await?;
    let spent = stats
        .lines()
        .filter_map(|line| line.split_once("usec=")?.1.split(',').next())
        .filter_map(|micros| micros.parse::<u64>().ok())
        .sum::<u64>();

    // By its clock and by medians, which a busy machine hardly moves; and the rests are longer there.
    let (medians, counts) = (percentile(&server, 50).await?, calls_of(&server).await?);
    let worked: f64 = medians
        .iter()
        .filter_map(|(name, micros)| Some(micros * *counts.get(name)? as f64))
        .sum();
    let busy = worked / 1e6 / report.took.as_secs_f64();

    // What was sent once may have been stopped on the way: more of each.
    for _ in 0..4 {
        examine(doctor(&server.url()).sampled().names(1000)).await?;
    }
    let least = shortest(&server).await?;
    // As many commands of about the same length that do nothing but count.
    let mut control = client(&server.url()).await?;
    redis::cmd("CLIENT")
        .arg(&["SETNAME", "control"])
        .query_async::<()>(&mut control)
        .await?;
    let loops = report.cost.commands.min(20_000);
    for _ in 0..loops {
        redis::cmd("EVAL")
            .arg("local n = 0 for i = 1, 15000 do n = n + i end return n")
            .arg(0)
            .query_async::<u64>(&mut control)
            .await?;
    }
    let noise: u64 = slow(&server, "control").await?.values().sum();
    let counts = server.info("cmdstat_eval").await?;
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    count_for_a_millisecond(&server, 20).await?;
    let unit = shortest(&server).await?["eval"];
    figure(format!(
        "doctor over {keys} keys: {} commands, {spent} us of the server's time ({:.2} per key; by the median of each command {:.2} % of the time that it took), {} bytes read, {:.1} s, longest round trip {:?} ({}); a millisecond of the server's time and more took {slow_ones:?}, and {noise} of {loops} loops that only count ({counts}); SCAN {scans}",
        report.cost.commands,
        spent as f64 / keys as f64,
        busy * 100.0,
        report.cost.bytes_read,
        report.took.as_secs_f64(),
        report.cost.slowest,
        report.cost.slowest_command,
    ));
    let long: Vec<_> = least
        .iter()
        .filter(|(_, micros)| **micros >= unit)
        .collect();
    assert!(
        least.len() > 10 && long.is_empty(),
        "{long:?} of {least:?} take {unit} us and more"
    );
    let slow_ones: u64 = slow_ones.values().sum();
    assert!(busy < 0.02, "{:.1} % of the server's time", busy * 100.0);
    let share = slow_ones as f64 / report.cost.commands as f64;
    let usual = noise as f64 / loops as f64;
    assert!(
        share < 0.02 + 2.0 * usual,
        "{slow_ones} of {}, and {noise} of {loops} loops",
        report.cost.commands
    );
    drop(others);
    Ok(())
}

/// Calls of each command.
async fn calls_of(server: &Server) -> anyhow::Result<BTreeMap<String, u64>> {
    let stats: String = server.query(&["INFO", "commandstats"]).await?;
    let lines = stats.lines().filter_map(|line| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = numbers.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_owned(), calls.parse().ok()?))
    });
    Ok(lines.collect())
}

/// The longest list of clients that is asked for: by the server's own clock, beside a script that only counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_nearly_a_thousand_clients_takes_less_than_counting_for_a_millisecond()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut others = Vec::new();
    for _ in 0..985 {
        others.push(tokio::net::TcpStream::connect(server.addr()).await?);
    }
    wait_until("the clients", Duration::from_secs(60), async || {
        let connected = server.info("connected_clients").await.ok()?;
        (connected.parse::<u64>().ok()? >= 985).then_some(())
    })
    .await?;
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    for _ in 0..9 {
        let report = examine(doctor(&server.url())).await?;
        let told = |one: &redstart_doctor::Blind| one.what.starts_with("CLIENT LIST");
        assert!(!report.blinds.iter().any(told), "{:#?}", report.blinds);
        count_for_a_millisecond(&server, 3).await?;
    }
    let least = shortest(&server).await?;
    let (list, unit) = (least["client|list"], least["eval"]);
    figure(format!(
        "CLIENT LIST of 985 clients: {list} us, and {unit} us for a script that counts for a millisecond"
    ));
    assert!(list < unit, "{least:?}");
    drop(others);
    Ok(())
}

/// Calls of every command that the server has carried out.
async fn calls(client: &mut redis::aio::MultiplexedConnection) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(client)
        .await?;
    let calls = stats
        .lines()
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next())
        .filter_map(|calls| calls.parse::<u64>().ok());
    Ok(calls.sum())
}

/// A server with keys of several kinds, among them those of libraries, which are looked at closer.
async fn varied() -> anyhow::Result<Server> {
    let server = Server::builder(Kind::Valkey).start().await?;
    for i in 0..50 {
        let (user, order) = (format!("user:{i}:name"), format!("order:{i}"));
        server.command(&["SET", &user, "ann", "EX", "600"]).await?;
        server.command(&["HSET", &order, "total", "7"]).await?;
    }
    for command in [
        &["HSET", "bull:mail:meta", "version", "bullmq:5.81.5"][..],
        &["SET", "bull:mail:id", "1"],
        &[
            "HSET",
            "bull:mail:1",
            "name",
            "x",
            "data",
            "{}",
            "opts",
            "{}",
            "timestamp",
            "1700000000000",
        ],
        &["LPUSH", "bull:mail:wait", "1"],
        &["SADD", "queues", "default"],
        &["XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM"],
        &["ZADD", "board", "1", "ann"],
    ] {
        server.command(command).await?;
    }
    Ok(server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_is_in_the_report() -> anyhow::Result<()> {
    let server = varied().await?;
    let mut client = server.client().await?;
    for stage in ["free", "sampled", "observed"] {
        let examination = match stage {
            "free" => doctor(&server.url()),
            "sampled" => doctor(&server.url()).sampled(),
            _ => doctor(&server.url())
                .sampled()
                .observed(Duration::from_millis(300)),
        };
        let before = calls(&mut client).await?;
        let report = examine(examination).await?;
        let after = calls(&mut client).await?;
        // The first question is counted by the second.
        assert_eq!(report.cost.commands, after - before - 1, "stage {stage}");
        let by_stage: u64 = report.stages.iter().map(|stage| stage.commands).sum();
        assert_eq!(by_stage, report.cost.commands, "{:#?}", report.stages);
        for one in &report.stages {
            assert_eq!(one.ran, one.commands > 0, "{one:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_times_stay_as_they_are() -> anyhow::Result<()> {
    let server = varied().await?;
    let idle = async |key: &str| -> anyhow::Result<u64> {
        server.query(&["OBJECT", "IDLETIME", key]).await
    };
    let keys = [
        "user:7:name",
        "order:7",
        "bull:mail:meta",
        "bull:mail:1",
        "queues",
        "board",
    ];
    let wait = Duration::from_secs(60);
    wait_until("the keys to be idle", wait, async || {
        let mut least = u64::MAX;
        for key in keys {
            least = least.min(idle(key).await.ok()?);
        }
        (least >= 2).then_some(())
    })
    .await?;
    let examination = doctor(&server.url())
        .sampled()
        .observed(Duration::from_millis(100));
    let report = examine(examination).await?;
    assert!(report.libraries.iter().any(|known| known == "BullMQ"));
    for key in keys {
        let now = idle(key).await?;
        assert!(now >= 2, "{key} was touched: idle for {now} s");
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
    // The same, as an application or a proxy notes it.
    let log = folder.path().join("commands.jsonl");
    let mut lines = String::new();
    for i in 0..20 {
        for (at, client, command) in [
            (1, "api-1", "GET"),
            (2, "api-2", "INCR"),
            (3, "api-1", "INCR"),
        ] {
            lines += &format!(
                "{{\"time\":17000000{i:02}.{at},\"client\":\"{client}\",\"command\":[\"{command}\",\"rate:7\"]}}\n"
            );
        }
        lines += &format!(
            "{{\"time\":17000000{i:02}.4,\"client\":\"api-1\",\"command\":[\"SET\",\"note\",\"hunter2\"]}}\n"
        );
        lines += "{\"level\":\"info\",\"message\":\"served\"}\n";
    }
    std::fs::write(&log, lines)?;
    let report = examine(doctor(&log.display().to_string())).await?;
    let proven = report.sure().find(|one| one.rule == "check-then-increment");
    assert!(
        proven.is_some_and(|one| one.evidence.starts_with("proven")),
        "{:#?}",
        report.findings
    );
    assert!(!report.html().contains("hunter2"));
    let left_out = |one: &redstart_doctor::Blind| one.why.starts_with("20 lines");
    assert!(report.blinds.iter().any(left_out), "{:#?}", report.blinds);

    // The server's default is a base in RDB format.
    for preamble in ["yes", "no"] {
        let server = Server::builder(Kind::Redis)
            .config("appendonly", "yes")
            .config("aof-use-rdb-preamble", preamble)
            .start()
            .await?;
        // In the base, and behind it.
        server.command(&["SET", "lock:report", "1"]).await?;
        server.command(&["BGREWRITEAOF"]).await?;
        wait_until(
            "the base to be written",
            Duration::from_secs(60),
            async || {
                let rewriting = server.info("aof_rewrite_in_progress").await.ok()?;
                let scheduled = server.info("aof_rewrite_scheduled").await.ok()?;
                (rewriting == "0" && scheduled == "0").then_some(())
            },
        )
        .await?;
        server.command(&["SET", "mutex:other", "1"]).await?;
        redis_cli(
            &["-p", &server.port().to_string(), "shutdown", "nosave"],
            "",
        )
        .ok();
        let dir = server.dir().join("appendonlydir");
        let before = crate::files(&dir)?;
        let base = before.iter().find_map(|(name, ..)| {
            let name = name.to_str()?;
            name.contains(".base.").then(|| dir.join(name))
        });
        let base = base.ok_or_else(|| anyhow::anyhow!("no base in {before:?}"))?;
        let extension = base.extension().and_then(|name| name.to_str());
        assert_eq!(
            extension,
            Some(if preamble == "yes" { "rdb" } else { "aof" })
        );
        let locks = async |path: &std::path::Path| -> anyhow::Result<Vec<String>> {
            let report = examine(doctor(&path.display().to_string())).await?;
            let locks = report.sure().filter(|one| one.rule == "lock-without-ttl");
            Ok(locks.map(|one| one.subject.clone()).collect())
        };
        assert_eq!(locks(server.dir()).await?, ["lock:report", "mutex:other"]);
        assert_eq!(locks(&base).await?, ["lock:report"]);
        // One file, as before version 7: commands follow the base.
        let single = folder.path().join("appendonly.aof");
        let mut bytes = std::fs::read(&base)?;
        bytes.extend_from_slice(
            b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$7\r\nmutex:a\r\n$1\r\n1\r\n",
        );
        std::fs::write(&single, bytes)?;
        assert_eq!(locks(&single).await?, ["lock:report", "mutex:a"]);
        assert_eq!(before, crate::files(&dir)?, "the log was touched");
    }
    Ok(())
}

/// What had a TTL when the file was written has it in the report, however old the file is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_only_file_is_examined_as_it_was_at_its_last_change() -> anyhow::Result<()> {
    let now = std::time::SystemTime::now();
    let yesterday = now - Duration::from_secs(86_400);
    let seconds = yesterday.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let command = |words: &[&str]| {
        let words = words
            .iter()
            .map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let words: Vec<String> = words.collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    };
    let mut text = command(&["SELECT", "0"]);
    let (ended, ends) = ((seconds - 60) * 1000, (seconds + 60) * 1000);
    for i in 0..200 {
        let value = format!("{{\"id\":{i}}}");
        let (shop, old) = (format!("shop:cache:{i}"), format!("old:cache:{i}"));
        text += &command(&["SET", &shop, &value, "PXAT", &ends.to_string()]);
        text += &command(&["SET", &old, &value, "PXAT", &ended.to_string()]);
    }
    let stamp = format!("#TS:{seconds}\r\n");
    let folder = tempfile::tempdir()?;
    for (stamped, modified) in [(false, yesterday), (true, now)] {
        // A single file, and the folder of a server, by each of its names.
        let single = folder.path().join("appendonly.aof");
        let log = folder.path().join("appendonlydir");
        std::fs::create_dir_all(&log)?;
        let part = log.join("appendonly.aof.1.incr.aof");
        let manifest = log.join("appendonly.aof.manifest");
        std::fs::write(&manifest, "file appendonly.aof.1.incr.aof seq 1 type i\n")?;
        for file in [&single, &part] {
            let text = match stamped {
                true => format!("{stamp}{text}"),
                false => text.clone(),
            };
            std::fs::write(file, text)?;
            std::fs::File::options()
                .write(true)
                .open(file)?
                .set_modified(modified)?;
        }
        for path in [&single, &log, &manifest] {
            let report = examine(doctor(&path.display().to_string())).await?;
            let patterns: Vec<(&str, u64, f64)> = report
                .patterns
                .iter()
                .map(|one| (one.pattern.as_str(), one.seen, one.without_ttl))
                .collect();
            assert_eq!(patterns, [("shop:cache:*", 200, 0.0)], "{path:?} {stamped}");
            let told = report
                .blinds
                .iter()
                .find(|one| one.what == "the time of the file");
            let told = told.ok_or_else(|| anyhow::anyhow!("{:#?}", report.blinds))?;
            assert_eq!(told.why.contains("last change"), !stamped, "{told:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_is_examined() -> anyhow::Result<()> {
    let cluster = redstart_testkit::shared_cluster().await?;
    let client = redstart::Store::connect(cluster.url()).await?;
    // A name without digits, which would be taken for an id.
    let namespace: String = redstart_testkit::unique_namespace("doctor")
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' => char::from(byte - b'0' + b'q'),
            byte if byte.is_ascii_alphabetic() => char::from(byte),
            _ => ':',
        })
        .collect();
    let namespace = format!("{namespace}:cache");
    for i in 0..60 {
        let key = format!("{namespace}:{i}");
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
    // Other tests have keys there too.
    let found = report.sure().filter(|one| one.rule == "cache-without-ttl");
    let subjects: Vec<&str> = found.map(|one| one.subject.as_str()).collect();
    let subject = format!("{namespace}:*");
    assert!(
        subjects.contains(&subject.as_str()),
        "{subject}: {subjects:?}"
    );
    Ok(())
}
