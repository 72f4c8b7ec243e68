//! Who a store is to its servers: names, credentials, and credentials that change.

use std::time::Duration;

use redstart::{
    Store,
    counting::{Counter, Keep},
    key::Keys,
    limiting::{Limiter, Quota},
    locking::Mutex,
    ranking::Leaderboard,
    store::{
        Credentials, CredentialsFuture, CredentialsProvider, Event, Listen, RotatingCredentials,
    },
};
use redstart_testkit::{Cluster, Kind, Sentinel, Server, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// The fields of the store's connections, by the server: id, name, user.
async fn clients(server: &Server) -> anyhow::Result<Vec<(u64, String, String)>> {
    let mut found = Vec::new();
    for kind in ["normal", "pubsub"] {
        let list: String = server.query(&["CLIENT", "LIST", "TYPE", kind]).await?;
        for line in list.lines().filter(|line| line.contains("addr=127.0.0.1:")) {
            let field = |name: &str| {
                let words = line.split(' ');
                let mut values = words.filter_map(|word| word.strip_prefix(name));
                values.next().unwrap_or_default().to_owned()
            };
            found.push((field("id=").parse()?, field("name="), field("user=")));
        }
    }
    found.sort();
    Ok(found)
}

async fn next(subscription: &mut redstart::store::Subscription) -> Event {
    match tokio::time::timeout(PATIENCE, subscription.next()).await {
        Ok(Some(event)) => event,
        other => panic!("no event: {other:?}"),
    }
}

#[tokio::test]
async fn every_connection_carries_the_clients_name() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    for by_url in [true, false] {
        let store = if by_url {
            Store::connect(&format!("{}?client_name=orders", server.url())).await?
        } else {
            Store::builder(&server.url())
                .client_name("orders")
                .connect()
                .await?
        };
        let entity = Keys::new("app", "x")?.entity("x")?;
        let channel = entity.channel("live");
        let mut subscription = store.subscribe([Listen::Sharded(channel)]).await?;
        assert_eq!(next(&mut subscription).await, Event::Subscribed);
        let mut own = store.dedicated(entity.key());
        own.query::<()>(&redis::cmd("PING"), Duration::ZERO).await?;
        let all = clients(&server).await?;
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all.iter().all(|(_, name, _)| name == "orders"), "{all:?}");
        drop((own, subscription, store));
        assert!(
            eventually(PATIENCE, async || clients(&server)
                .await
                .is_ok_and(|all| all.is_empty()))
            .await
        );
    }
    for bad in ["two words", ""] {
        let refused = Store::builder(&server.url())
            .client_name(bad)
            .connect()
            .await;
        assert!(refused.is_err_and(|error| error.is_config()));
    }
    Ok(())
}

#[tokio::test]
async fn new_credentials_are_presented_on_open_connections() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        let user = async |name: &str, password: &str| {
            let password = format!(">{password}");
            server
                .query::<()>(&[
                    "ACL",
                    "SETUSER",
                    name,
                    "on",
                    "resetpass",
                    &password,
                    "~*",
                    "&*",
                    "+@all",
                ])
                .await
        };
        user("ann", "one").await?;
        let credentials = RotatingCredentials::new(Credentials::new(Some("ann"), "one"));
        let store = Store::builder(&server.url())
            .credentials_provider(credentials.clone())
            .connect()
            .await?;
        let entity = Keys::new("app", "x")?.entity("x")?;
        let channel = entity.channel("live");
        let mut subscription = store.subscribe([Listen::Sharded(channel.clone())]).await?;
        assert_eq!(next(&mut subscription).await, Event::Subscribed);
        let mut own = store.dedicated(entity.key());
        own.query::<()>(redis::cmd("WATCH").arg(entity.key()), Duration::ZERO)
            .await?;
        let before = clients(&server).await?;
        assert_eq!(before.len(), 3);
        assert!(
            before.iter().all(|(_, _, user)| user == "ann"),
            "{before:?}"
        );

        // Announced before the server knows them: they are presented again until it does.
        credentials.rotate(Credentials::new(Some("bob"), "two"));
        store.query::<()>(redis::cmd("SET").arg("k").arg(1)).await?;
        user("bob", "two").await?;
        let renewed = eventually(PATIENCE, async || {
            clients(&server).await.is_ok_and(|all| {
                all.iter()
                    .any(|(id, _, user)| user == "bob" && before.iter().any(|old| old.0 == *id))
            })
        });
        assert!(
            renewed.await,
            "the shared connection has the new user and stays open"
        );
        credentials.rotate(Credentials::new(Some("bob"), "two"));
        let all_shared = eventually(PATIENCE, async || {
            clients(&server).await.is_ok_and(|all| {
                let bobs = all.iter().filter(|(_, _, user)| user == "bob");
                bobs.filter(|(id, ..)| before.iter().any(|old| old.0 == *id))
                    .count()
                    == 2
            })
        });
        assert!(all_shared.await, "the subscription's connection too");

        // A connection with a transaction keeps its user until that has ended; the next use is by a new connection.
        own.query::<()>(&redis::cmd("UNWATCH"), Duration::ZERO)
            .await?;
        let who: String = own
            .query(redis::cmd("ACL").arg("WHOAMI"), Duration::ZERO)
            .await?;
        assert_eq!(who, "bob");
        store
            .query::<()>(redis::cmd("SPUBLISH").arg(&channel).arg("x"))
            .await?;
        assert!(
            matches!(next(&mut subscription).await, Event::Message(_)),
            "without a gap"
        );

        // The old user is gone, and new connections are bob's.
        server.query::<()>(&["ACL", "DELUSER", "ann"]).await?;
        server
            .query::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await?;
        let mut set = redis::cmd("SET");
        set.arg("k").arg(2);
        assert!(eventually(PATIENCE, async || store.query::<()>(&set).await.is_ok()).await);
    }
    Ok(())
}

