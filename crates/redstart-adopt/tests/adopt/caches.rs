//! Cache entries that Django and a plain client write and read beside us.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use redis::cmd;
use redstart::Store;
use redstart_adopt::cache::{EntryFormat, SharedCache};
use redstart_testkit::{Language, figure, scale, unique_namespace, wait_until};
use serde_json::{Value, json};

use crate::{Side, dialogue::Dialogue, long, on};

const HOUR: Duration = Duration::from_secs(3600);

/// Fails if it is called: the entry must come from the cache.
async fn no_load() -> Result<Value> {
    Err(anyhow!("loaded although there is an entry"))
}

async fn beside_django(side: Side) -> Result<()> {
    let store = side.store().await?;
    let prefix = unique_namespace("shop");
    let port = side.port.to_string();
    let mut python = Dialogue::start(Language::Python, "caches.py", &[&port, &prefix])?;
    let django = SharedCache::<Value>::builder(&store, HOUR)
        .django(&prefix, 1)
        .build()?;
    let values = [
        json!(null),
        json!(true),
        json!(-7),
        json!(1_000_000_000_000_i64),
        json!(2.5),
        json!("ä tea"),
        json!(["a", 1, ["a"], {}]),
        json!({"name": "tea", "price": 7.25, "tags": ["name", "tea", ""], "stock": {"a": -1}}),
    ];
    for (n, value) in values.iter().enumerate() {
        // Written by Django, read here.
        python
            .ask(json!(["set", format!("theirs-{n}"), value, 600]))
            .await?;
        assert_eq!(
            &django.get_or_load(&format!("theirs-{n}"), no_load).await?,
            value
        );
        // Written here, read by Django.
        let ours = format!("ours-{n}");
        let written = value.clone();
        let loaded = django
            .get_or_load(&ours, || async { anyhow::Ok(written) })
            .await?;
        assert_eq!(&loaded, value);
        assert_eq!(&python.ask(json!(["get", ours])).await?, value);
    }
    // Numbers stay numbers that Django can add to.
    assert_eq!(python.ask(json!(["incr", "ours-2"])).await?, -6);
    assert_eq!(django.get("ours-2").await?, Some(json!(-6)));
    // An entry that cannot be read here is loaded, and left as it is.
    python.ask(json!(["set-date", "date"])).await?;
    let loaded = django
        .get_or_load("date", || async { anyhow::Ok(json!("loaded")) })
        .await?;
    assert_eq!(loaded, "loaded");
    assert_eq!(python.ask(json!(["get", "date"])).await?, "2026-11-16");

    let plain = SharedCache::<Value>::builder(&store, HOUR)
        .prefix(&prefix)
        .build()?;
    python
        .ask(json!(["plain-set", "p", values[7], null]))
        .await?;
    assert_eq!(plain.get_or_load("p", no_load).await?, values[7]);
    plain.put("q", &values[7]).await?;
    assert_eq!(python.ask(json!(["plain-get", "q"])).await?, values[7]);
    Ok(())
}
on!(beside_django: entries_of_django_and_of_plain_json_are_understood_on_both_sides);

/// Many callers of two processes miss at the same time; old readers look on.
async fn one_load(side: Side) -> Result<()> {
    let (keys, callers) = (scale(5, "adopt cache keys"), 40);
    let prefix = format!("{}:", unique_namespace("stampede"));
    let port = side.port.to_string();
    let mut old = Dialogue::start(Language::Python, "caches.py", &[&port, &prefix])?;
    let two = [side.store().await?, side.store().await?];
    let loads = Arc::new(AtomicU64::new(0));
    for key in 0..keys {
        let mut tasks = Vec::new();
        let caches = two.each_ref().map(|store| {
            SharedCache::<String>::builder(store, HOUR)
                .prefix(&prefix)
                .lease(long())
                .build()
        });
        for cache in caches {
            let cache = cache?;
            for _ in 0..callers / 2 {
                let (cache, loads) = (cache.clone(), loads.clone());
                tasks.push(tokio::spawn(async move {
                    let load = || async {
                        loads.fetch_add(1, Ordering::Relaxed);
                        // The others arrive meanwhile; nothing waits for this time to pass.
                        tokio::time::sleep(Duration::from_millis(30)).await;
                        anyhow::Ok("tea".to_owned())
                    };
                    cache.get_or_load(&key.to_string(), load).await
                }));
            }
        }
        let seen = old.ask(json!(["plain-get", key.to_string()])).await?;
        assert!(seen.is_null() || seen == "tea", "{seen}");
        for task in tasks {
            assert_eq!(task.await??, "tea");
        }
        assert_eq!(old.ask(json!(["plain-get", key.to_string()])).await?, "tea");
        assert_eq!(loads.load(Ordering::Relaxed), key + 1);
    }
    figure(format!(
        "{keys} keys missed by {callers} callers of two clients at once, {keys} loads"
    ));
    Ok(())
}
on!(one_load: of_many_callers_that_miss_one_loads);

