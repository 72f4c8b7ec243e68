//! Keys that look like a cache, and that no step may touch.

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{Budget, Declared, Library, Migration, Outcome, Plan, recognise};

/// `None` in Python.
const PICKLE: &[u8] = b"\x80\x04N.";

async fn set(store: &Store, key: &str, value: &[u8]) -> Result<()> {
    Ok(store.query(cmd("SET").arg(key).arg(value)).await?)
}

async fn left(store: &Store, key: &str) -> Result<i64> {
    Ok(store.query(cmd("PTTL").arg(key)).await?)
}

/// Pickles that an application keeps by itself are named as Django names its entries.
#[tokio::test]
async fn pickles_without_a_ttl_are_left_alone_until_somebody_says_that_they_are_a_cache()
-> Result<()> {
    let store = Store::connect("memory://").await?;
    for tenant in 1..=2 {
        for what in ["config", "rates"] {
            set(&store, &format!("tenant:{tenant}:{what}"), PICKLE).await?;
        }
    }
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    for item in &plan.items {
        assert!(item.confidence <= 0.7, "{item:?}");
        assert_eq!(item.declare, Some("cache"), "{item:?}");
        let refused = Migration::of(&store, item).map(|_| ());
        assert!(refused.unwrap_err().is_invalid(), "{item:?}");
    }
    for tenant in 1..=2 {
        assert_eq!(left(&store, &format!("tenant:{tenant}:config")).await?, -1);
    }
    Ok(())
}

/// Django's own entries without a TTL were stored so by somebody.
#[tokio::test]
async fn an_entry_of_django_without_a_ttl_needs_a_word_before_it_is_given_one() -> Result<()> {
    let store = Store::connect("memory://").await?;
    // Without a prefix of the application's own, Django's keys begin with a colon.
    for key in [":1:product:1", ":1:product:2"] {
        set(&store, key, PICKLE).await?;
    }
    let plan = Plan::of(&recognise(&store, &Budget::default()).await?);
    let item = plan.items.first().context("the cache")?;
    assert_eq!(item.library, Some(Library::DjangoCache));
    assert!(item.confidence > 0.7, "{item:?}");
    let cache = Migration::of(&store, item)?;
    let looked = cache.step(&mut |_| ()).await?;
    ensure!(matches!(looked, Outcome::Done(_)), "{looked:?}");
    assert!(cache.next().await.unwrap_err().is_invalid());
    assert!(cache.step(&mut |_| ()).await.unwrap_err().is_invalid());
    assert_eq!(left(&store, ":1:product:1").await?, -1);

    let declared = Migration::declared(&store, &item.subject, Declared::Cache)?;
    let given = declared.step(&mut |_| ()).await?;
    ensure!(matches!(given, Outcome::Done(_)), "{given:?}");
    for key in [":1:product:1", ":1:product:2"] {
        assert!(left(&store, key).await? > 0, "{key}");
    }
    // What was said is remembered.
    set(&store, ":1:product:3", PICKLE).await?;
    ensure!(matches!(
        declared.back(&mut |_| ()).await?,
        Outcome::Done(_)
    ));
    Ok(())
}

/// A star stands for an id. It does not reach what lies below, nor what has another shape.
#[tokio::test]
async fn only_entries_of_the_pattern_and_of_its_shape_are_given_a_ttl() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let tea = br#"{"name":"tea"}"#;
    let entries = ["product:1", "product:2", "product:3"];
    for key in entries {
        set(&store, key, tea).await?;
    }
    let others = [
        ("product:seq", &b"17"[..]),
        ("product:1:token", b"0cc175b9c0f1b6a831c399e269772661"),
        ("product:1:raw", tea),
        ("product:mail:id", b"4"),
        ("product:page", b"<html></html>"),
    ];
    for (key, value) in others {
        set(&store, key, value).await?;
    }
    let meta = cmd("HSET")
        .arg("product:mail:meta")
        .arg(&["version", "bullmq:5.81.5"])
        .take();
    let _: u64 = store.query(&meta).await?;
    // A lock of ours, whose name and value could be an entry's.
    let cache = Migration::declared(&store, "product:*", Declared::Cache)?;
    let looked = cache.step(&mut |_| ()).await?;
    let Outcome::Done(report) = looked else {
        anyhow::bail!("{looked:?}")
    };
    let told = report.found.join("\n");
    assert!(
        told.contains("3 entries, 3 of them without a TTL"),
        "{told}"
    );
    assert!(told.contains("6 keys are left out"), "{told}");
    let given = cache.step(&mut |_| ()).await?;
    ensure!(matches!(given, Outcome::Done(_)), "{given:?}");
    for key in entries {
        assert!(left(&store, key).await? > 0, "{key}");
    }
    for (key, _) in others {
        assert_eq!(left(&store, key).await?, -1, "{key}");
    }
    Ok(())
}

/// What a library keeps is its own, also where it looks like an entry.
#[tokio::test]
async fn what_a_library_keeps_is_given_no_ttl() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let session = br#"{"cookie":{"originalMaxAge":1000,"path":"/"}}"#;
    let keys = ["sess:a", "sess:b", "sess:c"];
    for key in keys {
        set(&store, key, session).await?;
    }
    let cache = Migration::declared(&store, "sess:*", Declared::Cache)?;
    for _ in ["shadow", "share"] {
        let outcome = cache.step(&mut |_| ()).await?;
        ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }
    for key in keys {
        assert_eq!(left(&store, key).await?, -1, "{key}");
    }
    Ok(())
}

/// Only the star of a subject is a wildcard.
#[tokio::test]
async fn a_bracket_in_a_subject_is_a_bracket() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let tea = br#"{"name":"tea"}"#;
    let keys = ["product[eu]:1", "product[eu]:2", "what?:1", r"back\slash:1"];
    let others = ["producte:1", "productu:2", "whats:1"];
    for key in keys.iter().chain(&others) {
        set(&store, key, tea).await?;
    }
    for subject in ["product[eu]:*", "what?:*", r"back\slash:*"] {
        let cache = Migration::declared(&store, subject, Declared::Cache)?;
        for _ in ["shadow", "share"] {
            let outcome = cache.step(&mut |_| ()).await?;
            ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
        }
    }
    for key in keys {
        assert!(left(&store, key).await? > 0, "{key}");
    }
    for key in others {
        assert_eq!(left(&store, key).await?, -1, "{key}");
    }
    Ok(())
}