/// A user that may do everything.
async fn set_user(server: &Server, name: &str, password: &str) -> anyhow::Result<()> {
    let password = format!(">{password}");
    let words = [
        "ACL",
        "SETUSER",
        name,
        "on",
        "resetpass",
        &password,
        "~*",
        "&*",
        "+@all",
    ];
    server.query::<()>(&words).await
}

/// The connections of a store with this client name, by the server: id and user.
async fn connections(server: &Server, of: &str) -> anyhow::Result<Vec<(u64, String)>> {
    let all = clients(server).await?.into_iter();
    Ok(all
        .filter(|(_, name, _)| name == of)
        .map(|(id, _, user)| (id, user))
        .collect())
}

#[tokio::test]
async fn new_credentials_are_presented_to_all_nodes_of_a_cluster() -> anyhow::Result<()> {
    for kind in [Kind::Redis, Kind::Valkey] {
        let cluster = Cluster::start(kind, 3, 0).await?;
        for node in cluster.nodes() {
            set_user(node, "ann", "one").await?;
            set_user(node, "bob", "two").await?;
        }
        let credentials = RotatingCredentials::new(Credentials::new(Some("ann"), "one"));
        let store = Store::builder(&cluster.url())
            .client_name("orders")
            .credentials_provider(credentials.clone())
            .connect()
            .await?;
        // Every master is asked.
        store.health().await?;
        let mut before = Vec::new();
        for node in cluster.nodes() {
            let open = connections(node, "orders").await?;
            assert!(
                !open.is_empty() && open.iter().all(|(_, user)| user == "ann"),
                "{open:?}"
            );
            before.push(open);
        }
        credentials.rotate(Credentials::new(Some("bob"), "two"));
        for (node, before) in cluster.nodes().iter().zip(&before) {
            let renewed = eventually(PATIENCE, async || {
                let open = connections(node, "orders").await.unwrap_or_default();
                let is_kept = |(id, user): &(u64, String)| {
                    user == "bob" && before.iter().any(|(old, _)| old == id)
                };
                !open.is_empty() && open.iter().all(is_kept)
            });
            assert!(renewed.await, "open connections have the new user");
        }
        // The old user is gone, and so are the connections.
        for node in cluster.nodes() {
            node.query::<()>(&["ACL", "DELUSER", "ann"]).await?;
            let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
            node.query::<()>(&kill).await?;
        }
        for n in 0..30 {
            let mut set = redis::cmd("SET");
            set.arg(n).arg(1);
            let written = eventually(PATIENCE, async || store.query::<()>(&set).await.is_ok());
            assert!(written.await, "new connections have the new user");
        }
    }
    Ok(())
}

