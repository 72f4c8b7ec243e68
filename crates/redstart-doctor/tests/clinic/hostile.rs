//! Servers that refuse, stall, flood and lie: a partial report that says what it could not see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redstart_doctor::{Blind, Doctor, Error, Progress};
use redstart_testkit::{Kind, MonitorTap, Proxy, Sentinel, Server, figure, scale, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{client, doctor, examine, has};

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
    for what in [
        "CONFIG",
        "SLOWLOG",
        "LATENCY",
        "CLIENT LIST",
        "MONITOR",
        "ACL",
    ] {
        assert!(blind(what), "{what}: {:#?}", report.blinds);
    }
    assert!(
        report
            .stages
            .iter()
            .any(|stage| !stage.ran && stage.asked && stage.note.contains("MONITOR"))
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

/// Each command that an examination sends is taken away in turn: there is a report, and it says what was missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_names_each_command_that_may_not_be_used() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for line in [
        "SET lock:report 1",
        "SET cache:7 {}",
        "RPUSH jobs 1 2 3",
        "SADD tags a b",
        "ZADD board 1 ann",
        "HSET user:7 name ann",
        "XGROUP CREATE orders g 0 MKSTREAM",
        "XADD orders * id 1",
        "XADD events * id 1",
        "XREADGROUP GROUP g c STREAMS orders >",
        "HSET bull:mail:meta version bullmq:5.1.0",
        "SET bull:mail:id 1",
        "RPUSH bull:mail:wait 1",
        "HSET bull:mail:1 name mail data {} timestamp 1",
        "SADD queues default",
        "LPUSH queue:default {\"class\":\"A\",\"args\":[],\"jid\":\"0123456789abcdef01234567\"}",
    ] {
        server.command(&line.split(' ').collect::<Vec<_>>()).await?;
    }
    let examination = |url: &str| {
        doctor(url)
            .sampled()
            .gap(Duration::ZERO)
            .observed(Duration::from_millis(20))
    };
    let tap = MonitorTap::start(&server).await?;
    examine(examination(&server.url())).await?;
    let mut names: Vec<String> = tap
        .commands()
        .await?
        .iter()
        .map(|seen| seen.name())
        .collect();
    // MONITOR does not show these.
    names.extend(["ACL", "CONFIG", "LATENCY", "MONITOR", "SLOWLOG"].map(str::to_owned));
    names.sort();
    names.dedup();
    assert!(names.len() > 25, "{names:?}");
    for name in &names {
        let denied = format!("-{}", name.to_ascii_lowercase());
        let user = [
            "ACL", "SETUSER", "guest", "reset", "on", ">secret", "~*", "&*", "+@all", &denied,
        ];
        server.command(&user).await?;
        let url = format!("redis://guest:secret@{}", server.addr());
        let report = examine(examination(&url)).await;
        let report = report.map_err(|error| error.context(format!("without {name}")))?;
        // What only opens a connection is no loss.
        let told = report.blinds.iter().any(|blind| {
            blind.what.contains(name.as_str()) || blind.why.contains(&name.to_ascii_lowercase())
        });
        let polite = matches!(name.as_str(), "AUTH" | "PING" | "SELECT");
        assert!(told || polite, "{name}: {:#?}", report.blinds);
    }
    figure(format!(
        "doctor without each of {} commands in turn",
        names.len()
    ));
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
    // The largest string there is, which takes no time to make.
    server
        .command(&["SETRANGE", "blob", "536870911", "x"])
        .await?;
    let large = "y".repeat(2_000_000);
    server.command(&["HSET", "wide", "field", &large]).await?;
    server.command(&["ZADD", "ranks", "1", &large]).await?;
    server.command(&["LPUSH", "jobs", &large]).await?;
    // An entry that a group has not acknowledged, in a stream of such entries.
    server
        .command(&["XGROUP", "CREATE", "photos", "g", "0", "MKSTREAM"])
        .await?;
    for _ in 0..5 {
        server
            .command(&["XADD", "photos", "*", "jpeg", &large])
            .await?;
    }
    server
        .command(&["XREADGROUP", "GROUP", "g", "c", "STREAMS", "photos", ">"])
        .await?;
    let report = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&report, "big-key"), "{:#?}", report.findings);
    figure(format!(
        "doctor read {} bytes beside a value of 512 MB and elements of 2 MB",
        report.cost.bytes_read
    ));
    assert!(report.cost.bytes_read < 5_000_000, "{:?}", report.cost);
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains("photos") || blind.what.contains("entries")),
        "{:#?}",
        report.blinds
    );
    Ok(())
}

