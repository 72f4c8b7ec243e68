//! `redstart bench` as a person and as a program use it.

use std::{
    io::BufRead as _,
    process::{Command, Output, Stdio},
    time::Duration,
};

use redstart_testkit::{Answer, Kind, Server, Stub, interrupt, stub::bulk, terminate, wait_until};
use serde_json::Value;

fn redstart(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
    command
        .args(args)
        .env_remove("REDSTART_URL")
        .stdin(Stdio::null());
    command
}

/// Enough for clients to meet, and quick.
const QUICK: [&str; 7] = [
    "--operations",
    "400",
    "--clients",
    "8",
    "--keys",
    "8",
    "--json",
];

fn bench(args: &[&str]) -> Command {
    let mut command = redstart(&["bench"]);
    command.args(QUICK).args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

#[test]
fn every_pattern_of_the_tour_has_its_line() -> anyhow::Result<()> {
    let tour = redstart(&["tour", "--only", "nonsense"]).output()?;
    let names = text(&tour.stderr);
    let (_, names) = names.trim_end().split_once("it has ").expect("a list");
    let mut names: Vec<&str> = names.split(", ").collect();
    let output = bench(&[]).output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let reports = objects(&output);
    let mut seen: Vec<&str> = reports
        .iter()
        .filter_map(|r| r["pattern"].as_str())
        .collect();
    names.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, names);
    for report in &reports {
        for field in [
            "operations",
            "ops_per_second",
            "p50_us",
            "p99_us",
            "p999_us",
            "server_us_per_op",
        ] {
            assert!(
                report[field].as_f64().is_some_and(|n| n > 0.0),
                "{field}: {report}"
            );
        }
        assert!(report.get("bytes_per_entity").is_some(), "{report}");
        assert!(
            report["invariant"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        assert_eq!(report["held"], true, "{report}");
    }
    Ok(())
}

#[test]
fn a_broken_promise_is_the_exit_code() -> anyhow::Result<()> {
    let output = bench(&["array"])
        .env(
            "REDSTART_BREAK_SCRIPT",
            "array.set=return redis.status_reply('OK')",
        )
        .output()?;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report = &objects(&output)[0];
    assert_eq!(report["held"], false, "{report}");
    assert!(
        report["broken"]
            .as_str()
            .is_some_and(|text| text.contains("record")),
        "{report}"
    );
    Ok(())
}

#[test]
fn load_on_another_machine_needs_a_yes_and_nonsense_is_refused() -> anyhow::Result<()> {
    for (args, part) in [
        (
            &["bench", "get", "--url", "redis://:hunter2@192.0.2.1"][..],
            "--yes",
        ),
        (&["bench", "nonsense"], "token_bucket"),
        (&["bench", "ring", "--naive"], "token_bucket"),
        (&["bench", "get", "--clients", "0"], "clients"),
        (
            &["bench", "get", "--rate", "50", "--max-rate", "10"],
            "--max-rate",
        ),
        (&["bench", "get", "--writes", "2"], "writes"),
        (
            &[
                "bench",
                "get",
                "--operations",
                "1",
                "--processes",
                "2",
                "--url",
                "redis://127.0.0.1:1",
            ],
            "at least --processes",
        ),
        (&["bench", "get", "--spread", "cold"], "uniform"),
    ] {
        let output = redstart(args).output()?;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let line = text(&output.stderr);
        assert!(line.contains(part) && !line.contains("hunter2"), "{line}");
    }
    Ok(())
}

/// Sentinels run beside applications; what they name may be anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_by_a_sentinel_of_this_machine_needs_a_yes_if_the_master_is_elsewhere()
-> anyhow::Result<()> {
    let sentinel = Stub::start(|command| match command {
        [name, what, ..] if name == "SENTINEL" && what.eq_ignore_ascii_case("replicas") => {
            Answer::Reply("*0\r\n".to_owned())
        }
        [name, ..] if name == "SENTINEL" => {
            Answer::Reply(format!("*2\r\n{}{}", bulk("192.0.2.7"), bulk("6379")))
        }
        _ => Answer::ok(),
    })
    .await?;
    let url = format!("redis+sentinel://{}/main", sentinel.addr());
    for url in [vec!["--url", &url], vec!["--against", &url]] {
        let args = [&["get"][..], &url].concat();
        let output = output(strings(&args)).await?;
        assert_eq!(output.status.code(), Some(2), "{url:?}");
        let line = text(&output.stderr);
        assert!(
            line.contains("192.0.2.7:6379") && line.contains("--yes"),
            "{line}"
        );
    }
    Ok(())
}

#[test]
fn a_baseline_has_a_verdict_and_a_page_has_charts() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let first = bench(&["counter", "--html", &path("page.html")]).output()?;
    assert!(first.status.success());
    let page = std::fs::read_to_string(path("page.html"))?;
    assert!(page.contains("counter") && page.contains("<svg"), "{page}");
    // The same machine was a thousand times faster before, and a thousand times slower.
    for (factor, code) in [(1000.0, 1), (0.001, 0)] {
        let mut report = objects(&first)[0].clone();
        let rate = report["ops_per_second"].as_f64().expect("a rate") * factor;
        report["ops_per_second"] = rate.into();
        report["interval"] = Value::Null;
        std::fs::write(path("old.json"), format!("{report}\n"))?;
        let output = bench(&["counter", "--baseline", &path("old.json")]).output()?;
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert_eq!(objects(&output).len(), 1);
    }
    // Nothing was compared with a run of another pattern.
    let output = bench(&["array", "--baseline", &path("old.json")]).output()?;
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("nothing was compared"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_limiter_admits_too_much_and_ours_does_not() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = format!("{}?timeout=10s", server.url());
    let run = move |pattern: &'static str| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || bench(&[pattern, "--naive", "--url", &url]).output())
    };
    for pattern in ["token_bucket", "stampede_lease", "session"] {
        let output = run(pattern).await??;
        let report = objects(&output).remove(0);
        assert_eq!(report["held"], true, "{report}");
        let naive = &report["naive"];
        assert_eq!(naive["ours_wrong"], 0, "{report}");
        assert!(
            naive["wrong"].as_u64().is_some_and(|wrong| wrong > 0),
            "{report}"
        );
    }
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

/// Sends a signal to a bench that has written keys, and waits for its end.
async fn ended_by(signal: fn(u32) -> anyhow::Result<()>, args: &[&str]) -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    server.command(&["SET", "somebody-elses", "1"]).await?;
    let url = server.url();
    let mut child = redstart(&["bench", "cache_aside", "--seconds", "60", "--url", &url])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait_until("keys of the run", Duration::from_secs(60), async || {
        matches!(server.query::<u64>(&["DBSIZE"]).await, Ok(keys) if keys > 10).then_some(())
    })
    .await?;
    signal(child.id())?;
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    assert_eq!(status.code(), Some(130), "{args:?}");
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 1, "{args:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_bench_removes_its_keys() -> anyhow::Result<()> {
    ended_by(interrupt, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_bench_removes_its_keys() -> anyhow::Result<()> {
    ended_by(terminate, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_several_processes_are_removed_when_they_are_ended() -> anyhow::Result<()> {
    ended_by(terminate, &["--processes", "2"]).await
}

/// Interrupts a bench in the middle of its load; what it printed and the page that it wrote.
async fn interrupted(args: &[&str]) -> anyhow::Result<(Vec<serde_json::Value>, String)> {
    let server = Server::builder(Kind::Redis).start().await?;
    let (folder, url) = (tempfile::tempdir()?, server.url());
    let page = folder.path().join("page.html");
    let child = redstart(&[
        "bench",
        "cache_aside",
        "--seconds",
        "600",
        "--json",
        "--url",
        &url,
    ])
    .args(args)
    .args(["--html", &page.display().to_string()])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()?;
    wait_until("load", Duration::from_secs(120), async || {
        let stats: String = server.query(&["INFO", "stats"]).await.ok()?;
        let commands = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"))?;
        (commands.parse::<u64>().ok()? > 30_000).then_some(())
    })
    .await?;
    interrupt(child.id())?;
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
    assert_eq!(output.status.code(), Some(130), "{args:?}");
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0, "{args:?}");
    let lines = String::from_utf8(output.stdout)?;
    let reports: Result<Vec<_>, _> = lines.lines().map(serde_json::from_str).collect();
    Ok((reports?, std::fs::read_to_string(page)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_bench_reports_what_it_has_measured() -> anyhow::Result<()> {
    for args in [&[][..], &["--processes", "2"]] {
        let (reports, page) = interrupted(args).await?;
        let [report] = &reports[..] else {
            anyhow::bail!("{args:?}: {reports:?}");
        };
        assert!(
            report["operations"]
                .as_u64()
                .is_some_and(|done| done > 1000),
            "{report}"
        );
        assert!(
            report["stopped"]
                .as_str()
                .is_some_and(|why| why.contains("interrupted")),
            "{report}"
        );
        assert!(page.contains("cache_aside"), "{args:?}: {page}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bench_that_is_interrupted_keeps_the_patterns_that_have_run() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("page.html");
    let names = ["mutex", "cache_aside", "token_bucket"];
    let mut child = redstart(&["bench", "--seconds", "3"])
        .args(names)
        .args(["--html", &page.display().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let id = child.id();
    let printed = child
        .stdout
        .take()
        .ok_or_else(|| anyhow::anyhow!("no output"))?;
    let printed = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        for line in std::io::BufReader::new(printed).lines() {
            let line = line?;
            if line.contains("mutex") {
                interrupt(id)?;
            }
            text += &line;
            text.push('\n');
        }
        anyhow::Ok((text, child.wait()?))
    });
    let (printed, status) = printed.await??;
    assert_eq!(status.code(), Some(130));
    assert!(printed.contains("invariants held"), "{printed}");
    let page = std::fs::read_to_string(page)?;
    assert!(
        page.contains("mutex") && !page.contains("token_bucket"),
        "{page}"
    );
    Ok(())
}

/// The server hangs, so that the pattern that runs cannot end by itself at once, and its keys cannot be removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_bench_whose_server_hangs() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = format!("{}?timeout=5s", server.url());
    let child = redstart(&["bench", "cache_aside", "--seconds", "600", "--url", &url])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    wait_until("keys of the run", Duration::from_secs(60), async || {
        matches!(server.query::<u64>(&["DBSIZE"]).await, Ok(keys) if keys > 10).then_some(())
    })
    .await?;
    server.pause()?;
    let id = child.id();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = tokio::select! {
        output = ended => output??,
        () = async {
            // The second one may be taken for the first if it comes at once.
            let mut ticks = tokio::time::interval(Duration::from_millis(500));
            loop {
                ticks.tick().await;
                let _ = interrupt(id);
            }
        } => anyhow::bail!("it ended"),
    };
    server.resume()?;
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("may be left"), "{said}");
    Ok(())
}

/// A finished bench that must not block the tasks of a test's servers.
async fn output(args: Vec<String>) -> anyhow::Result<Output> {
    let run = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        bench(&args).output()
    });
    Ok(run.await??)
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_side_by_side_are_both_under_load_and_both_empty_afterwards()
-> anyhow::Result<()> {
    let redis = Server::builder(Kind::Redis).start().await?;
    let valkey = Server::builder(Kind::Valkey).start().await?;
    let (one, other) = (redis.url(), valkey.url());
    let args = ["counter", "--url", &one, "--against", &other];
    let both = output(strings(&args)).await?;
    assert!(both.status.success(), "{}", text(&both.stderr));
    let report = objects(&both).remove(0);
    for (side, name) in [(&report, "redis"), (&report["against"], "valkey")] {
        let server = side["server"].as_str().unwrap_or_default();
        assert!(server.starts_with(name), "{server:?}: {side}");
        assert_eq!(side["operations"], 400, "{side}");
        assert_eq!(side["held"], true, "{side}");
    }
    for server in [&redis, &valkey] {
        assert!(server.info("cmdstat_evalsha").await?.contains("calls="));
        assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    }
    Ok(())
}

/// The latency of Redlock is that of engines of this process, so two servers cannot be compared by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_ratio_is_given_where_the_server_does_not_decide() -> anyhow::Result<()> {
    let redis = Server::builder(Kind::Redis).start().await?;
    let valkey = Server::builder(Kind::Valkey).start().await?;
    for (pattern, ratio) in [("mutex", true), ("redlock", false)] {
        let mut bench = redstart(&["bench", pattern, "--operations", "50", "--clients", "4"]);
        bench.args(["--url", &redis.url(), "--against", &valkey.url()]);
        let output = tokio::task::spawn_blocking(move || bench.output()).await??;
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said} {}", text(&output.stderr));
        assert_eq!(said.contains('×'), ratio, "{said}");
        assert_eq!(said.contains("engines of this process"), !ratio, "{said}");
    }
    Ok(())
}

/// Each process has its share of what the preparation may write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_prepare_within_one_cap_on_memory() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut bench = redstart(&["bench", "get", "--json", "--processes", "2"]);
    bench.args([
        "--payload",
        "100000",
        "--max-memory",
        "8",
        "--url",
        &server.url(),
    ]);
    let output = tokio::task::spawn_blocking(move || bench.output()).await??;
    let report = objects(&output).remove(0);
    let why = report["stopped"].as_str().unwrap_or_default();
    assert!(why.contains("memory"), "{report}");
    // Everything that was sent, names of keys and removal included.
    let sent: u64 = server.info("total_net_input_bytes").await?.trim().parse()?;
    assert!(sent < 12 << 20, "{sent}");
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_two_processes_is_their_sum() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let url = server.url();
    let mut args = redstart(&["bench", "counter", "--json", "--operations", "401"]);
    args.args(["--clients", "8", "--keys", "8", "--processes", "2"]);
    args.args(["--url", &url]);
    let output = tokio::task::spawn_blocking(move || args.output()).await??;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = objects(&output).remove(0);
    // Each process has keys of its own, and warms up with some operations that are not counted.
    let sum = ["operations", "processes", "clients", "entities"];
    let sum = sum.map(|field| report[field].as_u64().unwrap_or(0));
    assert_eq!(sum, [401, 2, 16, 16], "{report}");
    assert_eq!(report["held"], true, "{report}");
    // Each of them saw all calls. One operation is one script, now and then two.
    let commands = report["commands"].as_array().cloned().unwrap_or_default();
    let calls = commands.iter().find(|cost| cost["command"] == "evalsha");
    let calls = calls.and_then(|cost| cost["calls_per_op"].as_f64());
    assert!(
        calls.is_some_and(|calls| (0.9..1.5).contains(&calls)),
        "{report}"
    );
    let trips = report["round_trips_per_op"].as_f64();
    assert!(
        trips.is_some_and(|trips| (0.9..1.5).contains(&trips)),
        "{report}"
    );
    assert!(
        report["ops_per_second"]
            .as_f64()
            .is_some_and(|rate| rate > 0.0)
            && report["p50_us"].as_f64() <= report["max_us"].as_f64(),
        "{report}"
    );
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

/// One of several processes, by hand: it waits at the end of each stage, tells how it goes on, and ends with the one that
/// started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_lost_the_one_that_started_it_ends_and_removes_its_keys()
-> anyhow::Result<()> {
    use std::io::{BufRead as _, BufReader, Write as _};

    let server = Server::builder(Kind::Redis).start().await?;
    let url = server.url();
    let heard = tokio::task::spawn_blocking(move || {
        let mut child = redstart(&[
            "bench",
            "counter",
            "--json",
            "--together",
            "--seconds",
            "600",
        ])
        .args(["--url", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
        let mut input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (mut stages, mut operations, mut report) = (Vec::new(), 0, Value::Null);
        for line in lines {
            let mut line: Value = serde_json::from_str(&line?)?;
            if let Some(stage) = line["stage"].as_u64() {
                stages.push(stage);
                if let Some(input) = &mut input {
                    input.write_all(b"\n")?;
                }
            }
            if let Some(seen) = line["watched"]["operations"].as_u64() {
                operations = seen;
            }
            if line["report"].is_object() {
                report = line["report"].take();
            }
            // In the middle of the load.
            if operations > 100 {
                input = None;
            }
        }
        child.wait()?;
        anyhow::Ok((stages, operations, report))
    });
    let (stages, operations, report) = heard.await??;
    assert_eq!(stages, [1, 2, 3, 4], "{report}");
    assert!(operations > 100, "{report}");
    let why = report["stopped"].as_str().unwrap_or_default();
    assert!(why.contains("has ended"), "{report}");
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[test]
fn a_ramp_has_its_steps_and_its_knee() -> anyhow::Result<()> {
    let ramp = bench(&["counter", "--ramp"]).output()?;
    let report = objects(&ramp).remove(0);
    let steps = report["ramp"].as_array().cloned().unwrap_or_default();
    let loads: Vec<f64> = steps
        .iter()
        .filter_map(|step| step["load"].as_f64())
        .collect();
    let doubled = loads.windows(2).all(|pair| pair[1] == 2.0 * pair[0]);
    assert!(loads.first() == Some(&1.0) && doubled, "{report}");
    let knee = report["knee"]["load"].as_f64();
    assert!(knee.is_some_and(|knee| loads.contains(&knee)), "{report}");
    Ok(())
}