#[tokio::test]
async fn fault_new_credentials_are_presented_behind_sentinels_and_to_the_next_master()
-> anyhow::Result<()> {
    let group = Sentinel::start(Kind::Redis).await?;
    for server in group.servers() {
        set_user(server, "ann", "one").await?;
        set_user(server, "bob", "two").await?;
    }
    let credentials = RotatingCredentials::new(Credentials::new(Some("ann"), "one"));
    let store = Store::builder(&group.url())
        .client_name("orders")
        .credentials_provider(credentials.clone())
        .connect()
        .await?;
    store.query::<()>(&redis::cmd("PING")).await?;
    let master = group.server(group.master().await?);
    let before = connections(master, "orders").await?;
    assert!(
        !before.is_empty() && before.iter().all(|(_, user)| user == "ann"),
        "{before:?}"
    );
    credentials.rotate(Credentials::new(Some("bob"), "two"));
    let renewed = eventually(PATIENCE, async || {
        let open = connections(master, "orders").await.unwrap_or_default();
        let is_kept =
            |(id, user): &(u64, String)| user == "bob" && before.iter().any(|(old, _)| old == id);
        !open.is_empty() && open.iter().all(is_kept)
    });
    assert!(renewed.await, "open connections have the new user");
    // The next master does not know the old one.
    for server in group.servers() {
        server.query::<()>(&["ACL", "DELUSER", "ann"]).await?;
    }
    let next = group.server(group.failover().await?);
    let follows = eventually(PATIENCE, async || {
        drop(store.query::<()>(&redis::cmd("PING")).await);
        let open = connections(next, "orders").await.unwrap_or_default();
        !open.is_empty() && open.iter().all(|(_, user)| user == "bob")
    });
    assert!(follows.await, "the next master is given the new user");
    store.query::<()>(redis::cmd("SET").arg("k").arg(1)).await?;
    Ok(())
}

struct Failing;

impl CredentialsProvider for Failing {
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(async { Err("the vault is closed".into()) })
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_an_error_of_the_connection() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let failed = Store::builder(&server.url())
        .credentials_provider(Failing)
        .connect()
        .await;
    let error = failed.expect_err("there are no credentials");
    assert!(error.is_unavailable(), "{error}");
    let text = format!(
        "{error:?} {}",
        std::error::Error::source(&error)
            .map(ToString::to_string)
            .unwrap_or_default()
    );
    assert!(text.contains("the vault is closed"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_handle_has_its_own_deadline() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=20s", server.url())).await?;
    let hasty = store.within(Duration::from_millis(80));
    assert_eq!(
        (hasty.deadline(), store.deadline()),
        (Duration::from_millis(80), Duration::from_secs(20))
    );
    store.query::<()>(&redis::cmd("PING")).await?;
    server.pause()?;
    let begun = std::time::Instant::now();
    let late = hasty.query::<()>(&redis::cmd("PING")).await;
    assert!(late.is_err_and(|error| error.is_timeout() || error.is_unavailable()));
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "it did not wait for the store's own deadline"
    );
    server.resume()?;
    assert!(
        eventually(PATIENCE, async || store
            .query::<()>(&redis::cmd("PING"))
            .await
            .is_ok())
        .await
    );
    Ok(())
}

/// What is made with a handle keeps its deadline: patterns of several families, on a server and on a cluster that hang.
#[tokio::test]
async fn a_pattern_has_the_deadline_of_the_handle_that_it_was_made_with() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Valkey).start().await?;
    let cluster = Cluster::start(Kind::Redis, 3, 0).await?;
    for (url, servers) in [
        (server.url(), std::slice::from_ref(&server)),
        (cluster.url(), cluster.nodes()),
    ] {
        let (own, deadline) = (Duration::from_secs(60), Duration::from_millis(80));
        let store = Store::builder(&url).deadline(own).connect().await?;
        let hasty = store.within(deadline);
        let limiter = Limiter::fixed_window(&hasty, "app", "api", Quota::per_day(9)).build()?;
        let mutex = Mutex::new(&hasty, "app", "m")?;
        let counter = Counter::new(&hasty, "app", "n", Keep::Forever)?;
        let board = Leaderboard::new(&hasty, "app", "b")?;
        // All of them work before.
        assert!(limiter.check("ann", 1).await?.is_allowed());
        servers.iter().try_for_each(Server::pause)?;
        let begun = std::time::Instant::now();
        let late = [
            ("limiter", limiter.check("ann", 1).await.map(drop)),
            (
                "limiter, many",
                limiter
                    .check_many(&[("ann", 1), ("bob", 1)])
                    .await
                    .remove(1)
                    .map(drop),
            ),
            ("mutex", mutex.try_lock().await.map(drop)),
            ("counter", counter.add("x", 1).await.map(drop)),
            ("leaderboard", board.rank("ann").await.map(drop)),
        ];
        servers.iter().try_for_each(Server::resume)?;
        for (what, outcome) in late {
            assert!(outcome.is_err_and(|error| error.is_timeout()), "{what}");
        }
        assert!(
            begun.elapsed() < own / 2,
            "a pattern waited for the store's own deadline"
        );
    }
    Ok(())
}