/// Of a few fields, one is larger than all others together: it is measured, and no field's value is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_large_field_among_small_ones_is_measured_and_not_read() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let large = "y".repeat(12_000_000);
    for key in 0..6 {
        let key = format!("profile:{key}");
        for field in 0..40 {
            let value = if field == 33 { large.as_str() } else { "small" };
            let field = format!("field{field}");
            server.command(&["HSET", &key, &field, value]).await?;
        }
    }
    let report = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&report, "big-key"), "{:#?}", report.findings);
    assert!(report.cost.bytes_read < 5_000_000, "{:?}", report.cost);
    Ok(())
}

/// A server echoes the words of a command that it does not know: among them the password, and names of keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_echoes_of_a_command_is_not_repeated() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("rename-command", "AUTH \"\"")
        .start()
        .await?;
    let url = format!("redis://:hunter2@{}", server.addr());
    let error = examine(doctor(&url)).await.expect_err("no login");
    let error = format!("{error:#}");
    assert!(
        !error.contains("hunter2") && error.contains("ERR"),
        "{error}"
    );

    let server = Server::builder(Kind::Redis)
        .config("rename-command", "MEMORY \"\"")
        .config("rename-command", "OBJECT \"\"")
        .config("rename-command", "XINFO \"\"")
        .start()
        .await?;
    server.command(&["SADD", "payroll:ann", "a"]).await?;
    server
        .command(&["XADD", "payroll:log", "*", "a", "1"])
        .await?;
    let mut report = examine(doctor(&server.url()).sampled()).await?;
    report.redact();
    for command in ["MEMORY", "OBJECT", "XINFO"] {
        let told = report
            .blinds
            .iter()
            .any(|blind| blind.why.contains(command));
        assert!(told, "{command}: {:#?}", report.blinds);
    }
    for text in [
        format!("{:?}", report.blinds),
        report.html(),
        report.markdown(),
    ] {
        assert!(!text.contains("payroll"), "{text}");
    }
    Ok(())
}

/// Streams with groups whose messages are pending, and a line on which each answer takes a while.
async fn slow_streams(server: &Server) -> anyhow::Result<Proxy> {
    let add = "for s = 1, 30 do local k = 'orders:s' .. string.char(96 + s % 26 + 1) .. s \
        for i = 1, 10 do redis.call('xadd', k, i .. '-1', 'id', i) end \
        for g = 1, 3 do redis.call('xgroup', 'create', k, 'g' .. g, '0') \
        redis.call('xreadgroup', 'group', 'g' .. g, 'c', 'streams', k, '>') end end";
    server.command(&["EVAL", add, "0"]).await?;
    let proxy = Proxy::start(server).await?;
    proxy.delay_replies(Duration::from_millis(10));
    Ok(proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_at_streams_can_be_stopped() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = slow_streams(&server).await?;
    let examination = doctor(proxy.url()).build()?;
    let whole = examination.examine(&Progress::default()).await?;
    let progress = Progress::default();
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    let (report, begun) = tokio::join!(examination.examine(&progress), async {
        let begun = wait_until("the streams", Duration::from_secs(120), async || {
            let stats = server.info("cmdstat_xinfo|groups").await.ok()?;
            (!stats.is_empty()).then_some(())
        });
        let begun = begun.await;
        progress.stop();
        begun
    });
    begun?;
    let report = report?;
    assert!(report.interrupted);
    assert!(
        report.cost.commands * 2 < whole.cost.commands,
        "{:?} of {:?}",
        report.cost,
        whole.cost
    );
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains("streams")),
        "{:#?}",
        report.blinds
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_at_streams_has_a_budget() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = slow_streams(&server).await?;
    let examination = doctor(proxy.url()).walk(Duration::from_millis(60));
    let report = examine(examination).await?;
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains("streams") && blind.why.contains("time")),
        "{:#?}",
        report.blinds
    );
    assert!(!report.interrupted);
    Ok(())
}

