//! Each mode of the fault proxy does what it says, and no more.

use std::time::{Duration, Instant};

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use redstart_testkit::{Kind, Proxy, Server, eventually};

const SOON: Duration = Duration::from_secs(20);
/// Long enough that an answer on loopback would have come.
const SILENCE: Duration = Duration::from_millis(150);

async fn pair() -> Result<(Server, Proxy)> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    Ok((server, proxy))
}

async fn connect(proxy: &Proxy) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON));
    let client = redis::Client::open(proxy.url())?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

async fn incr(connection: &mut MultiplexedConnection, key: &str) -> redis::RedisResult<u64> {
    redis::cmd("INCR").arg(key).query_async(connection).await
}

async fn is_silent<T>(request: impl Future<Output = T>) -> bool {
    tokio::time::timeout(SILENCE, request).await.is_err()
}

async fn count(server: &Server, key: &str) -> u64 {
    let value = server.query::<Option<u64>>(&["GET", key]).await;
    value.ok().flatten().unwrap_or(0)
}

#[tokio::test]
async fn passing_delivers_and_counts() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    let before = proxy.stats();
    assert_eq!(incr(&mut connection, "k").await?, 1);
    let after = proxy.stats();
    assert_eq!((after.connections, after.open), (1, 1));
    let request = "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n".len() as u64;
    assert_eq!(after.request_bytes - before.request_bytes, request);
    assert_eq!(
        after.reply_bytes - before.reply_bytes,
        ":1\r\n".len() as u64
    );
    assert_eq!(after.swallowed_bytes, 0);
    Ok(())
}

#[tokio::test]
async fn large_values_pass_unharmed() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    let value: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let () = redis::cmd("SET")
        .arg("k")
        .arg(&value)
        .query_async(&mut connection)
        .await?;
    let back: Vec<u8> = redis::cmd("GET")
        .arg("k")
        .query_async(&mut connection)
        .await?;
    assert!(back == value);
    Ok(())
}

#[tokio::test]
async fn a_delay_holds_each_direction_back_and_ends_at_once() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    let delay = Duration::from_millis(200);
    for (set, at_least) in [
        (Proxy::delay as fn(&Proxy, Duration), delay * 2),
        (Proxy::delay_requests, delay),
        (Proxy::delay_replies, delay),
    ] {
        proxy.pass().await;
        set(&proxy, delay);
        let start = Instant::now();
        incr(&mut connection, "k").await?;
        assert!(start.elapsed() >= at_least, "{:?}", start.elapsed());
    }
    // Delayed replies: the server has run it long before its client knows.
    proxy.delay_replies(Duration::from_secs(3600));
    let mut other = connection.clone();
    let waiting = tokio::spawn(async move { incr(&mut other, "late").await });
    assert!(eventually(SOON, async || count(&server, "late").await == 1).await);
    assert!(!waiting.is_finished());
    proxy.pass().await;
    assert_eq!(waiting.await??, 1);
    Ok(())
}

#[tokio::test]
async fn a_throttle_bounds_the_rate() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.throttle(100_000);
    let start = Instant::now();
    let value = vec![b'x'; 20_000];
    let () = redis::cmd("SET")
        .arg("k")
        .arg(&value)
        .query_async(&mut connection)
        .await?;
    assert!(
        start.elapsed() >= Duration::from_millis(200),
        "{:?}",
        start.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn a_stall_loses_nothing() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.stall();
    let mut other = connection.clone();
    let waiting = tokio::spawn(async move { incr(&mut other, "k").await });
    tokio::time::sleep(SILENCE).await;
    assert_eq!(count(&server, "k").await, 0);
    proxy.pass().await;
    assert_eq!(waiting.await??, 1);
    assert_eq!(incr(&mut connection, "k").await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_black_hole_accepts_and_never_answers() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.black_hole();
    assert!(is_silent(incr(&mut connection, "k")).await);
    assert!(
        is_silent(connect(&proxy)).await,
        "a new connection was answered"
    );
    assert_eq!(count(&server, "k").await, 0);
    // Even the server's end is not seen by those inside.
    let open = proxy.stats().open;
    server.kill9();
    tokio::time::sleep(SILENCE).await;
    assert!(open > 0 && proxy.stats().open == open);
    server.restart().await?;
    proxy.pass().await;
    assert!(
        eventually(SOON, async || proxy.stats().open == 0).await,
        "they were not cut"
    );
    assert_eq!(incr(&mut connect(&proxy).await?, "k").await?, 1);
    Ok(())
}

#[tokio::test]
async fn lost_requests_do_not_reach_the_server() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.black_hole_requests();
    assert!(is_silent(incr(&mut connection, "k")).await);
    assert_eq!(count(&server, "k").await, 0);
    Ok(())
}

