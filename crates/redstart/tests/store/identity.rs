//! Who a store is to its servers: names, credentials, and credentials that change.

use std::time::Duration;

use redstart::{
    Store,
    key::Keys,
    store::{
        Credentials, CredentialsFuture, CredentialsProvider, Event, Listen, RotatingCredentials,
    },
};
use redstart_testkit::{Kind, Server, eventually};

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
