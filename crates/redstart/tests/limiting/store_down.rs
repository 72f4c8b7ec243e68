//! What happens while the store is down is what was chosen.

use std::time::Duration;

use redstart::{
    Down, Store,
    limiting::{DecidedBy, Decision, Limiter, Quota},
};
use redstart_testkit::{Kind, Server, eventually};

#[tokio::test]
async fn the_chosen_policy_decides_while_the_store_is_down() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_millis(200))
        .connect()
        .await?;
    let limiter = |down| {
        Limiter::fixed_window(&store, "down", "api", Quota::per_day(1))
            .on_store_down(down)
            .build()
    };
    let (refuse, allow, fail) = (
        limiter(Down::Refuse)?,
        limiter(Down::Allow)?,
        limiter(Down::Fail)?,
    );
    assert!(fail.check("u", 1).await?.is_allowed());
    server.kill9();

    for _ in 0..3 {
        let Decision::Limited {
            retry_after,
            snapshot,
        } = refuse.check("u", 1).await?
        else {
            panic!("let through while the store was down")
        };
        assert!(!retry_after.is_zero());
        assert_eq!(snapshot.decided_by, DecidedBy::Policy);

        let grant = allow.check("u", 1).await?.allowed().expect("allowed");
        assert_eq!(grant.decided_by(), DecidedBy::Policy);
        // Nothing was taken, so there is nothing to give back and nobody to ask.
        assert_eq!(allow.refund(grant).await?, 0);

        let error = fail.check("u", 1).await.unwrap_err();
        assert!(error.is_unavailable() || error.is_timeout(), "{error}");
        assert_eq!(error.operation(), "limiter.check");
    }
    // A cost that can never be admitted is refused under every policy.
    assert!(matches!(
        allow.check("u", 2).await?,
        Decision::Never { max: 1 }
    ));

    server.restart().await?;
    assert!(
        eventually(Duration::from_secs(30), async || {
            matches!(allow.check("v", 1).await, Ok(Decision::Allowed(grant)) if grant.decided_by() == DecidedBy::Store)
        })
        .await
    );
    Ok(())
}

/// A server that refuses writes is down for a limiter: it answers, but it cannot count.
#[tokio::test]
async fn the_policy_decides_while_the_server_refuses_writes() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&server.url()).await?;
    let limiter = |down| {
        Limiter::token_bucket(&store, "full", "api", Quota::per_day(1))
            .on_store_down(down)
            .build()
    };
    let (allow, refuse, fail) = (
        limiter(Down::Allow)?,
        limiter(Down::Refuse)?,
        limiter(Down::Fail)?,
    );
    let settings = [("maxmemory", "1", "0"), ("min-replicas-to-write", "3", "0")];
    for (name, bad, good) in settings {
        server.command(&["CONFIG", "SET", name, bad]).await?;
        let subject = format!("u:{name}");
        let grant = allow.check(&subject, 1).await?.allowed();
        assert_eq!(
            grant.expect("allowed").decided_by(),
            DecidedBy::Policy,
            "{name}"
        );
        let Decision::Limited { snapshot, .. } = refuse.check(&subject, 1).await? else {
            panic!("{name}")
        };
        assert_eq!(snapshot.decided_by, DecidedBy::Policy, "{name}");
        let error = fail.check(&subject, 1).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let many = allow.check_many(&[(&subject, 1), ("v", 1)]).await;
        assert!(many.into_iter().all(|answer| answer.unwrap().is_allowed()));
        server.command(&["CONFIG", "SET", name, good]).await?;
        let grant = allow.check(&subject, 1).await?.allowed();
        assert_eq!(
            grant.expect("allowed").decided_by(),
            DecidedBy::Store,
            "{name}"
        );
    }
    Ok(())
}