/// Keys of so many patterns that there is no time for all of them, over a line on which each answer takes a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_at_keys_has_a_budget() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    // No two names have a word in common, so each is a pattern.
    let add = "local function word(n) local w = '' for i = 1, 4 do w = w .. string.char(97 + n % 26) n = math.floor(n / 26) end return w end \
        for i = 1, 3000 do redis.call('set', word(i) .. ':' .. word(i + 9000), 'x') end";
    server.command(&["EVAL", add, "0"]).await?;
    let proxy = Proxy::start(&server).await?;
    proxy.delay_replies(Duration::from_millis(5));
    let examination = doctor(proxy.url()).walk(Duration::from_millis(700));
    let report = examine(examination.sampled()).await?;
    let told = |what: &str| {
        let mut notes = report.blinds.iter();
        notes.any(|blind| blind.what == what && blind.why.contains("in the time there was"))
    };
    assert!(told("keys"), "{:#?}", report.blinds);
    assert!(!report.interrupted && report.stages[1].ran);
    Ok(())
}

/// The nodes of a Cluster that do not answer are waited for together, and Ctrl-C ends the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_for_a_connection_can_be_stopped() -> anyhow::Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", silent.local_addr()?);
    let examination = Doctor::builder(&url)
        .patience(Duration::from_secs(600))
        .build()?;
    let progress = Progress::default();
    let ended = async {
        let (ended, _) = tokio::join!(examination.examine(&progress), async {
            let held = silent.accept().await;
            progress.stop();
            held
        });
        ended
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    assert!(matches!(ended, Ok(Err(Error::Unavailable(_)))), "{ended:?}");
    Ok(())
}

/// Lines of MONITOR cannot be made shorter: they are read, cut, and not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_in_traffic_are_cut_while_they_are_read() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
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
    figure(format!(
        "doctor read {} bytes of {} lines of MONITOR, 3 MB each",
        report.cost.bytes_read, report.cost.lines
    ));
    assert!(
        report.stages.iter().all(|stage| stage.ran),
        "{:#?}",
        report.stages
    );
    Ok(())
}

/// What clients send stays where it is, whatever the report is sure of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_of_the_traffic_is_in_the_report() -> anyhow::Result<()> {
    const SECRET: &str = "hunter2";
    let server = Server::builder(Kind::Redis).start().await?;
    let url = server.url();
    let (mut one, mut other) = (client(&url).await?, client(&url).await?);
    let lines = [
        "SET lock:report hunter2 NX",
        "GET lock:report",
        "DEL lock:report",
        "GET product:7",
        "SET product:7 hunter2 EX 60",
        "LPUSH mail:jobs hunter2",
        "BRPOP mail:jobs 1",
        "PUBLISH mail:send hunter2",
        "HSET session:7 password hunter2",
        "SADD dirty:users hunter2",
        "SPOP dirty:users",
        "EVAL return('hunter2') 0",
        "ZADD window:7 1700000000 hunter2",
        "XADD orders * card hunter2",
        "KEYS hunter2*",
        "AUTH hunter2",
    ];
    let traffic = async {
        for round in 0.. {
            for line in lines {
                let words: Vec<&str> = line.split(' ').collect();
                let mut command = redis::cmd(words[0]);
                command.arg(&words[1..]);
                let client = if round % 2 == 0 { &mut one } else { &mut other };
                // Some are refused; what was sent counts.
                let _: redis::RedisResult<redis::Value> = command.query_async(client).await;
            }
        }
    };
    let mut report = tokio::select! {
        report = examine(doctor(&url).sampled().observed(Duration::from_secs(1))) => report?,
        () = traffic => unreachable!("it runs for ever"),
    };
    assert!(
        report.stages[2].ran && report.sure().count() >= 4,
        "{:#?}",
        report.findings
    );
    for text in [
        report.json(),
        report.markdown(),
        report.html(),
        report.sarif(),
    ] {
        assert!(!text.contains(SECRET), "{text}");
    }
    report.redact();
    assert!(!report.html().contains("mail:jobs"));
    Ok(())
}

