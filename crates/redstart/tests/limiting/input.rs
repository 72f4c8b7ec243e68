//! Bad input is refused before the network.

use std::time::Duration;

use redstart::{
    Store,
    limiting::{Algorithm, Limiter, Quota},
};

/// A store that can reach nothing: whatever answers at once did so without it.
async fn nowhere() -> Store {
    Store::builder("redis://127.0.0.1:1")
        .lazy()
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn bad_quotas_and_names_are_refused_when_the_limiter_is_built() {
    let store = nowhere().await;
    let build = |kind, quota| Limiter::builder(&store, "app", "api", kind, quota).build();
    for kind in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingCounter,
    ] {
        let bad = [
            Quota::per_second(0),
            Quota::per(5, Duration::ZERO),
            Quota::per(5, Duration::from_micros(999)),
            Quota::per(5, Duration::from_secs(367 * 24 * 3600)),
            Quota::per_day(u64::MAX),
            Quota::per_second(5).burst(0),
        ];
        for quota in bad {
            let error = build(kind, quota).unwrap_err();
            assert!(error.is_config(), "{kind} {quota:?}: {error}");
        }
        assert!(build(kind, Quota::per_second(5)).is_ok());
    }
    let windows = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingCounter,
    ];
    for kind in windows {
        let odd = Quota::per(5, Duration::from_micros(1500));
        assert!(build(kind, odd).unwrap_err().is_config());
        let burst = Quota::per_second(5).burst(10);
        assert!(build(kind, burst).unwrap_err().is_config());
    }
    let huge = Quota::per_second(10).burst(u64::MAX);
    assert!(build(Algorithm::TokenBucket, huge).unwrap_err().is_config());

    let start =
        |namespace, name| Limiter::token_bucket(&store, namespace, name, Quota::per_second(5));
    let and = |name| start("app", "api").and(name, Algorithm::FixedWindow, Quota::per_day(1));
    for bad in [
        start("", "api"),
        start("a b", "api"),
        start("app", ""),
        start("app", "a:b"),
        start("app", "api").deny_cache(0),
        and(""),
        and("a\"b"),
        and("api"),
        and("x").and("x", Algorithm::FixedWindow, Quota::per_day(2)),
    ] {
        let text = format!("{bad:?}");
        assert!(bad.build().unwrap_err().is_config(), "{text}");
    }
}

#[tokio::test]
async fn bad_costs_and_subjects_are_refused_before_the_network() {
    let store = nowhere().await;
    let limiter = Limiter::token_bucket(&store, "app", "api", Quota::per_second(5))
        .build()
        .unwrap();
    assert!(limiter.check("u", 0).await.unwrap_err().is_config());
    assert!(limiter.check("", 1).await.unwrap_err().is_config());
    let long = "x".repeat(2000);
    assert!(limiter.check(&long, 1).await.unwrap_err().is_config());
    assert!(limiter.peek("").await.unwrap_err().is_config());
    assert!(limiter.check_all("u", &[]).await.unwrap_err().is_config());
}
