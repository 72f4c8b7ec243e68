//! The steps for a cache of Django and for rate-limiter-flexible, while the library itself is at work on the same keys.

use anyhow::{Context as _, Result, ensure};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{
    Budget, Declared, Library, Migration, Outcome, Plan, PlanItem, StepReport, recognise,
};
use redstart_testkit::{Language, unique_namespace};
use serde_json::json;

use crate::{Side, dialogue::Dialogue, on};

async fn planned(store: &Store, prefix: &str, library: Library) -> Result<PlanItem> {
    let budget = Budget::default().matching(&format!("{prefix}:*"));
    let plan = Plan::of(&recognise(store, &budget).await?);
    let mut items = plan.items.into_iter();
    items
        .find(|item| item.library == Some(library))
        .with_context(|| format!("{library} is not in the plan"))
}

async fn step(migration: &Migration) -> Result<StepReport> {
    match migration.step(&mut |_| ()).await? {
        Outcome::Done(report) => Ok(report),
        other => anyhow::bail!("{other:?}"),
    }
}

async fn back(migration: &Migration) -> Result<()> {
    let outcome = migration.back(&mut |_| ()).await?;
    ensure!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    Ok(())
}

async fn django(side: Side) -> Result<()> {
    let store = side.store().await?;
    let prefix = unique_namespace("shop");
    let port = side.port.to_string();
    let mut python = Dialogue::start(Language::Python, "caches.py", &[&port, &prefix])?;
    let tea = json!({"name": "tea"});
    for (key, value, seconds) in [
        ("product:1", &tea, json!(600)),
        ("product:2", &tea, json!(600)),
        ("page:eternal", &tea, json!(null)),
        ("hits", &json!(5), json!(null)),
    ] {
        python.ask(json!(["set", key, value, seconds])).await?;
    }
    let left = async |key: &str| -> Result<i64> {
        let key = format!("{prefix}:1:{key}");
        Ok(store.query(cmd("PTTL").arg(key)).await?)
    };
    let item = planned(&store, &prefix, Library::DjangoCache).await?;
    assert_eq!(item.subject, format!("{prefix}:1:*"));
    let cache = Migration::declared(&store, &item.subject, Declared::Cache)?;
    let shadow = step(&cache).await?;
    assert_eq!(shadow.found[0], "3 entries, 1 of them without a TTL");
    assert_eq!(step(&cache).await?.changes, ["1 entries were given a TTL"]);
    assert!(left("page:eternal").await? > 0);
    assert_eq!(left("hits").await?, -1, "it may be a counter");
    // Django goes on, with the entries that were touched and with new ones.
    assert_eq!(python.ask(json!(["get", "page:eternal"])).await?, tea);
    assert_eq!(python.ask(json!(["incr", "hits"])).await?, 6);
    python.ask(json!(["set", "product:1", 7, 60])).await?;
    back(&cache).await?;
    back(&cache).await?;
    assert_eq!(left("page:eternal").await?, -1);
    let own = left("product:1").await?;
    assert!((1..=60_000).contains(&own), "{own}");
    assert_eq!(python.ask(json!(["get", "page:eternal"])).await?, tea);
    Ok(())
}
on!(django: the_steps_of_a_cache_are_unseen_by_django);

async fn limiter(side: Side) -> Result<()> {
    let store = side.store().await?;
    // Without digits, so that it does not look like an id.
    let letter = |c: char| {
        c.to_digit(10)
            .map_or(c, |digit| (b'a' + digit as u8) as char)
    };
    let prefix: String = unique_namespace("login").chars().map(letter).collect();
    let port = side.port.to_string();
    let options = json!({"keyPrefix": prefix, "points": 100, "duration": 3600}).to_string();
    let mut node = Dialogue::start(Language::Node, "limiter.js", &[&port, &options])?;
    for key in ["203.0.113.7", "203.0.113.8"] {
        assert_eq!(node.ask(json!(["consume", key])).await?["consumed"], 1);
    }
    let item = planned(&store, &prefix, Library::RateLimiterFlexible).await?;
    let migration = Migration::of(&store, &item)?;
    let key = "203.0.113.7";
    for consumed in [2, 3] {
        assert_eq!(step(&migration).await?.found, ["2 counters"]);
        assert_eq!(
            node.ask(json!(["consume", key])).await?["consumed"],
            consumed
        );
    }
    for consumed in [4, 5] {
        back(&migration).await?;
        assert_eq!(
            node.ask(json!(["consume", key])).await?["consumed"],
            consumed
        );
    }
    Ok(())
}
on!(limiter: the_steps_of_a_limiter_are_unseen_by_rate_limiter_flexible);