/// The server answers, and then it does not: SIGSTOP in the middle of the walk over the names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stalls_in_the_middle_leaves_a_partial_report() -> anyhow::Result<()> {
    let server = Arc::new(Server::builder(Kind::Redis).start().await?);
    for i in 0..2000 {
        let name = format!("cache:{i}");
        server.command(&["SET", &name, "{}"]).await?;
    }
    let examination = Doctor::builder(&server.url())
        .sampled()
        .observed(Duration::from_millis(200))
        .patience(Duration::from_millis(500))
        .build()?;
    let stalled = Arc::clone(&server);
    let progress = Progress::new(move |step| {
        if step.what == "walking names" && step.done >= 500 {
            let _ = stalled.pause();
        }
    });
    let begun = std::time::Instant::now();
    let report = examination.examine(&progress).await;
    server.resume()?;
    let report = report?;
    assert!(report.stages[0].ran, "{:#?}", report.stages);
    let blind = |what: &str, why: &str| {
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains(what) && blind.why.contains(why))
    };
    assert!(blind("SCAN", "no answer in time"), "{:#?}", report.blinds);
    assert!(
        blind("server", "connection was lost"),
        "{:#?}",
        report.blinds
    );
    assert!(blind("MONITOR", ""), "{:#?}", report.blinds);
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    Ok(())
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
    let (report, observes) = tokio::join!(examination.examine(&progress), async {
        let wait = Duration::from_secs(120);
        let observes = wait_until("MONITOR to run", wait, async || {
            let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
            clients.contains("cmd=monitor").then_some(())
        });
        let observes = observes.await;
        stop.stop();
        observes
    });
    observes?;
    let report = report?;
    assert!(report.interrupted);
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    assert!(begun.elapsed() < Duration::from_secs(300));
    Ok(())
}

/// What the server keeps for the doctor's MONITOR, at most, until `end`; in bytes.
async fn most_kept(server: &Server, end: &AtomicBool) -> anyhow::Result<u64> {
    let mut most = 0;
    while !end.load(Ordering::Relaxed) {
        let clients: String = server.query(&["CLIENT", "LIST"]).await?;
        let kept = clients
            .lines()
            .filter(|line| line.contains("name=redstart-doctor"))
            .flat_map(|line| line.split(' '))
            .filter_map(|pair| pair.strip_prefix("omem=")?.parse().ok())
            .max();
        most = most.max(kept.unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(most)
}

/// A line to a server that passes a megabyte of replies a second on each connection; its URL.
async fn slow_line(server: &Server) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (url, upstream) = (format!("redis://{}", listener.local_addr()?), server.addr());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(upstream).await?.into_split();
                let (mut requests, mut replies) = client.into_split();
                let pass = async {
                    let mut room = vec![0; 50_000];
                    loop {
                        let read = from.read(&mut room).await?;
                        if read == 0 {
                            return Ok(());
                        }
                        replies.write_all(&room[..read]).await?;
                        tokio::time::sleep(Duration::from_micros(read as u64)).await;
                    }
                };
                tokio::select! {
                    end = pass => end,
                    end = tokio::io::copy(&mut requests, &mut to) => end.map(drop),
                }
            });
        }
    });
    Ok(url)
}

/// Writes of ten megabytes a second, until `end`; how many bytes since MONITOR runs there.
async fn steady_writes(server: &Server, key: &str, end: &AtomicBool) -> anyhow::Result<u64> {
    let value = "v".repeat(10_000);
    let mut client = client(&server.url()).await?;
    let (mut written, mut is_seen) = (0, false);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while !end.load(Ordering::Relaxed) {
        ticks.tick().await;
        if !is_seen {
            let clients: String = server.query(&["CLIENT", "LIST"]).await?;
            is_seen = clients.contains("cmd=monitor");
        }
        let mut batch = redis::pipe();
        for _ in 0..10 {
            batch.cmd("SET").arg(key).arg(&value).ignore();
        }
        batch.query_async::<()>(&mut client).await?;
        written += u64::from(is_seen) * 100_000;
    }
    Ok(written)
}

