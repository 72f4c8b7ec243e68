//! Wrong URLs, wrong servers, wrong passwords: a clear error that names the cause and no secret.

use std::time::{Duration, Instant};

use redstart::{Error, Store};
use redstart_testkit::{Cluster, Kind, Proxy, Server};

async fn refused(url: &str) -> Error {
    match Store::connect(url).await {
        Ok(store) => panic!("{url} connected: {store:?}"),
        Err(error) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter2"), "{text}");
            error
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_with_its_cause() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .requirepass("correct")
        .start()
        .await?;
    let port = server.port();

    let error = refused(&format!("redis://:hunter2@127.0.0.1:{port}")).await;
    assert!(
        error.is_config() && error.to_string().contains("credentials"),
        "{error}"
    );
    let error = refused(&format!("redis://127.0.0.1:{port}")).await;
    assert!(
        error.is_config() && error.to_string().contains("credentials"),
        "{error}"
    );

    let error = refused("redis://:hunter2@no-such-host.invalid").await;
    assert!(
        error.is_unavailable() && error.to_string().contains("no-such-host.invalid"),
        "{error}"
    );

    let unused = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let error = refused(&format!("redis://:hunter2@127.0.0.1:{unused}")).await;
    assert!(
        error.is_unavailable() && error.to_string().contains("nothing is listening"),
        "{error}"
    );

    let plain = Server::builder(Kind::Valkey).start().await?;
    let error = refused(&format!("redis+cluster://127.0.0.1:{}", plain.port())).await;
    assert!(
        error.is_config() && error.to_string().contains("redis://"),
        "{error}"
    );
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let error = refused(&format!("redis://127.0.0.1:{}", cluster.node(0).port())).await;
    assert!(
        error.is_config() && error.to_string().contains("redis+cluster://"),
        "{error}"
    );

    let error = refused(&format!("redis+sentinel://127.0.0.1:{}/main", plain.port())).await;
    assert!(
        error.to_string().contains("SENTINEL") || error.is_config() || error.is_unavailable(),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_an_unknown_authority_is_not_trusted() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).tls().start().await?;
    let without_ca = server.url();
    let ca = server
        .authority()
        .expect("a TLS server has an authority")
        .ca_file()
        .to_owned();
    Store::connect(&format!("{without_ca}?ca={}", ca.display())).await?;

    let error = refused(&without_ca).await;
    assert!(
        error.is_config() && error.to_string().contains("certificate"),
        "{error}"
    );

    let error = refused(&format!("{without_ca}?ca=/no/such/file.pem")).await;
    assert!(
        error.is_config() && error.to_string().contains("/no/such/file.pem"),
        "{error}"
    );

    let plain = Server::builder(Kind::Redis).start().await?;
    let error = refused(&format!("rediss://127.0.0.1:{}", plain.port())).await;
    assert!(!error.is_in_doubt(), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_answers_fails_the_connect_at_its_deadline() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.black_hole();
    let url = format!("{}?timeout=300ms", proxy.url());
    let started = Instant::now();
    assert!(refused(&url).await.is_timeout());
    // Far above the deadline, far below a hang.
    assert!(started.elapsed() < Duration::from_secs(20));

    // A lazy store comes up with its server.
    let lazy = Store::builder(&url).lazy().connect().await?;
    assert!(lazy.health().await.unwrap_err().is_timeout());
    proxy.pass().await;
    assert!(
        redstart_testkit::eventually(Duration::from_secs(20), async || lazy
            .health()
            .await
            .is_ok())
        .await
    );
    Ok(())
}
