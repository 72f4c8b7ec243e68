//! Subscriptions over every backend, and through what breaks them.

use std::time::Duration;

use redstart::{
    Store,
    key::Keys,
    store::{Event, Listen, Subscription},
};
use redstart_testkit::{Backend, Cluster, Kind, Proxy, Sentinel, Server, eventually, matrix};

const PATIENCE: Duration = Duration::from_secs(30);

async fn next(subscription: &mut Subscription) -> Event {
    match tokio::time::timeout(PATIENCE, subscription.next()).await {
        Ok(Some(event)) => event,
        other => panic!("no event: {other:?}"),
    }
}

/// The next event that is no message of before.
async fn until(subscription: &mut Subscription, wanted: &Event) {
    while next(subscription).await != *wanted {}
}

fn payload(event: Event) -> String {
    match event {
        Event::Message(message) => String::from_utf8(message.payload).unwrap_or_default(),
        other => panic!("not a message: {other:?}"),
    }
}

matrix! {
    async fn messages_of_all_kinds_arrive_in_order(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Keys::new(backend.namespace(), "news")?;
        let (a, b) = (keys.entity("a")?.channel("live"), keys.entity("b")?.channel("live"));
        let classic = format!("{}-classic", backend.namespace());
        let mut all = store
            .subscribe([
                Listen::Sharded(a.clone()),
                Listen::Sharded(b.clone()),
                Listen::Channel(classic.clone()),
                Listen::Pattern(format!("{}-glob-*", backend.namespace())),
            ])
            .await?;
        assert_eq!(next(&mut all).await, Event::Subscribed);
        for n in 0..10 {
            store.query::<()>(redis::cmd("SPUBLISH").arg(&a).arg(n)).await?;
        }
        for n in 0..10 {
            assert_eq!(payload(next(&mut all).await), n.to_string());
        }
        store.query::<()>(redis::cmd("SPUBLISH").arg(&b).arg("b")).await?;
        assert_eq!(payload(next(&mut all).await), "b");
        store.query::<()>(redis::cmd("PUBLISH").arg(&classic).arg("c")).await?;
        assert_eq!(payload(next(&mut all).await), "c");
        let channel = format!("{}-glob-1", backend.namespace());
        store.query::<()>(redis::cmd("PUBLISH").arg(&channel).arg("g")).await?;
        let Event::Message(message) = next(&mut all).await else { panic!("no message") };
        assert_eq!((message.channel, message.payload), (channel, b"g".to_vec()));
        assert!(message.pattern.is_some_and(|pattern| pattern.ends_with('*')));
        Ok(())
    }

    async fn changes_of_keys_are_reported_by_prefix(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Keys::new(backend.namespace(), "cache")?;
        let mut changes = store.subscribe([Listen::Changes(keys.prefix().into_iter().collect())]).await?;
        assert_eq!(next(&mut changes).await, Event::Subscribed);
        for n in 0..6 {
            let entity = keys.entity(&format!("product-{n}"))?;
            let other = Keys::new(backend.namespace(), "other")?.entity(&format!("{n}"))?;
            store.query::<()>(redis::cmd("SET").arg(other.key()).arg(n)).await?;
            store.query::<()>(redis::cmd("SET").arg(entity.key()).arg(n)).await?;
            let changed = next(&mut changes).await;
            assert_eq!(changed, Event::Changed(vec![entity.key().as_str().as_bytes().to_vec()]));
        }
        Ok(())
    }

    async fn a_dropped_subscription_leaves_the_server(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let channel = Keys::new(backend.namespace(), "news")?.entity("gone")?.channel("live");
        let publish = {
            let mut cmd = redis::cmd("SPUBLISH");
            cmd.arg(&channel).arg("x");
            cmd
        };
        let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
        assert_eq!(next(&mut subscription).await, Event::Subscribed);
        assert_eq!(store.query::<i64>(&publish).await?, 1);
        drop(subscription);
        assert!(eventually(PATIENCE, async || matches!(store.query::<i64>(&publish).await, Ok(0))).await);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_cut_a_black_hole_and_a_restart_are_reported_as_gaps() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let proxy = Proxy::start(&server).await?;
    let store = Store::connect(&format!("{}?timeout=400ms", proxy.url())).await?;
    let direct = Store::connect(&server.url()).await?;
    let channel = Keys::new("app", "news")?.entity("x")?.channel("live");
    let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
    assert_eq!(next(&mut subscription).await, Event::Subscribed);

    for round in 0..3 {
        match round {
            0 => proxy.cut().await?,
            1 => proxy.black_hole(),
            _ => server.kill9(),
        }
        until(&mut subscription, &Event::Lost).await;
        match round {
            0 => {}
            1 => proxy.pass().await,
            _ => server.restart().await?,
        }
        until(&mut subscription, &Event::Resubscribed).await;
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(&channel).arg(round);
        assert!(
            eventually(PATIENCE, async || direct
                .query::<()>(&publish)
                .await
                .is_ok())
            .await
        );
        assert_eq!(payload(next(&mut subscription).await), round.to_string());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_subscriptions_follow_a_sentinel_failover() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let store = Store::connect(&group.url()).await?;
    let channel = Keys::new("app", "news")?.entity("x")?.channel("live");
    let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
    assert_eq!(next(&mut subscription).await, Event::Subscribed);
    let old = group.master().await?;
    group.server(old).kill9();
    until(&mut subscription, &Event::Lost).await;
    group.wait_promotion(old).await?;
    until(&mut subscription, &Event::Resubscribed).await;
    let mut publish = redis::cmd("SPUBLISH");
    publish.arg(&channel).arg("after");
    assert!(
        eventually(PATIENCE, async || store
            .query::<i64>(&publish)
            .await
            .is_ok_and(|n| n > 0))
        .await
    );
    assert_eq!(payload(next(&mut subscription).await), "after");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_sharded_subscriptions_follow_their_slot() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let store = Store::connect(&cluster.url()).await?;
    let channel = Keys::new("app", "news")?.entity("x")?.channel("live");
    let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
    assert_eq!(next(&mut subscription).await, Event::Subscribed);
    let owner = cluster.owner(channel.slot()).await?;
    cluster
        .migrate_slot(channel.slot(), (owner + 1) % 3)
        .await?;
    until(&mut subscription, &Event::Resubscribed).await;
    let mut publish = redis::cmd("SPUBLISH");
    publish.arg(&channel).arg("moved");
    assert!(
        eventually(PATIENCE, async || store
            .query::<i64>(&publish)
            .await
            .is_ok_and(|n| n > 0))
        .await
    );
    assert_eq!(payload(next(&mut subscription).await), "moved");
    Ok(())
}