/// A master that does not answer, when MONITOR is opened or when it is asked what it keeps, does not make the others keep what
/// nobody reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_does_not_answer_keeps_no_other_from_being_read() -> anyhow::Result<()> {
    let cluster = redstart_testkit::Cluster::builder(Kind::Redis)
        .masters(3)
        .replicas(0)
        // The others go on without it.
        .config("cluster-require-full-coverage", "no")
        .start()
        .await?;
    let asked = examine(doctor(&cluster.url())).await?;
    let node = |at: usize| {
        let address = asked.servers.get(at).map(|server| &server.address);
        let found = cluster
            .nodes()
            .iter()
            .find(|node| Some(&node.addr()) == address);
        found.ok_or_else(|| anyhow::anyhow!("{:?}", asked.servers))
    };
    let (first, last) = (node(0)?, node(2)?);
    let mut key = String::new();
    for n in 0.. {
        key = format!("page:{n}");
        let owner = cluster
            .owner(redstart_testkit::key_slot(key.as_bytes()))
            .await?;
        if cluster.node(owner).addr() == first.addr() {
            break;
        }
    }
    for before in [true, false] {
        let examination = Doctor::builder(&cluster.url())
            .share(50)
            .patience(Duration::from_secs(6))
            .observed(Duration::from_secs(8))
            .build()?;
        let facts = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&facts);
        let progress = Progress::new(move |step| {
            // The facts of the last server. What comes next is MONITOR.
            let last = step.what == "asking servers" && step.done == 2;
            asks.fetch_or(last, Ordering::Relaxed);
        });
        let end = AtomicBool::new(false);
        let examined = async {
            let report = examination.examine(&progress).await;
            end.store(true, Ordering::Relaxed);
            report
        };
        let pausing = async {
            let wait = Duration::from_secs(120);
            wait_until("the time to stop it", wait, async || {
                if before {
                    return facts.load(Ordering::Relaxed).then_some(());
                }
                let clients: String = last.query(&["CLIENT", "LIST"]).await.ok()?;
                clients.contains("cmd=monitor").then_some(())
            })
            .await?;
            last.pause()
        };
        let (report, kept, written, paused) = tokio::join!(
            examined,
            most_kept(first, &end),
            steady_writes(first, &key, &end),
            pausing
        );
        last.resume()?;
        paused?;
        let (report, kept, written) = (report?, kept?, written?);
        figure(format!(
            "a master keeps {kept} of {written} bytes for MONITOR at most while another does not answer"
        ));
        assert!(report.partial);
        assert!(written > 20_000_000, "{written}: {:#?}", report.blinds);
        assert!(
            kept * 4 < written,
            "{kept} of {written}: {:#?}",
            report.blinds
        );
    }
    Ok(())
}

/// A line to a server on which MONITOR does not arrive, and nothing after it; its URL, and whether that has happened.
async fn without_monitor(server: &Server) -> anyhow::Result<(String, Arc<AtomicBool>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (url, upstream) = (format!("redis://{}", listener.local_addr()?), server.addr());
    let held = Arc::new(AtomicBool::new(false));
    let is_held = Arc::clone(&held);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (upstream, held) = (upstream.clone(), Arc::clone(&held));
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(upstream).await?.into_split();
                let (mut requests, mut replies) = client.into_split();
                let pass = async {
                    let mut room = vec![0; 50_000];
                    loop {
                        let read = requests.read(&mut room).await?;
                        if room[..read].windows(7).any(|word| word == b"MONITOR") {
                            held.store(true, Ordering::Relaxed);
                            std::future::pending::<()>().await;
                        }
                        if read == 0 {
                            return Ok(());
                        }
                        to.write_all(&room[..read]).await?;
                    }
                };
                tokio::select! {
                    end = pass => end,
                    end = tokio::io::copy(&mut from, &mut replies) => end.map(drop),
                }
            });
        }
    });
    Ok((url, is_held))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_opening_of_monitor_can_be_stopped() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let (url, is_held) = without_monitor(&server).await?;
    let examination = doctor(&url)
        .patience(Duration::from_secs(600))
        .observed(Duration::from_secs(600))
        .build()?;
    let progress = Progress::default();
    let ended = async {
        let (report, opens) = tokio::join!(examination.examine(&progress), async {
            let wait = Duration::from_secs(60);
            let opens = wait_until("MONITOR to be asked for", wait, async || {
                is_held.load(Ordering::Relaxed).then_some(())
            });
            let opens = opens.await;
            progress.stop();
            opens
        });
        opens?;
        anyhow::Ok(report?)
    };
    let report = tokio::time::timeout(Duration::from_secs(120), ended).await??;
    assert!(report.interrupted && !report.stages[2].ran, "{report:#?}");
    Ok(())
}

