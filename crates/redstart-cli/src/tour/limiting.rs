//! Rate limiters.

use std::time::Duration;

use redstart::{
    Store,
    limiting::{Algorithm, Decision, Limiter, Quota},
};
use tokio::time::{Instant, sleep};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "rate limiting",
    steps: &[
        Step {
            pattern: "fixed_window",
            run: |stage| Box::pin(fixed_window(stage)),
        },
        Step {
            pattern: "sliding_window",
            run: |stage| Box::pin(sliding_window(stage)),
        },
        Step {
            pattern: "sliding_counter",
            run: |stage| Box::pin(sliding_counter(stage)),
        },
        Step {
            pattern: "token_bucket",
            run: |stage| Box::pin(token_bucket(stage)),
        },
    ],
};

/// Makes 200 concurrent calls and returns how many were admitted.
async fn rush(limiter: &Limiter, subject: &'static str) -> anyhow::Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            limiter
                .check(subject, 1)
                .await
                .map(|decision| decision.is_allowed())
        });
    }
    let mut allowed = 0;
    while let Some(ended) = tasks.join_next().await {
        allowed += u64::from(ended??);
    }
    Ok(allowed)
}

/// Lets time pass until just after a boundary of windows of this length.
async fn next_window(store: &Store, length: Duration) -> anyhow::Result<()> {
    let into = Duration::from_nanos((store.time().await?.as_nanos() % length.as_nanos()) as u64);
    pass(store, length - into).await
}

/// Moves the clock of the embedded engine; waits on a real server.
async fn pass(store: &Store, time: Duration) -> anyhow::Result<()> {
    if store.is_embedded() {
        store.advance(time)?;
    } else {
        sleep(time).await;
    }
    Ok(())
}

async fn fixed_window(stage: &mut Stage) -> anyhow::Result<()> {
    let window = Duration::from_secs(1);
    let limiter = Limiter::fixed_window(
        stage.store(),
        stage.namespace(),
        "api",
        Quota::per(10, window),
    )
    .build()?;
    next_window(stage.store(), window).await?;
    pass(stage.store(), Duration::from_millis(500)).await?;
    let before = rush(&limiter, "user:42").await?;
    next_window(stage.store(), window).await?;
    let after = rush(&limiter, "user:42").await?;
    stage.claim(
        before == 10 && after == 10,
        "each window admits exactly its limit",
    )?;
    stage.claim(
        limiter.check("other", 1).await?.is_allowed(),
        "subjects do not share a limit",
    )?;
    stage.did(401);
    stage.show(
        "a burst across the boundary: 10 + 10 of 400 admitted, twice the limit, as documented",
    );
    Ok(())
}

async fn sliding_window(stage: &mut Stage) -> anyhow::Result<()> {
    let window = Duration::from_secs(1);
    let limiter = Limiter::sliding_window(
        stage.store(),
        stage.namespace(),
        "api",
        Quota::per(10, window),
    )
    .build()?;
    next_window(stage.store(), window).await?;
    pass(stage.store(), Duration::from_millis(700)).await?;
    let before = rush(&limiter, "user:42").await?;
    pass(stage.store(), Duration::from_millis(400)).await?;
    let after = rush(&limiter, "user:42").await?;
    stage.claim(before == 10, "the window admits exactly its limit")?;
    stage.claim(
        after == 0,
        "the same burst across a boundary admits nothing more",
    )?;
    let Decision::Limited { retry_after, .. } = limiter.check("user:42", 1).await? else {
        anyhow::bail!("the eleventh was admitted");
    };
    stage.claim(
        retry_after <= window,
        "the wait is no longer than the window",
    )?;
    pass(stage.store(), retry_after).await?;
    stage.claim(
        limiter.check("user:42", 1).await?.is_allowed(),
        "waiting for retry_after is enough",
    )?;
    stage.did(402);
    stage.show(
        "the same burst across the boundary: 10 of 400 admitted, exact in every rolling window",
    );
    Ok(())
}

async fn sliding_counter(stage: &mut Stage) -> anyhow::Result<()> {
    let limiter = Limiter::sliding_counter(
        stage.store(),
        stage.namespace(),
        "api",
        Quota::per_minute(50),
    )
    .build()?;
    let allowed = rush(&limiter, "user:42").await?;
    stage.claim(
        allowed == 50,
        "of 200 concurrent calls exactly the limit is admitted",
    )?;
    let refused = limiter.check("user:42", 1).await?;
    stage.claim(
        refused.retry_after().is_some(),
        "a refusal says when to retry",
    )?;
    let huge = limiter.check("user:42", 51).await?;
    stage.claim(
        matches!(huge, Decision::Never { max: 50 }),
        "a cost above the limit is never admitted",
    )?;
    stage.did(202);
    stage.show("two numbers per subject: 50 of 200 concurrent calls admitted");
    Ok(())
}

async fn token_bucket(stage: &mut Stage) -> anyhow::Result<()> {
    let limiter = Limiter::token_bucket(
        stage.store(),
        stage.namespace(),
        "api",
        Quota::per_second(20).burst(40),
    )
    .and("daily", Algorithm::FixedWindow, Quota::per_day(1000))
    .build()?;
    let started = Instant::now();
    let allowed = rush(&limiter, "user:42").await?;
    let refilled = (started.elapsed().as_secs_f64() * 20.0).ceil() as u64;
    stage.claim(
        (40..=40 + refilled).contains(&allowed),
        "a burst gets the capacity plus what is refilled meanwhile",
    )?;
    let Decision::Limited { retry_after, .. } = limiter.check("user:42", 40).await? else {
        anyhow::bail!("an empty bucket admitted forty");
    };
    let daily = |snapshots: &[redstart::limiting::Snapshot]| snapshots[1].remaining;
    let before = daily(&limiter.peek_all("user:42").await?);
    stage.claim(
        before == 1000 - allowed,
        "calls that the bucket refused do not count against the day",
    )?;
    pass(stage.store(), retry_after).await?;
    stage.claim(
        limiter.check("user:42", 40).await?.is_allowed(),
        "waiting for retry_after is enough, for any cost",
    )?;
    stage.did(203);
    stage.show(format!("{allowed} of 200 at once, then a steady 20 per second; only those count against the daily limit"));
    Ok(())
}
