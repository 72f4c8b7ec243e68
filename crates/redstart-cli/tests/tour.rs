//! The command as a person and as a program use it.

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use redstart_testkit::{Cluster, Kind, Server, wait_until};

fn redstart(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redstart"));
    command
        .args(args)
        .env_remove("REDSTART_URL")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One object per line, each of them a pattern.
fn patterns(output: &Output) -> Vec<serde_json::Value> {
    text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

fn whole_tour(url: &str) -> anyhow::Result<()> {
    // A busy machine may take longer than a second to answer; no claim here is about that.
    let url = format!("{url}?timeout=10s");
    let output = redstart(&["tour", "--json", "--url", &url]).output()?;
    let patterns = patterns(&output);
    for pattern in &patterns {
        assert_eq!(pattern["ok"], true, "{pattern}");
        assert!(
            pattern["claims"].as_u64().is_some_and(|claims| claims > 0),
            "{pattern}"
        );
        assert!(
            pattern["ms"].is_number() && pattern["family"].is_string(),
            "{pattern}"
        );
    }
    assert_eq!(patterns.len(), 46);
    assert!(output.status.success(), "{}", text(&output.stderr));
    Ok(())
}

#[test]
fn every_pattern_holds_on_the_embedded_engine() -> anyhow::Result<()> {
    whole_tour("memory://")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pattern_holds_on_servers_and_nothing_is_left_behind() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let url = server.url();
        tokio::task::spawn_blocking(move || whole_tour(&url)).await??;
        assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0, "{kind:?}");
    }
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let url = cluster.url();
    tokio::task::spawn_blocking(move || whole_tour(&url)).await??;
    for node in cluster.nodes() {
        assert_eq!(node.query::<u64>(&["DBSIZE"]).await?, 0);
    }
    Ok(())
}

#[test]
fn a_promise_that_is_broken_on_purpose_fails_the_tour() -> anyhow::Result<()> {
    for (pattern, script) in [
        ("array", "array.set=return redis.status_reply('OK')"),
        ("counter", "counter.ack=return 0"),
        ("weighted_choice", "weighted.pick=return {}"),
    ] {
        let whole = redstart(&["tour", "--json", "--only", pattern]).output()?;
        assert!(whole.status.success(), "{pattern}");
        let broken = redstart(&["tour", "--json", "--only", pattern])
            .env("REDSTART_BREAK_SCRIPT", script)
            .output()?;
        assert_eq!(
            broken.status.code(),
            Some(1),
            "{pattern}: {}",
            text(&broken.stdout)
        );
        assert_eq!(patterns(&broken)[0]["ok"], false, "{pattern}");
    }
    Ok(())
}

#[test]
fn a_url_to_nowhere_is_one_line_and_no_success() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let started = Instant::now();
    let output = redstart(&["tour", "--url", &url]).output()?;
    assert_eq!(output.status.code(), Some(3));
    let line = text(&output.stderr);
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    assert!(
        line.contains(&port.to_string()) && line.contains("--url") && !line.contains("hunter2"),
        "{line}"
    );
    // The deadline is a second; a noisy machine gets far more before it counts as a hang.
    assert!(started.elapsed() < Duration::from_secs(30));

    let output = redstart(&["tour", "--only", "nonsense"]).output()?;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("token_bucket"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_tour_removes_its_keys() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut tour = redstart(&["tour", "--url", &server.url()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait_until("a key of the tour", Duration::from_secs(60), async || {
        matches!(server.query::<u64>(&["DBSIZE"]).await, Ok(keys) if keys > 0).then_some(())
    })
    .await?;
    redstart_testkit::interrupt(tour.id())?;
    let status = tokio::task::spawn_blocking(move || tour.wait()).await??;
    assert_eq!(status.code(), Some(130));
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[test]
fn the_guide_answers_people_and_programs() -> anyhow::Result<()> {
    let all = redstart(&["guide"]).output()?;
    assert!(all.status.success() && text(&all.stdout).contains("token_bucket"));
    let words = redstart(&["guide", "only", "one", "worker"]).output()?;
    assert!(
        text(&words.stdout).contains("Mutex::builder"),
        "{}",
        text(&words.stdout)
    );
    let json = redstart(&["guide", "--json", "count", "visitors"]).output()?;
    assert_eq!(patterns(&json)[0]["pattern"], "unique_visitors");
    assert_eq!(
        redstart(&["guide", "xyzzy"]).output()?.status.code(),
        Some(2)
    );
    // Colours are for terminals.
    assert!(!text(&words.stdout).contains('\u{1b}'));
    let bash = redstart(&["completions", "bash"]).output()?;
    assert!(text(&bash.stdout).contains("redstart"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_listens_serves_and_stops() -> anyhow::Result<()> {
    use std::io::{BufRead as _, BufReader};
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data").display().to_string();
    for round in 0..2 {
        let mut engine = redstart(&[
            "engine",
            "--listen",
            "127.0.0.1:0",
            "--data",
            &data,
            "--fsync",
            "always",
        ])
        .stdout(Stdio::piped())
        .spawn()?;
        let out = engine.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let url = line
            .trim()
            .strip_prefix("ready: ")
            .expect("a ready line")
            .to_owned();
        let store = redstart::Store::connect(&url).await?;
        let kept: Option<u32> = store
            .query(redstart::redis::cmd("GET").arg("round"))
            .await?;
        assert_eq!(kept, (round > 0).then(|| round - 1));
        store
            .query::<()>(redstart::redis::cmd("SET").arg("round").arg(round))
            .await?;
        drop(store);
        redstart_testkit::terminate(engine.id())?;
        let status = tokio::task::spawn_blocking(move || engine.wait()).await??;
        assert!(status.success());
    }
    let open = redstart(&["engine", "--listen", "0.0.0.0:0"]).output()?;
    assert_eq!(open.status.code(), Some(2));
    assert!(
        text(&open.stderr).contains("password"),
        "{}",
        text(&open.stderr)
    );
    Ok(())
}

/// What a person sees in a terminal of this width, line by line.
fn in_terminal(columns: u16, args: &str) -> anyhow::Result<Vec<String>> {
    let program = env!("CARGO_BIN_EXE_redstart");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!("stty cols {columns} rows 40; '{program}' {args}"))
        .arg("/dev/null")
        .env_remove("REDSTART_URL")
        .env("TERM", "dumb")
        .stdin(Stdio::null())
        .output()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout).replace('\r', "");
    Ok(shown.lines().map(str::to_owned).collect())
}

#[test]
fn the_guide_fits_the_width_of_the_terminal() -> anyhow::Result<()> {
    for columns in [72, 100, 140] {
        for args in ["guide", "guide --anti"] {
            let lines = in_terminal(columns, args)?;
            assert!(lines.len() > 20, "{lines:?}");
            for line in &lines {
                assert!(
                    line.chars().count() <= usize::from(columns),
                    "{columns} {args}: {line}"
                );
            }
            // It uses the width that there is.
            let longest = lines.iter().map(|line| line.chars().count()).max();
            assert!(longest > Some(usize::from(columns) / 2), "{columns} {args}");
        }
    }
    Ok(())
}