/// Writes of 500 KB that MONITOR shows as some 1.5 MB each, and a slow line: the 256th line does not come, and without a
/// guard the server keeps almost all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_large_writes_over_a_slow_line_are_not_kept_by_the_server() -> anyhow::Result<()> {
    const WRITES: u64 = 250;
    let server = Server::builder(Kind::Redis).start().await?;
    let url = slow_line(&server).await?;
    let examination = doctor(&url).observed(Duration::from_secs(600)).build()?;
    let progress = Progress::default();
    let end = AtomicBool::new(false);
    let examined = async {
        let report = examination.examine(&progress).await;
        end.store(true, Ordering::Relaxed);
        report
    };
    let load = async {
        let noise = |i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
        let value: Vec<u8> = (0..500_000).map(noise).collect();
        let mut client = server.client().await?;
        wait_until("MONITOR to run", Duration::from_secs(120), async || {
            let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
            clients.contains("cmd=monitor").then_some(())
        })
        .await?;
        let mut writes = 0;
        while writes < WRITES && !end.load(Ordering::Relaxed) {
            let mut set = redis::cmd("SET");
            set.arg("image").arg(&value);
            set.query_async::<()>(&mut client).await?;
            writes += 1;
        }
        // Whoever has not given up by now does not.
        progress.stop();
        anyhow::Ok(writes)
    };
    let (report, kept, writes) = tokio::join!(examined, most_kept(&server, &end), load);
    let (report, kept, writes) = (report?, kept?, writes?);
    figure(format!(
        "doctor over a line of 1 MB/s: the server kept {kept} bytes at most in {writes} writes of 500 KB"
    ));
    let given_up =
        |blind: &Blind| blind.what.contains("MONITOR") && blind.why.contains("ended early");
    assert!(report.blinds.iter().any(given_up), "{:#?}", report.blinds);
    assert!(kept < 100 << 20, "{kept} bytes after {writes} writes");
    Ok(())
}

/// Small commands, as many as the server can take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_flood_is_followed_or_given_up_and_never_kept() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let end = Arc::new(AtomicBool::new(false));
    let mut floods = tokio::task::JoinSet::new();
    for number in 0..2 {
        let (url, end) = (server.url(), Arc::clone(&end));
        floods.spawn(async move {
            let mut client = client(&url).await?;
            let mut round = 0u64;
            while !end.load(Ordering::Relaxed) {
                let mut pipeline = redis::pipe();
                for i in 0..1000 {
                    let key = format!("user:{number}:{}", (round * 1000 + i) % 200_000);
                    pipeline
                        .cmd("SET")
                        .arg(key)
                        .arg("v")
                        .arg("EX")
                        .arg(60)
                        .ignore();
                }
                pipeline.query_async::<()>(&mut client).await?;
                round += 1;
            }
            redis::RedisResult::Ok(round * 1000)
        });
    }
    let seconds = scale(2, "doctor flood seconds");
    let examination = doctor(&server.url()).observed(Duration::from_secs(seconds));
    let examined = async {
        let report = examine(examination).await;
        end.store(true, Ordering::Relaxed);
        report
    };
    let (report, kept) = tokio::join!(examined, most_kept(&server, &end));
    let (report, kept) = (report?, kept?);
    let mut sent = 0;
    while let Some(flood) = floods.join_next().await {
        sent += flood??;
    }
    figure(format!(
        "MONITOR flood: {sent} commands sent, {} seen in {:.1} s, at most {kept} bytes kept by the server",
        report.cost.lines,
        report.took.as_secs_f64(),
    ));
    assert!(report.cost.lines > 1000, "{:?}", report.cost);
    assert!(report.stages[2].ran);
    assert!(kept < 300 << 20, "{kept} bytes");
    Ok(())
}

/// How long the thread of a server that carries out commands has worked, in seconds.
async fn worked(server: &Server) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for name in ["used_cpu_sys_main_thread", "used_cpu_user_main_thread"] {
        sum += server.info(name).await?.parse::<f64>()?;
    }
    Ok(sum)
}