#[tokio::test]
async fn what_was_loaded_before_an_invalidation_is_not_stored() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let cache = SharedCache::<u64>::builder(&store, HOUR).build()?;
    let other = cache.clone();
    let load = || async move {
        let _ = other.invalidate("k").await?;
        anyhow::Ok(1)
    };
    assert_eq!(cache.get_or_load("k", load).await?, 1);
    assert_eq!(cache.get("k").await?, None);
    assert_eq!(cache.get_or_load("k", || async { anyhow::Ok(2) }).await?, 2);
    assert_eq!(cache.get("k").await?, Some(2));
    assert!(cache.invalidate("k").await?);
    assert!(!cache.invalidate("k").await?);
    Ok(())
}

#[tokio::test]
async fn a_failed_load_is_one_callers_error_and_leaves_no_lease() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let cache = SharedCache::<u64>::builder(&store, HOUR)
        .prefix("p:")
        .lease(HOUR)
        .build()?;
    let failed = cache
        .get_or_load("k", || async { Err(anyhow!("no luck")) })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "no luck");
    assert_eq!(store.scan("*").await?, [""; 0]);
    assert_eq!(cache.get_or_load("k", || async { anyhow::Ok(3) }).await?, 3);
    assert_eq!(store.scan("*").await?, ["p:k"]);
    Ok(())
}

/// The process that loads is gone: another one loads when its lease has ended.
#[tokio::test]
async fn a_lease_of_a_dead_process_ends() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let cache = SharedCache::<u64>::builder(&store, HOUR)
        .lease(HOUR)
        .build()?;
    let stuck = tokio::spawn({
        let cache = cache.clone();
        async move {
            cache
                .get_or_load("k", std::future::pending::<Result<u64>>)
                .await
        }
    });
    wait_until("the first to load", long(), async || {
        let leases = store.scan("{k}:fill").await.ok()?;
        (!leases.is_empty()).then_some(())
    })
    .await?;
    stuck.abort();
    let _ = stuck.await;
    let waiter = tokio::spawn({
        let cache = cache.clone();
        async move { cache.get_or_load("k", || async { anyhow::Ok(4) }).await }
    });
    store.advance(2 * HOUR)?;
    assert_eq!(tokio::time::timeout(long(), waiter).await???, 4);
    Ok(())
}

#[tokio::test]
async fn an_entry_that_ends_soon_is_refreshed_by_one_caller() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let cache = SharedCache::<u64>::builder(&store, HOUR)
        .refresh_ahead(HOUR / 4)
        .build()?;
    cache.put("k", &1).await?;
    let load = || async { anyhow::Ok(2) };
    assert_eq!(cache.get_or_load("k", load).await?, 1);
    // At least six minutes before its end, and at most twelve.
    store.advance(Duration::from_secs(48 * 60))?;
    // Somebody else refreshes it: the old value is served.
    let () = store.query(cmd("SET").arg("{k}:fill").arg("other")).await?;
    assert_eq!(cache.get_or_load("k", load).await?, 1);
    let () = store.query(cmd("DEL").arg("{k}:fill")).await?;
    // One that fails serves the old value too.
    assert_eq!(
        cache
            .get_or_load("k", || async { Err(anyhow!("no luck")) })
            .await?,
        1
    );
    assert_eq!(cache.get_or_load("k", load).await?, 2);
    assert_eq!(cache.get("k").await?, Some(2));
    let left: u64 = store.query(cmd("TTL").arg("k")).await?;
    assert!(left > 3000, "{left}");
    let refused = SharedCache::<u64>::builder(&store, HOUR)
        .refresh_ahead(HOUR)
        .build();
    assert!(refused.unwrap_err().is_invalid());
    Ok(())
}

