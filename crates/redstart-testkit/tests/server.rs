//! Servers start, break and die as the kit says.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use redstart_testkit::{Child, Kind, MonitorTap, Server, child, eventually};

/// A dead process whose parent has not asked for its status does not run.
fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

async fn set_and_get(url: &str) -> Result<()> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let () = redis::cmd("SET")
        .arg("k")
        .arg("v")
        .query_async(&mut connection)
        .await?;
    let value: String = redis::cmd("GET")
        .arg("k")
        .query_async(&mut connection)
        .await?;
    ensure!(value == "v");
    Ok(())
}

#[tokio::test]
async fn each_kind_answers_by_tcp_and_by_its_socket() -> Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        set_and_get(&server.url()).await?;
        set_and_get(&server.unix_url()).await?;
        let unix = Server::builder(kind).unix().start().await?;
        assert!(unix.url().starts_with("redis+unix:///"));
        assert_eq!(unix.port(), 0);
        set_and_get(&unix.url()).await?;
        let name = if kind == Kind::Redis {
            "redis_version"
        } else {
            "valkey_version"
        };
        assert!(server.info(name).await.is_ok(), "the wrong program runs");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_with_credentials_lets_nobody_else_in() -> Result<()> {
    let open = |server: &Server| format!("redis://{}", server.addr());
    for builder in [
        Server::builder(Kind::Redis).acl("ann", "p@ss:w/rd"),
        Server::builder(Kind::Valkey).requirepass("sesame"),
    ] {
        let server = builder.start().await?;
        set_and_get(&server.url()).await?;
        set_and_get(&server.unix_url()).await?;
        assert!(
            set_and_get(&open(&server)).await.is_err(),
            "no password was asked for"
        );
        assert!(MonitorTap::start(&server).await?.commands().await.is_ok());
    }
    Ok(())
}

#[tokio::test]
async fn a_tls_server_speaks_nothing_else() -> Result<()> {
    let server = Server::builder(Kind::Redis).tls().start().await?;
    assert!(server.url().starts_with("rediss://127.0.0.1:"));
    let plain = format!("redis://{}", server.addr());
    assert!(set_and_get(&plain).await.is_err());
    set_and_get(&server.unix_url()).await?;
    let ca = server.authority().context("it has an authority")?;
    assert_eq!(std::fs::read_to_string(ca.ca_file())?, ca.ca_pem());
    Ok(())
}

#[tokio::test]
async fn a_paused_server_answers_when_it_is_resumed() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut connection = server.client().await?;
    server.pause()?;
    let answer = tokio::spawn(async move {
        redis::cmd("PING")
            .query_async::<String>(&mut connection)
            .await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!answer.is_finished(), "a stopped process answered");
    server.resume()?;
    assert_eq!(answer.await??, "PONG");
    Ok(())
}

#[tokio::test]
async fn a_killed_server_returns_empty_on_the_same_port() -> Result<()> {
    let server = Server::builder(Kind::Valkey).start().await?;
    let (port, pid) = (server.port(), server.pid().context("it runs")?);
    set_and_get(&server.url()).await?;
    server.kill9();
    assert!(!runs(pid) && server.pid().is_none());
    assert!(set_and_get(&server.url()).await.is_err());
    server.restart().await?;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), Some(pid));
    assert_eq!(server.query::<u64>(&["DBSIZE"]).await?, 0);
    Ok(())
}

#[tokio::test]
async fn configuration_lines_reach_the_server() -> Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("maxmemory", "32mb")
        .start()
        .await?;
    let pair: Vec<String> = server.query(&["CONFIG", "GET", "maxmemory"]).await?;
    assert_eq!(pair, ["maxmemory", "33554432"]);
    let error = Server::builder(Kind::Redis)
        .config("no-such-setting", "1")
        .start()
        .await;
    assert!(format!("{:#}", error.unwrap_err()).contains("no-such-setting"));
    Ok(())
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_when_it_was_asked_for() -> Result<()> {
    let first = Server::builder(Kind::Redis).start().await?;
    let second = Server::builder(Kind::Redis)
        .port(first.port())
        .start()
        .await;
    assert!(format!("{:#}", second.unwrap_err()).contains("Address already in use"));
    Ok(())
}