/// On a busy machine a server has no core to itself, and does not come to its limit by its own account.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_its_limit_is_observed_to_the_end_only_if_it_may_be() -> anyhow::Result<()> {
    const LUA: &str = "local n = 0 for i = 1, 300000 do n = n + i end return n";
    let server = Server::builder(Kind::Redis).start().await?;
    for share in [1, 50] {
        let end = AtomicBool::new(false);
        let load = async || {
            let mut client = client(&server.url()).await?;
            let mut batch = redis::pipe();
            for _ in 0..50 {
                batch.cmd("EVAL").arg(LUA).arg(0).ignore();
            }
            while !end.load(Ordering::Relaxed) {
                batch.query_async::<()>(&mut client).await?;
            }
            redis::RedisResult::Ok(())
        };
        let examined = async {
            let examination = Doctor::builder(&server.url())
                .patience(Duration::from_secs(60))
                .observed(Duration::from_secs(5))
                .share(share);
            let (begun, before) = (Instant::now(), worked(&server).await?);
            let report = examine(examination).await;
            let busy = (worked(&server).await? - before) / begun.elapsed().as_secs_f64();
            end.store(true, Ordering::Relaxed);
            anyhow::Ok((report?, busy))
        };
        // While one has its replies, the other's commands are carried out.
        let (examined, first, second) = tokio::join!(examined, load(), load());
        first?;
        second?;
        let (report, busy) = examined?;
        let at_its_limit = |blind: &Blind| blind.why.contains("at its limit");
        let ended = report.blinds.iter().any(at_its_limit);
        figure(format!(
            "a server that worked {:.0} % of the time was {} with a share of {share} %",
            busy * 100.0,
            if ended {
                "left early"
            } else {
                "observed to the end"
            }
        ));
        assert!(!ended || !report.is_complete(), "{:#?}", report.blinds);
        assert!(!ended || share == 1, "{:#?}", report.blinds);
        assert!(ended || share > 1 || busy < 0.95, "{busy}");
    }
    Ok(())
}

/// XINFO CONSUMERS of such a group takes the server tens of milliseconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_with_very_many_consumers_is_named_and_not_listed() -> anyhow::Result<()> {
    const LUA: &str = "for i = ARGV[1], ARGV[2] do redis.call('xgroup', 'createconsumer', KEYS[1], 'g', 'c' .. i) end";
    let server = Server::builder(Kind::Redis).start().await?;
    let group = ["XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM"];
    server.command(&group).await?;
    for from in (0..120_000).step_by(10_000) {
        let (from, to) = (from.to_string(), (from + 9_999).to_string());
        server
            .command(&["EVAL", LUA, "1", "orders", &from, &to])
            .await?;
    }
    server.command(&["SET", "lock:report", "1"]).await?;
    let report = examine(doctor(&server.url()).sampled()).await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains("consumers") && blind.why.contains("120000")),
        "{:#?}",
        report.blinds
    );
    let asked: String = server.query(&["INFO", "commandstats"]).await?;
    assert!(!asked.contains("xinfo|consumers"), "{asked}");
    Ok(())
}

/// The master is killed in the middle: the report says so and has what the replicas said. Afterwards the new master is examined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_the_middle_leaves_a_partial_report() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let old = group.master().await?;
    group
        .server(old)
        .command(&["SET", "lock:report", "1"])
        .await?;
    for (_, replica) in group
        .servers()
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != old)
    {
        wait_until(
            "the replicas to have the key",
            Duration::from_secs(120),
            async || {
                let exists: u64 = replica.query(&["EXISTS", "lock:report"]).await.ok()?;
                (exists == 1).then_some(())
            },
        )
        .await?;
    }
    let examination = doctor(&group.url())
        .sampled()
        .observed(Duration::from_secs(600))
        .build()?;
    let progress = Progress::default();
    let stop = progress.clone();
    let (report, killed) = tokio::join!(examination.examine(&progress), async {
        let wait = Duration::from_secs(120);
        let observes = wait_until("MONITOR to run", wait, async || {
            let clients: String = group.server(old).query(&["CLIENT", "LIST"]).await.ok()?;
            clients.contains("cmd=monitor").then_some(())
        });
        let observes = observes.await;
        group.server(old).kill9();
        if observes.is_err() {
            stop.stop();
        }
        observes
    });
    killed?;
    let report = report?;
    assert_eq!(report.servers.len(), 3, "{:?}", report.servers);
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    assert!(
        report
            .blinds
            .iter()
            .any(|blind| blind.what.contains("MONITOR")),
        "{:#?}",
        report.blinds
    );
    group.wait_promotion(old).await?;
    let later = examine(doctor(&group.url()).sampled()).await?;
    assert!(has(&later, "lock-without-ttl"), "{:#?}", later.findings);
    Ok(())
}

