//! Bad input is refused before anything is sent: the store here has no server.

use std::time::Duration;

use redstart::{
    Error, Store,
    key::Layout,
    locking::{
        FairMutex, FenceToken, FencedValues, Leader, LegacyLock, MAX_TTL, Mutex, Redlock, RwLock,
        Semaphore,
    },
};

use crate::permits;

async fn nowhere() -> Store {
    Store::builder("redis://127.0.0.1:1")
        .lazy()
        .connect()
        .await
        .expect("a lazy store does not dial")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, with: &str) {
    let error = result.expect_err("it was accepted");
    assert!(error.is_config(), "{error}");
    assert!(error.to_string().contains(with), "{error}");
}

#[tokio::test]
async fn leases_out_of_the_limits_are_refused_by_every_lock() {
    let store = nowhere().await;
    for ttl in [
        Duration::ZERO,
        Duration::from_millis(1),
        MAX_TTL + Duration::from_secs(1),
        Duration::MAX,
    ] {
        refused(Mutex::builder(&store, "app", "x").ttl(ttl).build(), "lease");
        refused(
            Mutex::builder(&store, "app", "x")
                .unfenced()
                .ttl(ttl)
                .build(),
            "lease",
        );
        refused(
            FairMutex::builder(&store, "app", "x").ttl(ttl).build(),
            "lease",
        );
        refused(
            RwLock::builder(&store, "app", "x").ttl(ttl).build(),
            "lease",
        );
        refused(
            Semaphore::builder(&store, "app", "x", permits(1))
                .ttl(ttl)
                .build(),
            "lease",
        );
        refused(
            Leader::builder(&store, "app", "x").ttl(ttl).build(),
            "lease",
        );
        refused(
            LegacyLock::builder(&store, "app", "x").ttl(ttl).build(),
            "lease",
        );
        let stores = [nowhere().await, nowhere().await, nowhere().await];
        refused(
            Redlock::builder(stores, "app", "x").ttl(ttl).build(),
            "lease",
        );
    }
}

#[tokio::test]
async fn empty_and_endless_names_are_refused_by_every_lock() {
    let store = nowhere().await;
    let long = "x".repeat(1025);
    for name in ["", &long] {
        refused(Mutex::builder(&store, "app", name).build(), "name");
        refused(FairMutex::builder(&store, "app", name).build(), "name");
        refused(RwLock::builder(&store, "app", name).build(), "name");
        refused(
            Semaphore::builder(&store, "app", name, permits(1)).build(),
            "name",
        );
        refused(Leader::builder(&store, "app", name).build(), "name");
        refused(LegacyLock::builder(&store, "app", name).build(), "name");
        refused(Leader::builder(&store, "app", "x").id(name).build(), "id");
        let stores = [nowhere().await, nowhere().await, nowhere().await];
        refused(Redlock::builder(stores, "app", name).build(), "name");
    }
    for namespace in ["", "a b", "{a}"] {
        refused(Mutex::builder(&store, namespace, "x").build(), "namespace");
        refused(FencedValues::new(&store, namespace, "values"), "namespace");
        refused(FencedValues::new(&store, "app", namespace), "name");
    }
    let broken_tag = Layout::new(|name| format!("a{{{name}"));
    let lock = LegacyLock::builder(&store, "app", "b").layout(broken_tag);
    refused(lock.build(), "hash tag");
}

#[tokio::test]
async fn numbers_out_of_the_limits_are_refused() {
    let store = nowhere().await;
    refused(
        Semaphore::new(&store, "app", "x", Semaphore::MAX_PERMITS.saturating_add(1)),
        "permits",
    );
    for label in ["", "a+", "a\nb", &"x".repeat(129)] {
        let mutex = Mutex::builder(&store, "app", "x").label(label);
        refused(mutex.build(), "label");
    }
    refused(FenceToken::new(0), "token");
    refused(FenceToken::new(u64::MAX), "token");
    let skew = Duration::from_secs(86_401);
    refused(
        LegacyLock::builder(&store, "app", "x").skew(skew).build(),
        "day",
    );
}

#[tokio::test]
async fn too_few_or_equal_servers_make_no_quorum() {
    for n in [0, 1, 2, 4, 33] {
        let mut stores = Vec::new();
        for _ in 0..n {
            stores.push(nowhere().await);
        }
        refused(Redlock::builder(stores, "app", "x").build(), "servers");
    }
    let one = nowhere().await;
    refused(
        Redlock::builder([one.clone(), nowhere().await, one], "app", "x").build(),
        "twice",
    );
    for timeout in [Duration::ZERO, Duration::from_secs(10)] {
        let stores = [nowhere().await, nowhere().await, nowhere().await];
        refused(
            Redlock::builder(stores, "app", "x")
                .server_timeout(timeout)
                .build(),
            "timeout",
        );
    }
}
