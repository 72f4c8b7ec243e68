//! One test runs on four backends, each in a namespace of its own.

use anyhow::{Result, ensure};
use redstart_testkit::{Backend, BackendKind, Child, child, matrix};

async fn ping(url: &str) -> Result<()> {
    let url = url.replace("redis+cluster://", "redis://");
    let first = url.split([',', '?']).next().unwrap_or_default();
    let client = redis::Client::open(first)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await?;
    ensure!(info.contains("redis_version"));
    Ok(())
}

matrix! {
    async fn each_backend_has_its_url(backend: &Backend) -> Result<()> {
        let url = backend.url();
        match backend.kind() {
            BackendKind::Embedded => {
                assert_eq!(url, "memory://?cluster_strict=1");
                return Ok(());
            }
            BackendKind::Cluster => assert!(url.starts_with("redis+cluster://127.0.0.1:")),
            _ => assert!(url.starts_with("redis://127.0.0.1:")),
        }
        ping(url).await
    }

    async fn a_child_meets_its_parents_servers_and_namespace(backend: &Backend) -> Result<()> {
        if child::role().is_some() {
            child::say(backend.url());
            child::say(backend.namespace());
            return Ok(());
        }
        let mut process = Child::of(backend.test()).namespace(backend.namespace()).spawn()?;
        assert_eq!(process.line().await?, backend.url());
        assert_eq!(process.line().await?, backend.namespace());
        assert!(process.wait().await?.success());
        Ok(())
    }
}

#[tokio::test]
async fn a_child_that_fails_says_so_by_its_status() -> Result<()> {
    if child::role().is_some() {
        assert_eq!(child::hear().as_deref(), Some("go"));
        panic!("on purpose: the child of a test that expects it");
    }
    let mut process = Child::of("a_child_that_fails_says_so_by_its_status").spawn()?;
    process.pause()?;
    process.resume()?;
    process.tell("go")?;
    assert!(!process.wait().await?.success());
    assert!(process.line().await.is_err());
    Ok(())
}