/// Keys are read from a replica; consumers are asked for at the master, and MONITOR runs there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_behind_a_sentinel_are_read_from_a_replica() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let master = group.master().await?;
    for line in [
        "SET lock:report 1",
        "XGROUP CREATE orders g 0 MKSTREAM",
        "XADD orders * id 1",
        "XREADGROUP GROUP g c STREAMS orders >",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        group.server(master).command(&words).await?;
    }
    let mut taps = Vec::new();
    for (at, server) in group.servers().iter().enumerate() {
        if at != master {
            wait_until(
                "the replica to follow",
                Duration::from_secs(120),
                async || {
                    let there: u64 = server.query(&["EXISTS", "lock:report"]).await.ok()?;
                    let link = server.info("master_link_status").await.ok()?;
                    (there == 1 && link == "up").then_some(())
                },
            )
            .await?;
        }
        taps.push(MonitorTap::start(server).await?);
    }
    let report = examine(doctor(&group.url()).sampled()).await?;
    assert!(has(&report, "lock-without-ttl"), "{:#?}", report.findings);
    let mut walked = Vec::new();
    for (at, tap) in taps.into_iter().enumerate() {
        let names: Vec<String> = tap
            .commands()
            .await?
            .iter()
            .map(|seen| seen.name())
            .collect();
        let sent = |name: &str| names.iter().any(|known| known == name);
        if sent("SCAN") || sent("GETRANGE") {
            walked.push(at);
        }
        assert_eq!(sent("XPENDING"), at == master, "server {at}: {names:?}");
    }
    assert_eq!(walked.len(), 1, "{walked:?}");
    assert_ne!(walked[0], master);
    Ok(())
}

/// A node of a Cluster dies while it is examined: the report has the others and says so.
/// It answers, but belongs to no Cluster any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_that_has_left_the_cluster_is_passed_over() -> anyhow::Result<()> {
    let alone = Server::builder(Kind::Redis)
        .config("cluster-enabled", "yes")
        .start()
        .await?;
    let cluster = redstart_testkit::shared_cluster().await?;
    let nodes = cluster
        .url()
        .split_once("://")
        .map_or("", |(_, nodes)| nodes);
    let url = format!("redis+cluster://{},{nodes}", alone.addr());
    let report = examine(doctor(&url)).await?;
    let examined: Vec<&str> = report
        .servers
        .iter()
        .map(|one| one.address.as_str())
        .collect();
    assert!(examined.len() >= 3, "{examined:?}");
    assert!(!examined.contains(&alone.addr().as_str()), "{examined:?}");
    let by_stage: u64 = report.stages.iter().map(|stage| stage.commands).sum();
    assert_eq!(by_stage, report.cost.commands);
    // Alone it is no answer.
    let url = format!("redis+cluster://{}", alone.addr());
    let error = examine(doctor(&url)).await.expect_err("no slots");
    assert!(error.to_string().contains("knows no slots"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_dies_on_the_way_is_named() -> anyhow::Result<()> {
    let cluster = redstart_testkit::Cluster::start(Kind::Redis, 3, 0).await?;
    let store = redstart::Store::connect(&cluster.url()).await?;
    for i in 0..60 {
        let key = format!("forum:cache:{i}");
        store
            .query::<()>(redis::cmd("SET").arg(&key).arg("{\"id\":1}"))
            .await?;
    }
    let doctor = doctor(&cluster.url())
        .sampled()
        .observed(Duration::from_secs(2))
        .build()?;
    let victim = cluster.node(1);
    let progress = Progress::default();
    let (report, killed) = tokio::join!(doctor.examine(&progress), async {
        let wait = Duration::from_secs(120);
        let observes = wait_until("MONITOR to run", wait, async || {
            let clients: String = victim.query(&["CLIENT", "LIST"]).await.ok()?;
            clients.contains("cmd=monitor").then_some(())
        });
        let observes = observes.await;
        victim.kill9();
        observes
    });
    killed?;
    let report = report?;
    assert!(report.partial);
    assert!(has(&report, "cache-without-ttl"), "{:#?}", report.findings);
    let address = victim.addr().to_string();
    let told = report
        .blinds
        .iter()
        .any(|blind| blind.what == format!("server {address}"));
    assert!(told, "{address}: {:#?}", report.blinds);
    Ok(())
}
