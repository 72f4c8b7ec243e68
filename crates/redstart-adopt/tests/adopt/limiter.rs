//! rate-limiter-flexible and our limiter on the same keys.

use std::{num::NonZeroU32, time::Duration};

use anyhow::{Context as _, Result};
use redstart::Store;
use redstart_adopt::limiter::{FlexibleLimiter, Points};
use redstart_testkit::{Language, figure, scale, unique_namespace};
use serde_json::{Value, json};

use crate::{Side, dialogue::Dialogue, on};

const HOUR: Duration = Duration::from_secs(3600);

fn limiter(
    store: &Store,
    points: u32,
    prefix: &str,
) -> redstart_adopt::limiter::FlexibleLimiterBuilder {
    let points = NonZeroU32::new(points).unwrap_or(NonZeroU32::MIN);
    FlexibleLimiter::builder(store, points, HOUR).key_prefix(prefix)
}

/// What Node shows, without the time, which passes.
fn shown(points: &Points) -> Value {
    json!({"allowed": points.is_allowed(), "consumed": points.consumed, "remaining": points.remaining})
}

fn without_time(mut answer: Value) -> (Value, Option<f64>) {
    let ms = answer
        .as_object_mut()
        .and_then(|answer| answer.remove("ms"));
    (answer, ms.and_then(|ms| ms.as_f64()))
}

/// Both sides consume at the same time: together they are allowed exactly the points, and every request counts once.
async fn common_counts(side: Side) -> Result<()> {
    let requests = scale(300, "adopt limiter requests");
    let points = requests / 2;
    let store = side.store().await?;
    let prefix = unique_namespace("login");
    let options = json!({"keyPrefix": prefix, "points": points, "duration": 3600}).to_string();
    let port = side.port.to_string();
    let mut node = Dialogue::start(Language::Node, "limiter.js", &[&port, &options])?;
    // It is up, and its first request has begun the window.
    let first = node.ask(json!(["consume", "k"])).await?;
    assert_eq!(first["consumed"], 1);
    let ours = limiter(&store, u32::try_from(points)?, &prefix).build()?;
    let here = tokio::spawn({
        let ours = ours.clone();
        async move {
            let mut allowed = 0;
            for _ in 0..requests {
                allowed += u64::from(ours.consume("k", 1).await?.is_allowed());
            }
            anyhow::Ok(allowed)
        }
    });
    let there = node.ask(json!(["many", "k", requests])).await?;
    let there = there.as_u64().context("a count")?;
    let here = here.await??;
    assert_eq!(1 + here + there, points);
    let now = ours.get("k").await?.context("it was consumed")?;
    assert_eq!(now.consumed.unsigned_abs(), 1 + 2 * requests);
    assert!(now.reset.is_some_and(|reset| reset <= HOUR), "{now:?}");
    figure(format!(
        "{} requests from Node and Rust on one key, {points} points, exactly {points} allowed",
        1 + 2 * requests
    ));
    Ok(())
}
on!(common_counts: node_and_rust_together_are_allowed_exactly_the_points);

/// The same calls here and there leave the same counter and say the same.
async fn same_answers(side: Side) -> Result<()> {
    let store = side.store().await?;
    let prefix = unique_namespace("same");
    let options =
        json!({"keyPrefix": prefix, "points": 3, "duration": 3600, "blockDuration": 7200})
            .to_string();
    let port = side.port.to_string();
    let mut node = Dialogue::start(Language::Node, "limiter.js", &[&port, &options])?;
    let ours = limiter(&store, 3, &prefix).block_for(2 * HOUR).build()?;
    // Each key is used by one side only: "a" by Node, "b" by us.
    for (method, points) in [
        ("consume", 1),
        ("consume", 2),
        ("reward", 2),
        ("penalty", 5),
        ("reward", 4),
        ("consume", 1),
        ("consume", 3),
        ("consume", 1),
        ("get", 0),
    ] {
        let question = match method {
            "get" => json!([method, "a"]),
            _ => json!([method, "a", points]),
        };
        let (theirs, their_ms) = without_time(node.ask(question).await?);
        let points = match method {
            "consume" => ours.consume("b", points).await?,
            "reward" => ours.reward("b", points).await?,
            "penalty" => ours.penalty("b", points).await?,
            _ => ours.get("b").await?.context("it was consumed")?,
        };
        // Only `consume` refuses; the others report.
        let mut expected = shown(&points);
        if method != "consume" {
            expected["allowed"] = json!(true);
        }
        assert_eq!(theirs, expected, "{method}");
        let blocked = |ms: f64| ms > 3_600_000.0;
        let our_ms = points.reset.map(|reset| reset.as_secs_f64() * 1000.0);
        assert_eq!(their_ms.map(blocked), our_ms.map(blocked), "{method}");
    }
    // Each side honours the other's block.
    let (there, _) = without_time(node.ask(json!(["consume", "b"])).await?);
    assert_eq!(there["allowed"], false);
    assert!(!ours.consume("a", 1).await?.is_allowed());
    ours.block("c", HOUR).await?;
    assert_eq!(node.ask(json!(["consume", "c"])).await?["allowed"], false);
    let _ = node.ask(json!(["block", "d", 3600])).await?;
    assert!(!ours.consume("d", 1).await?.is_allowed());
    assert!(ours.delete("d").await?);
    assert_eq!(node.ask(json!(["get", "d"])).await?, Value::Null);
    assert_eq!(ours.get("d").await?, None);
    Ok(())
}
on!(same_answers: every_call_counts_as_in_node_and_blocks_are_common);

#[tokio::test]
async fn a_window_ends_and_settings_that_node_would_cut_are_refused() -> Result<()> {
    let store = Store::connect("memory://").await?;
    let ours = limiter(&store, 1, "").build()?;
    assert!(ours.consume("k", 1).await?.is_allowed());
    assert!(!ours.consume("k", 1).await?.is_allowed());
    store.advance(HOUR + Duration::from_secs(1))?;
    assert!(ours.consume("k", 1).await?.is_allowed());
    let points = NonZeroU32::MIN;
    for duration in [Duration::ZERO, Duration::from_millis(1500)] {
        let refused = FlexibleLimiter::builder(&store, points, duration).build();
        assert!(refused.unwrap_err().is_invalid(), "{duration:?}");
    }
    let refused = limiter(&store, 5, "x").block_on_consumed(4).build();
    assert!(refused.unwrap_err().is_invalid());
    // Blocked only once it has consumed six.
    let late = limiter(&store, 3, "late")
        .block_for(2 * HOUR)
        .block_on_consumed(6)
        .build()?;
    let reset = |points: Points| points.reset.unwrap_or_default();
    assert!(reset(late.consume("k", 4).await?) <= HOUR);
    assert!(reset(late.consume("k", 2).await?) > HOUR);
    Ok(())
}