/// Pickles and JSON are not mistaken for each other.
#[tokio::test]
async fn entries_of_another_format_are_not_read() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let json = SharedCache::<String>::builder(&store, HOUR).build()?;
    let pickle = SharedCache::<String>::builder(&store, HOUR)
        .format(EntryFormat::Pickle)
        .build()?;
    json.put("a", &"tea".to_owned()).await?;
    pickle.put("b", &"tea".to_owned()).await?;
    assert_eq!((pickle.get("a").await?, json.get("b").await?), (None, None));
    let loaded = pickle
        .get_or_load("a", || async { anyhow::Ok("new".to_owned()) })
        .await?;
    assert_eq!(
        (
            loaded.as_str(),
            json.get("a").await?.context("kept")?.as_str()
        ),
        ("new", "tea")
    );
    Ok(())
}

/// What an old program stores during a load is newer, and may be something that cannot be read here.
async fn stored_meanwhile(side: Side) -> Result<()> {
    /// A date, pickled: no plain data.
    const THEIRS: &[u8] = b"\x80\x02cdatetime\ndate\nU\x04\x07\xea\x0b\x10\x85R.";
    let store = side.store().await?;
    let prefix = format!("{}:", unique_namespace("meanwhile"));
    let cache = SharedCache::<String>::builder(&store, HOUR)
        .prefix(&prefix)
        .format(EntryFormat::Pickle)
        .refresh_ahead(HOUR / 4)
        .build()?;
    let entry = async |key: &str| -> Result<Option<Vec<u8>>> {
        Ok(store
            .query(cmd("GET").arg(format!("{prefix}{key}")))
            .await?)
    };
    let write = async |key: &str, value: &[u8]| -> Result<()> {
        let key = format!("{prefix}{key}");
        // It ends so soon that it is refreshed at once.
        let set = cmd("SET").arg(key).arg(value).arg("EX").arg(600).take();
        Ok(store.query(&set).await?)
    };
    let readable = |text: &str| [b"\x80\x02X\x03\0\0\0", text.as_bytes(), b"."].concat();
    for theirs in [THEIRS.to_vec(), readable("new")] {
        for before in [None, Some(readable("old"))] {
            let key = format!("{}-{}", theirs.len(), before.is_some());
            if let Some(before) = &before {
                write(&key, before).await?;
            }
            let load = || async {
                write(&key, &theirs).await?;
                anyhow::Ok("ours".to_owned())
            };
            assert_eq!(cache.get_or_load(&key, load).await?, "ours");
            assert_eq!(entry(&key).await?.as_ref(), Some(&theirs), "{key}");
            let lease = cmd("EXISTS").arg(format!("{{{prefix}{key}}}:fill")).take();
            assert!(!store.query::<bool>(&lease).await?, "{key}");
        }
    }
    // One that ended meanwhile, and one that is as it was, are stored.
    write("ended", &readable("old")).await?;
    let load = || async {
        let _: u64 = store
            .query(cmd("DEL").arg(format!("{prefix}ended")))
            .await?;
        anyhow::Ok("ours".to_owned())
    };
    assert_eq!(cache.get_or_load("ended", load).await?, "ours");
    write("same", &readable("old")).await?;
    let load = || async { anyhow::Ok("ours".to_owned()) };
    assert_eq!(cache.get_or_load("same", load).await?, "ours");
    for key in ["ended", "same"] {
        assert_eq!(cache.get(key).await?.as_deref(), Some("ours"), "{key}");
    }
    // Nor is a value of another type touched.
    let load = || async {
        let _: u64 = store
            .query(cmd("RPUSH").arg(format!("{prefix}list")).arg(1))
            .await?;
        anyhow::Ok("ours".to_owned())
    };
    assert_eq!(cache.get_or_load("list", load).await?, "ours");
    let kind: String = store
        .query(cmd("TYPE").arg(format!("{prefix}list")))
        .await?;
    assert_eq!(kind, "list");
    Ok(())
}
on!(stored_meanwhile: an_entry_that_is_stored_during_a_load_is_not_overwritten);
