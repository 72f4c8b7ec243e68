//! `redstart doctor` as a person, a program and a pipeline use it.

use std::{
    collections::BTreeSet,
    process::{Command, Output, Stdio},
    time::Duration,
};

use redstart_testkit::{Kind, Server};

fn redstart(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
    command
        .args(args)
        .env_remove("REDSTART_URL")
        .stdin(Stdio::null());
    command
}

fn doctor(url: &str, args: &[&str]) -> anyhow::Result<Output> {
    let first = [
        "doctor",
        "--url",
        url,
        "--gap",
        "100ms",
        "--patience",
        "60s",
    ];
    Ok(redstart(&[&first[..], args].concat()).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn findings(output: &Output) -> Vec<serde_json::Value> {
    text(&output.stdout)
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

/// A server with a lock that nobody can take and a cache that never ends.
async fn faulty() -> anyhow::Result<Server> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "lock:report", "1"]).await?;
    for i in 0..20 {
        server
            .command(&["SET", &format!("cache:product:{i}"), "{\"id\":1}"])
            .await?;
    }
    Ok(server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_has_one_object_per_finding_with_the_eight_fields() -> anyhow::Result<()> {
    let server = faulty().await?;
    let output = doctor(&server.url(), &["--sample", "--json"])?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found = findings(&output);
    let wanted: BTreeSet<&str> = [
        "rule",
        "severity",
        "confidence",
        "subject",
        "evidence",
        "effect",
        "fix",
        "pattern",
    ]
    .into();
    for finding in &found {
        let fields: BTreeSet<&str> = finding
            .as_object()
            .expect("an object")
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, wanted);
        assert!(
            finding["confidence"]
                .as_f64()
                .is_some_and(|n| (0.0..=1.0).contains(&n))
        );
        assert!(matches!(
            finding["severity"].as_str(),
            Some("low" | "medium" | "high")
        ));
    }
    let rule = |id: &str| found.iter().any(|finding| finding["rule"] == id);
    assert!(
        rule("lock-without-ttl") && rule("lock-without-owner") && rule("cache-without-ttl"),
        "{found:#?}"
    );
    // The stage that did not run is named, and not on the output of the findings.
    assert!(
        text(&output.stderr).contains("observed"),
        "{}",
        text(&output.stderr)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_status_suppressions_and_baseline_serve_a_pipeline() -> anyhow::Result<()> {
    let server = faulty().await?;
    let url = server.url();
    let failed = doctor(&url, &["--sample", "--json", "--fail-on", "high"])?;
    assert_eq!(failed.status.code(), Some(1));

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("accepted.toml");
    let accept = |until: &str| {
        [
            "lock-without-ttl",
            "lock-without-owner",
            "cache-without-ttl",
        ]
        .map(|rule| {
            format!("[[suppress]]\nrule = \"{rule}\"\nreason = \"known\"\nuntil = \"{until}\"\n")
        })
        .concat()
    };
    let path = file.display().to_string();
    std::fs::write(&file, accept("2999-01-01"))?;
    let accepted = doctor(
        &url,
        &["--sample", "--fail-on", "low", "--suppressions", &path],
    )?;
    assert!(accepted.status.success(), "{}", text(&accepted.stdout));
    assert!(text(&accepted.stdout).contains("suppressed"));
    std::fs::write(&file, accept("2020-01-01"))?;
    let ended = doctor(
        &url,
        &["--sample", "--fail-on", "high", "--suppressions", &path],
    )?;
    assert_eq!(
        ended.status.code(),
        Some(1),
        "a suppression that has ended hides nothing"
    );

    let baseline = folder.path().join("before.jsonl");
    std::fs::write(&baseline, &failed.stdout)?;
    let path = baseline.display().to_string();
    server
        .command(&["SET", "lock:other:thing", "locked"])
        .await?;
    let news = findings(&doctor(&url, &["--sample", "--json", "--baseline", &path])?);
    let subjects: BTreeSet<&str> = news
        .iter()
        .filter_map(|finding| finding["subject"].as_str())
        .collect();
    assert_eq!(subjects, ["lock:other:thing"].into(), "{news:#?}");

    assert_eq!(doctor("http://example", &[])?.status.code(), Some(2));
    assert_eq!(doctor("redis://127.0.0.1:1", &[])?.status.code(), Some(3));
    Ok(())
}

/// What SARIF 2.1.0 requires of a log, its runs, tools, rules and results, and the values it allows.
fn assert_sarif(log: &serde_json::Value) {
    assert_eq!(log["version"], "2.1.0");
    assert!(
        log["$schema"]
            .as_str()
            .is_some_and(|uri| uri.starts_with("https://"))
    );
    let filled = |value: &serde_json::Value| value.as_str().is_some_and(|text| !text.is_empty());
    let levels = ["none", "note", "warning", "error"];
    let runs = log["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1);
    for run in runs {
        let driver = &run["tool"]["driver"];
        assert!(filled(&driver["name"]) && filled(&driver["version"]));
        let rules = driver["rules"].as_array().expect("rules");
        let mut ids = BTreeSet::new();
        for rule in rules {
            assert!(
                ids.insert(rule["id"].as_str().expect("an id")),
                "{rule} twice"
            );
            for text in ["shortDescription", "fullDescription", "help"] {
                assert!(filled(&rule[text]["text"]), "{text} of {rule}");
            }
            let level = rule["defaultConfiguration"]["level"].as_str();
            assert!(levels.contains(&level.expect("a level")), "{rule}");
        }
        let results = run["results"].as_array().expect("results");
        assert!(!results.is_empty());
        for result in results {
            assert!(filled(&result["message"]["text"]), "{result}");
            assert!(levels.contains(&result["level"].as_str().expect("a level")));
            let rank = result["rank"].as_f64().expect("a rank");
            assert!((0.0..=100.0).contains(&rank), "{rank}");
            let index = result["ruleIndex"].as_u64().expect("an index") as usize;
            assert_eq!(rules[index]["id"], result["ruleId"]);
            for location in result["locations"].as_array().expect("locations") {
                for place in location["logicalLocations"].as_array().expect("places") {
                    assert!(filled(&place["fullyQualifiedName"]), "{place}");
                }
            }
            let prints = result["partialFingerprints"].as_object().expect("prints");
            assert!(prints.values().all(filled), "{prints:?}");
        }
        for invocation in run["invocations"].as_array().expect("invocations") {
            assert!(invocation["executionSuccessful"].is_boolean());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_is_for_people_too() -> anyhow::Result<()> {
    let server = faulty().await?;
    let folder = tempfile::tempdir()?;
    let html = folder.path().join("report.html");
    let output = doctor(
        &server.url(),
        &["--sample", "--html", &html.display().to_string()],
    )?;
    let shown = text(&output.stdout);
    for part in [
        "A lock without TTL",
        "lock:report",
        "SET lock token NX PX 30000",
        "did not run",
        "cost:",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        shown.lines().all(|line| line.chars().count() <= 160),
        "{shown}"
    );
    let page = std::fs::read_to_string(&html)?;
    assert!(page.contains("<svg") && page.contains("lock:report") && !page.contains("<script"));
    let markdown = text(&doctor(&server.url(), &["--sample", "--markdown"])?.stdout);
    assert!(markdown.contains("| high |"), "{markdown}");
    let sarif: serde_json::Value =
        serde_json::from_slice(&doctor(&server.url(), &["--sample", "--sarif"])?.stdout)?;
    assert_sarif(&sarif);

    let rules = text(&redstart(&["doctor", "rules", "--json"]).output()?.stdout);
    assert!(rules.lines().count() > 50);
    let explained = text(
        &redstart(&["doctor", "explain", "lock-released-by-del"])
            .output()?
            .stdout,
    );
    assert!(
        explained.contains("How it happens") && explained.contains("1."),
        "{explained}"
    );
    assert_eq!(
        redstart(&["doctor", "explain", "nonsense"])
            .output()?
            .status
            .code(),
        Some(2)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_with_what_is_known() -> anyhow::Result<()> {
    let server = faulty().await?;
    let mut child = redstart(&[
        "doctor",
        "--url",
        &server.url(),
        "--sample",
        "--observe",
        "600s",
        "--json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()?;
    // It observes when MONITOR is on.
    redstart_testkit::wait_until("MONITOR to run", Duration::from_secs(60), async || {
        let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
        clients.contains("cmd=monitor").then_some(())
    })
    .await?;
    redstart_testkit::interrupt(child.id())?;
    let output = tokio::task::spawn_blocking(move || {
        let mut out = Vec::new();
        std::io::Read::read_to_end(child.stdout.as_mut().expect("a pipe"), &mut out)
            .map(|_| (child.wait(), out))
    })
    .await??;
    assert_eq!(output.0?.code(), Some(130));
    assert!(
        text(&output.1).contains("lock-without-ttl"),
        "{}",
        text(&output.1)
    );
    Ok(())
}

/// The first one asks for what is known. A server that does not answer must not hold the program for its patience.
#[test]
fn a_second_ctrl_c_ends_at_once() -> anyhow::Result<()> {
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("redis://{}", silent.local_addr()?);
    let mut child = redstart(&["doctor", "--url", &url, "--patience", "600s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let _held = silent.accept()?;
    let begun = std::time::Instant::now();
    let status = loop {
        redstart_testkit::interrupt(child.id())?;
        std::thread::sleep(Duration::from_millis(100));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill()?;
            anyhow::bail!("it goes on after Ctrl-C");
        }
    };
    assert_eq!(status.code(), Some(130));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_while_the_server_is_away() -> anyhow::Result<()> {
    let server = faulty().await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("redis.sock");
    let url = format!("redis+unix://{}", socket.display());
    let mut child = tokio::process::Command::from(redstart(&[
        "doctor", "--url", &url, "--sample", "--gap", "50ms", "--watch", "100ms", "--json",
    ]))
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .kill_on_drop(true)
    .spawn()?;
    let patience = Duration::from_secs(60);
    let errors = child.stderr.take().expect("a pipe");
    let mut errors = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(errors));
    let first = tokio::time::timeout(patience, errors.next_line()).await??;
    let first = first.unwrap_or_default();
    assert!(first.contains("looking again"), "{first}");
    std::os::unix::fs::symlink(server.socket(), &socket)?;
    // The other pipe must not fill up meanwhile.
    let drain = tokio::spawn(async move { while let Ok(Some(_)) = errors.next_line().await {} });
    let output = child.stdout.take().expect("a pipe");
    let mut output = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(output));
    let found = async {
        while let Some(line) = output.next_line().await? {
            if line.contains("lock-without-ttl") {
                return anyhow::Ok(true);
            }
        }
        Ok(false)
    };
    assert!(tokio::time::timeout(patience, found).await??);
    child.kill().await?;
    drain.await?;
    Ok(())
}

/// What is not shown fails a pipeline all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_findings_still_count() -> anyhow::Result<()> {
    let server = faulty().await?;
    let url = server.url();
    let hidden = ["--sample", "--json", "--min-confidence", "1"];
    let quiet = doctor(&url, &hidden)?;
    assert!(quiet.status.success() && findings(&quiet).is_empty());
    let failed = doctor(&url, &[&hidden[..], &["--fail-on", "high"]].concat())?;
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stderr));
    assert!(findings(&failed).is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redstarts_own_tour_is_healthy() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = format!("{}?timeout=10s", server.url());
    let mut tour = redstart(&["tour", "--json", "--url", &url])
        .stdout(Stdio::null())
        .spawn()?;
    let output = doctor(&server.url(), &["--sample", "--observe", "6s", "--json"])?;
    assert!(tour.wait()?.success());
    let sure: Vec<_> = findings(&output)
        .into_iter()
        .filter(|finding| finding["confidence"].as_f64().is_some_and(|n| n >= 0.7))
        .collect();
    assert!(sure.is_empty(), "{sure:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_shows_what_is_new() -> anyhow::Result<()> {
    let server = faulty().await?;
    let mut child = redstart(&[
        "doctor",
        "--url",
        &server.url(),
        "--sample",
        "--gap",
        "50ms",
        "--watch",
        "200ms",
        "--json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()?;
    let mut pipe = child.stdout.take().expect("a pipe");
    let shown = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let into = std::sync::Arc::clone(&shown);
    let reader = std::thread::spawn(move || {
        let mut room = [0; 4096];
        while let Ok(read @ 1..) = std::io::Read::read(&mut pipe, &mut room) {
            into.lock()
                .expect("no panic while it is held")
                .push_str(&text(&room[..read]));
        }
    });
    let seen = |what: &'static str| {
        let shown = std::sync::Arc::clone(&shown);
        async move {
            redstart_testkit::wait_until(what, Duration::from_secs(60), async || {
                shown
                    .lock()
                    .expect("no panic while it is held")
                    .contains(what)
                    .then_some(())
            })
            .await
        }
    };
    seen("\"lock:report\"").await?;
    server.command(&["SET", "mutex:other", "1"]).await?;
    seen("\"mutex:other\"").await?;
    redstart_testkit::interrupt(child.id())?;
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    assert!(matches!(status.code(), Some(0 | 130)), "{status}");
    reader.join().expect("the reader ends with the pipe");
    // Each finding is shown once.
    assert_eq!(
        shown
            .lock()
            .expect("no panic while it is held")
            .matches("\"rule\":\"cache-without-ttl\"")
            .count(),
        1
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redacted_baseline_is_compared_and_no_name_is_shown() -> anyhow::Result<()> {
    let server = faulty().await?;
    let url = server.url();
    let folder = tempfile::tempdir()?;
    for redacted in [true, false] {
        server.command(&["SET", "lock:report", "1"]).await?;
        let mut args = vec!["--sample", "--json"];
        args.extend(redacted.then_some("--redact"));
        let before = doctor(&url, &args)?;
        assert!(!findings(&before).is_empty());
        let file = folder.path().join(format!("{redacted}.jsonl"));
        std::fs::write(&file, &before.stdout)?;
        let path = file.display().to_string();
        let again = doctor(
            &url,
            &["--sample", "--json", "--redact", "--baseline", &path],
        )?;
        assert_eq!(findings(&again), [] as [serde_json::Value; 0], "{redacted}");

        // What is gone has no name either.
        server.command(&["DEL", "lock:report"]).await?;
        let shown = doctor(&url, &["--sample", "--redact", "--baseline", &path])?;
        let shown = text(&shown.stdout);
        assert!(shown.contains("gone: lock-without-ttl key-"), "{shown}");
        assert!(!shown.contains("lock:report"), "{shown}");
    }
    Ok(())
}

/// The most memory that a process has had, in kilobytes; `None` when it has ended.
fn most_memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Many names, large values in MONITOR lines and a collection of large elements: nothing of it is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_whatever_the_server_holds() -> anyhow::Result<()> {
    const LUA: &str = "for i = ARGV[1], ARGV[2] do redis.call('set', 'user:' .. i .. ':' .. redis.sha1hex(i), 'ann') end";
    let server = Server::builder(Kind::Redis).start().await?;
    let keys = redstart_testkit::scale(100_000, "doctor memory keys");
    for from in (0..keys).step_by(10_000) {
        let (from, to) = (from.to_string(), (from + 9_999).to_string());
        server.command(&["EVAL", LUA, "0", &from, &to]).await?;
    }
    let large = "x".repeat(1_000_000);
    server
        .command(&["HSET", "wide", "a", &large, "b", &large])
        .await?;
    let url = server.url();
    let mut child = redstart(&[
        "doctor",
        "--url",
        &url,
        &format!("--sample={}", keys * 2),
        "--walk",
        "1h",
        "--share",
        "50",
        "--observe",
        "2s",
        "--gap",
        "100ms",
        "--patience",
        "60s",
        "--quiet",
        "--markdown",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()?;
    let mut most = 0;
    let mut round = 0u64;
    while child.try_wait()?.is_none() {
        let key = format!("image:{round}");
        server.command(&["SET", &key, &large, "PX", "200"]).await?;
        round += 1;
        most = most_memory(child.id()).unwrap_or(0).max(most);
    }
    let output = child.wait_with_output()?;
    assert!(output.status.success());
    // All of them were walked. The writes come and go.
    let shown = text(&output.stdout);
    let walked = shown.split_once(" names in ").and_then(|(before, _)| {
        let all = before.rsplit_once(" of ")?.0.rsplit(' ').next()?;
        all.replace([',', '|'], "").parse::<u64>().ok()
    });
    assert!(walked.is_some_and(|walked| walked >= keys), "{shown}");
    redstart_testkit::figure(format!(
        "doctor of {keys} keys beside {round} writes of 1 MB: {most} KB of memory at most"
    ));
    assert!(most > 0 && most <= 200_000, "{most} KB");
    Ok(())
}

/// A run that saw almost nothing does not pass, and says so in every form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_saw_almost_nothing_does_not_pass() -> anyhow::Result<()> {
    let server = faulty().await?;
    let url = server.url();
    let before = doctor(&url, &["--sample", "--json"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("before.jsonl");
    std::fs::write(&file, &before.stdout)?;
    let user = [
        "ACL", "SETUSER", "guest", "on", ">secret", "~*", "+@all", "-scan", "-monitor",
    ];
    server.command(&user).await?;
    let guest = format!("redis://guest:secret@{}", server.addr());
    let all = ["--all", "--observe", "50ms", "--fail-on", "low"];

    let path = file.display().to_string();
    let compared = doctor(&guest, &[&all[..], &["--baseline", &path]].concat())?;
    let shown = text(&compared.stdout);
    assert_eq!(compared.status.code(), Some(5), "{shown}");
    assert!(shown.contains("0 gone"), "{shown}");
    assert!(
        text(&compared.stderr).contains("not all"),
        "{}",
        text(&compared.stderr)
    );
    for form in ["--sarif", "--markdown", "--json"] {
        let output = doctor(&guest, &[&all[..], &[form]].concat())?;
        assert_eq!(output.status.code(), Some(5), "{form}");
        let errors = text(&output.stderr);
        assert!(
            errors.contains("SCAN") && errors.contains("MONITOR"),
            "{form}: {errors}"
        );
        // Without a gate it is a report like any other.
        let free = doctor(&guest, &["--all", "--observe", "50ms", form])?;
        assert!(free.status.success(), "{form}");
    }
    let sarif = doctor(&guest, &["--all", "--observe", "50ms", "--sarif"])?;
    let sarif: serde_json::Value = serde_json::from_slice(&sarif.stdout)?;
    let invocation = &sarif["runs"][0]["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false, "{invocation}");
    let notes = invocation["toolExecutionNotifications"].to_string();
    assert!(
        notes.contains("SCAN") && notes.contains("MONITOR"),
        "{notes}"
    );

    // A server that may not be asked for its statistics.
    let user = ["ACL", "SETUSER", "guest", "+@all", "-info"];
    server.command(&user).await?;
    let blind = doctor(&guest, &["--fail-on", "low"])?;
    assert_eq!(blind.status.code(), Some(5), "{}", text(&blind.stdout));
    // A finding comes before what was not seen.
    let user = ["ACL", "SETUSER", "guest", "+@all", "-monitor"];
    server.command(&user).await?;
    assert_eq!(doctor(&guest, &all)?.status.code(), Some(1));
    Ok(())
}

/// A server may close a MONITOR connection whose client reads too slowly, and so may an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observation_that_ended_early_does_not_pass() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("monitor.log");
    let mut lines = String::new();
    for i in 0..20 {
        for (at, client, command) in [(1, 1, "GET"), (2, 2, "INCR"), (3, 1, "INCR")] {
            lines +=
                &format!("17000000{i:02}.{at} [0 10.0.0.{client}:5] \"{command}\" \"rate:7\"\n");
        }
    }
    std::fs::write(&log, lines)?;
    let before = doctor(&log.display().to_string(), &["--json"])?;
    assert!(text(&before.stdout).contains("check-then-increment"));
    let file = folder.path().join("before.jsonl");
    std::fs::write(&file, &before.stdout)?;
    let path = file.display().to_string();
    for closed in [false, true] {
        let time = if closed { "600s" } else { "50ms" };
        let child = redstart(&[
            "doctor",
            "--url",
            &server.url(),
            "--observe",
            time,
            "--patience",
            "60s",
            "--fail-on",
            "low",
            "--baseline",
            &path,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
        if closed {
            let wait = Duration::from_secs(120);
            redstart_testkit::wait_until("MONITOR to run", wait, async || {
                let clients: String = server.query(&["CLIENT", "LIST"]).await.ok()?;
                let line = clients.lines().find(|line| line.contains("cmd=monitor"))?;
                let id = line.split(' ').find_map(|pair| pair.strip_prefix("id="))?;
                server.command(&["CLIENT", "KILL", "ID", id]).await.ok()?;
                Some(())
            })
            .await?;
        }
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
        let (shown, errors) = (text(&output.stdout), text(&output.stderr));
        let (code, gone) = if closed { (5, "0 gone") } else { (0, "1 gone") };
        assert_eq!(output.status.code(), Some(code), "{shown}{errors}");
        assert!(shown.contains(gone), "{shown}");
        assert_eq!(shown.contains("closed the connection"), closed, "{shown}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stalls_after_a_few_answers_does_not_pass() -> anyhow::Result<()> {
    let server = faulty().await?;
    let proxy = redstart_testkit::Proxy::start(&server).await?;
    proxy.drop_reply_to("commandstats");
    let args = [
        "doctor",
        "--url",
        proxy.url(),
        "--patience",
        "300ms",
        "--sample",
        "--fail-on",
        "low",
        "--sarif",
    ];
    let output = redstart(&args).output()?;
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let sarif: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        sarif["runs"][0]["invocations"][0]["executionSuccessful"],
        false
    );
    Ok(())
}

/// What the rules are not sure of is no error of a code scan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsure_finding_is_a_note_in_sarif() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for i in 0..5 {
        server
            .command(&["SET", &format!("tenant:{i}:quota"), "100"])
            .await?;
    }
    let output = doctor(&server.url(), &["--sample", "--sarif"])?;
    let sarif: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    let unsure = results
        .iter()
        .find(|result| result["ruleId"] == "counter-without-ttl");
    assert_eq!(unsure.expect("the finding")["level"], "note");
    Ok(())
}

/// Names of four kilobytes in a log, each once.
#[test]
fn long_names_in_a_log_take_little_memory() -> anyhow::Result<()> {
    use std::io::Write as _;
    let file = tempfile::NamedTempFile::new()?;
    let long = "x".repeat(3_800);
    let mut log = std::io::BufWriter::new(&file);
    for i in 0..50_000 {
        writeln!(
            log,
            "1700000000.1 [0 10.0.0.1:5] \"GET\" \"url:{i}:{long}\""
        )?;
    }
    log.flush()?;
    let path = file.path().display().to_string();
    let mut child = redstart(&["doctor", &path, "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut most = 0;
    while child.try_wait()?.is_none() {
        most = most_memory(child.id()).unwrap_or(0).max(most);
        // Between two looks at it; nothing depends on how long.
        std::thread::sleep(Duration::from_millis(20));
    }
    redstart_testkit::figure(format!(
        "doctor of 50,000 names of 3.8 KB in a log: {most} KB of memory at most"
    ));
    assert!(most > 0 && most <= 200_000, "{most} KB");
    Ok(())
}

/// A key may be named to clear the screen or to look like a line of the report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_keys_do_not_reach_the_terminal_as_they_are() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut client = server.client().await?;
    for i in 0..20 {
        let name = format!("cache:\u{1b}[2J\u{9b}31m\r\nhigh lock:all\u{202e}:{i}");
        redis::cmd("SET")
            .arg(name)
            .arg("{\"id\":1}")
            .query_async::<()>(&mut client)
            .await?;
    }
    for form in ["--quiet", "--json", "--markdown", "--sarif"] {
        let output = doctor(&server.url(), &["--sample", form])?;
        assert!(output.status.success(), "{}", text(&output.stderr));
        for shown in [text(&output.stdout), text(&output.stderr)] {
            let odd = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!shown.contains(odd), "{form}: {shown:?}");
            assert!(!shown.contains("\nhigh lock:all"), "{form}: {shown:?}");
        }
        assert!(text(&output.stdout).contains("cache:"), "{form}");
    }
    Ok(())
}

#[test]
fn an_rdb_file_has_an_option_of_its_own() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dump.rdb");
    let engine = redstart_engine::Engine::new();
    let words = ["SET", "lock:report", "1"].map(Into::into);
    engine.session().execute(&words);
    engine.save_rdb(std::fs::File::create(&file)?, |_| {})?;
    let doctor = |args: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_redstart"))
            .arg("doctor")
            .args(args)
            // What the environment says is not what was asked for.
            .env("REDSTART_URL", "redis://127.0.0.1:1")
            .output()
    };
    let path = file.display().to_string();
    let output = doctor(&["--rdb", &path, "--json", "--fail-on", "medium"])?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(out.contains("lock-without-ttl"), "{out}");
    assert!(
        err.contains("a file has no server") && err.contains("a file has no traffic"),
        "{err}"
    );
    std::fs::write(&file, "no snapshot")?;
    let output = doctor(&["--rdb", &path])?;
    assert_eq!(output.status.code(), Some(2));
    Ok(())
}