#[tokio::test]
async fn a_replica_follows_its_master() -> Result<()> {
    let master = Server::builder(Kind::Redis)
        .requirepass("sesame")
        .start()
        .await?;
    let replica = Server::builder(Kind::Redis)
        .replica_of(&master)
        .start()
        .await?;
    replica.wait_in_step().await?;
    master.command(&["SET", "k", "v"]).await?;
    let copied = eventually(Duration::from_secs(20), async || {
        replica
            .query::<Option<String>>(&["GET", "k"])
            .await
            .is_ok_and(|v| v.is_some())
    });
    assert!(copied.await);
    assert_eq!(
        (master.role().await?, replica.role().await?),
        ("master".into(), "slave".into())
    );
    Ok(())
}

#[tokio::test]
async fn a_server_and_its_folder_are_gone_after_drop_and_after_a_panic() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let (pid, dir) = (server.pid().context("it runs")?, server.dir().to_owned());
    // A stopped process must die as well.
    server.pause()?;
    drop(server);
    assert!(!runs(pid) && !dir.exists());

    let server = Server::builder(Kind::Redis).start().await?;
    let (pid, dir) = (server.pid().context("it runs")?, server.dir().to_owned());
    let ended = tokio::spawn(async move {
        let _server = server;
        panic!("as a failing test does");
    });
    assert!(ended.await.unwrap_err().is_panic());
    assert!(!runs(pid) && !dir.exists());
    Ok(())
}

#[tokio::test]
async fn a_server_dies_with_a_test_process_that_is_killed() -> Result<()> {
    if child::role().is_some() {
        let server = Server::builder(Kind::Redis).start().await?;
        child::say(server.pid().context("it runs")?);
        child::say(server.dir().display());
        child::hear();
        return Ok(());
    }
    let test = "a_server_dies_with_a_test_process_that_is_killed";
    let mut process = Child::of(test).spawn()?;
    let (pid, dir) = (process.line().await?.parse()?, process.line().await?);
    assert!(runs(pid));
    process.kill9();
    assert!(
        eventually(Duration::from_secs(20), async || !runs(pid)).await,
        "it outlived its test"
    );
    // What it left behind goes when the next test process starts a server.
    let mut next = Child::of(test).spawn()?;
    next.line().await?;
    assert!(
        !std::path::Path::new(&dir).exists(),
        "{dir} was left behind"
    );
    assert!(next.wait().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_server_outlives_the_runtime_that_started_it() -> Result<()> {
    let server = std::thread::spawn(|| {
        tokio::runtime::Runtime::new()?.block_on(Server::builder(Kind::Redis).start())
    });
    let server = server.join().expect("the thread does not panic")?;
    assert_eq!(server.query::<String>(&["PING"]).await?, "PONG");
    Ok(())
}

#[tokio::test]
async fn the_tap_tells_round_trips_from_what_scripts_call() -> Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        server.command(&["SET", "ns:before", "1"]).await?;
        let tap = MonitorTap::start(&server).await?;
        server.command(&["SET", "ns:a", "1"]).await?;
        let script = "redis.call('INCR', KEYS[1]) return redis.call('GET', KEYS[1])";
        server.command(&["EVAL", script, "1", "ns:a"]).await?;
        let names: Vec<String> = tap
            .round_trips("ns:")
            .await?
            .iter()
            .map(|c| c.name())
            .collect();
        assert_eq!(names, ["SET", "EVAL"]);
        let all = tap.commands().await?;
        let called = all
            .iter()
            .filter(|command| command.is_from_script())
            .count();
        assert_eq!(called, 2);
        tap.clear().await?;
        assert!(tap.round_trips("ns:").await?.is_empty());
    }
    Ok(())
}
