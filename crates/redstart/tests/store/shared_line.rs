//! One connection to each node carries all subscriptions, and each subscriber hears of its own gaps.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    Store,
    key::{Channel, Keys},
    store::{Event, Listen, Subscription},
};
use redstart_testkit::{
    Backend, Cluster, Kind, Sentinel, Server, eventually, figure, matrix, scale,
};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);

async fn next(subscription: &mut Subscription) -> Event {
    match tokio::time::timeout(PATIENCE, subscription.next()).await {
        Ok(Some(event)) => event,
        other => panic!("no event: {other:?}"),
    }
}

async fn until(subscription: &mut Subscription, wanted: &Event) {
    while next(subscription).await != *wanted {}
}

async fn publish(store: &Store, channel: &Channel, payload: &[u8]) -> redstart::Result<u64> {
    store
        .query(redis::cmd("SPUBLISH").arg(channel).arg(payload))
        .await
}

async fn opened(store: &Store, to: impl IntoIterator<Item = Listen>) -> Subscription {
    let mut subscription = store.subscribe(to).await.expect("it can subscribe");
    assert_eq!(next(&mut subscription).await, Event::Subscribed);
    subscription
}

matrix! {
    async fn a_slow_listener_gets_a_gap_and_a_fast_one_gets_everything(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let channel = Keys::new(backend.namespace(), "news")?.entity("flood")?.channel("live");
        let mut slow = opened(&store, [Listen::Sharded(channel.clone())]).await;
        let mut fast = opened(&store, [Listen::Sharded(channel.clone())]).await;
        // More than the 4 MiB that wait for a reader.
        let (count, payload) = (6_000u64, vec![b'x'; 1024]);
        let read = Arc::new(AtomicU64::new(0));
        let reading = read.clone();
        let reader = tokio::spawn(async move {
            for _ in 0..count {
                assert!(matches!(next(&mut fast).await, Event::Message(_)));
                reading.fetch_add(1, Ordering::Relaxed);
            }
        });
        for sent in 0..count {
            publish(&store, &channel, &payload).await?;
            // A busy machine must not make the fast one slow.
            while !reader.is_finished() && sent > read.load(Ordering::Relaxed) + 1_000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        reader.await?;
        let (mut heard, mut bytes) = (0, 0);
        loop {
            match next(&mut slow).await {
                Event::Message(message) => {
                    heard += 1;
                    bytes += message.payload.len() + message.channel.len();
                }
                event => {
                    assert_eq!(event, Event::Lost);
                    break;
                }
            }
        }
        assert!(heard < count && bytes <= 4 << 20, "{heard} messages, {bytes} bytes were kept");
        assert_eq!(next(&mut slow).await, Event::Resubscribed);
        publish(&store, &channel, b"after").await?;
        let Event::Message(message) = next(&mut slow).await else { panic!("no message") };
        assert_eq!(message.payload, b"after");
        Ok(())
    }

    async fn a_channel_is_left_when_its_last_listener_goes(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let channel = Keys::new(backend.namespace(), "news")?.entity("shared")?.channel("live");
        let mut first = opened(&store, [Listen::Sharded(channel.clone())]).await;
        for round in 0..20 {
            let second = opened(&store, [Listen::Sharded(channel.clone())]).await;
            assert_eq!(publish(&store, &channel, b"x").await?, 1, "both share a connection");
            drop(second);
            assert!(matches!(next(&mut first).await, Event::Message(_)), "round {round}");
        }
        drop(first);
        assert!(eventually(PATIENCE, async || matches!(publish(&store, &channel, b"x").await, Ok(0))).await);
        // The connection stays, and is used again.
        let mut again = opened(&store, [Listen::Sharded(channel.clone())]).await;
        publish(&store, &channel, b"again").await?;
        assert!(matches!(next(&mut again).await, Event::Message(_)));
        Ok(())
    }

    async fn changes_are_told_to_each_by_its_prefixes_also_if_they_overlap(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Keys::new(backend.namespace(), "cache")?;
        let inner = format!("{}{{a", backend.namespace().to_owned() + ":cache:");
        let outer = keys.prefix().expect("it has one");
        let mut narrow = opened(&store, [Listen::Changes(vec![inner.clone()])]).await;
        let mut wide = opened(&store, [Listen::Changes(vec![outer])]).await;
        let mut twin = opened(&store, [Listen::Changes(vec![inner])]).await;
        let other = Keys::new(backend.namespace(), "other")?;
        let mut elsewhere = opened(&store, [Listen::Changes(vec![other.prefix().expect("it has one")])]).await;
        // The wider prefix replaced the narrow one, on each node at its own time.
        assert_eq!(next(&mut narrow).await, Event::Lost);
        let next_change = async |subscription: &mut Subscription| loop {
            match next(subscription).await {
                Event::Lost | Event::Resubscribed => {}
                event => return event,
            }
        };
        let set = async |key: &redstart::key::Key| store.query::<()>(redis::cmd("SET").arg(key).arg(1)).await;
        let changed = |key: &redstart::key::Key| Event::Changed(vec![key.as_str().as_bytes().to_vec()]);
        let (a, b, c) = (keys.entity("b")?, keys.entity("a1")?, other.entity("c")?);
        for entity in [&a, &b, &c] {
            set(entity.key()).await?;
        }
        // Two nodes of a Cluster report in any order.
        let heard = [next(&mut wide).await, next(&mut wide).await];
        assert!(heard.contains(&changed(a.key())), "{heard:?}");
        assert!(heard.contains(&changed(b.key())), "{heard:?}");
        assert_eq!(next_change(&mut narrow).await, changed(b.key()));
        assert_eq!(next(&mut twin).await, changed(b.key()));
        assert_eq!(next(&mut elsewhere).await, changed(c.key()));
        drop((wide, elsewhere));
        set(b.key()).await?;
        assert_eq!(next(&mut narrow).await, changed(b.key()));
        assert_eq!(next(&mut twin).await, changed(b.key()));
        Ok(())
    }

    async fn subscriptions_come_and_go_at_random_and_each_hears_its_own(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keys = Keys::new(backend.namespace(), "churn")?;
        let mut tasks = JoinSet::new();
        for task in 0..8u64 {
            let (store, keys) = (store.clone(), keys.clone());
            tasks.spawn(async move {
                for round in 0..scale(15, "SUBSCRIPTION_ROUNDS") {
                    // Few channels, so that tasks meet on them.
                    let channel = keys.entity(&format!("{}", (task + round) % 5))?.channel("live");
                    let mut mine = opened(&store, [Listen::Sharded(channel.clone())]).await;
                    let word = format!("{task}-{round}");
                    publish(&store, &channel, word.as_bytes()).await?;
                    loop {
                        match next(&mut mine).await {
                            Event::Message(message) if message.payload == word.as_bytes() => break,
                            Event::Message(message) => assert_eq!(message.channel, channel.as_str()),
                            event => panic!("{event:?}"),
                        }
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        Ok(())
    }
}

/// Connections of stores to all of these servers. Those of the test itself come by the unix socket.
async fn connections(servers: &[&Server]) -> anyhow::Result<usize> {
    let mut count = 0;
    for server in servers {
        for kind in ["normal", "pubsub"] {
            let list: String = server.query(&["CLIENT", "LIST", "TYPE", kind]).await?;
            let of_store =
                |line: &&str| line.contains("addr=127.0.0.1:") && !line.contains("name=sentinel");
            count += list.lines().filter(of_store).count();
        }
    }
    Ok(count)
}

async fn kill_listeners(servers: &[&Server]) -> anyhow::Result<u64> {
    let mut killed = 0;
    for server in servers {
        killed += server
            .query::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .await?;
    }
    Ok(killed)
}

/// Many subscribers of all kinds hear of the loss of the connection, and of what comes after it.
async fn every_subscriber_hears_of_the_gap(url: &str, servers: &[&Server]) -> anyhow::Result<()> {
    let store = Store::connect(url).await?;
    let before = connections(servers).await?;
    let keys = Keys::new("app", "news")?;
    let mut subscribers = Vec::new();
    for n in 0..60 {
        let channel = keys.entity(&format!("{}", n % 40))?.channel("live");
        let mut to = vec![Listen::Sharded(channel.clone())];
        if n % 6 == 0 {
            to.push(Listen::Channel(format!("classic-{n}")));
        }
        if n % 10 == 0 {
            let prefixes = keys.prefix().into_iter().collect();
            to.push(Listen::Changes(prefixes));
        }
        subscribers.push((channel, opened(&store, to).await));
    }
    let used = connections(servers).await? - before;
    assert_eq!(used, servers.len(), "one more connection to each node");
    for _ in 0..3 {
        assert!(kill_listeners(servers).await? > 0);
        for (_, subscription) in &mut subscribers {
            until(subscription, &Event::Lost).await;
            until(subscription, &Event::Resubscribed).await;
        }
        for (channel, subscription) in &mut subscribers {
            let heard = eventually(PATIENCE, async || {
                publish(&store, channel, b"x").await.is_ok_and(|n| n > 0)
            });
            assert!(heard.await);
            while !matches!(next(subscription).await, Event::Message(_)) {}
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_killed_subscription_connection_is_a_gap_to_every_subscriber() -> anyhow::Result<()>
{
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        every_subscriber_hears_of_the_gap(&server.url(), &[&server]).await?;
    }
    let server = Server::builder(Kind::Redis).tls().start().await?;
    let ca = server.authority().expect("it has TLS").ca_file();
    let url = format!("{}?ca={}", server.url(), ca.display());
    every_subscriber_hears_of_the_gap(&url, &[&server]).await?;
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    let nodes: Vec<&Server> = cluster.nodes().iter().collect();
    every_subscriber_hears_of_the_gap(&cluster.url(), &nodes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_killed_subscription_connection_is_a_gap_behind_sentinels() -> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    let master = group.master().await?;
    every_subscriber_hears_of_the_gap(&group.url(), &[group.server(master)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_subscriptions_of_all_kinds_follow_a_cluster_failover() -> anyhow::Result<()> {
    let cluster = Cluster::start(Kind::Redis, 3, 1).await?;
    let store = Store::connect(&cluster.url()).await?;
    let keys = Keys::new("app", "news")?;
    let channel = keys.entity("x")?.channel("live");
    let mut sharded = opened(&store, [Listen::Sharded(channel.clone())]).await;
    let prefixes = keys.prefix().into_iter().collect();
    let mut changes = opened(&store, [Listen::Changes(prefixes)]).await;
    let mut classic = opened(&store, [Listen::Channel("classic".to_owned())]).await;
    let owner = cluster.owner(channel.slot()).await?;
    cluster.node(owner).kill9();
    until(&mut sharded, &Event::Lost).await;
    until(&mut changes, &Event::Lost).await;
    until(&mut sharded, &Event::Resubscribed).await;
    until(&mut changes, &Event::Resubscribed).await;
    let entity = keys.entity("x")?;
    let works = eventually(PATIENCE, async || {
        let mut set = redis::cmd("SET");
        set.arg(entity.key()).arg(1);
        store.query::<()>(&set).await.is_ok()
            && publish(&store, &channel, b"x").await.is_ok_and(|n| n > 0)
    });
    assert!(works.await);
    while !matches!(next(&mut sharded).await, Event::Message(_)) {}
    while !matches!(next(&mut changes).await, Event::Changed(_)) {}
    let mut publish = redis::cmd("PUBLISH");
    publish.arg("classic").arg("x");
    // If its node was the one that died, it is at another one by now.
    let hears = async { while !matches!(next(&mut classic).await, Event::Message(_)) {} };
    let tell = async {
        loop {
            let _ = store.query::<()>(&publish).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! { () = hears => {}, () = tell => {} }
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
}

#[test]
fn a_subscription_goes_on_in_another_runtime() -> anyhow::Result<()> {
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(Server::builder(Kind::Redis).start())?;
    let store = first.block_on(Store::connect(&server.url()))?;
    let channel = Keys::new("app", "news")?.entity("x")?.channel("live");
    let to = || [Listen::Sharded(channel.clone())];
    let mut moved = first.block_on(opened(&store, to()));
    // While the first runtime stands still, a subscription in the second one works.
    second.block_on(async {
        let mut own = opened(&store, to()).await;
        // The first call may lose its deadline, because the shared connection is in the first runtime.
        let told = eventually(PATIENCE, async || {
            publish(&store, &channel, b"x").await.is_ok_and(|n| n > 0)
        });
        assert!(told.await);
        assert!(matches!(next(&mut own).await, Event::Message(_)));
        anyhow::Ok(())
    })?;
    drop(first);
    second.block_on(async {
        until(&mut moved, &Event::Lost).await;
        until(&mut moved, &Event::Resubscribed).await;
        publish(&store, &channel, b"y").await?;
        loop {
            let Event::Message(message) = next(&mut moved).await else {
                panic!("no message")
            };
            // One that was published again, after its first call had lost its deadline.
            if message.payload != b"x" {
                assert_eq!(message.payload, b"y");
                break;
            }
        }
        anyhow::Ok(())
    })?;
    drop(second);
    // Without a runtime it ends; it does not hang.
    let end = futures_util::future::FutureExt::now_or_never(async {
        while moved.next().await.is_some() {}
    });
    assert_eq!(end, Some(()));
    Ok(())
}

/// The claim of "connections used by waiting locks", as a figure.
async fn waiting_locks_share_connections(url: &str, servers: &[&Server]) -> anyhow::Result<()> {
    use redstart::locking::Mutex;
    let locks = scale(2_000, "WAITING_LOCKS");
    // On a busy machine an answer may take longer than the deadline of a second; no claim here is about that.
    let patient = || Store::builder(url).deadline(PATIENCE).connect();
    let (holder, waiter) = (patient().await?, patient().await?);
    let mut guards = Vec::new();
    for n in 0..locks {
        let mutex = Mutex::builder(&holder, "orders", &n.to_string())
            .ttl(Duration::from_secs(300))
            .build()?;
        guards.push(mutex.try_lock().await?.expect("nobody has it"));
    }
    let before = connections(servers).await?;
    let mut waiting = JoinSet::new();
    for n in 0..locks {
        let mutex = Mutex::new(&waiter, "orders", &n.to_string())?;
        waiting.spawn(async move {
            mutex
                .lock(Duration::from_secs(300))
                .await
                .map(|got| got.is_some())
        });
    }
    let channels = async || {
        let mut count = 0;
        for server in servers {
            let names: Vec<String> = server
                .query(&["PUBSUB", "SHARDCHANNELS", "*"])
                .await
                .unwrap_or_default();
            count += names.len() as u64;
        }
        count
    };
    assert!(eventually(PATIENCE, async || channels().await == locks).await);
    let used = connections(servers).await? - before;
    figure(format!(
        "{locks} waiting locks use {used} connections to {} nodes",
        servers.len()
    ));
    assert!(
        (1..=servers.len() + 1).contains(&used),
        "{used} connections"
    );
    for guard in guards {
        let _ = guard.release().await?;
    }
    while let Some(got) = waiting.join_next().await {
        assert!(got??, "a waiter gets its lock");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_waiting_locks_use_one_more_connection_per_node() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        waiting_locks_share_connections(&server.url(), &[&server]).await?;
    }
    let cluster = Cluster::start(Kind::Valkey, 3, 0).await?;
    let nodes: Vec<&Server> = cluster.nodes().iter().collect();
    waiting_locks_share_connections(&cluster.url(), &nodes).await?;
    let group = Sentinel::start(Kind::Valkey).await?;
    let master = group.master().await?;
    waiting_locks_share_connections(&group.url(), &[group.server(master)]).await
}