#[tokio::test]
async fn lost_replies_leave_the_request_done() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.drop_replies();
    assert!(is_silent(incr(&mut connection, "k")).await);
    assert!(eventually(SOON, async || count(&server, "k").await == 1).await);
    assert!(proxy.stats().swallowed_bytes > 0);
    Ok(())
}

#[tokio::test]
async fn a_cut_ends_connections_and_lets_new_ones_in() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    incr(&mut connection, "k").await?;
    proxy.cut().await?;
    assert_eq!(proxy.stats().open, 0);
    assert!(incr(&mut connection, "k").await.is_err());
    assert_eq!(incr(&mut connect(&proxy).await?, "k").await?, 2);
    Ok(())
}

#[tokio::test]
async fn refusing_turns_new_connections_away_and_keeps_the_old() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.refuse().await;
    let refused = tokio::net::TcpStream::connect(proxy.addr())
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(incr(&mut connection, "k").await?, 1);
    proxy.pass().await;
    assert_eq!(incr(&mut connect(&proxy).await?, "k").await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_dropped_reply_costs_the_connection_but_not_the_write() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.drop_reply_to("marked");
    assert_eq!(incr(&mut connection, "plain").await?, 1);
    // In one pipeline: what was asked before still arrives, the marked one does not.
    let (mut first, mut second) = (connection.clone(), connection.clone());
    let (before, marked) = tokio::join!(incr(&mut first, "plain"), incr(&mut second, "marked"));
    assert_eq!(before?, 2);
    assert!(marked.is_err());
    assert_eq!(count(&server, "marked").await, 1);
    assert_eq!(proxy.stats().sprung, 1);
    // It was for one request only.
    assert_eq!(incr(&mut connect(&proxy).await?, "marked").await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_cut_before_a_request_keeps_it_from_the_server() -> Result<()> {
    let (server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    proxy.cut_before("marked");
    assert!(incr(&mut connection, "marked").await.is_err());
    assert_eq!(count(&server, "marked").await, 0);
    assert_eq!(incr(&mut connect(&proxy).await?, "marked").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_new_upstream_is_for_new_connections() -> Result<()> {
    let (_first, proxy) = pair().await?;
    let second = Server::builder(Kind::Valkey).start().await?;
    let mut old = connect(&proxy).await?;
    assert_eq!(incr(&mut old, "k").await?, 1);
    proxy.set_upstream(&second.addr());
    assert_eq!(incr(&mut connect(&proxy).await?, "k").await?, 1);
    assert_eq!(incr(&mut old, "k").await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections_and_its_port() -> Result<()> {
    let (_server, proxy) = pair().await?;
    let mut connection = connect(&proxy).await?;
    let addr = proxy.addr();
    drop(proxy);
    assert!(eventually(SOON, async || incr(&mut connection, "k").await.is_err()).await);
    let closed = async || tokio::net::TcpStream::connect(&addr).await.is_err();
    assert!(eventually(SOON, closed).await);
    Ok(())
}
